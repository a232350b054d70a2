//! The door of a whole deployment: what does not pass it never reaches the gate, at no instance, and what one
//! instance knows of a buyer the others know, too.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use client::{Api, NewSale, Response};
use sale::{ItemId, SaleToken, SigningKeys, solve_challenge};
use serde_json::{Value, json};

use crate::fixtures::{Deployment, Profile, Sale, becomes, now_ms};

/// A challenge that is solved at once can be used for this long.
const CHALLENGE_TTL_MS: i64 = 20_000;

/// One more activity with this door, open and at the gate; its item.
async fn open_with(sale: &Sale, door: Value) -> i64 {
    let mut admin = sale.admin();
    let plan = json!({"name": "with a door", "opens_at": now_ms() - 1_000, "door": door,
        "closes_at": now_ms() + 3_600_000, "items": [{"name": "Phone", "price": 1, "stock": 5}]});
    let made: Value = admin.write("/api/v1/admin/activities", &plan).await.unwrap();
    for verb in ["publish", "warm"] {
        let path = format!("/api/v1/admin/activities/{}/{verb}", made["id"]);
        let _: Value = admin.write(&path, &json!({})).await.unwrap();
    }
    made["items"][0]["id"].as_i64().unwrap()
}

/// Buyers who go to all the instances in turn.
struct Door<'s> {
    sale: &'s Sale,
    turn: std::cell::Cell<usize>,
}

