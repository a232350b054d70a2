//! Claims that failed: waiting for their next try, dead, or resolved.
//!
//! An open letter holds its units. So a letter is never opened for a claim that is an order (or
//! void) already: its units are accounted for there. The lock of the item's row keeps the two apart.
//! A number that is somebody else's order is no such order: its claim failed, holds its units, and
//! must be seen.

use async_trait::async_trait;
use sale::{Claim, FailedClaim, ItemId, Millis, OrderNo, UserId};

use super::{
    Access, SqlLedger,
    columns::{CLAIM_COLUMNS, claim, coded, get, key_bits},
    failure::{Failure, Outcome},
    orders,
    session::{Row, Session, Value, values},
    stock,
};
use crate::{
    DeadLetter, DeadLetterState, DeadLetters, Moved, OutstandingClaims, Result,
    decide::{Owner, taken},
    outbox::shortened,
};

/// So far the clocks of instances may be apart.
const CLOCKS_APART_MS_MAX: Millis = 10_000;
/// The columns of a dead letter after those of its claim.
const LETTER_COLUMNS: &str = "state, tries, next_try_at, cause, created_at, updated_at";

/// Of a dead letter `d`: its claim became an order after all. The number alone does not say so.
const ITS_OWN_ORDER: &str = "EXISTS (SELECT 1 FROM tb_seckill_order AS o
     WHERE o.order_no = d.order_no AND o.product_id = d.product_id AND o.user_id = d.user_id)";

