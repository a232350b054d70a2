//! Activities made, all that were asked for together or none of them.
//!
//! Whoever asks may name a key. What was made under it is written down in the same transaction, so that
//! the answer can be had again: asking twice makes nothing twice, whatever became of the first answer. Two
//! who ask at once with one key collide at the key's row, and the second finds what the first has made. A
//! key is forgotten after [`CREATE_KEY_KEPT_MS`]: somebody who still asks then asks for something new.

use std::collections::HashMap;

use sale::{Activity, ActivityId, ActivityState, Door, ItemState, Millis, NewActivity, NewItem};

use super::{
    activities::one,
    columns::{get, json},
    draws::set_shuffle,
    failure::{Failure, Outcome},
    operators,
    session::{Row, Session, Value, values},
};
use crate::{
    AuditEntry, CREATE_KEY_KEPT_MS, CreateKey, CreatedActivities, CreatedActivity, NewActivities,
    WhenTaken,
};

/// Old keys that are forgotten by whoever writes a new one.
const FORGOTTEN_MAX: usize = 100;

pub(super) async fn create_all(
    tx: &mut dyn Session,
    new: &NewActivities,
    now_ms: Millis,
) -> Outcome<CreatedActivities> {
    if let Some(key) = &new.key
        && let Some(known) = made_before(tx, key, now_ms).await?
    {
        return Ok(known);
    }
    let taken = taken(tx, &new.plans).await?;
    let known =
        |plan: &NewActivity| plan.external_id.as_ref().and_then(|id| taken.get(id)).copied();
    // Before anything is made: what is answered is committed.
    let mut plans = new.plans.iter().enumerate();
    if new.when_taken == WhenTaken::Refuse
        && let Some((n, by)) = plans.find_map(|(n, plan)| Some((n, known(plan)?)))
    {
        return Ok(CreatedActivities::Taken { n, by });
    }
    let mut created = Vec::with_capacity(new.plans.len());
    for plan in &new.plans {
        let known = known(plan);
        let activity = match known {
            Some(id) => found(tx, id).await?,
            None => create(tx, plan, now_ms).await?,
        };
        if known.is_none()
            && let Some(audit) = &new.audit
        {
            operators::audit(tx, &made_entry(audit, &activity), now_ms).await?;
        }
        created.push(CreatedActivity { activity, made: known.is_none() });
    }
    if let Some(key) = &new.key {
        remember(tx, key, &created, now_ms).await?;
    }
    Ok(CreatedActivities::Made(created))
}

/// Its number is known only now.
fn made_entry(audit: &AuditEntry, activity: &Activity) -> AuditEntry {
    let entry = AuditEntry { target: format!("activity:{}", activity.id), ..audit.clone() };
    entry.with("name", activity.name.as_str()).with("items", activity.items.len())
}

async fn found(session: &mut dyn Session, id: ActivityId) -> Outcome<Activity> {
    one(session, id).await?.ok_or(Failure::NotFound)
}

/// The activities that have one of the ids which these shall have.
async fn taken(
    session: &mut dyn Session,
    plans: &[NewActivity],
) -> Outcome<HashMap<String, ActivityId>> {
    let wanted: Vec<&String> = plans.iter().filter_map(|plan| plan.external_id.as_ref()).collect();
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = "SELECT external_id, id FROM tb_seckill_activity WHERE external_id IN ?";
    let read = |row: &dyn Row| Ok((get::<String>(row, 0)?, ActivityId(get(row, 1)?)));
    Ok(session.rows(sql, &[Value::list(wanted)], read).await?.into_iter().collect())
}

/// What was made under this key, as it is now, if it is not too long ago.
pub(super) async fn made_before(
    session: &mut dyn Session,
    key: &CreateKey,
    now_ms: Millis,
) -> Outcome<Option<CreatedActivities>> {
    let sql =
        "SELECT body_hash, made, created_at FROM tb_create_key WHERE who = ? AND idem_key = ?";
    let read = |row: &dyn Row| {
        let ids: Vec<i64> = json(row, 1)?;
        Ok((get::<String>(row, 0)?, ids, get::<Millis>(row, 2)?))
    };
    let known = session.first(sql, values![&key.who, &key.key], read).await?;
    let Some((body_hash, ids, made_ms)) = known else { return Ok(None) };
    if made_ms < now_ms.saturating_sub(CREATE_KEY_KEPT_MS) {
        return Ok(None);
    }
    if body_hash != key.body_hash {
        let made = ids.into_iter().map(ActivityId).collect();
        return Ok(Some(CreatedActivities::KeyReused { made }));
    }
    let mut created = Vec::with_capacity(ids.len());
    for id in ids {
        created
            .push(CreatedActivity { activity: found(session, ActivityId(id)).await?, made: false });
    }
    Ok(Some(CreatedActivities::MadeBefore(created)))
}

