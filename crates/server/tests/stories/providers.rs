//! Payment companies in trouble, and those who pretend to be one.

use std::time::{Duration, Instant};

use checker::Answer;
use client::{Api, NewSale};
use faults::providers::{Faults, Forgery, Mood, Notice, Paying};
use serde_json::json;

use crate::fixtures::{
    Buyer, Companies, Deployment, Payee, Profile, Sale, Webhook, becomes, now_ms,
};

pub(super) const PRICE: i64 = 699_900;
/// What does not wait for a company's money takes no longer than this while that company is in trouble. On an
/// idle machine it is tenths of a second; a company that hangs is given up after ten.
const NORMAL: Duration = Duration::from_secs(8);

pub(super) async fn opened(
    companies: &Companies,
    sale: &Sale,
    user: &str,
    payee: Payee,
) -> (Buyer, String) {
    let mut buyer = sale.buyer(user).await;
    let no = buyer.buy().await;
    buyer.order_becomes(&no, "unpaid").await;
    let path = format!("/api/v1/orders/{no}/payments");
    let opened = buyer.api.post(&path, &json!({"provider": payee.name()})).await.unwrap();
    assert_eq!(opened.status, 200, "{:?}", opened.json());
    companies.visits(payee, &no, &opened.json(), PRICE);
    (buyer, no)
}

/// With the companies beside it, which find it.
pub(super) async fn sale_with(
    companies: &Companies,
    deployment: Deployment,
    sale: NewSale,
) -> Sale {
    let sale = companies.known_to(deployment).open_sale(sale).await;
    companies.find(&sale);
    sale
}

pub(super) async fn post(api: &mut Api, notice: &Notice) -> u16 {
    let path = &notice.url[notice.url.find("/api").unwrap()..];
    let headers: Vec<(&str, &str)> =
        notice.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    api.send("POST", path, &headers, &notice.body).await.unwrap().status
}

/// All notices like this one of which one byte is another: in the body, or in a header that is proof.
pub(super) fn mutations(notice: &Notice) -> Vec<Notice> {
    let mut all = Vec::new();
    for at in 0..notice.body.len() {
        let mut other = notice.clone();
        other.body[at] ^= 1;
        all.push(other);
    }
    for (place, (name, value)) in notice.headers.iter().enumerate() {
        let name = name.to_ascii_lowercase();
        let is_proof = ["timestamp", "nonce", "signature", "serial", "webhook-id"]
            .iter()
            .any(|proof| name.ends_with(proof));
        if !is_proof {
            continue;
        }
        let mut without = notice.clone();
        without.headers.remove(place);
        all.push(without);
        for at in 0..value.len() {
            let mut other = notice.clone();
            let mut bytes = value.clone().into_bytes();
            bytes[at] = if bytes[at] == b'7' { b'8' } else { b'7' };
            other.headers[place].1 = String::from_utf8(bytes).unwrap();
            all.push(other);
        }
    }
    all
}

async fn no_changed_byte_of_a_notice_has_an_effect_or_wakes_anybody(profile: Profile) {
    let alarm = Webhook::start().await;
    let companies = Companies::start(1).await;
    // The right notice is sent by this story, after all the others.
    let mute = Faults { notices_lost: 1_000, ..Faults::default() };
    companies.wechat.set_faults(mute.clone());
    companies.alipay.set_faults(mute.clone());
    companies.shop.set_faults(mute);
    let deployment = Deployment::new(profile).env("SECKILL_ALERTS_WEBHOOK_URL", &alarm.url);
    let sale = sale_with(&companies, deployment, NewSale::of(5)).await;
    for payee in Payee::ALL {
        let (mut buyer, no) = opened(&companies, &sale, payee.name(), payee).await;
        companies.pay(payee, &no, Paying::Now).unwrap();
        let mut stranger = Api::new(sale.server().address, None);
        let right = companies.notice_of(payee, &no, None).unwrap();
        let mut wrong = mutations(&right);
        let forgeries = [
            Forgery::Stranger,
            Forgery::Corrupted,
            Forgery::Probe,
            Forgery::Stale,
            Forgery::OtherMerchant,
        ];
        wrong.extend(
            forgeries.map(|forgery| companies.notice_of(payee, &no, Some(forgery)).unwrap()),
        );
        for notice in &wrong {
            let status = post(&mut stranger, notice).await;
            assert!((400..500).contains(&status), "{} answered {status}: {notice:?}", payee.name());
        }
        println!("{}: {} wrong notices", payee.name(), wrong.len());
        assert_eq!(buyer.order(&no).await["status"], "unpaid");
        assert_eq!(post(&mut stranger, &companies.notice_of(payee, &no, None).unwrap()).await, 200);
        buyer.order_becomes(&no, "paid").await;
    }
    assert_eq!(alarm.alerts(), Vec::<serde_json::Value>::new());
}

/// How long each thing took at the worst while a company was in trouble.
#[derive(Debug, Default)]
struct Worst {
    sell: Duration,
    settle: Duration,
    pay_elsewhere: Duration,
    time_out: Duration,
    release: Duration,
}

