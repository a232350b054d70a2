//! Orders to the end: paid, cancelled, timed out, refunded.

use std::time::Duration;

use checker::{Answer, AnsweredClaim, Observed, ObservedOrder};
use client::{NewSale, Response};
use sale::OrderNo;
use serde_json::{Value, json};

use crate::fixtures::{Buyer, Deployment, Events, PACES_S, PATIENCE, Profile, Sale, now_ms, until};

async fn a_buyer_pays_and_the_order_is_paid_once(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(3)).await;
    let mut buyer = sale.buyer("u1002").await;
    let no = buyer.buy().await;
    let order = buyer.order_becomes(&no, "unpaid").await;
    assert_eq!((&order["amount"], &order["currency"]), (&json!(699_900), &json!("CNY")));
    let cashier = buyer.open_payment(&no).await;
    assert_eq!(buyer.open_payment(&no).await, cashier, "asking again gives the same page");
    buyer.at_the_cashier(&cashier, "fail").await;
    assert_eq!(buyer.order(&no).await["status"], "unpaid", "a failed payment may be tried again");
    buyer.at_the_cashier(&cashier, "pay").await;
    let order = buyer.order_becomes(&no, "paid").await;
    assert!(order["paid_at"].is_i64());
    let cancel = buyer.api.post(&format!("/api/v1/orders/{no}/cancel"), &json!({})).await.unwrap();
    assert_eq!((cancel.status, cancel.code().as_deref()), (409, Some("conflict")));
    sale.history.claims.push(admitted(&buyer, &no));
    sale.must_hold().await;
}

fn admitted(buyer: &Buyer, no: &str) -> AnsweredClaim {
    let answer = Answer::Admitted { order_no: no.parse().unwrap() };
    AnsweredClaim { user: buyer.user.clone(), item: buyer.item, key: None, answer }
}

async fn a_cancelled_order_gives_its_unit_to_the_next_and_the_buyer_may_try_again(
    profile: Profile,
) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let mut first = sale.buyer("first").await;
    let mut second = sale.buyer("second").await;
    let no = first.buy().await;
    first.order_becomes(&no, "unpaid").await;
    assert_eq!(second.claim().await, Answer::SoldOut);
    let cashier = first.open_payment(&no).await;
    let path = format!("/api/v1/orders/{no}/cancel");
    let cancelled: Value = first.api.write(&path, &json!({})).await.unwrap();
    assert_eq!(
        (&cancelled["status"], &cancelled["reason"]),
        (&json!("closed"), &json!("cancelled"))
    );
    let shown: Value = first.api.read(&format!("/api/v1/orders/{no}")).await.unwrap();
    assert_eq!(shown["status"], "closed", "and it is shown so at once");
    let again: Value = first.api.write(&path, &json!({})).await.unwrap();
    assert_eq!(again["status"], "closed", "cancelling twice is cancelling once");
    let refused = first.at_the_cashier(&cashier, "pay").await;
    assert_eq!(refused.status, 409, "the payment was closed at the bank, too");
    sale.settle().await;
    let no = second.buy().await;
    second.order_becomes(&no, "unpaid").await;
    second.api.write::<Value>(&format!("/api/v1/orders/{no}/cancel"), &json!({})).await.unwrap();
    sale.settle().await;
    let no = first.buy().await;
    sale.history.claims.push(admitted(&first, &no));
    sale.must_hold().await;
}

async fn ten_orders_that_time_out_are_sold_again_within_two_seconds(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    for pace_s in PACES_S {
        sale.instead(NewSale::of(30).pay_within_ms(pace_s * 1_000)).await;
        if let Some((waiting, deadline)) = ten_of_thirty_do_not_pay(&mut sale).await {
            return sold_again(sale, waiting, deadline).await;
        }
    }
    panic!("this machine does not pay twenty orders in {PACES_S:?} s");
}

/// Twelve who want what is left unpaid, and the deadline. `None` if it passed meanwhile.
async fn ten_of_thirty_do_not_pay(sale: &mut Sale) -> Option<(Vec<Buyer>, i64)> {
    assert_eq!(sale.buy_the_rest("first", 40).await, 30);
    sale.settle().await;
    let orders = sale.observe().await.orders;
    let mut lazy = sale.buyer(&orders[29].user_id).await;
    let deadline = lazy.order(&orders[29].order_no.to_string()).await["pay_deadline"].as_i64();
    let deadline = deadline.unwrap();
    for order in &orders[..20] {
        let mut buyer = sale.buyer(&order.user_id).await;
        let cashier = buyer.open_payment_in_time(&order.order_no.to_string()).await?;
        buyer.at_the_cashier(&cashier, "pay").await;
    }
    let mut waiting = Vec::new();
    for n in 0..12 {
        waiting.push(sale.buyer(&format!("second{n}")).await);
    }
    (now_ms() < deadline).then_some((waiting, deadline))
}

