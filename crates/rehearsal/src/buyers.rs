//! The life of a buyer in a rehearsal, one request after the other.
//!
//! **A plain buyer** comes at its instant and claims with a key of its own. *Not started*, *busy* and
//! *too hot* send it away for as long as they say, and it claims again with the same key; so does a
//! broken connection. *Sold out* ends it, unless it comes back when unpaid orders have timed out.
//! Admitted, it reads its order until the ledger has it, thinks, and then pays at the sandbox's
//! cashier, cancels, or leaves it to time out. **One that repeats** sends the claim again after the
//! answer and must hear the same. **A bot** sends several claims at once, without
//! keys, from before the opening; each is sent again at once until its answer is final.
//!
//! Nobody waits for anybody: each answer puts the next task on the agenda.

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
    measurements::{Measured, Measurements, micros},
    open_loop::{Script, Timing},
    people::Person,
    plan::{Character, Ending, Manner},
};

/// A bot's parallel claims.
pub(crate) const BOT_CLAIMS_AT_ONCE: usize = 4;
/// How often one that repeats sends its claim again.
const REPEATS: u8 = 2;
const REPEAT_AFTER: Duration = Duration::from_millis(50);
/// If a refusal does not say when to come again.
const COME_AGAIN: Duration = Duration::from_secs(1);
const NOT_STARTED_AGAIN: Duration = Duration::from_millis(20);
/// A claim says when it will be an order; the buyer reads it then, but not sooner or later than this.
const FIRST_READ_MIN: Duration = Duration::from_millis(100);
const FIRST_READ_MAX: Duration = Duration::from_secs(2);
const READ_AGAIN: Duration = Duration::from_millis(250);
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
    /// Nobody follows an order after this.
    pub(crate) orders_until: Instant,
}

pub(crate) struct Buyers {
    pub(crate) people: Vec<Person>,
    pub(crate) characters: Vec<Character>,
    /// Each buyer's [`BuyerState`]. Claims that a buyer sends several times share it, and win once.
    states: Vec<AtomicU8>,
    pub(crate) rules: Rules,
    pub(crate) measurements: Measurements,
}

/// How far a buyer has come; the better one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuyerState {
    /// Still waiting for a final answer.
    Undecided,
    /// Sent away for good, or again and again.
    SentAway,
    SoldOut,
    Admitted,
}

#[derive(Clone, Debug)]
pub(crate) struct Task {
    buyer: usize,
    step: Step,
}

#[derive(Clone, Debug)]
enum Step {
    Claim(Claim),
    ReadOrder { no: OrderNo, since: Instant, paid: bool },
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

type Next = Vec<(Instant, Task)>;

impl Buyers {
    pub(crate) fn new(people: Vec<Person>, characters: Vec<Character>, rules: Rules) -> Buyers {
        let states = people.iter().map(|_| AtomicU8::new(BuyerState::Undecided as u8)).collect();
        let claims = people.len() * 2;
        Buyers { people, characters, states, rules, measurements: Measurements::new(claims) }
    }

    /// The first task of one buyer.
    pub(crate) fn arrival(&self, buyer: usize, came: Instant) -> (Instant, Task) {
        let character = &self.characters[buyer];
        let repeats = if character.manner == Manner::Repeats { REPEATS } else { 0 };
        let claim = Claim { came, repeats, may_come_back: character.comes_back };
        (came, Task { buyer, step: Step::Claim(claim) })
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
        let mut measured = self.measurements.lock();
        measured.counts.claims += 1;
        let latencies = if self.is_bot(buyer) { &mut measured.bots } else { &mut measured.buyers };
        latencies.record(timing);
        self.tell(&mut measured, buyer, &answer);
        let again = |after: Duration| self.claim_again(buyer, claim, timing.done + after);
        let next = match &answer {
            Answer::Admitted { order_no } => {
                let mut next = self.repeat(buyer, claim, timing.done);
                if self.reaches(buyer, BuyerState::Admitted) {
                    measured.counts.confirmed += 1;
                } else {
                    measured.counts.admitted += 1;
                    next.push(self.first_read(buyer, *order_no, response.as_ref(), timing.done));
                }
                next
            }
            // A key that was told yes hears it again, so this is a bot of which another claim won.
            Answer::AlreadyBought { .. } => {
                measured.refused("already_bought");
                vec![]
            }
            Answer::SoldOut => {
                measured.refused("sold_out");
                self.sold_out(buyer, claim, timing.done)
            }
            Answer::Refused(code) => {
                measured.refused(code);
                let pause = pause_of(code, response.as_ref());
                pause.map_or_else(Vec::new, again)
            }
            Answer::Unknown => {
                measured.counts.broken += 1;
                again(COME_AGAIN)
            }
        };
        self.note_decision(&mut measured, buyer, claim, (&answer, &next), timing.done);
        next
    }

