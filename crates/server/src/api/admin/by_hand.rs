//! Money that an operator writes down by hand: taken, or given back, in a way that no provider tells of.

use axum::extract::State;
use engine::ByHand;
use sale::OrderNo;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    super::{Shared, finish::finish, roles::AsAdmin, schemas, times::GivenTime},
    orders::{OrderWithPayments, whole},
};
use crate::{
    extract::{Json, Path},
    problem::Problem,
};

/// Money that came in some other way: all of the order's amount.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct MarkPaid {
    /// By which it is found elsewhere, such as the number of a bank transfer. The same again counts once.
    #[schema(schema_with = schemas::reference)]
    reference: String,
    #[schema(schema_with = schemas::spoken_reason)]
    reason: String,
    /// When it came; now unless told.
    #[serde(default)]
    paid_at: Option<GivenTime>,
}

/// Money that went back in some other way: all of a payment.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct MarkRefunded {
    /// By which it is found elsewhere.
    #[schema(schema_with = schemas::reference)]
    reference: String,
    #[schema(schema_with = schemas::spoken_reason)]
    reason: String,
    /// Which payment, if the order has several.
    #[serde(default)]
    provider_txn: Option<String>,
}

/// Write down that an unpaid order was paid in a way that no provider tells of. Needs the role admin.
#[utoipa::path(post, path = "/admin/orders/{no}/mark-paid", tag = "admin", security(("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    request_body = MarkPaid,
    responses(
        (status = OK, body = OrderWithPayments, description = "It is paid, now or since before"),
        (status = NOT_FOUND, description = "No such order"),
        (status = CONFLICT, description =
            "It is not unpaid (see `state`), or `transaction_used`: nothing was credited")))]
pub(in super::super) async fn mark_paid(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Path(no): Path<OrderNo>,
    Json(said): Json<MarkPaid>,
) -> Result<Json<OrderWithPayments>, Problem> {
    let order = finish(async move {
        let by_hand = ByHand { reference: said.reference, reason: said.reason };
        let paid_ms = said.paid_at.map(|GivenTime(ms)| ms);
        app.engine.operations().mark_paid(&who, no, &by_hand, paid_ms).await?;
        whole(&app.engine, no).await
    });
    Ok(Json(order.await?))
}

/// Write down that money of an order went back in a way that no provider tells of; a paid order is refunded
/// with its units, and no provider is asked for it any more. Needs the role admin.
#[utoipa::path(post, path = "/admin/orders/{no}/mark-refunded", tag = "admin", security(("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    request_body = MarkRefunded,
    responses(
        (status = OK, body = OrderWithPayments, description = "It is noted, now or since before"),
        (status = NOT_FOUND, description = "No such order"),
        (status = CONFLICT, description = "No money of it could go back (see `state`)")))]
pub(in super::super) async fn mark_refunded(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Path(no): Path<OrderNo>,
    Json(said): Json<MarkRefunded>,
) -> Result<Json<OrderWithPayments>, Problem> {
    let order = finish(async move {
        let by_hand = ByHand { reference: said.reference, reason: said.reason };
        let txn = said.provider_txn.as_deref();
        app.engine.operations().mark_refunded(&who, no, &by_hand, txn).await?;
        whole(&app.engine, no).await
    });
    Ok(Json(order.await?))
}
