//! The shop's backend is told of everything, whatever state it is in, and nobody waits for it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use checker::{Answer, AnsweredClaim};
use client::NewSale;
use orders::AlertKind;
use serde_json::{Value, json};

use crate::fixtures::{Buyer, Deployment, Manner, Profile, Receiver, Sale, Webhook, becomes};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// What a buyer waits at the most from the claim to the paid order while the receiver is in trouble. On an
/// idle machine it is a few hundredths.
const NORMAL: Duration = Duration::from_secs(10);

/// Tries again at once.
fn hurried(deployment: Deployment) -> Deployment {
    deployment
        .env("SECKILL_WEBHOOKS_RETRY_LADDER_MS", "50, 100")
        .env("SECKILL_WEBHOOKS_DOWN_PAUSE_MS_MAX", 200)
        .env("SECKILL_WEBHOOKS_TIMEOUT_MS", 2_000)
}

fn told(deployment: Deployment, receiver: &Receiver) -> Deployment {
    let endpoints = format!("[{{ url = {:?}, secret = {SECRET:?} }}]", receiver.url());
    hurried(deployment).env("SECKILL_WEBHOOKS_ENDPOINTS", endpoints)
}

/// From the click to the paid order.
async fn buys_and_pays(sale: &mut Sale, user: &str) -> String {
    let mut buyer = sale.buyer(user).await;
    let began = Instant::now();
    let no = buyer.buy().await;
    buyer.order_becomes(&no, "unpaid").await;
    let cashier = buyer.open_payment(&no).await;
    buyer.at_the_cashier(&cashier, "pay").await;
    buyer.order_becomes(&no, "paid").await;
    let took = began.elapsed();
    println!("{user} has paid after {took:.1?}");
    assert!(took < NORMAL, "{took:?}");
    remember(sale, &buyer, &no);
    no
}

async fn buys_and_cancels(sale: &mut Sale, user: &str) -> String {
    let mut buyer = sale.buyer(user).await;
    let no = buyer.buy().await;
    buyer.order_becomes(&no, "unpaid").await;
    buyer.cancel(&no).await;
    buyer.order_becomes(&no, "closed").await;
    remember(sale, &buyer, &no);
    no
}

fn remember(sale: &mut Sale, buyer: &Buyer, no: &str) {
    let answer = Answer::Admitted { order_no: no.parse().unwrap() };
    let claim = AnsweredClaim { user: buyer.user.clone(), item: buyer.item, key: None, answer };
    sale.history.claims.push(claim);
}

const PAID: &[&str] = &["order.created", "order.paid"];
const CLOSED: &[&str] = &["order.created", "order.closed"];
const REFUNDED: &[&str] = &["order.created", "order.paid", "order.refunded"];

