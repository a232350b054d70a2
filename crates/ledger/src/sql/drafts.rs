//! Activities before they open: drafts edited as a whole, windows moved, drafts that publish themselves.
//!
//! An item begins without a stock log: its first row starts from the stock it was made with. Once there
//! is a row, the stock changes by further rows only, or the chain would break; and the item stays, or
//! its rows would be of nothing.

use sale::{
    Activity, ActivityId, ActivityState, Door, DraftPlan, Invalid, Item, ItemId, Millis, NewItem,
};

use super::{
    activities::{locked_state, one},
    columns::get,
    creating::{create_items, door, words},
    draws::set_shuffle,
    failure::{Failure, Outcome},
    operators,
    session::{Session, values},
};
use crate::{AuditEntry, EditedActivity};

async fn found(session: &mut dyn Session, id: ActivityId) -> Outcome<Activity> {
    one(session, id).await?.ok_or(Failure::NotFound)
}

/// The activity, which nobody else can change before this transaction ends.
async fn locked(tx: &mut dyn Session, id: ActivityId) -> Outcome<Activity> {
    locked_state(tx, id).await?;
    found(tx, id).await
}

pub(super) async fn edit(
    tx: &mut dyn Session,
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
    check_external_id(tx, id, plan.external_id.as_deref()).await?;
    tx.execute(
        "UPDATE tb_seckill_activity SET external_id = ?, name = ?, opens_at = ?, closes_at = ?,
             pay_within_ms = ?, publish_at = ?, door = ?, updated_at = ?, version = version + 1
         WHERE id = ?",
        values![
            plan.external_id.as_ref(),
            &plan.name,
            plan.opens_ms,
            plan.closes_ms,
            plan.pay_within_ms,
            plan.publish_ms,
            door(&plan.door)?,
            now_ms,
            id,
        ],
    )
    .await?;
    if plan.shuffle_ms != before.shuffle_ms() {
        set_shuffle(tx, id, plan.shuffle_ms).await?;
    }
    // Whoever adjusts the stock of an item holds its row until that is in the stock log.
    let for_update = tx.dialect().for_update();
    let lock =
        format!("SELECT id FROM tb_seckill_product WHERE activity_id = ? ORDER BY id {for_update}");
    tx.rows(&lock, values![id], |row| get::<i64>(row, 0)).await?;
    for item in before.items.iter().filter(|item| !new.ids.contains(&Some(item.id))) {
        remove_item(tx, item.id).await?;
    }
    // Two items may change their ids with each other, which a unique index forbids half way.
    let sql = "UPDATE tb_seckill_product SET sku = NULL WHERE activity_id = ?";
    tx.execute(sql, values![id]).await?;
    let mut added = Vec::new();
    for (n, (known, item)) in new.ids.iter().zip(&plan.items).enumerate() {
        match before.items.iter().find(|item| *known == Some(item.id)) {
            Some(known) => change_item(tx, n, known, item).await?,
            None => added.push(item),
        }
    }
    create_items(tx, id, added.into_iter()).await?;
    operators::audit(tx, audit, now_ms).await?;
    Ok(EditedActivity { activity: found(tx, id).await?, edited: true })
}

/// The shop gives an id to one activity.
async fn check_external_id(
    session: &mut dyn Session,
    id: ActivityId,
    external_id: Option<&str>,
) -> Outcome<()> {
    let Some(external_id) = external_id else { return Ok(()) };
    let sql = "SELECT id FROM tb_seckill_activity WHERE external_id = ?";
    match session.first(sql, values![external_id], |row| get::<i64>(row, 0)).await? {
        Some(other) if other != id.0 => {
            let refused = Invalid::new("external_id", format!("is that of activity {other}"));
            Err(Failure::Refused(refused.zh(format!("已属于活动 {other}"))))
        }
        _ => Ok(()),
    }
}

/// The caller holds the item's row, without which nobody writes to its log.
async fn has_history(session: &mut dyn Session, id: ItemId) -> Outcome<bool> {
    let sql = "SELECT id FROM tb_stock_log WHERE product_id = ? LIMIT 1";
    Ok(session.first(sql, values![id], |row| get::<i64>(row, 0)).await?.is_some())
}

