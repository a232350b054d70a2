//! Claims that failed: waiting for their next try, dead, or resolved.
//!
//! An open letter holds its units. So a letter is never opened for a claim that is an order (or
//! void) already: its units are accounted for there. The lock of the item's row keeps the two apart.
//! A number that is somebody else's order is no such order: its claim failed, holds its units, and
//! must be seen.

use mysql_async::Row;
use sale::{Claim, FailedClaim, ItemId, Millis, OrderNo, UserId};

use super::{
    columns::{at_most, claim, coded, get, key_bits},
    connections::Session,
    failure::{Failure, Outcome},
    orders, stock,
    text::{Insert, number_lists},
};
use crate::{
    DeadLetter, DeadLetterState, Moved, OutstandingClaims,
    columns::{CLAIM_COLUMNS, ITS_OWN_ORDER, LETTER_COLUMNS, OPEN_BY_ITEM},
    outbox::shortened,
    verdict::{Owner, taken},
};

fn read(row: &Row) -> Outcome<DeadLetter> {
    Ok(DeadLetter {
        claim: claim(row)?,
        state: coded(row, 7, DeadLetterState::from_code)?,
        tries: get(row, 8)?,
        next_try_ms: get(row, 9)?,
        cause: get(row, 10)?,
        created_ms: get(row, 11)?,
        updated_ms: get(row, 12)?,
    })
}

pub(super) async fn defer(tx: &mut Session, failed: &[FailedClaim], now_ms: Millis) -> Outcome<()> {
    stock::lock_items(tx, failed.iter().map(|failed| failed.claim.item)).await?;
    let numbers = || failed.iter().map(|failed| failed.claim.order_no);
    let owners = orders::owners(tx, numbers()).await?;
    let mut letters = orders::owners_in(tx, "tb_dead_letter", numbers()).await?;
    let mut settled = Vec::new();
    let mut insert = Insert::new(
        tx,
        "INSERT INTO tb_dead_letter (order_no, product_id, user_id, quantity, epoch, claimed_at,
             claim_key, state, tries, next_try_at, cause, created_at, updated_at) VALUES ",
        " ON DUPLICATE KEY UPDATE state = VALUES(state), tries = VALUES(tries),
             next_try_at = VALUES(next_try_at), cause = VALUES(cause),
             updated_at = VALUES(updated_at)",
    );
    for FailedClaim { claim, tries, next_try_ms, cause } in failed {
        if owners.get(&claim.order_no).is_some_and(|owner| owner.is_of(claim)) {
            settled.push(claim.order_no);
            continue;
        }
        let letter = letters.entry(claim.order_no).or_insert_with(|| Owner::of(claim));
        if !letter.is_of(claim) {
            return Err(Failure::Rejected(taken(claim.order_no)));
        }
        let state = match next_try_ms {
            Some(_) => DeadLetterState::Retrying,
            None => DeadLetterState::Dead,
        };
        insert.row(&[
            claim.order_no.to_string().as_str().into(),
            claim.item.0.into(),
            claim.user.as_str().into(),
            claim.quantity.into(),
            (claim.epoch as i64).into(),
            claim.claimed_ms.into(),
            key_bits(claim).into(),
            state.code().into(),
            (*tries).into(),
            (*next_try_ms).into(),
            shortened(cause).as_str().into(),
            now_ms.into(),
            now_ms.into(),
        ]);
    }
    insert.send(tx).await?;
    resolve(tx, settled, DeadLetterState::Settled, now_ms).await
}

/// How many claims of each item are retrying and dead, and the units they hold.
pub(super) async fn by_item(session: &mut Session) -> Outcome<Vec<OutstandingClaims>> {
    let read = |row: &Row| {
        let (retrying, dead, units) = (get(row, 1)?, get(row, 2)?, get(row, 3)?);
        Ok(OutstandingClaims { item: ItemId(get(row, 0)?), retrying, dead, units })
    };
    session.all(OPEN_BY_ITEM, (), read).await
}

pub(super) async fn due(
    session: &mut Session,
    now_ms: Millis,
    limit: usize,
) -> Outcome<Vec<FailedClaim>> {
    let sql = format!(
        "SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter
         WHERE state = ? AND next_try_at <= ? ORDER BY next_try_at, order_no LIMIT ?"
    );
    let failed = |row: &Row| {
        let DeadLetter { claim, tries, next_try_ms, cause, .. } = read(row)?;
        Ok(FailedClaim { claim, tries, next_try_ms, cause })
    };
    let asked = (DeadLetterState::Retrying.code(), now_ms, at_most(limit));
    session.all(&sql, asked, failed).await
}

