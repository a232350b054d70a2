//! Activities and their items: made, shown, moved through their states, and warmed.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use sale::{
    Activity, ActivityId, ActivityMove, ActivityState, Door, DraftPlan, Draw, Epoch, Item, ItemId,
    ItemState, ItemWords, Millis,
};

use super::{
    Access, SqlLedger,
    columns::{coded, get, json_or_null, money},
    creating, drafts,
    failure::{Failure, Outcome},
    operators,
    session::{Row, Session, Value, values},
    webhooks,
};
use crate::{
    Activities, ActivityFilter, ActivityKey, AuditEntry, CHANGED_TOLD_MAX, ChangedActivity,
    CreateKey, CreatedActivities, EditedActivity, MovedActivity, NewActivities, Result,
    WebhookEvent, WebhookKind,
    activities::{ACTIVITY_COLUMNS, put_items},
};

const ITEM_COLUMNS: &str = "id, activity_id, name, image_url, price, currency, origin_price, stock, \
     total, limit_per_user, shards, version, epoch, state, sku, description, more_images, attributes";

/// The same without what is long.
const BRIEF_ITEM_COLUMNS: &str = "id, activity_id, name, image_url, price, currency, origin_price, \
     stock, total, limit_per_user, shards, version, epoch, state, sku, NULL, NULL, NULL";

fn read_activity(row: &dyn Row) -> Outcome<Activity> {
    Ok(Activity {
        id: ActivityId(get(row, 0)?),
        name: get(row, 1)?,
        opens_ms: get(row, 2)?,
        closes_ms: get(row, 3)?,
        pay_within_ms: get(row, 4)?,
        state: coded(row, 5, ActivityState::from_code)?,
        publish_ms: get(row, 6)?,
        version: get(row, 7)?,
        external_id: get(row, 8)?,
        door: json_or_null(row, 9)?.unwrap_or_default(),
        draw: read_draw(row)?,
        resume_ms: get(row, 12)?,
        given_up: get::<i64>(row, 13)? != 0,
        items: Vec::new(),
    })
}

fn read_draw(row: &dyn Row) -> Outcome<Option<Draw>> {
    let (shuffle_ms, commitment) = (get(row, 10)?, get::<Option<String>>(row, 11)?);
    Ok(commitment.map(|commitment| Draw { shuffle_ms, commitment }))
}

fn read_item(row: &dyn Row) -> Outcome<Item> {
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
        words: ItemWords {
            sku: get(row, 14)?,
            description: get::<Option<String>>(row, 15)?.unwrap_or_default(),
            more_images: json_or_null(row, 16)?.unwrap_or_default(),
            attributes: json_or_null(row, 17)?.unwrap_or_default(),
        },
    })
}

pub(super) async fn one(session: &mut dyn Session, id: ActivityId) -> Outcome<Option<Activity>> {
    let sql = format!("SELECT {ACTIVITY_COLUMNS} FROM tb_seckill_activity WHERE id = ?");
    let found = session.first(&sql, values![id], read_activity).await?;
    Ok(with_items(session, found.into_iter().collect()).await?.pop())
}

async fn newest(
    session: &mut dyn Session,
    before: Option<ActivityId>,
    limit: usize,
) -> Outcome<Vec<Activity>> {
    let sql = format!(
        "SELECT {ACTIVITY_COLUMNS} FROM tb_seckill_activity WHERE id < ? ORDER BY id DESC LIMIT ?"
    );
    let before = before.map_or(i64::MAX, |id| id.0);
    let found = session.rows(&sql, values![before, limit], read_activity).await?;
    with_items(session, found).await
}

async fn page(
    session: &mut dyn Session,
    filter: &ActivityFilter,
    after: Option<ActivityKey>,
    limit: usize,
    columns: &str,
) -> Outcome<Vec<Activity>> {
    let (sql, asked) = filter.page(after);
    let mut asked = asked.map(Value::from).to_vec();
    asked.push(limit.into());
    let found = session.rows(&sql, &asked, read_activity).await?;
    with_columns(session, found, columns).await
}

