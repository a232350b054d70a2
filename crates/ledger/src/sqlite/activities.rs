//! Activities and their items: made, shown, moved through their states, and warmed.

use rusqlite::{Connection, OptionalExtension, Row, params};
use sale::{
    Activity, ActivityId, ActivityMove, ActivityState, Epoch, Item, ItemId, ItemState, Millis,
    NewActivity, NewItem, OrderNo,
};

use super::{
    columns::{at_most, claim, coded, money},
    dead_letters,
    failure::{Failure, Outcome},
    operators, orders, stock,
};
use crate::{
    ActivityFilter, ActivityKey, AuditEntry, MovedActivity, WarmBasis,
    activities::put_items,
    columns::{ACTIVITY_COLUMNS, CLAIM_COLUMNS, ITEM_COLUMNS},
};

fn read_activity(row: &Row<'_>) -> rusqlite::Result<Activity> {
    Ok(Activity {
        id: ActivityId(row.get(0)?),
        name: row.get(1)?,
        opens_ms: row.get(2)?,
        closes_ms: row.get(3)?,
        pay_within_ms: row.get(4)?,
        state: coded(row, 5, ActivityState::from_code)?,
        publish_ms: row.get(6)?,
        version: row.get(7)?,
        items: Vec::new(),
    })
}

fn read_item(row: &Row<'_>) -> rusqlite::Result<Item> {
    Ok(Item {
        id: ItemId(row.get(0)?),
        activity: ActivityId(row.get(1)?),
        name: row.get(2)?,
        image_url: row.get(3)?,
        price: money(row, 4, 5)?,
        origin_price: row.get(6)?,
        stock: row.get(7)?,
        total: row.get(8)?,
        limit_per_user: row.get(9)?,
        shards: row.get(10)?,
        version: row.get(11)?,
        epoch: row.get::<_, i64>(12)? as u64,
        state: coded(row, 13, ItemState::from_code)?,
    })
}

pub(super) fn create(tx: &Connection, new: &NewActivity, now_ms: Millis) -> Outcome<Activity> {
    tx.prepare_cached(
        "INSERT INTO tb_seckill_activity
             (name, opens_at, closes_at, pay_within_ms, publish_at, state, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)",
    )?
    .execute(params![
        new.name,
        new.opens_ms,
        new.closes_ms,
        new.pay_within_ms,
        new.publish_ms,
        ActivityState::Draft.code(),
        now_ms
    ])?;
    let id = ActivityId(tx.last_insert_rowid());
    new.items.iter().try_for_each(|item| create_item(tx, id, item))?;
    one(tx, id)?.ok_or(Failure::NotFound)
}

pub(super) fn create_item(tx: &Connection, activity: ActivityId, new: &NewItem) -> Outcome<()> {
    tx.prepare_cached(
        "INSERT INTO tb_seckill_product (activity_id, name, image_url, price, origin_price,
             currency, stock, total, limit_per_user, shards, state)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10)",
    )?
    .execute(params![
        activity.0,
        new.name,
        new.image_url,
        new.price,
        new.origin_price,
        new.currency.as_str(),
        new.stock,
        new.limit_per_user,
        new.shards,
        ItemState::Draft.code()
    ])?;
    Ok(())
}

pub(super) fn one(conn: &Connection, id: ActivityId) -> Outcome<Option<Activity>> {
    let sql = format!("SELECT {ACTIVITY_COLUMNS} FROM tb_seckill_activity WHERE id = ?1");
    let found = conn.prepare_cached(&sql)?.query_row([id.0], read_activity).optional()?;
    Ok(with_items(conn, found.into_iter().collect())?.pop())
}

