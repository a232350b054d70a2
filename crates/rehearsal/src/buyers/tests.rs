//! What a buyer does after each answer, one answer at a time.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// One buyer of these habits.
fn crowd_of_one(manner: Manner, ending: Ending, comes_back: bool) -> Buyers {
    let now = Instant::now();
    let rules = Rules {
        think: SECOND,
        pay_within: 5 * SECOND,
        cashier: true,
        claims_until: now + 30 * SECOND,
        orders_until: now + 60 * SECOND,
    };
    let person = Person { user: "ann".into(), item: 1, ..Person::default() };
    let character = Character { at: Duration::ZERO, item: 0, manner, ending, comes_back };
    Buyers::new(vec![person], vec![character], rules)
}

fn plain() -> Buyers {
    crowd_of_one(Manner::Plain, Ending::Pays, false)
}

impl Buyers {
    /// Answer an task, and see what follows and after which time.
    fn answer(&self, task: &Task, status: u16, body: &str) -> Vec<(Duration, Task)> {
        let now = Instant::now();
        let timing = Timing { due: now, sent: now, done: now, kept_waiting: false };
        let response = (status > 0).then(|| Response::of(status, body));
        let next = self.heard(task.clone(), response, timing);
        let after = |at: Instant| at.saturating_duration_since(now);
        next.into_iter().map(|(at, task)| (after(at), task)).collect()
    }

    fn first(&self) -> Task {
        self.arrival(0, Instant::now()).1
    }

    fn request(&self, task: &Task) -> String {
        let mut out = Vec::new();
        self.write(task, "127.0.0.1:80".parse().unwrap(), &mut out);
        String::from_utf8(out).unwrap()
    }
}

const NO: &str = "SK0381966054408192001";