async fn a_receiver_in_every_trouble_gets_every_event_in_order(profile: Profile) {
    let mut receiver = Receiver::start(SECRET).await;
    // It is down when the sale opens.
    receiver.go_down().await;
    let mut sale = told(Deployment::new(profile), &receiver).open_sale(NewSale::of(12)).await;
    let mut expected: BTreeMap<String, &[&str]> = BTreeMap::new();
    expected.insert(buys_and_pays(&mut sale, "down1").await, PAID);
    expected.insert(buys_and_cancels(&mut sale, "down2").await, CLOSED);

    // It is there, and hangs; meanwhile everything is killed.
    receiver.behaves(Manner::Hangs);
    receiver.come_back().await;
    becomes("somebody hangs", async || receiver.posts() > 0).await;
    let refunded = buys_and_pays(&mut sale, "hung1").await;
    let path = format!("/api/v1/admin/orders/{refunded}/refund");
    let _: Value = sale.admin().write(&path, &json!({})).await.unwrap();
    sale.buyer("hung1").await.order_becomes(&refunded, "refunded").await;
    expected.insert(refunded, REFUNDED);
    sale.kill();
    sale.start().await;
    expected.insert(buys_and_pays(&mut sale, "hung2").await, PAID);

    // It answers, with trouble of its own.
    receiver.behaves(Manner::Answers(503));
    expected.insert(buys_and_cancels(&mut sale, "fails1").await, CLOSED);
    let posts = receiver.posts();
    becomes("it is tried again", async || receiver.posts() > posts).await;
    assert_eq!(receiver.taken().len(), 0);

    // It takes, but slowly, and is killed for beside it.
    receiver.behaves(Manner::Late(Duration::from_millis(300)));
    expected.insert(buys_and_pays(&mut sale, "late1").await, PAID);
    becomes("it takes some", async || !receiver.taken().is_empty()).await;
    sale.kill();
    sale.start().await;
    expected.insert(buys_and_cancels(&mut sale, "late2").await, CLOSED);

    receiver.behaves(Manner::Takes);
    sale.act("end").await;
    let all = expected.len();
    becomes("everything is told", async || {
        let kinds: Vec<String> = receiver.taken().into_iter().map(|one| one.kind).collect();
        let has = |kind: &str| kinds.iter().any(|known| known == kind);
        let orders = expected.iter().filter(|(no, kinds)| receiver.told_of(no) == **kinds);
        has("activity.opened") && has("activity.ended") && orders.count() == all
    })
    .await;

    // The same event is the same id, and no id is two events. Whether somebody is called meanwhile is
    // another story.
    let mut by_id: BTreeMap<String, Value> = BTreeMap::new();
    for one in receiver.taken().into_iter().filter(|one| !one.kind.starts_with("alert.")) {
        let known = by_id.entry(one.id).or_insert_with(|| one.data.clone());
        assert_eq!(*known, one.data);
    }
    let events: usize = expected.values().map(|kinds| kinds.len()).sum();
    assert_eq!(by_id.len(), events + 2, "and nothing else: {by_id:#?}");
    // What it was told is what is in the books.
    for (no, kinds) in &expected {
        let last = receiver.taken().into_iter().rfind(|one| one.data["order_no"] == *no).unwrap();
        let path = format!("/api/v1/admin/orders/{no}");
        let books: Value = sale.admin().read(&path).await.unwrap();
        for field in ["user_id", "item_id", "quantity", "amount", "currency", "created_at"] {
            assert_eq!(last.data[field], books["order"][field], "{field} of {no}: {books}");
        }
        let status = kinds.last().unwrap().rsplit('.').next().unwrap();
        assert_eq!(books["order"]["status"], status);
    }
    sale.must_hold().await;
}

async fn stock_that_runs_out_and_comes_back_is_told(profile: Profile) {
    let receiver = Receiver::start(SECRET).await;
    let mut sale = told(Deployment::new(profile), &receiver).open_sale(NewSale::of(1)).await;
    buys_and_cancels(&mut sale, "u1").await;
    sale.settle().await;
    buys_and_pays(&mut sale, "u2").await;
    let of_item = || -> Vec<(String, i64)> {
        let taken = receiver.taken().into_iter().filter(|one| one.kind.starts_with("item."));
        taken.map(|one| (one.kind, one.data["stock"].as_i64().unwrap())).collect()
    };
    becomes("three changes are told", async || of_item().len() >= 3).await;
    let out = || ("item.sold_out".to_owned(), 0);
    assert_eq!(of_item(), [out(), ("item.back_in_stock".into(), 1), out()]);
    sale.must_hold().await;
}

