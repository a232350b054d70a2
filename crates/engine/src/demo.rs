//! The demo sale of a first start, so that there is something to buy after one command.
//!
//! It opens half a minute after somebody first looks at the shop, so that they see it open, and at the
//! latest a minute after the start. Until then it is a draft, which no buyer can see: so nobody is ever
//! told an opening that moves later or earlier. From the first look on it is published, and the opening
//! is what everybody was told.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sale::{
    ActivityEdit, ActivityId, ActivityMove, ActivityState, Currency, ItemWords, Millis,
    NewActivity, NewItem,
};
use serde_json::{Value, json};

use crate::{OperateError, Operations, Plans, shared::Shared};

const NAME: &str = "演示秒杀 · Demo sale";
/// In whose name the demo is made; stands in the audit.
const WHO: &str = "demo";
/// Time to read the page and sign in.
const OPENS_AFTER_LOOK_MS: Millis = 30_000;
/// So long after the start somebody is taken to have looked.
const LOOK_AWAITED_MS_MAX: Millis = 30_000;
const LASTS_MS: Millis = 24 * 60 * 60 * 1_000;

/// The demo that waits for somebody to look.
pub struct Demo {
    shared: Arc<Shared>,
    plans: Arc<Plans>,
    operations: Arc<Operations>,
    /// Asked at every look, so that a look costs nothing once the demo is out.
    waits: AtomicBool,
    /// The draft, and when it opens at the latest.
    draft: Mutex<Option<(ActivityId, Millis)>>,
    /// Those who look at the same time wait for the first of them.
    turn: tokio::sync::Mutex<()>,
}

impl Demo {
    pub(crate) fn new(shared: Arc<Shared>, plans: Arc<Plans>, operations: Arc<Operations>) -> Demo {
        let turn = tokio::sync::Mutex::new(());
        Demo { shared, plans, operations, waits: false.into(), draft: Mutex::default(), turn }
    }

    /// Makes the demo, if the ledger has never held an activity; or takes the one that an earlier
    /// start made and was killed before anybody looked. Answers when it opens at the latest.
    pub async fn prepare(&self) -> Result<Option<Millis>, OperateError> {
        let latest_ms = self.shared.now_ms() + LOOK_AWAITED_MS_MAX + OPENS_AFTER_LOOK_MS;
        let draft = match &self.shared.ledger.activities(None, 2).await?[..] {
            [] => self.plans.create(WHO, demo_sale(latest_ms), None).await?.id,
            [only] if only.state == ActivityState::Draft && only.name == NAME => only.id,
            _ => return Ok(None),
        };
        *self.draft.lock() = Some((draft, latest_ms));
        self.waits.store(true, Ordering::Release);
        Ok(Some(latest_ms))
    }

    /// Opens the demo in time if nobody looks.
    pub(crate) async fn await_first_look(self: Arc<Self>) {
        tokio::time::sleep(Duration::from_millis(LOOK_AWAITED_MS_MAX as u64)).await;
        self.somebody_looks().await;
    }

    /// Somebody looks at the shop. The first look decides when the demo opens; what they see next has it.
    pub async fn somebody_looks(&self) {
        if !self.waits.load(Ordering::Acquire) {
            return;
        }
        let _turn = self.turn.lock().await;
        let Some((draft, latest_ms)) = *self.draft.lock() else { return };
        match self.open(draft, latest_ms).await {
            // An operator was faster: it is theirs now.
            Ok(())
            | Err(OperateError::Conflict(_) | OperateError::Changed(_) | OperateError::NotFound) => {
                self.waits.store(false, Ordering::Release);
                *self.draft.lock() = None;
            }
            Err(error) => tracing::warn!(%error, "the demo sale could not be published yet"),
        }
    }

    async fn open(&self, draft: ActivityId, latest_ms: Millis) -> Result<(), OperateError> {
        let now = self.shared.ledger.activity(draft).await?.ok_or(OperateError::NotFound)?;
        if now.state != ActivityState::Draft {
            return Err(OperateError::Conflict(now.state.as_str()));
        }
        let opens_ms = latest_ms.min(self.shared.now_ms() + OPENS_AFTER_LOOK_MS);
        let edit = ActivityEdit {
            opens_ms: Some(opens_ms),
            closes_ms: Some(opens_ms + LASTS_MS),
            ..ActivityEdit::default()
        };
        self.plans.edit(WHO, draft, now.version, &edit).await?;
        self.operations.move_activity(WHO, draft, ActivityMove::Publish).await?;
        self.operations.warm_activity(WHO, draft, false).await.map(drop)
    }
}

/// The drawings of the demo's items: one file in `web`, which has a scene for each, asked for by its plain
/// name.
fn drawing(scene: &str) -> String {
    format!("/assets/art/demo.svg#{scene}")
}

/// What the page of an item says of it, beside its name.
fn words(more_images: &[&str], description: &str, attributes: Value) -> ItemWords {
    ItemWords {
        sku: None,
        description: description.into(),
        more_images: more_images.iter().map(|scene| drawing(scene)).collect(),
        attributes: attributes.as_object().cloned().unwrap_or_default(),
    }
}

