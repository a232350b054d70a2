//! One item: the ledger's side, the gate's side, its stock and where every unit went.

use axum::extract::State;
use gate::{Reading, Shut};
use ledger::{StockLogRow, StockLogType};
use sale::{ActivityId, Attributes, Currency, Item, ItemId, ItemState, OrderNo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    super::{
        Shared,
        finish::finish,
        openapi, paging,
        roles::{AsOperator, AsViewer},
        schemas,
    },
    activities::Warming,
};
use crate::{
    extract::{Json, Path, Query, ShopId, plain_id},
    problem::Problem,
};
use engine::Warmed;

#[derive(Serialize, ToSchema)]
pub(in super::super) struct LedgerItem {
    id: i64,
    activity_id: i64,
    /// The shop's own id of the product.
    sku: Option<String>,
    name: String,
    description: String,
    /// The first of `images`; empty if there is none.
    image_url: String,
    images: Vec<String>,
    #[schema(schema_with = schemas::shown_attributes)]
    attributes: Attributes,
    price: i64,
    origin_price: Option<i64>,
    #[schema(value_type = String, example = "CNY")]
    currency: Currency,
    /// Units the ledger has not sold.
    stock: i64,
    /// Units there are in all: `stock` and the units of live orders.
    total: i64,
    limit_per_user: u32,
    shards: u32,
    version: i64,
    epoch: u64,
    #[schema(schema_with = openapi::item_state)]
    state: ItemState,
}

