//! Stories of what a process knows of the gate: what changed is seen at once, whoever changed it, and an
//! idle gate is hardly asked.

use gate::{Inspection, Loading, Presence, Shut, Upkeep};
use sale::ItemId;

use crate::{
    fixture::{Home, ITEM, PARTITIONS, RedisHome, admitted, give_back, load, one},
    redis::loading,
    redis_fences::key,
};

#[tokio::test]
async fn what_others_change_is_seen_by_the_next_who_looks() {
    let home = RedisHome::new();
    let (gate, other) = (home.open_as("one").await, home.open_as("other").await);
    for n in 0..20 {
        assert!(load(&gate, Loading { item: ItemId(n), ..loading(&home, 1, 8, 2) }).await);
    }
    load(&gate, loading(&home, 1, 8, 2)).await;
    let here = async || {
        let loaded = other.loaded().await.unwrap();
        *loaded.iter().find(|here| here.item == ITEM).unwrap()
    };
    assert_eq!((here().await.presence, other.left(ITEM)), (Presence::Whole, Some(8)));
    let claim = admitted(&one(&gate, home.request("a", 2)).await);
    assert_eq!((here().await.shut, other.left(ITEM)), (None, Some(6)));
    gate.release(&[give_back(&claim)]).await.unwrap();
    here().await;
    assert_eq!(other.left(ITEM), Some(8));
    gate.shut(ITEM, Some(Shut::Paused)).await.unwrap();
    assert_eq!(here().await.shut, Some(Shut::Paused));
    assert!(gate.begin_load(ITEM, 2, 2).await.unwrap());
    assert!(matches!(here().await.presence, Presence::Loading { .. }));
    assert!(gate.load(loading(&home, 2, 5, 2)).await.unwrap());
    assert_eq!((here().await.epoch, other.left(ITEM)), (2, Some(5)));
    gate.unload(ITEM).await.unwrap();
    assert_eq!(other.loaded().await.unwrap().len(), 20);
    assert_eq!(other.left(ITEM), None);
    // Also what nobody counted, as keys that were deleted by hand, in their turn.
    home.call(&["DEL", &key(&home, 3, "meta:3")]);
    for _ in 0..PARTITIONS {
        other.loaded().await.unwrap();
    }
    let loaded = other.loaded().await.unwrap();
    assert_eq!(loaded.iter().filter(|here| here.presence == Presence::Torn).count(), 1);
}

#[tokio::test]
async fn an_item_with_another_server_than_the_one_it_was_loaded_in_is_suspect() {
    let home = RedisHome::new();
    let (gate, other) = (home.open_as("one").await, home.open_as("other").await);
    load(&gate, loading(&home, 1, 8, 2)).await;
    other.upkeep().await.unwrap();
    assert!(other.suspects().is_empty());
    home.call(&["HSET", &key(&home, 3, "meta:42"), "server", "1"]);
    for _ in 0..PARTITIONS {
        other.upkeep().await.unwrap();
    }
    assert_eq!(other.suspects(), [ITEM]);
    load(&gate, loading(&home, 2, 8, 2)).await;
    other.upkeep().await.unwrap();
    assert!(other.suspects().is_empty(), "somebody has loaded it anew");
}
