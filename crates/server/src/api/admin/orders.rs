//! All orders: searched, exported, looked at, cancelled, refunded.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use http::{
    HeaderMap,
    header::{ACCEPT, CONTENT_DISPOSITION, CONTENT_TYPE, VARY},
};
use ledger::{LedgerError, OrderFilter, PaymentKind, PaymentRow, RefundWaiting};
use sale::{ActivityId, Currency, ItemId, Order, OrderNo, OrderStatus, UserId, is_plain_id};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    super::{
        Shared,
        finish::finish,
        order::OrderJson,
        orders::Orders,
        paging,
        roles::{AsAdmin, AsOperator, AsViewer},
        schemas,
        times::{GivenTime, QueryTime},
    },
    csv,
};
use crate::{
    extract::{Json, MaybeJson, Path, Query, ShopId, plain_id},
    problem::Problem,
};
use engine::{Engine, MANUAL, OrderView, TRANSACTION_ID_CHARS_MAX, fits};

/// Orders read from the ledger at a time while a table is written.
const CSV_PAGE_ROWS: usize = 500;
/// What an operator says about a refund, in characters.
pub(in super::super) const REFUND_NOTE_CHARS_MAX: usize = 200;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct Search {
    /// One order or claim by its number, wherever it is; asked for alone.
    #[param(inline, value_type = Option<schemas::OrderNumber>)]
    order_no: Option<OrderNo>,
    /// By the number that a payment provider gave its payment, or the reference of money by hand; asked for
    /// alone.
    #[param(inline, value_type = Option<schemas::ProviderTxn>)]
    payment: Option<String>,
    /// With it, claims on their way to the ledger are found as well: `queued`, and those that `failed`.
    #[param(inline, value_type = Option<schemas::StoredUserId>)]
    user_id: Option<UserId>,
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    item_id: Option<i64>,
    /// Of items that the shop knows by this id.
    #[param(inline, value_type = Option<schemas::ShopId>)]
    sku: Option<ShopId>,
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    activity_id: Option<i64>,
    /// `queued` needs `user_id`: those are not in the ledger yet.
    #[param(inline, value_type = Option<schemas::SearchedStatus>)]
    status: Option<OrderStatus>,
    /// Made at or after this time.
    #[param(value_type = Option<GivenTime>)]
    from: Option<QueryTime>,
    /// Made before this time.
    #[param(value_type = Option<GivenTime>)]
    to: Option<QueryTime>,
    /// Paid at or after this time. With this or `paid_to` the latest payment comes first.
    #[param(value_type = Option<GivenTime>)]
    paid_from: Option<QueryTime>,
    /// Paid before this time.
    #[param(value_type = Option<GivenTime>)]
    paid_to: Option<QueryTime>,
    /// Only orders before this one.
    #[param(inline, value_type = Option<schemas::OrderNumber>)]
    before: Option<OrderNo>,
    /// 1 to 500, 50 unless told. A CSV always holds all.
    #[param(inline, value_type = Option<schemas::PageRows>)]
    limit: Option<u32>,
    /// `json` or `csv`; unless told, by the header `Accept`.
    #[param(inline)]
    format: Option<Format>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    Json,
    Csv,
}

impl Search {
    fn wants_csv(&self, headers: &HeaderMap) -> bool {
        let accepted = || {
            let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
            accept.is_some_and(|accept| accept.trim_start().starts_with("text/csv"))
        };
        self.format.map_or_else(accepted, |format| format == Format::Csv)
    }

    fn filter(self, limit: usize) -> Result<OrderFilter, Problem> {
        let ms = |time: Option<QueryTime>| time.map(|time| time.0);
        let filter = OrderFilter {
            order_no: self.order_no,
            user: self.user_id,
            activity: self.activity_id.map(ActivityId),
            item: self.item_id.map(ItemId),
            sku: self.sku.map(|ShopId(sku)| sku),
            status: self.status,
            from_ms: ms(self.from),
            to_ms: ms(self.to),
            paid_from_ms: ms(self.paid_from),
            paid_to_ms: ms(self.paid_to),
            before: self.before,
            limit,
        };
        if filter.status == Some(OrderStatus::Queued) && filter.user.is_none() {
            let problem = "queued needs user_id: a claim on its way is found by its buyer";
            return Err(Problem::invalid_in("status", problem, "为 queued 时必须同时给出 user_id"));
        }
        let alone = OrderFilter { order_no: None, limit: 0, ..filter.clone() };
        if filter.order_no.is_some() && alone != OrderFilter::default() {
            let problem = "names one order: ask for it alone";
            return Err(Problem::invalid_in(
                "order_no",
                problem,
                "已指定单个订单，请勿同时使用其他条件",
            ));
        }
        Ok(filter)
    }
}

