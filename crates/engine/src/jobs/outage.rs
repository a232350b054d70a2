//! A provider that is down for an hour, at the pace at which the jobs go by: nobody else waits, it is asked
//! seldom and however many payments wait for it, and everything is known soon after it is back.

use ledger::PAYMENT_ASK_MS_FIRST;
use sale::{Activity, Millis, OrderNo, OrderStatus};

use super::Job;
use crate::{
    silence::FAILURES_IN_A_ROW_MAX,
    test_engine::{Bank, NOW_MS, TestEngine},
};

const HOUR_MS: Millis = 60 * 60 * 1_000;
const STEP_MS: Millis = 10_000;
const MINUTE_MS: Millis = 60_000;
/// How often the bank is asked at most while it is away: a few times in half a minute about payments, and
/// once a step for money that is owed, each however many there are; each overdue order once a minute.
const QUERIES_MAX: u64 = (HOUR_MS / 30_000 + 1) as u64 * FAILURES_IN_A_ROW_MAX as u64;
const REFUNDS_MAX: u64 = (HOUR_MS / STEP_MS) as u64 + 3;

struct Hour {
    shop: TestEngine,
}

impl Hour {
    /// A sale that outlasts the hour.
    async fn sale(&self, name: &str, pay_within_ms: Millis) -> Activity {
        let activity =
            self.shop.another_sale(name, (NOW_MS - 1, NOW_MS + 4 * HOUR_MS), pay_within_ms).await;
        let operations = &self.shop.engine.operations;
        operations.warm_activity("ann", activity.id, false).await.unwrap();
        activity
    }

    /// Orders of so many buyers, with payments that are open at the bank.
    async fn opened(&self, sale: &Activity, buyers: usize) -> Vec<OrderNo> {
        let (mut orders, ledger) = (Vec::new(), &self.shop.engine.shared.ledger);
        for n in 0..buyers {
            let no = self.shop.buy(sale.items[0].id, &format!("u{}-{n}", sale.id)).await;
            ledger
                .open_payment(no, Bank::NAME, None, self.shop.engine.shared.now_ms())
                .await
                .unwrap();
            orders.push(no);
        }
        orders
    }

    async fn status(&self, no: OrderNo) -> OrderStatus {
        self.shop.engine.shared.ledger.order(no).await.unwrap().unwrap().status
    }

    /// Every job goes by once.
    async fn round(&self) {
        let jobs = &self.shop.engine.jobs;
        let all: [&dyn Job; 4] = [&*jobs.ask, &*jobs.timeout, &*jobs.refund, &*jobs.release];
        for job in all {
            job.run().await.unwrap();
        }
    }

    async fn all_become(&self, orders: &[OrderNo], status: OrderStatus) {
        for no in orders {
            while self.status(*no).await != status {
                self.round().await;
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    }
}

#[tokio::test]
async fn a_provider_that_is_down_for_an_hour_delays_nobody_else_and_is_made_up_for_at_once() {
    let hour = Hour { shop: TestEngine::without_a_sale(|_| {}).await };
    let (bank, clock) = (&hour.shop.bank, &hour.shop.clock);
    let slow = hour.sale("slow", 3 * HOUR_MS).await;
    let quick = hour.sale("quick", MINUTE_MS).await;
    let elsewhere = hour.sale("elsewhere", MINUTE_MS).await;
    let waiting = hour.opened(&slow, 10).await;
    let overdue = hour.opened(&quick, 3).await;
    // One was paid before, and its money is to go back; half of the others are paid just before the bank
    // goes down, and no notice of it comes.
    let given_back = hour.sale("given back", 3 * HOUR_MS).await;
    let owed = hour.opened(&given_back, 1).await;
    hour.shop.engine.payments.credit(&bank.money(owed[0])).await.unwrap();
    for no in waiting[..4].iter().chain(&overdue[..1]) {
        bank.pay(*no, 1, NOW_MS);
    }
    bank.down(true);
    hour.shop.engine.operations.refund("ann", owed[0], None).await.unwrap();

    let mut last: Option<OrderNo> = None;
    for step in 0..HOUR_MS / STEP_MS {
        // Once a minute somebody buys elsewhere, and the one of the minute before runs out of time.
        if step * STEP_MS % MINUTE_MS == 0 {
            hour.shop.pauses_end();
            hour.round().await;
            if let Some(no) = last {
                assert_eq!(hour.status(no).await, OrderStatus::Closed, "in minute {}", step / 6);
            }
            last = Some(hour.shop.buy(elsewhere.items[0].id, &format!("guest{step}")).await);
        }
        clock.advance(STEP_MS);
        hour.round().await;
    }
    let calls = |what| bank.calls_of(what);
    let (queries, closes, refunds) = (calls("query"), calls("close"), calls("refund"));
    println!("in an hour: {queries} queries, {closes} closes, {refunds} refunds");
    assert!((HOUR_MS as u64 / 60_000..=QUERIES_MAX).contains(&queries), "{queries} queries");
    assert!((60..=3 * 61 * 2).contains(&closes), "{closes} closes");
    assert!((60..=REFUNDS_MAX).contains(&refunds), "{refunds} refunds");
    for no in waiting.iter().chain(&overdue) {
        assert_eq!(hour.status(*no).await, OrderStatus::Unpaid, "what is not known is not decided");
    }
    assert_eq!(hour.status(owed[0]).await, OrderStatus::Refunding);

    // Half a minute after it is back.
    bank.down(false);
    hour.shop.pauses_end();
    clock.advance(30_000);
    let known = async {
        hour.all_become(&waiting[..4], OrderStatus::Paid).await;
        hour.all_become(&overdue[..1], OrderStatus::Paid).await;
        hour.all_become(&overdue[1..], OrderStatus::Closed).await;
        hour.all_become(&owed, OrderStatus::Refunded).await;
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), known).await.expect("all is known");
    for no in &waiting[4..] {
        assert_eq!(hour.status(*no).await, OrderStatus::Unpaid);
    }
    // The outage used up none of the early askings: what is paid now and not told is found in a minute.
    bank.pay(waiting[4], 1, NOW_MS + HOUR_MS);
    clock.advance(MINUTE_MS.max(PAYMENT_ASK_MS_FIRST));
    let known = hour.all_become(&waiting[4..5], OrderStatus::Paid);
    tokio::time::timeout(std::time::Duration::from_secs(20), known)
        .await
        .expect("it is asked about");
}
