//! Deliveries of webhooks: a row for each event and endpoint.
//!
//! **The life of a row.** It is written in the place of an outbox row, in one transaction, once: the second
//! of two who try finds the outbox row gone, and the event's id is unique for its endpoint. It is *pending*,
//! or *behind* if an earlier one about the same subject is not over. When one was taken, the next one behind
//! it becomes pending in the same transaction. One that is given up takes those behind it along.
//!
//! **Between two transactions.** Whoever puts a row behind another holds that one's lock, and whoever is
//! done with that one needs it: so no row is put behind one that has just been taken, and forgotten there.
//!
//! **A million rows.** What is due is found by an index over state and time in which nothing else is: rows
//! that are behind others, or over, have states of their own.

use std::collections::{BTreeMap, HashMap, HashSet};

use sale::Millis;

use super::{
    columns::{coded, get},
    failure::{Failure, Outcome},
    session::{Row, Session, Value, values},
    webhooks::{self, REMOVED},
};
use crate::{
    DeliveryFilter, DeliveryState, ForgetBefore, NewDelivery, Replayed, Tried, TriedOutcome,
    WebhookDelivery, WebhookLag, outbox::shortened,
};

/// Rows of one endpoint that are counted. A line that is longer is long.
const COUNTED_ROWS_MAX: usize = 100_000;

const NOT_TAKEN: &str = "an earlier event about the same subject was not taken";

const COLUMNS: &str = "id, event_id, kind, subject, body, state, tries, first_try_at, next_try_at, status, \
     cause, created_at, done_at";

fn read(row: &dyn Row) -> Outcome<WebhookDelivery> {
    Ok(WebhookDelivery {
        id: get(row, 0)?,
        event_id: get(row, 1)?,
        kind: get(row, 2)?,
        subject: get(row, 3)?,
        body: get(row, 4)?,
        state: coded(row, 5, DeliveryState::from_code)?,
        tries: get(row, 6)?,
        first_try_ms: get(row, 7)?,
        next_try_ms: get(row, 8)?,
        status: get(row, 9)?,
        cause: get(row, 10)?,
        created_ms: get(row, 11)?,
        done_ms: get(row, 12)?,
    })
}

pub(super) async fn spread(
    tx: &mut dyn Session,
    outbox: &[i64],
    new: &[NewDelivery],
) -> Outcome<()> {
    let ids = Value::list(outbox.iter().copied());
    let gone = tx.execute("DELETE FROM tb_outbox WHERE id IN ?", &[ids]).await?;
    if gone != outbox.len() as u64 {
        // Somebody else spreads them.
        return Err(Failure::Contended);
    }
    let mut by_endpoint: BTreeMap<i64, Vec<&NewDelivery>> = BTreeMap::new();
    new.iter().for_each(|one| by_endpoint.entry(one.endpoint).or_default().push(one));
    for (endpoint, new) in by_endpoint {
        let later = new.iter().filter(|one| !one.kind.comes_first());
        let mut lines = lines(tx, endpoint, later.map(|one| one.subject.as_str())).await?;
        let rows: Vec<(&NewDelivery, DeliveryState)> = new
            .into_iter()
            .map(|one| {
                let line = lines.entry(one.subject.clone()).or_default();
                (one, line.join())
            })
            .collect();
        insert(tx, &rows).await?;
    }
    Ok(())
}

/// What is before a row about the same subject.
#[derive(Default)]
struct Line {
    open: bool,
    failed: bool,
}

impl Line {
    /// The state of one that comes now.
    fn join(&mut self) -> DeliveryState {
        if self.open {
            DeliveryState::Behind
        } else if self.failed {
            DeliveryState::Failed
        } else {
            self.open = true;
            DeliveryState::Pending
        }
    }
}

