//! Lists of buyers, and those who have to wait.
//!
//! Whoever changes a list holds the row that counts it, so that the count is exact.

use std::collections::{BTreeSet, HashSet};

use async_trait::async_trait;
use sale::{ActivityId, Millis, OrderNo, OrderStatus, PAY_WITHIN_MS_MAX, UserId};

use super::{
    Access, SqlLedger,
    columns::{coded, get, parsed},
    failure::Outcome,
    operators,
    session::{Row, Session, Value, values},
    volumes,
};
use crate::{AuditEntry, BuyerList, BuyerLists, CoolDown, ListKind, Listed, Result};

/// Waits that are over and are forgotten by whoever writes a new one.
const FORGOTTEN_MAX: usize = 100;

/// What becomes of buyers and a list.
#[derive(Clone, Copy)]
enum Change {
    Add,
    Remove,
}

/// Those of these who are on the list, whose count nobody else changes before the transaction ends.
async fn known_of(
    tx: &mut dyn Session,
    list: BuyerList,
    users: &BTreeSet<&UserId>,
) -> Outcome<HashSet<String>> {
    let key = [list.kind.code().into(), list.place().into(), 0_i64.into()];
    let keep = tx.dialect().keep("entries");
    tx.insert("tb_buyer_list (kind, activity_id, entries)", [key].into_iter(), &keep).await?;
    let for_update = tx.dialect().for_update();
    let sql = format!(
        "SELECT entries FROM tb_buyer_list WHERE kind = ? AND activity_id = ? {for_update}"
    );
    tx.first(&sql, values![list.kind.code(), list.place()], |row| get::<i64>(row, 0)).await?;
    let sql = "SELECT user_id FROM tb_buyer_list_entry
         WHERE kind = ? AND activity_id = ? AND user_id IN ?";
    let asked = [list.kind.code().into(), list.place().into(), Value::list(users.iter().copied())];
    Ok(tx.rows(sql, &asked, |row| get::<String>(row, 0)).await?.into_iter().collect())
}

/// Put them on the list, or take them off it; how many of them that changed.
async fn change(
    tx: &mut dyn Session,
    list: BuyerList,
    users: &[UserId],
    change: Change,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<u64> {
    let users: BTreeSet<&UserId> = users.iter().collect();
    let known = known_of(tx, list, &users).await?;
    let (changed, word) = match change {
        Change::Add => (users.len() - known.len(), "added"),
        Change::Remove => (known.len(), "removed"),
    };
    let entries = match change {
        Change::Add => {
            add(tx, list, users, &known, now_ms).await?;
            changed as i64
        }
        Change::Remove => {
            remove(tx, list, known).await?;
            -(changed as i64)
        }
    };
    let sql = "UPDATE tb_buyer_list SET entries = entries + ? WHERE kind = ? AND activity_id = ?";
    tx.execute(sql, values![entries, list.kind.code(), list.place()]).await?;
    operators::audit(tx, &audit.with(word, changed as u64), now_ms).await?;
    Ok(changed as u64)
}

async fn add(
    tx: &mut dyn Session,
    list: BuyerList,
    users: BTreeSet<&UserId>,
    known: &HashSet<String>,
    now_ms: Millis,
) -> Outcome<()> {
    let new = users.into_iter().filter(|user| !known.contains(user.as_str()));
    let row = |user: &'_ UserId| {
        let user = user.as_str().to_owned();
        [list.kind.code().into(), list.place().into(), user.into(), now_ms.into()]
    };
    let into = "tb_buyer_list_entry (kind, activity_id, user_id, created_at)";
    tx.insert(into, new.map(row), "").await
}

async fn remove(tx: &mut dyn Session, list: BuyerList, known: HashSet<String>) -> Outcome<()> {
    let sql = "DELETE FROM tb_buyer_list_entry WHERE kind = ? AND activity_id = ? AND user_id IN ?";
    let gone = [list.kind.code().into(), list.place().into(), Value::list(known)];
    tx.execute(sql, &gone).await?;
    Ok(())
}