impl Door<'_> {
    fn of(sale: &Sale) -> Door<'_> {
        Door { sale, turn: Default::default() }
    }

    fn next(&self) -> usize {
        self.turn.replace(self.turn.get() + 1)
    }

    async fn ask(&self, place: usize, user: &str, path: &str, body: &Value) -> Response {
        let addresses = self.sale.addresses();
        let address = addresses[place % addresses.len()];
        let jwt = self.sale.deployment.login().token(&mut Api::new(address, None), user).await;
        Api::new(address, Some(&jwt.unwrap())).post(path, body).await.unwrap()
    }

    async fn challenge(&self, user: &str, item: i64) -> Value {
        let path = format!("/api/v1/items/{item}/challenge");
        let given = self.ask(self.next(), user, &path, &json!({})).await;
        assert_eq!(given.status, 200, "{}", given.json());
        given.json()
    }

    async fn token_at(&self, place: usize, user: &str, item: i64, altcha: &str) -> Response {
        let body = if altcha.is_empty() { json!({}) } else { json!({"altcha": altcha}) };
        self.ask(place, user, &format!("/api/v1/items/{item}/token"), &body).await
    }

    async fn token(&self, user: &str, item: i64, altcha: &str) -> Response {
        self.token_at(self.next(), user, item, altcha).await
    }

    /// On the fast path, and by the router.
    async fn claim(&self, item: i64, token: Option<&str>) -> [Response; 2] {
        let addresses = self.sale.addresses();
        let mut api = Api::new(addresses[self.next() % addresses.len()], None);
        let path = format!("/api/v1/items/{item}/claims");
        let mut headers: Vec<(&str, &str)> =
            token.map(|t| ("x-sale-token", t)).into_iter().collect();
        let fast = api.send("POST", &path, &headers, br#"{"quantity":1}"#).await.unwrap();
        headers.push(("connection", "keep-alive, x"));
        [fast, api.send("POST", &path, &headers, br#"{"quantity":1}"#).await.unwrap()]
    }
}

fn solved(challenge: &Value) -> String {
    solve_challenge(&serde_json::from_value(challenge.clone()).unwrap()).unwrap()
}

/// Claims that came as far as the gate, at all instances.
async fn at_the_gate(sale: &Sale) -> u64 {
    let mut claims = 0;
    for address in sale.addresses() {
        let told = Api::new(address, None).get("/metrics").await.unwrap().body;
        let text = String::from_utf8(told).unwrap();
        let count = |line: &str| line.strip_prefix("seckill_claim_seconds_count ")?.parse().ok();
        claims += text.lines().find_map(count).unwrap_or(0_u64);
    }
    claims
}

async fn nothing_without_a_good_token_or_challenge_reaches_the_gate(profile: Profile) {
    let deployment =
        Deployment::new(profile).env("SECKILL_DOOR_CHALLENGE_TTL_MS", CHALLENGE_TTL_MS);
    let sale = deployment.open_sale(NewSale::of(1)).await;
    let pow = json!({"challenge": "pow", "difficulty": 12});
    let (item, other) = (open_with(&sale, pow.clone()).await, open_with(&sale, pow).await);
    let door = Door::of(&sale);
    let old = door.challenge("ann", item).await;

    // Challenges: none, forged, foreign, replayed, and one that is over.
    let anns = door.challenge("ann", item).await;
    let mut easier = anns.clone();
    easier["parameters"]["keyPrefix"] = json!("0");
    for (user, at, altcha, reason) in [
        ("ann", item, String::new(), "missing"),
        ("ann", item, "x".into(), "unreadable"),
        ("ann", item, solved(&easier), "foreign"),
        ("bob", item, solved(&anns), "foreign"),
        ("ann", other, solved(&anns), "foreign"),
    ] {
        let refused = door.token(user, at, &altcha).await;
        assert_eq!((refused.status, refused.json()["reason"].clone()), (403, json!(reason)));
    }
    let altcha = solved(&anns);
    let given = door.token("ann", item, &altcha).await;
    assert_eq!(given.status, 200, "{}", given.json());
    let good = given.json()["token"].as_str().unwrap().to_owned();
    let replayed = door.token("ann", item, &altcha).await;
    assert_eq!((replayed.status, replayed.json()["reason"].clone()), (403, json!("spent")));
    let altcha = solved(&old);
    // Its own time is in whole seconds, and a part of one counts.
    let rest_ms = old["expires_at"].as_i64().unwrap() - now_ms() + 1_001;
    tokio::time::sleep(Duration::from_millis(rest_ms.max(0) as u64)).await;
    let expired = door.token("ann", item, &altcha).await;
    assert_eq!((expired.status, expired.json()["reason"].clone()), (403, json!("expired")));

    // Tokens: none, forged, of a stranger's key, expired, of another item.
    let sign = |expires_ms, keys: &SigningKeys| {
        let user = "ann".parse().unwrap();
        SaleToken { user, item: ItemId(item), expires_ms, from_ms: None }.sign(keys)
    };
    let strangers = SigningKeys::from_secret(b"a secret of somebody else").unwrap();
    let mut changed = good.clone();
    changed.replace_range(4..5, if &good[4..5] == "A" { "B" } else { "A" });
    let (forged, expired) =
        (sign(now_ms() + 60_000, &strangers), sign(now_ms() - 1, &sale.deployment.keys()));
    for (at, token) in [
        (item, None),
        (item, Some("")),
        (item, Some("x")),
        (item, Some(changed.as_str())),
        (item, Some(forged.as_str())),
        (item, Some(expired.as_str())),
        (other, Some(good.as_str())),
    ] {
        for refused in door.claim(at, token).await {
            let code = refused.code();
            assert_eq!((refused.status, code.as_deref()), (403, Some("bad_token")), "{token:?}");
        }
    }
    assert_eq!(at_the_gate(&sale).await, 0, "and the gate has not heard of any of them");

    // The good one counts, and used again it is its buyer who asks again: for the same order.
    let [first, again] = door.claim(item, Some(&good)).await;
    assert_eq!((first.status, again.status), (202, 409), "{}", again.json());
    assert_eq!(first.json()["order_no"], again.json()["order_no"]);
    let counted = at_the_gate(&sale).await;
    assert!((1..=2).contains(&counted), "{counted}");
}

async fn what_one_instance_knows_of_challenges_the_others_know(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let item = open_with(&sale, json!({"challenge": "pow", "difficulty": 12})).await;
    let door = Door::of(&sale);
    // Spent here, spent there.
    let altcha = solved(&door.challenge("ann", item).await);
    assert_eq!(door.token_at(0, "ann", item, &altcha).await.status, 200);
    let replayed = door.token_at(1, "ann", item, &altcha).await;
    assert_eq!(replayed.json()["reason"], "spent", "{}", replayed.json());
    // Whoever guesses here has guessed there.
    for _ in 0..5 {
        let refused = door.token_at(0, "eve", item, "nonsense").await;
        assert_eq!((refused.status, refused.json()["reason"].clone()), (403, json!("unreadable")));
    }
    let path = format!("/api/v1/items/{item}/challenge");
    for place in [0, 1] {
        becomes("who guesses has to wait, everywhere", async || {
            let told = door.ask(place, "eve", &path, &json!({})).await;
            told.status == 429 && told.json()["reason"] == "wrong_answers"
        })
        .await;
    }
    assert_eq!(door.ask(1, "bob", &path, &json!({})).await.status, 200, "nobody else has to");
}

async fn who_asks_too_often_is_counted_by_all_instances_together(profile: Profile) {
    let deployment = Deployment::new(profile).env("SECKILL_LIMITS_TOKENS_PER_USER", "1/m burst 8");
    let sale = deployment.open_sale(NewSale::of(1)).await;
    let door = Door::of(&sale);
    let (began, mut passed, mut pauses) = (Instant::now(), 0, HashSet::new());
    for _ in 0..40 {
        let told = door.token("eve", sale.item, "").await;
        if told.status == 200 {
            passed += 1;
            continue;
        }
        assert_eq!((told.status, told.code().as_deref()), (429, Some("rate_limited")));
        for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
            assert!(told.header(name).is_some(), "no {name}");
        }
        pauses.insert(told.json()["retry_after_ms"].as_u64().unwrap());
    }
    // A quarter of a burst goes at each instance before it asks the others about somebody; alone they would
    // have let a whole one through each.
    let later = began.elapsed().as_secs() / 60 + 1;
    let most = match profile {
        Profile::Solo => 8,
        Profile::Cluster => 8 + 2 * 2,
    };
    assert!((8..=most + later).contains(&passed), "{passed} passed in {:?}", began.elapsed());
    assert!(pauses.len() > 1, "not all come back at once: {pauses:?}");
    assert_eq!(door.token("bob", sale.item, "").await.status, 200, "another buyer");
}

crate::in_every_profile! {
    nothing_without_a_good_token_or_challenge_reaches_the_gate,
    what_one_instance_knows_of_challenges_the_others_know,
    who_asks_too_often_is_counted_by_all_instances_together,
}