/// What is not over, or failed, about these subjects; held by this transaction.
async fn lines(
    tx: &mut dyn Session,
    endpoint: i64,
    subjects: impl Iterator<Item = &str>,
) -> Outcome<HashMap<String, Line>> {
    let subjects: HashSet<&str> = subjects.collect();
    let mut lines: HashMap<String, Line> = HashMap::new();
    if subjects.is_empty() {
        return Ok(lines);
    }
    let sql = format!(
        "SELECT subject, state FROM tb_webhook_delivery {}
         WHERE endpoint_id = ? AND subject IN ? AND state <> ? {}",
        tx.dialect().by_index("ix_webhook_subject"),
        tx.dialect().for_update()
    );
    let read =
        |row: &dyn Row| Ok((get::<String>(row, 0)?, coded(row, 1, DeliveryState::from_code)?));
    let delivered = DeliveryState::Delivered.code();
    let asked = [endpoint.into(), Value::list(subjects), delivered.into()];
    for (subject, state) in tx.rows(&sql, &asked, read).await? {
        let line = lines.entry(subject).or_default();
        line.failed |= state == DeliveryState::Failed;
        line.open |= matches!(state, DeliveryState::Pending | DeliveryState::Behind);
    }
    Ok(lines)
}

async fn insert(tx: &mut dyn Session, rows: &[(&NewDelivery, DeliveryState)]) -> Outcome<()> {
    let rows = rows.iter().map(|(new, state)| {
        let cause = (*state == DeliveryState::Failed).then_some(NOT_TAKEN);
        [
            new.endpoint.into(),
            (&new.event_id).into(),
            new.kind.as_str().into(),
            (&new.subject).into(),
            (&new.body).into(),
            state.code().into(),
            cause.into(),
            new.created_ms.into(),
        ]
    });
    let into = "tb_webhook_delivery
         (endpoint_id, event_id, kind, subject, body, state, cause, created_at)";
    // An event that was told before, by a ledger that has been restored since, is told once.
    let or_else = tx.dialect().keep("tries");
    tx.insert(into, rows, &or_else).await
}

pub(super) async fn due(
    session: &mut dyn Session,
    endpoint: i64,
    (now_ms, pause_ms_max): (Millis, Millis),
    limit: usize,
) -> Outcome<Vec<WebhookDelivery>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM tb_webhook_delivery {}
         WHERE endpoint_id = ? AND state = ? AND (next_try_at <= ? OR next_try_at > ?)
         ORDER BY next_try_at, id LIMIT ?",
        session.dialect().by_index("ix_webhook_due")
    );
    let too_late_ms = now_ms.saturating_add(pause_ms_max);
    let pending = DeliveryState::Pending.code();
    session.rows(&sql, values![endpoint, pending, now_ms, too_late_ms, limit], read).await
}

/// All that waits for its next try may be tried now.
pub(super) async fn all_due(tx: &mut dyn Session, endpoint: i64) -> Outcome<()> {
    let sql = "UPDATE tb_webhook_delivery SET next_try_at = 0
         WHERE endpoint_id = ? AND state = ? AND next_try_at > 0";
    tx.execute(sql, values![endpoint, DeliveryState::Pending.code()]).await?;
    Ok(())
}