/// Search all orders, newest first; as JSON in pages, or as one CSV. A CSV and a search for a buyer are
/// written to the audit.
#[utoipa::path(get, path = "/admin/orders", tag = "admin", security(("operator" = [])),
    params(Search),
    responses((status = OK, content(
        (Orders = "application/json"),
        (String = "text/csv")))))]
pub(in super::super) async fn list(
    State(app): State<Shared>,
    AsViewer(who): AsViewer,
    Query(search): Query<Search>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if let Some(txn) = search.payment.clone() {
        let orders = paid_by(&app.engine, &txn, search.filter(0)?).await?;
        return Ok(([(VARY, "accept")], Json(Orders { orders, next: None })).into_response());
    }
    if search.wants_csv(&headers) {
        let filter = search.filter(CSV_PAGE_ROWS)?;
        app.engine.operations().note_reading(&who, "orders.export", asked_for(&filter)).await?;
        return table(app.engine.clone(), filter).await;
    }
    let rows = paging::rows(search.limit)?;
    let filter = search.filter(rows)?;
    if filter.user.is_some() {
        app.engine.operations().note_reading(&who, "orders.search", asked_for(&filter)).await?;
    }
    let orders = match filter.order_no {
        Some(no) => numbered(&app.engine, no).await?,
        None => matching(&app.engine, &filter).await?,
    };
    let next = paging::next(&orders, rows, |order| order.order_no);
    Ok(([(VARY, "accept")], Json(Orders { orders, next })).into_response())
}

/// The orders that one payment is for: one, unless somebody has told of it twice.
async fn paid_by(
    engine: &Engine,
    txn: &str,
    filter: OrderFilter,
) -> Result<Vec<OrderJson>, Problem> {
    if filter != OrderFilter::default() {
        let rule = "names one payment: ask for it alone";
        return Err(Problem::invalid_in("payment", rule, "已指定支付单号，请勿同时使用其他条件"));
    }
    if !is_plain_id(txn, TRANSACTION_ID_CHARS_MAX) {
        let rule = format_args!("must be 1 to {TRANSACTION_ID_CHARS_MAX} visible characters");
        return Err(Problem::invalid("payment", rule));
    }
    let mut providers = engine.payments().provider_names();
    providers.push(MANUAL.to_owned());
    let mut orders = Vec::new();
    for no in engine.records().orders_of_payment(&providers, txn).await? {
        orders.extend(numbered(engine, no).await?);
    }
    Ok(orders)
}

async fn numbered(engine: &Engine, no: OrderNo) -> Result<Vec<OrderJson>, Problem> {
    match engine.orders().find(no).await? {
        Some(found) => Ok(vec![OrderJson::found(engine, found).await?]),
        None => Ok(Vec::new()),
    }
}

async fn matching(engine: &Engine, filter: &OrderFilter) -> Result<Vec<OrderJson>, Problem> {
    // Those on their way first: one that arrives meanwhile is seen twice, never not at all.
    let waiting = waiting(engine, filter).await?;
    let mut orders: Vec<OrderJson> = match filter.status {
        Some(OrderStatus::Queued) => Vec::new(),
        _ => shown(engine, engine.records().orders(filter).await?).await?,
    };
    if waiting.is_empty() {
        return Ok(orders);
    }
    let known: HashSet<OrderNo> = orders.iter().map(|order| order.order_no).collect();
    orders.extend(waiting.into_iter().filter(|order| !known.contains(&order.order_no)));
    orders.sort_by_key(|order| std::cmp::Reverse(order.order_no));
    orders.truncate(filter.limit);
    Ok(orders)
}

/// The claims of a buyer that are no orders yet and fit the search.
async fn waiting(engine: &Engine, filter: &OrderFilter) -> Result<Vec<OrderJson>, Problem> {
    let wanted = matches!(filter.status, None | Some(OrderStatus::Queued)) && !filter.by_payment();
    let Some(user) = filter.user.as_ref().filter(|_| wanted) else { return Ok(Vec::new()) };
    let mut orders = Vec::new();
    for found in engine.orders().waiting_of(user, filter.before, filter.limit).await? {
        let OrderView::Queued(claim) = &found.view else { continue };
        if !fits(claim, filter) {
            continue;
        }
        let order = OrderJson::found(engine, found).await?;
        let of_sku = filter.sku.is_none() || order.sku == filter.sku;
        if of_sku && filter.activity.is_none_or(|activity| order.activity_id == activity.0) {
            orders.push(order);
        }
    }
    Ok(orders)
}

