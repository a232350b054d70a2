//! What an activity came to.

use axum::extract::State;
use ledger::StatusCount;
use sale::{ActivityId, ActivityState, Currency, OrderStatus};
use serde::Serialize;
use utoipa::ToSchema;

use super::super::{Shared, finish::finish, openapi, roles::AsViewer};
use crate::{
    extract::{Json, Path},
    problem::Problem,
};
use engine::{ItemTotals, Totals};

#[derive(Serialize, ToSchema)]
#[schema(as = ActivityTotals)]
pub(in super::super) struct TotalsJson {
    activity_id: i64,
    #[schema(schema_with = openapi::activity_state)]
    state: ActivityState,
    /// When the orders were counted. A large sale is counted again after a while, not at each look.
    counted_at: i64,
    items: Vec<ItemTotalsJson>,
    /// Over all items.
    currencies: Vec<CurrencyTotals>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ItemTotals)]
pub(in super::super) struct ItemTotalsJson {
    item_id: i64,
    name: String,
    #[schema(value_type = String, example = "CNY")]
    currency: Currency,
    /// Units there are in all, and those the ledger has not sold.
    total: i64,
    stock: i64,
    /// Units of paid orders.
    units_sold: i64,
    /// Of paid orders, in minor units.
    revenue: i64,
    /// Of orders whose money is on its way back, or was given back.
    refunding: i64,
    refunded: i64,
    orders: OrdersByStatus,
}

/// Claims that are queued are not in the ledger and not counted.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct OrdersByStatus {
    unpaid: CountJson,
    paid: CountJson,
    closed: CountJson,
    refunding: CountJson,
    refunded: CountJson,
    void: CountJson,
}

#[derive(Serialize, ToSchema)]
#[schema(as = OrderCount)]
pub(in super::super) struct CountJson {
    orders: u64,
    units: i64,
    amount: i64,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct CurrencyTotals {
    #[schema(value_type = String, example = "CNY")]
    currency: Currency,
    units_sold: i64,
    revenue: i64,
    refunding: i64,
    refunded: i64,
}

impl From<StatusCount> for CountJson {
    fn from(count: StatusCount) -> Self {
        CountJson { orders: count.orders, units: count.units, amount: count.amount }
    }
}

impl From<&ItemTotals> for ItemTotalsJson {
    fn from(totals: &ItemTotals) -> Self {
        let (item, of) = (&totals.item, |status| totals.of(status));
        ItemTotalsJson {
            item_id: item.id.0,
            name: item.name.clone(),
            currency: item.price.currency,
            total: item.total,
            stock: item.stock,
            units_sold: of(OrderStatus::Paid).units,
            revenue: of(OrderStatus::Paid).amount,
            refunding: of(OrderStatus::Refunding).amount,
            refunded: of(OrderStatus::Refunded).amount,
            orders: OrdersByStatus {
                unpaid: of(OrderStatus::Unpaid).into(),
                paid: of(OrderStatus::Paid).into(),
                closed: of(OrderStatus::Closed).into(),
                refunding: of(OrderStatus::Refunding).into(),
                refunded: of(OrderStatus::Refunded).into(),
                void: of(OrderStatus::Void).into(),
            },
        }
    }
}

impl From<&Totals> for TotalsJson {
    fn from(totals: &Totals) -> Self {
        let items: Vec<ItemTotalsJson> = totals.items.iter().map(Into::into).collect();
        TotalsJson {
            activity_id: totals.activity.id.0,
            state: totals.activity.state,
            counted_at: totals.counted_ms,
            currencies: by_currency(&items),
            items,
        }
    }
}

fn by_currency(items: &[ItemTotalsJson]) -> Vec<CurrencyTotals> {
    let mut totals: Vec<CurrencyTotals> = Vec::new();
    for item in items {
        let at = totals.iter().position(|known| known.currency == item.currency);
        let at = at.unwrap_or_else(|| {
            let currency = item.currency;
            totals.push(CurrencyTotals {
                currency,
                units_sold: 0,
                revenue: 0,
                refunding: 0,
                refunded: 0,
            });
            totals.len() - 1
        });
        let sum = &mut totals[at];
        sum.units_sold += item.units_sold;
        sum.revenue += item.revenue;
        sum.refunding += item.refunding;
        sum.refunded += item.refunded;
    }
    totals
}

/// Units, orders by status and revenue of an activity, per item and currency.
#[utoipa::path(get, path = "/admin/activities/{id}/totals", tag = "admin",
    security(("operator" = [])), params(("id" = i64, Path, description = "The activity")),
    responses((status = OK, body = TotalsJson), (status = NOT_FOUND, description = "No such activity")))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    _: AsViewer,
    Path(id): Path<i64>,
) -> Result<Json<TotalsJson>, Problem> {
    // Counted to the end, whether or not the client waits for it: whoever asks next is told at once.
    let totals = finish(async move { app.engine.records().totals(ActivityId(id)).await }).await?;
    Ok(Json((&*totals).into()))
}
