//! News over SSE and WebSocket: in order, wherever the socket and the claim are, and over kills.

use std::time::Duration;

use checker::Answer;
use client::{Api, NewSale};
use sale::EventTicket;
use serde_json::json;

use crate::fixtures::{
    Deployment, Events, Frame, Profile, Sale, WebSocket, becomes, listening, now_ms, until,
};

/// The last of those that answer buyers; in a cluster it is another one than the first.
fn last_web(sale: &Sale) -> usize {
    sale.addresses().len() - 1
}

/// Is it a part of the way of an order, in this order?
fn is_in_order(statuses: &[String]) -> bool {
    let way = ["queued", "unpaid", "paid", "refunding", "refunded"];
    let mut places = statuses.iter().map(|status| way.iter().position(|word| word == status));
    places.all(|place| place.is_some())
        && statuses.windows(2).all(|two| {
            let place = |status: &String| way.iter().position(|word| word == status);
            place(&two[0]) < place(&two[1])
        })
}

async fn an_order_is_followed_from_the_queue_to_the_refund(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(3)).await;
    let there = sale.addresses()[last_web(&sale)];
    let login = sale.deployment.login();
    let jwt = login.token(&mut Api::new(there, None), "ann").await.unwrap();
    let ticket =
        Api::new(there, Some(&jwt)).post("/api/v1/events/ticket", &json!({})).await.unwrap();
    let ticket = ticket.json();
    assert!(ticket["expires_at"].as_i64().unwrap() > now_ms(), "{ticket}");
    let query = format!("ticket={}", ticket["token"].as_str().unwrap());
    let mut socket = WebSocket::open(there, &query).await;
    let mut stream = Events::open(there, &login, "ann").await;

    let blocked = sale.deployment.block_ledger();
    let mut ann = sale.buyer_at(0, "ann").await;
    let no = ann.buy().await;
    let queued = socket.event().await;
    assert_eq!((&queued["event"], &queued["data"]["order_no"]), (&json!("order"), &json!(no)));
    assert_eq!(queued["data"]["status"], "queued", "{queued}");
    assert_eq!(queued["data"]["position"], 1, "{queued}");
    assert!(queued["data"]["eta_ms"].is_u64(), "{queued}");
    stream.hear_of(&no, "queued").await;
    drop(blocked);

    assert_eq!(socket.statuses_until(&no, "unpaid").await, ["unpaid"]);
    let cashier = ann.open_payment(&no).await;
    ann.at_the_cashier(&cashier, "pay").await;
    assert_eq!(socket.statuses_until(&no, "paid").await, ["paid"]);
    let refund = format!("/api/v1/admin/orders/{no}/refund");
    assert_eq!(sale.admin().post(&refund, &json!({})).await.unwrap().status, 200);
    let statuses = socket.statuses_until(&no, "refunded").await;
    assert!(is_in_order(&statuses), "{statuses:?}");
    for status in ["unpaid", "paid", "refunded"] {
        stream.hear_of(&no, status).await;
    }
    // Somebody else's orders are nobody's business.
    let other = sale.buyer("bob").await.buy().await;
    sale.settle().await;
    assert!(socket.is_quiet(Duration::from_millis(300)).await, "{other}");
}

async fn whoever_watches_an_item_hears_that_it_is_gone_and_back(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let there = sale.addresses()[last_web(&sale)];
    // Where the gate is elsewhere, an instance hears of a new item within a second.
    let item = format!("/api/v1/items/{}", sale.item);
    until(
        "open",
        async || Api::new(there, None).get(&item).await.unwrap().json(),
        |item| item["state"] == "open",
    )
    .await;
    let query = listening(&sale.deployment, "bob", &format!("&items={},999999", sale.item));
    let mut socket = WebSocket::open(there, &query).await;
    let about = |event: &serde_json::Value, name: &str| {
        assert_eq!(
            (&event["event"], &event["data"]),
            (&json!(name), &json!({"item_id": sale.item}))
        );
    };
    about(&socket.event().await, "back_in_stock");
    let mut ann = sale.buyer_at(0, "ann").await;
    let no = ann.buy().await;
    about(&socket.event().await, "sold_out");
    ann.order_becomes(&no, "unpaid").await;
    ann.cancel(&no).await;
    about(&socket.event().await, "back_in_stock");
    // Watching anew begins with what is true now; watching nothing is quiet.
    socket.say(&format!("{{\"watch\":[{}]}}", sale.item)).await.unwrap();
    about(&socket.event().await, "back_in_stock");
    socket.say("{\"watch\":[]}").await.unwrap();
    let no = ann.buy().await;
    ann.order_becomes(&no, "unpaid").await;
    assert!(socket.is_quiet(Duration::from_millis(500)).await);
    socket.say("{\"buy\":1}").await.unwrap();
    assert_eq!(socket.farewell().await, Some(1008));
}

