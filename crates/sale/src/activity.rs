//! A sale session, its items, and what an operator may ask for.

use serde::{Deserialize, Serialize};

use crate::{
    ActivityId, Currency, Door, Draw, Epoch, InvalidTime, ItemId, Millis, Money, check_shuffle,
    check_time, iso_time,
    text::is_plain_name,
    words::{ItemWords, check_image, check_shop_id, check_skus},
};

pub const NAME_CHARS_MAX: usize = 200;
pub const URL_CHARS_MAX: usize = 1_000;
pub const ITEMS_PER_ACTIVITY_MAX: usize = 1_000;
pub const STOCK_MAX: i64 = 100_000_000;
pub const LIMIT_PER_USER_MAX: u32 = 1_000;
pub const SHARDS_MAX: u32 = 64;
pub const PAY_WITHIN_MS_DEFAULT: Millis = 30 * 60 * 1_000;
pub const PAY_WITHIN_MS_MIN: Millis = 1_000;
pub const PAY_WITHIN_MS_MAX: Millis = 7 * 24 * 60 * 60 * 1_000;
/// Of one unit, in minor units. Times the largest limit it is still a number that every browser keeps
/// exactly (2^53).
pub const PRICE_MAX: i64 = 1_000_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivityState {
    /// Being prepared; buyers do not see it.
    Draft,
    /// Visible, warmed in time, sold in its window.
    Published,
    /// Visible, but the gate admits nobody.
    Paused,
    /// Over, by the clock or by an operator. For good.
    Ended,
}

impl ActivityState {
    pub const ALL: [ActivityState; 4] = [
        ActivityState::Draft,
        ActivityState::Published,
        ActivityState::Paused,
        ActivityState::Ended,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            ActivityState::Draft => "draft",
            ActivityState::Published => "published",
            ActivityState::Paused => "paused",
            ActivityState::Ended => "ended",
        }
    }

    /// The number in the ledger's `state` column.
    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        ActivityState::ALL.into_iter().find(|state| state.code() == code)
    }

    pub fn may_become(self, to: ActivityState) -> bool {
        use ActivityState::*;
        matches!(
            (self, to),
            (Draft, Published | Ended) | (Published, Paused | Ended) | (Paused, Published | Ended)
        )
    }
}

/// What an operator, or the clock, does with an activity. Publishing and resuming lead to the same state
/// and are two moves all the same: whoever publishes what somebody has paused meanwhile must not set it
/// going again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityMove {
    Publish,
    Pause,
    Resume,
    End,
}

impl ActivityMove {
    pub const ALL: [ActivityMove; 4] =
        [ActivityMove::Publish, ActivityMove::Pause, ActivityMove::Resume, ActivityMove::End];

    /// As the API and the audit name it.
    pub fn as_str(self) -> &'static str {
        match self {
            ActivityMove::Publish => "publish",
            ActivityMove::Pause => "pause",
            ActivityMove::Resume => "resume",
            ActivityMove::End => "end",
        }
    }

    /// Where it leads.
    pub fn to(self) -> ActivityState {
        match self {
            ActivityMove::Publish | ActivityMove::Resume => ActivityState::Published,
            ActivityMove::Pause => ActivityState::Paused,
            ActivityMove::End => ActivityState::Ended,
        }
    }

    /// May it be done with what is in this state?
    pub fn may_leave(self, from: ActivityState) -> bool {
        match self {
            ActivityMove::Publish => from == ActivityState::Draft,
            ActivityMove::Resume => from == ActivityState::Paused,
            ActivityMove::Pause | ActivityMove::End => from.may_become(self.to()),
        }
    }

    /// What is over is neither published nor resumed: it would end for good a moment later, without
    /// having sold anything.
    pub fn check_window(self, closes_ms: Millis, now_ms: Millis) -> Result<(), Invalid> {
        match self {
            ActivityMove::Publish | ActivityMove::Resume => check_not_over(closes_ms, now_ms),
            ActivityMove::Pause | ActivityMove::End => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemState {
    /// Not at the gate.
    Draft,
    /// On its way to the gate, under the epoch written beside this state.
    Warming,
    /// At the gate under that epoch.
    Ready,
    /// Taken from the gate for good.
    Ended,
}

impl ItemState {
    pub const ALL: [ItemState; 4] =
        [ItemState::Draft, ItemState::Warming, ItemState::Ready, ItemState::Ended];

    pub fn as_str(self) -> &'static str {
        match self {
            ItemState::Draft => "draft",
            ItemState::Warming => "warming",
            ItemState::Ready => "ready",
            ItemState::Ended => "ended",
        }
    }

    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        ItemState::ALL.into_iter().find(|state| state.code() == code)
    }
}

