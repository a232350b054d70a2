//! Creating a sale over the admin API.

use sale::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::{Api, ApiError};

/// An activity of items that are all alike.
#[derive(Clone, Debug)]
pub struct NewSale {
    pub name: String,
    pub items: usize,
    pub price: i64,
    /// Units of each item.
    pub stock: i64,
    pub limit_per_user: u32,
    pub shards: u32,
    pub pay_within_ms: i64,
    pub opens_ms: i64,
    pub closes_ms: i64,
    /// Claims of so long a time from the opening on are drawn; 0: none.
    pub shuffle_ms: i64,
}

/// The numbers that a sale was given.
#[derive(Clone, Debug)]
pub struct CreatedSale {
    pub activity: i64,
    pub items: Vec<i64>,
}

impl NewSale {
    /// One item, open now and for an hour.
    pub fn of(stock: i64) -> NewSale {
        let now_ms = SystemClock.now_ms();
        NewSale {
            name: "sale".into(),
            items: 1,
            price: 699_900,
            stock,
            limit_per_user: 1,
            shards: 1,
            pay_within_ms: 1_800_000,
            opens_ms: now_ms - 1_000,
            closes_ms: now_ms + 3_600_000,
            shuffle_ms: 0,
        }
    }

    pub fn shards(self, shards: u32) -> NewSale {
        NewSale { shards, ..self }
    }

    pub fn pay_within_ms(self, pay_within_ms: i64) -> NewSale {
        NewSale { pay_within_ms, ..self }
    }

    /// Create it, publish it and load it into the gate.
    pub async fn create(&self, admin: &mut Api) -> Result<CreatedSale, ApiError> {
        let created = self.draft(admin).await?;
        created.publish(admin).await?;
        Ok(created)
    }

    /// Create it; nobody but operators can see it yet.
    pub async fn draft(&self, admin: &mut Api) -> Result<CreatedSale, ApiError> {
        let item = |n: usize| {
            json!({"name": format!("{} item {n}", self.name), "price": self.price,
                "currency": "CNY", "stock": self.stock, "limit_per_user": self.limit_per_user,
                "shards": self.shards})
        };
        let mut body = json!({
            "name": self.name, "opens_at": self.opens_ms, "closes_at": self.closes_ms,
            "pay_within_ms": self.pay_within_ms,
            "items": (1..=self.items).map(item).collect::<Vec<_>>(),
        });
        // A build from before knows no such field.
        if self.shuffle_ms > 0 {
            body["shuffle_ms"] = self.shuffle_ms.into();
        }
        let created: Value = admin.write("/api/v1/admin/activities", &body).await?;
        let number = |value: &Value| value["id"].as_i64().unwrap_or_default();
        let items = created["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(CreatedSale { activity: number(&created), items: items.iter().map(number).collect() })
    }
}

impl CreatedSale {
    /// Publish the draft and load its items into the gate.
    pub async fn publish(&self, admin: &mut Api) -> Result<(), ApiError> {
        for step in ["publish", "warm"] {
            let path = format!("/api/v1/admin/activities/{}/{step}", self.activity);
            let _: Value = admin.write(&path, &json!({})).await?;
        }
        Ok(())
    }
}