fn read(row: &dyn Row) -> Outcome<DeadLetter> {
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

pub(super) async fn defer(
    tx: &mut dyn Session,
    failed: &[FailedClaim],
    now_ms: Millis,
) -> Outcome<()> {
    stock::lock_items(tx, failed.iter().map(|failed| failed.claim.item)).await?;
    let numbers = || failed.iter().map(|failed| failed.claim.order_no);
    let owners = orders::owners(tx, numbers()).await?;
    let mut letters = orders::owners_in(tx, "tb_dead_letter", numbers()).await?;
    let (mut settled, mut open) = (Vec::new(), Vec::new());
    for failed in failed {
        let claim = &failed.claim;
        if owners.get(&claim.order_no).is_some_and(|owner| owner.is_of(claim)) {
            settled.push(claim.order_no);
            continue;
        }
        let letter = letters.entry(claim.order_no).or_insert_with(|| Owner::of(claim));
        if !letter.is_of(claim) {
            return Err(Failure::Rejected(taken(claim.order_no)));
        }
        open.push(failed);
    }
    write(tx, &open, now_ms).await?;
    resolve(tx, settled, DeadLetterState::Settled, now_ms).await
}

/// Opens a letter for each of these claims, or brings the one it has up to date.
async fn write(tx: &mut dyn Session, failed: &[&FailedClaim], now_ms: Millis) -> Outcome<()> {
    let rows = failed.iter().map(|FailedClaim { claim, tries, next_try_ms, cause }| {
        let state = match next_try_ms {
            Some(_) => DeadLetterState::Retrying,
            None => DeadLetterState::Dead,
        };
        [
            claim.order_no.into(),
            claim.item.into(),
            (&claim.user).into(),
            claim.quantity.into(),
            (claim.epoch as i64).into(),
            claim.claimed_ms.into(),
            key_bits(claim).into(),
            state.code().into(),
            (*tries).into(),
            (*next_try_ms).into(),
            shortened(cause).into(),
            now_ms.into(),
            now_ms.into(),
        ]
    });
    let into = format!("tb_dead_letter ({CLAIM_COLUMNS}, {LETTER_COLUMNS})");
    let newer = ["state", "tries", "next_try_at", "cause", "updated_at"];
    let or_else = tx.dialect().replace("order_no", &newer);
    tx.insert(&into, rows, &or_else).await
}

/// How many claims of each item are retrying and dead, and the units they hold. By the index over the
/// state, so letters that are over cost nothing.
pub(super) async fn by_item(session: &mut dyn Session) -> Outcome<Vec<OutstandingClaims>> {
    let read = |row: &dyn Row| {
        let (retrying, dead, units) = (get(row, 1)?, get(row, 2)?, get(row, 3)?);
        Ok(OutstandingClaims { item: ItemId(get(row, 0)?), retrying, dead, units })
    };
    let sql = "SELECT product_id, CAST(SUM(state = 0) AS SIGNED), CAST(SUM(state = 1) AS SIGNED),
             CAST(SUM(quantity) AS SIGNED)
         FROM tb_dead_letter WHERE state IN (0, 1) GROUP BY product_id ORDER BY product_id";
    session.rows(sql, &[], read).await
}

pub(super) async fn due(
    session: &mut dyn Session,
    now_ms: Millis,
    limit: usize,
) -> Outcome<Vec<FailedClaim>> {
    let sql = format!(
        "SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter
         WHERE state = ? AND next_try_at <= ? ORDER BY next_try_at, order_no LIMIT ?"
    );
    let failed = |row: &dyn Row| {
        let DeadLetter { claim, tries, next_try_ms, cause, .. } = read(row)?;
        Ok(FailedClaim { claim, tries, next_try_ms, cause })
    };
    session.rows(&sql, values![DeadLetterState::Retrying.code(), now_ms, limit], failed).await
}

/// By the index over the state. When each was noted says how far ahead the clock was; when its next try is
/// does not, for that may be hours away by any clock.
pub(super) async fn due_by_another_clock(tx: &mut dyn Session, now_ms: Millis) -> Outcome<u64> {
    let sql = "UPDATE tb_dead_letter SET next_try_at = ?, updated_at = ?
         WHERE state = ? AND next_try_at > ? AND updated_at > ?";
    let retrying = DeadLetterState::Retrying.code();
    let ahead_ms = now_ms.saturating_add(CLOCKS_APART_MS_MAX);
    tx.execute(sql, values![now_ms, now_ms, retrying, now_ms, ahead_ms]).await
}

/// Closes the open letters of these orders.
pub(super) async fn resolve(
    tx: &mut dyn Session,
    orders: Vec<OrderNo>,
    to: DeadLetterState,
    now_ms: Millis,
) -> Outcome<()> {
    if orders.is_empty() {
        return Ok(());
    }
    // Almost always there is no open letter at all, and a batch is a thousand claims.
    let sql = "SELECT EXISTS (SELECT 1 FROM tb_dead_letter WHERE state IN (0, 1))";
    if tx.first(sql, &[], |row| get::<bool>(row, 0)).await? == Some(false) {
        return Ok(());
    }
    let sql = format!(
        "UPDATE tb_dead_letter AS d SET state = ?, next_try_at = NULL, updated_at = ?
         WHERE order_no IN ? AND state IN (0, 1) AND {ITS_OWN_ORDER}"
    );
    tx.execute(&sql, values![to.code(), now_ms, Value::list(orders)]).await?;
    Ok(())
}

/// Ends the open letter of a claim whose number is somebody else's order: it can never have a row of
/// its own among the orders. Answers the claim if its letter was open.
pub(super) async fn give_up<'c>(
    tx: &mut dyn Session,
    claim: &'c Claim,
    now_ms: Millis,
) -> Outcome<Option<&'c Claim>> {
    let ended = tx
        .execute(
            "UPDATE tb_dead_letter SET state = ?, next_try_at = NULL, updated_at = ?
             WHERE order_no = ? AND product_id = ? AND user_id = ? AND state IN (0, 1)",
            values![
                DeadLetterState::Voided.code(),
                now_ms,
                claim.order_no,
                claim.item,
                &claim.user
            ],
        )
        .await?;
    Ok((ended == 1).then_some(claim))
}

async fn list(
    session: &mut dyn Session,
    state: Option<DeadLetterState>,
    before: Option<OrderNo>,
    limit: usize,
) -> Outcome<Vec<DeadLetter>> {
    let (one, other) = states(state);
    let sql = format!(
        "SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter
         WHERE state IN (?, ?) AND order_no < ? ORDER BY order_no DESC LIMIT ?"
    );
    session.rows(&sql, values![one.code(), other.code(), below(before), limit], read).await
}

