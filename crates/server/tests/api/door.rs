//! The door: challenges, sale tokens, lists of buyers, and buyers who have to wait. What does not pass it
//! never reaches the gate, which counts.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering},
};

use engine::moving_gate::GateControls;
use http::Method;
use sale::{ItemId, SaleToken, SigningKeys, solve_challenge};
use serde_json::{Value, json};

use crate::shop::{CLOSES_MS, NOW_MS, OPENS_MS, SECRET, Shop};

/// A sale with this door, published and at the gate; its id and its item's.
async fn stage(shop: &Shop, door: Value) -> (i64, i64) {
    let plan = json!({"name": "sale", "opens_at": OPENS_MS, "closes_at": CLOSES_MS, "door": door,
        "items": [{"name": "iPhone", "price": 699_900, "stock": 10}]});
    let made = shop.admin(Method::POST, "/admin/activities").json(plan).send().await.is(201);
    let (id, item) = (made["id"].as_i64().unwrap(), made["items"][0]["id"].as_i64().unwrap());
    shop.move_to(id, "publish").await.is(200);
    shop.move_to(id, "warm").await.is(200);
    (id, item)
}

async fn challenge(shop: &Shop, user: &str, item: i64) -> Value {
    let asked = shop.post(&format!("/items/{item}/challenge")).bearer(&shop.jwt(user));
    asked.send().await.is(200)
}

fn solved(challenge: &Value) -> String {
    solve_challenge(&serde_json::from_value(challenge.clone()).unwrap()).unwrap()
}

async fn token(shop: &Shop, user: &str, item: i64, body: Value) -> crate::shop::Heard {
    let asked = shop.post(&format!("/items/{item}/token")).bearer(&shop.jwt(user));
    asked.json(body).send().await
}

async fn claim(shop: &Shop, item: i64, token: &str) -> crate::shop::Heard {
    let asked = shop.post(&format!("/items/{item}/claims")).header("x-sale-token", token);
    asked.json(json!({"quantity": 1})).send().await
}