/// Each activity that was changed lately; of its rows as many as were, one by one.
async fn changed(session: &mut dyn Session, within_ms: Millis) -> Outcome<Vec<ChangedActivity>> {
    let dialect = session.dialect();
    let (at, now) = (dialect.changed_ms(), dialect.changing_clock());
    let lately = dialect.changed_within(within_ms);
    let read =
        |row: &dyn Row| Ok((get::<i64>(row, 0)?, get::<Millis>(row, 1)?, get::<Millis>(row, 2)?));
    let mut found: BTreeMap<i64, ChangedActivity> = BTreeMap::new();
    for (id, table) in [("id", "tb_seckill_activity"), ("activity_id", "tb_seckill_product")] {
        let sql = format!("SELECT {id}, {at}, {now} FROM {table} WHERE {lately} LIMIT ?");
        for (id, at_ms, now_ms) in session.rows(&sql, values![CHANGED_TOLD_MAX], read).await? {
            let none = ChangedActivity { id: ActivityId(id), trace: (0, 0), age_ms: Millis::MAX };
            let changed = found.entry(id).or_insert(none);
            changed.trace.0 += 1;
            changed.trace.1 = changed.trace.1.wrapping_add(at_ms);
            changed.age_ms = changed.age_ms.min(now_ms - at_ms);
        }
    }
    Ok(found.into_values().collect())
}

async fn of(
    session: &mut dyn Session,
    activities: &[ActivityId],
    items: &[ItemId],
    external_ids: &[String],
    columns: &str,
) -> Outcome<Vec<Activity>> {
    let mut ids: BTreeSet<i64> = activities.iter().map(|id| id.0).collect();
    if !external_ids.is_empty() {
        let sql = "SELECT id FROM tb_seckill_activity WHERE external_id IN ?";
        let asked = Value::list(external_ids);
        ids.extend(session.rows(sql, &[asked], |row| get::<i64>(row, 0)).await?);
    }
    let sql = "SELECT activity_id FROM tb_seckill_product WHERE id IN ?";
    let items = Value::list(items.iter().copied());
    ids.extend(session.rows(sql, &[items], |row| get::<i64>(row, 0)).await?);
    let sql = format!("SELECT {ACTIVITY_COLUMNS} FROM tb_seckill_activity WHERE id IN ?");
    let found = session.rows(&sql, &[Value::list(ids)], read_activity).await?;
    with_columns(session, found, columns).await
}

/// The items of all of them are read at once.
async fn with_items(
    session: &mut dyn Session,
    activities: Vec<Activity>,
) -> Outcome<Vec<Activity>> {
    with_columns(session, activities, ITEM_COLUMNS).await
}

async fn with_columns(
    session: &mut dyn Session,
    mut activities: Vec<Activity>,
    columns: &str,
) -> Outcome<Vec<Activity>> {
    let sql =
        format!("SELECT {columns} FROM tb_seckill_product WHERE activity_id IN ? ORDER BY id");
    let ids = Value::list(activities.iter().map(|activity| activity.id));
    let items = session.rows(&sql, &[ids], read_item).await?;
    put_items(&mut activities, items);
    Ok(activities)
}

pub(super) async fn item(session: &mut dyn Session, id: ItemId) -> Outcome<Option<Item>> {
    let sql = format!("SELECT {ITEM_COLUMNS} FROM tb_seckill_product WHERE id = ?");
    session.first(&sql, values![id], read_item).await
}

/// Newest first, those before `before` if given.
pub(super) async fn items_by_sku(
    session: &mut dyn Session,
    sku: &str,
    activity: Option<ActivityId>,
    before: Option<ItemId>,
    limit: usize,
) -> Outcome<Vec<Item>> {
    let of_activity = if activity.is_some() { " AND activity_id = ?" } else { "" };
    let sql = format!(
        "SELECT {ITEM_COLUMNS} FROM tb_seckill_product WHERE sku = ? AND id < ?{of_activity}
         ORDER BY id DESC LIMIT ?"
    );
    let mut asked = vec![Value::from(sku), before.map_or(i64::MAX, |id| id.0).into()];
    asked.extend(activity.map(Value::from));
    asked.push(limit.into());
    session.rows(&sql, &asked, read_item).await
}

/// The state of an activity nobody else can move before this transaction ends.
pub(super) async fn locked_state(tx: &mut dyn Session, id: ActivityId) -> Outcome<ActivityState> {
    let for_update = tx.dialect().for_update();
    let sql = format!("SELECT state FROM tb_seckill_activity WHERE id = ? {for_update}");
    let read = |row: &dyn Row| coded(row, 0, ActivityState::from_code);
    tx.first(&sql, values![id], read).await?.ok_or(Failure::NotFound)
}

