//! The sandbox's bill: what the built-in bank took and gave back, for whoever checks the money.

use axum::extract::State;
use payment::sandbox::Charge;
use sale::{Currency, OrderNo};
use serde::Serialize;
use utoipa::ToSchema;

use super::super::{Shared, roles::AsViewer, schemas};
use crate::{extract::Json, problem::Problem};

#[derive(Serialize, ToSchema)]
#[schema(as = SandboxBill)]
pub(in super::super) struct BillJson {
    charges: Vec<ChargeJson>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SandboxCharge)]
pub(in super::super) struct ChargeJson {
    provider_txn: String,
    #[schema(schema_with = schemas::order_no)]
    order_no: OrderNo,
    amount: i64,
    #[schema(value_type = String, example = "CNY")]
    currency: Currency,
    paid_at: i64,
    refunded: bool,
    refunded_at: Option<i64>,
}

impl From<Charge> for ChargeJson {
    fn from(charge: Charge) -> Self {
        ChargeJson {
            provider_txn: charge.provider_txn,
            order_no: charge.order_no,
            amount: charge.amount.minor,
            currency: charge.amount.currency,
            paid_at: charge.paid_ms,
            refunded: charge.refunded_ms.is_some(),
            refunded_at: charge.refunded_ms,
        }
    }
}

/// Every charge of the sandbox, as the bank sees it. 404 where the sandbox is off.
#[utoipa::path(get, path = "/admin/sandbox/bill", tag = "admin", security(("operator" = [])),
    responses((status = OK, body = BillJson)))]
pub(in super::super) async fn bill(
    State(app): State<Shared>,
    _: AsViewer,
) -> Result<Json<BillJson>, Problem> {
    let sandbox = app.engine.payments().sandbox().ok_or_else(Problem::not_found)?;
    let charges = sandbox.bill().await.map_err(Problem::busy)?;
    Ok(Json(BillJson { charges: charges.into_iter().map(Into::into).collect() }))
}
