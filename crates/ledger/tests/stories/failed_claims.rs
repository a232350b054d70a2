//! Claims that could not be settled: tried again, kept for a person, given up.

use ledger::{DeadLetterState, LedgerError, Moved, OutboxMessage, Release};
use sale::{BookError, Claim, FailedClaim, OrderStatus, Reason, VoidReason};

use crate::{NOON_MS, Shop, check};

pub(crate) fn failed(claim: &Claim, tries: u32, next_try_ms: Option<i64>) -> FailedClaim {
    FailedClaim { claim: claim.clone(), tries, next_try_ms, cause: "the row is refused".into() }
}

/// The state of a claim's letter.
async fn letter(shop: &Shop, claim: &Claim) -> Option<DeadLetterState> {
    shop.dead_letter(claim.order_no).await.unwrap().map(|letter| letter.state)
}

#[tokio::test]
async fn a_failed_claim_is_tried_again_until_it_is_an_order() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let (ann, bob) = (shop.claim(item.id, "ann", 1), shop.claim(item.id, "bob", 1));
        let (soon, later) = (NOON_MS + 10_000, NOON_MS + 30_000);
        shop.defer(&[failed(&ann, 1, Some(later)), failed(&bob, 1, Some(soon))]).await.unwrap();
        assert!(shop.due(soon - 1, 10).await.unwrap().is_empty());
        assert_eq!(shop.due(soon, 10).await.unwrap(), [failed(&bob, 1, Some(soon))]);
        let both = shop.due(later, 10).await.unwrap();
        assert_eq!(both, [failed(&bob, 1, Some(soon)), failed(&ann, 1, Some(later))]);
        assert_eq!(shop.due(later, 1).await.unwrap().len(), 1);

        shop.settle(item.id, std::slice::from_ref(&bob)).await.unwrap();
        assert_eq!(letter(&shop, &bob).await, Some(DeadLetterState::Settled));
        // A worker that never heard the answer reports it failed: it is an order all the same.
        shop.defer(&[failed(&bob, 2, None)]).await.unwrap();
        assert_eq!(letter(&shop, &bob).await, Some(DeadLetterState::Settled));
        assert_eq!(letter(&shop, &ann).await, Some(DeadLetterState::Retrying));
        assert_eq!(shop.due(later, 10).await.unwrap(), [failed(&ann, 1, Some(later))]);
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_is_set_right_does_not_keep_failed_claims_waiting() {
    const HOUR_MS: i64 = 3_600_000;
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let (ann, bob) = (shop.claim(item.id, "ann", 1), shop.claim(item.id, "bob", 1));
        let now_ms = shop.now();
        shop.clock.advance(HOUR_MS);
        shop.defer(&[failed(&ann, 1, Some(shop.now() + 10_000))]).await.unwrap();
        shop.clock.advance(-HOUR_MS);
        // Bob's has a long way to go by the right clock.
        let later = failed(&bob, 16, Some(now_ms + 2 * HOUR_MS));
        shop.defer(std::slice::from_ref(&later)).await.unwrap();
        assert!(shop.due(now_ms + 10_000, 10).await.unwrap().is_empty());
        assert_eq!(shop.due_by_another_clock(now_ms).await.unwrap(), 1);
        assert_eq!(shop.due(now_ms, 10).await.unwrap(), [failed(&ann, 1, Some(now_ms))]);
        assert_eq!(shop.due_by_another_clock(now_ms).await.unwrap(), 0, "once");
        assert_eq!(shop.due(now_ms + 2 * HOUR_MS, 10).await.unwrap()[1], later);
    })
    .await;
}