async fn sold_again(mut sale: Sale, mut waiting: Vec<Buyer>, deadline: i64) {
    let mut won = Vec::new();
    while won.len() < 10 {
        assert!(now_ms() < deadline + PATIENCE.as_millis() as i64, "only {} sold again", won.len());
        let mut still = Vec::new();
        for mut buyer in waiting {
            match buyer.claim().await {
                Answer::Admitted { order_no } => won.push((buyer, order_no)),
                _ => still.push(buyer),
            }
        }
        waiting = still;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // By the server's own clock, whatever this test was waiting for: the sold-out cache, the lane
    // and the poll of the time-out job all lie in between.
    let last = won.iter().map(|(_, order_no)| order_no.made_ms()).max().unwrap();
    println!("the last of ten units was sold again {} ms after the deadline", last - deadline);
    assert!(last - deadline <= 2_000, "sold again {} ms after the deadline", last - deadline);
    for (buyer, order_no) in &won {
        sale.history.claims.push(admitted(buyer, &order_no.to_string()));
    }
    for (mut buyer, order_no) in won {
        let no = order_no.to_string();
        buyer.order_becomes(&no, "unpaid").await;
        let cashier = buyer.open_payment(&no).await;
        buyer.at_the_cashier(&cashier, "pay").await;
        buyer.order_becomes(&no, "paid").await;
    }
    let mut observed = sale.observe().await;
    let paid = observed.orders.iter().filter(|o| o.status == sale::OrderStatus::Paid).count();
    assert_eq!(paid, 30, "sold to the end");
    observed.items[0].demand_exceeds_stock = true;
    assert_eq!(checker::check(&sale.history, &observed), []);
    sale.must_hold().await;
}

const RACING_ORDERS: usize = 500;

/// A buyer at the cashier's desk.
struct AtTheDesk {
    buyer: Buyer,
    cashier: String,
    deadline: i64,
}

impl AtTheDesk {
    async fn pay_around_the_deadline(mut self, action: &str) -> Response {
        if action != "pay_late" {
            // Spread over the last instants before the deadline, so that notice and time-out meet.
            let early = fastrand::i64(0..400);
            let wait = (self.deadline - early - now_ms()).max(0) as u64;
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
        self.buyer.at_the_cashier(&self.cashier, action).await
    }
}

/// All buyers at their desks, or `None` if the first deadline passed meanwhile.
async fn everybody_at_the_desk(sale: &mut Sale) -> Option<Vec<AtTheDesk>> {
    let buyers = sale.tokens((0..RACING_ORDERS).map(|n| format!("u{n}"))).await;
    let report = sale.crowd(64).rush(buyers).await;
    assert_eq!(report.history.admitted(), RACING_ORDERS);
    sale.history = report.history;
    let mut desks = Vec::new();
    for order in sale.observe().await.orders {
        let no = order.order_no.to_string();
        let mut buyer = sale.buyer(&order.user_id).await;
        let cashier = buyer.open_payment_in_time(&no).await?;
        let deadline = buyer.order(&no).await["pay_deadline"].as_i64()?;
        desks.push(AtTheDesk { buyer, cashier, deadline });
    }
    desks.iter().all(|desk| now_ms() < desk.deadline).then_some(desks)
}

async fn payments_and_time_outs_racing_on_five_hundred_orders(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    for pace_s in PACES_S {
        let stock = RACING_ORDERS as i64;
        sale.instead(NewSale::of(stock).pay_within_ms(pace_s * 1_000)).await;
        if let Some(desks) = everybody_at_the_desk(&mut sale).await {
            return race(sale, desks).await;
        }
    }
    panic!("this machine does not bring {RACING_ORDERS} buyers to the cashier in {PACES_S:?} s");
}

async fn race(sale: Sale, desks: Vec<AtTheDesk>) {
    let mut racers = Vec::new();
    for (n, desk) in desks.into_iter().enumerate() {
        let action = ["pay", "pay_twice", "pay_late"][n % 3];
        racers.push(tokio::spawn(desk.pay_around_the_deadline(action)));
    }
    let mut charges = 0;
    for (n, racer) in racers.into_iter().enumerate() {
        let answer = racer.await.unwrap();
        assert!([200, 409].contains(&answer.status), "{:?}", answer.json());
        if answer.status == 200 {
            charges += [1, 2, 1][n % 3];
        }
    }
    let observed = at_rest(&sale, charges).await;
    let count = |status| observed.orders.iter().filter(|o| o.status == status).count();
    use sale::OrderStatus::{Closed, Paid, Refunded};
    let (paid, closed, refunded) = (count(Paid), count(Closed), count(Refunded));
    println!("{paid} paid, {closed} closed, {refunded} closed and refunded");
    assert_eq!(paid + closed + refunded, RACING_ORDERS, "each ends paid or closed");
    // Who paid twice got one of the two back; late money too, unless it came before the time-out.
    let given_back = observed.bill.as_ref().unwrap().charges.iter().filter(|c| c.refunded).count();
    assert!(paid > 0 && given_back > 0, "both sides of the race were run");
    assert_eq!(checker::check(&sale.history, &observed), []);
    sale.must_hold().await;
}

/// Wait until no order can change any more by itself. Late money lands a second after the deadline;
/// the bill says what has not been dealt with.
async fn at_rest(sale: &Sale, charges: usize) -> Observed {
    use sale::OrderStatus::{Closed, Paid, Refunding, Unpaid};
    let is_at_rest = |observed: &Observed| {
        let count = |status| observed.orders.iter().filter(|o| o.status == status).count();
        let bill = &observed.bill.as_ref().unwrap().charges;
        let kept: Vec<OrderNo> = bill.iter().filter(|c| !c.refunded).map(|c| c.order_no).collect();
        let owed = |o: &ObservedOrder| o.status == Closed && kept.contains(&o.order_no);
        let moving = count(Unpaid) + count(Refunding) > 0 || observed.orders.iter().any(owed);
        !moving && kept.len() <= count(Paid) && bill.len() >= charges
    };
    until("no order changes any more", async || sale.observe().await, is_at_rest).await
}

async fn an_operator_refunds_a_paid_order_and_the_unit_is_sold_again(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let mut buyer = sale.buyer("u1").await;
    let no = buyer.buy().await;
    buyer.order_becomes(&no, "unpaid").await;
    let cashier = buyer.open_payment(&no).await;
    buyer.at_the_cashier(&cashier, "pay").await;
    buyer.order_becomes(&no, "paid").await;
    let mut admin = sale.admin();
    for _ in 0..2 {
        let path = format!("/api/v1/admin/orders/{no}/refund");
        let told: Value = admin.write(&path, &json!({})).await.unwrap();
        let status = told["order"]["status"].as_str().unwrap();
        assert!(matches!(status, "refunding" | "refunded"), "{told}");
    }
    buyer.order_becomes(&no, "refunded").await;
    sale.settle().await;
    let again = sale.buyer("u2").await.buy().await;
    assert_ne!(again, no);
    sale.history.claims.push(admitted(&buyer, &no));
    sale.must_hold().await;
}

async fn a_forged_notice_credits_nothing(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let mut buyer = sale.buyer("u1").await;
    let no = buyer.buy().await;
    buyer.order_becomes(&no, "unpaid").await;
    buyer.open_payment(&no).await;
    let body = json!({"order_no": no, "amount": 699_900, "currency": "CNY", "outcome": "paid"});
    let stamp = now_ms().to_string();
    let forged = "00".repeat(32);
    let headers =
        [("x-sandbox-timestamp", stamp.as_str()), ("x-sandbox-signature", forged.as_str())];
    let answer = buyer
        .api
        .send("POST", "/api/v1/payments/sandbox/notify", &headers, body.to_string().as_bytes())
        .await
        .unwrap();
    assert!((400..500).contains(&answer.status), "{}", answer.status);
    assert_eq!(buyer.order(&no).await["status"], "unpaid");
    let unknown = buyer.api.post("/api/v1/payments/nobody/notify", &body).await.unwrap();
    assert_eq!(unknown.status, 404);
    sale.must_hold().await;
}

async fn news_of_an_order_reach_its_buyer(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let mut page = Events::open(sale.server().address, &sale.deployment.login(), "u1").await;
    let mut buyer = sale.buyer("u1").await;
    let no = buyer.buy().await;
    page.hear_of(&no, "unpaid").await;
}

crate::in_every_profile! {
    a_buyer_pays_and_the_order_is_paid_once,
    a_cancelled_order_gives_its_unit_to_the_next_and_the_buyer_may_try_again,
    ten_orders_that_time_out_are_sold_again_within_two_seconds,
    payments_and_time_outs_racing_on_five_hundred_orders,
    an_operator_refunds_a_paid_order_and_the_unit_is_sold_again,
    a_forged_notice_credits_nothing,
    news_of_an_order_reach_its_buyer,
}
