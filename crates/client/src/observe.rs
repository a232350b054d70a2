//! What the checker wants to know of a deployment, read through its admin API.

use std::{collections::HashSet, time::Duration};

use checker::{Bill, Charge, Observed, ObservedItem, ObservedOrder, StockLogRow};
use sale::OrderNo;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Api, ApiError};

const PAGE: usize = 500;
const READ_AGAIN: Duration = Duration::from_millis(50);

/// Why a deployment cannot be observed yet.
#[derive(Debug, thiserror::Error)]
pub enum NotSettled {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("the deployment did not come to rest: {0}")]
    Busy(String),
}

/// Wait until nothing is on its way: the log is empty, the outbox delivered.
pub async fn settled(admin: &mut Api, within: Duration) -> Result<(), NotSettled> {
    let deadline = tokio::time::Instant::now() + within;
    loop {
        let overview: Value = admin.read("/api/v1/admin/overview").await?;
        let backlog = overview["orders"]["backlog"].as_u64();
        if backlog == Some(0) && overview["outbox_depth"].as_u64() == Some(0) {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            return Err(NotSettled::Busy(overview.to_string()));
        }
        tokio::time::sleep(READ_AGAIN).await;
    }
}

/// Everything the checker wants to know of these items. The deployment should be at rest.
pub async fn observe(admin: &mut Api, items: &[i64]) -> Result<Observed, ApiError> {
    let mut observed = Observed::default();
    let dead = dead_letters(admin).await?;
    observed.open_claims = dead.iter().map(|letter| letter.order_no).collect();
    for item in items {
        observed.orders.extend(orders(admin, *item).await?);
        let mine = dead.iter().filter(|letter| letter.item_id == *item);
        let dead_units = mine.map(|letter| letter.quantity).sum();
        observed.items.push(item_of(admin, *item, dead_units).await?);
    }
    observed.bill = bill(admin).await?;
    Ok(observed)
}

async fn item_of(admin: &mut Api, id: i64, dead_units: i64) -> Result<ObservedItem, ApiError> {
    let sides: Value = admin.read(&format!("/api/v1/admin/items/{id}")).await?;
    let item = &sides["item"];
    let number = |value: &Value| value.as_i64().unwrap_or(i64::MIN);
    Ok(ObservedItem {
        id,
        total: number(&item["total"]),
        stock: number(&item["stock"]),
        limit_per_user: number(&item["limit_per_user"]),
        gate_left: sides["gate"]["left"].as_i64(),
        dead_units,
        stock_log: stock_log(admin, id).await?,
        demand_exceeds_stock: false,
    })
}

async fn orders(admin: &mut Api, item: i64) -> Result<Vec<ObservedOrder>, ApiError> {
    let path = |last: Option<&ObservedOrder>| {
        let before = last.map_or(String::new(), |order| format!("&before={}", order.order_no));
        format!("/api/v1/admin/orders?item_id={item}&limit={PAGE}{before}")
    };
    all_pages(admin, "orders", path).await
}

async fn stock_log(admin: &mut Api, item: i64) -> Result<Vec<StockLogRow>, ApiError> {
    let path = |last: Option<&StockLogRow>| {
        let after = last.map_or(0, |row| row.id);
        format!("/api/v1/admin/items/{item}/stock-log?after={after}&limit={PAGE}")
    };
    all_pages(admin, "rows", path).await
}

/// Page after page, each from where the one before ended.
async fn all_pages<T: DeserializeOwned>(
    admin: &mut Api,
    field: &str,
    path: impl Fn(Option<&T>) -> String,
) -> Result<Vec<T>, ApiError> {
    let mut all = Vec::new();
    loop {
        let mut page: Value = admin.read(&path(all.last())).await?;
        let rows: Vec<T> = serde_json::from_value(page[field].take())?;
        let is_last = rows.len() < PAGE;
        all.extend(rows);
        if is_last {
            return Ok(all);
        }
    }
}

#[derive(Deserialize)]
struct DeadLetter {
    order_no: OrderNo,
    item_id: i64,
    quantity: i64,
}

async fn dead_letters(admin: &mut Api) -> Result<Vec<DeadLetter>, ApiError> {
    #[derive(Deserialize)]
    struct Page {
        dead_letters: Vec<DeadLetter>,
    }
    let page: Page = admin.read(&format!("/api/v1/admin/dead-letters?limit={PAGE}")).await?;
    let mut seen = HashSet::new();
    Ok(page.dead_letters.into_iter().filter(|letter| seen.insert(letter.order_no)).collect())
}

/// The sandbox's bill, where there is a sandbox.
async fn bill(admin: &mut Api) -> Result<Option<Bill>, ApiError> {
    #[derive(Deserialize)]
    struct Page {
        charges: Vec<Charge>,
    }
    let response = admin.get("/api/v1/admin/sandbox/bill").await?;
    if response.status == 404 {
        return Ok(None);
    }
    let page: Page = serde_json::from_slice(&response.body)?;
    Ok(Some(Bill { charges: page.charges }))
}
