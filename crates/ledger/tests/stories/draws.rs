//! Draws of a fair start: their secrets, which are drawn once, and their record.

use ledger::{AuditEntry, Origin};
use sale::{ActivityEdit, DrawOutcome, DrawPlace, Drawn, ItemId, NewActivity};
use serde_json::json;

use crate::{Shop, check};

fn audit() -> AuditEntry {
    AuditEntry {
        who: "op".into(),
        action: "activity.edit".into(),
        target: "activity".into(),
        detail: json!({}),
        origin: Origin::default(),
    }
}

#[tokio::test]
async fn an_activity_with_a_draw_is_bound_to_one_seed_from_its_first_moment() {
    check(async |shop| {
        let now_ms = shop.now();
        let plain = shop.activity_of(&[1]).await;
        assert_eq!(plain.draw, None);
        assert_eq!(shop.draw_secrets(plain.id).await.unwrap(), None);
        let fair = NewActivity { shuffle_ms: 2_000, ..Shop::new_activity(&[1]) };
        let fair = shop.create_activity(&fair, now_ms).await.unwrap();
        let draw = fair.draw.clone().unwrap();
        let secrets = shop.draw_secrets(fair.id).await.unwrap().unwrap();
        assert_eq!((draw.shuffle_ms, &draw.commitment), (2_000, &secrets.commitment()));
        assert_eq!(fair.gate_opens_ms(), fair.opens_ms + 2_000);

        // Given up and taken up again while it is a draft: the same seed, so nobody can draw until it suits.
        let edit = async |version: i64, shuffle_ms: i64| {
            let edit = ActivityEdit { shuffle_ms: Some(shuffle_ms), ..Default::default() };
            let before = shop.activity(fair.id).await.unwrap().unwrap();
            let new = edit.of(&before).unwrap();
            let edited = shop.edit_draft(fair.id, version, &new, &audit(), now_ms).await.unwrap();
            assert!(edited.edited);
            edited.activity
        };
        let without = edit(fair.version, 0).await;
        assert_eq!(without.draw, None);
        let again = edit(without.version, 500).await.draw.unwrap();
        assert_eq!((again.shuffle_ms, again.commitment), (500, draw.commitment.clone()));
        shop.publish(fair.id).await;
        let published = shop.activity(fair.id).await.unwrap().unwrap();
        assert_eq!(published.draw.unwrap().commitment, draw.commitment);
        assert_eq!(shop.draw_secrets(fair.id).await.unwrap(), Some(secrets));
    })
    .await;
}

#[tokio::test]
async fn a_record_is_read_in_its_order_and_a_buyer_at_two_instances_has_one_line() {
    check(async |shop| {
        let item = ItemId(7);
        let line =
            |place: u128, outcome| Drawn { place: DrawPlace(place << 100), quantity: 1, outcome };
        use DrawOutcome::*;
        let here = [line(5, Left), line(1, Won), line(9, SoldOut)];
        shop.note_drawn(item, &here).await.unwrap();
        shop.note_drawn(item, &here).await.unwrap();
        let there = [line(5, Won), line(1, Left), line(2, Refused)];
        shop.note_drawn(item, &there).await.unwrap();
        shop.note_drawn(ItemId(8), &[line(3, Won)]).await.unwrap();
        let all = shop.drawn(item, None, 10).await.unwrap();
        assert_eq!(all, [line(1, Won), line(2, Refused), line(5, Won), line(9, SoldOut)]);
        let page = shop.drawn(item, None, 2).await.unwrap();
        assert_eq!(page, all[..2]);
        assert_eq!(shop.drawn(item, Some(page[1].place), 2).await.unwrap(), all[2..]);
        assert_eq!(shop.drawn_at(item, all[3].place).await.unwrap(), Some(all[3]));
        assert_eq!(shop.drawn_at(item, DrawPlace(4)).await.unwrap(), None);
    })
    .await;
}