async fn page(
    session: &mut dyn Session,
    list: BuyerList,
    after: &str,
    limit: usize,
) -> Outcome<Vec<UserId>> {
    let sql = "SELECT user_id FROM tb_buyer_list_entry
         WHERE kind = ? AND activity_id = ? AND user_id > ? ORDER BY user_id LIMIT ?";
    let asked = values![list.kind.code(), list.place(), after, limit];
    session.rows(sql, asked, |row| parsed(row, 0)).await
}

async fn sizes(session: &mut dyn Session) -> Outcome<Vec<(BuyerList, u64)>> {
    let sql = "SELECT kind, activity_id, entries FROM tb_buyer_list WHERE entries > 0
         ORDER BY kind, activity_id";
    let read = |row: &dyn Row| {
        let activity = Some(get::<i64>(row, 1)?).filter(|id| *id != 0).map(ActivityId);
        let list = BuyerList { kind: coded(row, 0, ListKind::from_code)?, activity };
        Ok((list, get(row, 2)?))
    };
    session.rows(sql, &[], read).await
}

/// All of them in one statement: by their names, which a page of buyers has in few activities.
async fn listed(session: &mut dyn Session, asked: &[(ActivityId, UserId)]) -> Outcome<Vec<Listed>> {
    let places: BTreeSet<i64> = asked.iter().map(|(activity, _)| activity.0).chain([0]).collect();
    let mut found: HashSet<(i64, i64, String)> = HashSet::new();
    for place in places {
        let users: BTreeSet<&UserId> = asked
            .iter()
            .filter(|(activity, _)| place == 0 || activity.0 == place)
            .map(|(_, user)| user)
            .collect();
        for kind in ListKind::ALL {
            let sql = "SELECT user_id FROM tb_buyer_list_entry
                 WHERE kind = ? AND activity_id = ? AND user_id IN ?";
            let asked = [kind.code().into(), place.into(), Value::list(users.iter().copied())];
            let on = session.rows(sql, &asked, |row| get::<String>(row, 0)).await?;
            found.extend(on.into_iter().map(|user| (kind.code(), place, user)));
        }
    }
    let is_on = |kind: ListKind, activity: ActivityId, user: &UserId| {
        [0, activity.0]
            .into_iter()
            .any(|place| found.contains(&(kind.code(), place, user.as_str().to_owned())))
    };
    let answer = |(activity, user): &(ActivityId, UserId)| Listed {
        member: is_on(ListKind::Members, *activity, user),
        blocked: is_on(ListKind::Blocked, *activity, user),
    };
    Ok(asked.iter().map(answer).collect())
}

/// An order that was closed in this time was made at most the longest time to pay before it.
async fn unpaid_closes(
    session: &mut dyn Session,
    users: &[UserId],
    since_ms: Millis,
) -> Outcome<Vec<(UserId, u64)>> {
    let oldest = OrderNo::floor(since_ms.saturating_sub(PAY_WITHIN_MS_MAX));
    let sql = format!(
        "SELECT user_id, COUNT(*) FROM tb_seckill_order {}
         WHERE {} AND user_id IN ? AND order_no >= ? AND status = ? AND closed_at >= ?
         GROUP BY user_id",
        session.dialect().by_index("ix_order_user"),
        volumes::late(session, oldest).await?
    );
    let asked = [
        Value::list(users.iter()),
        oldest.into(),
        OrderStatus::Closed.code().into(),
        since_ms.into(),
    ];
    session.rows(&sql, &asked, |row| Ok((parsed(row, 0)?, get(row, 1)?))).await
}

