//! What is there once a deployment has come to rest: orders, items on both sides, stock log, bill.

use std::collections::HashSet;

use sale::{OrderNo, OrderStatus};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub struct ObservedOrder {
    pub order_no: OrderNo,
    pub user_id: String,
    pub item_id: i64,
    pub quantity: i64,
    pub amount: i64,
    pub status: OrderStatus,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct StockLogRow {
    pub id: i64,
    pub order_no: OrderNo,
    pub quantity: i64,
    pub before_stock: i64,
    pub after_stock: i64,
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Clone, Debug)]
pub struct ObservedItem {
    pub id: i64,
    pub total: i64,
    pub stock: i64,
    pub limit_per_user: i64,
    /// Nothing if the item is not at the gate any more.
    pub gate_left: Option<i64>,
    /// Units of claims that failed and wait for a person.
    pub dead_units: i64,
    pub stock_log: Vec<StockLogRow>,
    /// Buyers who asked for a unit after all was quiet and were told there is none.
    pub demand_exceeds_stock: bool,
}

/// One line of the provider's bill.
#[derive(Clone, Debug, Deserialize)]
pub struct Charge {
    pub provider_txn: String,
    pub order_no: OrderNo,
    pub amount: i64,
    pub refunded: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Bill {
    pub charges: Vec<Charge>,
}

#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub orders: Vec<ObservedOrder>,
    pub items: Vec<ObservedItem>,
    /// Claims that are neither orders nor void, with their numbers (dead letters, or still queued).
    pub open_claims: HashSet<OrderNo>,
    pub bill: Option<Bill>,
}
