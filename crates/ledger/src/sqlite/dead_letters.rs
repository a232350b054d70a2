//! Claims that failed: waiting for their next try, dead, or resolved.
//!
//! An open letter holds its units. So a letter is never opened for a claim that is an order (or
//! void) already: its units are accounted for there. A number that is somebody else's order is no such
//! order: its claim failed, holds its units, and must be seen.

use rusqlite::{Connection, OptionalExtension, Row, params};
use sale::{Claim, FailedClaim, ItemId, Millis, OrderNo, UserId};

use super::{
    columns::{at_most, claim, coded, key_bits},
    failure::{Failure, Outcome},
    orders,
};
use crate::{
    DeadLetter, DeadLetterState, Moved, OutstandingClaims,
    columns::{CLAIM_COLUMNS, ITS_OWN_ORDER, LETTER_COLUMNS, OPEN_BY_ITEM},
    outbox::shortened,
    verdict::taken,
};

fn read(row: &Row<'_>) -> rusqlite::Result<DeadLetter> {
    Ok(DeadLetter {
        claim: claim(row)?,
        state: coded(row, 7, DeadLetterState::from_code)?,
        tries: row.get(8)?,
        next_try_ms: row.get(9)?,
        cause: row.get(10)?,
        created_ms: row.get(11)?,
        updated_ms: row.get(12)?,
    })
}

pub(super) fn defer(tx: &Connection, failed: &[FailedClaim], now_ms: Millis) -> Outcome<()> {
    let mut remember = tx.prepare_cached(
        "INSERT INTO tb_dead_letter (order_no, product_id, user_id, quantity, epoch, claimed_at,
             claim_key, state, tries, next_try_at, cause, created_at, updated_at)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?12
         WHERE NOT EXISTS (SELECT 1 FROM tb_seckill_order
             WHERE order_no = ?1 AND product_id = ?2 AND user_id = ?3)
         ON CONFLICT (order_no) DO UPDATE SET state = excluded.state, tries = excluded.tries,
             next_try_at = excluded.next_try_at, cause = excluded.cause,
             updated_at = excluded.updated_at
         WHERE product_id = excluded.product_id AND user_id = excluded.user_id",
    )?;
    for FailedClaim { claim, tries, next_try_ms, cause } in failed {
        let state = match next_try_ms {
            Some(_) => DeadLetterState::Retrying,
            None => DeadLetterState::Dead,
        };
        let remembered = remember.execute(params![
            claim.order_no.to_string(),
            claim.item.0,
            claim.user.as_str(),
            claim.quantity,
            claim.epoch as i64,
            claim.claimed_ms,
            key_bits(claim),
            state.code(),
            tries,
            next_try_ms,
            shortened(cause),
            now_ms
        ])?;
        if remembered == 0 {
            // Either it is an order, or the letter of this number is somebody else's.
            let owners = orders::owners(tx, &[claim.order_no])?;
            if !owners.get(&claim.order_no).is_some_and(|owner| owner.is_of(claim)) {
                return Err(Failure::Rejected(taken(claim.order_no)));
            }
            resolve(tx, [claim.order_no], DeadLetterState::Settled, now_ms)?;
        }
    }
    Ok(())
}

/// How many claims of each item are retrying and dead, and the units they hold.
pub(super) fn by_item(conn: &Connection) -> Outcome<Vec<OutstandingClaims>> {
    let mut statement = conn.prepare_cached(OPEN_BY_ITEM)?;
    let read = |row: &Row<'_>| {
        let count = |n: usize| row.get::<_, i64>(n).map(|count| count as u64);
        let item = ItemId(row.get(0)?);
        Ok(OutstandingClaims { item, retrying: count(1)?, dead: count(2)?, units: row.get(3)? })
    };
    let counted: rusqlite::Result<Vec<_>> = statement.query_map([], read)?.collect();
    Ok(counted?)
}

