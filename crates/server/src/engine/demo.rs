//! The demo sale of a first start, so that there is something to buy after one command.

use sale::{
    Activity, ActivityEdit, ActivityMove, ActivityState, Currency, Millis, NewActivity, NewItem,
};

use super::{Engine, operating::OperateError};

const NAME: &str = "演示秒杀 · Demo sale";
/// Time to read what the start printed and open the page.
const OPENS_IN_MS: Millis = 15_000;
const LASTS_MS: Millis = 24 * 60 * 60 * 1_000;

impl Engine {
    /// Creates and publishes the demo, if the ledger has never held an activity; or publishes the one
    /// that an earlier start created and was killed before publishing.
    pub async fn demo(&self) -> Result<Option<Activity>, OperateError> {
        let new = demo_sale(self.clock.now_ms() + OPENS_IN_MS);
        let draft = match &self.ledger.activities(None, 2).await?[..] {
            [] => self.create_activity("demo", &new).await?,
            // Its opening may be long past by now.
            [only] if only.state == ActivityState::Draft && only.name == NAME => {
                let edit = ActivityEdit {
                    opens_ms: Some(new.opens_ms),
                    closes_ms: Some(new.closes_ms),
                    ..ActivityEdit::default()
                };
                self.edit_activity("demo", only.id, only.version, &edit).await?
            }
            _ => return Ok(None),
        };
        let (activity, _) = self.move_activity("demo", draft.id, ActivityMove::Publish).await?;
        self.warm_activity("demo", activity.id, false).await?;
        Ok(Some(activity))
    }
}

fn demo_sale(opens_ms: Millis) -> NewActivity {
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
    NewActivity {
        name: NAME.into(),
        opens_ms,
        closes_ms: opens_ms + LASTS_MS,
        pay_within_ms: sale::PAY_WITHIN_MS_DEFAULT,
        publish_ms: None,
        items: vec![
            item("iPhone 15 Pro 256GB", 699_900, 799_900, 10_000, 1),
            item("AirPods Pro 2", 149_900, 189_900, 500, 2),
            item("手冲咖啡礼盒 · Coffee gift box", 9_900, 19_900, 20, 1),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::night::{NOW_MS, Night};

    #[tokio::test]
    async fn a_demo_that_was_killed_before_it_was_published_opens_at_the_next_start() {
        let night = Night::without_a_sale(|_| {}).await;
        let engine = &night.engine;
        engine.create_activity("demo", &demo_sale(NOW_MS + OPENS_IN_MS)).await.unwrap();
        night.clock.advance(3 * LASTS_MS);
        let demo = engine.demo().await.unwrap().unwrap();
        assert_eq!((demo.state, demo.items.len()), (ActivityState::Published, 3));
        assert_eq!(demo.opens_ms, NOW_MS + 3 * LASTS_MS + OPENS_IN_MS);
        assert_eq!(engine.gate.left(demo.items[0].id), Some(10_000));
        assert!(engine.demo().await.unwrap().is_none(), "once");
        assert_eq!(engine.ledger.activities(None, 10).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_draft_of_somebody_else_is_left_alone() {
        let night = Night::without_a_sale(|_| {}).await;
        let own = NewActivity { name: "11.11".into(), ..demo_sale(NOW_MS + OPENS_IN_MS) };
        night.engine.create_activity("ann", &own).await.unwrap();
        assert!(night.engine.demo().await.unwrap().is_none());
    }
}
