//! What an item is loaded with at the gate, read in one snapshot that lasts until the last page is taken.
//!
//! Stock and marks must be of one instant: an order that is closed between the two would be in neither,
//! or in both. So all of it is read in one transaction on one connection, but not all at once: the orders
//! come in pages by their number, and the next page is read while the one before is on its way to the
//! gate. Whoever takes the pages may be slow; then the reading waits. If they are gone, it ends.
//!
//! An item whose orders fit into one page is read at once, like anything else, and waits for none that
//! takes minutes. The others have their turn before anything is frozen for them.

use sale::{Claim, ItemId, OrderNo};
use tokio::sync::mpsc;

use super::{
    Access, LongTurn, SqlLedger, activities,
    columns::{CLAIM_COLUMNS, claim},
    dead_letters,
    dialect::Dialect,
    failure::{Failure, Outcome},
    orders,
    session::{Session, values},
    stock,
};
use crate::{
    Activities, LedgerError, Result, WarmBasis,
    mark_pages::{MarkPages, Part, WalkTurn},
};

/// Orders in one page: about a megabyte.
const PAGE_ORDERS: usize = 8_000;
/// Parts that wait to be taken.
const PARTS_WAITING_MAX: usize = 1;

type Parts = mpsc::Sender<Result<Part>>;

/// Every order has a unit at least.
pub(super) async fn turn(ledger: &SqlLedger, id: ItemId) -> Result<WalkTurn> {
    let item = ledger.item(id).await?.ok_or(LedgerError::NotFound)?;
    let is_small = item.total - item.stock < PAGE_ORDERS as i64;
    Ok(WalkTurn(if is_small { None } else { Some(ledger.engine.long_turn().await?) }))
}

pub(super) async fn read(
    ledger: &SqlLedger,
    turn: WalkTurn,
    item: ItemId,
    in_flight: &[OrderNo],
) -> Result<(WarmBasis, MarkPages)> {
    let turn = match turn.0 {
        Some(turn) => turn,
        None => match read_at_once(ledger, item, in_flight).await? {
            Some(all) => return Ok(all),
            // It has grown since. The item is frozen by now, so nobody waits: it is tried again.
            None => ledger.engine.long_turn_now()?,
        },
    };
    read_in_pages(ledger, turn, item, in_flight).await
}

/// Nothing if they are too many for that.
async fn read_at_once(
    ledger: &SqlLedger,
    item: ItemId,
    in_flight: &[OrderNo],
) -> Result<Option<(WarmBasis, MarkPages)>> {
    let read: Result<(WarmBasis, Vec<Claim>)> = ledger
        .run(Access::Snapshot, in_flight.to_vec(), move |session, in_flight| {
            Box::pin(async move {
                let basis = basis(session, item, in_flight).await?;
                Ok((basis, page(session, item, None).await?))
            })
        })
        .await;
    let (basis, marks) = read?;
    if marks.len() == PAGE_ORDERS {
        return Ok(None);
    }
    Ok(Some((basis, MarkPages::of_one(marks))))
}

async fn read_in_pages(
    ledger: &SqlLedger,
    turn: LongTurn,
    item: ItemId,
    in_flight: &[OrderNo],
) -> Result<(WarmBasis, MarkPages)> {
    let (parts, taken) = mpsc::channel(PARTS_WAITING_MAX);
    let (ledger, asked) = (ledger.clone(), (in_flight.to_vec(), parts.clone()));
    tokio::spawn(async move {
        let turn = Some(turn);
        let walked =
            ledger.run_in_turn(Access::Walk, turn, asked, move |session, (in_flight, parts)| {
                Box::pin(walk(session, item, in_flight, parts))
            });
        let end: Result<()> = walked.await;
        // Whoever is gone need not be told.
        let _ = parts.send(end.map(|()| Part::End)).await;
    });
    let mut pages = MarkPages(taken);
    match pages.part().await? {
        Part::Basis(basis) => Ok((*basis, pages)),
        Part::Marks(_) | Part::End => {
            Err(LedgerError::Broken("marks came before their item".into()))
        }
    }
}

/// Reads all there is and passes it on.
async fn walk(
    session: &mut dyn Session,
    item: ItemId,
    in_flight: &[OrderNo],
    parts: &Parts,
) -> Outcome<()> {
    let basis = while_wanted(parts, basis(session, item, in_flight)).await?;
    let mut wanted = pass(session.dialect(), parts, Part::Basis(Box::new(basis))).await;
    let mut last = None;
    while wanted {
        let page = while_wanted(parts, page(session, item, last)).await?;
        let full = page.len() == PAGE_ORDERS;
        last = page.last().map(|claim| claim.order_no);
        wanted = pass(session.dialect(), parts, Part::Marks(page)).await && full;
    }
    Ok(())
}

/// Waits until there is room for it. False if nobody wants it any more.
async fn pass(dialect: Dialect, parts: &Parts, part: Part) -> bool {
    let passed = match dialect {
        Dialect::Mysql => parts.send(Ok(part)).await,
        // Work on SQLite has a thread of its own, which may wait.
        Dialect::Sqlite => parts.blocking_send(Ok(part)),
    };
    passed.is_ok()
}

/// A server that hangs must not keep a connection for which nobody waits any more.
async fn while_wanted<T>(parts: &Parts, read: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::select! {
        biased;
        read = read => read,
        () = parts.closed() => Err(Failure::CutOff("nobody waits for it any more".into())),
    }
}

async fn basis(session: &mut dyn Session, id: ItemId, in_flight: &[OrderNo]) -> Outcome<WarmBasis> {
    let item = activities::item(session, id).await?.ok_or(Failure::NotFound)?;
    let activity = activities::one(session, item.activity).await?.ok_or(Failure::NotFound)?;
    Ok(WarmBasis {
        activity,
        item,
        settled: orders::settled_among(session, in_flight).await?,
        failed: dead_letters::open_of(session, id).await?,
        adjusted: stock::adjustments_of(session, id).await?,
    })
}

/// The live orders of an item behind this one.
async fn page(
    session: &mut dyn Session,
    item: ItemId,
    after: Option<OrderNo>,
) -> Outcome<Vec<Claim>> {
    // By itself MariaDB would walk past all the orders before this page again.
    let by_item = session.dialect().by_index("ix_order_product");
    let sql = format!(
        "SELECT {CLAIM_COLUMNS} FROM tb_seckill_order {by_item}
         WHERE product_id = ? AND order_no > ? AND status IN (0, 1) ORDER BY order_no LIMIT ?"
    );
    let after = after.map_or_else(String::new, |no| no.to_string());
    session.rows(&sql, values![item, after, PAGE_ORDERS], claim).await
}
