//! Stories of runs that look at what changed: whatever differs is found, and what nobody touched is not
//! read.

use std::sync::atomic::{AtomicUsize, Ordering};

use sale::{ActivityMove, CloseReason, ItemId, Millis, OrderNo};

use super::{HOUR_MS, ItemVerdict, ReconcileAsk, Report, last_night_ms};
use crate::{
    jobs::Job,
    test_engine::{Bank, NOW_MS, TestEngine},
};

/// What changed, and only looking.
const CHANGED: ReconcileAsk = ReconcileAsk { heal: false, whole: false };

async fn look(shop: &TestEngine) -> Report {
    shop.engine.reconcile.run_as(CHANGED, &AtomicUsize::new(0)).await.unwrap()
}

fn kinds(report: &Report) -> Vec<&str> {
    let of_items = report.items.iter().flat_map(|item| &item.findings);
    of_items.chain(&report.payments).map(|finding| finding.kind.as_str()).collect()
}

/// A sale with an order that is settled, after a run that found all in agreement and at rest.
async fn agreed() -> (TestEngine, ItemId, OrderNo) {
    let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
    let item = activity.items[0].id;
    let no = shop.buy(item, "ann").await;
    shop.becomes_idle().await;
    let whole = shop.engine.reconcile.run(true).await.unwrap();
    assert_eq!((whole.differences, whole.compared, whole.unchanged), (0, 1, 0), "{whole:?}");
    assert_eq!(look(&shop).await.unchanged, 1, "nothing happened");
    (shop, item, no)
}

#[tokio::test]
async fn what_nobody_touched_is_not_read_and_what_somebody_bought_is() {
    let (shop, item, _) = agreed().await;
    let readings = shop.gate.readings.load(Ordering::SeqCst);
    assert_eq!(look(&shop).await.unchanged, 1);
    assert_eq!(shop.gate.readings.load(Ordering::SeqCst), readings, "nothing was read");
    shop.buy(item, "bob").await;
    shop.becomes_idle().await;
    let report = look(&shop).await;
    assert_eq!((report.unchanged, report.differences), (0, 0), "{report:?}");
    assert_eq!((report.items[0].verdict, report.items[0].live_orders), (ItemVerdict::Agree, 2));
    assert_eq!(look(&shop).await.unchanged, 1);
}

#[tokio::test]
async fn units_that_appear_at_the_gate_are_found_and_healed() {
    let (shop, item, _) = agreed().await;
    let gate = &shop.engine.shared.gate;
    gate.adjust(item, shop.engine.shared.numbers.next(), 3, true).await.unwrap();
    let report = look(&shop).await;
    assert_eq!(report.items[0].adjusting, -3, "{report:?}");
    shop.clock.advance(super::compare::ADJUST_AGE_MS_MAX + 1);
    let report = look(&shop).await;
    assert_eq!(kinds(&report), ["gate_adjust"]);
    let healing = ReconcileAsk { heal: true, ..CHANGED };
    let healed = shop.engine.reconcile.run_as(healing, &AtomicUsize::new(0)).await.unwrap();
    assert_eq!((healed.differences, healed.healed), (1, 1), "{healed:?}");
    assert_eq!(look(&shop).await.differences, 0);
    assert_eq!(look(&shop).await.unchanged, 1);
}

#[tokio::test]
async fn a_gate_that_forgot_a_claim_is_found() {
    let (shop, item, no) = agreed().await;
    let (user, quantity) = ("ann".parse().unwrap(), 1);
    let lost = gate::GiveBack { item, user, order_no: no, quantity };
    shop.engine.shared.gate.release(&[lost]).await.unwrap();
    assert_eq!(kinds(&look(&shop).await), ["gate_left", "gate_marks"]);
    // It disagreed, so it is read again although nothing moves.
    assert_eq!(kinds(&look(&shop).await), ["gate_left", "gate_marks"]);
}

#[tokio::test]
async fn an_item_that_left_the_gate_is_read() {
    let (shop, item, _) = agreed().await;
    shop.engine.shared.gate.unload(item).await.unwrap();
    let report = look(&shop).await;
    assert_eq!((report.unchanged, report.items[0].verdict), (0, ItemVerdict::NotAtGate));
}

