//! Activities and their items: made, shown, moved through their states, and warmed.

use std::collections::BTreeSet;

use mysql_async::{Row, Value};
use sale::{
    Activity, ActivityId, ActivityMove, ActivityState, Epoch, Item, ItemId, ItemState, Millis,
    NewActivity, NewItem, OrderNo,
};

use super::{
    columns::{at_most, claim, coded, get, money},
    connections::Session,
    dead_letters,
    failure::{Failure, Outcome},
    operators, orders, stock,
    text::{Insert, id_lists},
};
use crate::{
    ActivityFilter, ActivityKey, AuditEntry, MovedActivity, WarmBasis,
    activities::put_items,
    columns::{ACTIVITY_COLUMNS, CLAIM_COLUMNS, ITEM_COLUMNS},
};

fn read_activity(row: &Row) -> Outcome<Activity> {
    Ok(Activity {
        id: ActivityId(get(row, 0)?),
        name: get(row, 1)?,
        opens_ms: get(row, 2)?,
        closes_ms: get(row, 3)?,
        pay_within_ms: get(row, 4)?,
        state: coded(row, 5, ActivityState::from_code)?,
        publish_ms: get(row, 6)?,
        version: get(row, 7)?,
        items: Vec::new(),
    })
}

fn read_item(row: &Row) -> Outcome<Item> {
    Ok(Item {
        id: ItemId(get(row, 0)?),
        activity: ActivityId(get(row, 1)?),
        name: get(row, 2)?,
        image_url: get(row, 3)?,
        price: money(row, 4, 5)?,
        origin_price: get(row, 6)?,
        stock: get(row, 7)?,
        total: get(row, 8)?,
        limit_per_user: get(row, 9)?,
        shards: get(row, 10)?,
        version: get(row, 11)?,
        epoch: get::<i64>(row, 12)? as u64,
        state: coded(row, 13, ItemState::from_code)?,
    })
}

pub(super) async fn create(
    tx: &mut Session,
    new: &NewActivity,
    now_ms: Millis,
) -> Outcome<Activity> {
    let state = ActivityState::Draft.code();
    tx.change(
        "INSERT INTO tb_seckill_activity
             (name, opens_at, closes_at, pay_within_ms, publish_at, state, created_at, updated_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            &new.name,
            new.opens_ms,
            new.closes_ms,
            new.pay_within_ms,
            new.publish_ms,
            state,
            now_ms,
            now_ms,
        ),
    )
    .await?;
    let id = ActivityId(tx.inserted_id()?);
    create_items(tx, id, &new.items).await?;
    one(tx, id).await?.ok_or(Failure::NotFound)
}

pub(super) async fn create_items<'i>(
    tx: &mut Session,
    activity: ActivityId,
    items: impl IntoIterator<Item = &'i NewItem>,
) -> Outcome<()> {
    let mut insert = Insert::new(
        tx,
        "INSERT INTO tb_seckill_product (activity_id, name, image_url, price, origin_price,
             currency, stock, total, limit_per_user, shards, state) VALUES ",
        "",
    );
    for item in items {
        insert.row(&[
            activity.0.into(),
            item.name.as_str().into(),
            item.image_url.as_str().into(),
            item.price.into(),
            item.origin_price.into(),
            item.currency.as_str().into(),
            item.stock.into(),
            item.stock.into(),
            item.limit_per_user.into(),
            item.shards.into(),
            ItemState::Draft.code().into(),
        ]);
    }
    insert.send(tx).await
}

pub(super) async fn one(session: &mut Session, id: ActivityId) -> Outcome<Option<Activity>> {
    let sql = format!("SELECT {ACTIVITY_COLUMNS} FROM tb_seckill_activity WHERE id = ?");
    let found = session.first(&sql, (id.0,), read_activity).await?;
    Ok(with_items(session, found.into_iter().collect()).await?.pop())
}

pub(super) async fn newest(
    session: &mut Session,
    before: Option<ActivityId>,
    limit: usize,
) -> Outcome<Vec<Activity>> {
    let sql = format!(
        "SELECT {ACTIVITY_COLUMNS} FROM tb_seckill_activity WHERE id < ? ORDER BY id DESC LIMIT ?"
    );
    let before = before.map_or(i64::MAX, |id| id.0);
    let found = session.all(&sql, (before, at_most(limit)), read_activity).await?;
    with_items(session, found).await
}

pub(super) async fn page(
    session: &mut Session,
    filter: &ActivityFilter,
    after: Option<ActivityKey>,
    limit: usize,
) -> Outcome<Vec<Activity>> {
    let (sql, asked) = filter.page(after, i64::try_from(limit).unwrap_or(i64::MAX));
    let found = session.all(&sql, asked.map(Value::from).to_vec(), read_activity).await?;
    with_items(session, found).await
}

