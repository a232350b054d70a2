//! Operators plan: drafts edited by two at once, windows moved, drafts that publish themselves.

use ledger::LedgerError;
use sale::{Activity, ActivityEdit, ActivityState, ItemEdit, Millis};

use crate::{NOON_MS, Shop, audit_entry, check};

async fn edit(
    shop: &Shop,
    seen: &Activity,
    edit: ActivityEdit,
) -> ledger::Result<ledger::EditedActivity> {
    let plan = edit.of(seen).unwrap();
    shop.edit_draft(seen.id, seen.version, &plan, &audit_entry("activity.edit"), shop.now()).await
}

#[tokio::test]
async fn of_two_who_edit_the_same_draft_the_second_is_told_what_is_true_now() {
    check(async |shop| {
        let draft = shop.activity_of(&[10, 20]).await;
        let (first, second) = (draft.items[0].id, draft.items[1].id);
        let items = vec![
            ItemEdit { id: Some(second), stock: Some(25), price: Some(9), ..Default::default() },
            ItemEdit {
                name: Some("case".into()),
                price: Some(1),
                stock: Some(7),
                ..Default::default()
            },
        ];
        let ann = ActivityEdit {
            name: Some("双十二".into()),
            opens_ms: Some(NOON_MS + 1),
            publish_ms: Some(Some(NOON_MS)),
            items: Some(items),
            ..Default::default()
        };
        let done = edit(&shop, &draft, ann).await.unwrap();
        assert!(done.edited);
        let now = done.activity;
        assert_eq!((now.name.as_str(), now.opens_ms), ("双十二", NOON_MS + 1));
        assert_eq!((now.closes_ms, now.publish_ms), (draft.closes_ms, Some(NOON_MS)));
        assert!(now.version > draft.version);
        assert_eq!(shop.item(first).await.unwrap(), None, "it was not named any more");
        let stocks: Vec<_> = now.items.iter().map(|item| (item.stock, item.total)).collect();
        assert_eq!((now.items[0].id, stocks), (second, vec![(25, 25), (7, 7)]));

        let bob = ActivityEdit { name: Some("11.11".into()), ..Default::default() };
        let late = edit(&shop, &draft, bob.clone()).await.unwrap();
        assert!(!late.edited, "he has not seen what ann did");
        assert_eq!(late.activity, now);
        assert!(edit(&shop, &now, bob).await.unwrap().edited);
        let audit = shop.audit_log(None, 9).await.unwrap();
        assert_eq!(audit.len(), 2, "what was not done is not written down");
        let nowhere = Activity { id: sale::ActivityId(99), ..now };
        let missing = edit(&shop, &nowhere, ActivityEdit::default()).await;
        assert!(matches!(missing, Err(LedgerError::NotFound)));
    })
    .await;
}

#[tokio::test]
async fn no_edit_breaks_the_chain_of_the_stock_log() {
    check(async |shop| {
        let draft = shop.activity_of(&[10]).await;
        let id = draft.items[0].id;
        shop.adjust_stock(id, 5, shop.number(), shop.now()).await.unwrap();
        let with = |stock| ActivityEdit {
            items: Some(vec![ItemEdit { id: Some(id), stock, ..Default::default() }]),
            ..Default::default()
        };
        let lowered = edit(&shop, &draft, with(Some(10))).await.unwrap_err();
        assert!(matches!(lowered, LedgerError::Refused(why) if why.field == "items[0].stock"));
        let now = shop.activity(draft.id).await.unwrap().unwrap();
        assert_eq!(now.items[0].total, 15, "what was adjusted meanwhile is not undone");
        let other = edit(&shop, &now, with(Some(12))).await.unwrap_err();
        assert!(matches!(other, LedgerError::Refused(why) if why.field == "items[0].stock"));
        let without = ActivityEdit { items: Some(vec![]), ..Default::default() };
        let gone = edit(&shop, &now, without).await.unwrap_err();
        assert!(matches!(gone, LedgerError::Refused(why) if why.field == "items"));
        assert!(edit(&shop, &now, with(None)).await.unwrap().edited);
        shop.books_add_up(id).await;
    })
    .await;
}

#[tokio::test]
async fn a_window_moves_only_before_it_opens() {
    check(async |shop| {
        let draft = shop.activity_of(&[10]).await;
        let move_to = async |seen: &Activity, opens_ms: Millis, now_ms| {
            let window = (opens_ms, opens_ms + 9);
            shop.postpone(seen.id, seen.version, window, &audit_entry("activity.postpone"), now_ms)
                .await
        };
        let before = NOON_MS - 1;
        assert!(!move_to(&draft, NOON_MS + 5, before).await.unwrap().edited, "drafts are edited");
        shop.publish(draft.id).await;
        let published = shop.activity(draft.id).await.unwrap().unwrap();
        assert!(published.version > draft.version, "a move is a change, too");
        assert!(!move_to(&draft, NOON_MS + 5, before).await.unwrap().edited, "not what was seen");
        assert!(!move_to(&published, NOON_MS + 5, NOON_MS).await.unwrap().edited, "it is open");
        let moved = move_to(&published, NOON_MS + 5, before).await.unwrap();
        assert!(moved.edited);
        assert_eq!(
            (moved.activity.opens_ms, moved.activity.closes_ms),
            (NOON_MS + 5, NOON_MS + 14)
        );
        let edited = edit(&shop, &moved.activity, ActivityEdit::default()).await.unwrap();
        assert!(!edited.edited, "it is no draft");
    })
    .await;
}

#[tokio::test]
async fn drafts_are_due_when_they_are_to_publish_themselves() {
    check(async |shop| {
        let plans = async |publish_ms| {
            let draft = shop.activity_of(&[1]).await;
            let when = ActivityEdit { publish_ms: Some(publish_ms), ..Default::default() };
            edit(&shop, &draft, when).await.unwrap().activity
        };
        let (late, early) = (plans(Some(NOON_MS + 2)).await, plans(Some(NOON_MS + 1)).await);
        let (published, _never) = (plans(Some(NOON_MS)).await, plans(None).await);
        shop.publish(published.id).await;
        let due = async |now_ms, limit| -> Vec<_> {
            let due = shop.publish_due(now_ms, limit).await.unwrap();
            due.into_iter().map(|activity| activity.id).collect()
        };
        assert!(due(NOON_MS, 9).await.is_empty());
        assert_eq!(due(NOON_MS + 2, 9).await, [early.id, late.id]);
        assert_eq!(due(NOON_MS + 2, 1).await, [early.id]);
        let entry = audit_entry("activity.publish");
        let forget = async |version| {
            shop.forget_publish(early.id, version, &entry, shop.now()).await.unwrap()
        };
        assert!(!forget(early.version - 1).await, "somebody has edited it since");
        assert!(forget(early.version).await);
        assert_eq!(due(NOON_MS + 2, 9).await, [late.id]);
        let publish = async |version| {
            shop.publish_planned(late.id, version, &entry, shop.now()).await.unwrap()
        };
        assert!(!publish(late.version + 1).await);
        assert!(publish(late.version).await);
        assert!(!publish(late.version + 1).await, "once");
        assert!(due(NOON_MS + 2, 9).await.is_empty());
        let now = shop.activity(late.id).await.unwrap().unwrap();
        assert_eq!((now.state, now.publish_ms), (ActivityState::Published, Some(NOON_MS + 2)));
        let kept = shop.activity(early.id).await.unwrap().unwrap();
        assert_eq!((kept.state, kept.publish_ms), (ActivityState::Draft, None));
    })
    .await;
}