#[tokio::test]
async fn stock_and_total_that_somebody_changed_in_the_ledger_are_found() {
    for (change, found) in [
        ("UPDATE tb_seckill_product SET stock = stock - 1", "ledger_conservation"),
        ("UPDATE tb_seckill_product SET total = total + 1", "ledger_conservation"),
    ] {
        let (shop, ..) = agreed().await;
        shop.change_ledger(change);
        let report = look(&shop).await;
        assert!(kinds(&report).contains(&found), "{change}: {report:?}");
        assert!(kinds(&look(&shop).await).contains(&found), "{change}: it is found again");
    }
}

#[tokio::test]
async fn a_stock_log_that_lost_its_end_or_grew_one_is_found() {
    for change in [
        "DELETE FROM tb_stock_log WHERE id = (SELECT MAX(id) FROM tb_stock_log)",
        "INSERT INTO tb_stock_log (order_no, product_id, product_name, quantity, before_stock,
             after_stock, type, create_time)
         SELECT order_no, product_id, '', 1, 5, 6, 2, 0 FROM tb_stock_log LIMIT 1",
    ] {
        let (shop, ..) = agreed().await;
        shop.change_ledger(change);
        assert!(look(&shop).await.differences > 0, "{change}");
    }
}

#[tokio::test]
async fn orders_and_records_that_somebody_changed_are_found_with_what_touches_their_item() {
    for (change, found) in [
        ("UPDATE tb_seckill_order SET status = 2", "ledger_conservation"),
        ("UPDATE tb_seckill_order SET quantity = 2, amount = 2", "ledger_conservation"),
        ("DELETE FROM tb_user_seckill", "ledger_user_records"),
        ("UPDATE tb_user_seckill SET order_no = 'SK1'", "ledger_user_records"),
    ] {
        let (shop, item, _) = agreed().await;
        shop.buy(item, "bob").await;
        shop.becomes_idle().await;
        shop.change_ledger(&format!("{change} WHERE user_id = 'bob'"));
        let report = look(&shop).await;
        assert!(kinds(&report).contains(&found), "{change}: {report:?}");
    }
}

#[tokio::test]
async fn a_whole_run_finds_what_nothing_points_at() {
    for (change, found) in [
        ("UPDATE tb_seckill_order SET status = 2", "ledger_conservation"),
        ("DELETE FROM tb_user_seckill", "ledger_user_records"),
        ("UPDATE tb_stock_log SET before_stock = 7, after_stock = 6 WHERE id = 1", "ledger_chain"),
    ] {
        let (shop, item, _) = agreed().await;
        shop.buy(item, "bob").await;
        shop.becomes_idle().await;
        look(&shop).await;
        assert_eq!(look(&shop).await.unchanged, 1);
        shop.change_ledger(change);
        assert_eq!(look(&shop).await.unchanged, 1, "{change}: no trace of it is looked at");
        let whole = shop.engine.reconcile.run(false).await.unwrap();
        assert!(kinds(&whole).contains(&found), "{change}: {whole:?}");
        // What disagreed once is read until it agrees.
        assert!(kinds(&look(&shop).await).contains(&found), "{change}");
    }
}

#[tokio::test]
async fn a_release_that_got_lost_is_found() {
    let (shop, _, no) = agreed().await;
    let asked = ledger::Closing { order_no: no, providers: Vec::new() };
    shop.engine.shared.ledger.close(&[asked], CloseReason::Cancelled, NOW_MS).await.unwrap();
    // Seen while it is on its way…
    let report = look(&shop).await;
    assert_eq!((report.items[0].returning, report.differences), (1, 0), "{report:?}");
    // …and then it is not, although neither side has moved.
    shop.change_ledger("DELETE FROM tb_outbox WHERE kind = 'release'");
    assert_eq!(kinds(&look(&shop).await), ["gate_left", "gate_marks"]);
}

