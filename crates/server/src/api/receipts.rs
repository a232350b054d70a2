//! Receipts: a claim that was lost is brought back by the one who holds its proof.

use axum::extract::State;
use sale::Receipt;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Shared, finish::finish, order::OrderJson, schemas};
use crate::{access::Buyer, extract::Json, problem::Problem};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Presented {
    #[schema(schema_with = schemas::receipt)]
    receipt: String,
}

/// Present a receipt: its order as it is, or the claim admitted again, or void with a reason.
#[utoipa::path(post, path = "/receipts", tag = "buyer", security(("buyer" = [])),
    request_body = Presented,
    responses(
        (status = OK, body = OrderJson),
        (status = NOT_FOUND, description = "The receipt is another buyer's"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: not signed by us")))]
pub(super) async fn present(
    State(app): State<Shared>,
    Buyer(user): Buyer,
    Json(presented): Json<Presented>,
) -> Result<Json<OrderJson>, Problem> {
    let receipt = Receipt::verify(&presented.receipt, app.engine.keys())
        .ok_or_else(|| Problem::invalid("receipt", "is not a receipt of ours"))?;
    if receipt.user != user {
        return Err(Problem::not_found());
    }
    let order = finish(async move {
        let view = app.engine.claims().present(&receipt).await?.ok_or_else(Problem::not_found)?;
        OrderJson::of(&app.engine, view).await
    });
    Ok(Json(order.await?))
}
