//! The shop's own words: kept as they came, found by the shop's ids, and made once however often asked.

use ledger::{
    CREATE_KEY_KEPT_MS, CreateKey, CreatedActivities, LedgerError, NewActivities, OrderFilter,
    WhenTaken,
};
use sale::{ActivityEdit, ItemEdit, ItemWords, NewActivity};
use serde_json::json;

use crate::{NOON_MS, Shop, audit_entry, check};

fn words(sku: &str) -> ItemWords {
    let attributes = json!({"colour": "蓝 \"blue\"", "weight": 187.25, "new": true, "n": -3});
    ItemWords {
        sku: Some(sku.into()),
        description: "One line.\n第二行 😀".into(),
        more_images: vec!["https://cdn.shop/2.webp".into(), "/img/3.png".into()],
        attributes: attributes.as_object().unwrap().clone(),
    }
}

/// A plan with an item for each of these ids.
fn plan(external_id: Option<&str>, skus: &[&str]) -> NewActivity {
    let mut plan = Shop::new_activity(&vec![10; skus.len()]);
    plan.external_id = external_id.map(Into::into);
    for (item, sku) in plan.items.iter_mut().zip(skus) {
        item.words = words(sku);
    }
    plan
}

fn skus(items: &[sale::Item]) -> Vec<Option<&str>> {
    items.iter().map(|item| item.words.sku.as_deref()).collect()
}

#[tokio::test]
async fn what_the_shop_says_is_kept_as_it_came_and_found_by_its_ids() {
    check(async |shop| {
        let bare = shop.activity_of(&[1]).await;
        assert_eq!((bare.external_id, &bare.items[0].words), (None, &ItemWords::default()));
        let made = shop.create_activity(&plan(Some("11-11"), &["A", "B"]), NOON_MS).await.unwrap();
        assert_eq!(made.external_id.as_deref(), Some("11-11"));
        assert_eq!(made.items[0].words, words("A"));
        let other = shop.create_activity(&plan(Some("12-12"), &["A"]), NOON_MS).await.unwrap();

        let found = shop.activities_of(&[], &[], &["11-11".into(), "11-12".into()]).await.unwrap();
        assert_eq!(found, std::slice::from_ref(&made));
        let of = async |sku, activity, before| {
            let found = shop.items_by_sku(sku, activity, before, 9).await.unwrap();
            found.into_iter().map(|item| item.id).collect::<Vec<_>>()
        };
        let (old, new) = (made.items[0].id, other.items[0].id);
        assert_eq!(of("A", None, None).await, [new, old]);
        assert_eq!(of("A", None, Some(new)).await, [old]);
        assert_eq!(of("A", Some(made.id), None).await, [old]);
        assert_eq!(of("a", None, None).await, [], "an id is not a word to be understood");
        assert_eq!(of("C", None, None).await, []);
    })
    .await;
}

#[tokio::test]
async fn orders_are_found_by_what_the_shop_calls_the_item() {
    check(async |shop| {
        let first = shop.create_activity(&plan(None, &["A", "B"]), NOON_MS).await.unwrap();
        let second = shop.create_activity(&plan(None, &["A"]), NOON_MS).await.unwrap();
        let items = [first.items[0].id, second.items[0].id, first.items[1].id, first.items[0].id];
        let mut made = Vec::new();
        for (n, item) in items.into_iter().enumerate() {
            let claim = shop.claim(item, &format!("u{n}"), 1);
            made.push(claim.order_no);
            shop.settle(item, &[claim]).await.unwrap();
        }
        let of = async |filter: OrderFilter| {
            let found = shop.orders(&filter).await.unwrap();
            assert!(found.iter().all(|order| order.sku == filter.sku), "{found:?}");
            found.into_iter().map(|order| order.order_no).collect::<Vec<_>>()
        };
        let sku = || OrderFilter { sku: Some("A".into()), limit: 9, ..Default::default() };
        assert_eq!(of(sku()).await, [made[3], made[1], made[0]], "of both sales, newest first");
        assert_eq!(of(OrderFilter { limit: 2, ..sku() }).await, [made[3], made[1]]);
        assert_eq!(of(OrderFilter { before: Some(made[1]), ..sku() }).await, [made[0]]);
        let in_second = OrderFilter { activity: Some(second.id), ..sku() };
        assert_eq!(of(in_second).await, [made[1]]);
        let item = OrderFilter { item: Some(first.items[0].id), ..sku() };
        assert_eq!(of(item).await, [made[3], made[0]]);
        let none = OrderFilter { sku: Some("C".into()), limit: 9, ..Default::default() };
        assert_eq!(of(none).await, []);
        let one = shop.order(made[2]).await.unwrap().unwrap();
        assert_eq!(one.sku.as_deref(), Some("B"));
    })
    .await;
}