    /// Refusals bind nobody and are only counted; all else the checker wants to see.
    fn tell(&self, measured: &mut Measured, buyer: usize, answer: &Answer) {
        if !matches!(answer, Answer::Refused(_) | Answer::Unknown) {
            let person = &self.people[buyer];
            let key = self.key(buyer);
            let (user, item) = (person.user.clone(), person.item);
            measured.claims.push(AnsweredClaim { user, item, key, answer: answer.clone() });
        }
    }

    fn note_decision(
        &self,
        measured: &mut Measured,
        buyer: usize,
        claim: Claim,
        (answer, next): (&Answer, &Next),
        now: Instant,
    ) {
        let goes_on = next.iter().any(|(_, task)| matches!(task.step, Step::Claim(_)));
        match answer {
            Answer::Refused(_) | Answer::Unknown if goes_on => return,
            Answer::Refused(_) | Answer::Unknown => drop(self.reaches(buyer, BuyerState::SentAway)),
            Answer::SoldOut if !goes_on => drop(self.reaches(buyer, BuyerState::SoldOut)),
            _ => {}
        }
        // A bot comes before anything can be decided.
        if self.is_bot(buyer) {
            return;
        }
        // Repeats were decided before.
        if claim.repeats == REPEATS || self.characters[buyer].manner != Manner::Repeats {
            measured.decided.saturating_record(micros(now.saturating_duration_since(claim.came)));
        }
    }

    /// True if the buyer was in this state, or a better one, before.
    fn reaches(&self, buyer: usize, state: BuyerState) -> bool {
        self.states[buyer].fetch_max(state as u8, Ordering::Relaxed) >= state as u8
    }

    /// How many of those who want this item (or of all) are in this state.
    pub(crate) fn count_in(&self, state: BuyerState, item: Option<i64>) -> u64 {
        let of_item = |person: &Person| item.is_none_or(|item| person.item == item);
        let all = self.states.iter().zip(&self.people);
        let reached = |at: &AtomicU8| at.load(Ordering::Relaxed) == state as u8;
        all.filter(|(at, person)| reached(at) && of_item(person)).count() as u64
    }

    /// Patience ends; a bot's has no pause.
    fn claim_again(&self, buyer: usize, claim: Claim, at: Instant) -> Next {
        let at = if self.is_bot(buyer) { Instant::now() } else { at };
        if at > self.rules.claims_until {
            return vec![];
        }
        vec![(at, Task { buyer, step: Step::Claim(claim) })]
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

    fn first_read(
        &self,
        buyer: usize,
        no: OrderNo,
        response: Option<&Response>,
        now: Instant,
    ) -> (Instant, Task) {
        let eta = response.and_then(|response| response.json()["eta_ms"].as_u64());
        let eta = eta.map_or(FIRST_READ_MIN, Duration::from_millis);
        let step = Step::ReadOrder { no, since: now, paid: false };
        (now + eta.clamp(FIRST_READ_MIN, FIRST_READ_MAX), Task { buyer, step })
    }

    fn heard_order(
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
            return self.read_again(buyer, (no, since, paid), now);
        }
        let mut measured = self.measurements.lock();
        if status != "void" && !paid {
            measured.counts.ordered += 1;
            measured.ordered.saturating_record(took);
        }
        match status {
            "unpaid" => {
                drop(measured);
                return self.decide(buyer, no, now);
            }
            "paid" if paid => {
                measured.counts.paid += 1;
                measured.paid.saturating_record(took);
            }
            "void" => measured.counts.void += 1,
            // Closed before the buyer was done with it.
            _ => measured.counts.missed += 1,
        }
        vec![]
    }

