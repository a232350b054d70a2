//! The demo sale of a first start, so that there is something to buy after one command.

use sale::{Activity, ActivityState, Currency, Millis, NewActivity, NewItem};

use super::{Engine, operating::OperateError};

/// Time to read what the start printed and open the page.
const OPENS_IN_MS: Millis = 15_000;
const LASTS_MS: Millis = 24 * 60 * 60 * 1_000;

impl Engine {
    /// Creates and publishes the demo, if the ledger has never held an activity.
    pub async fn demo(&self) -> Result<Option<Activity>, OperateError> {
        if !self.ledger.activities(0, 1).await?.is_empty() {
            return Ok(None);
        }
        let opens_ms = self.clock.now_ms() + OPENS_IN_MS;
        let item = |name: &str, price, origin_price, stock, limit_per_user| NewItem {
            name: name.into(),
            image_url: String::new(),
            price,
            origin_price: Some(origin_price),
            currency: Currency::CNY,
            stock,
            limit_per_user,
            shards: 1,
        };
        let new = NewActivity {
            name: "演示秒杀 · Demo sale".into(),
            opens_ms,
            closes_ms: opens_ms + LASTS_MS,
            pay_within_ms: sale::PAY_WITHIN_MS_DEFAULT,
            items: vec![
                item("iPhone 15 Pro 256GB", 699_900, 799_900, 10_000, 1),
                item("AirPods Pro 2", 149_900, 189_900, 500, 2),
                item("手冲咖啡礼盒 · Coffee gift box", 9_900, 19_900, 20, 1),
            ],
        };
        let draft = self.create_activity("demo", &new).await?;
        let activity = self.move_activity("demo", draft.id, ActivityState::Published).await?;
        self.warm_activity("demo", activity.id, false).await?;
        Ok(Some(activity))
    }
}