/// A text that the numbers before this one are below; without one, all are.
fn below(before: Option<OrderNo>) -> String {
    before.map_or_else(|| "SL".into(), |no| no.to_string())
}

async fn one(session: &mut dyn Session, no: OrderNo) -> Outcome<Option<DeadLetter>> {
    let sql =
        format!("SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter WHERE order_no = ?");
    session.first(&sql, values![no], read).await
}

async fn by_no(session: &mut dyn Session, numbers: &[OrderNo]) -> Outcome<Vec<DeadLetter>> {
    let sql =
        format!("SELECT {CLAIM_COLUMNS}, {LETTER_COLUMNS} FROM tb_dead_letter WHERE order_no IN ?");
    session.rows(&sql, values![Value::list(numbers.iter().copied())], read).await
}

/// The claims of an item that hold units without being orders.
pub(super) async fn open_of(session: &mut dyn Session, item: ItemId) -> Outcome<Vec<Claim>> {
    let sql = format!(
        "SELECT {CLAIM_COLUMNS} FROM tb_dead_letter
         WHERE product_id = ? AND state IN (0, 1) ORDER BY order_no"
    );
    session.rows(&sql, values![item], claim).await
}

async fn of_user(
    session: &mut dyn Session,
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
    let asked = values![user, one.code(), other.code(), below(before), limit];
    session.rows(&sql, asked, read).await
}

/// The two states to look for: the one asked for, twice, or both of an open letter if none is.
fn states(asked: Option<DeadLetterState>) -> (DeadLetterState, DeadLetterState) {
    asked.map_or((DeadLetterState::Retrying, DeadLetterState::Dead), |state| (state, state))
}

async fn replay(
    tx: &mut dyn Session,
    no: OrderNo,
    now_ms: Millis,
) -> Outcome<Moved<DeadLetterState>> {
    let for_update = tx.dialect().for_update();
    let sql = format!("SELECT state FROM tb_dead_letter WHERE order_no = ? {for_update}");
    let read = |row: &dyn Row| coded(row, 0, DeadLetterState::from_code);
    let state = tx.first(&sql, values![no], read).await?;
    let state = state.ok_or(Failure::NotFound)?;
    if !state.is_open() {
        return Ok(Moved::Was(state));
    }
    tx.execute(
        "UPDATE tb_dead_letter SET state = ?, tries = 0, next_try_at = ?, updated_at = ?
         WHERE order_no = ? AND state = ?",
        values![DeadLetterState::Retrying.code(), now_ms, now_ms, no, state.code()],
    )
    .await?;
    Ok(Moved::Done)
}

#[async_trait]
impl DeadLetters for SqlLedger {
    async fn dead_letters(
        &self,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        self.run(Access::Statement, (), move |session, ()| {
            Box::pin(list(session, state, before, limit))
        })
        .await
    }

    async fn dead_letter(&self, no: OrderNo) -> Result<Option<DeadLetter>> {
        self.run(Access::Statement, (), move |session, ()| Box::pin(one(session, no))).await
    }

    async fn dead_letters_by_no(&self, numbers: &[OrderNo]) -> Result<Vec<DeadLetter>> {
        self.run(Access::Statement, numbers.to_vec(), |session, numbers| {
            Box::pin(by_no(session, numbers))
        })
        .await
    }

    async fn dead_letters_of(
        &self,
        user: &UserId,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        self.run(Access::Snapshot, user.clone(), move |session, user| {
            Box::pin(of_user(session, user, state, before, limit))
        })
        .await
    }

    async fn replay(&self, no: OrderNo, now_ms: Millis) -> Result<Moved<DeadLetterState>> {
        self.run(Access::Write, (), move |tx, ()| Box::pin(replay(tx, no, now_ms))).await
    }
}