/// What the audit says of a search: what was asked for, and nothing that was not.
fn asked_for(filter: &OrderFilter) -> Value {
    let asked = [
        ("order_no", filter.order_no.map(|no| json!(no))),
        ("user_id", filter.user.as_ref().map(|user| json!(user))),
        ("activity_id", filter.activity.map(|id| json!(id))),
        ("item_id", filter.item.map(|id| json!(id))),
        ("sku", filter.sku.as_ref().map(|sku| json!(sku))),
        ("status", filter.status.map(|status| json!(status))),
        ("from", filter.from_ms.map(|ms| json!(ms))),
        ("to", filter.to_ms.map(|ms| json!(ms))),
        ("paid_from", filter.paid_from_ms.map(|ms| json!(ms))),
        ("paid_to", filter.paid_to_ms.map(|ms| json!(ms))),
        ("before", filter.before.map(|no| json!(no))),
    ];
    asked.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// With their buyers, and what is on record of their payments.
async fn shown(engine: &Engine, orders: Vec<Order>) -> Result<Vec<OrderJson>, Problem> {
    let rows = engine.orders().payments_of(&numbers_of(&orders)).await?;
    let shown = |order: Order| {
        let (user, rows) = (order.user.clone(), rows.get(&order.order_no));
        let rows = rows.map_or(&[][..], Vec::as_slice);
        OrderJson::from(order).with_user(user).with_money(engine, rows)
    };
    Ok(orders.into_iter().map(shown).collect())
}

fn numbers_of(orders: &[Order]) -> Vec<OrderNo> {
    orders.iter().map(|order| order.order_no).collect()
}

/// Written page by page: the table may be longer than memory. A ledger that fails half way cuts the
/// connection, so that nobody takes half a table for a whole one. It holds what is in the ledger.
async fn table(engine: Arc<Engine>, filter: OrderFilter) -> Result<Response, Problem> {
    if filter.status == Some(OrderStatus::Queued) {
        let problem = "queued cannot be a table: those are no orders yet";
        return Err(Problem::invalid_in("status", problem, "queued 尚未成为订单，无法导出"));
    }
    // The first page is read before the answer begins, so that a ledger that is down is a 503.
    let first = page(&engine, &filter).await?;
    let begun = Some((first, engine, filter));
    let pages = stream::unfold(begun, |at| async move {
        let ((orders, money), engine, mut filter) = at?;
        let lines = Ok::<_, LedgerError>(Bytes::from(csv::lines(&orders, &money)));
        let next = paging::next(&orders, filter.limit, |order: &Order| order.order_no);
        let Some(before) = next else { return Some((lines, None)) };
        filter.before = Some(before);
        match page(&engine, &filter).await {
            Ok(next) => Some((lines, Some((next, engine, filter)))),
            Err(error) => {
                tracing::warn!(%error, "a table of orders was cut short");
                Some((Err(error), None))
            }
        }
    });
    let head = stream::iter([Ok(Bytes::from_static(csv::HEAD.as_bytes()))]);
    let body = Body::from_stream(futures_util::StreamExt::chain(head, pages));
    let headers = [
        (CONTENT_TYPE, "text/csv; charset=utf-8; header=present"),
        (CONTENT_DISPOSITION, "attachment; filename=\"orders.csv\""),
        (VARY, "accept"),
    ];
    Ok((headers, body).into_response())
}

/// Orders, and what is on record of their payments.
async fn page(
    engine: &Engine,
    filter: &OrderFilter,
) -> ledger::Result<(Vec<Order>, HashMap<OrderNo, Vec<PaymentRow>>)> {
    let orders = engine.records().orders(filter).await?;
    let money = engine.orders().payments_of(&numbers_of(&orders)).await?;
    Ok((orders, money))
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct OrderWithPayments {
    order: OrderJson,
    /// Oldest first.
    payments: Vec<Payment>,
    /// Money that is owed back and not back yet: who has to give it, and what they said last.
    refunds_waiting: Vec<WaitingRefund>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct WaitingRefund {
    provider: String,
    provider_txn: String,
    /// How often it was tried.
    tries: u32,
    /// Why it was not done, or what is waited for.
    cause: Option<String>,
    since: i64,
}

impl From<RefundWaiting> for WaitingRefund {
    fn from(row: RefundWaiting) -> Self {
        let RefundWaiting { provider, provider_txn, tries, cause, since_ms } = row;
        WaitingRefund { provider, provider_txn, tries, cause, since: since_ms }
    }
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Payment {
    provider: String,
    provider_txn: String,
    #[schema(schema_with = schemas::payment_kind)]
    kind: PaymentKind,
    amount: i64,
    #[schema(value_type = String, example = "CNY")]
    currency: Currency,
    created_at: i64,
    /// Of one that was opened: how the buyer came to the provider.
    #[schema(schema_with = schemas::pay_method_or_null)]
    method: Option<String>,
}

impl From<PaymentRow> for Payment {
    fn from(row: PaymentRow) -> Self {
        Payment {
            provider: row.provider,
            provider_txn: row.provider_txn,
            kind: row.kind,
            amount: row.amount.minor,
            currency: row.amount.currency,
            created_at: row.created_ms,
            method: row.method,
        }
    }
}

pub(super) async fn whole(engine: &Engine, no: OrderNo) -> Result<OrderWithPayments, Problem> {
    let found = engine.orders().find(no).await?.ok_or_else(Problem::not_found)?;
    let order = OrderJson::found(engine, found).await?;
    let payments = engine.orders().payments(no).await?.into_iter().map(Into::into).collect();
    let waiting = engine.records().refunds_waiting(no).await?;
    let refunds_waiting = waiting.into_iter().map(Into::into).collect();
    Ok(OrderWithPayments { order, payments, refunds_waiting })
}

/// One order and its payments.
#[utoipa::path(get, path = "/admin/orders/{no}", tag = "admin", security(("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    responses((status = OK, body = OrderWithPayments), (status = NOT_FOUND, description = "No such order")))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    _: AsViewer,
    Path(no): Path<OrderNo>,
) -> Result<Json<OrderWithPayments>, Problem> {
    Ok(Json(whole(&app.engine, no).await?))
}

/// Give an unpaid order up in its buyer's place; its units go back on sale. A payment that is open at a
/// provider is closed there first.
#[utoipa::path(post, path = "/admin/orders/{no}/cancel", tag = "admin", security(("operator" = [])),
    params(("no" = String, Path, description = "The order number")),
    responses(
        (status = OK, body = OrderWithPayments, description = "It is closed, now or since before"),
        (status = NOT_FOUND, description = "No such order"),
        (status = CONFLICT, description = "It is queued, or paid, or over (see `state`)")))]
pub(in super::super) async fn cancel(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(no): Path<OrderNo>,
) -> Result<Json<OrderWithPayments>, Problem> {
    let order = finish(async move {
        app.engine.payments().cancel_by(&who, no).await?;
        whole(&app.engine, no).await
    });
    Ok(Json(order.await?))
}

/// Words of an operator about money that goes back.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct RefundWords {
    #[schema(schema_with = schemas::refund_note, required = false)]
    note: Option<String>,
}