/// The ledger is locked, so an alert about it can only be remembered; it is told when it can be written, also
/// by the process that comes after one that was killed.
async fn whoever_is_called_may_be_called_by_a_signed_event(profile: Profile) {
    let receiver = Receiver::start(SECRET).await;
    let deployment = told(Deployment::new(profile), &receiver)
        .env("SECKILL_ALERTS_RAISE_AFTER_MS", 100)
        .env("SECKILL_ALERTS_RESOLVE_AFTER_MS", 500);
    let mut sale = deployment.open_sale(NewSale::of(9)).await;
    let alerts = || -> Vec<(String, Value)> {
        let alerts = receiver.taken().into_iter().filter(|one| one.kind.starts_with("alert."));
        // One that is handed over by two processes is one event, and may come twice.
        let mut seen = std::collections::HashSet::new();
        let once = alerts.filter(|one| seen.insert(one.id.clone()));
        let ledger = once.filter(|one| one.data["kind"] == AlertKind::LedgerDown.as_str());
        ledger.map(|one| (one.kind, one.data)).collect()
    };
    for round in 1..=2 {
        let blocked = sale.deployment.block_ledger();
        let user = format!("u{round}");
        let claimed = sale.buyer(&user).await.claim().await;
        assert!(matches!(claimed, Answer::Admitted { .. }), "the sale goes on: {claimed:?}");
        becomes("it is raised", async || {
            sale.deployment.log().matches("claims do not become orders").count() >= 2 * round - 1
        })
        .await;
        if round == 2 {
            // What it could not write is in a file of the data directory within a moment.
            becomes("it is remembered", async || {
                sale.deployment.launches.iter().any(|launch| {
                    let file = std::fs::read_to_string(launch.data.join("alerts.json"));
                    file.is_ok_and(|text| text.contains("ledger_down") && text.contains("message"))
                })
            })
            .await;
            sale.kill();
        }
        drop(blocked);
        if round == 2 {
            sale.start().await;
        }
        becomes("both are told", async || alerts().len() == 2 * round).await;
        let told = alerts();
        let kinds: Vec<&str> = told.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds, ["alert.raised", "alert.resolved"].repeat(round), "{told:#?}");
        let (_, raised) = &told[2 * round - 2];
        assert!(raised["todo"].as_str().unwrap().contains("database"), "{raised}");
        assert!(raised["since"].is_i64() && raised["instance"].is_string(), "{raised}");
    }
    sale.settle().await;
}

/// What an operator does with endpoints.
struct Desk<'s>(&'s Sale);

impl Desk<'_> {
    async fn ask(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let path = format!("/api/v1/admin/webhooks{path}");
        let body = body.to_string();
        let answer = self.0.admin().send(method, &path, &[], body.as_bytes()).await.unwrap();
        let text = if answer.body.is_empty() { Value::Null } else { answer.json() };
        (answer.status, text)
    }

    async fn add(&self, url: &str) -> (u16, Value) {
        self.ask("POST", "", json!({"url": url, "description": "the shop"})).await
    }

    async fn show(&self, id: i64) -> Value {
        self.ask("GET", &format!("/{id}"), json!({})).await.1
    }
}

async fn addresses_inside_are_refused_over_the_api_unless_their_host_is_named(profile: Profile) {
    let receiver = Receiver::start(SECRET).await;
    let deployment =
        hurried(Deployment::new(profile)).env("SECKILL_WEBHOOKS_ALLOWED_HOSTS", "localhost");
    let mut sale = deployment.open_sale(NewSale::of(5)).await;
    let port = receiver.address.port();
    let desk = Desk(&sale);
    for inside in [
        "127.0.0.1",
        "127.1.2.3",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "10.0.0.1",
        "192.168.0.1",
        "172.16.9.9",
        "169.254.169.254",
        "100.64.0.1",
        "[fe80::1]",
        "[fd00::1]",
        "224.0.0.1",
    ] {
        let (status, problem) = desk.add(&format!("http://{inside}:{port}/")).await;
        assert_eq!((status, &problem["field"]), (422, &json!("url")), "{inside}: {problem}");
    }
    for bad in ["ftp://shop.example/", "file:///etc/passwd", "http://u:p@shop.example/", "no"] {
        assert_eq!(desk.add(bad).await.0, 422, "{bad}");
    }
    // A name that is no address now is taken, and leads nowhere when it is one that it must not be.
    let (status, made) = desk.add(&format!("http://localhost:{port}/hook")).await;
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_i64().unwrap();
    receiver.knows(&[made["secret"].as_str().unwrap()]);
    let (status, ping) = desk.ask("POST", &format!("/{id}/test"), json!({})).await;
    assert_eq!(
        (status, &ping["taken"], &ping["status"]),
        (200, &json!(true), &json!(204)),
        "{ping}"
    );
    assert_eq!(receiver.taken()[0].kind, "webhook.test");
    // Nobody sees the secret again.
    let listed = desk.ask("GET", "", json!({})).await.1.to_string();
    assert!(listed.contains("localhost") && !listed.contains("whsec_"), "{listed}");
    let audit: Value = sale.admin().read("/api/v1/admin/audit?limit=500").await.unwrap();
    let audit = audit.to_string();
    assert!(audit.contains("webhook.create") && !audit.contains("whsec_"), "{audit}");
    let no = buys_and_pays(&mut sale, "ann").await;
    becomes("it is told", async || receiver.told_of(&no) == PAID).await;
    let log = sale.deployment.log();
    assert!(!log.contains("whsec_"));
}

