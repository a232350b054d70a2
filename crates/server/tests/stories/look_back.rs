//! Somebody looks back: what was promised in a sale that is over is read from the claim log and compared with
//! the books, from the command line, whichever log it is and whatever was killed meanwhile.

use std::{collections::BTreeSet, time::Duration};

use client::NewSale;
use serde_json::Value;

use crate::{
    commands::{Said, seckill},
    failures::{POISON_MYSQL, POISON_SQLITE, dead_letter_becomes},
    fixtures::{Deployment, Profile, Sale, becomes},
};

/// What `seckill claims` says of the last hour.
fn claims(sale: &Sale, more: &[&str]) -> Said {
    seckill(&sale.deployment, &[&["claims", "--since", "1h", "--format", "json"], more].concat())
}

fn lines(said: &str) -> Vec<Value> {
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(claims: &[Value]) -> BTreeSet<String> {
    claims.iter().map(|claim| claim["order_no"].as_str().unwrap().to_owned()).collect()
}

async fn the_claims_of_a_finished_sale_are_read_back_and_compared_with_the_books(profile: Profile) {
    let deployment = Deployment::new(profile)
        .env("SECKILL_ORDERS_RETRY_LADDER_MS", "100")
        .env("SECKILL_ORDERS_RETRY_POLL_MS", 50);
    let mut sale = deployment.open_sale(NewSale::of(60)).await;
    sale.deployment.change_ledger(POISON_SQLITE, POISON_MYSQL);
    let users = (0..59).map(|n| format!("u{n}")).chain(["poison1".into()]);
    let buyers = sale.tokens(users).await;
    sale.history = sale.crowd(16).rush(buyers).await.history;
    assert_eq!(sale.history.admitted(), 60);
    let orders = sale.observe().await.orders;
    assert_eq!(orders.len(), 59);

    let all = lines(&claims(&sale, &["--compare"]).done());
    assert_eq!((all.len(), numbers(&all).len()), (60, 60), "each once");
    for claim in &all {
        let poisoned = claim["user_id"] == "poison1";
        if poisoned {
            dead_letter_becomes(&sale, claim["order_no"].as_str().unwrap(), "dead").await;
        }
        let states: &[&str] = if poisoned { &["retrying", "dead"] } else { &["unpaid"] };
        assert!(states.contains(&claim["state"].as_str().unwrap()), "{claim}");
        assert_eq!((&claim["item_id"], &claim["waits"]), (&sale.item.into(), &false.into()));
    }
    let of_one = lines(&claims(&sale, &["--user", "u3"]).done());
    assert_eq!((of_one.len(), &of_one[0]["state"]), (1, &Value::Null), "{of_one:?}");
    let item = sale.item.to_string();
    assert_eq!(lines(&claims(&sale, &["--item", &item]).done()).len(), 60);
    assert_eq!(lines(&claims(&sale, &["--item", "999999"]).done()).len(), 0);
    assert_eq!(lines(&claims(&sale, &["--until", "30m"]).done()).len(), 0);
    seckill(&sale.deployment, &["claims", "--since", "1h", "--until", "2h"])
        .refused("--until must be later than --since");
    let table = seckill(&sale.deployment, &["claims", "--since", "1h", "--format", "csv"]).done();
    assert_eq!(table.lines().count(), 61);
    assert!(table.starts_with("order_no,user_id,item_id,"), "{table}");

    // Somebody takes an order out of the books by hand.
    let lost = orders[17].order_no.to_string();
    let delete = format!("DELETE FROM tb_seckill_order WHERE order_no = '{lost}'");
    sale.deployment.change_ledger(&delete, &delete);
    let told = lines(&claims(&sale, &["--compare"]).found_a_difference());
    let missing: Vec<&Value> = told.iter().filter(|claim| claim["state"] == "missing").collect();
    assert_eq!((told.len(), missing.len()), (60, 1));
    assert_eq!(missing[0]["order_no"], lost.as_str());

    // Who looked is on record.
    let path = "/api/v1/admin/audit?action=claims.search";
    let audit: Value = sale.admin().read(path).await.unwrap();
    let of_u3 = |entry: &Value| entry["detail"]["user_id"] == "u3";
    assert!(audit["entries"].as_array().unwrap().iter().any(of_u3), "{audit}");
}

async fn kills_lose_none_of_them_and_show_none_twice(profile: Profile) {
    const ROUNDS: usize = 4;
    const BUYERS: usize = 200;
    let units = (ROUNDS * BUYERS) as i64;
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(units)).await;
    let everybody = sale.tokens((0..ROUNDS * BUYERS).map(|n| format!("u{n}"))).await;
    for buyers in everybody.chunks(BUYERS) {
        let (crowd, buyers) = (sale.crowd(16), buyers.to_vec());
        let rush = tokio::spawn(async move { crowd.rush(buyers).await });
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..200))).await;
        sale.kill();
        sale.history.claims.extend(rush.await.unwrap().history.claims);
        sale.start().await;
    }
    let observed = sale.observe().await;
    let orders: BTreeSet<String> =
        observed.orders.iter().map(|order| order.order_no.to_string()).collect();
    let told = lines(&claims(&sale, &["--compare"]).done());
    assert_eq!(told.len(), numbers(&told).len(), "none twice");
    assert_eq!(numbers(&told), orders, "what is in the books, and nothing else");
    sale.must_hold().await;
}

async fn what_is_too_old_is_not_read_back(profile: Profile) {
    let deployment = Deployment::new(profile).env("SECKILL_LOOK_BACK_KEEP_MS", 1);
    let mut sale = deployment.open_sale(NewSale::of(20)).await;
    assert_eq!(sale.buy_the_rest("u", 25).await, 20);
    sale.settle().await;
    becomes("nothing is kept", async || claims(&sale, &[]).done().is_empty()).await;
    sale.must_hold().await;
}

crate::in_every_profile! {
    the_claims_of_a_finished_sale_are_read_back_and_compared_with_the_books,
    kills_lose_none_of_them_and_show_none_twice,
    what_is_too_old_is_not_read_back,
}