impl RefundWords {
    fn checked(self) -> Result<Option<String>, Problem> {
        let good = |note: &String| {
            note.chars().count() <= REFUND_NOTE_CHARS_MAX
                && note.split(' ').all(|word| is_plain_id(word, REFUND_NOTE_CHARS_MAX))
        };
        if self.note.as_ref().is_none_or(good) {
            return Ok(self.note);
        }
        let rule = format_args!(
            "must be words of at most {REFUND_NOTE_CHARS_MAX} characters in all, a space between them"
        );
        Err(Problem::invalid("note", rule))
    }
}

/// Give the money of a paid order back; its units are on sale again. Needs the role admin.
#[utoipa::path(post, path = "/admin/orders/{no}/refund", tag = "admin", security(("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    request_body = Option<RefundWords>,
    responses(
        (status = OK, body = OrderWithPayments, description = "The refund is under way, now or since before"),
        (status = NOT_FOUND, description = "No such order"),
        (status = CONFLICT, description = "It is not paid (see `state`)")))]
pub(in super::super) async fn refund(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Path(no): Path<OrderNo>,
    MaybeJson(words): MaybeJson<RefundWords>,
) -> Result<Json<OrderWithPayments>, Problem> {
    let note = words.unwrap_or_default().checked()?;
    let order = finish(async move {
        app.engine.operations().refund(&who, no, note.as_deref()).await?;
        whole(&app.engine, no).await
    });
    Ok(Json(order.await?))
}
