//! Comparing one item: both sides read until they hold still, then what the gate has beside what the
//! ledger says it should have.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use gate::Reading;
use ledger::{BooksPoint, ItemBooks, LogWalk};
use sale::{Claim, Epoch, ItemId, ItemState, Millis, OrderNo, UserId};

use super::{Finding, ItemReport, ItemVerdict};
use crate::{StockChanges, StoreError, operations::Unconfirmed, shared::Shared};

/// How often an item that moves is read, and how long to wait before the second reading; before the
/// third it is twice as long, and so on: under four seconds in all.
const READINGS_MAX: u64 = 20;
const READING_PAUSE_MS: u64 = 20;
/// A lowering of the stock that the ledger has not confirmed after this long never will be.
pub(super) const ADJUST_AGE_MS_MAX: Millis = 60_000;

/// Rows of a broken stock log that a finding names.
const BREAKS_TOLD_MAX: usize = 10;

/// Both sides of one item at one instant.
pub(super) struct Sides {
    pub(super) gate: Option<Reading>,
    /// Of the claims whose units are on their way back those that the gate still has marked.
    marked: HashSet<OrderNo>,
    pub(super) books: ItemBooks,
    pub(super) moving: bool,
    /// The gate made a stock change that the ledger does not have.
    pub(super) has_unconfirmed: bool,
}

/// What the gate should hold by the ledger's books.
#[derive(Debug, PartialEq, Eq)]
struct Expected {
    left: i64,
    marks: u64,
    in_flight: i64,
    returning: i64,
    adjusting: i64,
}

pub(super) struct Comparison {
    pub(super) shared: Arc<Shared>,
    pub(super) stock: Arc<StockChanges>,
}