fn asked(gate: &Arc<GateControls>) -> u64 {
    gate.asked.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_challenge_is_solved_before_the_opening_and_the_opening_is_one_request() {
    let shop = Shop::open().await;
    let (_, item) = stage(&shop, json!({"challenge": "pow", "difficulty": 12})).await;
    let shown = shop.get(&format!("/items/{item}")).send().await.is(200);
    assert_eq!(shown["challenge"], "pow");
    let bare = shop.post(&format!("/items/{item}/token")).bearer(&shop.jwt("ann")).send().await;
    bare.is_refused(403, "bad_challenge", None);
    let told = bare.json();
    assert_eq!((&told["challenge"], &told["reason"]), (&json!("pow"), &json!("missing")));

    let altcha = solved(&challenge(&shop, "ann", item).await);
    let good = token(&shop, "ann", item, json!({"altcha": altcha})).await.is(200);
    assert_eq!(good["opens_at"], OPENS_MS);
    let again = token(&shop, "ann", item, json!({"altcha": altcha})).await;
    assert_eq!(again.is_refused(403, "bad_challenge", None).json()["reason"], "spent");
    shop.clock.set(OPENS_MS);
    claim(&shop, item, good["token"].as_str().unwrap()).await.is(202);
}

/// Which challenges were spent is forgotten with the process; what an earlier one made is told by that, and
/// not by the time, which may be set back.
#[tokio::test]
async fn a_challenge_of_an_earlier_process_is_over_whatever_the_clock_says() {
    let (before, after) = (Shop::open().await, Shop::open().await);
    let door = || json!({"challenge": "pow", "difficulty": 12});
    let ((_, item), (_, same)) = (stage(&before, door()).await, stage(&after, door()).await);
    assert_eq!(item, same);
    let altcha = solved(&challenge(&before, "ann", item).await);
    let refused = token(&after, "ann", item, json!({"altcha": altcha})).await;
    assert_eq!(refused.is_refused(403, "bad_challenge", None).json()["reason"], "expired");
    // It began while the clock was a minute ahead.
    after.clock.set(NOW_MS - 60_000);
    let altcha = solved(&challenge(&after, "ann", item).await);
    token(&after, "ann", item, json!({"altcha": altcha})).await.is(200);
}

#[tokio::test]
async fn nothing_without_a_good_token_or_challenge_reaches_the_gate() {
    let (shop, gate) = Shop::open_beside_a_gate().await;
    let (_, item) = stage(&shop, json!({"challenge": "pow", "difficulty": 12})).await;
    let (_, other) = stage(&shop, json!({"challenge": "pow", "difficulty": 12})).await;
    shop.clock.set(OPENS_MS);
    let anns = challenge(&shop, "ann", item).await;
    let mut easier = anns.clone();
    easier["parameters"]["keyPrefix"] = json!("0");
    for (user, at, altcha, reason) in [
        ("ann", item, "x".to_owned(), "unreadable"),
        ("ann", item, solved(&easier), "foreign"),
        ("bob", item, solved(&anns), "foreign"),
        ("ann", other, solved(&anns), "foreign"),
    ] {
        let refused = token(&shop, user, at, json!({"altcha": altcha})).await;
        assert_eq!(refused.is_refused(403, "bad_challenge", None).json()["reason"], reason);
    }
    // Good, once; then replayed.
    let good = token(&shop, "ann", item, json!({"altcha": solved(&anns)})).await.is(200);
    let good = good["token"].as_str().unwrap().to_owned();
    let replayed = token(&shop, "ann", item, json!({"altcha": solved(&anns)})).await;
    assert_eq!(replayed.is_refused(403, "bad_challenge", None).json()["reason"], "spent");

    let keys = SigningKeys::from_secret(b"a secret of others").unwrap();
    let sign = |expires_ms, keys: &SigningKeys| {
        let user = "ann".parse().unwrap();
        SaleToken { user, item: ItemId(item), expires_ms, from_ms: None }.sign(keys)
    };
    let ours = SigningKeys::from_secret(SECRET).unwrap();
    let mut changed = good.clone();
    changed.replace_range(4..5, if &good[4..5] == "A" { "B" } else { "A" });
    for bad in ["", "x", &changed, &sign(CLOSES_MS, &keys), &sign(OPENS_MS, &ours)] {
        claim(&shop, item, bad).await.is_refused(403, "bad_token", None);
    }
    claim(&shop, other, &good).await.is_refused(403, "bad_token", None);
    let none = shop.post(&format!("/items/{item}/claims")).json(json!({"quantity": 1}));
    none.send().await.is_refused(403, "bad_token", None);
    assert_eq!(asked(&gate), 0, "and the gate has not heard of any of them");

    claim(&shop, item, &good).await.is(202);
    assert_eq!(asked(&gate), 1);
}

#[tokio::test]
async fn an_expired_challenge_is_nobodys_fault_and_wrong_answers_are_counted() {
    let shop = Shop::open_with(|config| config.door.challenge_ttl_ms = 5_000).await;
    let (_, item) = stage(&shop, json!({"challenge": "captcha", "difficulty": 12})).await;
    let old = challenge(&shop, "ann", item).await;
    shop.clock.set(NOW_MS + 7_000);
    for _ in 0..8 {
        let late =
            token(&shop, "ann", item, json!({"altcha": solved(&old), "code": "AAAAA"})).await;
        assert_eq!(late.is_refused(403, "bad_challenge", None).json()["reason"], "expired");
    }
    for _ in 0..5 {
        let new = challenge(&shop, "ann", item).await;
        let image = new["codeChallenge"]["image"].as_str().unwrap();
        assert!(image.starts_with("data:image/png;base64,iVBORw0KGgo"), "{image:.40}");
        let wrong = json!({"altcha": solved(&new), "code": "?????"});
        let refused = token(&shop, "ann", item, wrong.clone()).await;
        assert_eq!(refused.is_refused(403, "bad_challenge", None).json()["reason"], "wrong_code");
    }
    let waits = token(&shop, "ann", item, json!({"altcha": "x"})).await;
    assert_eq!(waits.is_refused(429, "cooling_down", None).json()["reason"], "wrong_answers");
    assert_eq!(waits.headers["retry-after"], "60");
    let asked = shop.post(&format!("/items/{item}/challenge")).bearer(&shop.jwt("ann"));
    asked.header("accept-language", "zh").send().await.is_refused(429, "cooling_down", None);
    // Whoever cannot read the picture has the machine work instead.
    let instead = shop.post(&format!("/items/{item}/challenge")).bearer(&shop.jwt("bob"));
    let instead = instead.json(json!({"kind": "pow"})).send().await.is(200);
    assert_eq!((&instead["kind"], &instead["codeChallenge"]), (&json!("pow"), &Value::Null));
    assert_eq!(instead["parameters"]["cost"], 8, "eight times as long");
    token(&shop, "bob", item, json!({"altcha": solved(&instead)})).await.is(200);
}

#[tokio::test]
async fn a_challenge_can_be_changed_while_the_sale_runs() {
    let shop = Shop::open().await;
    let (id, item) = stage(&shop, json!({})).await;
    shop.clock.set(OPENS_MS);
    let path = format!("/admin/activities/{id}");
    let version = shop.admin(Method::GET, &path).send().await.is(200)["version"].clone();
    let harder = json!({"version": version, "door": {"challenge": "pow", "difficulty": 13}});
    let now = shop.admin(Method::PATCH, &path).json(harder).send().await.is(200);
    assert_eq!(
        (&now["door"]["challenge"], &now["door"]["difficulty"]),
        (&json!("pow"), &json!(13))
    );
    token(&shop, "ann", item, json!({})).await.is_refused(403, "bad_challenge", None);
    for (door, field) in [
        (json!({"difficulty": 29}), "door.difficulty"),
        (json!({"members_from": OPENS_MS - 10}), "door.members_from"),
        (json!({"colour": "red"}), "door.colour"),
    ] {
        let edit = json!({"version": now["version"], "door": door});
        let refused = shop.admin(Method::PATCH, &path).json(edit).send().await;
        assert_eq!(refused.status, 422, "{field}: {}", refused.text);
    }
    let both = json!({"version": now["version"], "door": {"difficulty": 14}, "name": "x"});
    let refused = shop.admin(Method::PATCH, &path).json(both).send().await;
    refused.is_refused(422, "invalid", Some("name"));
    let audit = shop.admin(Method::GET, "/admin/audit").send().await.is(200);
    assert_eq!(audit["entries"][0]["action"], "activity.door", "{audit}");
}

#[tokio::test]
async fn tokens_are_given_a_little_before_the_opening() {
    let shop = Shop::open().await;
    let door = json!({"challenge": "pow", "difficulty": 12, "token_before_ms": 500});
    let (_, item) = stage(&shop, door).await;
    let asked = shop.post(&format!("/items/{item}/challenge")).bearer(&shop.jwt("ann"));
    let early = asked.send().await;
    assert_eq!(early.is_refused(403, "not_started", None).json()["token_from"], OPENS_MS - 500);
    shop.clock.set(OPENS_MS - 500);
    challenge(&shop, "ann", item).await;
}

#[tokio::test]
async fn whoever_gives_orders_up_again_and_again_waits_and_a_token_at_hand_does_not_help() {
    let (shop, gate) = Shop::open_beside_a_gate().await;
    let (_, item) = stage(&shop, json!({})).await;
    shop.clock.set(OPENS_MS);
    let at_hand = token(&shop, "ann", item, json!({})).await.is(200);
    let at_hand = at_hand["token"].as_str().unwrap();
    let jwt = shop.jwt("ann");
    let mut cycles = 0;
    let refused = loop {
        let answer = claim(&shop, item, at_hand).await;
        if answer.status != 202 {
            break answer;
        }
        let no = answer.json()["order_no"].as_str().unwrap().to_owned();
        shop.settled("ann", &no).await;
        shop.post(&format!("/orders/{no}/cancel")).bearer(&jwt).send().await.is(200);
        // As the job does, which does not run here.
        let back = gate::GiveBack {
            item: ItemId(item),
            user: "ann".parse().unwrap(),
            order_no: no.parse().unwrap(),
            quantity: 1,
        };
        shop.app.engine.parts().gate.release(&[back]).await.unwrap();
        cycles += 1;
        assert!(cycles < 20, "nobody stops them");
    };
    assert_eq!(cycles, 5);
    refused.is_refused(429, "cooling_down", None);
    assert_eq!(refused.json()["reason"], "unpaid_orders");
    assert_eq!(refused.headers["retry-after"], "1800");
    assert_eq!(asked(&gate), 5);
    token(&shop, "ann", item, json!({})).await.is_refused(429, "cooling_down", None);
    // Others buy, and an operator may let them go.
    shop.buy("bob", item).await;
    let waiting = shop.admin(Method::GET, "/admin/cool-downs").send().await.is(200);
    assert_eq!(waiting["cool_downs"][0]["user_id"], "ann");
    shop.admin(Method::DELETE, "/admin/cool-downs/ann").send().await.is(204);
    shop.admin(Method::DELETE, "/admin/cool-downs/ann").send().await.is_refused(
        404,
        "not_found",
        None,
    );
    claim(&shop, item, at_hand).await.is(202);
}

#[tokio::test]
async fn members_come_first_and_whoever_is_blocked_does_not_come() {
    let (shop, gate) = Shop::open_beside_a_gate().await;
    let first_ms = NOW_MS + 500;
    let (id, item) = stage(&shop, json!({"members_from": first_ms})).await;
    // A page can tell both: that members come first, and when.
    for path in [format!("/items/{item}"), format!("/api/v1/activities/{id}")] {
        let shown = shop.get(&path).send().await.is(200);
        assert_eq!(
            (&shown["members_from"], &shown["members_only"]),
            (&json!(first_ms), &json!(false))
        );
    }
    let list =
        |kind: &str, of: String| shop.admin(Method::POST, &format!("/admin/lists/{kind}{of}"));
    let of = format!("?activity={id}");
    let csv = "user_id,name\r\nann,Ann\r\n\r\n\"dan\",Dan\r\n";
    let added = text(&shop, &format!("/admin/lists/members{of}"), csv).await.is(200);
    assert_eq!(added["changed"], 2);
    let added = text(&shop, &format!("/admin/lists/members{of}"), "ann\ndan\n").await.is(200);
    assert_eq!(added["changed"], 0, "they were there");
    list("blocked", String::new()).json(json!({"users": ["eve"]})).send().await.is(200);
    for (bad, field) in [("ann\nb ob", "line 2"), ("", "users")] {
        let refused = text(&shop, "/admin/lists/blocked", bad).await;
        refused.is_refused(422, "invalid", Some(field));
    }
    let nobody = list("members", "?activity=999".into()).json(json!({"users": ["x"]}));
    nobody.send().await.is_refused(422, "invalid", Some("activity"));
    list("friends", String::new()).json(json!({"users": ["x"]})).send().await.is_refused(
        404,
        "not_found",
        None,
    );

    let get = async |user: &str| {
        let got = token(&shop, user, item, json!({})).await.is(200);
        (got["token"].as_str().unwrap().to_owned(), got["opens_at"].as_i64().unwrap())
    };
    let (ann, bob) = (get("ann").await, get("bob").await);
    assert_eq!((ann.1, bob.1), (first_ms, OPENS_MS));
    let eve = token(&shop, "eve", item, json!({})).await;
    assert_eq!(eve.is_refused(403, "not_eligible", None).json()["reason"], "blocked");
    shop.clock.set(first_ms);
    let early = claim(&shop, item, &bob.0).await;
    assert_eq!(early.is_refused(403, "not_started", None).json()["opens_at"], OPENS_MS);
    assert_eq!(asked(&gate), 0);
    claim(&shop, item, &ann.0).await.is(202);
    shop.clock.set(OPENS_MS);
    claim(&shop, item, &bob.0).await.is(202);

    let (_, only) = stage(&shop, json!({"members_only": true})).await;
    let shown = shop.get(&format!("/items/{only}")).send().await.is(200);
    assert_eq!((&shown["members_from"], &shown["members_only"]), (&Value::Null, &json!(true)));
    let none = token(&shop, "ann", only, json!({})).await;
    assert_eq!(none.is_refused(403, "not_eligible", None).json()["reason"], "members_only");
    // A member of the shop is a member of every sale.
    list("members", String::new()).json(json!({"users": ["ann"]})).send().await.is(200);
    token(&shop, "ann", only, json!({})).await.is(200);
    let lists = shop.admin(Method::GET, "/admin/lists").send().await.is(200);
    assert_eq!(lists["lists"].as_array().unwrap().len(), 3, "{lists}");
    let page = shop.admin(Method::GET, &format!("/admin/lists/members{of}&limit=1"));
    let page = page.send().await.is(200);
    assert_eq!((&page["users"], &page["next"]), (&json!(["ann"]), &json!("ann")));
    let gone = shop.admin(Method::POST, "/admin/lists/blocked/remove");
    assert_eq!(gone.json(json!({"users": ["eve", "x"]})).send().await.is(200)["changed"], 1);
    token(&shop, "eve", item, json!({})).await.is(200);
    let cleared = shop.admin(Method::DELETE, &format!("/admin/lists/members{of}")).send().await;
    assert_eq!(cleared.is(200)["changed"], 2);
}

async fn text(shop: &Shop, path: &str, body: &str) -> crate::shop::Heard {
    shop.admin(Method::POST, path).text(body).send().await
}

/// By a library that others wrote, so that what we call ALTCHA is what they do.
#[tokio::test]
async fn altchas_own_library_solves_our_challenges() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("clients/python/bin/python");
    assert!(python.exists(), "{} is missing: `cargo xtask test` installs it", python.display());
    let shop = Shop::open().await;
    let (_, item) = stage(&shop, json!({"challenge": "pow", "difficulty": 13})).await;
    let told = challenge(&shop, "用户1", item).await;
    let solver = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python/solve.py");
    let mut solving = Command::new(python)
        .arg(solver)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    solving.stdin.take().unwrap().write_all(told.to_string().as_bytes()).unwrap();
    let said = solving.wait_with_output().unwrap();
    let altcha = String::from_utf8(said.stdout).unwrap();
    token(&shop, "用户1", item, json!({"altcha": altcha.trim()})).await.is(200);
}
