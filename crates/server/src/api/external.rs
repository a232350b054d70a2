//! What the backend of a shop tells that takes money at a cashier of its own.
//!
//! It signs what it says as we sign webhooks to it, over the bytes as they are sent, or it has an admin
//! token of the role `cashier`. A signature does not cover the address, so the body names the order, too,
//! and each of the three bodies has a field that the others refuse: what was signed for one order or one of
//! them is good for nothing else.

use axum::extract::{FromRequest, Request, State};
use bytes::Bytes;
use engine::{TRANSACTION_ID_CHARS_MAX, ToldError, ToldMoney, ToldOutcome, actor::Actor};
use http::header::CONTENT_TYPE;
use ledger::{RefundReason, Role};
use sale::{Currency, Money, Order, OrderNo, OrderStatus, is_plain_id};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use utoipa::ToSchema;

use super::{
    Shared, finish::finish, openapi, refusals::conflict, roles::with_role, schemas,
    times::GivenTime,
};
use crate::{
    access::{AccessRefusal, note},
    extract::{Json, Path},
    problem::{Code, Lang, Problem},
};

/// When a shop may say again what was said of an order that is not in the ledger yet.
const QUEUED_RETRY_MS: u64 = 1_000;

/// Money that the shop's cashier took.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShopPaid {
    /// The same as in the address: a signature does not cover that.
    #[schema(schema_with = schemas::order_no)]
    order_no: OrderNo,
    /// The shop's own id of this one charge. Told twice it counts once.
    #[schema(schema_with = schemas::transaction_id)]
    transaction_id: String,
    /// In minor units; all of the order's.
    #[schema(schema_with = schemas::money)]
    amount: i64,
    #[schema(schema_with = schemas::told_currency)]
    currency: Currency,
    /// When the buyer paid.
    paid_at: GivenTime,
}

/// Money that the shop's cashier gave back.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShopRefunded {
    /// The same as in the address: a signature does not cover that.
    #[schema(schema_with = schemas::order_no)]
    order_no: OrderNo,
    /// The charge that was given back, as it was told with `/paid`.
    #[schema(schema_with = schemas::transaction_id)]
    transaction_id: String,
    /// In minor units; all of the charge.
    #[schema(schema_with = schemas::money)]
    amount: i64,
    #[schema(schema_with = schemas::told_currency)]
    currency: Currency,
    /// When it was given back.
    refunded_at: GivenTime,
}

/// An order that nobody can pay at the shop's cashier any more.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShopClosed {
    /// The same as in the address: a signature does not cover that.
    #[schema(schema_with = schemas::order_no)]
    order_no: OrderNo,
    /// Since when.
    closed_at: GivenTime,
}

/// What came of what was told, and what is left to do.
#[derive(Serialize, ToSchema)]
pub(super) struct Told {
    #[schema(schema_with = schemas::order_no)]
    order_no: OrderNo,
    /// What the order is now.
    #[schema(schema_with = openapi::order_status)]
    status: OrderStatus,
    outcome: Outcome,
    /// With `refund_due`: why the money goes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = schemas::told_refund_reason, required = false)]
    reason: Option<&'static str>,
    /// The same for people, in the language of `Accept-Language`.
    message: &'static str,
}

#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// It counts, since now.
    Done,
    /// It was told before, and counts once.
    Repeated,
    /// The money has to go back to the buyer: the order was over, or paid already.
    RefundDue,
    /// The order is not closed: it is paid, or was not to be closed.
    NotClosed,
}

/// With money that has to go back: why.
type WhatCame = (Outcome, Option<RefundReason>);

impl Told {
    fn of(order: &Order, (outcome, reason): WhatCame, lang: Lang) -> Told {
        let (en, zh) = match (outcome, reason) {
            (Outcome::Done, _) => ("It is noted.", "已入账。"),
            (Outcome::Repeated, _) => {
                ("This was told before, and counts once.", "此前已收到，仅计一次。")
            }
            (Outcome::RefundDue, Some(RefundReason::Double)) => (
                "The order had been paid already. Give this transaction back to the buyer, then tell \
                 /refunded.",
                "该订单此前已支付。请将本笔款项退还买家，然后调用 /refunded。",
            ),
            (Outcome::RefundDue, _) => (
                "The order was over when this was told. Give the money back to the buyer, then tell \
                 /refunded.",
                "通知到达时订单已结束。请将款项退还买家，然后调用 /refunded。",
            ),
            (Outcome::NotClosed, _) => (
                "The order is not closed: it is not unpaid any more, or nobody asked for it.",
                "订单未关闭：它已不是待支付状态，或未被要求关闭。",
            ),
        };
        let message = match lang {
            Lang::En => en,
            Lang::Zh => zh,
        };
        let reason = reason.map(RefundReason::as_str);
        Told { order_no: order.order_no, status: order.status, outcome, reason, message }
    }
}

