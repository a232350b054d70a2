//! Notices of refunds: believed only when proved, and right in whatever order and however often they come.

use client::{Api, NewSale};
use faults::providers::{Faults, Forgery, Paying, Stuck};
use orders::AlertKind;
use serde_json::json;

use super::providers::{PRICE, mutations, opened, post, sale_with};
use crate::fixtures::{Buyer, Companies, Deployment, Payee, Profile, Sale, Webhook};

const FORGERIES: [Forgery; 5] =
    [Forgery::Stranger, Forgery::Corrupted, Forgery::Probe, Forgery::Stale, Forgery::OtherMerchant];

/// The companies say nothing by themselves: the story posts their notices.
fn mute(companies: &Companies) {
    let mute = Faults { notices_lost: 1_000, ..Faults::default() };
    companies.wechat.set_faults(mute.clone());
    companies.alipay.set_faults(mute.clone());
    companies.shop.set_faults(mute);
}

async fn a_notice_of_a_refund_counts_once_in_any_order_and_no_forgery_of_it_does(profile: Profile) {
    let alarm = Webhook::start().await;
    let companies = Companies::start(1).await;
    mute(&companies);
    let deployment = Deployment::new(profile).env("SECKILL_ALERTS_WEBHOOK_URL", &alarm.url);
    let sale = sale_with(&companies, deployment, NewSale::of(5)).await;
    let mut stranger = Api::new(sale.server().address, None);
    for payee in Payee::ALL {
        let (mut buyer, no) = opened(&companies, &sale, payee.name(), payee).await;
        companies.pay(payee, &no, Paying::Now).unwrap();
        // By a clerk at the company's own pages: nobody here asked for it.
        companies.give_back(payee, &no, PRICE).unwrap();
        let money = || companies.notice_of(payee, &no, None).unwrap();
        let back = || companies.refund_notice_of(payee, &no, None).unwrap();

        // It overtakes the notice of the money, and is asked to come again.
        let early = post(&mut stranger, &back()).await;
        assert!(early >= 400, "{}: {early}", payee.name());
        assert_eq!(buyer.order(&no).await["status"], "unpaid");
        assert_eq!(post(&mut stranger, &money()).await, 200);
        buyer.order_becomes(&no, "paid").await;

        let mut wrong = mutations(&back());
        wrong.extend(
            FORGERIES.map(|one| companies.refund_notice_of(payee, &no, Some(one)).unwrap()),
        );
        for notice in &wrong {
            let status = post(&mut stranger, notice).await;
            assert!((400..500).contains(&status), "{} answered {status}: {notice:?}", payee.name());
        }
        println!("{}: {} wrong notices of a refund", payee.name(), wrong.len());
        assert_eq!(buyer.order(&no).await["status"], "paid");

        assert_eq!(post(&mut stranger, &back()).await, 200);
        buyer.order_becomes(&no, "refunded").await;
        for late in [back(), money(), back()] {
            assert_eq!(post(&mut stranger, &late).await, 200, "{}", payee.name());
        }
        let order = buyer.order_becomes(&no, "refunded").await;
        assert_eq!(order["refunds"].as_array().unwrap().len(), 1, "{order}");
    }
    let all = PRICE * Payee::ALL.len() as i64;
    assert_eq!(sale.deployment.money_in_ledger(), (all, all));
    assert_eq!(alarm.alerts(), Vec::<serde_json::Value>::new());
}

/// An order that is paid, and whose money an operator gives back.
async fn refunding(companies: &Companies, sale: &Sale, user: &str) -> (Buyer, String) {
    let (mut buyer, no) = opened(companies, sale, user, Payee::WeChat).await;
    companies.pay(Payee::WeChat, &no, Paying::Now).unwrap();
    buyer.order_becomes(&no, "paid").await;
    let path = format!("/api/v1/admin/orders/{no}/refund");
    let asked = sale.admin().post(&path, &json!({"note": "坏了😢"})).await.unwrap();
    assert_eq!(asked.status, 200, "{:?}", asked.json());
    buyer.order_becomes(&no, "refunding").await;
    (buyer, no)
}

async fn a_refund_that_gets_stuck_wakes_somebody_and_is_done_when_it_is_seen_to(profile: Profile) {
    let alarm = Webhook::start().await;
    let companies = Companies::start(1).await;
    let deployment = Deployment::new(profile).env("SECKILL_ALERTS_WEBHOOK_URL", &alarm.url);
    let sale = sale_with(&companies, deployment, NewSale::of(5)).await;
    let mut stranger = Api::new(sale.server().address, None);
    let mut woken = Vec::new();
    for (user, stuck) in [("ann", Stuck::Abnormal), ("bob", Stuck::Closed)] {
        companies.wechat.refunds_stick(Some(stuck));
        let (mut buyer, no) = refunding(&companies, &sale, user).await;
        woken.push("raised");
        alarm.receives(AlertKind::RefundRefused, &woken).await;
        let in_trouble = companies.refund_notice_of(Payee::WeChat, &no, None).unwrap();
        assert_eq!(post(&mut stranger, &in_trouble).await, 200, "it is on record");
        assert_eq!(buyer.order(&no).await["status"], "refunding");
        companies.wechat.unstick(&no);
        buyer.order_becomes(&no, "refunded").await;
        // What was said before comes last.
        assert_eq!(post(&mut stranger, &in_trouble).await, 200);
        assert_eq!(buyer.order(&no).await["status"], "refunded");
    }
    assert_eq!(sale.deployment.money_in_ledger(), (2 * PRICE, 2 * PRICE));
    companies.no_complaints();
}

async fn a_part_that_went_back_by_another_hand_is_told_to_a_person(profile: Profile) {
    let alarm = Webhook::start().await;
    let companies = Companies::start(1).await;
    let deployment = Deployment::new(profile).env("SECKILL_ALERTS_WEBHOOK_URL", &alarm.url);
    let sale = sale_with(&companies, deployment, NewSale::of(5)).await;
    let mut woken = Vec::new();
    for payee in [Payee::WeChat, Payee::Alipay] {
        let (mut buyer, no) = opened(&companies, &sale, payee.name(), payee).await;
        companies.pay(payee, &no, Paying::Now).unwrap();
        buyer.order_becomes(&no, "paid").await;
        companies.give_back(payee, &no, 1).unwrap();
        woken.push("raised");
        alarm.receives(AlertKind::Payment, &woken).await;
        assert_eq!(buyer.order(&no).await["status"], "paid");
    }
    assert_eq!(sale.deployment.money_in_ledger(), (2 * PRICE, 0));
}

crate::only_in_solo! {
    a_notice_of_a_refund_counts_once_in_any_order_and_no_forgery_of_it_does,
    a_refund_that_gets_stuck_wakes_somebody_and_is_done_when_it_is_seen_to,
    a_part_that_went_back_by_another_hand_is_told_to_a_person,
}