#[tokio::test]
async fn units_of_a_dead_letter_that_vanishes_are_found() {
    let (shop, item, _) = agreed().await;
    shop.engine.shared.workers.as_ref().unwrap().stop().await;
    shop.engine.claims.claim(crate::test_engine::one_unit(item, "bob")).await;
    let entries = shop.engine.shared.gate.take(9).await.unwrap();
    let claim = entries[0].claims[0].clone();
    let failed = sale::FailedClaim { claim, tries: 1, next_try_ms: None, cause: "why".into() };
    shop.engine.shared.ledger.defer(&[failed]).await.unwrap();
    shop.engine.shared.gate.ack(&[entries[0].id]).await.unwrap();
    for _ in 0..2 {
        let report = look(&shop).await;
        assert_eq!((report.items[0].in_flight, report.differences), (1, 0), "{report:?}");
    }
    shop.change_ledger("DELETE FROM tb_dead_letter");
    assert_eq!(kinds(&look(&shop).await), ["gate_left", "gate_marks"]);
}

#[tokio::test]
async fn money_that_is_missing_or_goes_back_too_often_is_found() {
    let (shop, _, no) = agreed().await;
    let ledger = &shop.engine.shared.ledger;
    ledger.credit(&shop.bank.money(no), NOW_MS).await.unwrap();
    assert_eq!(look(&shop).await.differences, 0);
    shop.change_ledger(
        "INSERT INTO tb_payment (provider, provider_txn, order_no, kind, amount, currency, created_at)
         SELECT provider, provider_txn, order_no, 2, 7, currency, created_at FROM tb_payment",
    );
    assert_eq!(kinds(&look(&shop).await), ["payment_missing", "refund_too_much"]);
    // What did not add up is asked about again, however long ago it was.
    shop.clock.advance(24 * HOUR_MS);
    look(&shop).await;
    assert_eq!(kinds(&look(&shop).await), ["payment_missing", "refund_too_much"]);
    shop.change_ledger("DELETE FROM tb_payment WHERE kind = 2");
    assert_eq!(look(&shop).await.differences, 0);
    shop.change_ledger("DELETE FROM tb_payment");
    assert_eq!(look(&shop).await.differences, 0, "nothing points at it");
    let whole = shop.engine.reconcile.run(false).await.unwrap();
    assert_eq!(kinds(&whole), ["payment_missing"]);
}

#[tokio::test]
async fn an_order_that_is_made_paid_by_hand_is_found() {
    let (shop, ..) = agreed().await;
    shop.change_ledger("UPDATE tb_seckill_order SET status = 1");
    assert_eq!(kinds(&look(&shop).await), ["payment_missing"]);
}

#[tokio::test]
async fn a_refund_that_was_queued_and_got_lost_is_found_however_long_after() {
    let (shop, _, no) = agreed().await;
    let ledger = &shop.engine.shared.ledger;
    ledger.credit(&shop.bank.money(no), NOW_MS).await.unwrap();
    // Money beyond the first payment of a paid order is owed back.
    let twice = ledger::PaymentNotice { provider_txn: "T2".into(), ..shop.bank.money(no) };
    ledger.credit(&twice, NOW_MS).await.unwrap();
    assert_eq!(look(&shop).await.differences, 0, "it is queued");
    shop.clock.advance(24 * HOUR_MS);
    assert_eq!(look(&shop).await.differences, 0);
    shop.change_ledger("DELETE FROM tb_outbox WHERE kind = 'refund'");
    let healing = ReconcileAsk { heal: true, ..CHANGED };
    let report = shop.engine.reconcile.run_as(healing, &AtomicUsize::new(0)).await.unwrap();
    assert_eq!(kinds(&report), ["refund_forgotten"]);
    assert_eq!(report.healed, 1);
    shop.engine.jobs.refund.run().await.unwrap();
    assert_eq!(look(&shop).await.differences, 0);
    assert_eq!(shop.bank.calls_of("refund"), 1);
}