pub(super) async fn tried(
    tx: &mut dyn Session,
    endpoint: i64,
    tried: &[Tried],
    now_ms: Millis,
) -> Outcome<()> {
    // Always in one order, so that two who write of the same rows wait for each other and no more.
    let mut tried: Vec<&Tried> = tried.iter().collect();
    tried.sort_by_key(|one| one.id);
    let (mut taken, mut taken_of, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
    for Tried { id, subject, status, outcome } in tried {
        match outcome {
            TriedOutcome::Taken => {
                taken.push((*id, *status));
                taken_of.push(subject.as_str());
            }
            TriedOutcome::Again { next_try_ms, cause } => {
                let sql = "UPDATE tb_webhook_delivery SET tries = tries + 1,
                         first_try_at = COALESCE(first_try_at, ?), next_try_at = ?, status = ?, cause = ?
                     WHERE id = ? AND state = 0";
                let cause = shortened(cause);
                tx.execute(sql, values![now_ms, *next_try_ms, *status, cause, *id]).await?;
            }
            TriedOutcome::GivenUp { cause } => {
                let sql =
                    "UPDATE tb_webhook_delivery SET state = 2, tries = tries + 1, next_try_at = 0,
                         status = ?, cause = ?, done_at = ? WHERE id = ? AND state = 0";
                tx.execute(sql, values![*status, shortened(cause), now_ms, *id]).await?;
                given_up.push(subject.as_str());
            }
        }
    }
    note_taken(tx, &taken, now_ms).await?;
    let_next_go(tx, endpoint, &taken_of).await?;
    if !given_up.is_empty() {
        let sql = "UPDATE tb_webhook_delivery SET state = 2, cause = ?, done_at = ?
             WHERE endpoint_id = ? AND subject IN ? AND state = 3";
        let subjects = Value::list(given_up);
        tx.execute(sql, values![NOT_TAKEN, now_ms, endpoint, subjects]).await?;
    }
    Ok(())
}

async fn note_taken(
    tx: &mut dyn Session,
    taken: &[(i64, Option<u32>)],
    now_ms: Millis,
) -> Outcome<()> {
    let mut by_status: BTreeMap<Option<u32>, Vec<i64>> = BTreeMap::new();
    taken.iter().for_each(|(id, status)| by_status.entry(*status).or_default().push(*id));
    for (status, ids) in by_status {
        let sql = "UPDATE tb_webhook_delivery SET state = 1, tries = tries + 1, next_try_at = 0,
                 first_try_at = COALESCE(first_try_at, ?), status = ?, cause = NULL, done_at = ?
             WHERE id IN ? AND state = 0";
        tx.execute(sql, values![now_ms, status, now_ms, Value::list(ids)]).await?;
    }
    Ok(())
}

/// Of each of these subjects the first one behind becomes pending, unless another is.
async fn let_next_go(tx: &mut dyn Session, endpoint: i64, subjects: &[&str]) -> Outcome<()> {
    if subjects.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "SELECT id, subject, state FROM tb_webhook_delivery {}
         WHERE endpoint_id = ? AND subject IN ? AND state IN (0, 3) ORDER BY id {}",
        tx.dialect().by_index("ix_webhook_subject"),
        tx.dialect().for_update()
    );
    let read = |row: &dyn Row| {
        let state = coded(row, 2, DeliveryState::from_code)?;
        Ok((get::<i64>(row, 0)?, get::<String>(row, 1)?, state))
    };
    let subjects: HashSet<&str> = subjects.iter().copied().collect();
    let asked = [endpoint.into(), Value::list(subjects)];
    let mut rows = tx.rows(&sql, &asked, read).await?;
    // MySQL is asked in pieces.
    rows.sort_by_key(|(id, ..)| *id);
    let busy: HashSet<String> = rows
        .iter()
        .filter(|(_, _, state)| *state == DeliveryState::Pending)
        .map(|(_, subject, _)| subject.clone())
        .collect();
    let mut gone = busy;
    let next: Vec<i64> = rows
        .into_iter()
        .filter(|(_, _, state)| *state == DeliveryState::Behind)
        .filter_map(|(id, subject, _)| gone.insert(subject).then_some(id))
        .collect();
    if next.is_empty() {
        return Ok(());
    }
    let sql =
        "UPDATE tb_webhook_delivery SET state = 0, next_try_at = 0 WHERE id IN ? AND state = 3";
    tx.execute(sql, &[Value::list(next)]).await?;
    Ok(())
}

pub(super) async fn list(
    session: &mut dyn Session,
    filter: &DeliveryFilter,
) -> Outcome<Vec<WebhookDelivery>> {
    let states = match filter.state {
        Some(DeliveryState::Pending | DeliveryState::Behind) => {
            vec![DeliveryState::Pending, DeliveryState::Behind]
        }
        Some(state) => vec![state],
        None => vec![
            DeliveryState::Pending,
            DeliveryState::Delivered,
            DeliveryState::Failed,
            DeliveryState::Behind,
        ],
    };
    let mut found = Vec::new();
    for state in states {
        found.extend(list_state(session, filter, (state, "= 0")).await?);
        if state == DeliveryState::Pending {
            found.extend(list_state(session, filter, (state, "> 0")).await?);
        }
    }
    found.sort_by_key(|one| std::cmp::Reverse(one.id));
    found.truncate(filter.limit);
    Ok(found)
}

