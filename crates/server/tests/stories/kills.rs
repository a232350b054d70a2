//! `kill -9`, and what a buyer still has afterwards.

use std::time::Duration;

use checker::Answer;
use client::NewSale;
use serde_json::{Value, json};

use crate::fixtures::{Deployment, Profile, until};

async fn thirty_kills_under_load_lose_nothing(profile: Profile) {
    const ROUNDS: usize = 30;
    const BUYERS_PER_ROUND: usize = 400;
    // More units than the rounds can sell, so that every round has claims to lose.
    const UNITS: i64 = (ROUNDS * BUYERS_PER_ROUND) as i64 + 50;
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(UNITS)).await;
    let everybody = sale.tokens((0..ROUNDS * BUYERS_PER_ROUND).map(|n| format!("u{n}"))).await;
    let mut unknown = Vec::new();
    for (round, buyers) in everybody.chunks(BUYERS_PER_ROUND).enumerate() {
        let mut crowd = sale.crowd(16);
        crowd.keys = true;
        // Those whose answer was lost in the round before ask again with the same key.
        let mut all: Vec<_> = std::mem::take(&mut unknown);
        all.extend(buyers.to_vec());
        let rush = tokio::spawn({
            let all = all.clone();
            async move { crowd.rush(all).await }
        });
        let pause = Duration::from_millis(fastrand::u64(5..300));
        tokio::time::sleep(pause).await;
        sale.kill();
        let report = rush.await.unwrap();
        for (told, buyer) in report.history.claims.iter().zip(reorder(&report.history.claims, &all))
        {
            if told.answer == Answer::Unknown {
                unknown.push(buyer);
            }
        }
        sale.history.claims.extend(report.history.claims);
        sale.start().await;
        let seen =
            sale.history.claims.iter().filter(|t| matches!(t.answer, Answer::Admitted { .. }));
        println!("round {round}: killed after {pause:?}, {} claims admitted so far", seen.count());
    }
    // The rest is bought to the last unit, by those who never got an answer and by newcomers.
    let mut crowd = sale.crowd(16);
    crowd.keys = true;
    let report = crowd.rush(unknown).await;
    sale.history.claims.extend(report.history.claims);
    let left = sale.observe().await.items[0].stock as usize;
    assert_eq!(sale.buy_the_rest("late", left + 20).await, left);
    let mut observed = sale.observe().await;
    observed.items[0].demand_exceeds_stock = true;
    let violations = checker::check(&sale.history, &observed);
    assert!(violations.is_empty(), "{violations:#?}");
    assert_eq!(observed.items[0].stock, 0);
    sale.must_hold().await;
}

/// The buyers of these answers, in the order of the answers.
fn reorder(told: &[checker::AnsweredClaim], buyers: &[(String, String)]) -> Vec<(String, String)> {
    let tokens: std::collections::HashMap<_, _> = buyers.iter().cloned().collect();
    told.iter().map(|told| (told.user.clone(), tokens[&told.user].clone())).collect()
}

async fn a_restart_with_twenty_thousand_claims_in_the_log_resumes_and_drains(profile: Profile) {
    const CLAIMS: usize = 20_000;
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(CLAIMS as i64)).await;
    let buyers = sale.tokens((0..CLAIMS).map(|n| format!("u{n}"))).await;
    {
        // While somebody holds the ledger's lock nothing can leave the log.
        let _blocked = sale.deployment.block_ledger();
        let report = sale.crowd(64).rush(buyers).await;
        assert_eq!(report.history.admitted(), CLAIMS);
        sale.history = report.history;
        sale.kill();
    }
    sale.start().await;
    let observed = sale.observe().await;
    assert_eq!(observed.orders.len(), CLAIMS, "drained by itself");
    sale.must_hold().await;
    // A start never resets stock or orders.
    sale.stop().await;
    sale.start().await;
    assert_eq!(sale.observe().await.items[0].stock, 0);
    sale.must_hold().await;
}