/// An activity as the ledger knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    pub id: ActivityId,
    /// The shop's own id of it, which no other activity has.
    #[serde(default)]
    pub external_id: Option<String>,
    pub name: String,
    pub opens_ms: Millis,
    pub closes_ms: Millis,
    pub pay_within_ms: Millis,
    pub state: ActivityState,
    /// When a draft publishes itself; afterwards, when it was to.
    #[serde(default)]
    pub publish_ms: Option<Millis>,
    /// When a pause is over by itself; none: an operator resumes it.
    #[serde(default)]
    pub resume_ms: Option<Millis>,
    /// It was ended as a draft: no buyer has seen it, and none shall.
    #[serde(default)]
    pub given_up: bool,
    /// Grows with every edit and every move: whoever edits says which one they have seen.
    #[serde(default)]
    pub version: i64,
    /// How buyers are let in.
    #[serde(default)]
    pub door: Door,
    /// Those who come first are drawn; none: they are served as they come.
    #[serde(default)]
    pub draw: Option<Draw>,
    pub items: Vec<Item>,
}

impl Activity {
    /// Buyers may know of it.
    pub fn is_public(&self) -> bool {
        self.state != ActivityState::Draft && !self.given_up
    }

    /// Buyers know of it and cannot buy yet.
    pub fn is_awaited(&self, now_ms: Millis) -> bool {
        matches!(self.state, ActivityState::Published | ActivityState::Paused)
            && now_ms < self.first_claim_ms()
    }

    /// When the first buyer may claim: a member, where those come first. Whose turn it is later is in the
    /// sale token.
    pub fn first_claim_ms(&self) -> Millis {
        self.door.members_from.unwrap_or(self.opens_ms)
    }

    /// For so long from the opening on claims are gathered for a draw; 0: they are not.
    pub fn shuffle_ms(&self) -> Millis {
        self.draw.as_ref().map_or(0, |draw| draw.shuffle_ms)
    }

    /// When the gate admits the first buyer. With a draw that is when it is over, so that nobody gets round
    /// it by way of an instance that knows nothing of it.
    pub fn gate_opens_ms(&self) -> Millis {
        self.first_claim_ms().saturating_add(self.shuffle_ms())
    }
}

/// An item as the ledger knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    pub id: ItemId,
    pub activity: ActivityId,
    pub name: String,
    pub image_url: String,
    pub price: Money,
    pub origin_price: Option<i64>,
    /// Units the ledger has not sold.
    pub stock: i64,
    /// Units there are in all: `stock` and the units of live orders.
    pub total: i64,
    pub limit_per_user: u32,
    pub shards: u32,
    pub version: i64,
    pub epoch: Epoch,
    pub state: ItemState,
    #[serde(default)]
    pub words: ItemWords,
}

/// What an operator asked for makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// Which field, as the API names it, e.g. `items[0].stock`.
    pub field: String,
    pub problem: String,
    /// The same in Chinese, where somebody wrote it.
    pub problem_zh: Option<String>,
}