/// What somebody who may said, and by whose token unless it was signed.
pub(super) struct FromShop<T> {
    said: T,
    by: Option<Actor>,
    lang: Lang,
}

impl<T: DeserializeOwned + Send> FromRequest<Shared> for FromShop<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &Shared) -> Result<Self, Problem> {
        if !state.engine.payments().has_external() {
            return Err(off());
        }
        let lang = Lang::of(request.headers());
        if !request.headers().contains_key("webhook-signature") {
            let (mut parts, body) = request.into_parts();
            let by = with_role(&mut parts, state, Role::Cashier).await?;
            let request = Request::from_parts(parts, body);
            let Json(said) = Json::from_request(request, state).await?;
            return Ok(FromShop { said, by: Some(by), lang });
        }
        let (parts, body) = request.into_parts();
        let kind = parts.headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec());
        let whole = Request::from_parts(parts.clone(), body);
        let body = Bytes::from_request(whole, state).await.map_err(crate::extract::body_problem)?;
        let payments = state.engine.payments();
        if let Err(why) = payments.shop_has_signed(&parts.headers, &body).ok_or_else(off)? {
            let problem = Problem::new(Code::Unauthorized)
                .detail(format!("The request is not believed: {why}."), "签名无效，请求未被采信。")
                .inside(why);
            note(AccessRefusal::Signature, None, &parts, &problem);
            return Err(problem);
        }
        let Json(said) = Json::read(kind.as_deref(), &body)?;
        Ok(FromShop { said, by: None, lang })
    }
}

fn off() -> Problem {
    Problem::not_found().detail(
        "This shop has no cashier of its own here: payment.external.secrets is not set.",
        "未启用自有收银台：payment.external.secrets 未设置。",
    )
}

fn same_order(path: OrderNo, body: OrderNo) -> Result<(), Problem> {
    if path == body {
        return Ok(());
    }
    Err(Problem::invalid_in("order_no", "is not that of the address", "与地址中的订单号不一致"))
}

fn money(
    (path, order_no): (OrderNo, OrderNo),
    transaction_id: String,
    amount: Money,
    GivenTime(at_ms): GivenTime,
) -> Result<ToldMoney, Problem> {
    same_order(path, order_no)?;
    if !is_plain_id(&transaction_id, TRANSACTION_ID_CHARS_MAX) {
        let rule = format!("must be 1 to {TRANSACTION_ID_CHARS_MAX} visible characters");
        return Err(Problem::invalid("transaction_id", rule));
    }
    if amount.minor < 0 {
        return Err(Problem::invalid_in("amount", "must not be negative", "不能为负数"));
    }
    Ok(ToldMoney { order_no, transaction_id, amount, at_ms })
}

impl From<ToldError> for Problem {
    fn from(error: ToldError) -> Self {
        match error {
            ToldError::Off => off(),
            ToldError::UnknownOrder => Problem::not_found().detail(
                "There is no such order. If the buyer paid, give the money back.",
                "订单不存在。若买家已付款，请将款项退还。",
            ),
            ToldError::Queued => conflict("queued").retry_after_ms(QUEUED_RETRY_MS),
            ToldError::OtherAmount(whole) => Problem::new(Code::AmountMismatch)
                .with("amount", whole.minor)
                .with("currency", whole.currency.as_str()),
            ToldError::TransactionUsed => Code::TransactionUsed.into(),
            ToldError::UnknownTransaction => Problem::not_found().detail(
                "No such transaction of this order was told: say /paid first.",
                "该订单没有此交易号的收款记录，请先调用 /paid。",
            ),
            ToldError::Ledger(error) => error.into(),
        }
    }
}