fn admitted() -> String {
    format!(r#"{{"order_no":"{NO}","eta_ms":700}}"#)
}

fn order(status: &str) -> String {
    format!(r#"{{"order_no":"{NO}","status":"{status}"}}"#)
}

#[test]
fn who_is_sent_away_comes_again_when_told_and_with_the_same_key() {
    let buyers = plain();
    let claim = buyers.first();
    let check = |status, body: &str, pause: Duration| {
        let next = buyers.answer(&claim, status, body);
        assert_eq!(next.len(), 1, "{body}");
        assert_eq!(next[0].0, pause, "{body}");
        assert_eq!(buyers.request(&next[0].1), buyers.request(&claim));
    };
    check(403, r#"{"code":"not_started"}"#, NOT_STARTED_AGAIN);
    check(503, r#"{"code":"busy","retry_after_ms":40}"#, Duration::from_millis(40));
    check(429, r#"{"code":"too_hot","retry_after_ms":2000}"#, 2 * SECOND);
    check(502, "bad gateway", COME_AGAIN);
    check(0, "", COME_AGAIN);
    assert!(buyers.request(&claim).contains("idempotency-key: key-ann"));
    assert!(buyers.answer(&claim, 403, r#"{"code":"ended"}"#).is_empty());
    assert_eq!(buyers.count_in(BuyerState::SentAway, None), 1);
    let refusals = &buyers.measurements.lock().refusals;
    assert_eq!(
        refusals.keys().collect::<Vec<_>>(),
        ["502", "busy", "ended", "not_started", "too_hot"]
    );
}

#[test]
fn patience_ends() {
    let mut buyers = plain();
    buyers.rules.claims_until = Instant::now();
    assert!(buyers.answer(&buyers.first(), 503, r#"{"code":"busy"}"#).is_empty());
    assert_eq!(buyers.count_in(BuyerState::SentAway, Some(1)), 1);
}

#[test]
fn sold_out_is_the_end_unless_units_may_come_back() {
    let sold_out = r#"{"code":"sold_out"}"#;
    let buyers = plain();
    assert!(buyers.answer(&buyers.first(), 409, sold_out).is_empty());
    assert_eq!(buyers.count_in(BuyerState::SoldOut, None), 1);
    let patient = crowd_of_one(Manner::Plain, Ending::Pays, true);
    let next = patient.answer(&patient.first(), 409, sold_out);
    assert!(next[0].0 >= 5 * SECOND, "after the first unpaid orders have timed out");
    assert!(patient.answer(&next[0].1, 409, sold_out).is_empty(), "but only once");
}

#[test]
fn a_winner_reads_its_order_thinks_and_pays() {
    let buyers = plain();
    let next = buyers.answer(&buyers.first(), 202, &admitted());
    assert_eq!((next.len(), next[0].0), (1, Duration::from_millis(700)));
    let read = &next[0].1;
    assert!(buyers.request(read).starts_with(&format!("GET /api/v1/orders/{NO} ")));
    assert_eq!(buyers.answer(read, 200, &order("queued"))[0].0, READ_AGAIN);
    assert_eq!(buyers.answer(read, 0, "").len(), 1, "a broken connection says nothing");
    let open = &buyers.answer(read, 200, &order("unpaid"))[0];
    assert_eq!(open.0, SECOND);
    let pay = &buyers.answer(&open.1, 200, r#"{"payment_url":"/cashier/T1?token=ab"}"#)[0].1;
    assert!(buyers.request(pay).starts_with("POST /api/v1/cashier/T1?token=ab "));
    assert_eq!(buyers.answer(pay, 503, "{}").len(), 1, "pressed again");
    // The first try was paid, only its answer was lost.
    let read = &buyers.answer(pay, 409, "{}")[0].1;
    assert_eq!(buyers.answer(read, 200, &order("unpaid")).len(), 1);
    assert!(buyers.answer(read, 200, &order("paid")).is_empty());
    let counts = buyers.measurements.counts();
    assert_eq!((counts.admitted, counts.ordered, counts.paid), (1, 1, 1));
}

#[test]
fn others_cancel_abandon_or_come_too_late() {
    let ends = |ending, cashier: bool| {
        let mut buyers = crowd_of_one(Manner::Plain, ending, false);
        buyers.rules.cashier = cashier;
        let read = buyers.answer(&buyers.first(), 202, &admitted()).remove(0).1;
        let next = buyers.answer(&read, 200, &order("unpaid"));
        (buyers, next)
    };
    let (buyers, next) = ends(Ending::Cancels, true);
    assert!(buyers.request(&next[0].1).contains("/cancel "));
    assert!(buyers.answer(&next[0].1, 200, &order("closed")).is_empty());
    assert!(buyers.answer(&next[0].1, 409, "{}").is_empty());
    assert_eq!(
        (buyers.measurements.counts().cancelled, buyers.measurements.counts().missed),
        (1, 1)
    );
    let late = plain();
    let read = late.answer(&late.first(), 202, &admitted()).remove(0).1;
    assert!(late.answer(&read, 200, &order("closed")).is_empty());
    assert_eq!((late.measurements.counts().ordered, late.measurements.counts().missed), (1, 1));
    for (ending, cashier) in [(Ending::Abandons, true), (Ending::Pays, false)] {
        let (buyers, next) = ends(ending, cashier);
        assert!(next.is_empty());
        assert_eq!(buyers.measurements.counts().abandoned, 1);
    }
}

#[test]
fn one_that_repeats_asks_with_the_same_key_and_buys_once() {
    let buyers = crowd_of_one(Manner::Repeats, Ending::Abandons, false);
    let mut claims = vec![buyers.first()];
    let mut reads = 0;
    while let Some(claim) = claims.pop() {
        for (_, task) in buyers.answer(&claim, 202, &admitted()) {
            match task.step {
                Step::Claim(_) => claims.push(task),
                _ => reads += 1,
            }
        }
    }
    let counts = buyers.measurements.counts();
    assert_eq!((counts.claims, counts.admitted, counts.confirmed, reads), (3, 1, 2, 1));
    let claims = &buyers.measurements.lock().claims;
    assert_eq!(claims.len(), 3);
    assert!(claims.iter().all(|claim| claim.key.as_deref() == Some("key-ann")));
}

#[test]
fn a_bot_has_no_key_no_pause_and_one_unit() {
    let buyers = crowd_of_one(Manner::Bot, Ending::Pays, false);
    let claim = buyers.first();
    assert!(!buyers.request(&claim).contains("idempotency-key"));
    let again = buyers.answer(&claim, 429, r#"{"code":"too_hot","retry_after_ms":9000}"#);
    assert!(again[0].0 < SECOND);
    assert_eq!(buyers.answer(&claim, 202, &admitted()).len(), 1);
    let other_claim = format!(r#"{{"code":"already_bought","order_no":"{NO}"}}"#);
    assert!(buyers.answer(&claim, 409, &other_claim).is_empty());
    assert_eq!(buyers.count_in(BuyerState::Admitted, None), 1);
}
