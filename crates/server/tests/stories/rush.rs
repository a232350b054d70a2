//! The opening instant.

use std::ops::Range;

use checker::Answer;
use client::{Crowd, NewSale, sale_tokens};

use crate::fixtures::{Deployment, PACES_S, Profile, Sale, now_ms};

/// As many sockets as this process and a server can have open at once, up to this many. Where the
/// machine gives fewer, several buyers send their claims over the same one, still all at once.
fn sockets(wanted: usize) -> usize {
    /// What the other tests of this process have open.
    const OTHER_FILES: u64 = 1_000;
    /// This story runs in both profiles side by side.
    const PROFILES: u64 = 2;
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(1_024);
    wanted.min(((files.saturating_sub(OTHER_FILES) / PROFILES) as usize).max(100))
}

async fn twenty_thousand_buyers_for_a_thousand_units(profile: Profile) {
    const BUYERS: usize = 20_000;
    const UNITS: i64 = 1_000;
    let sockets = sockets(BUYERS);
    // All sockets are open before the first one speaks, which on a busy machine takes longer than a
    // server should wait for a head.
    let deployment = Deployment::new(profile)
        .env("SECKILL_HTTP_CONNECTIONS_MAX", BUYERS + 100)
        .env("SECKILL_HTTP_HEADER_TIMEOUT_MS", 60_000);
    let mut sale = deployment.open_sale(NewSale::of(UNITS)).await;
    let buyers = sale.tokens((0..BUYERS).map(|n| format!("u{n}"))).await;
    let crowd = Crowd { at_once: true, ..sale.crowd(sockets) };
    let report = crowd.rush(buyers).await;
    let unexpected: Vec<_> = report
        .history
        .claims
        .iter()
        .filter(|claim| !matches!(claim.answer, Answer::Admitted { .. } | Answer::SoldOut))
        .take(3)
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    assert_eq!(report.history.admitted(), UNITS as usize);
    sale.history = report.history;

    let observed = sale.observe().await;
    assert_eq!(observed.orders.len(), UNITS as usize);
    let item = &observed.items[0];
    assert_eq!((item.stock, item.gate_left), (0, Some(0)));
    let log = &item.stock_log;
    assert_eq!(log.len(), UNITS as usize);
    assert_eq!((log[0].before_stock, log[log.len() - 1].after_stock), (UNITS, 0));
    sale.must_hold().await;
}

async fn one_buyer_who_claims_a_thousand_times_owns_one_unit(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(100)).await;
    let token = sale.tokens(["greedy".into()]).await.remove(0);
    let report = sale.crowd(1_000).rush(vec![token; 1_000]).await;
    assert_eq!(report.history.admitted(), 1);
    // Those within what one buyer may ask hear of their order, the others that it is too often.
    let told = report.history.count(|answer| matches!(answer, Answer::AlreadyBought { .. }));
    let limited =
        |answer: &Answer| matches!(answer, Answer::Refused(code) if code == "rate_limited");
    assert!(told > 0, "{:?}", report.history);
    assert_eq!(told + report.history.count(limited), 999);
    sale.history = report.history;
    assert_eq!(sale.observe().await.orders.len(), 1);
    sale.must_hold().await;
}

async fn the_window_is_kept_to_the_instant(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    for pace_s in PACES_S {
        let opens_ms = now_ms() + pace_s * 1_000;
        let closes_ms = opens_ms + pace_s * 300;
        sale.instead(NewSale { opens_ms, closes_ms, ..NewSale::of(100_000) }).await;
        if hammered_across_the_window(&sale, opens_ms..closes_ms).await {
            return sale.must_hold().await;
        }
    }
    panic!("this machine does not send a claim in {PACES_S:?} s");
}

/// Every admission must lie in the window. False if this machine was too slow to try.
async fn hammered_across_the_window(sale: &Sale, window: Range<i64>) -> bool {
    let mut early = sale.buyer("early").await;
    let mut late = sale.buyer("late").await;
    let answer = early.claim_with(None, r#"{"quantity":1}"#).await;
    if now_ms() >= window.start {
        return false;
    }
    assert_eq!((answer.status, answer.code().as_deref()), (403, Some("not_started")));
    assert_eq!(answer.json()["opens_at"], window.start);

    let login = sale.deployment.login();
    for round in 0.. {
        let users = (0..20).map(|n| format!("w{round}-{n}")).collect();
        // No token is given out any more when the sale is over.
        let tokens = sale_tokens(sale.server().address, &login, sale.item, users).await;
        let Ok(tokens) = tokens else { break };
        sale.crowd(20).rush(tokens).await;
    }
    assert!(now_ms() >= window.end, "over before its time");
    let answer = late.claim_with(None, r#"{"quantity":1}"#).await;
    assert_eq!((answer.status, answer.code().as_deref()), (403, Some("ended")));
    let observed = sale.observe().await;
    // The number is made in the lane, a moment before the gate looks at its clock.
    const MOMENT_MS: i64 = 100;
    for order in &observed.orders {
        let made = order.order_no.made_ms();
        let numbered = window.start - MOMENT_MS..window.end;
        assert!(numbered.contains(&made), "{made} is outside the window");
    }
    !observed.orders.is_empty()
}

crate::in_every_profile! {
    twenty_thousand_buyers_for_a_thousand_units,
    one_buyer_who_claims_a_thousand_times_owns_one_unit,
    the_window_is_kept_to_the_instant,
}