impl Invalid {
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Invalid { field: field.into(), problem: problem.into(), problem_zh: None }
    }

    pub fn zh(mut self, problem: impl Into<String>) -> Self {
        self.problem_zh = Some(problem.into());
        self
    }

    /// The field holds no time that can be used.
    pub fn time(field: impl Into<String>, why: InvalidTime) -> Self {
        Invalid::new(field, why.en()).zh(why.zh())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NewActivity {
    pub external_id: Option<String>,
    pub name: String,
    pub opens_ms: Millis,
    pub closes_ms: Millis,
    pub pay_within_ms: Millis,
    /// When it publishes itself, if it does.
    pub publish_ms: Option<Millis>,
    /// How buyers are let in.
    pub door: Door,
    /// For so long from the opening on claims are gathered for a draw; 0: they are not.
    pub shuffle_ms: Millis,
    pub items: Vec<NewItem>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NewItem {
    pub name: String,
    pub image_url: String,
    pub price: i64,
    pub origin_price: Option<i64>,
    pub currency: Currency,
    pub stock: i64,
    pub limit_per_user: u32,
    pub shards: u32,
    pub words: ItemWords,
}

/// A window in which something can still be sold. One that is open already will do: the sale then
/// begins as soon as it is published.
pub fn check_window(opens_ms: Millis, closes_ms: Millis, now_ms: Millis) -> Result<(), Invalid> {
    check_time(opens_ms).map_err(|why| Invalid::time("opens_at", why))?;
    check_time(closes_ms).map_err(|why| Invalid::time("closes_at", why))?;
    if closes_ms <= opens_ms {
        return Err(Invalid::new("closes_at", "must be after opens_at").zh("必须晚于 opens_at"));
    }
    check_not_over(closes_ms, now_ms)
}

/// Nothing can be sold of what has closed.
pub fn check_not_over(closes_ms: Millis, now_ms: Millis) -> Result<(), Invalid> {
    if now_ms < closes_ms {
        return Ok(());
    }
    let (closed, now) = (iso_time(closes_ms), iso_time(now_ms));
    let over = format!("is over: it was {closed}, and now it is {now}");
    Err(Invalid::new("closes_at", over).zh(format!("已经过去：{closed}，现在是 {now}")))
}

/// A time at which a pause can be over by itself.
pub fn check_resume(resume_ms: Millis, closes_ms: Millis, now_ms: Millis) -> Result<(), Invalid> {
    check_time(resume_ms).map_err(|why| Invalid::time("until", why))?;
    if resume_ms <= now_ms {
        return Err(
            Invalid::new("until", "is past: give a later time").zh("已经过去：请改为更晚的时间")
        );
    }
    if resume_ms >= closes_ms {
        let problem = "must be before closes_at: nothing would be left to resume";
        return Err(Invalid::new("until", problem).zh("必须早于 closes_at，否则没有可恢复的活动"));
    }
    Ok(())
}

/// A time at which a draft can publish itself.
fn check_publish(publish_ms: Millis, closes_ms: Millis, now_ms: Millis) -> Result<(), Invalid> {
    let refused = |en, zh| Err(Invalid::new("publish_at", en).zh(zh));
    check_time(publish_ms).map_err(|why| Invalid::time("publish_at", why))?;
    if publish_ms >= closes_ms {
        return refused("must be before closes_at", "必须早于 closes_at");
    }
    if publish_ms <= now_ms {
        return refused(
            "is past: publish it, or give a later time",
            "已经过去：请直接发布，或改为更晚的时间",
        );
    }
    Ok(())
}

impl NewActivity {
    /// Does this make sense, asked for at this time?
    pub fn validate(&self, now_ms: Millis) -> Result<(), Invalid> {
        self.problems(now_ms).into_iter().next().map_or(Ok(()), Err)
    }

    /// Everything that does not make sense, in the order of the fields.
    pub fn problems(&self, now_ms: Millis) -> Vec<Invalid> {
        let mut found = Vec::new();
        let mut note = |checked: Result<(), Invalid>| found.extend(checked.err());
        if let Some(external_id) = &self.external_id {
            note(check_shop_id("external_id", external_id));
        }
        note(check_name("name", &self.name));
        note(check_window(self.opens_ms, self.closes_ms, now_ms));
        if let Some(publish_ms) = self.publish_ms {
            note(check_publish(publish_ms, self.closes_ms, now_ms));
        }
        note(self.door.check(self.opens_ms));
        note(check_shuffle(self.shuffle_ms, self.opens_ms, self.closes_ms));
        if self.shuffle_ms > 0 && self.door.members_from.is_some() {
            let problem = "cannot be combined with members first: of two openings, which is drawn?";
            note(Err(
                Invalid::new("shuffle_ms", problem).zh("不能与会员优先（members_from）同时使用")
            ));
        }
        if !(PAY_WITHIN_MS_MIN..=PAY_WITHIN_MS_MAX).contains(&self.pay_within_ms) {
            let range = format!("must be from {PAY_WITHIN_MS_MIN} to {PAY_WITHIN_MS_MAX}");
            note(Err(Invalid::new("pay_within_ms", range)));
        }
        if self.items.is_empty() || self.items.len() > ITEMS_PER_ACTIVITY_MAX {
            let range = format!("must hold 1 to {ITEMS_PER_ACTIVITY_MAX} items");
            note(Err(Invalid::new("items", range)));
        }
        for (n, item) in self.items.iter().enumerate() {
            item.problems(n, &mut note);
        }
        check_skus(self, &mut note);
        found
    }
}

impl NewItem {
    fn problems(&self, n: usize, note: &mut dyn FnMut(Result<(), Invalid>)) {
        let field = |name: &str| format!("items[{n}].{name}");
        note(check_name(&field("name"), &self.name));
        note(check_image(&field("image_url"), &self.image_url));
        let mut check_price = |name: &str, price: i64| match price {
            0..=PRICE_MAX => {}
            _ => note(Err(Invalid::new(field(name), format!("must be from 0 to {PRICE_MAX}")))),
        };
        check_price("price", self.price);
        check_price("origin_price", self.origin_price.unwrap_or_default());
        note(check_currency(field("currency"), self.currency));
        if !(1..=STOCK_MAX).contains(&self.stock) {
            note(Err(Invalid::new(field("stock"), format!("must be from 1 to {STOCK_MAX}"))));
        }
        if !(1..=LIMIT_PER_USER_MAX).contains(&self.limit_per_user) {
            let range = format!("must be from 1 to {LIMIT_PER_USER_MAX}");
            note(Err(Invalid::new(field("limit_per_user"), range)));
        }
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            let range = format!("must be from 1 to {SHARDS_MAX}");
            note(Err(Invalid::new(field("shards"), range)));
        }
        self.words.problems(&self.image_url, &field, note);
    }
}

fn check_currency(field: String, currency: Currency) -> Result<(), Invalid> {
    if currency.is_iso_4217() {
        return Ok(());
    }
    let problem = format!("{currency} is no currency of ISO 4217, such as CNY, USD or JPY");
    let zh = format!("{currency} 不是 ISO 4217 的货币代码，例如 CNY、USD、JPY");
    Err(Invalid::new(field, problem).zh(zh))
}

fn check_name(field: &str, name: &str) -> Result<(), Invalid> {
    let chars = name.chars().count();
    if name.trim().is_empty() || chars > NAME_CHARS_MAX || !is_plain_name(name) {
        let rule = format!(
            "must be 1 to {NAME_CHARS_MAX} characters without control characters, and none that hide or \
             turn others"
        );
        return Err(Invalid::new(field, rule));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: Millis = 1_800_000_000_000;

    fn activity() -> NewActivity {
        NewActivity {
            external_id: Some("11-11".into()),
            name: "双十一".into(),
            opens_ms: NOW_MS + 1_000,
            closes_ms: NOW_MS + 2_000,
            pay_within_ms: PAY_WITHIN_MS_DEFAULT,
            publish_ms: None,
            door: Door::default(),
            shuffle_ms: 0,
            items: vec![NewItem {
                name: "iPhone 15 Pro 256GB".into(),
                image_url: String::new(),
                price: 699_900,
                origin_price: Some(799_900),
                currency: Currency::CNY,
                stock: 10_000,
                limit_per_user: 1,
                shards: 1,
                words: ItemWords { sku: Some("A-1".into()), ..Default::default() },
            }],
        }
    }

    fn refused(change: impl FnOnce(&mut NewActivity)) -> String {
        let mut activity = activity();
        change(&mut activity);
        activity.validate(NOW_MS).unwrap_err().field
    }

    #[test]
    fn nonsense_is_refused_with_its_field() {
        assert_eq!(activity().validate(NOW_MS), Ok(()));
        assert_eq!(refused(|a| a.closes_ms = a.opens_ms), "closes_at");
        assert_eq!(refused(|a| a.opens_ms = 0), "opens_at");
        assert_eq!(refused(|a| a.closes_ms = i64::MAX), "closes_at");
        assert_eq!(refused(|a| a.name = " ".into()), "name");
        assert_eq!(refused(|a| a.external_id = Some("11 11".into())), "external_id");
        assert_eq!(refused(|a| a.items.push(a.items[0].clone())), "items[1].sku");
        assert_eq!(refused(|a| a.pay_within_ms = 0), "pay_within_ms");
        assert_eq!(refused(|a| a.shuffle_ms = 1_000), "shuffle_ms", "it is all of the sale");
        let members_first = |a: &mut NewActivity| {
            (a.shuffle_ms, a.door.members_from) = (500, Some(a.opens_ms - 1));
        };
        assert_eq!(refused(members_first), "shuffle_ms");
        assert_eq!(refused(|a| a.items.clear()), "items");
        assert_eq!(refused(|a| a.items[0].stock = 0), "items[0].stock");
        assert_eq!(refused(|a| a.items[0].price = -1), "items[0].price");
        let no_money = |a: &mut NewActivity| a.items[0].currency = "XXQ".parse().unwrap();
        assert_eq!(refused(no_money), "items[0].currency");
        assert_eq!(refused(|a| a.items[0].limit_per_user = 0), "items[0].limit_per_user");
        assert_eq!(refused(|a| a.items[0].shards = 65), "items[0].shards");
        for image in ["javascript:1", "http://cdn.shop/a.png", "//cdn.shop/a.png", "/\\cdn.shop"] {
            assert_eq!(refused(|a| a.items[0].image_url = image.into()), "items[0].image_url");
        }
        assert_eq!(refused(|a| a.name = "sale \u{202E}elas".into()), "name");
        assert_eq!(refused(|a| a.items[0].name = "pho\u{200B}ne".into()), "items[0].name");
        let huge = |a: &mut NewActivity| {
            a.items[0].price = i64::MAX;
            a.items[0].limit_per_user = 2;
        };
        assert_eq!(refused(huge), "items[0].price");
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let mut plan = activity();
        plan.items[0].stock = 0;
        plan.items.push(NewItem { price: -1, ..plan.items[0].clone() });
        let fields: Vec<_> = plan.problems(NOW_MS).into_iter().map(|why| why.field).collect();
        let wrong = ["items[0].stock", "items[1].price", "items[1].stock", "items[1].sku"];
        assert_eq!(fields, wrong);
    }

    #[test]
    fn a_time_that_cannot_be_meant_is_refused_with_the_reason_in_both_languages() {
        let refused = |opens_ms, closes_ms| {
            let plan = NewActivity { opens_ms, closes_ms, ..activity() };
            let why = plan.validate(NOW_MS).unwrap_err();
            assert!(why.problem_zh.as_ref().is_some_and(|zh| !zh.is_ascii()), "{why:?}");
            (why.field, why.problem)
        };
        let (field, problem) = refused(NOW_MS / 1_000, NOW_MS + 1);
        assert_eq!(field, "opens_at");
        assert!(problem.contains("milliseconds, not in seconds"), "{problem}");
        assert_eq!(refused(NOW_MS, NOW_MS / 1_000 + 1).0, "closes_at");
        let (field, problem) = refused(NOW_MS * 1_000, NOW_MS * 1_001);
        assert_eq!(field, "opens_at");
        assert!(problem.contains("microseconds") || problem.contains("micro-"), "{problem}");
        for publish_ms in [NOW_MS, NOW_MS + 2_000, NOW_MS / 1_000] {
            let plan = NewActivity { publish_ms: Some(publish_ms), ..activity() };
            let why = plan.validate(NOW_MS).unwrap_err();
            assert!(why.field == "publish_at" && why.problem_zh.is_some(), "{why:?}");
        }
        let (field, problem) = refused(NOW_MS - 2_000, NOW_MS);
        assert_eq!(field, "closes_at");
        assert!(problem.starts_with("is over: it was 2027-01-15T08:00:00Z"), "{problem}");
        // What is open already can still be sold.
        let open = NewActivity { opens_ms: NOW_MS - 1, closes_ms: NOW_MS + 1, ..activity() };
        assert_eq!(open.validate(NOW_MS), Ok(()));
    }

    #[test]
    fn a_pause_is_over_before_the_sale_is() {
        let closes_ms = NOW_MS + 1_000;
        assert_eq!(check_resume(NOW_MS + 1, closes_ms, NOW_MS), Ok(()));
        for until_ms in [NOW_MS, closes_ms, NOW_MS / 1_000] {
            let why = check_resume(until_ms, closes_ms, NOW_MS).unwrap_err();
            assert!(why.field == "until" && why.problem_zh.is_some(), "{why:?}");
        }
    }

    #[test]
    fn an_ended_activity_stays_ended() {
        for to in ActivityState::ALL {
            assert!(!ActivityState::Ended.may_become(to));
        }
        assert!(ActivityState::Published.may_become(ActivityState::Paused));
        assert!(!ActivityState::Published.may_become(ActivityState::Draft));
    }

    #[test]
    fn publishing_is_not_resuming_and_every_move_is_legal() {
        for step in ActivityMove::ALL {
            for from in ActivityState::ALL {
                assert!(!step.may_leave(from) || from.may_become(step.to()), "{from:?} {step:?}");
            }
        }
        assert!(ActivityMove::Publish.may_leave(ActivityState::Draft));
        assert!(!ActivityMove::Publish.may_leave(ActivityState::Paused));
        assert!(ActivityMove::Resume.may_leave(ActivityState::Paused));
        assert!(!ActivityMove::Resume.may_leave(ActivityState::Draft));
    }
}
