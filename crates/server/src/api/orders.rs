//! A buyer's own orders.

use axum::extract::State;
use sale::{OrderNo, UserId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Shared, finish::finish, order::OrderJson, paging, schemas};
use crate::{
    access::Buyer,
    extract::{Json, Path, Query},
    problem::Problem,
};
use engine::{Engine, OrderView};

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Only orders before this one.
    #[param(inline, value_type = Option<schemas::OrderNumber>)]
    before: Option<OrderNo>,
    /// 1 to 500, 50 unless told.
    #[param(inline, value_type = Option<schemas::PageRows>)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Orders {
    /// Newest first.
    pub(super) orders: Vec<OrderJson>,
    /// The `before` of the next page; null on the last one.
    #[schema(schema_with = schemas::next_order_no)]
    pub(super) next: Option<OrderNo>,
}

/// The buyer's orders, those on their way to the ledger among them.
#[utoipa::path(get, path = "/orders", tag = "buyer", security(("buyer" = [])), params(Page),
    responses((status = OK, body = Orders)))]
pub(super) async fn list(
    State(app): State<Shared>,
    Buyer(user): Buyer,
    Query(page): Query<Page>,
) -> Result<Json<Orders>, Problem> {
    let rows = paging::rows(page.limit)?;
    let views = app.engine.orders().of_buyer(&user, page.before, rows).await?;
    let next = paging::next(&views, rows, OrderView::order_no);
    let orders = OrderJson::all(&app.engine, views).await?;
    Ok(Json(Orders { orders, next }))
}

/// The order, if it is this buyer's. Whether others exist is nobody's business.
pub(super) async fn own(engine: &Engine, no: OrderNo, user: &UserId) -> Result<OrderView, Problem> {
    let view = engine.orders().order(no, Some(user)).await?.filter(|view| view.user() == user);
    view.ok_or_else(Problem::not_found)
}

/// One order of the buyer.
#[utoipa::path(get, path = "/orders/{no}", tag = "buyer", security(("buyer" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    responses((status = OK, body = OrderJson),
        (status = NOT_FOUND, description = "No such order of this buyer")))]
pub(super) async fn show(
    State(app): State<Shared>,
    Buyer(user): Buyer,
    Path(no): Path<OrderNo>,
) -> Result<Json<OrderJson>, Problem> {
    let view = own(&app.engine, no, &user).await?;
    Ok(Json(OrderJson::of(&app.engine, view).await?))
}

/// Give an unpaid order up; its units go back on sale.
#[utoipa::path(post, path = "/orders/{no}/cancel", tag = "buyer", security(("buyer" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    responses(
        (status = OK, body = OrderJson, description = "It is closed, now or since before"),
        (status = NOT_FOUND, description = "No such order of this buyer"),
        (status = CONFLICT, description = "It is queued, or paid, or over (see `state`)")))]
pub(super) async fn cancel(
    State(app): State<Shared>,
    Buyer(user): Buyer,
    Path(no): Path<OrderNo>,
) -> Result<Json<OrderJson>, Problem> {
    let order = finish(async move {
        let view = own(&app.engine, no, &user).await?;
        let now = app.engine.payments().cancel(&view).await?;
        OrderJson::of(&app.engine, OrderView::Known(now)).await
    });
    Ok(Json(order.await?))
}
