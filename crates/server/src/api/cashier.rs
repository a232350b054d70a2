//! The sandbox's cashier: what a payment provider's page would do, without money.

use axum::extract::State;
use payment::sandbox::{Action, CashierView, PaymentState, Sandbox};
use sale::{Currency, OrderNo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{App, Shared, finish::finish, schemas};
use crate::{
    extract::{Json, Path, Query},
    problem::{Code, Problem},
};

#[derive(Serialize, ToSchema)]
pub(super) struct Cashier {
    txn: String,
    #[schema(schema_with = schemas::order_no)]
    order_no: OrderNo,
    item_name: String,
    amount: i64,
    #[schema(value_type = String, example = "CNY")]
    currency: Currency,
    #[schema(schema_with = schemas::sandbox_state)]
    state: PaymentState,
    pay_deadline: i64,
    /// Money is under way and will land then.
    lands_at: Option<i64>,
}

impl From<CashierView> for Cashier {
    fn from(view: CashierView) -> Self {
        Cashier {
            txn: view.txn,
            order_no: view.order_no,
            item_name: view.item_name,
            amount: view.amount,
            currency: view.currency,
            state: view.state,
            pay_deadline: view.pay_deadline,
            lands_at: view.lands_at,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Press {
    action: Button,
}

/// What the buyer does at the cashier.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Button {
    Pay,
    /// The bank says no; the buyer may try again.
    Fail,
    /// Two charges for one order.
    PayTwice,
    /// Money that lands after the deadline.
    PayLate,
}

impl From<Button> for Action {
    fn from(button: Button) -> Self {
        match button {
            Button::Pay => Action::Pay,
            Button::Fail => Action::Fail,
            Button::PayTwice => Action::PayTwice,
            Button::PayLate => Action::PayLate,
        }
    }
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Proof {
    /// As it stands in the `payment_url`: whoever opened the payment has it, and nobody else.
    #[serde(default)]
    #[param(required = true)]
    token: String,
}

/// The sandbox, for somebody who was given the address of this payment.
fn sandbox(app: &App, txn: &str, proof: &Proof) -> Result<Sandbox, Problem> {
    let sandbox = app.engine.payments().sandbox().cloned().ok_or_else(Problem::not_found)?;
    if sandbox.proves(txn, &proof.token) {
        return Ok(sandbox);
    }
    Err(Problem::new(Code::BadToken).detail(
        "The cashier needs the whole address that the order's payment was opened with.",
        "请使用订单发起付款时给出的完整收银台地址。",
    ))
}

/// A sandbox payment, as its cashier page shows it. Not found where the sandbox is off.
#[utoipa::path(get, path = "/cashier/{txn}", tag = "payment",
    params(("txn" = String, Path, description = "As it stands in the `payment_url`"), Proof),
    responses(
        (status = OK, body = Cashier),
        (status = FORBIDDEN, description = "`bad_token`: not the token of this payment"),
        (status = NOT_FOUND, description = "No such payment, or no sandbox")))]
pub(super) async fn show(
    State(app): State<Shared>,
    Path(txn): Path<String>,
    Query(proof): Query<Proof>,
) -> Result<Json<Cashier>, Problem> {
    let view = sandbox(&app, &txn, &proof)?.cashier(&txn).await?.ok_or_else(Problem::not_found)?;
    Ok(Json(view.into()))
}

/// Press a button at the sandbox's cashier.
#[utoipa::path(post, path = "/cashier/{txn}", tag = "payment",
    params(("txn" = String, Path, description = "As it stands in the `payment_url`"), Proof),
    request_body = Press,
    responses(
        (status = OK, body = Cashier),
        (status = FORBIDDEN, description = "`bad_token`: not the token of this payment"),
        (status = NOT_FOUND, description = "No such payment, or no sandbox"),
        (status = CONFLICT, description = "Not in this state of the payment")))]
pub(super) async fn act(
    State(app): State<Shared>,
    Path(txn): Path<String>,
    Query(proof): Query<Proof>,
    Json(press): Json<Press>,
) -> Result<Json<Cashier>, Problem> {
    let sandbox = sandbox(&app, &txn, &proof)?;
    let view = finish(async move { sandbox.act(&txn, press.action.into()).await }).await?;
    Ok(Json(view.into()))
}
