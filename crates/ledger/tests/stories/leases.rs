//! Leases: who alone does something for a while.

use crate::{Shop, check};

/// The numbers of a holder who asks for these for half a minute.
async fn take(shop: &Shop, holder: &str, names: &[&str]) -> Vec<Option<u64>> {
    shop.take_leases(names, holder, 30_000).await.unwrap()
}

#[tokio::test]
async fn a_lease_is_held_by_one_until_it_ends_and_every_holder_has_a_larger_number() {
    check(async |shop| {
        assert_eq!(take(&shop, "ann", &["telling"]).await, [Some(1)]);
        assert_eq!(take(&shop, "bob", &["telling"]).await, [None]);
        assert_eq!(take(&shop, "ann", &["telling"]).await, [Some(1)], "renewed");
        // Several at once: each is answered for itself.
        assert_eq!(take(&shop, "bob", &["warm", "telling", "end"]).await, [Some(1), None, Some(1)]);
        assert_eq!(take(&shop, "ann", &["warm", "telling", "end"]).await, [None, Some(1), None]);
        let given_up = shop.take_leases(&["telling"], "ann", 0).await.unwrap();
        assert_eq!(given_up, [Some(1)]);
        assert_eq!(take(&shop, "bob", &["telling"]).await, [Some(2)]);
        assert_eq!(take(&shop, "ann", &["telling"]).await, [None]);
    })
    .await;
}

#[tokio::test]
async fn many_who_ask_at_once_find_one_holder() {
    check(async |shop| {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        for _ in 0..3 {
            let (a, b, c, d) = tokio::join!(
                take(&shop, "ann", &names),
                take(&shop, "bob", &names),
                take(&shop, "eve", &names),
                take(&shop, "joe", &names),
            );
            let answers = [a, b, c, d];
            for (n, name) in names.iter().enumerate() {
                let held = answers.iter().filter(|answer| answer[n].is_some()).count();
                assert_eq!(held, 1, "{name}: {answers:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_lease_from_before_the_clock_was_set_back_is_nobodys() {
    check(async |shop| {
        assert_eq!(take(&shop, "ann", &["warm"]).await, [Some(1)]);
        let set_back = "UPDATE tb_lease SET until_at = until_at + 86400000";
        shop.back_door.run(set_back).await.unwrap();
        assert_eq!(take(&shop, "bob", &["warm"]).await, [Some(2)]);
    })
    .await;
}