async fn a_secret_is_rotated_without_a_gap(profile: Profile) {
    let receiver = Receiver::start(SECRET).await;
    let deployment =
        hurried(Deployment::new(profile)).env("SECKILL_WEBHOOKS_ALLOWED_HOSTS", "127.0.0.1");
    let mut sale = deployment.open_sale(NewSale::of(9)).await;
    let (_, made) = Desk(&sale).add(&receiver.url()).await;
    let (id, old) = (made["id"].as_i64().unwrap(), made["secret"].as_str().unwrap().to_owned());
    receiver.knows(&[&old]);
    let no = buys_and_pays(&mut sale, "ann").await;
    becomes("it is told", async || receiver.told_of(&no) == PAID).await;
    let (status, made) = Desk(&sale).ask("POST", &format!("/{id}/rotate"), json!({})).await;
    assert_eq!(status, 200, "{made}");
    let new = made["secret"].as_str().unwrap();
    assert!(new != old && made["previous_secret_until"].is_i64(), "{made}");
    // Whichever of the two it knows.
    for (secret, user) in [(old.as_str(), "bob"), (new, "cat")] {
        receiver.knows(&[secret]);
        let no = buys_and_pays(&mut sale, user).await;
        becomes("it is told", async || receiver.told_of(&no) == PAID).await;
        let last = receiver.taken().pop().unwrap();
        assert_eq!(last.signatures, 2);
    }
    // Removed, it hears no more.
    let (status, _) = Desk(&sale).ask("DELETE", &format!("/{id}"), json!({})).await;
    assert_eq!(status, 204);
    let heard = receiver.posts();
    buys_and_pays(&mut sale, "dan").await;
    sale.settle().await;
    assert_eq!(
        (receiver.posts(), Desk(&sale).ask("GET", "", json!({})).await.1),
        (heard, json!({"webhooks": []}))
    );
}

