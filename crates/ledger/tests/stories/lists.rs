//! Lists of buyers, those who have to wait, and doors that change while a sale runs.

use ledger::{AuditEntry, BuyerList, CoolDown, ListKind, Listed, Origin};
use sale::{ActivityId, ChallengeKind, CloseReason, Door, UserId};
use serde_json::json;

use crate::check;

fn audit(action: &str) -> AuditEntry {
    AuditEntry {
        who: "op".into(),
        action: action.into(),
        target: "list".into(),
        detail: json!({}),
        origin: Origin::default(),
    }
}

fn users(names: &[&str]) -> Vec<UserId> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_list_knows_who_is_on_it_and_how_many() {
    check(async |shop| {
        let now_ms = shop.now();
        let of = |kind, activity: i64| BuyerList {
            kind,
            activity: Some(ActivityId(activity)).filter(|id| id.0 != 0),
        };
        let members = of(ListKind::Members, 7);
        let entry = audit("list.add");
        let add = async |list, names: &[&str]| {
            shop.list_buyers(list, &users(names), &entry, now_ms).await.unwrap()
        };
        assert_eq!(add(members, &["ann", "bob", "用户3", "bob"]).await, 3);
        assert_eq!(add(members, &["bob", "dan"]).await, 1, "one was there");
        assert_eq!(add(of(ListKind::Blocked, 0), &["eve"]).await, 1);
        assert_eq!(add(of(ListKind::Blocked, 8), &["ann"]).await, 1);
        let lists = shop.buyer_lists().await.unwrap();
        let (of_shop, of_8) = (of(ListKind::Blocked, 0), of(ListKind::Blocked, 8));
        assert_eq!(lists, [(members, 4), (of_shop, 1), (of_8, 1)]);

        let asked = |activity, name: &str| (ActivityId(activity), name.parse::<UserId>().unwrap());
        let all =
            [asked(7, "ann"), asked(8, "ann"), asked(7, "eve"), asked(7, "x"), asked(7, "ANN")];
        let (member, blocked) =
            (Listed { member: true, blocked: false }, Listed { member: false, blocked: true });
        let nothing = Listed::default();
        let listed = shop.listed(&all).await.unwrap();
        assert_eq!(listed, [member, blocked, blocked, nothing, nothing]);

        let page = shop.listed_buyers(members, None, 2).await.unwrap();
        assert_eq!(page, users(&["ann", "bob"]));
        let page = shop.listed_buyers(members, page.last(), 5).await.unwrap();
        assert_eq!(page, users(&["dan", "用户3"]));
        let gone =
            shop.unlist_buyers(members, &users(&["ann", "x"]), &entry, now_ms).await.unwrap();
        assert_eq!((gone, shop.buyer_lists().await.unwrap()[0].1), (1, 3));
        let written = shop.audit_log(None, 1).await.unwrap().remove(0);
        assert_eq!(written.detail["removed"], 1);
    })
    .await;
}

#[tokio::test]
async fn who_lets_orders_go_is_counted_and_waits() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let since_ms = shop.now();
        for (user, times) in [("ann", 3), ("bob", 1)] {
            for _ in 0..times {
                let order = shop.bought(item.id, user, 1).await;
                let closed =
                    shop.close(&[order.order_no], CloseReason::Cancelled, shop.now()).await;
                assert_eq!(closed.unwrap().len(), 1);
            }
        }
        shop.bought(item.id, "cat", 1).await;
        let names = users(&["ann", "bob", "cat", "dan"]);
        let mut counted = shop.unpaid_closes(&names, since_ms).await.unwrap();
        counted.sort();
        assert_eq!(counted, [(names[0].clone(), 3), (names[1].clone(), 1)]);
        shop.clock.advance(1_000);
        assert_eq!(shop.unpaid_closes(&names, shop.now()).await.unwrap(), []);

        let now_ms = shop.now();
        shop.cool_down(&names[..2], now_ms + 100, now_ms).await.unwrap();
        shop.cool_down(&names[..1], now_ms + 500, now_ms).await.unwrap();
        let waits = |n: usize, ms| CoolDown { user: names[n].clone(), until_ms: now_ms + ms };
        assert_eq!(shop.cooling_down(now_ms, 9).await.unwrap(), [waits(0, 500), waits(1, 100)]);
        assert_eq!(shop.cooling_down(now_ms + 100, 9).await.unwrap(), [waits(0, 500)]);
        let entry = audit("cool_down.end");
        assert!(shop.end_cool_down(&names[0], &entry, now_ms).await.unwrap());
        assert!(!shop.end_cool_down(&names[0], &entry, now_ms).await.unwrap());
        // Whoever writes a new one forgets those that are over.
        shop.cool_down(&names[2..3], now_ms + 900, now_ms + 800).await.unwrap();
        assert_eq!(shop.cooling_down(0, 9).await.unwrap().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_door_changes_while_the_sale_runs_and_only_for_those_who_have_seen_it() {
    check(async |shop| {
        let planned = Door { difficulty: 20, members_only: true, ..Door::default() };
        let new = sale::NewActivity { door: planned, ..crate::Shop::new_activity(&[1]) };
        let made = shop.create_activity(&new, shop.now()).await.unwrap();
        assert_eq!(made.door, planned);
        let entry = audit("activity.door");
        let door = Door { challenge: ChallengeKind::Captcha, ..planned };
        let change = async |version| {
            shop.change_door(made.id, version, &door, &entry, shop.now()).await.unwrap()
        };
        assert!(!change(made.version).await.edited, "a draft is edited as a whole");
        shop.publish(made.id).await;
        let version = shop.activity(made.id).await.unwrap().unwrap().version;
        assert!(!change(version - 1).await.edited);
        let changed = change(version).await;
        assert!(changed.edited);
        assert_eq!((changed.activity.door, changed.activity.version), (door, version + 1));
    })
    .await;
}
