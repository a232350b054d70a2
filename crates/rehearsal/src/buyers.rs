//! The life of a buyer in a rehearsal, one request after the other.
//!
//! **A plain buyer** comes at its instant and claims with a key of its own. *Not started*, *busy* and
//! *too hot* send it away for as long as they say, and it claims again with the same key; so does a
//! broken connection. *Sold out* ends it, unless it comes back when unpaid orders have timed out.
//! Admitted, it looks at its order until the ledger has it, thinks, and then pays at the sandbox's
//! cashier, cancels, or leaves it to time out. **One that repeats** sends the claim again after the
//! answer and must hear the same. **A bot** has several fingers, no keys, and starts before the
//! opening; each finger claims again at once until it hears a final word.
//!
//! Nobody waits for anybody: each answer puts the next errand on the agenda.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU8, Ordering},
    time::{Duration, Instant},
};

use checker::{Answer, AnsweredClaim};
use client::{Response, answer_of, key_of, write_claim, write_request};
use sale::OrderNo;
use serde_json::Value;

use crate::{
    notes::{Notes, Written, micros},
    open_loop::{Script, Timing},
    people::Person,
    plan::{Character, Ending, Manner},
};

/// A bot's parallel claims.
pub(crate) const BOT_FINGERS: usize = 4;
/// How often one that repeats sends its claim again.
const REPEATS: u8 = 2;
const REPEAT_AFTER: Duration = Duration::from_millis(50);
/// If a refusal does not say when to come again.
const COME_AGAIN: Duration = Duration::from_secs(1);
const NOT_STARTED_AGAIN: Duration = Duration::from_millis(20);
/// A claim says when it will be an order; the buyer looks then, but not sooner or later than this.
const FIRST_LOOK_MIN: Duration = Duration::from_millis(100);
const FIRST_LOOK_MAX: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Who comes back does so this long after the first unpaid orders timed out, at most.
const COME_BACK_SPREAD: Duration = Duration::from_secs(2);
const QUANTITY: &str = "{\"quantity\":1}";

/// What holds for everybody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) think: Duration,
    pub(crate) pay_within: Duration,
    /// There is a cashier to pay at.
    pub(crate) cashier: bool,
    /// Nobody claims again after this.
    pub(crate) claims_until: Instant,
    /// Nobody looks after an order after this.
    pub(crate) looks_until: Instant,
}

pub(crate) struct Buyers {
    pub(crate) people: Vec<Person>,
    pub(crate) characters: Vec<Character>,
    /// What became of each: a [`Fate`]. A bot's fingers and repeated claims share one, and win once.
    fates: Vec<AtomicU8>,
    pub(crate) rules: Rules,
    pub(crate) notes: Notes,
}

/// The better one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Still waiting for a final word.
    Open,
    /// Sent away for good, or again and again.
    SentAway,
    SoldOut,
    Won,
}

#[derive(Clone, Debug)]
pub(crate) struct Errand {
    buyer: usize,
    step: Step,
}

#[derive(Clone, Debug)]
enum Step {
    Claim(Claim),
    Look { no: OrderNo, since: Instant, paid: bool },
    OpenPayment { no: OrderNo },
    Pay { no: OrderNo, txn: String },
    Cancel { no: OrderNo },
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    came: Instant,
    repeats: u8,
    may_come_back: bool,
}

type Next = Vec<(Instant, Errand)>;

impl Buyers {
    pub(crate) fn new(people: Vec<Person>, characters: Vec<Character>, rules: Rules) -> Buyers {
        let fates = people.iter().map(|_| AtomicU8::new(Fate::Open as u8)).collect();
        let claims = people.len() * 2;
        Buyers { people, characters, fates, rules, notes: Notes::new(claims) }
    }

    /// The first errand of one buyer.
    pub(crate) fn arrival(&self, buyer: usize, came: Instant) -> (Instant, Errand) {
        let character = &self.characters[buyer];
        let repeats = if character.manner == Manner::Repeats { REPEATS } else { 0 };
        let claim = Claim { came, repeats, may_come_back: character.comes_back };
        (came, Errand { buyer, step: Step::Claim(claim) })
    }

    fn is_bot(&self, buyer: usize) -> bool {
        self.characters[buyer].manner == Manner::Bot
    }

    fn key(&self, buyer: usize) -> Option<String> {
        (!self.is_bot(buyer)).then(|| key_of(&self.people[buyer].user))
    }