pub(super) fn newest(
    conn: &Connection,
    before: Option<ActivityId>,
    limit: usize,
) -> Outcome<Vec<Activity>> {
    let sql = format!(
        "SELECT {ACTIVITY_COLUMNS} FROM tb_seckill_activity WHERE id < ?1
         ORDER BY id DESC LIMIT ?2"
    );
    let before = before.map_or(i64::MAX, |id| id.0);
    let mut statement = conn.prepare_cached(&sql)?;
    let found = statement.query_map(params![before, at_most(limit)], read_activity)?;
    with_items(conn, found.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn page(
    conn: &Connection,
    filter: &ActivityFilter,
    after: Option<ActivityKey>,
    limit: usize,
) -> Outcome<Vec<Activity>> {
    let (sql, asked) = filter.page(after, at_most(limit));
    let mut statement = conn.prepare_cached(&sql)?;
    let found = statement.query_map(asked, read_activity)?;
    with_items(conn, found.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn of(
    conn: &Connection,
    activities: &[ActivityId],
    items: &[ItemId],
) -> Outcome<Vec<Activity>> {
    let sql = format!(
        "SELECT {ACTIVITY_COLUMNS} FROM tb_seckill_activity WHERE id IN (
             SELECT value FROM json_each(?1) UNION
             SELECT p.activity_id FROM json_each(?2) AS asked
                 CROSS JOIN tb_seckill_product AS p ON p.id = asked.value)"
    );
    let activities = activities.iter().map(|id| id.0);
    let items = items.iter().map(|id| id.0);
    let mut statement = conn.prepare_cached(&sql)?;
    let found = statement.query_map([id_list(activities)?, id_list(items)?], read_activity)?;
    with_items(conn, found.collect::<rusqlite::Result<_>>()?)
}

/// Ids as `json_each` takes them.
fn id_list(ids: impl Iterator<Item = i64>) -> Outcome<String> {
    Ok(serde_json::to_string(&ids.collect::<Vec<_>>())?)
}

/// One look for the items of all of them.
fn with_items(conn: &Connection, mut activities: Vec<Activity>) -> Outcome<Vec<Activity>> {
    if activities.is_empty() {
        return Ok(activities);
    }
    let sql = format!(
        "SELECT {ITEM_COLUMNS} FROM tb_seckill_product
         WHERE activity_id IN (SELECT value FROM json_each(?1)) ORDER BY id"
    );
    let ids = id_list(activities.iter().map(|activity| activity.id.0))?;
    let mut statement = conn.prepare_cached(&sql)?;
    let items = statement.query_map([ids], read_item)?;
    put_items(&mut activities, items.collect::<rusqlite::Result<_>>()?);
    Ok(activities)
}

pub(super) fn item(conn: &Connection, id: ItemId) -> Outcome<Option<Item>> {
    let sql = format!("SELECT {ITEM_COLUMNS} FROM tb_seckill_product WHERE id = ?1");
    Ok(conn.prepare_cached(&sql)?.query_row([id.0], read_item).optional()?)
}

pub(super) fn move_by(
    tx: &Connection,
    id: ActivityId,
    step: ActivityMove,
    audit: Option<&AuditEntry>,
    now_ms: Millis,
) -> Outcome<MovedActivity> {
    let before = one(tx, id)?.ok_or(Failure::NotFound)?;
    let (from, to) = (before.state, step.to());
    let moved = step.may_leave(from);
    if moved {
        step.check_window(before.closes_ms, now_ms).map_err(Failure::Refused)?;
        tx.prepare_cached(
            "UPDATE tb_seckill_activity SET state = ?1, updated_at = ?2, version = version + 1
             WHERE id = ?3 AND state = ?4",
        )?
        .execute(params![to.code(), now_ms, id.0, from.code()])?;
        if to == ActivityState::Ended {
            tx.prepare_cached("UPDATE tb_seckill_product SET state = ?1 WHERE activity_id = ?2")?
                .execute(params![ItemState::Ended.code(), id.0])?;
        }
    }
    if let Some(entry) = audit.and_then(|audit| audit.of_move(step, from)) {
        operators::audit(tx, &entry, now_ms)?;
    }
    let activity = one(tx, id)?.ok_or(Failure::NotFound)?;
    Ok(MovedActivity { activity, moved })
}

pub(super) fn begin_warm(tx: &Connection, id: ItemId, expected: Epoch) -> Outcome<Option<Epoch>> {
    let begun = tx
        .prepare_cached(
            "UPDATE tb_seckill_product SET state = ?1, epoch = epoch + 1
             WHERE id = ?2 AND epoch = ?3 AND state <> ?4",
        )?
        .execute(params![
            ItemState::Warming.code(),
            id.0,
            expected as i64,
            ItemState::Ended.code()
        ])?;
    if begun == 0 && item(tx, id)?.is_none() {
        return Err(Failure::NotFound);
    }
    Ok((begun == 1).then_some(expected + 1))
}

pub(super) fn finish_warm(tx: &Connection, id: ItemId, epoch: Epoch) -> Outcome<bool> {
    let finished = tx
        .prepare_cached(
            "UPDATE tb_seckill_product SET state = ?1 WHERE id = ?2 AND epoch = ?3 AND state = ?4",
        )?
        .execute(params![ItemState::Ready.code(), id.0, epoch as i64, ItemState::Warming.code()])?;
    Ok(finished == 1)
}

pub(super) fn warm_basis(
    conn: &Connection,
    id: ItemId,
    in_flight: &[OrderNo],
) -> Outcome<WarmBasis> {
    let item = item(conn, id)?.ok_or(Failure::NotFound)?;
    let activity = one(conn, item.activity)?.ok_or(Failure::NotFound)?;
    let sql = format!(
        "SELECT {CLAIM_COLUMNS} FROM tb_seckill_order
         WHERE product_id = ?1 AND status IN (0, 1) ORDER BY order_no"
    );
    let marks = conn
        .prepare_cached(&sql)?
        .query_map([id.0], claim)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(WarmBasis {
        activity,
        item,
        marks,
        settled: orders::settled_among(conn, in_flight)?,
        failed: dead_letters::open_of(conn, id)?,
        adjusted: stock::adjustments_of(conn, id)?,
    })
}