/// The shop's own cashier took money for an order. For the shop's backend: signed as Standard Webhooks says
/// with a secret of `payment.external.secrets`, or with a token of the role cashier.
#[utoipa::path(post, path = "/orders/{no}/paid", tag = "shop",
    security(("shop" = []), ("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    request_body = ShopPaid,
    responses(
        (status = OK, body = Told,
            description = "Taken. With `refund_due` it was late or double, and has to go back"),
        (status = NOT_FOUND, description = "No such order, or the shop has no cashier of its own here"),
        (status = CONFLICT, description = "`conflict` while the order is `queued`: say it again after \
            Retry-After. `transaction_used`: with another order or amount"),
        (status = UNPROCESSABLE_ENTITY, description = "`amount_mismatch`: not the whole amount; nothing \
            was credited, give it back. `invalid`, with the `field`")))]
pub(super) async fn paid(
    State(app): State<Shared>,
    Path(no): Path<OrderNo>,
    FromShop { said, by, lang }: FromShop<ShopPaid>,
) -> Result<Json<Told>, Problem> {
    let amount = Money::new(said.amount, said.currency);
    let told = money((no, said.order_no), said.transaction_id, amount, said.paid_at)?;
    let noting = async move {
        let (outcome, order) = app.engine.payments().told_paid(by.as_ref(), &told).await?;
        Ok((shown(outcome), order))
    };
    noted(lang, noting).await
}

/// The shop's own cashier gave money back: because `payment.refund_requested` asked for it, or for a reason
/// of the shop's. A paid order is refunded with its units. Signed, or by a token of the role cashier.
#[utoipa::path(post, path = "/orders/{no}/refunded", tag = "shop",
    security(("shop" = []), ("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    request_body = ShopRefunded,
    responses(
        (status = OK, body = Told, description = "Noted, now or since before"),
        (status = NOT_FOUND, description = "No such order, or no such transaction of it"),
        (status = CONFLICT, description = "`conflict` while the order is `queued`. `transaction_used`: it \
            was told with another order"),
        (status = UNPROCESSABLE_ENTITY, description = "`amount_mismatch`: money is given back whole. \
            `invalid`, with the `field`")))]
pub(super) async fn refunded(
    State(app): State<Shared>,
    Path(no): Path<OrderNo>,
    FromShop { said, by, lang }: FromShop<ShopRefunded>,
) -> Result<Json<Told>, Problem> {
    let amount = Money::new(said.amount, said.currency);
    let told = money((no, said.order_no), said.transaction_id, amount, said.refunded_at)?;
    let noting = async move {
        let (outcome, order) = app.engine.payments().told_refunded(by.as_ref(), &told).await?;
        Ok((shown(outcome), order))
    };
    noted(lang, noting).await
}

/// Nobody can pay this order at the shop's own cashier any more: the answer to `payment.close_requested`. The
/// order is closed at once. Signed, or by a token of the role cashier.
#[utoipa::path(post, path = "/orders/{no}/payment-closed", tag = "shop",
    security(("shop" = []), ("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    request_body = ShopClosed,
    responses(
        (status = OK, body = Told, description = "Noted. The order is closed if it was unpaid and that was \
            asked for"),
        (status = NOT_FOUND, description = "No such order, or the shop has no cashier of its own here"),
        (status = CONFLICT, description = "It is `queued`")))]
pub(super) async fn payment_closed(
    State(app): State<Shared>,
    Path(no): Path<OrderNo>,
    FromShop { said, by, lang }: FromShop<ShopClosed>,
) -> Result<Json<Told>, Problem> {
    same_order(no, said.order_no)?;
    let GivenTime(closed_ms) = said.closed_at;
    let noting = async move {
        let order = app.engine.payments().told_closed(by.as_ref(), no, closed_ms).await?;
        let closed = order.status == OrderStatus::Closed;
        let outcome = if closed { Outcome::Done } else { Outcome::NotClosed };
        Ok(((outcome, None), order))
    };
    noted(lang, noting).await
}

/// Notes what was told, also if the shop hangs up meanwhile, and says what came of it.
async fn noted(
    lang: Lang,
    noting: impl Future<Output = Result<(WhatCame, Order), ToldError>> + Send + 'static,
) -> Result<Json<Told>, Problem> {
    let told = finish(async move {
        let (what_came, order) = noting.await?;
        Ok::<_, Problem>(Told::of(&order, what_came, lang))
    });
    Ok(Json(told.await?))
}

fn shown(outcome: ToldOutcome) -> WhatCame {
    match outcome {
        ToldOutcome::Done => (Outcome::Done, None),
        ToldOutcome::Repeated => (Outcome::Repeated, None),
        ToldOutcome::RefundDue(reason) => (Outcome::RefundDue, Some(reason)),
    }
}