/// Rows of one state stand in the index by the time of their next try and then by their id. All but the few
/// that were tried in vain have no such time, and so are in the order of their ids, however many there are.
/// Of those few the index alone is read; the rows are looked up when it is known which they are.
async fn list_state(
    session: &mut dyn Session,
    filter: &DeliveryFilter,
    (state, next_try): (DeliveryState, &str),
) -> Outcome<Vec<WebhookDelivery>> {
    let (index, subject) = match &filter.subject {
        Some(_) => ("ix_webhook_subject", "subject = ? AND"),
        None => ("ix_webhook_due", ""),
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM (SELECT id AS found FROM tb_webhook_delivery {}
             WHERE endpoint_id = ? AND {subject} state = ? AND next_try_at {next_try} AND id < ?
             ORDER BY id DESC LIMIT ?) AS newest
         JOIN tb_webhook_delivery ON id = found ORDER BY id DESC",
        session.dialect().by_index(index)
    );
    let mut values: Vec<Value<'_>> = vec![filter.endpoint.into()];
    values.extend(filter.subject.as_ref().map(Into::into));
    let before = filter.before.unwrap_or(i64::MAX);
    values.extend([state.code().into(), before.into(), filter.limit.into()]);
    session.rows(&sql, &values, read).await
}

/// Lines failed rows up again, oldest first: the first one of a subject goes, the others are behind it.
async fn line_up_again(
    tx: &mut dyn Session,
    endpoint: i64,
    failed: Vec<(i64, String)>,
) -> Outcome<usize> {
    let subjects: Vec<String> = failed.iter().map(|(_, subject)| subject.clone()).collect();
    let mut lines = lines(tx, endpoint, subjects.iter().map(String::as_str)).await?;
    lines.values_mut().for_each(|line| line.failed = false);
    let (mut pending, mut behind) = (Vec::new(), Vec::new());
    for (id, subject) in failed {
        match lines.entry(subject).or_default().join() {
            DeliveryState::Pending => pending.push(id),
            _ => behind.push(id),
        }
    }
    let again = pending.len() + behind.len();
    for (ids, state) in [(pending, DeliveryState::Pending), (behind, DeliveryState::Behind)] {
        if !ids.is_empty() {
            let sql = "UPDATE tb_webhook_delivery
                 SET state = ?, tries = 0, first_try_at = NULL, next_try_at = 0, done_at = NULL
                 WHERE id IN ? AND state = 2";
            tx.execute(sql, values![state.code(), Value::list(ids)]).await?;
        }
    }
    Ok(again)
}

pub(super) async fn replay(tx: &mut dyn Session, endpoint: i64, id: i64) -> Outcome<Replayed> {
    let sql = format!(
        "SELECT {COLUMNS} FROM tb_webhook_delivery WHERE id = ? AND endpoint_id = ? {}",
        tx.dialect().for_update()
    );
    let Some(found) = tx.first(&sql, values![id, endpoint], read).await? else {
        return Ok(Replayed::NotFound);
    };
    match found.state {
        DeliveryState::Pending | DeliveryState::Behind => Ok(Replayed::OnItsWay),
        DeliveryState::Delivered => {
            let sql = "UPDATE tb_webhook_delivery
                 SET state = 0, tries = 0, first_try_at = NULL, done_at = NULL WHERE id = ?";
            tx.execute(sql, values![id]).await?;
            Ok(Replayed::Again(1))
        }
        DeliveryState::Failed => {
            let sql = "SELECT id, subject FROM tb_webhook_delivery
                 WHERE endpoint_id = ? AND subject = ? AND state = 2 ORDER BY id";
            let read = |row: &dyn Row| Ok((get(row, 0)?, get(row, 1)?));
            let failed = tx.rows(sql, values![endpoint, &found.subject], read).await?;
            Ok(Replayed::Again(line_up_again(tx, endpoint, failed).await?))
        }
    }
}

pub(super) async fn replay_failed(
    tx: &mut dyn Session,
    endpoint: i64,
    since_ms: Millis,
    limit: usize,
) -> Outcome<usize> {
    let sql = format!(
        "SELECT id, subject FROM tb_webhook_delivery {}
         WHERE endpoint_id = ? AND state = 2 AND created_at >= ?
         ORDER BY created_at, id LIMIT ?",
        tx.dialect().by_index("ix_webhook_age")
    );
    let read = |row: &dyn Row| Ok((get::<i64>(row, 0)?, get::<String>(row, 1)?));
    let mut failed = tx.rows(&sql, values![endpoint, since_ms, limit], read).await?;
    failed.sort_by_key(|(id, _)| *id);
    line_up_again(tx, endpoint, failed).await
}

