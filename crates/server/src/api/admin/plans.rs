//! Plans changed: a draft with its items, or the window of what has not opened yet.

use axum::extract::State;
use sale::{
    ActivityEdit, ActivityId, Attributes, Currency, Invalid, ItemEdit, ItemId, given_images,
    with_plain_lines,
};
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

use super::{
    super::{Shared, finish::finish, roles::AsOperator, schemas, times::GivenTime},
    activities::LedgerActivity,
    door::DoorChange,
};
use crate::{
    extract::{Json, Path},
    problem::Problem,
};

/// What is absent stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct PlanEdit {
    /// The `version` that the caller has seen. If it is another one by now, nothing is changed.
    version: i64,
    /// Null: it has none any more.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = schemas::given_shop_id)]
    external_id: Option<Option<String>>,
    #[schema(schema_with = schemas::edited_name)]
    name: Option<String>,
    /// Of what is published: only before it has opened, and to a time that is not past.
    opens_at: Option<GivenTime>,
    closes_at: Option<GivenTime>,
    #[schema(schema_with = schemas::edited_pay_within_ms)]
    pay_within_ms: Option<i64>,
    /// Null: it does not publish itself any more.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<GivenTime>)]
    publish_at: Option<Option<GivenTime>>,
    /// How buyers are let in. Of what is published: at any time, alone, and without `members_from`.
    door: Option<DoorChange>,
    #[schema(schema_with = schemas::edited_shuffle_ms)]
    shuffle_ms: Option<i64>,
    /// All the items there will be: one with an `id` is changed, one without is new, one that is not
    /// named is removed.
    items: Option<Vec<PlannedItemEdit>>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct PlannedItemEdit {
    /// Which item of the draft this is; absent: a new one, which needs `name`, `price` and `stock`.
    id: Option<i64>,
    #[schema(schema_with = schemas::edited_name)]
    name: Option<String>,
    /// Null: there is none any more.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = schemas::given_shop_id)]
    sku: Option<Option<String>>,
    #[schema(schema_with = schemas::description)]
    description: Option<String>,
    /// The first picture alone; the others stay.
    #[schema(schema_with = schemas::image_url)]
    image_url: Option<String>,
    /// All the pictures there will be.
    #[schema(schema_with = schemas::images)]
    images: Option<Vec<String>>,
    /// All the attributes there will be.
    #[schema(schema_with = schemas::attributes)]
    attributes: Option<Attributes>,
    #[schema(schema_with = schemas::edited_price)]
    price: Option<i64>,
    /// Null: there is none any more.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = schemas::origin_price)]
    origin_price: Option<Option<i64>>,
    #[schema(schema_with = schemas::edited_currency)]
    currency: Option<Currency>,
    #[schema(schema_with = schemas::edited_stock)]
    stock: Option<i64>,
    #[schema(schema_with = schemas::edited_limit_per_user)]
    limit_per_user: Option<u32>,
    #[schema(schema_with = schemas::edited_shards)]
    shards: Option<u32>,
}

/// Tells a field that is null from one that is absent.
pub(super) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl TryFrom<PlanEdit> for ActivityEdit {
    type Error = Invalid;

    fn try_from(edit: PlanEdit) -> Result<Self, Invalid> {
        let items = edit.items.map(|items| {
            let items = items.into_iter().enumerate();
            let items = items.map(|(n, item)| item.edit(&|name| format!("items[{n}].{name}")));
            items.collect::<Result<Vec<_>, _>>()
        });
        Ok(ActivityEdit {
            external_id: edit.external_id,
            name: edit.name,
            opens_ms: edit.opens_at.map(|time| time.0),
            closes_ms: edit.closes_at.map(|time| time.0),
            pay_within_ms: edit.pay_within_ms,
            publish_ms: edit.publish_at.map(|given| given.map(|time| time.0)),
            door: edit.door.map(Into::into),
            shuffle_ms: edit.shuffle_ms,
            items: items.transpose()?,
        })
    }
}

impl PlannedItemEdit {
    fn edit(self, field: &dyn Fn(&str) -> String) -> Result<ItemEdit, Invalid> {
        Ok(ItemEdit {
            id: self.id.map(ItemId),
            name: self.name,
            images: given_images(self.image_url, self.images, field)?,
            price: self.price,
            origin_price: self.origin_price,
            currency: self.currency,
            stock: self.stock,
            limit_per_user: self.limit_per_user,
            shards: self.shards,
            sku: self.sku,
            description: self.description.as_deref().map(with_plain_lines),
            attributes: self.attributes,
        })
    }
}

/// Change a draft and its items, or move the window of what is published and not open yet.
#[utoipa::path(patch, path = "/admin/activities/{id}", tag = "admin", security(("operator" = [])),
    params(("id" = i64, Path, description = "The activity")), request_body = PlanEdit,
    responses(
        (status = OK, body = LedgerActivity),
        (status = NOT_FOUND, description = "No such activity"),
        (status = CONFLICT, description = "Somebody else has changed it since (see `version` and \
            `activity`), or it is open or over (see `state`); nothing was changed"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`, with the `field`")))]
pub(in super::super) async fn edit(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
    Json(edit): Json<PlanEdit>,
) -> Result<Json<LedgerActivity>, Problem> {
    let (id, version, edit) = (ActivityId(id), edit.version, ActivityEdit::try_from(edit)?);
    let edited =
        finish(async move { app.engine.plans().edit(&who, id, version, &edit).await }).await?;
    Ok(Json(edited.into()))
}