/// One round of a shop that goes on: a sale paid elsewhere, a time-out, and its unit sold again.
async fn a_round(sale: &mut Sale, n: usize, worst: &mut Worst) {
    let took = |since: Instant, worst: &mut Duration| *worst = (*worst).max(since.elapsed());
    let mut buyer = sale.buyer(&format!("round{n}")).await;
    let began = Instant::now();
    let no = buyer.buy().await;
    took(began, &mut worst.sell);
    let began = Instant::now();
    buyer.order_becomes(&no, "unpaid").await;
    took(began, &mut worst.settle);
    let began = Instant::now();
    let cashier = buyer.open_payment(&no).await;
    buyer.at_the_cashier(&cashier, "pay").await;
    buyer.order_becomes(&no, "paid").await;
    took(began, &mut worst.pay_elsewhere);
    // One with a payment elsewhere times out, and its unit comes back to the gate.
    let mut lazy = sale.buyer(&format!("lazy{n}")).await;
    let no = lazy.buy().await;
    lazy.order_becomes(&no, "unpaid").await;
    lazy.open_payment(&no).await;
    let left = sale.sides().await["gate"]["left"].as_i64().unwrap();
    let deadline = lazy.order(&no).await["pay_deadline"].as_i64().unwrap();
    tokio::time::sleep(Duration::from_millis((deadline - now_ms()).max(0) as u64)).await;
    let began = Instant::now();
    lazy.order_becomes(&no, "closed").await;
    took(began, &mut worst.time_out);
    let began = Instant::now();
    becomes("the unit is back", async || {
        sale.sides().await["gate"]["left"].as_i64().unwrap() > left
    })
    .await;
    took(began, &mut worst.release);
}

async fn unpaid(waiting: &mut [(Buyer, String, bool)]) -> usize {
    let mut unpaid = 0;
    for (buyer, no, _) in waiting {
        unpaid += usize::from(buyer.order(no).await["status"] == "unpaid");
    }
    unpaid
}

async fn a_company_in_trouble_delays_only_what_waits_for_its_money(profile: Profile) {
    const WAITING: usize = 40;
    let companies = Companies::start(1).await;
    let new_sale = NewSale::of(500).pay_within_ms(3_000);
    let mut sale = sale_with(&companies, Deployment::new(profile), new_sale).await;
    for (place, mood) in
        [Mood::Hangs, Mood::Down, Mood::Errs, Mood::Babbles].into_iter().enumerate()
    {
        // Payments that are open at the company when its trouble begins; every other one is paid there, and
        // the notice of it cannot come either.
        let mute = Faults { notices_lost: 1_000, ..Faults::default() };
        companies.wechat.set_faults(mute);
        let mut waiting = Vec::new();
        for n in 0..WAITING {
            let (buyer, no) =
                opened(&companies, &sale, &format!("{mood:?}{n}"), Payee::WeChat).await;
            if n % 2 == 0 {
                companies.pay(Payee::WeChat, &no, Paying::Now).unwrap();
            }
            waiting.push((buyer, no, n % 2 == 0));
        }
        companies.set_mood(Payee::WeChat, mood);
        tokio::time::sleep(Duration::from_secs(3)).await;
        // On a busy machine the time of the first ones was over before the trouble began.
        let held = unpaid(&mut waiting).await;
        assert!(held > 0, "{mood:?} found nothing open");
        let mut worst = Worst::default();
        for n in 0..3 {
            a_round(&mut sale, place * 10 + n, &mut worst).await;
        }
        println!("while WeChat Pay {mood:?}, with {WAITING} orders that wait for it: {worst:.2?}");
        for took in [worst.sell, worst.settle, worst.pay_elsewhere, worst.time_out, worst.release] {
            assert!(took < NORMAL, "{mood:?}: {worst:?}");
        }
        assert_eq!(unpaid(&mut waiting).await, held, "what is not known is not decided");
        companies.set_mood(Payee::WeChat, Mood::Works);
        let began = Instant::now();
        for (mut buyer, no, paid) in waiting {
            buyer.order_becomes(&no, if paid { "paid" } else { "closed" }).await;
        }
        println!("all of them are known {:.1?} after it works again", began.elapsed());
    }
    let mut observed = sale.observe().await;
    let mut bill = observed.bill.take().unwrap_or_default();
    bill.charges.extend(companies.bill().charges);
    observed.bill = Some(bill);
    assert_eq!(checker::check(&sale.history, &observed), []);
}

async fn money_for_an_order_that_is_not_visible_yet_is_told_again_and_credited(profile: Profile) {
    let companies = Companies::start(1).await;
    let mut sale = sale_with(&companies, Deployment::new(profile), NewSale::of(9)).await;
    let mut orders = Vec::new();
    let mut buyers = Vec::new();
    for payee in Payee::ALL {
        buyers.push((payee, sale.buyer(payee.name()).await));
    }
    let blocked = sale.deployment.block_ledger();
    for (payee, mut buyer) in buyers {
        let no = buyer.buy().await;
        companies.agree(payee, &no, PRICE);
        companies.pay(payee, &no, Paying::Now).unwrap();
        orders.push((payee, buyer, no));
    }
    for payee in Payee::ALL {
        becomes("it is asked to say it again", async || {
            companies.counts_of(payee).get("notices_not_taken").is_some_and(|times| *times > 0)
        })
        .await;
    }
    for (payee, ..) in &orders {
        assert!(!companies.counts_of(*payee).contains_key("notices_taken"), "{payee:?}");
    }
    drop(blocked);
    for (_, buyer, no) in &mut orders {
        buyer.order_becomes(no, "paid").await;
        let answer = Answer::Admitted { order_no: no.parse().unwrap() };
        let (user, item) = (buyer.user.clone(), buyer.item);
        sale.history.claims.push(checker::AnsweredClaim { user, item, key: None, answer });
    }
    let mut observed = sale.observe().await;
    observed.bill = Some(companies.bill());
    assert_eq!(checker::check(&sale.history, &observed), []);
}

crate::in_every_profile! {
    money_for_an_order_that_is_not_visible_yet_is_told_again_and_credited,
}

crate::only_in_solo! {
    no_changed_byte_of_a_notice_has_an_effect_or_wakes_anybody,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: cargo xtask torture"]
async fn a_company_in_trouble_delays_only_what_waits_for_its_money_in_solo() {
    a_company_in_trouble_delays_only_what_waits_for_its_money(Profile::Solo).await;
}
