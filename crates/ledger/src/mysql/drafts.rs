//! Activities before they open: drafts edited as a whole, windows moved, drafts that publish themselves.

use sale::{Activity, ActivityId, ActivityState, DraftPlan, Item, ItemId, Millis, NewItem};

use super::{
    activities::{create_items, locked_state, one},
    columns::{at_most, get},
    connections::Session,
    failure::{Failure, Outcome},
    operators,
};
use crate::{
    AuditEntry, EditedActivity,
    drafts::{history_stays, stock_stays},
};

async fn found(session: &mut Session, id: ActivityId) -> Outcome<Activity> {
    one(session, id).await?.ok_or(Failure::NotFound)
}

/// As nobody else can change it before this transaction ends.
async fn locked(tx: &mut Session, id: ActivityId) -> Outcome<Activity> {
    locked_state(tx, id).await?;
    found(tx, id).await
}

pub(super) async fn edit(
    tx: &mut Session,
    id: ActivityId,
    version: i64,
    new: &DraftPlan,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<EditedActivity> {
    let before = locked(tx, id).await?;
    if before.state != ActivityState::Draft || before.version != version {
        return Ok(EditedActivity { activity: before, edited: false });
    }
    let plan = &new.plan;
    tx.change(
        "UPDATE tb_seckill_activity SET name = ?, opens_at = ?, closes_at = ?, pay_within_ms = ?,
             publish_at = ?, updated_at = ?, version = version + 1
         WHERE id = ?",
        (
            &plan.name,
            plan.opens_ms,
            plan.closes_ms,
            plan.pay_within_ms,
            plan.publish_ms,
            now_ms,
            id.0,
        ),
    )
    .await?;
    // Whoever adjusts the stock of an item holds its row until that is in the stock log.
    let lock = "SELECT id FROM tb_seckill_product WHERE activity_id = ? ORDER BY id FOR UPDATE";
    tx.all(lock, (id.0,), |row| get::<i64>(row, 0)).await?;
    for item in before.items.iter().filter(|item| !new.ids.contains(&Some(item.id))) {
        remove_item(tx, item.id).await?;
    }
    let mut added = Vec::new();
    for (n, (known, item)) in new.ids.iter().zip(&plan.items).enumerate() {
        match before.items.iter().find(|item| *known == Some(item.id)) {
            Some(known) => change_item(tx, n, known, item).await?,
            None => added.push(item),
        }
    }
    if !added.is_empty() {
        create_items(tx, id, added).await?;
    }
    operators::audit(tx, audit, now_ms).await?;
    Ok(EditedActivity { activity: found(tx, id).await?, edited: true })
}

async fn has_history(session: &mut Session, id: ItemId) -> Outcome<bool> {
    let sql = "SELECT id FROM tb_stock_log WHERE product_id = ? LIMIT 1 LOCK IN SHARE MODE";
    Ok(session.first(sql, (id.0,), |row| get::<i64>(row, 0)).await?.is_some())
}

async fn remove_item(tx: &mut Session, id: ItemId) -> Outcome<()> {
    if has_history(tx, id).await? {
        return Err(Failure::Refused(history_stays(id)));
    }
    tx.change("DELETE FROM tb_seckill_product WHERE id = ?", (id.0,)).await?;
    Ok(())
}

async fn change_item(tx: &mut Session, n: usize, before: &Item, new: &NewItem) -> Outcome<()> {
    if new.stock != before.total && has_history(tx, before.id).await? {
        return Err(Failure::Refused(stock_stays(n, before.total)));
    }
    tx.change(
        "UPDATE tb_seckill_product SET name = ?, image_url = ?, price = ?, origin_price = ?,
             currency = ?, stock = ?, total = ?, limit_per_user = ?, shards = ?,
             version = version + 1
         WHERE id = ?",
        (
            &new.name,
            &new.image_url,
            new.price,
            new.origin_price,
            new.currency.as_str(),
            new.stock,
            new.stock,
            new.limit_per_user,
            new.shards,
            before.id.0,
        ),
    )
    .await?;
    Ok(())
}

pub(super) async fn postpone(
    tx: &mut Session,
    id: ActivityId,
    version: i64,
    (opens_ms, closes_ms): (Millis, Millis),
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<EditedActivity> {
    let before = locked(tx, id).await?;
    if !before.is_awaited(now_ms) || before.version != version {
        return Ok(EditedActivity { activity: before, edited: false });
    }
    let sql = "UPDATE tb_seckill_activity
         SET opens_at = ?, closes_at = ?, updated_at = ?, version = version + 1 WHERE id = ?";
    tx.change(sql, (opens_ms, closes_ms, now_ms, id.0)).await?;
    operators::audit(tx, audit, now_ms).await?;
    Ok(EditedActivity { activity: found(tx, id).await?, edited: true })
}

pub(super) async fn publish_due(
    session: &mut Session,
    now_ms: Millis,
    limit: usize,
) -> Outcome<Vec<Activity>> {
    let sql = "SELECT id FROM tb_seckill_activity FORCE INDEX (ix_activity_publish)
         WHERE state = 0 AND publish_at <= ? ORDER BY publish_at, id LIMIT ?";
    let ids = session.all(sql, (now_ms, at_most(limit)), |row| get::<i64>(row, 0)).await?;
    let mut due = Vec::with_capacity(ids.len());
    for id in ids {
        due.push(found(session, ActivityId(id)).await?);
    }
    Ok(due)
}

pub(super) async fn publish_planned(
    tx: &mut Session,
    id: ActivityId,
    version: i64,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    let change = format!("state = {}", ActivityState::Published.code());
    change_plan(tx, &change, id, version, audit, now_ms).await
}

pub(super) async fn forget_publish(
    tx: &mut Session,
    id: ActivityId,
    version: i64,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    change_plan(tx, "publish_at = NULL", id, version, audit, now_ms).await
}

/// One thing of a draft, if nobody has changed it since.
async fn change_plan(
    tx: &mut Session,
    change: &str,
    id: ActivityId,
    version: i64,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    let sql = format!(
        "UPDATE tb_seckill_activity SET {change}, updated_at = ?, version = version + 1
         WHERE id = ? AND state = 0 AND version = ?"
    );
    let changed = tx.change(&sql, (now_ms, id.0, version)).await? == 1;
    if changed {
        operators::audit(tx, audit, now_ms).await?;
    }
    Ok(changed)
}