/// Closes the open letters of these orders.
pub(super) async fn resolve(
    tx: &mut Session,
    orders: Vec<OrderNo>,
    to: DeadLetterState,
    now_ms: Millis,
) -> Outcome<()> {
    if orders.is_empty() {
        return Ok(());
    }
    // Almost always there is no open letter at all, and a batch is a thousand claims.
    let sql = "SELECT EXISTS (SELECT 1 FROM tb_dead_letter WHERE state IN (0, 1))";
    if tx.first(sql, (), |row| get::<i64>(row, 0)).await? == Some(0) {
        return Ok(());
    }
    for numbers in number_lists(orders) {
        let sql = format!(
            "UPDATE tb_dead_letter AS d SET state = {}, next_try_at = NULL, updated_at = {now_ms}
             WHERE order_no IN {numbers} AND state IN (0, 1) AND {ITS_OWN_ORDER}",
            to.code()
        );
        tx.change_by_text(&sql).await?;
    }
    Ok(())
}

/// Ends the open letter of a claim whose number is somebody else's order: it can never have a row of
/// its own among the orders. Answers the claim if its letter was open.
pub(super) async fn give_up<'c>(
    tx: &mut Session,
    claim: &'c Claim,
    now_ms: Millis,
) -> Outcome<Option<&'c Claim>> {
    let ended = tx
        .change(
            "UPDATE tb_dead_letter SET state = ?, next_try_at = NULL, updated_at = ?
             WHERE order_no = ? AND product_id = ? AND user_id = ? AND state IN (0, 1)",
            (
                DeadLetterState::Voided.code(),
                now_ms,
                claim.order_no.to_string(),
                claim.item.0,
                claim.user.as_str(),
            ),
        )
        .await?;
    Ok((ended == 1).then_some(claim))
}

pub(super) async fn list(
    session: &mut Session,
    state: Option<DeadLetterState>,
    before: Option<OrderNo>,
    limit: usize,
) -> Outcome<Vec<DeadLetter>> {
    let (one, other) = states(state);
    let sql = format!(
        "SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter
         WHERE state IN (?, ?) AND order_no < ? ORDER BY order_no DESC LIMIT ?"
    );
    session.all(&sql, (one.code(), other.code(), below(before), at_most(limit)), read).await
}

/// A text that the numbers before this one are below; without one, all are.
fn below(before: Option<OrderNo>) -> String {
    before.map_or_else(|| "SL".into(), |no| no.to_string())
}

pub(super) async fn one(session: &mut Session, no: OrderNo) -> Outcome<Option<DeadLetter>> {
    let sql =
        format!("SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter WHERE order_no = ?");
    session.first(&sql, (no.to_string(),), read).await
}

/// The claims of an item that hold units without being orders.
pub(super) async fn open_of(session: &mut Session, item: ItemId) -> Outcome<Vec<Claim>> {
    let sql = format!(
        "SELECT {CLAIM_COLUMNS} FROM tb_dead_letter
         WHERE product_id = ? AND state IN (0, 1) ORDER BY order_no"
    );
    session.all(&sql, (item.0,), claim).await
}

pub(super) async fn of_user(
    session: &mut Session,
    user: &UserId,
    state: Option<DeadLetterState>,
    before: Option<OrderNo>,
    limit: usize,
) -> Outcome<Vec<DeadLetter>> {
    let (one, other) = states(state);
    let sql = format!(
        "SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter
         WHERE user_id = ? AND state IN (?, ?) AND order_no < ? ORDER BY order_no DESC LIMIT ?"
    );
    let asked = (user.as_str(), one.code(), other.code(), below(before), at_most(limit));
    session.all(&sql, asked, read).await
}

/// The state asked for, twice; those that are open if none is.
fn states(asked: Option<DeadLetterState>) -> (DeadLetterState, DeadLetterState) {
    asked.map_or((DeadLetterState::Retrying, DeadLetterState::Dead), |state| (state, state))
}

pub(super) async fn replay(
    tx: &mut Session,
    no: OrderNo,
    now_ms: Millis,
) -> Outcome<Moved<DeadLetterState>> {
    let sql = "SELECT state FROM tb_dead_letter WHERE order_no = ? FOR UPDATE";
    let state =
        tx.first(sql, (no.to_string(),), |row| coded(row, 0, DeadLetterState::from_code)).await?;
    let state = state.ok_or(Failure::NotFound)?;
    if !state.is_open() {
        return Ok(Moved::Was(state));
    }
    tx.change(
        "UPDATE tb_dead_letter SET state = ?, tries = 0, next_try_at = ?, updated_at = ?
         WHERE order_no = ? AND state = ?",
        (DeadLetterState::Retrying.code(), now_ms, now_ms, no.to_string(), state.code()),
    )
    .await?;
    Ok(Moved::Done)
}