    fn heard_claim(
        &self,
        buyer: usize,
        claim: Claim,
        response: Option<Response>,
        timing: Timing,
    ) -> Next {
        let answer = response.as_ref().map_or(Answer::Unknown, answer_of);
        let mut notes = self.notes.open();
        notes.counts.claims += 1;
        let latencies = if self.is_bot(buyer) { &mut notes.bots } else { &mut notes.buyers };
        latencies.record(timing);
        self.tell(&mut notes, buyer, &answer);
        let again = |after: Duration| self.claim_again(buyer, claim, timing.done + after);
        let next = match &answer {
            Answer::Admitted { order_no } => {
                let mut next = self.repeat(buyer, claim, timing.done);
                if self.meets(buyer, Fate::Won) {
                    notes.counts.confirmed += 1;
                } else {
                    notes.counts.admitted += 1;
                    next.push(self.first_look(buyer, *order_no, response.as_ref(), timing.done));
                }
                next
            }
            // A key that was told yes hears it again, so this is a bot whose other finger won.
            Answer::AlreadyBought { .. } => {
                notes.refused("already_bought");
                vec![]
            }
            Answer::SoldOut => {
                notes.refused("sold_out");
                self.sold_out(buyer, claim, timing.done)
            }
            Answer::Refused(code) => {
                notes.refused(code);
                let pause = pause_of(code, response.as_ref());
                pause.map_or_else(Vec::new, again)
            }
            Answer::Unknown => {
                notes.counts.broken += 1;
                again(COME_AGAIN)
            }
        };
        self.note_decision(&mut notes, buyer, claim, (&answer, &next), timing.done);
        next
    }

    /// Refusals bind nobody and are only counted; all else the checker wants to see.
    fn tell(&self, notes: &mut Written, buyer: usize, answer: &Answer) {
        if !matches!(answer, Answer::Refused(_) | Answer::Unknown) {
            let person = &self.people[buyer];
            let key = self.key(buyer);
            let (user, item) = (person.user.clone(), person.item);
            notes.claims.push(AnsweredClaim { user, item, key, answer: answer.clone() });
        }
    }

    fn note_decision(
        &self,
        notes: &mut Written,
        buyer: usize,
        claim: Claim,
        (answer, next): (&Answer, &Next),
        now: Instant,
    ) {
        let goes_on = next.iter().any(|(_, errand)| matches!(errand.step, Step::Claim(_)));
        match answer {
            Answer::Refused(_) | Answer::Unknown if goes_on => return,
            Answer::Refused(_) | Answer::Unknown => drop(self.meets(buyer, Fate::SentAway)),
            Answer::SoldOut if !goes_on => drop(self.meets(buyer, Fate::SoldOut)),
            _ => {}
        }
        // A bot comes before anything can be decided.
        if self.is_bot(buyer) {
            return;
        }
        // Repeats were decided before.
        if claim.repeats == REPEATS || self.characters[buyer].manner != Manner::Repeats {
            notes.decided.saturating_record(micros(now.saturating_duration_since(claim.came)));
        }
    }

    /// True if it had met this fate, or a better one, before.
    fn meets(&self, buyer: usize, fate: Fate) -> bool {
        self.fates[buyer].fetch_max(fate as u8, Ordering::Relaxed) >= fate as u8
    }

    /// How many of those who want this item (or of all) met this fate.
    pub(crate) fn met(&self, fate: Fate, item: Option<i64>) -> u64 {
        let of_item = |person: &Person| item.is_none_or(|item| person.item == item);
        let fates = self.fates.iter().zip(&self.people);
        let met = fates
            .filter(|(met, person)| met.load(Ordering::Relaxed) == fate as u8 && of_item(person));
        met.count() as u64
    }

    /// Patience ends; a bot's has no pause.
    fn claim_again(&self, buyer: usize, claim: Claim, at: Instant) -> Next {
        let at = if self.is_bot(buyer) { Instant::now() } else { at };
        if at > self.rules.claims_until {
            return vec![];
        }
        vec![(at, Errand { buyer, step: Step::Claim(claim) })]
    }

    fn repeat(&self, buyer: usize, claim: Claim, now: Instant) -> Next {
        if claim.repeats == 0 {
            return vec![];
        }
        let again = Claim { repeats: claim.repeats - 1, ..claim };
        self.claim_again(buyer, again, now + REPEAT_AFTER)
    }