async fn who_fails_for_long_is_switched_off_and_gets_all_of_it_when_switched_on(profile: Profile) {
    let (receiver, alerts) = (Receiver::start(SECRET).await, Webhook::start().await);
    let deployment = told(Deployment::new(profile), &receiver)
        .env("SECKILL_ALERTS_WEBHOOK_URL", &alerts.url)
        .env("SECKILL_WEBHOOKS_GIVE_UP_AFTER_MS", 300)
        .env("SECKILL_WEBHOOKS_SWITCH_OFF_AFTER_MS", 1_500);
    // More than are bought and given back before it is over: units come back a moment later.
    let mut sale = deployment.open_sale(NewSale::of(100_000)).await;
    receiver.behaves(Manner::Answers(500));
    let no = buys_and_pays(&mut sale, "ann").await;
    let listed = Desk(&sale).ask("GET", "", json!({})).await.1;
    let id = listed["webhooks"][0]["id"].as_i64().unwrap();
    let failed = |what: &str| format!("/{id}/deliveries?state={what}&order_no={no}");
    becomes("both are given up", async || {
        let page = Desk(&sale).ask("GET", &failed("failed"), json!({})).await.1;
        page["deliveries"].as_array().unwrap().len() == 2
    })
    .await;
    // The later one was never sent before the earlier one was taken.
    let page = Desk(&sale).ask("GET", &failed("failed"), json!({})).await.1;
    assert_eq!(
        (&page["deliveries"][0]["tries"], &page["deliveries"][0]["type"]),
        (&json!(0), &json!("order.paid"))
    );
    becomes("it is switched off", async || {
        // It is tried as long as something happens.
        buys_and_cancels(&mut sale, &format!("u{}", fastrand::u32(..))).await;
        Desk(&sale).show(id).await["enabled"] == false
    })
    .await;
    becomes("somebody is told", async || {
        !alerts.states(AlertKind::WebhookSwitchedOff).is_empty()
            && !alerts.states(AlertKind::WebhookGivenUp).is_empty()
    })
    .await;
    let heard = receiver.posts();
    let while_off = buys_and_pays(&mut sale, "bob").await;
    sale.settle().await;
    assert_eq!(receiver.posts(), heard, "it is left alone");

    receiver.behaves(Manner::Takes);
    let (status, shown) =
        Desk(&sale).ask("PATCH", &format!("/{id}"), json!({"enabled": true})).await;
    assert_eq!((status, &shown["enabled"]), (200, &json!(true)), "{shown}");
    becomes("what waited is told", async || receiver.told_of(&while_off) == PAID).await;
    let (status, done) = Desk(&sale).ask("POST", &format!("/{id}/replay"), json!({})).await;
    assert!(status == 200 && done["replayed"].as_i64().unwrap() >= 2, "{done}");
    becomes("what had failed is told", async || receiver.told_of(&no) == PAID).await;
    // One more time, because somebody asks for it.
    let page = Desk(&sale).ask("GET", &failed("delivered"), json!({})).await.1;
    let one = &page["deliveries"][0];
    let again = format!("/{id}/deliveries/{}/replay", one["id"]);
    assert_eq!(Desk(&sale).ask("POST", &again, json!({})).await.0, 200);
    becomes("it comes with the same id", async || {
        receiver.taken().iter().filter(|taken| one["event_id"] == taken.id).count() == 2
    })
    .await;
    // Of one from the settings nothing else is changed here.
    let (status, problem) = Desk(&sale).ask("DELETE", &format!("/{id}"), json!({})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("conflict")));

    receiver.behaves(Manner::Answers(410));
    buys_and_cancels(&mut sale, "gone").await;
    becomes("who is gone is switched off at once", async || {
        Desk(&sale).show(id).await["reason"].as_str().is_some_and(|why| why.contains("410"))
    })
    .await;
    sale.must_hold().await;
}

/// A thousand orders for a receiver that hangs, and one for a receiver that does not.
async fn one_who_hangs_delays_nobody_else(profile: Profile) {
    let (hangs, takes) = (Receiver::start(SECRET).await, Receiver::start(SECRET).await);
    hangs.behaves(Manner::Hangs);
    let endpoint = |one: &Receiver| format!("{{ url = {:?}, secret = {SECRET:?} }}", one.url());
    let endpoints = format!("[{}, {}]", endpoint(&hangs), endpoint(&takes));
    let deployment = hurried(Deployment::new(profile))
        .env("SECKILL_WEBHOOKS_ENDPOINTS", endpoints)
        .env("SECKILL_WEBHOOKS_TIMEOUT_MS", 60_000);
    const ORDERS: usize = 300;
    let mut sale = deployment.open_sale(NewSale::of(ORDERS as i64 + 10)).await;
    let buyers = sale.tokens((0..ORDERS).map(|n| format!("crowd{n}"))).await;
    let began = Instant::now();
    let report = sale.crowd(16).rush(buyers).await;
    assert_eq!(report.history.admitted(), ORDERS);
    sale.history = report.history;
    becomes("one of them hangs", async || hangs.posts() > 0).await;
    let no = buys_and_pays(&mut sale, "ann").await;
    becomes("the other hears of all", async || {
        let created = takes.taken().iter().filter(|one| one.kind == "order.created").count();
        created == ORDERS + 1 && takes.told_of(&no) == PAID
    })
    .await;
    println!("{ORDERS} orders were told {:.1?} after the first claim", began.elapsed());
    assert_eq!(hangs.taken().len(), 0);
    sale.must_hold().await;
}

crate::in_every_profile! {
    a_receiver_in_every_trouble_gets_every_event_in_order,
    whoever_is_called_may_be_called_by_a_signed_event,
    one_who_hangs_delays_nobody_else,
    who_fails_for_long_is_switched_off_and_gets_all_of_it_when_switched_on,
}

crate::only_in_solo! {
    stock_that_runs_out_and_comes_back_is_told,
    addresses_inside_are_refused_over_the_api_unless_their_host_is_named,
    a_secret_is_rotated_without_a_gap,
}