async fn move_by(
    tx: &mut dyn Session,
    id: ActivityId,
    step: ActivityMove,
    resume_ms: Option<Millis>,
    audit: Option<&AuditEntry>,
    now_ms: Millis,
) -> Outcome<MovedActivity> {
    let (from, to) = (locked_state(tx, id).await?, step.to());
    let before = one(tx, id).await?.ok_or(Failure::NotFound)?;
    let moved = step.may_leave(from);
    // Whoever pauses again may mean another time.
    let another_end = step == ActivityMove::Pause && from == to && before.resume_ms != resume_ms;
    let given_up = from == ActivityState::Draft && to == ActivityState::Ended;
    if moved || another_end {
        step.check_window(before.closes_ms, now_ms).map_err(Failure::Refused)?;
        tx.execute(
            "UPDATE tb_seckill_activity SET state = ?, resume_at = ?, given_up = ?, updated_at = ?,
                version = version + 1
             WHERE id = ? AND state = ?",
            values![to.code(), resume_ms, i64::from(given_up), now_ms, id, from.code()],
        )
        .await?;
        if to == ActivityState::Ended {
            let sql = "UPDATE tb_seckill_product SET state = ? WHERE activity_id = ?";
            tx.execute(sql, values![ItemState::Ended.code(), id]).await?;
            let kind = WebhookKind::ActivityEnded;
            webhooks::tell(tx, [WebhookEvent::Activity { kind, activity: id }], now_ms).await?;
        }
    }
    if let Some(entry) = audit.and_then(|audit| audit.of_move(step, from)) {
        operators::audit(tx, &entry, now_ms).await?;
    }
    let activity = one(tx, id).await?.ok_or(Failure::NotFound)?;
    Ok(MovedActivity { activity, moved })
}

/// The version holds off everything that an operator did since the pause was read.
async fn resume_planned(
    tx: &mut dyn Session,
    id: ActivityId,
    version: i64,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    let resumed = tx
        .execute(
            "UPDATE tb_seckill_activity SET state = ?, resume_at = NULL, updated_at = ?, version = version + 1
             WHERE id = ? AND version = ? AND state = ? AND resume_at <= ? AND closes_at > ?",
            values![
                ActivityState::Published.code(),
                now_ms,
                id,
                version,
                ActivityState::Paused.code(),
                now_ms,
                now_ms
            ],
        )
        .await?;
    if resumed == 1 {
        operators::audit(tx, audit, now_ms).await?;
    }
    Ok(resumed == 1)
}

pub(super) async fn begin_warm(
    tx: &mut dyn Session,
    id: ItemId,
    expected: Epoch,
) -> Outcome<Option<Epoch>> {
    let begun = tx
        .execute(
            "UPDATE tb_seckill_product SET state = ?, epoch = epoch + 1
             WHERE id = ? AND epoch = ? AND state <> ?",
            values![ItemState::Warming.code(), id, expected as i64, ItemState::Ended.code()],
        )
        .await?;
    if begun == 0 && item(tx, id).await?.is_none() {
        return Err(Failure::NotFound);
    }
    Ok((begun == 1).then_some(expected + 1))
}

pub(super) async fn finish_warm(tx: &mut dyn Session, id: ItemId, epoch: Epoch) -> Outcome<bool> {
    let finished = tx
        .execute(
            "UPDATE tb_seckill_product SET state = ? WHERE id = ? AND epoch = ? AND state = ?",
            values![ItemState::Ready.code(), id, epoch as i64, ItemState::Warming.code()],
        )
        .await?;
    Ok(finished == 1)
}

#[async_trait]
impl Activities for SqlLedger {
    async fn create_activities(
        &self,
        new: &NewActivities,
        now_ms: Millis,
    ) -> Result<CreatedActivities> {
        self.run(Access::Write, new.clone(), move |tx, new| {
            Box::pin(creating::create_all(tx, new, now_ms))
        })
        .await
    }

    async fn created_before(
        &self,
        key: &CreateKey,
        now_ms: Millis,
    ) -> Result<Option<CreatedActivities>> {
        self.run(Access::Snapshot, key.clone(), move |session, key| {
            Box::pin(creating::made_before(session, key, now_ms))
        })
        .await
    }

    async fn activity(&self, id: ActivityId) -> Result<Option<Activity>> {
        self.run(Access::Snapshot, (), move |session, ()| Box::pin(one(session, id))).await
    }

    async fn activities(&self, before: Option<ActivityId>, limit: usize) -> Result<Vec<Activity>> {
        self.run(Access::Snapshot, (), move |session, ()| Box::pin(newest(session, before, limit)))
            .await
    }

    async fn activities_where(
        &self,
        filter: &ActivityFilter,
        after: Option<ActivityKey>,
        limit: usize,
    ) -> Result<Vec<Activity>> {
        self.run(Access::Snapshot, *filter, move |session, filter| {
            Box::pin(page(session, filter, after, limit, ITEM_COLUMNS))
        })
        .await
    }