    fn sold_out(&self, buyer: usize, claim: Claim, now: Instant) -> Next {
        if claim.repeats > 0 {
            return self.repeat(buyer, claim, now);
        }
        if !claim.may_come_back || self.is_bot(buyer) {
            return vec![];
        }
        // Anybody's own moment, but always the same one.
        let spread = COME_BACK_SPREAD.mul_f64((buyer % 1_000) as f64 / 1_000.0);
        let came = now + self.rules.pay_within + spread;
        self.claim_again(buyer, Claim { came, repeats: 0, may_come_back: false }, came)
    }

    fn first_look(
        &self,
        buyer: usize,
        no: OrderNo,
        response: Option<&Response>,
        now: Instant,
    ) -> (Instant, Errand) {
        let eta = response.and_then(|response| response.json()["eta_ms"].as_u64());
        let eta = eta.map_or(FIRST_LOOK_MIN, Duration::from_millis);
        let step = Step::Look { no, since: now, paid: false };
        (now + eta.clamp(FIRST_LOOK_MIN, FIRST_LOOK_MAX), Errand { buyer, step })
    }

    fn heard_look(
        &self,
        buyer: usize,
        (no, since, paid): (OrderNo, Instant, bool),
        response: Option<Response>,
        now: Instant,
    ) -> Next {
        let order = response.filter(|r| r.status == 200).map(|r| r.json()).unwrap_or_default();
        let took = micros(now.saturating_duration_since(since));
        let status = order["status"].as_str().unwrap_or("queued");
        // Not in the ledger yet, or the money is not.
        if status == "queued" || (paid && status == "unpaid") {
            return self.look_again(buyer, (no, since, paid), now);
        }
        let mut notes = self.notes.open();
        if status != "void" && !paid {
            notes.counts.ordered += 1;
            notes.ordered.saturating_record(took);
        }
        match status {
            "unpaid" => {
                drop(notes);
                return self.decide(buyer, no, now);
            }
            "paid" if paid => {
                notes.counts.paid += 1;
                notes.paid.saturating_record(took);
            }
            "void" => notes.counts.void += 1,
            // Closed before the buyer was done with it.
            _ => notes.counts.missed += 1,
        }
        vec![]
    }

    fn look_again(
        &self,
        buyer: usize,
        (no, since, paid): (OrderNo, Instant, bool),
        now: Instant,
    ) -> Next {
        let at = now + LOOK_AGAIN;
        if at > self.rules.looks_until {
            return vec![];
        }
        vec![(at, Errand { buyer, step: Step::Look { no, since, paid } })]
    }

    fn decide(&self, buyer: usize, no: OrderNo, now: Instant) -> Next {
        let step = match self.characters[buyer].ending {
            Ending::Pays if self.rules.cashier => Step::OpenPayment { no },
            Ending::Cancels => Step::Cancel { no },
            Ending::Pays | Ending::Abandons => {
                self.notes.count(|counts| counts.abandoned += 1);
                return vec![];
            }
        };
        vec![(now + self.rules.think, Errand { buyer, step })]
    }

    /// After a step towards the money, or away from it.
    fn heard_deed(
        &self,
        buyer: usize,
        step: Step,
        response: Option<Response>,
        now: Instant,
    ) -> Next {
        let status = response.as_ref().map_or(0, |response| response.status);
        match status {
            200 => self.deed_done(buyer, step, response, now),
            // Perhaps paid by a try whose answer was lost; otherwise the deadline came first.
            409 if matches!(step, Step::Pay { .. }) => self.deed_done(buyer, step, response, now),
            409 => {
                self.notes.count(|counts| counts.missed += 1);
                vec![]
            }
            0 | 429 | 500.. if now + COME_AGAIN < self.rules.looks_until => {
                vec![(now + COME_AGAIN, Errand { buyer, step })]
            }
            _ => {
                let body = response.map(|r| String::from_utf8_lossy(&r.body).into_owned());
                let what = format!("{step:?} was answered {status} {}", body.unwrap_or_default());
                self.notes.open().unexpected(what);
                vec![]
            }
        }
    }

    fn deed_done(
        &self,
        buyer: usize,
        step: Step,
        response: Option<Response>,
        now: Instant,
    ) -> Next {
        let step = match step {
            Step::OpenPayment { no } => {
                let opened = response.map(|response| response.json()).unwrap_or_default();
                Step::Pay { no, txn: transaction(&opened) }
            }
            Step::Pay { no, .. } => Step::Look { no, since: now, paid: true },
            _ => {
                self.notes.count(|counts| counts.cancelled += 1);
                return vec![];
            }
        };
        vec![(now, Errand { buyer, step })]
    }
}