async fn the_same_key_gets_the_same_answer_after_a_kill(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(5)).await;
    let mut buyer = sale.buyer("u1002").await;
    let first = buyer.claim_with(Some("my-key"), r#"{"quantity":1}"#).await;
    assert_eq!(first.status, 202);
    sale.kill();
    sale.start().await;
    buyer.api = client::Api::new(sale.server().address, None);
    let again = buyer.claim_with(Some("my-key"), r#"{"quantity":1}"#).await;
    let part =
        |response: &client::Response, field: &str| -> Value { response.json()[field].clone() };
    assert_eq!(again.status, 202);
    for field in ["order_no", "receipt"] {
        assert_eq!(part(&again, field), part(&first, field));
    }
    let other = buyer.claim_with(Some("other-key"), r#"{"quantity":1}"#).await;
    assert_eq!((other.status, other.code().as_deref()), (409, Some("already_bought")));
    assert_eq!(part(&other, "order_no"), part(&first, "order_no"));
    sale.must_hold().await;
}

async fn warming_while_claims_are_in_flight_sells_no_unit_twice(profile: Profile) {
    const UNITS: i64 = 500;
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(UNITS)).await;
    let buyers = sale.tokens((0..3_000).map(|n| format!("u{n}"))).await;
    let crowd = sale.crowd(32);
    let mut rush = tokio::spawn(async move { crowd.rush(buyers).await });
    let mut admin = sale.admin();
    let mut warmed = 0;
    let report = loop {
        tokio::select! {
            report = &mut rush => break report.unwrap(),
            // Warming again is a no-op; loading anew replaces what the gate holds.
            anew = async {
                let anew = warmed % 3 != 0;
                let path = format!("/api/v1/admin/activities/{}/warm?anew={anew}", sale.activity);
                admin.post(&path, &serde_json::json!({})).await.unwrap()
            } => {
                assert!(anew.status < 300, "{:?}", anew.json());
                warmed += 1;
            }
        }
    };
    println!("warmed {warmed} times during the rush");
    sale.history = report.history;
    sale.buy_the_rest("late", UNITS as usize).await;
    let observed = sale.observe().await;
    let live = observed.orders.iter().filter(|order| order.status.is_live()).count();
    assert_eq!(live, UNITS as usize, "all units sold, none twice");
    let void = observed.orders.len() - live;
    assert_eq!(void, 0, "a warm that counts claims in flight never promises a unit twice");
    sale.must_hold().await;
}

async fn a_stock_change_that_a_kill_cuts_off_is_seen_and_undone(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(20)).await;
    // The gate takes the units away, and the ledger cannot be written.
    let blocked = sale.deployment.block_ledger();
    let stock = format!("/api/v1/admin/items/{}/stock", sale.item);
    let mut operator = sale.admin();
    let asked = tokio::spawn(async move { operator.post(&stock, &json!({"delta": -7})).await });
    let seen = until(
        "the gate hears of it",
        async || sale.sides().await,
        |seen| seen["gate"]["left"] == 13,
    )
    .await;
    let sides = (&seen["item"]["stock"], &seen["gate"]["adjusting_units"]);
    assert_eq!(sides, (&json!(20), &json!(7)));
    sale.kill();
    drop(blocked);
    if let Ok(told) = asked.await.unwrap() {
        assert_eq!(told.status, 503, "nobody was told that it was done");
    }
    sale.start().await;
    let report = client::reconcile(&mut sale.admin(), "").await.unwrap();
    let row = &report["items"][0];
    let figures = ["gate_left", "adjusting", "ledger_stock"].map(|name| row[name].as_i64());
    assert_eq!((&row["verdict"], &report["differences"]), (&json!("agree"), &json!(0)), "{row}");
    let bought = sale.buy_the_rest("u", 25).await;
    match profile {
        Profile::Solo => {
            // Whoever owns the data undoes it before anybody is let in.
            assert_eq!((figures, bought), ([Some(20), Some(0), Some(20)], 20), "{row}");
            let audit: Value = sale.admin().read("/api/v1/admin/audit").await.unwrap();
            assert!(audit.to_string().contains("stock.undo"), "{audit}");
            sale.must_hold().await;
        }
        // Another instance might still be at it: it is shown, and undone when it is a minute old.
        Profile::Cluster => {
            assert_eq!((figures, bought), ([Some(13), Some(7), Some(20)], 13), "{row}");
        }
    }
}

crate::in_every_profile! {
    a_stock_change_that_a_kill_cuts_off_is_seen_and_undone,
    thirty_kills_under_load_lose_nothing,
    a_restart_with_twenty_thousand_claims_in_the_log_resumes_and_drains,
    the_same_key_gets_the_same_answer_after_a_kill,
    warming_while_claims_are_in_flight_sells_no_unit_twice,
}