    async fn activities_of(
        &self,
        activities: &[ActivityId],
        items: &[ItemId],
        external_ids: &[String],
    ) -> Result<Vec<Activity>> {
        let asked = (activities.to_vec(), items.to_vec(), external_ids.to_vec());
        self.run(Access::Snapshot, asked, |session, (activities, items, external_ids)| {
            Box::pin(of(session, activities, items, external_ids, ITEM_COLUMNS))
        })
        .await
    }

    async fn activities_briefly(
        &self,
        filter: &ActivityFilter,
        after: Option<ActivityKey>,
        limit: usize,
    ) -> Result<Vec<Activity>> {
        self.run(Access::Snapshot, *filter, move |session, filter| {
            Box::pin(page(session, filter, after, limit, BRIEF_ITEM_COLUMNS))
        })
        .await
    }

    async fn activities_of_briefly(
        &self,
        activities: &[ActivityId],
        items: &[ItemId],
    ) -> Result<Vec<Activity>> {
        let asked = (activities.to_vec(), items.to_vec());
        self.run(Access::Snapshot, asked, |session, (activities, items)| {
            Box::pin(of(session, activities, items, &[], BRIEF_ITEM_COLUMNS))
        })
        .await
    }

    async fn changed_activities(&self, within_ms: Millis) -> Result<Vec<ChangedActivity>> {
        self.run(Access::Statement, (), move |session, ()| Box::pin(changed(session, within_ms)))
            .await
    }

    async fn items_by_sku(
        &self,
        sku: &str,
        activity: Option<ActivityId>,
        before: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<Item>> {
        self.run(Access::Statement, sku.to_owned(), move |session, sku| {
            Box::pin(items_by_sku(session, sku, activity, before, limit))
        })
        .await
    }

    async fn item(&self, id: ItemId) -> Result<Option<Item>> {
        self.run(Access::Statement, (), move |session, ()| Box::pin(item(session, id))).await
    }

    async fn move_activity(
        &self,
        id: ActivityId,
        step: ActivityMove,
        audit: Option<&AuditEntry>,
        now_ms: Millis,
    ) -> Result<MovedActivity> {
        self.run(Access::Write, audit.cloned(), move |tx, audit| {
            Box::pin(move_by(tx, id, step, None, audit.as_ref(), now_ms))
        })
        .await
    }

    async fn pause_until(
        &self,
        id: ActivityId,
        resume_ms: Option<Millis>,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<MovedActivity> {
        self.run(Access::Write, audit.clone(), move |tx, audit| {
            Box::pin(move_by(tx, id, ActivityMove::Pause, resume_ms, Some(audit), now_ms))
        })
        .await
    }

    async fn resume_planned(
        &self,
        id: ActivityId,
        version: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        self.run(Access::Write, audit.clone(), move |tx, audit| {
            Box::pin(resume_planned(tx, id, version, audit, now_ms))
        })
        .await
    }

    async fn edit_draft(
        &self,
        id: ActivityId,
        version: i64,
        new: &DraftPlan,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<EditedActivity> {
        let asked = (new.clone(), audit.clone());
        self.run(Access::Write, asked, move |tx, (new, audit)| {
            Box::pin(drafts::edit(tx, id, version, new, audit, now_ms))
        })
        .await
    }

    async fn postpone(
        &self,
        id: ActivityId,
        version: i64,
        window: (Millis, Millis),
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<EditedActivity> {
        self.run(Access::Write, audit.clone(), move |tx, audit| {
            Box::pin(drafts::postpone(tx, id, version, window, audit, now_ms))
        })
        .await
    }

    async fn change_door(
        &self,
        id: ActivityId,
        version: i64,
        door: &Door,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<EditedActivity> {
        self.run(Access::Write, (*door, audit.clone()), move |tx, (door, audit)| {
            Box::pin(drafts::change_door(tx, id, version, door, audit, now_ms))
        })
        .await
    }

    async fn publish_due(&self, now_ms: Millis, limit: usize) -> Result<Vec<Activity>> {
        self.run(Access::Snapshot, (), move |session, ()| {
            Box::pin(drafts::publish_due(session, now_ms, limit))
        })
        .await
    }

    async fn publish_planned(
        &self,
        id: ActivityId,
        version: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        self.run(Access::Write, audit.clone(), move |tx, audit| {
            Box::pin(drafts::publish_planned(tx, id, version, audit, now_ms))
        })
        .await
    }

    async fn forget_publish(
        &self,
        id: ActivityId,
        version: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        self.run(Access::Write, audit.clone(), move |tx, audit| {
            Box::pin(drafts::forget_publish(tx, id, version, audit, now_ms))
        })
        .await
    }
}