/// The last part of the cashier's address: the payment's number with its token.
fn transaction(opened: &Value) -> String {
    let url = opened["payment_url"].as_str().unwrap_or_default();
    url.rsplit('/').next().unwrap_or_default().to_owned()
}

/// How long to stay away after a refusal; nothing if it is final.
fn pause_of(code: &str, response: Option<&Response>) -> Option<Duration> {
    let told = || {
        let response = response?;
        if let Some(ms) = response.json()["retry_after_ms"].as_u64() {
            return Some(Duration::from_millis(ms));
        }
        response.header("retry-after")?.parse().ok().map(Duration::from_secs)
    };
    match code {
        "not_started" => Some(NOT_STARTED_AGAIN),
        "busy" | "too_hot" | "rate_limited" => Some(told().unwrap_or(COME_AGAIN)),
        // A proxy or a server in trouble, without a word of ours.
        "500" | "502" | "503" | "504" => Some(COME_AGAIN),
        _ => None,
    }
}

impl Script for Buyers {
    type Errand = Errand;

    fn write(&self, errand: &Errand, address: SocketAddr, out: &mut Vec<u8>) {
        let person = &self.people[errand.buyer];
        let headers =
            [("authorization", person.bearer.as_str()), ("content-type", "application/json")];
        let mut ask = |method: &str, path: String, body: &str| {
            write_request(out, address, (method, &path), &headers, body.as_bytes());
        };
        match &errand.step {
            Step::Claim(_) => {
                let path = format!("/api/v1/items/{}/claims", person.item);
                let key = self.key(errand.buyer);
                write_claim(out, address, &path, (&person.sale_token, key.as_deref()), QUANTITY);
            }
            Step::Look { no, .. } => ask("GET", format!("/api/v1/orders/{no}"), ""),
            Step::OpenPayment { no } => {
                ask("POST", format!("/api/v1/orders/{no}/payments"), r#"{"provider":"sandbox"}"#);
            }
            Step::Pay { txn, .. } => {
                ask("POST", format!("/api/v1/cashier/{txn}"), r#"{"action":"pay"}"#);
            }
            Step::Cancel { no } => ask("POST", format!("/api/v1/orders/{no}/cancel"), ""),
        }
    }

    fn heard(&self, errand: Errand, response: Option<Response>, timing: Timing) -> Next {
        let Errand { buyer, step } = errand;
        match step {
            Step::Claim(claim) => self.heard_claim(buyer, claim, response, timing),
            Step::Look { no, since, paid } => {
                self.heard_look(buyer, (no, since, paid), response, timing.done)
            }
            deed => self.heard_deed(buyer, deed, response, timing.done),
        }
    }
}

#[cfg(test)]
mod tests {
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
            looks_until: now + 60 * SECOND,
        };
        let person = Person { user: "ann".into(), item: 1, ..Person::default() };
        let character = Character { at: Duration::ZERO, item: 0, manner, ending, comes_back };
        Buyers::new(vec![person], vec![character], rules)
    }

    fn plain() -> Buyers {
        crowd_of_one(Manner::Plain, Ending::Pays, false)
    }

    impl Buyers {
        /// Answer an errand, and see what follows and after which time.
        fn answer(&self, errand: &Errand, status: u16, body: &str) -> Vec<(Duration, Errand)> {
            let now = Instant::now();
            let timing = Timing { due: now, sent: now, done: now, kept_waiting: false };
            let response = (status > 0).then(|| Response::of(status, body));
            let next = self.heard(errand.clone(), response, timing);
            let after = |at: Instant| at.saturating_duration_since(now);
            next.into_iter().map(|(at, errand)| (after(at), errand)).collect()
        }

        fn first(&self) -> Errand {
            self.arrival(0, Instant::now()).1
        }

        fn request(&self, errand: &Errand) -> String {
            let mut out = Vec::new();
            self.write(errand, "127.0.0.1:80".parse().unwrap(), &mut out);
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
        assert_eq!(buyers.met(Fate::SentAway, None), 1);
        let refusals = &buyers.notes.open().refusals;
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
        assert_eq!(buyers.met(Fate::SentAway, Some(1)), 1);
    }