impl From<Item> for LedgerItem {
    fn from(item: Item) -> Self {
        let images = item.words.images(&item.image_url).map(str::to_owned).collect();
        LedgerItem {
            id: item.id.0,
            activity_id: item.activity.0,
            sku: item.words.sku,
            name: item.name,
            description: item.words.description,
            image_url: item.image_url,
            images,
            attributes: item.words.attributes,
            price: item.price.minor,
            origin_price: item.origin_price,
            currency: item.price.currency,
            stock: item.stock,
            total: item.total,
            limit_per_user: item.limit_per_user,
            shards: item.shards,
            version: item.version,
            epoch: item.epoch,
            state: item.state,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct LedgerItems {
    /// Newest first, those of drafts among them.
    items: Vec<LedgerItem>,
    /// The `before` of the next page; null on the last one.
    next: Option<i64>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct ItemSearch {
    /// The shop's own id of the product.
    #[param(inline, value_type = schemas::ShopId)]
    sku: ShopId,
    /// Only of this activity.
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    activity_id: Option<i64>,
    /// Only items before this one.
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    before: Option<i64>,
    /// 1 to 500, 50 unless told.
    #[param(inline, value_type = Option<schemas::PageRows>)]
    limit: Option<u32>,
}

/// Both sides of an item.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct BothSides {
    item: LedgerItem,
    /// Null if the item is not at the gate.
    gate: Option<GateReading>,
}

/// An item as the gate sees it at one instant.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct GateReading {
    epoch: u64,
    #[schema(schema_with = schemas::shut)]
    shut: Option<&'static str>,
    opens_at: i64,
    closes_at: i64,
    left: i64,
    /// Buyers who hold a claim or an order.
    marks: u64,
    marked_units: i64,
    version: u64,
    /// Claims and their units that are on their way to the ledger.
    in_flight_claims: usize,
    in_flight_units: u64,
    /// Units that stock changes under way have taken from the gate, and not from the ledger yet.
    adjusting_units: i64,
}

impl GateReading {
    fn new(reading: Reading, adjusting_units: i64) -> Self {
        GateReading {
            epoch: reading.epoch,
            shut: reading.shut.map(shut_word),
            opens_at: reading.opens_ms,
            closes_at: reading.closes_ms,
            left: reading.left,
            marks: reading.marks,
            marked_units: reading.marked_units,
            version: reading.version,
            in_flight_claims: reading.in_flight.len(),
            in_flight_units: reading.in_flight.iter().map(|claim| u64::from(claim.quantity)).sum(),
            adjusting_units,
        }
    }
}

pub(super) fn shut_word(shut: Shut) -> &'static str {
    match shut {
        Shut::Paused => "paused",
        Shut::Frozen => "frozen",
        Shut::Ended => "ended",
    }
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct WarmedItem {
    item_id: i64,
    epoch: u64,
    left: i64,
    /// It was at the gate already, and nothing was changed.
    already: bool,
}

impl From<Warmed> for WarmedItem {
    fn from(warmed: Warmed) -> Self {
        WarmedItem {
            item_id: warmed.item.0,
            epoch: warmed.epoch,
            left: warmed.left,
            already: warmed.already,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Adjustment {
    #[schema(schema_with = schemas::delta)]
    delta: i64,
    #[schema(schema_with = schemas::adjust_no)]
    adjust_no: Option<OrderNo>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct AdjustedStock {
    /// The ledger's stock before and after.
    before: i64,
    after: i64,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct LogPage {
    /// Only rows after this id.
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    after: Option<i64>,
    /// 1 to 500, 50 unless told.
    #[param(inline, value_type = Option<schemas::PageRows>)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct StockLog {
    /// Oldest first; each `before_stock` is the `after_stock` of the row before.
    rows: Vec<StockLogEntry>,
    /// The `after` of the next page; null on the last one.
    next: Option<i64>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct StockLogEntry {
    id: i64,
    /// The order, or the number of the adjustment.
    #[schema(schema_with = schemas::order_or_adjust_no)]
    order_no: OrderNo,
    item_id: i64,
    item_name: String,
    quantity: i64,
    before_stock: i64,
    after_stock: i64,
    #[schema(schema_with = schemas::stock_log_type)]
    r#type: StockLogType,
    created_at: i64,
}

impl From<StockLogRow> for StockLogEntry {
    fn from(row: StockLogRow) -> Self {
        StockLogEntry {
            id: row.id,
            order_no: row.order_no,
            item_id: row.item.0,
            item_name: row.item_name,
            quantity: row.quantity,
            before_stock: row.before_stock,
            after_stock: row.after_stock,
            r#type: row.kind,
            created_at: row.created_ms,
        }
    }
}

/// The items that the shop knows by this id.
#[utoipa::path(get, path = "/admin/items", tag = "admin", security(("operator" = [])),
    params(ItemSearch), responses((status = OK, body = LedgerItems)))]
pub(in super::super) async fn list(
    State(app): State<Shared>,
    _: AsViewer,
    Query(search): Query<ItemSearch>,
) -> Result<Json<LedgerItems>, Problem> {
    let rows = paging::rows(search.limit)?;
    let (activity, before) = (search.activity_id.map(ActivityId), search.before.map(ItemId));
    let found = app.engine.records().items_by_sku(&search.sku.0, activity, before, rows).await?;
    let next = paging::next(&found, rows, |item| item.id.0);
    Ok(Json(LedgerItems { items: found.into_iter().map(Into::into).collect(), next }))
}

/// One item in ledger and gate.
#[utoipa::path(get, path = "/admin/items/{id}", tag = "admin", security(("operator" = [])),
    params(("id" = i64, Path, description = "The item")),
    responses((status = OK, body = BothSides), (status = NOT_FOUND, description = "No such item")))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    _: AsViewer,
    Path(id): Path<i64>,
) -> Result<Json<BothSides>, Problem> {
    let (id, engine) = (ItemId(id), &app.engine);
    let item = engine.records().item(id).await?.ok_or_else(Problem::not_found)?;
    let at_gate = engine.stock().at_gate(id).await?;
    let gate = at_gate.map(|(reading, adjusting)| GateReading::new(reading, adjusting));
    Ok(Json(BothSides { item: item.into(), gate }))
}

/// Bring one item to the gate now.
#[utoipa::path(post, path = "/admin/items/{id}/warm", tag = "admin", security(("operator" = [])),
    params(("id" = i64, Path, description = "The item"), Warming),
    responses(
        (status = OK, body = WarmedItem),
        (status = NOT_FOUND, description = "No such item"),
        (status = CONFLICT, description = "Its activity is a draft or over (see `state`)")))]
pub(in super::super) async fn warm(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
    Query(warming): Query<Warming>,
) -> Result<Json<WarmedItem>, Problem> {
    let (id, anew) = (ItemId(id), warming.anew);
    let warmed =
        finish(async move { app.engine.operations().warm_item(&who, id, anew).await }).await?;
    Ok(Json(warmed.into()))
}

/// Add units, or take away those nobody has bought or claimed.
#[utoipa::path(post, path = "/admin/items/{id}/stock", tag = "admin", security(("operator" = [])),
    params(("id" = i64, Path, description = "The item")), request_body = Adjustment,
    responses(
        (status = OK, body = AdjustedStock),
        (status = NOT_FOUND, description = "No such item"),
        (status = SERVICE_UNAVAILABLE, description = "`busy`; with `adjust_no` if it may have been done"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: fewer units are left than that \
            (`delta`), or the number stands for another change (`adjust_no`)")))]
pub(in super::super) async fn adjust_stock(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
    Json(adjustment): Json<Adjustment>,
) -> Result<Json<AdjustedStock>, Problem> {
    let (id, Adjustment { delta, adjust_no }) = (ItemId(id), adjustment);
    let done = finish(async move { app.engine.stock().adjust(&who, id, delta, adjust_no).await });
    let done = done.await?;
    Ok(Json(AdjustedStock { before: done.before, after: done.after }))
}

/// Every change of an item's stock.
#[utoipa::path(get, path = "/admin/items/{id}/stock-log", tag = "admin",
    security(("operator" = [])),
    params(("id" = i64, Path, description = "The item"), LogPage),
    responses((status = OK, body = StockLog), (status = NOT_FOUND, description = "No such item")))]
pub(in super::super) async fn stock_log(
    State(app): State<Shared>,
    _: AsViewer,
    Path(id): Path<i64>,
    Query(page): Query<LogPage>,
) -> Result<Json<StockLog>, Problem> {
    let (id, records) = (ItemId(id), app.engine.records());
    let rows = paging::rows(page.limit)?;
    records.item(id).await?.ok_or_else(Problem::not_found)?;
    let found = records.stock_log(id, page.after.unwrap_or(0), rows).await?;
    let next = paging::next(&found, rows, |row| row.id);
    Ok(Json(StockLog { rows: found.into_iter().map(Into::into).collect(), next }))
}