async fn cool_down(
    tx: &mut dyn Session,
    users: &[UserId],
    until_ms: Millis,
    now_ms: Millis,
) -> Outcome<()> {
    let sql = "SELECT user_id FROM tb_cool_down WHERE until_at < ? LIMIT ?";
    let over = tx.rows(sql, values![now_ms, FORGOTTEN_MAX], |row| get::<String>(row, 0)).await?;
    let sql = "DELETE FROM tb_cool_down WHERE user_id IN ?";
    tx.execute(sql, &[Value::list(over)]).await?;
    let rows: BTreeSet<&UserId> = users.iter().collect();
    let rows = rows
        .into_iter()
        .map(|user| [user.as_str().to_owned().into(), until_ms.into(), now_ms.into()]);
    let replace = tx.dialect().replace("user_id", &["until_at", "created_at"]);
    tx.insert("tb_cool_down (user_id, until_at, created_at)", rows, &replace).await
}

async fn cooling_down(
    session: &mut dyn Session,
    now_ms: Millis,
    limit: usize,
) -> Outcome<Vec<CoolDown>> {
    let sql = "SELECT user_id, until_at FROM tb_cool_down WHERE until_at > ?
         ORDER BY until_at DESC LIMIT ?";
    let read = |row: &dyn Row| Ok(CoolDown { user: parsed(row, 0)?, until_ms: get(row, 1)? });
    session.rows(sql, values![now_ms, limit], read).await
}

async fn end_cool_down(
    tx: &mut dyn Session,
    user: &UserId,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    let sql = "DELETE FROM tb_cool_down WHERE user_id = ? AND until_at > ?";
    let ended = tx.execute(sql, values![user, now_ms]).await? == 1;
    if ended {
        operators::audit(tx, audit, now_ms).await?;
    }
    Ok(ended)
}

impl SqlLedger {
    async fn change_list(
        &self,
        list: BuyerList,
        users: &[UserId],
        what: Change,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<u64> {
        self.run(Access::Write, (users.to_vec(), audit.clone()), move |tx, (users, audit)| {
            Box::pin(change(tx, list, users, what, audit, now_ms))
        })
        .await
    }
}

#[async_trait]
impl BuyerLists for SqlLedger {
    async fn list_buyers(
        &self,
        list: BuyerList,
        users: &[UserId],
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<u64> {
        self.change_list(list, users, Change::Add, audit, now_ms).await
    }

    async fn unlist_buyers(
        &self,
        list: BuyerList,
        users: &[UserId],
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<u64> {
        self.change_list(list, users, Change::Remove, audit, now_ms).await
    }

    async fn listed_buyers(
        &self,
        list: BuyerList,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<UserId>> {
        let after = after.map(|user| user.as_str().to_owned()).unwrap_or_default();
        self.run(Access::Statement, after, move |session, after| {
            Box::pin(page(session, list, after, limit))
        })
        .await
    }

    async fn buyer_lists(&self) -> Result<Vec<(BuyerList, u64)>> {
        self.run(Access::Statement, (), |session, ()| Box::pin(sizes(session))).await
    }

    async fn listed(&self, asked: &[(ActivityId, UserId)]) -> Result<Vec<Listed>> {
        self.run(Access::Statement, asked.to_vec(), |session, asked| {
            Box::pin(listed(session, asked))
        })
        .await
    }

    async fn unpaid_closes(
        &self,
        users: &[UserId],
        since_ms: Millis,
    ) -> Result<Vec<(UserId, u64)>> {
        self.run(Access::Statement, users.to_vec(), move |session, users| {
            Box::pin(unpaid_closes(session, users, since_ms))
        })
        .await
    }

    async fn cool_down(&self, users: &[UserId], until_ms: Millis, now_ms: Millis) -> Result<()> {
        self.run(Access::Write, users.to_vec(), move |tx, users| {
            Box::pin(cool_down(tx, users, until_ms, now_ms))
        })
        .await
    }

    async fn cooling_down(&self, now_ms: Millis, limit: usize) -> Result<Vec<CoolDown>> {
        self.run(Access::Statement, (), move |session, ()| {
            Box::pin(cooling_down(session, now_ms, limit))
        })
        .await
    }

    async fn end_cool_down(
        &self,
        user: &UserId,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        self.run(Access::Write, (user.clone(), audit.clone()), move |tx, (user, audit)| {
            Box::pin(end_cool_down(tx, user, audit, now_ms))
        })
        .await
    }
}
