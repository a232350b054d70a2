//! Nodes: which process makes order numbers with which node number.

use std::collections::BTreeMap;

use async_trait::async_trait;
use sale::{Millis, NODES_MAX};

use super::{
    Access, SqlLedger,
    columns::get,
    failure::Outcome,
    session::{Row, Session, values},
    upkeep::now_ms,
};
use crate::{NODE_LEASE_MS_MAX, NodeLease, Nodes, Result};

/// Who asks.
struct Asked {
    holder: String,
    /// Of what time their latest number may be, by their own clock.
    numbers_ms: Millis,
    /// The time, if the ledger has no clock of its own.
    ours_ms: Millis,
}

struct Held {
    node: u16,
    holder: String,
    taken_ms: Millis,
    until_ms: Millis,
    /// The holder's numbers are of times up to this, by its own clock.
    reach_ms: Millis,
}

impl Held {
    /// May those who ask make numbers with it that its holder, another one, neither made nor will make?
    fn is_free_for(&self, asked: &Asked, now_ms: Millis) -> bool {
        self.until_ms <= now_ms && self.reach_ms < asked.numbers_ms
    }
}

const COLUMNS: &str = "node, holder, taken_at, until_at, reach";

fn held(row: &dyn Row) -> Outcome<Held> {
    Ok(Held {
        node: get::<u32>(row, 0)? as u16,
        holder: get(row, 1)?,
        taken_ms: get(row, 2)?,
        until_ms: get(row, 3)?,
        reach_ms: get(row, 4)?,
    })
}

async fn take_node(tx: &mut dyn Session, asked: &Asked, first: u16) -> Outcome<Option<NodeLease>> {
    let now_ms = now_ms(tx, asked.ours_ms).await?;
    // What seems to be given for longer was given before the ledger's clock was set back.
    let latest_ms = now_ms.saturating_add(NODE_LEASE_MS_MAX);
    let sql = "UPDATE tb_node SET until_at = ? WHERE until_at > ?";
    tx.execute(sql, values![latest_ms, latest_ms]).await?;
    let known = tx.rows(&format!("SELECT {COLUMNS} FROM tb_node"), &[], held).await?;
    let known: BTreeMap<u16, Held> = known.into_iter().map(|held| (held.node, held)).collect();
    for node in (0..NODES_MAX).map(|n| (first % NODES_MAX + n) % NODES_MAX) {
        let before = known.get(&node);
        let free = before.is_none_or(|held| held.is_free_for(asked, now_ms));
        // If it is not given to us, somebody was faster.
        if free && let Some(lease) = give(tx, asked, node, before, now_ms).await? {
            return Ok(Some(lease));
        }
    }
    Ok(None)
}

/// Compare-and-set: nothing if it is no longer as it was `before`.
async fn give(
    tx: &mut dyn Session,
    asked: &Asked,
    node: u16,
    before: Option<&Held>,
    now_ms: Millis,
) -> Outcome<Option<NodeLease>> {
    let lease = NodeLease::of(node, 0);
    let (until_ms, reach_ms) = (now_ms + lease.for_ms, asked.numbers_ms + lease.used_for_ms());
    let node = u32::from(node);
    let given = match before {
        None => {
            let sql = format!(
                "INSERT INTO tb_node ({COLUMNS}) VALUES (?, ?, ?, ?, ?) {}",
                tx.dialect().keep("node")
            );
            tx.execute(&sql, values![node, &asked.holder, now_ms, until_ms, reach_ms]).await?
        }
        Some(before) => {
            let sql = "UPDATE tb_node SET holder = ?, taken_at = ?, until_at = ?, reach = ?
                       WHERE node = ? AND holder = ? AND until_at = ?";
            let (by, was_ms) = (&before.holder, before.until_ms);
            let row = values![&asked.holder, now_ms, until_ms, reach_ms, node, by, was_ms];
            tx.execute(sql, row).await?
        }
    };
    Ok((given == 1).then_some(lease))
}

async fn renew_node(tx: &mut dyn Session, asked: &Asked, node: u16) -> Outcome<Option<NodeLease>> {
    let now_ms = now_ms(tx, asked.ours_ms).await?;
    let for_update = tx.dialect().for_update();
    let sql = format!("SELECT {COLUMNS} FROM tb_node WHERE node = ? {for_update}");
    let before = tx.first(&sql, values![u32::from(node)], held).await?;
    match before {
        Some(before) if before.holder == asked.holder => {
            let lease = NodeLease::of(node, now_ms - before.taken_ms);
            let reach_ms = asked.numbers_ms + lease.used_for_ms();
            let sql = "UPDATE tb_node SET until_at = ?, reach = ? WHERE node = ?";
            let until_ms = now_ms + lease.for_ms;
            tx.execute(sql, values![until_ms, reach_ms, u32::from(node)]).await?;
            Ok(Some(lease))
        }
        Some(before) if !before.is_free_for(asked, now_ms) => Ok(None),
        before => give(tx, asked, node, before.as_ref(), now_ms).await,
    }
}

async fn give_back_node(
    tx: &mut dyn Session,
    asked: &Asked,
    node: u16,
    after_ms: Millis,
) -> Outcome<()> {
    let until_ms = now_ms(tx, asked.ours_ms).await?.saturating_add(after_ms);
    let sql = "UPDATE tb_node SET until_at = ?, reach = ? WHERE node = ? AND holder = ?";
    let row = values![until_ms, asked.numbers_ms, u32::from(node), &asked.holder];
    tx.execute(sql, row).await?;
    Ok(())
}

impl SqlLedger {
    fn asked(&self, holder: &str, numbers_ms: Millis) -> Asked {
        Asked { holder: holder.to_owned(), numbers_ms, ours_ms: self.clock.now_ms() }
    }
}

#[async_trait]
impl Nodes for SqlLedger {
    async fn take_node(
        &self,
        holder: &str,
        first: u16,
        numbers_ms: Millis,
    ) -> Result<Option<NodeLease>> {
        let asked = self.asked(holder, numbers_ms);
        self.run(Access::Write, asked, move |tx, asked| Box::pin(take_node(tx, asked, first))).await
    }

    async fn renew_node(
        &self,
        node: u16,
        holder: &str,
        numbers_ms: Millis,
    ) -> Result<Option<NodeLease>> {
        let asked = self.asked(holder, numbers_ms);
        self.run(Access::Write, asked, move |tx, asked| Box::pin(renew_node(tx, asked, node))).await
    }

    async fn give_back_node(
        &self,
        node: u16,
        holder: &str,
        numbers_ms: Millis,
        after_ms: Millis,
    ) -> Result<()> {
        let asked = self.asked(holder, numbers_ms);
        self.run(Access::Write, asked, move |tx, asked| {
            Box::pin(give_back_node(tx, asked, node, after_ms))
        })
        .await
    }
}