async fn remove_item(tx: &mut dyn Session, id: ItemId) -> Outcome<()> {
    if has_history(tx, id).await? {
        let problem = format!("must keep item {id}: its stock was adjusted, and that is on record");
        let refused = Invalid::new("items", problem);
        return Err(Failure::Refused(refused.zh(format!("必须保留商品 {id}：其库存调整已有记录"))));
    }
    tx.execute("DELETE FROM tb_seckill_product WHERE id = ?", values![id]).await?;
    Ok(())
}

fn stock_stays(n: usize, total: i64) -> Failure {
    let problem = format!("was adjusted and is {total}: change it by another adjustment");
    let refused = Invalid::new(format!("items[{n}].stock"), problem);
    Failure::Refused(refused.zh(format!("已做过库存调整，现为 {total}，请继续通过库存调整修改")))
}

async fn change_item(tx: &mut dyn Session, n: usize, before: &Item, new: &NewItem) -> Outcome<()> {
    if new.stock != before.total && has_history(tx, before.id).await? {
        return Err(stock_stays(n, before.total));
    }
    let [sku, description, more_images, attributes] = words(new);
    tx.execute(
        "UPDATE tb_seckill_product SET name = ?, image_url = ?, price = ?, origin_price = ?,
             currency = ?, stock = ?, total = ?, limit_per_user = ?, shards = ?,
             sku = ?, description = ?, more_images = ?, attributes = ?, version = version + 1
         WHERE id = ?",
        values![
            &new.name,
            &new.image_url,
            new.price,
            new.origin_price,
            new.currency.as_str(),
            new.stock,
            new.stock,
            new.limit_per_user,
            new.shards,
            sku,
            description,
            more_images,
            attributes,
            before.id,
        ],
    )
    .await?;
    Ok(())
}

pub(super) async fn postpone(
    tx: &mut dyn Session,
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
    tx.execute(sql, values![opens_ms, closes_ms, now_ms, id]).await?;
    operators::audit(tx, audit, now_ms).await?;
    Ok(EditedActivity { activity: found(tx, id).await?, edited: true })
}

pub(super) async fn change_door(
    tx: &mut dyn Session,
    id: ActivityId,
    version: i64,
    new: &Door,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<EditedActivity> {
    let before = locked(tx, id).await?;
    let over = matches!(before.state, ActivityState::Draft | ActivityState::Ended);
    if over || before.version != version {
        return Ok(EditedActivity { activity: before, edited: false });
    }
    let sql = "UPDATE tb_seckill_activity
         SET door = ?, updated_at = ?, version = version + 1 WHERE id = ?";
    tx.execute(sql, values![door(new)?, now_ms, id]).await?;
    operators::audit(tx, audit, now_ms).await?;
    Ok(EditedActivity { activity: found(tx, id).await?, edited: true })
}

pub(super) async fn publish_due(
    session: &mut dyn Session,
    now_ms: Millis,
    limit: usize,
) -> Outcome<Vec<Activity>> {
    let sql = format!(
        "SELECT id FROM tb_seckill_activity {}
         WHERE state = 0 AND publish_at <= ? ORDER BY publish_at, id LIMIT ?",
        session.dialect().by_index("ix_activity_publish")
    );
    let ids = session.rows(&sql, values![now_ms, limit], |row| get::<i64>(row, 0)).await?;
    let mut due = Vec::with_capacity(ids.len());
    for id in ids {
        due.push(found(session, ActivityId(id)).await?);
    }
    Ok(due)
}

pub(super) async fn publish_planned(
    tx: &mut dyn Session,
    id: ActivityId,
    version: i64,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    let change = format!("state = {}", ActivityState::Published.code());
    change_plan(tx, &change, id, version, audit, now_ms).await
}

pub(super) async fn forget_publish(
    tx: &mut dyn Session,
    id: ActivityId,
    version: i64,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    change_plan(tx, "publish_at = NULL", id, version, audit, now_ms).await
}

/// Changes one thing of a draft, if nobody has changed the draft since.
async fn change_plan(
    tx: &mut dyn Session,
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
    let changed = tx.execute(&sql, values![now_ms, id, version]).await? == 1;
    if changed {
        operators::audit(tx, audit, now_ms).await?;
    }
    Ok(changed)
}