impl Comparison {
    /// Reads both sides until they hold still, or for as often as is worth it. The books are counted on
    /// from where they agreed, if that is known.
    pub(super) async fn compare(
        &self,
        item: ItemId,
        from: Option<&BooksPoint>,
    ) -> Result<(Sides, ItemReport), StoreError> {
        // A long log is walked once and before, so that nobody who changes the stock waits for it.
        let walk = match from {
            Some(_) => LogWalk::default(),
            None => self.shared.ledger.walk_log(item).await?,
        };
        let mut readings = 0;
        loop {
            readings += 1;
            {
                // Not while something is on its way between the two: a load or an adjustment that is
                // half done would look like a difference. It goes on in the pauses.
                let _turn = self.shared.gate_turns.of(item).await;
                let mut sides = self.read_both_sides(item, from, &walk).await?;
                if !sides.moving || readings >= READINGS_MAX {
                    let report = self.report_of(&mut sides).await?;
                    return Ok((sides, report));
                }
            }
            let pause_ms = READING_PAUSE_MS * readings;
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
    }

    /// The ledger's side alone, of an item whose part of the gate does not answer.
    pub(super) async fn check_books(
        &self,
        item: ItemId,
        from: Option<&BooksPoint>,
    ) -> Result<(Sides, ItemReport), StoreError> {
        let books = self.books(item, &[], from, &LogWalk::default()).await?;
        let mut sides = Sides {
            gate: None,
            marked: HashSet::new(),
            books,
            moving: true,
            has_unconfirmed: false,
        };
        let report = self.report_of(&mut sides).await?;
        Ok((sides, report))
    }

    async fn books(
        &self,
        item: ItemId,
        in_flight: &[OrderNo],
        from: Option<&BooksPoint>,
        walk: &LogWalk,
    ) -> Result<ItemBooks, StoreError> {
        let ledger = &self.shared.ledger;
        if let Some(from) = from
            && let Some(books) = ledger.item_books_since(item, in_flight, from).await?
        {
            return Ok(books);
        }
        Ok(ledger.item_books_behind(walk, item, in_flight).await?)
    }

    async fn read_both_sides(
        &self,
        item: ItemId,
        from: Option<&BooksPoint>,
        walk: &LogWalk,
    ) -> Result<Sides, StoreError> {
        let gate = &self.shared.gate;
        let before = gate.reading(item).await?;
        let in_flight: Vec<OrderNo> =
            before.iter().flat_map(|r| &r.in_flight).map(|claim| claim.order_no).collect();
        let books = self.books(item, &in_flight, from, walk).await?;
        let returning = books.pending_releases.iter();
        let returning: Vec<(UserId, OrderNo)> =
            returning.map(|release| (release.user.clone(), release.order_no)).collect();
        let marked = match &returning[..] {
            [] => HashSet::new(),
            some => gate.marked(item, some).await?,
        };
        let after = gate.reading(item).await?;
        let version = |reading: &Option<Reading>| reading.as_ref().map(|r| r.version);
        // What is being loaded is neither what it was nor what it will be.
        let loading = books.item.state == ItemState::Warming;
        let moving = loading || version(&before) != version(&after);
        Ok(Sides { gate: before, marked, books, moving, has_unconfirmed: false })
    }

    async fn report_of(&self, sides: &mut Sides) -> Result<ItemReport, StoreError> {
        let books = &sides.books;
        let mut report = ItemReport {
            item_id: books.item.id,
            name: books.item.name.clone(),
            verdict: ItemVerdict::NotAtGate,
            gate_left: None,
            in_flight: 0,
            returning: 0,
            adjusting: 0,
            ledger_stock: books.item.stock,
            live_units: books.live_units,
            live_orders: books.live_orders,
            total: books.item.total,
            findings: ledger_findings(books),
        };
        if let Some(reading) = &sides.gate {
            let unconfirmed =
                self.stock.unconfirmed_adjusts(reading.item, &reading.adjusts).await?;
            sides.has_unconfirmed = !unconfirmed.is_empty();
            let expected = expected(reading, &sides.marked, books, &unconfirmed);
            report.gate_left = Some(reading.left);
            report.in_flight = expected.in_flight;
            report.returning = expected.returning;
            report.adjusting = expected.adjusting;
            if sides.moving {
                report.verdict = ItemVerdict::Moving;
                return Ok(report);
            }
            report.findings.extend(gate_findings(reading, books.epoch, &expected));
            let now_ms = self.shared.now_ms();
            let is_lost = |change: &&Unconfirmed| {
                change.refused || now_ms - change.adjust_no.made_ms() > ADJUST_AGE_MS_MAX
            };
            for Unconfirmed { adjust_no, delta, .. } in unconfirmed.iter().filter(is_lost) {
                let detail = format!(
                    "the gate changed the stock by {delta} and the ledger did not ({adjust_no})"
                );
                report.findings.push(Finding::new("gate_adjust", detail));
            }
            report.verdict = ItemVerdict::Agree;
        }
        if sides.moving {
            report.verdict = ItemVerdict::Moving;
        } else if !report.findings.is_empty() {
            report.verdict = ItemVerdict::Differ;
        }
        Ok(report)
    }
}

/// What the ledger's own books say of themselves.
fn ledger_findings(books: &ItemBooks) -> Vec<Finding> {
    let mut findings = Vec::new();
    let item = &books.item;
    if item.stock + books.live_units != item.total {
        let detail = format!(
            "stock {} and {} sold do not add up to {}",
            item.stock, books.live_units, item.total
        );
        findings.push(Finding::new("ledger_conservation", detail));
    }
    if !books.chain_breaks.is_empty() {
        let (count, some) = (books.chain_breaks.len(), &books.chain_breaks[..]);
        let some = &some[..count.min(BREAKS_TOLD_MAX)];
        let detail = format!("{count} stock log rows do not follow, such as {some:?}");
        findings.push(Finding::new("ledger_chain", detail));
    }
    // Without a log nothing was sold yet.
    let end = books.chain_end.unwrap_or(item.total);
    if end != item.stock {
        let detail = format!("the stock log ends at {end}, the stock is {}", item.stock);
        findings.push(Finding::new("ledger_chain_end", detail));
    }
    if books.user_record_mismatches > 0 {
        let detail = format!("{} buyers' records do not match", books.user_record_mismatches);
        findings.push(Finding::new("ledger_user_records", detail));
    }
    findings
}

fn gate_findings(reading: &Reading, epoch: Epoch, expected: &Expected) -> Vec<Finding> {
    let mut findings = Vec::new();
    if reading.epoch != epoch {
        let detail = format!("the gate is in epoch {}, the ledger in {epoch}", reading.epoch);
        findings.push(Finding::new("gate_epoch", detail));
    }
    if reading.left != expected.left {
        let detail = format!("the gate has {} left, it should be {}", reading.left, expected.left);
        findings.push(Finding::new("gate_left", detail));
    }
    if reading.marks != expected.marks {
        let detail = format!("{} buyers marked, it should be {}", reading.marks, expected.marks);
        findings.push(Finding::new("gate_marks", detail));
    }
    findings
}

/// The equation at the head of this file.
fn expected(
    reading: &Reading,
    marked: &HashSet<OrderNo>,
    books: &ItemBooks,
    unconfirmed: &[Unconfirmed],
) -> Expected {
    let on_log = reading.in_flight.iter().filter(|claim| !books.settled.contains(&claim.order_no));
    let open: HashMap<OrderNo, &Claim> =
        on_log.chain(&books.failed).map(|claim| (claim.order_no, claim)).collect();
    let in_flight: i64 = open.values().map(|claim| i64::from(claim.quantity)).sum();
    // A release that the gate has made, but whose outbox row is not deleted yet, is not pending.
    let coming: Vec<_> = books
        .pending_releases
        .iter()
        .filter(|release| {
            marked.contains(&release.order_no) && !open.contains_key(&release.order_no)
        })
        .collect();
    let returning: i64 = coming.iter().map(|release| i64::from(release.quantity)).sum();
    let at_gate: HashMap<OrderNo, i64> = reading.adjusts.iter().copied().collect();
    // What the gate has under the same number may be another change, which the ledger did not make.
    let missing = |(no, delta): &(OrderNo, i64)| match at_gate.get(no) {
        Some(0) => 0,
        Some(had) => delta - had,
        None => *delta,
    };
    let pending: i64 = books.pending_adjusts.iter().map(missing).sum();
    let taken: i64 = unconfirmed.iter().map(|change| change.delta).sum();
    let adjusting = pending - taken;
    // A void claim's units never left the ledger's stock, but its mark holds them at the gate until
    // the release arrives; a closed order's came back to the stock and are held by the mark as
    // well. Either way the gate has that many fewer than the stock says.
    Expected {
        left: books.item.stock - in_flight - returning - adjusting,
        marks: books.live_orders + open.len() as u64 + coming.len() as u64,
        in_flight,
        returning,
        adjusting,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::test_engine::TestEngine;

    #[tokio::test]
    async fn an_item_that_never_holds_still_is_said_to_move() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (gate, item) = (shop.gate.clone(), activity.items[0].id);
        gate.moves.store(u64::MAX, Ordering::SeqCst);
        let engine = shop.engine.clone();
        // What else is done at the gate meanwhile does not wait for the last reading.
        let other = tokio::spawn({
            let (engine, gate) = (engine.clone(), gate.clone());
            async move {
                while gate.readings.load(Ordering::SeqCst) < 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                drop(engine.shared.gate_turns.of(item).await);
                gate.readings.load(Ordering::SeqCst)
            }
        });
        let report = engine.reconcile.run(true).await.unwrap();
        assert_eq!((report.moving, report.differences), (1, 0));
        assert_eq!(report.items[0].verdict, ItemVerdict::Moving);
        assert_eq!(gate.readings.load(Ordering::SeqCst), 2 * READINGS_MAX);
        assert!(other.await.unwrap() < READINGS_MAX);
    }

    #[tokio::test]
    async fn the_stock_of_another_item_changes_while_one_is_compared() {
        let (shop, moving) = TestEngine::with_a_sale(|_| {}).await;
        let window = (crate::test_engine::NOW_MS - 1, crate::test_engine::NOW_MS + 3_600_000);
        let other = shop.another_sale("iPad", window, 60_000).await.items[0].id;
        let engine = &shop.engine;
        // As if reading all that is marked on it took for ever.
        let compared = engine.shared.gate_turns.of(moving.items[0].id).await;
        let before = engine.shared.ledger.item(other).await.unwrap().unwrap().stock;
        engine.stock().adjust("op", other, 3, None).await.unwrap();
        let after = engine.shared.ledger.item(other).await.unwrap().unwrap().stock;
        assert_eq!(after, before + 3);
        drop(compared);
    }

    #[tokio::test]
    async fn an_item_that_is_being_loaded_is_said_to_move() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, &activity.items[0]);
        let now = engine.shared.ledger.item(item.id).await.unwrap().unwrap();
        // Another process has begun to load it.
        let epoch = engine.shared.ledger.begin_warm(item.id, now.epoch).await.unwrap().unwrap();
        let report = engine.reconcile.run(true).await.unwrap();
        assert_eq!((report.moving, report.differences), (1, 0), "{:?}", report.items[0]);
        let later = engine.shared.ledger.item(item.id).await.unwrap().unwrap();
        assert_eq!(later.epoch, epoch, "nobody loaded it in between");
    }

    #[tokio::test]
    async fn an_item_that_comes_to_rest_is_compared() {
        let (shop, _) = TestEngine::with_a_sale(|_| {}).await;
        shop.gate.moves.store(2 * READINGS_MAX - 2, Ordering::SeqCst);
        let report = shop.engine.reconcile.run(true).await.unwrap();
        assert_eq!((report.moving, report.items[0].verdict), (0, ItemVerdict::Agree));
        assert_eq!(shop.gate.readings.load(Ordering::SeqCst), 2 * READINGS_MAX);
    }
}