pub(super) async fn lag(session: &mut dyn Session, endpoint: i64) -> Outcome<WebhookLag> {
    let sql = format!(
        "SELECT COUNT(*), MIN(created_at) FROM (SELECT created_at FROM tb_webhook_delivery {}
             WHERE endpoint_id = ? AND state = ? ORDER BY created_at LIMIT ?) AS oldest",
        session.dialect().by_index("ix_webhook_age")
    );
    let mut counted = Vec::new();
    for state in [DeliveryState::Pending, DeliveryState::Behind, DeliveryState::Failed] {
        let read = |row: &dyn Row| Ok((get::<u64>(row, 0)?, get::<Option<Millis>>(row, 1)?));
        let asked = values![endpoint, state.code(), COUNTED_ROWS_MAX];
        counted.push(session.first(&sql, asked, read).await?.unwrap_or((0, None)));
    }
    Ok(WebhookLag {
        pending: counted[0].0 + counted[1].0,
        failed: counted[2].0,
        oldest_ms: [counted[0].1, counted[1].1].into_iter().flatten().min(),
    })
}

/// When the oldest event happened that is not over.
pub(super) async fn oldest(session: &mut dyn Session, endpoint: i64) -> Outcome<Option<Millis>> {
    let sql = format!(
        "SELECT MIN(created_at) FROM tb_webhook_delivery {} WHERE endpoint_id = ? AND state = ?",
        session.dialect().by_index("ix_webhook_age")
    );
    let mut oldest = None;
    for state in [DeliveryState::Pending, DeliveryState::Behind] {
        let asked = values![endpoint, state.code()];
        let found =
            session.first(&sql, asked, |row| get::<Option<Millis>>(row, 0)).await?.flatten();
        oldest = [oldest, found].into_iter().flatten().min();
    }
    Ok(oldest)
}

/// A few old rows of each state and endpoint.
pub(super) async fn forget(
    tx: &mut dyn Session,
    before: &ForgetBefore,
    limit: usize,
) -> Outcome<bool> {
    let sql = "SELECT id, state FROM tb_webhook_endpoint ORDER BY id";
    let read = |row: &dyn Row| Ok((get::<i64>(row, 0)?, get::<i64>(row, 1)?));
    let endpoints = tx.rows(sql, &[], read).await?;
    let (mut more, mut empty) = (false, Vec::new());
    for (endpoint, state) in endpoints {
        let removed = state == REMOVED;
        let mut found = 0;
        for (of_state, before_ms) in [
            (DeliveryState::Delivered, before.delivered_ms),
            (DeliveryState::Failed, before.others_ms),
            (DeliveryState::Pending, before.others_ms),
            (DeliveryState::Behind, before.others_ms),
        ] {
            let before_ms = if removed { Millis::MAX } else { before_ms };
            found += forget_some(tx, (endpoint, of_state), before_ms, limit).await?;
        }
        more |= found >= limit;
        if removed && found == 0 {
            empty.push(endpoint);
        }
    }
    if !empty.is_empty() {
        webhooks::forget_removed(tx, &empty, before.removed_ms).await?;
    }
    Ok(more)
}

async fn forget_some(
    tx: &mut dyn Session,
    (endpoint, state): (i64, DeliveryState),
    before_ms: Millis,
    limit: usize,
) -> Outcome<usize> {
    let sql = format!(
        "SELECT id, subject FROM tb_webhook_delivery {}
         WHERE endpoint_id = ? AND state = ? AND created_at < ? ORDER BY created_at LIMIT ?",
        tx.dialect().by_index("ix_webhook_age")
    );
    let asked = values![endpoint, state.code(), before_ms, limit];
    let read = |row: &dyn Row| Ok((get::<i64>(row, 0)?, get::<String>(row, 1)?));
    let (ids, subjects): (Vec<i64>, Vec<String>) =
        tx.rows(&sql, asked, read).await?.into_iter().unzip();
    let found = ids.len();
    if found > 0 {
        tx.execute("DELETE FROM tb_webhook_delivery WHERE id IN ?", &[Value::list(ids)]).await?;
        if state == DeliveryState::Pending {
            let subjects: Vec<&str> = subjects.iter().map(String::as_str).collect();
            let_next_go(tx, endpoint, &subjects).await?;
        }
    }
    Ok(found)
}