async fn whoever_may_not_listen_is_told_why(profile: Profile) {
    let deployment = Deployment::new(profile).env("SECKILL_PUSH_STREAMS_PER_USER_MAX", 2);
    let sale = deployment.open_sale(NewSale::of(1)).await;
    let address = sale.server().address;
    let keys = sale.deployment.keys();
    let refused =
        async |query: &str, headers: &str| match WebSocket::try_open(address, query, headers)
            .await
            .unwrap()
        {
            Ok(_) => (101, String::new()),
            Err((status, body)) => {
                let body: serde_json::Value = serde_json::from_str(&body).unwrap();
                (status, body["code"].as_str().unwrap().to_owned())
            }
        };
    let good = listening(&sale.deployment, "ann", "");
    let old = EventTicket { user: "ann".parse().unwrap(), expires_ms: now_ms() - 1 }.sign(&keys);
    let other = EventTicket { user: "bob".parse().unwrap(), expires_ms: now_ms() + 60_000 };
    let others = sale::SigningKeys::from_secret(b"a secret that is not ours").unwrap();
    let forged = format!("ticket={}", other.sign(&others));
    for bad in ["", &format!("ticket={old}"), &forged, "ticket=x"] {
        assert_eq!(refused(bad, "").await, (401, "unauthorized".into()), "{bad}");
    }
    for origin in ["https://evil.example", "null", &format!("https://{address}.evil")] {
        let origin = format!("origin: {origin}\r\n");
        assert_eq!(refused(&good, &origin).await, (403, "forbidden".into()), "{origin}");
    }
    let many = vec!["1"; 51].join(",");
    assert_eq!(refused(&format!("{good}&items={many}"), "").await, (422, "invalid".into()));
    assert_eq!(refused(&format!("{good}&item=1"), "").await, (422, "invalid".into()));
    let plain = Api::new(address, None).get(&format!("/api/v1/ws?{good}")).await.unwrap();
    assert_eq!((plain.status, plain.code().as_deref()), (400, Some("bad_request")));

    let own = format!("origin: http://{address}\r\n");
    let first = WebSocket::try_open(address, &good, &own).await.unwrap();
    assert!(first.is_ok(), "our own page may");
    let second = Events::open(address, &sale.deployment.login(), "ann").await;
    assert_eq!(refused(&good, "").await, (429, "rate_limited".into()), "two, of either kind");
    drop((first, second));
    // The server notices that they are gone.
    becomes("there is room again", async || refused(&good, "").await.0 == 101).await;
}

async fn a_server_that_stops_says_so(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let place = last_web(&sale);
    let there = sale.addresses()[place];
    let query = listening(&sale.deployment, "ann", "");
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.push(WebSocket::open(there, &query).await);
    }
    let ended = tokio::spawn(async move {
        let mut codes = Vec::new();
        for mut socket in sockets {
            codes.push(socket.farewell().await);
        }
        codes
    });
    let began = std::time::Instant::now();
    sale.stop_one(place).await;
    assert_eq!(ended.await.unwrap(), [Some(1001); 3]);
    assert!(began.elapsed() < Duration::from_secs(20), "nobody waits for them");
    let log = sale.deployment.log();
    assert!(log.contains("cut=0"), "they ended by themselves");
}