pub(super) fn due(conn: &Connection, now_ms: Millis, limit: usize) -> Outcome<Vec<FailedClaim>> {
    let sql = format!(
        "SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter
         WHERE state = ?1 AND next_try_at <= ?2 ORDER BY next_try_at, order_no LIMIT ?3"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let asked = params![DeadLetterState::Retrying.code(), now_ms, at_most(limit)];
    let rows = statement.query_map(asked, |row| {
        let DeadLetter { claim, tries, next_try_ms, cause, .. } = read(row)?;
        Ok(FailedClaim { claim, tries, next_try_ms, cause })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Closes the open letters of these orders.
pub(super) fn resolve(
    tx: &Connection,
    orders: impl IntoIterator<Item = OrderNo>,
    to: DeadLetterState,
    now_ms: Millis,
) -> Outcome<()> {
    // Almost always there is no open letter at all, and a batch is a thousand claims.
    let any: bool = tx
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM tb_dead_letter WHERE state IN (?1, ?2))")?
        .query_row([DeadLetterState::Retrying.code(), DeadLetterState::Dead.code()], |row| {
            row.get(0)
        })?;
    if !any {
        return Ok(());
    }
    let mut close = tx.prepare_cached(&format!(
        "UPDATE tb_dead_letter AS d SET state = ?1, next_try_at = NULL, updated_at = ?2
         WHERE order_no = ?3 AND state IN (?4, ?5) AND {ITS_OWN_ORDER}"
    ))?;
    for no in orders {
        close.execute(params![
            to.code(),
            now_ms,
            no.to_string(),
            DeadLetterState::Retrying.code(),
            DeadLetterState::Dead.code()
        ])?;
    }
    Ok(())
}

/// Ends the open letter of a claim whose number is somebody else's order: it can never have a row of
/// its own among the orders. False if no letter of it was open.
pub(super) fn give_up(tx: &Connection, claim: &Claim, now_ms: Millis) -> Outcome<bool> {
    let ended = tx
        .prepare_cached(
            "UPDATE tb_dead_letter SET state = ?1, next_try_at = NULL, updated_at = ?2
             WHERE order_no = ?3 AND product_id = ?4 AND user_id = ?5 AND state IN (0, 1)",
        )?
        .execute(params![
            DeadLetterState::Voided.code(),
            now_ms,
            claim.order_no.to_string(),
            claim.item.0,
            claim.user.as_str()
        ])?;
    Ok(ended == 1)
}

pub(super) fn list(
    conn: &Connection,
    state: Option<DeadLetterState>,
    before: Option<OrderNo>,
    limit: usize,
) -> Outcome<Vec<DeadLetter>> {
    let (one, other) = states(state);
    let sql = format!(
        "SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter
         WHERE state IN (?1, ?2) AND (?3 IS NULL OR order_no < ?3)
         ORDER BY order_no DESC LIMIT ?4"
    );
    let before = before.map(|no| no.to_string());
    let mut statement = conn.prepare_cached(&sql)?;
    let rows =
        statement.query_map(params![one.code(), other.code(), before, at_most(limit)], read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn one(conn: &Connection, no: OrderNo) -> Outcome<Option<DeadLetter>> {
    let sql =
        format!("SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter WHERE order_no = ?1");
    Ok(conn.prepare_cached(&sql)?.query_row([no.to_string()], read).optional()?)
}

/// The claims of an item that hold units without being orders.
pub(super) fn open_of(conn: &Connection, item: ItemId) -> Outcome<Vec<Claim>> {
    let sql = format!(
        "SELECT {CLAIM_COLUMNS} FROM tb_dead_letter
         WHERE product_id = ?1 AND state IN (?2, ?3) ORDER BY order_no"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let asked = params![item.0, DeadLetterState::Retrying.code(), DeadLetterState::Dead.code()];
    let rows = statement.query_map(asked, claim)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn of_user(
    conn: &Connection,
    user: &UserId,
    state: Option<DeadLetterState>,
    before: Option<OrderNo>,
    limit: usize,
) -> Outcome<Vec<DeadLetter>> {
    let sql = format!(
        "SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter
         WHERE user_id = ?1 AND state IN (?2, ?3) AND (?4 IS NULL OR order_no < ?4)
         ORDER BY order_no DESC LIMIT ?5"
    );
    let (one, other) = states(state);
    let before = before.map(|no| no.to_string());
    let mut statement = conn.prepare_cached(&sql)?;
    let asked = params![user.as_str(), one.code(), other.code(), before, at_most(limit)];
    let rows = statement.query_map(asked, read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The state asked for, twice; those that are open if none is.
fn states(asked: Option<DeadLetterState>) -> (DeadLetterState, DeadLetterState) {
    asked.map_or((DeadLetterState::Retrying, DeadLetterState::Dead), |state| (state, state))
}

pub(super) fn replay(
    tx: &Connection,
    no: OrderNo,
    now_ms: Millis,
) -> Outcome<Moved<DeadLetterState>> {
    let letter = one(tx, no)?.ok_or(Failure::NotFound)?;
    if !letter.state.is_open() {
        return Ok(Moved::Was(letter.state));
    }
    tx.prepare_cached(
        "UPDATE tb_dead_letter SET state = ?1, tries = 0, next_try_at = ?2, updated_at = ?2
         WHERE order_no = ?3 AND state = ?4",
    )?
    .execute(params![
        DeadLetterState::Retrying.code(),
        now_ms,
        no.to_string(),
        letter.state.code()
    ])?;
    Ok(Moved::Done)
}