#[tokio::test]
async fn a_draft_changes_its_words_and_two_items_may_change_their_ids_with_each_other() {
    check(async |shop| {
        let draft =
            shop.create_activity(&plan(Some("spring"), &["A", "B"]), NOON_MS).await.unwrap();
        shop.create_activity(&plan(Some("autumn"), &["A"]), NOON_MS).await.unwrap();
        let edit = async |seen: &sale::Activity, edit: ActivityEdit| {
            let (plan, audit) = (edit.of(seen).unwrap(), audit_entry("activity.edit"));
            shop.edit_draft(seen.id, seen.version, &plan, &audit, shop.now()).await
        };
        let item = |n: usize, sku: &str| ItemEdit {
            id: Some(draft.items[n].id),
            sku: Some(Some(sku.into())),
            ..Default::default()
        };
        let swapped =
            ActivityEdit { items: Some(vec![item(0, "B"), item(1, "A")]), ..Default::default() };
        let now = edit(&draft, swapped).await.unwrap().activity;
        assert_eq!(skus(&now.items), [Some("B"), Some("A")]);
        assert_eq!(now.items[0].words.attributes, words("A").attributes, "nobody spoke of them");
        let bare = ActivityEdit {
            external_id: Some(None),
            items: Some(vec![ItemEdit {
                sku: Some(None),
                description: Some(String::new()),
                attributes: Some(Default::default()),
                ..item(0, "x")
            }]),
            ..Default::default()
        };
        let taken = ActivityEdit { external_id: Some(Some("autumn".into())), ..Default::default() };
        let refused = edit(&now, taken).await.unwrap_err();
        assert!(matches!(refused, LedgerError::Refused(why) if why.field == "external_id"));
        let now = edit(&now, bare).await.unwrap().activity;
        assert_eq!((&now.external_id, skus(&now.items)), (&None, vec![None]));
        assert!(now.items[0].words.attributes.is_empty());
        // Its old id is free for another.
        shop.create_activity(&plan(Some("spring"), &["A"]), NOON_MS).await.unwrap();
    })
    .await;
}

fn asked(plans: Vec<NewActivity>, key: Option<(&str, &str)>) -> NewActivities {
    let key = key.map(|(key, hash)| CreateKey {
        who: "ann".into(),
        key: key.into(),
        body_hash: hash.into(),
    });
    NewActivities {
        when_taken: WhenTaken::Keep,
        key,
        audit: Some(audit_entry("activity.create")),
        ..NewActivities::of(plans)
    }
}

#[tokio::test]
async fn what_is_asked_for_again_with_its_key_is_made_once() {
    check(async |shop| {
        let new = asked(vec![plan(None, &["A"]), plan(None, &["A"])], Some(("k", "h")));
        let CreatedActivities::Made(made) = shop.create_activities(&new, NOON_MS).await.unwrap()
        else {
            panic!("there was nothing before")
        };
        let ids: Vec<_> = made.iter().map(|made| (made.made, made.activity.id)).collect();
        assert_eq!(ids.len(), 2);
        let audit = shop.audit_log(None, 9).await.unwrap();
        assert_eq!(audit.len(), 2);
        assert_eq!(audit[0].target, format!("activity:{}", ids[1].1));
        let again = shop.create_activities(&new, NOON_MS + 1).await.unwrap();
        let CreatedActivities::MadeBefore(known) = again else { panic!("{again:?}") };
        assert_eq!(
            known.iter().map(|made| made.activity.id).collect::<Vec<_>>(),
            [ids[0].1, ids[1].1]
        );
        let other = asked(vec![plan(None, &["B"])], Some(("k", "g")));
        let reused = shop.create_activities(&other, NOON_MS).await.unwrap();
        assert_eq!(reused, CreatedActivities::KeyReused { made: vec![ids[0].1, ids[1].1] });
        let key = new.key.as_ref().unwrap();
        assert!(shop.created_before(key, NOON_MS).await.unwrap().is_some());
        let theirs = CreateKey { who: "bob".into(), ..key.clone() };
        assert!(shop.created_before(&theirs, NOON_MS).await.unwrap().is_none());
        assert_eq!(shop.activities(None, 9).await.unwrap().len(), 2);

        let late_ms = NOON_MS + CREATE_KEY_KEPT_MS + 1;
        assert!(shop.created_before(key, late_ms).await.unwrap().is_none(), "it is forgotten");
        let later = shop.create_activities(&other, late_ms).await.unwrap();
        assert!(matches!(later, CreatedActivities::Made(_)), "{later:?}");
        assert_eq!(shop.activities(None, 9).await.unwrap().len(), 3);
    })
    .await;
}

#[tokio::test]
async fn an_id_of_the_shop_is_given_once_and_all_are_made_or_none() {
    check(async |shop| {
        let first = shop.create_activity(&plan(Some("s-1"), &["A"]), NOON_MS).await.unwrap();
        let both = || vec![plan(Some("s-2"), &["A"]), plan(Some("s-1"), &["B"])];
        let refused = NewActivities { when_taken: WhenTaken::Refuse, ..asked(both(), None) };
        let taken = shop.create_activities(&refused, NOON_MS).await.unwrap();
        assert_eq!(taken, CreatedActivities::Taken { n: 1, by: first.id });
        assert_eq!(shop.activities(None, 9).await.unwrap().len(), 1, "nor was the other one made");
        let kept = shop.create_activities(&asked(both(), None), NOON_MS).await.unwrap();
        let CreatedActivities::Made(kept) = kept else { panic!("{kept:?}") };
        assert_eq!((kept[0].made, kept[1].made), (true, false));
        assert_eq!(kept[1].activity, first, "it stays as it was");
    })
    .await;
}

#[tokio::test]
async fn of_many_who_make_the_same_at_once_one_does() {
    check(async |shop| {
        let keyed = asked(vec![plan(None, &["A"])], Some(("k", "h")));
        let named = asked(vec![plan(Some("s-1"), &["A"])], None);
        let ask = async |new: &NewActivities| {
            let done = shop.create_activities(new, NOON_MS).await.unwrap();
            let good =
                matches!(done, CreatedActivities::Made(_) | CreatedActivities::MadeBefore(_));
            assert!(good, "{done:?}");
        };
        for _ in 0..8 {
            tokio::join!(
                ask(&keyed),
                ask(&named),
                ask(&keyed),
                ask(&named),
                ask(&keyed),
                ask(&named)
            );
        }
        assert_eq!(shop.activities(None, 99).await.unwrap().len(), 2);
    })
    .await;
}