pub(super) async fn of(
    session: &mut Session,
    activities: &[ActivityId],
    items: &[ItemId],
) -> Outcome<Vec<Activity>> {
    let mut ids: BTreeSet<i64> = activities.iter().map(|id| id.0).collect();
    for list in id_lists(items.iter().map(|id| id.0)) {
        let sql = format!("SELECT activity_id FROM tb_seckill_product WHERE id IN {list}");
        ids.extend(session.all_of_text(&sql, |row| get::<i64>(row, 0)).await?);
    }
    let mut found = Vec::new();
    for list in id_lists(ids) {
        let sql = format!("SELECT {ACTIVITY_COLUMNS} FROM tb_seckill_activity WHERE id IN {list}");
        found.extend(session.all_of_text(&sql, read_activity).await?);
    }
    with_items(session, found).await
}

/// One look for the items of all of them.
async fn with_items(
    session: &mut Session,
    mut activities: Vec<Activity>,
) -> Outcome<Vec<Activity>> {
    for list in id_lists(activities.iter().map(|activity| activity.id.0)) {
        let sql = format!(
            "SELECT {ITEM_COLUMNS} FROM tb_seckill_product WHERE activity_id IN {list} ORDER BY id"
        );
        let items = session.all_of_text(&sql, read_item).await?;
        put_items(&mut activities, items);
    }
    Ok(activities)
}

pub(super) async fn item(session: &mut Session, id: ItemId) -> Outcome<Option<Item>> {
    let sql = format!("SELECT {ITEM_COLUMNS} FROM tb_seckill_product WHERE id = ?");
    session.first(&sql, (id.0,), read_item).await
}

/// The state of an activity nobody else can move before this transaction ends.
pub(super) async fn locked_state(tx: &mut Session, id: ActivityId) -> Outcome<ActivityState> {
    let sql = "SELECT state FROM tb_seckill_activity WHERE id = ? FOR UPDATE";
    let state = tx.first(sql, (id.0,), |row| coded(row, 0, ActivityState::from_code)).await?;
    state.ok_or(Failure::NotFound)
}

pub(super) async fn move_by(
    tx: &mut Session,
    id: ActivityId,
    step: ActivityMove,
    audit: Option<&AuditEntry>,
    now_ms: Millis,
) -> Outcome<MovedActivity> {
    let (from, to) = (locked_state(tx, id).await?, step.to());
    let before = one(tx, id).await?.ok_or(Failure::NotFound)?;
    let moved = step.may_leave(from);
    if moved {
        step.check_window(before.closes_ms, now_ms).map_err(Failure::Refused)?;
        tx.change(
            "UPDATE tb_seckill_activity SET state = ?, updated_at = ?, version = version + 1
             WHERE id = ? AND state = ?",
            (to.code(), now_ms, id.0, from.code()),
        )
        .await?;
        if to == ActivityState::Ended {
            let sql = "UPDATE tb_seckill_product SET state = ? WHERE activity_id = ?";
            tx.change(sql, (ItemState::Ended.code(), id.0)).await?;
        }
    }
    if let Some(entry) = audit.and_then(|audit| audit.of_move(step, from)) {
        operators::audit(tx, &entry, now_ms).await?;
    }
    let activity = one(tx, id).await?.ok_or(Failure::NotFound)?;
    Ok(MovedActivity { activity, moved })
}

pub(super) async fn begin_warm(
    tx: &mut Session,
    id: ItemId,
    expected: Epoch,
) -> Outcome<Option<Epoch>> {
    let begun = tx
        .change(
            "UPDATE tb_seckill_product SET state = ?, epoch = epoch + 1
             WHERE id = ? AND epoch = ? AND state <> ?",
            (ItemState::Warming.code(), id.0, expected as i64, ItemState::Ended.code()),
        )
        .await?;
    if begun == 0 && item(tx, id).await?.is_none() {
        return Err(Failure::NotFound);
    }
    Ok((begun == 1).then_some(expected + 1))
}

pub(super) async fn finish_warm(tx: &mut Session, id: ItemId, epoch: Epoch) -> Outcome<bool> {
    let finished = tx
        .change(
            "UPDATE tb_seckill_product SET state = ? WHERE id = ? AND epoch = ? AND state = ?",
            (ItemState::Ready.code(), id.0, epoch as i64, ItemState::Warming.code()),
        )
        .await?;
    Ok(finished == 1)
}

pub(super) async fn warm_basis(
    session: &mut Session,
    id: ItemId,
    in_flight: &[OrderNo],
) -> Outcome<WarmBasis> {
    let item = item(session, id).await?.ok_or(Failure::NotFound)?;
    let activity = one(session, item.activity).await?.ok_or(Failure::NotFound)?;
    let sql = format!(
        "SELECT {CLAIM_COLUMNS} FROM tb_seckill_order
         WHERE product_id = ? AND status IN (0, 1) ORDER BY order_no"
    );
    Ok(WarmBasis {
        activity,
        item,
        marks: session.all(&sql, (id.0,), claim).await?,
        settled: orders::settled_among(session, in_flight).await?,
        failed: dead_letters::open_of(session, id).await?,
        adjusted: stock::adjustments_of(session, id).await?,
    })
}