    fn read_again(
        &self,
        buyer: usize,
        (no, since, paid): (OrderNo, Instant, bool),
        now: Instant,
    ) -> Next {
        let at = now + READ_AGAIN;
        if at > self.rules.orders_until {
            return vec![];
        }
        vec![(at, Task { buyer, step: Step::ReadOrder { no, since, paid } })]
    }

    fn decide(&self, buyer: usize, no: OrderNo, now: Instant) -> Next {
        let step = match self.characters[buyer].ending {
            Ending::Pays if self.rules.cashier => Step::OpenPayment { no },
            Ending::Cancels => Step::Cancel { no },
            Ending::Pays | Ending::Abandons => {
                self.measurements.count(|counts| counts.abandoned += 1);
                return vec![];
            }
        };
        vec![(now + self.rules.think, Task { buyer, step })]
    }

    /// After a step towards the money, or away from it.
    fn heard_change(
        &self,
        buyer: usize,
        step: Step,
        response: Option<Response>,
        now: Instant,
    ) -> Next {
        let status = response.as_ref().map_or(0, |response| response.status);
        match status {
            200 => self.change_done(buyer, step, response, now),
            // Perhaps paid by a try whose answer was lost; otherwise the deadline came first.
            409 if matches!(step, Step::Pay { .. }) => self.change_done(buyer, step, response, now),
            409 => {
                self.measurements.count(|counts| counts.missed += 1);
                vec![]
            }
            0 | 429 | 500.. if now + COME_AGAIN < self.rules.orders_until => {
                vec![(now + COME_AGAIN, Task { buyer, step })]
            }
            _ => {
                let body = response.map(|r| String::from_utf8_lossy(&r.body).into_owned());
                let what = format!("{step:?} was answered {status} {}", body.unwrap_or_default());
                self.measurements.lock().unexpected(what);
                vec![]
            }
        }
    }

    fn change_done(
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
            Step::Pay { no, .. } => Step::ReadOrder { no, since: now, paid: true },
            _ => {
                self.measurements.count(|counts| counts.cancelled += 1);
                return vec![];
            }
        };
        vec![(now, Task { buyer, step })]
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
    type Task = Task;

    fn write(&self, task: &Task, address: SocketAddr, out: &mut Vec<u8>) {
        let person = &self.people[task.buyer];
        let headers =
            [("authorization", person.bearer.as_str()), ("content-type", "application/json")];
        let mut ask = |method: &str, path: String, body: &str| {
            write_request(out, address, (method, &path), &headers, body.as_bytes());
        };
        match &task.step {
            Step::Claim(_) => {
                let path = format!("/api/v1/items/{}/claims", person.item);
                let key = self.key(task.buyer);
                write_claim(out, address, &path, (&person.sale_token, key.as_deref()), QUANTITY);
            }
            Step::ReadOrder { no, .. } => ask("GET", format!("/api/v1/orders/{no}"), ""),
            Step::OpenPayment { no } => {
                ask("POST", format!("/api/v1/orders/{no}/payments"), r#"{"provider":"sandbox"}"#);
            }
            Step::Pay { txn, .. } => {
                ask("POST", format!("/api/v1/cashier/{txn}"), r#"{"action":"pay"}"#);
            }
            Step::Cancel { no } => ask("POST", format!("/api/v1/orders/{no}/cancel"), ""),
        }
    }

    fn heard(&self, task: Task, response: Option<Response>, timing: Timing) -> Next {
        let Task { buyer, step } = task;
        match step {
            Step::Claim(claim) => self.heard_claim(buyer, claim, response, timing),
            Step::ReadOrder { no, since, paid } => {
                self.heard_order(buyer, (no, since, paid), response, timing.done)
            }
            change => self.heard_change(buyer, change, response, timing.done),
        }
    }
}

#[cfg(test)]
mod tests;
