//! Many activities planned at once, from a file or from the shop's own system.

use axum::extract::State;
use engine::{BadPlan, OperateError};
use sale::{Invalid, NewActivity};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    super::{Shared, finish::finish, idempotency::GivenKey, roles::AsOperator, schemas},
    activities::{LedgerActivity, Plan, PlannedItem},
};
use crate::{
    extract::{Json, Query, read_part},
    problem::Problem,
};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Import {
    /// Each is read by itself, and each item of it, so that all mistakes are told at once.
    #[schema(schema_with = schemas::imported_activities)]
    activities: Vec<Value>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct ImportHow {
    /// Judge all of it and make nothing.
    #[serde(default)]
    dry_run: bool,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Imported {
    /// In the order in which they were given; empty after a dry run.
    activities: Vec<ImportedActivity>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct ImportedActivity {
    /// False: it was there before, by its `external_id` or by the key, and is as it was.
    created: bool,
    activity: LedgerActivity,
}

/// Plan several activities, all of them or none. They start as drafts.
///
/// Asking again is safe: an activity whose `external_id` is known stays as it is, and with an
/// `Idempotency-Key` those without one are not made again either.
#[utoipa::path(post, path = "/admin/activities/import", tag = "admin", security(("operator" = [])),
    params(ImportHow, ("Idempotency-Key" = inline(Option<schemas::IdempotencyKey>), Header,
        description = "1 to 255 visible ASCII characters")),
    request_body = Import,
    responses(
        (status = OK, body = Imported),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: `errors` names the first hundred fields \
            that make no sense, such as `activities[0].items[2].price`, each with its `problem`; or \
            `key_reused` (see `activity_ids`). Nothing was made")))]
pub(in super::super) async fn import(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    key: GivenKey,
    Query(how): Query<ImportHow>,
    Json(import): Json<Import>,
) -> Result<Json<Imported>, Problem> {
    let (mut plans, mut bad) = (Vec::new(), Vec::new());
    for (n, plan) in import.activities.into_iter().enumerate() {
        match read_plan(plan) {
            Ok(plan) => plans.push(plan),
            Err(whys) => bad.extend(whys.into_iter().map(|why| BadPlan { n, why })),
        }
    }
    if !bad.is_empty() {
        return Err(OperateError::BadPlans(bad).into());
    }
    if how.dry_run {
        app.engine.plans().check_import(&plans)?;
        return Ok(Json(Imported { activities: Vec::new() }));
    }
    let made = finish(async move { app.engine.plans().import(&who, plans, key.0).await }).await?;
    let activities = made
        .into_iter()
        .map(|made| ImportedActivity { created: made.made, activity: made.activity.into() });
    Ok(Json(Imported { activities: activities.collect() }))
}

/// A plan, or all that keeps it from being one.
fn read_plan(mut plan: Value) -> Result<NewActivity, Vec<Invalid>> {
    let items = plan.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
    let (mut read, mut bad) = (Vec::new(), Vec::new());
    for (n, item) in items.unwrap_or_default().iter().enumerate() {
        let field = |name: &str| match name {
            "" => format!("items[{n}]"),
            name => format!("items[{n}].{name}"),
        };
        let item = read_part::<PlannedItem>(item).map_err(|why| at(field(&why.field), why));
        match item.and_then(|item| item.planned(&field)) {
            Ok(item) => read.push(item),
            Err(why) => bad.push(why),
        }
    }
    match read_part::<Plan>(&plan).and_then(NewActivity::try_from) {
        Ok(plan) if bad.is_empty() => return Ok(NewActivity { items: read, ..plan }),
        Ok(_) => {}
        Err(why) => bad.insert(0, why),
    }
    Err(bad)
}

fn at(field: String, why: Invalid) -> Invalid {
    Invalid { field, ..why }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_that_cannot_be_read_is_named() {
        let item = |more: Value| {
            let mut item = json!({"name": "Phone", "price": 1, "stock": 1});
            item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            item
        };
        let plan = |items: Value| {
            json!({"name": "x", "opens_at": 1_800_000_000_000_i64,
            "closes_at": 1_800_000_001_000_i64, "items": items})
        };
        let fields = |plan: Value| match read_plan(plan) {
            Ok(plan) => vec![format!("{} items", plan.items.len())],
            Err(bad) => bad.into_iter().map(|why| why.field).collect::<Vec<_>>(),
        };
        assert_eq!(fields(plan(json!([item(json!({})), item(json!({}))]))), ["2 items"]);
        let mut wrong = plan(json!([
            item(json!({"price": "cheap"})), item(json!({})), 7, {"name": "x", "stock": 1},
            item(json!({"image_url": "/1", "images": ["/2"]})),
        ]));
        wrong["opens_at"] = json!("soon");
        let named =
            ["opens_at", "items[0].price", "items[2]", "items[3].price", "items[4].image_url"];
        assert_eq!(fields(wrong), named);
        assert_eq!(fields(json!(1)), [""]);
        assert_eq!(fields(json!({"items": 7})), ["items"]);
    }
}
