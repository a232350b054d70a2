//! Where everything agreed: what lets a run pass over what nobody has touched since.
//!
//! **Items.** Whoever changes an item leaves a trace: the gate counts every change of it in its version, and
//! every change of its stock, also by other hands than ours, shows in the ledger's row of it or at the end of
//! its stock log. So an item whose few numbers on both sides are those with which it agreed, *and of which
//! nothing was under way then*, agrees now. One of which something was under way, a claim on the log, units
//! on their way back, is read again until it comes to rest: what gets lost on the way is found by the next
//! run, although no number moves any more.
//!
//! **Payments.** What was noted since, and what may have been paid since, is looked at; what was owed back or
//! did not add up then is asked about again by its name.

use std::collections::HashMap;

use gate::Outline;
use ledger::{BooksPoint, ItemBooks, ItemOutline, PaymentsSince};
use sale::{ItemId, ItemState, Millis};

use super::{ItemReport, ItemVerdict, compare::Sides};

/// Items of which is kept where they agreed. The others are read each time.
const ITEMS_MAX: usize = 200_000;

#[derive(Default)]
pub(super) struct Points {
    items: HashMap<ItemId, Point>,
    /// Up to when payments were looked at; nothing if the next look has to be at all of them.
    pub(super) payments: Option<PaymentsSince>,
    /// When the last run began that read everything.
    pub(super) whole_ms: Option<Millis>,
}

/// Where the ledger's books of an item agreed with themselves, and the gate with them.
struct Point {
    ledger: ItemOutline,
    gate: Option<Outline>,
    books: BooksPoint,
    /// They agreed, and nothing was under way.
    is_at_rest: bool,
}

impl Points {
    pub(super) fn are_unchanged(&self, ledger: &ItemOutline, gate: Option<&Outline>) -> bool {
        self.items.get(&ledger.item).is_some_and(|point| {
            point.is_at_rest && point.ledger == *ledger && point.gate.as_ref() == gate
        })
    }

    /// Where the books of an item may be counted on from. Not when its sale has just ended: then all of
    /// them are read once more.
    pub(super) fn books_of(&self, now: &ItemOutline) -> Option<BooksPoint> {
        let point = self.items.get(&now.item)?;
        let has_ended = now.state == ItemState::Ended && point.ledger.state != ItemState::Ended;
        (!has_ended).then_some(point.books)
    }

    /// What a comparison found, before anything was healed.
    pub(super) fn note(&mut self, sides: &Sides, report: &ItemReport) {
        let (item, books) = (report.item_id, &sides.books);
        let in_doubt = report.findings.iter().any(|finding| finding.kind.starts_with("ledger_"));
        if in_doubt || (self.items.len() >= ITEMS_MAX && !self.items.contains_key(&item)) {
            self.items.remove(&item);
            return;
        }
        let agree = matches!(report.verdict, ItemVerdict::Agree | ItemVerdict::NotAtGate)
            && report.findings.is_empty();
        let point = Point {
            ledger: outline_of(books),
            gate: sides.gate.as_ref().map(gate::Reading::outline),
            books: books.point(),
            is_at_rest: agree && !is_under_way(sides),
        };
        self.items.insert(item, point);
    }

    pub(super) fn keep(&mut self, is_compared: impl Fn(ItemId) -> bool) {
        self.items.retain(|item, _| is_compared(*item));
    }

    pub(super) fn live_orders(&self) -> HashMap<ItemId, u64> {
        self.items.iter().map(|(item, point)| (*item, point.books.live_orders)).collect()
    }
}

/// Is anything between gate and ledger that could get lost?
fn is_under_way(sides: &Sides) -> bool {
    let books = &sides.books;
    let at_gate = sides.gate.as_ref();
    at_gate.is_some_and(|reading| !reading.in_flight.is_empty())
        || sides.has_unconfirmed
        || !books.failed.is_empty()
        || !books.pending_releases.is_empty()
        || !books.pending_adjusts.is_empty()
}

fn outline_of(books: &ItemBooks) -> ItemOutline {
    let item = &books.item;
    ItemOutline {
        item: item.id,
        state: item.state,
        epoch: item.epoch,
        version: item.version,
        stock: item.stock,
        total: item.total,
        log_end: books.log_end,
    }
}
