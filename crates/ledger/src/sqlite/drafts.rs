//! Activities before they open: drafts edited as a whole, windows moved, drafts that publish themselves.

use rusqlite::{Connection, params};
use sale::{Activity, ActivityId, ActivityState, DraftPlan, Item, ItemId, Millis, NewItem};

use super::{
    activities::{create_item, one},
    columns::at_most,
    failure::{Failure, Outcome},
    operators,
};
use crate::{
    AuditEntry, EditedActivity,
    drafts::{history_stays, stock_stays},
};

fn found(conn: &Connection, id: ActivityId) -> Outcome<Activity> {
    one(conn, id)?.ok_or(Failure::NotFound)
}

pub(super) fn edit(
    tx: &Connection,
    id: ActivityId,
    version: i64,
    new: &DraftPlan,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<EditedActivity> {
    let before = found(tx, id)?;
    if before.state != ActivityState::Draft || before.version != version {
        return Ok(EditedActivity { activity: before, edited: false });
    }
    let plan = &new.plan;
    tx.prepare_cached(
        "UPDATE tb_seckill_activity SET name = ?1, opens_at = ?2, closes_at = ?3,
             pay_within_ms = ?4, publish_at = ?5, updated_at = ?6, version = version + 1
         WHERE id = ?7",
    )?
    .execute(params![
        plan.name,
        plan.opens_ms,
        plan.closes_ms,
        plan.pay_within_ms,
        plan.publish_ms,
        now_ms,
        id.0
    ])?;
    for item in before.items.iter().filter(|item| !new.ids.contains(&Some(item.id))) {
        remove_item(tx, item.id)?;
    }
    for (n, (known, item)) in new.ids.iter().zip(&plan.items).enumerate() {
        match before.items.iter().find(|item| *known == Some(item.id)) {
            Some(known) => change_item(tx, n, known, item)?,
            None => create_item(tx, id, item)?,
        }
    }
    operators::audit(tx, audit, now_ms)?;
    Ok(EditedActivity { activity: found(tx, id)?, edited: true })
}

fn has_history(conn: &Connection, id: ItemId) -> Outcome<bool> {
    let sql = "SELECT 1 FROM tb_stock_log WHERE product_id = ?1 LIMIT 1";
    Ok(conn.prepare_cached(sql)?.exists([id.0])?)
}

fn remove_item(tx: &Connection, id: ItemId) -> Outcome<()> {
    if has_history(tx, id)? {
        return Err(Failure::Refused(history_stays(id)));
    }
    tx.prepare_cached("DELETE FROM tb_seckill_product WHERE id = ?1")?.execute([id.0])?;
    Ok(())
}

fn change_item(tx: &Connection, n: usize, before: &Item, new: &NewItem) -> Outcome<()> {
    if new.stock != before.total && has_history(tx, before.id)? {
        return Err(Failure::Refused(stock_stays(n, before.total)));
    }
    tx.prepare_cached(
        "UPDATE tb_seckill_product SET name = ?1, image_url = ?2, price = ?3, origin_price = ?4,
             currency = ?5, stock = ?6, total = ?6, limit_per_user = ?7, shards = ?8,
             version = version + 1
         WHERE id = ?9",
    )?
    .execute(params![
        new.name,
        new.image_url,
        new.price,
        new.origin_price,
        new.currency.as_str(),
        new.stock,
        new.limit_per_user,
        new.shards,
        before.id.0
    ])?;
    Ok(())
}

pub(super) fn postpone(
    tx: &Connection,
    id: ActivityId,
    version: i64,
    (opens_ms, closes_ms): (Millis, Millis),
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<EditedActivity> {
    let before = found(tx, id)?;
    if !before.is_awaited(now_ms) || before.version != version {
        return Ok(EditedActivity { activity: before, edited: false });
    }
    tx.prepare_cached(
        "UPDATE tb_seckill_activity SET opens_at = ?1, closes_at = ?2, updated_at = ?3,
             version = version + 1
         WHERE id = ?4",
    )?
    .execute(params![opens_ms, closes_ms, now_ms, id.0])?;
    operators::audit(tx, audit, now_ms)?;
    Ok(EditedActivity { activity: found(tx, id)?, edited: true })
}

pub(super) fn publish_due(
    conn: &Connection,
    now_ms: Millis,
    limit: usize,
) -> Outcome<Vec<Activity>> {
    let mut statement = conn.prepare_cached(
        "SELECT id FROM tb_seckill_activity INDEXED BY ix_activity_publish
         WHERE state = 0 AND publish_at <= ?1 ORDER BY publish_at, id LIMIT ?2",
    )?;
    let ids = statement.query_map(params![now_ms, at_most(limit)], |row| row.get(0))?;
    let ids: Vec<i64> = ids.collect::<rusqlite::Result<_>>()?;
    ids.into_iter().map(|id| found(conn, ActivityId(id))).collect()
}

pub(super) fn publish_planned(
    tx: &Connection,
    id: ActivityId,
    version: i64,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    let change = format!("state = {}", ActivityState::Published.code());
    change_plan(tx, &change, id, version, audit, now_ms)
}

pub(super) fn forget_publish(
    tx: &Connection,
    id: ActivityId,
    version: i64,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    change_plan(tx, "publish_at = NULL", id, version, audit, now_ms)
}

/// One thing of a draft, if nobody has changed it since.
fn change_plan(
    tx: &Connection,
    change: &str,
    id: ActivityId,
    version: i64,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    let sql = format!(
        "UPDATE tb_seckill_activity SET {change}, updated_at = ?1, version = version + 1
         WHERE id = ?2 AND state = 0 AND version = ?3"
    );
    let changed = tx.prepare_cached(&sql)?.execute(params![now_ms, id.0, version])? == 1;
    if changed {
        operators::audit(tx, audit, now_ms)?;
    }
    Ok(changed)
}