fn demo_sale(opens_ms: Millis) -> NewActivity {
    let item = |name: &str, scene, price, origin_price, stock, limit_per_user, words| NewItem {
        name: name.into(),
        image_url: drawing(scene),
        price,
        origin_price: Some(origin_price),
        currency: Currency::CNY,
        stock,
        limit_per_user,
        shards: 1,
        words,
    };
    let phone = words(
        &["phone-back"],
        "钛金属机身，双摄像头，一切都在口袋里。\nTitanium, two cameras, and room for everything in a pocket.",
        json!({"颜色 · Colour": "夜蓝 · Night blue", "容量 · Storage (GB)": 256, "5G": true}),
    );
    let earphones = words(
        &[],
        "戴上，世界安静了。\nPut them in, and the world is quiet.",
        json!({"颜色 · Colour": "珍珠白 · Pearl", "续航 · Hours": 30, "降噪 · Noise cancelling": true}),
    );
    let coffee = words(
        &["coffee-beans"],
        "滤杯、分享壶和一袋当季的豆子。\nA dripper, a server and a bag of this season's beans.",
        json!({"净含量 · Net weight (g)": 250, "烘焙 · Roast": "中度 · Medium"}),
    );
    NewActivity {
        external_id: None,
        name: NAME.into(),
        opens_ms,
        closes_ms: opens_ms + LASTS_MS,
        pay_within_ms: sale::PAY_WITHIN_MS_DEFAULT,
        publish_ms: None,
        door: Default::default(),
        shuffle_ms: 0,
        items: vec![
            item("iPhone 15 Pro 256GB", "phone", 699_900, 799_900, 10_000, 1, phone),
            item("AirPods Pro 2", "earphones", 149_900, 189_900, 500, 2, earphones),
            item("手冲咖啡礼盒 · Coffee gift box", "coffee", 9_900, 19_900, 20, 1, coffee),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine};

    async fn only_activity(shop: &TestEngine) -> sale::Activity {
        let found = shop.engine.shared.ledger.activities(None, 10).await.unwrap();
        <[sale::Activity; 1]>::try_from(found).expect("there is one")[0].clone()
    }

    #[tokio::test]
    async fn the_first_look_decides_when_the_demo_opens_and_no_other_does() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let engine = &shop.engine;
        engine.demo.somebody_looks().await;
        assert_eq!(engine.demo.prepare().await.unwrap(), Some(NOW_MS + 60_000));
        let seen = || engine.catalogue.snapshot().activities.clone();
        assert!(seen().is_empty(), "nobody is told an opening that is not sure");
        shop.clock.advance(12_000);
        engine.demo.somebody_looks().await;
        let opens_ms = NOW_MS + 42_000;
        assert_eq!(seen()[0].opens_ms, opens_ms);
        assert_eq!(engine.shared.gate.left(seen()[0].items[0].id), Some(10_000));
        shop.clock.advance(5_000);
        engine.demo.somebody_looks().await;
        assert_eq!(only_activity(&shop).await.opens_ms, opens_ms, "it never moves again");
        assert_eq!(engine.demo.prepare().await.unwrap(), None, "once");
    }

    #[tokio::test]
    async fn a_look_just_before_the_minute_is_over_does_not_put_it_off() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        shop.engine.demo.prepare().await.unwrap();
        shop.clock.advance(29_500);
        tokio::join!(shop.engine.demo.somebody_looks(), shop.engine.demo.somebody_looks());
        assert_eq!(only_activity(&shop).await.opens_ms, NOW_MS + 59_500);
        let shop = TestEngine::without_a_sale(|_| {}).await;
        shop.engine.demo.prepare().await.unwrap();
        shop.clock.advance(40_000);
        shop.engine.demo.somebody_looks().await;
        assert_eq!(only_activity(&shop).await.opens_ms, NOW_MS + 60_000);
    }

    #[tokio::test]
    async fn a_demo_that_was_killed_before_it_was_published_opens_at_the_next_start() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let engine = &shop.engine;
        engine.demo.prepare().await.unwrap();
        shop.clock.advance(3 * LASTS_MS);
        let now_ms = NOW_MS + 3 * LASTS_MS;
        assert_eq!(engine.demo.prepare().await.unwrap(), Some(now_ms + 60_000));
        engine.demo.somebody_looks().await;
        let demo = only_activity(&shop).await;
        assert_eq!((demo.state, demo.items.len()), (ActivityState::Published, 3));
        assert_eq!(demo.opens_ms, now_ms + OPENS_AFTER_LOOK_MS);
    }

    #[tokio::test]
    async fn a_draft_of_somebody_else_is_left_alone() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let own = NewActivity { name: "11.11".into(), ..demo_sale(NOW_MS + 60_000) };
        shop.engine.plans.create("ann", own, None).await.unwrap();
        assert!(shop.engine.demo.prepare().await.unwrap().is_none());
        shop.engine.demo.somebody_looks().await;
        assert_eq!(only_activity(&shop).await.state, ActivityState::Draft);
    }
}