#[tokio::test]
async fn a_buyer_finds_what_failed() {
    check(async |shop| {
        let activity = shop.activity_of(&[10, 10, 10]).await;
        let [phone, pad, pen] = [0, 1, 2].map(|n| shop.claim(activity.items[n].id, "ann", 1));
        let bobs = shop.claim(phone.item, "bob", 1);
        let of_ann = async |before, limit| -> Vec<Claim> {
            let found = shop.dead_letters_of(&phone.user, None, before, limit).await.unwrap();
            found.into_iter().map(|letter| letter.claim).collect()
        };
        assert_eq!(of_ann(None, 10).await, []);
        let letters = [
            failed(&phone, 16, None),
            failed(&pad, 1, Some(NOON_MS)),
            failed(&pen, 1, Some(NOON_MS)),
            failed(&bobs, 1, Some(NOON_MS)),
        ];
        shop.defer(&letters).await.unwrap();
        assert_eq!(of_ann(None, 10).await, [pen.clone(), pad.clone(), phone.clone()]);
        assert_eq!(of_ann(None, 1).await[..], *std::slice::from_ref(&pen));
        assert_eq!(of_ann(Some(pen.order_no), 10).await, [pad.clone(), phone.clone()]);
        // What became an order, or void, is found there.
        shop.settle(pen.item, std::slice::from_ref(&pen)).await.unwrap();
        shop.void(&[pad], VoidReason::Operator, shop.now()).await.unwrap();
        assert_eq!(of_ann(None, 10).await[..], *std::slice::from_ref(&phone));
        let voided = Some(DeadLetterState::Voided);
        let voided = shop.dead_letters_of(&phone.user, voided, None, 10).await.unwrap();
        assert_eq!(voided.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_dead_letter_waits_for_a_person() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let (ann, bob) = (shop.claim(item.id, "ann", 1), shop.claim(item.id, "bob", 2));
        shop.defer(&[failed(&ann, 16, None), failed(&bob, 16, None)]).await.unwrap();
        assert!(shop.due(i64::MAX, 10).await.unwrap().is_empty());
        let open = shop.dead_letters(None, None, 10).await.unwrap();
        assert_eq!(open.iter().map(|l| &l.claim).collect::<Vec<_>>(), [&bob, &ann]);
        assert_eq!((open[0].tries, open[0].cause.as_str()), (16, "the row is refused"));
        let page = shop.dead_letters(None, Some(bob.order_no), 10).await.unwrap();
        assert_eq!(page[..], open[1..]);

        assert_eq!(shop.replay(ann.order_no, NOON_MS + 5).await.unwrap(), Moved::Done);
        assert_eq!(shop.due(NOON_MS + 5, 10).await.unwrap(), [failed(&ann, 0, Some(NOON_MS + 5))]);
        shop.settle(item.id, std::slice::from_ref(&ann)).await.unwrap();
        let settled = DeadLetterState::Settled;
        assert_eq!(shop.replay(ann.order_no, NOON_MS).await.unwrap(), Moved::Was(settled));
        shop.deliver_all().await;

        // Voiding gives the units back at the gate and tells the buyer; once.
        let both = [ann.clone(), bob.clone()];
        let voided = shop.void(&both, VoidReason::Operator, shop.now()).await.unwrap();
        assert_eq!(voided, [bob.order_no]);
        assert!(shop.void(&both, VoidReason::Operator, shop.now()).await.unwrap().is_empty());
        let order = shop.found(bob.order_no).await;
        assert_eq!((order.status, order.reason), (OrderStatus::Void, Some(Reason::Operator)));
        assert_eq!(letter(&shop, &bob).await, Some(DeadLetterState::Voided));
        let gone =
            Release { item: item.id, user: bob.user.clone(), order_no: bob.order_no, quantity: 2 };
        let expected = [
            OutboxMessage::Release { releases: vec![gone] },
            OutboxMessage::OrderEvents { orders: vec![(bob.order_no, bob.user.clone())] },
        ];
        assert_eq!(shop.messages().await, expected);
        assert_eq!(shop.stock(item.id).await, (9, 10), "the ledger had never given them out");
        // And a late redelivery of the claim finds it void.
        let late = shop.settle(item.id, std::slice::from_ref(&bob)).await.unwrap();
        assert_eq!(late.repeated, [bob.order_no]);
        assert!(shop.dead_letters(None, None, 10).await.unwrap().is_empty());
        let voided = shop.dead_letters(Some(DeadLetterState::Voided), None, 10).await.unwrap();
        assert_eq!(voided.len(), 1);
        let nobody = shop.replay(shop.number(), NOON_MS).await;
        assert!(matches!(nobody, Err(LedgerError::NotFound)));
    })
    .await;
}

#[tokio::test]
async fn a_claim_whose_number_is_somebody_elses_order_is_seen_and_can_be_given_up() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let ann = shop.bought(item.id, "ann", 1).await;
        shop.deliver_all().await;
        let bob = Claim { order_no: ann.order_no, ..shop.claim(item.id, "bob", 2) };
        shop.defer(&[failed(&bob, 1, Some(NOON_MS))]).await.unwrap();
        assert_eq!(letter(&shop, &bob).await, Some(DeadLetterState::Retrying));
        // Ann's claim comes again: that settles hers, not his.
        let anns = Claim { user: ann.user.clone(), quantity: 1, ..bob.clone() };
        let again = shop.settle(item.id, std::slice::from_ref(&anns)).await.unwrap();
        assert_eq!(again.repeated, [ann.order_no]);
        assert_eq!(letter(&shop, &bob).await, Some(DeadLetterState::Retrying));
        shop.defer(&[failed(&bob, 16, None)]).await.unwrap();
        assert_eq!(letter(&shop, &bob).await, Some(DeadLetterState::Dead));
        // A third buyer cannot take over the letter.
        let cat = Claim { order_no: ann.order_no, ..shop.claim(item.id, "cat", 1) };
        let refused = shop.defer(&[failed(&cat, 1, None)]).await;
        assert!(matches!(refused, Err(BookError::Rejected(_))), "{refused:?}");
        assert_eq!(shop.dead_letter(bob.order_no).await.unwrap().unwrap().claim, bob);

        let asked = std::slice::from_ref(&bob);
        let voided = shop.void(asked, VoidReason::Operator, shop.now()).await.unwrap();
        assert_eq!(voided, [bob.order_no]);
        assert_eq!(letter(&shop, &bob).await, Some(DeadLetterState::Voided));
        let his =
            Release { item: item.id, user: bob.user.clone(), order_no: bob.order_no, quantity: 2 };
        let sent = shop.deliver_all().await;
        assert!(sent.contains(&OutboxMessage::Release { releases: vec![his] }), "{sent:?}");
        assert!(shop.void(asked, VoidReason::Operator, shop.now()).await.unwrap().is_empty());
        assert_eq!(shop.found(ann.order_no).await, ann, "hers is as it was");
        shop.books_add_up(item.id).await;
    })
    .await;
}

#[tokio::test]
async fn two_failed_claims_with_one_number_do_not_become_one() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let ann = shop.claim(item.id, "ann", 1);
        let bob = Claim { order_no: ann.order_no, ..shop.claim(item.id, "bob", 1) };
        let refused = shop.defer(&[failed(&ann, 1, None), failed(&bob, 1, None)]).await;
        assert!(matches!(refused, Err(BookError::Rejected(_))), "{refused:?}");
        assert_eq!(letter(&shop, &ann).await, None, "nothing of the batch was kept");
        shop.defer(&[failed(&ann, 1, None)]).await.unwrap();
        shop.defer(&[failed(&bob, 1, None)]).await.unwrap_err();
        // His claim is settled all the same, which says nothing about hers.
        shop.settle(item.id, &[bob]).await.unwrap();
        assert_eq!(letter(&shop, &ann).await, Some(DeadLetterState::Dead));
    })
    .await;
}