#[tokio::test]
async fn a_refund_of_an_order_that_is_being_refunded_and_got_lost_is_found() {
    let (shop, _, no) = agreed().await;
    let ledger = &shop.engine.shared.ledger;
    let asked = ledger::Closing { order_no: no, providers: vec![Bank::NAME.into()] };
    ledger.close(&[asked], CloseReason::Cancelled, NOW_MS).await.unwrap();
    ledger.credit(&shop.bank.money(no), NOW_MS).await.unwrap();
    look(&shop).await;
    shop.clock.advance(24 * HOUR_MS);
    assert!(!kinds(&look(&shop).await).contains(&"refund_forgotten"));
    shop.change_ledger("DELETE FROM tb_outbox WHERE kind = 'refund'");
    assert!(kinds(&look(&shop).await).contains(&"refund_forgotten"));
}

#[tokio::test]
async fn a_ledger_that_was_restored_is_read_as_a_whole() {
    let (shop, item, _) = agreed().await;
    shop.buy(item, "bob").await;
    shop.becomes_idle().await;
    assert_eq!(look(&shop).await.differences, 0);
    // As it was before Bob came: his order is gone from all tables.
    shop.change_ledger(
        "DELETE FROM tb_seckill_order WHERE user_id = 'bob';
         DELETE FROM tb_user_seckill WHERE user_id = 'bob';
         DELETE FROM tb_stock_log WHERE id = (SELECT MAX(id) FROM tb_stock_log);
         UPDATE tb_seckill_product SET stock = stock + 1, version = version - 1;",
    );
    let report = look(&shop).await;
    assert_eq!(kinds(&report), ["gate_left", "gate_marks"]);
    assert_eq!((report.items[0].live_orders, report.items[0].live_units), (1, 1));
}

#[tokio::test]
async fn a_sale_that_has_ended_is_read_as_a_whole_once_more() {
    let (shop, item, _) = agreed().await;
    shop.change_ledger("UPDATE tb_stock_log SET before_stock = 11, after_stock = 10 WHERE id = 1");
    shop.buy(item, "bob").await;
    shop.becomes_idle().await;
    let before = look(&shop).await;
    assert!(kinds(&before).contains(&"ledger_chain"), "the row it counts on from is another one");

    let (shop, item, _) = agreed().await;
    shop.change_ledger("UPDATE tb_seckill_order SET quantity = 2, amount = 2");
    let activity = shop.engine.shared.ledger.item(item).await.unwrap().unwrap().activity;
    shop.engine.operations.move_activity("ann", activity, ActivityMove::End).await.unwrap();
    let report = look(&shop).await;
    assert!(kinds(&report).contains(&"ledger_conservation"), "{report:?}");
}

#[tokio::test]
async fn the_job_reads_everything_at_night_and_what_changed_by_day() {
    let (shop, _) = TestEngine::with_a_sale(|_| {}).await;
    let run = async || shop.engine.reconcile.run_by_itself().await.unwrap().whole;
    assert!(run().await, "it is the first of this process");
    assert!(!run().await);
    let hour = shop.engine.shared.settings.jobs.reconcile_whole_hour_utc as Millis;
    let night_ms = last_night_ms(NOW_MS, hour) + 24 * HOUR_MS;
    shop.clock.set(night_ms - 1);
    assert!(!run().await);
    shop.clock.set(night_ms);
    assert!(run().await);
    assert!(!run().await);
}

#[tokio::test]
async fn a_run_that_takes_long_is_followed_and_goes_on_whoever_waits() {
    let (shop, item, _) = agreed().await;
    let engine = &shop.engine;
    let turn = engine.shared.gate_turns.of(item).await;
    let ask = ReconcileAsk::whole(true);
    let run = engine.operations.start_reconcile("ann", ask).unwrap();
    assert!(run.ended_within(std::time::Duration::from_millis(20)).await.is_none());
    let same = engine.reconcile.started(run.number).unwrap();
    drop((run, turn));
    let report = same.ended_within(std::time::Duration::from_secs(20)).await.unwrap().unwrap();
    assert_eq!((report.whole, report.compared, same.compared()), (true, 1, 1));
    let audit = engine.shared.ledger.audit_log(None, 1).await.unwrap();
    assert_eq!((audit[0].who.as_str(), audit[0].action.as_str()), ("ann", "reconcile.run"));
}