async fn remember(
    tx: &mut dyn Session,
    key: &CreateKey,
    created: &[CreatedActivity],
    now_ms: Millis,
) -> Outcome<()> {
    let sql = "SELECT who, idem_key FROM tb_create_key WHERE created_at < ? LIMIT ?";
    let old_ms = now_ms.saturating_sub(CREATE_KEY_KEPT_MS);
    let read = |row: &dyn Row| Ok((get::<String>(row, 0)?, get::<String>(row, 1)?));
    let old = tx.rows(sql, values![old_ms, FORGOTTEN_MAX], read).await?;
    let own = (key.who.clone(), key.key.clone());
    for (who, idem_key) in old.into_iter().chain([own]) {
        let sql = "DELETE FROM tb_create_key WHERE who = ? AND idem_key = ? AND created_at < ?";
        tx.execute(sql, values![who, idem_key, old_ms]).await?;
    }
    let ids: Vec<i64> = created.iter().map(|created| created.activity.id.0).collect();
    let sql = "INSERT INTO tb_create_key (who, idem_key, body_hash, made, created_at)
         VALUES (?, ?, ?, ?, ?)";
    let made = serde_json::to_string(&ids)?;
    tx.execute(sql, values![&key.who, &key.key, &key.body_hash, made, now_ms]).await?;
    Ok(())
}

async fn create(tx: &mut dyn Session, new: &NewActivity, now_ms: Millis) -> Outcome<Activity> {
    tx.execute(
        "INSERT INTO tb_seckill_activity
             (external_id, name, opens_at, closes_at, pay_within_ms, publish_at, state, door, created_at,
              updated_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        values![
            new.external_id.as_ref(),
            &new.name,
            new.opens_ms,
            new.closes_ms,
            new.pay_within_ms,
            new.publish_ms,
            ActivityState::Draft.code(),
            door(&new.door)?,
            now_ms,
            now_ms,
        ],
    )
    .await?;
    let id = ActivityId(tx.inserted_id()?);
    if new.shuffle_ms > 0 {
        set_shuffle(tx, id, new.shuffle_ms).await?;
    }
    create_items(tx, id, new.items.iter()).await?;
    found(tx, id).await
}

/// The column `door`; NULL where it is as any.
pub(super) fn door(door: &Door) -> Outcome<Option<String>> {
    if *door == Door::default() { Ok(None) } else { Ok(Some(serde_json::to_string(door)?)) }
}

pub(super) async fn create_items<'i>(
    tx: &mut dyn Session,
    activity: ActivityId,
    items: impl Iterator<Item = &'i NewItem> + Send,
) -> Outcome<()> {
    let rows = items.map(|item| {
        let [sku, description, more_images, attributes] = words(item);
        [
            activity.into(),
            (&item.name).into(),
            (&item.image_url).into(),
            item.price.into(),
            item.origin_price.into(),
            item.currency.as_str().into(),
            item.stock.into(),
            item.stock.into(),
            item.limit_per_user.into(),
            item.shards.into(),
            ItemState::Draft.code().into(),
            sku,
            description,
            more_images,
            attributes,
        ]
    });
    let into = "tb_seckill_product (activity_id, name, image_url, price, origin_price, currency,
         stock, total, limit_per_user, shards, state, sku, description, more_images, attributes)";
    tx.insert(into, rows, "").await
}

/// The columns `sku, description, more_images, attributes`; NULL where there is nothing.
pub(super) fn words(item: &NewItem) -> [Value<'_>; 4] {
    let words = &item.words;
    let images = (!words.more_images.is_empty()).then(|| serde_json::json!(words.more_images));
    let attributes = (!words.attributes.is_empty()).then(|| serde_json::json!(words.attributes));
    [
        words.sku.as_ref().into(),
        (!words.description.is_empty()).then_some(&words.description).into(),
        images.map(|images| images.to_string()).into(),
        attributes.map(|attributes| attributes.to_string()).into(),
    ]
}