async fn whoever_comes_back_with_the_last_id_misses_nothing(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(5)).await;
    let place = last_web(&sale);
    let mut ann = sale.buyer_at(0, "ann").await;
    let query = listening(&sale.deployment, "ann", "");
    let mut socket = WebSocket::open(sale.addresses()[place], &query).await;
    let first = ann.buy().await;
    socket.statuses_until(&first, "unpaid").await;
    let last_id = socket.last_id.clone().unwrap();
    sale.kill_one(place);
    assert_eq!(socket.farewell().await, None);
    if profile == Profile::Solo {
        sale.start_again(place).await;
        ann = sale.buyer_at(0, "ann").await;
    }
    // While nobody listens one order ends, and another one begins.
    ann.cancel(&first).await;
    sale.settle().await;
    let second = ann.buy().await;
    ann.order_becomes(&second, "unpaid").await;

    let elsewhere = sale.addresses()[0];
    let query = listening(&sale.deployment, "ann", &format!("&last_event_id={last_id}"));
    let mut socket = WebSocket::open(elsewhere, &query).await;
    // The newest first, as in the list.
    for (no, status) in [(&second, "unpaid"), (&first, "closed")] {
        let event = socket.event().await;
        assert_eq!(event["data"]["order_no"], json!(no), "{event}");
        assert_eq!(event["data"]["status"], status, "{event}");
    }
    let mut stream = Events::open_with(elsewhere, &sale.deployment.login(), "ann", &last_id).await;
    stream.hear_of(&first, "closed").await;
    stream.hear_of(&second, "unpaid").await;
    // Without an id only what may still change is told.
    let mut fresh = WebSocket::open(elsewhere, &listening(&sale.deployment, "ann", "")).await;
    assert_eq!(fresh.event().await["data"]["order_no"], json!(second));
    assert!(fresh.is_quiet(Duration::from_millis(300)).await);
}

/// The value of a number, with its labels as they are written.
async fn metric(sale: &Sale, place: usize, name: &str) -> u64 {
    let text = Api::new(sale.addresses()[place], None).get("/metrics").await.unwrap().body;
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.split(' ').nth(1)).map_or(0, |value| value.parse().unwrap())
}

/// Items that one connection may watch.
const WATCHED: usize = 50;

async fn a_listener_that_is_silent_or_does_not_read_is_let_go(profile: Profile) {
    let deployment = Deployment::new(profile)
        .env("SECKILL_PUSH_HEARTBEAT_MS", 200)
        .env("SECKILL_HTTP_WRITE_TIMEOUT_MS", 1_000);
    let sale = deployment.open_sale(NewSale { items: WATCHED, ..NewSale::of(1) }).await;
    let address = sale.server().address;
    let mut silent = WebSocket::open(address, &listening(&sale.deployment, "ann", "")).await;
    let mut lively = WebSocket::open(address, &listening(&sale.deployment, "bob", "")).await;
    let alive = tokio::spawn(async move {
        let mut pings = 0;
        while pings < 15 {
            assert_eq!(lively.frame().await, Frame::Ping);
            lively.pong().await;
            pings += 1;
        }
    });
    assert_eq!(silent.farewell().await, None, "it does not answer");
    alive.await.unwrap();
    let dropped = "seckill_push_dropped_total{reason=\"silent\"}";
    assert!(metric(&sale, 0, dropped).await >= 1);

    // This one makes the server talk, and does not read what it says. It watches many items, so that each of
    // its words gets a long answer: what the kernel holds for it is full after a thousand of them.
    let query = listening(&sale.deployment, "eve", &format!("&items={}", sale.item));
    let mut deaf = WebSocket::open_narrow(address, &query).await;
    let items: Vec<i64> = (sale.item..).take(WATCHED).collect();
    let watch = json!({"watch": items}).to_string();
    let talking = async { while deaf.say(&watch).await.is_ok() {} };
    tokio::time::timeout(crate::fixtures::PATIENCE, talking).await.expect("it is cut");
    let cut = "seckill_connections_cut_total{reason=\"write\"}";
    becomes("it is counted", async || metric(&sale, 0, cut).await >= 1).await;
    // Nobody else was kept waiting.
    let answer = sale.buyer("ann").await.claim().await;
    assert!(matches!(answer, Answer::Admitted { .. }), "{answer:?}");
}

crate::in_every_profile!(
    an_order_is_followed_from_the_queue_to_the_refund,
    whoever_watches_an_item_hears_that_it_is_gone_and_back,
    whoever_may_not_listen_is_told_why,
    a_server_that_stops_says_so,
    whoever_comes_back_with_the_last_id_misses_nothing,
    a_listener_that_is_silent_or_does_not_read_is_let_go,
);