    #[test]
    fn sold_out_is_the_end_unless_units_may_come_back() {
        let sold_out = r#"{"code":"sold_out"}"#;
        let buyers = plain();
        assert!(buyers.answer(&buyers.first(), 409, sold_out).is_empty());
        assert_eq!(buyers.met(Fate::SoldOut, None), 1);
        let patient = crowd_of_one(Manner::Plain, Ending::Pays, true);
        let next = patient.answer(&patient.first(), 409, sold_out);
        assert!(next[0].0 >= 5 * SECOND, "after the first unpaid orders have timed out");
        assert!(patient.answer(&next[0].1, 409, sold_out).is_empty(), "but only once");
    }

    #[test]
    fn a_winner_looks_thinks_and_pays() {
        let buyers = plain();
        let next = buyers.answer(&buyers.first(), 202, &admitted());
        assert_eq!((next.len(), next[0].0), (1, Duration::from_millis(700)));
        let look = &next[0].1;
        assert!(buyers.request(look).starts_with(&format!("GET /api/v1/orders/{NO} ")));
        assert_eq!(buyers.answer(look, 200, &order("queued"))[0].0, LOOK_AGAIN);
        assert_eq!(buyers.answer(look, 0, "").len(), 1, "a broken connection says nothing");
        let open = &buyers.answer(look, 200, &order("unpaid"))[0];
        assert_eq!(open.0, SECOND);
        let pay = &buyers.answer(&open.1, 200, r#"{"payment_url":"/cashier/T1?token=ab"}"#)[0].1;
        assert!(buyers.request(pay).starts_with("POST /api/v1/cashier/T1?token=ab "));
        assert_eq!(buyers.answer(pay, 503, "{}").len(), 1, "pressed again");
        // The first try was paid, only its answer was lost.
        let look = &buyers.answer(pay, 409, "{}")[0].1;
        assert_eq!(buyers.answer(look, 200, &order("unpaid")).len(), 1);
        assert!(buyers.answer(look, 200, &order("paid")).is_empty());
        let counts = buyers.notes.counts();
        assert_eq!((counts.admitted, counts.ordered, counts.paid), (1, 1, 1));
    }

    #[test]
    fn others_cancel_abandon_or_come_too_late() {
        let ends = |ending, cashier: bool| {
            let mut buyers = crowd_of_one(Manner::Plain, ending, false);
            buyers.rules.cashier = cashier;
            let look = buyers.answer(&buyers.first(), 202, &admitted()).remove(0).1;
            let next = buyers.answer(&look, 200, &order("unpaid"));
            (buyers, next)
        };
        let (buyers, next) = ends(Ending::Cancels, true);
        assert!(buyers.request(&next[0].1).contains("/cancel "));
        assert!(buyers.answer(&next[0].1, 200, &order("closed")).is_empty());
        assert!(buyers.answer(&next[0].1, 409, "{}").is_empty());
        assert_eq!((buyers.notes.counts().cancelled, buyers.notes.counts().missed), (1, 1));
        let late = plain();
        let look = late.answer(&late.first(), 202, &admitted()).remove(0).1;
        assert!(late.answer(&look, 200, &order("closed")).is_empty());
        assert_eq!((late.notes.counts().ordered, late.notes.counts().missed), (1, 1));
        for (ending, cashier) in [(Ending::Abandons, true), (Ending::Pays, false)] {
            let (buyers, next) = ends(ending, cashier);
            assert!(next.is_empty());
            assert_eq!(buyers.notes.counts().abandoned, 1);
        }
    }

    #[test]
    fn one_that_repeats_asks_with_the_same_key_and_buys_once() {
        let buyers = crowd_of_one(Manner::Repeats, Ending::Abandons, false);
        let mut claims = vec![buyers.first()];
        let mut looks = 0;
        while let Some(claim) = claims.pop() {
            for (_, errand) in buyers.answer(&claim, 202, &admitted()) {
                match errand.step {
                    Step::Claim(_) => claims.push(errand),
                    _ => looks += 1,
                }
            }
        }
        let counts = buyers.notes.counts();
        assert_eq!((counts.claims, counts.admitted, counts.confirmed, looks), (3, 1, 2, 1));
        let claims = &buyers.notes.open().claims;
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
        let other_finger = format!(r#"{{"code":"already_bought","order_no":"{NO}"}}"#);
        assert!(buyers.answer(&claim, 409, &other_finger).is_empty());
        assert_eq!(buyers.met(Fate::Won, None), 1);
    }
}
