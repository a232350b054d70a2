//! A sale session, its items, and what an operator may ask for.

use serde::{Deserialize, Serialize};

use crate::{ActivityId, Currency, Epoch, ItemId, Millis, Money};

pub const NAME_CHARS_MAX: usize = 200;
pub const URL_CHARS_MAX: usize = 1_000;
pub const ITEMS_PER_ACTIVITY_MAX: usize = 1_000;
pub const STOCK_MAX: i64 = 100_000_000;
pub const LIMIT_PER_USER_MAX: u32 = 1_000;
pub const SHARDS_MAX: u32 = 64;
pub const PAY_WITHIN_MS_DEFAULT: Millis = 30 * 60 * 1_000;
pub const PAY_WITHIN_MS_MIN: Millis = 1_000;
pub const PAY_WITHIN_MS_MAX: Millis = 7 * 24 * 60 * 60 * 1_000;
/// Times past the year 9999 are typing errors (most often microseconds for milliseconds).
const TIME_MS_MAX: Millis = 253_402_300_800_000;

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
    pub name: String,
    pub opens_ms: Millis,
    pub closes_ms: Millis,
    pub pay_within_ms: Millis,
    pub state: ActivityState,
    pub items: Vec<Item>,
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
}

/// What an operator asked for makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// Which field, as the API names it, e.g. `items[0].stock`.
    pub field: String,
    pub problem: String,
}

impl Invalid {
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Invalid { field: field.into(), problem: problem.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewActivity {
    pub name: String,
    pub opens_ms: Millis,
    pub closes_ms: Millis,
    pub pay_within_ms: Millis,
    pub items: Vec<NewItem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewItem {
    pub name: String,
    pub image_url: String,
    pub price: i64,
    pub origin_price: Option<i64>,
    pub currency: Currency,
    pub stock: i64,
    pub limit_per_user: u32,
    pub shards: u32,
}

impl NewActivity {
    pub fn validate(&self) -> Result<(), Invalid> {
        check_name("name", &self.name)?;
        if !(1..TIME_MS_MAX).contains(&self.opens_ms) {
            return Err(Invalid::new("opens_at", "must be a Unix time in milliseconds"));
        }
        if !(1..TIME_MS_MAX).contains(&self.closes_ms) {
            return Err(Invalid::new("closes_at", "must be a Unix time in milliseconds"));
        }
        if self.closes_ms <= self.opens_ms {
            return Err(Invalid::new("closes_at", "must be after opens_at"));
        }
        if !(PAY_WITHIN_MS_MIN..=PAY_WITHIN_MS_MAX).contains(&self.pay_within_ms) {
            let range = format!("must be from {PAY_WITHIN_MS_MIN} to {PAY_WITHIN_MS_MAX}");
            return Err(Invalid::new("pay_within_ms", range));
        }
        if self.items.is_empty() || self.items.len() > ITEMS_PER_ACTIVITY_MAX {
            let range = format!("must hold 1 to {ITEMS_PER_ACTIVITY_MAX} items");
            return Err(Invalid::new("items", range));
        }
        self.items.iter().enumerate().try_for_each(|(n, item)| item.validate(n))
    }
}

impl NewItem {
    fn validate(&self, n: usize) -> Result<(), Invalid> {
        let field = |name: &str| format!("items[{n}].{name}");
        check_name(&field("name"), &self.name)?;
        if self.image_url.chars().count() > URL_CHARS_MAX {
            return Err(Invalid::new(field("image_url"), "is too long"));
        }
        let schemes = ["", "/", "https://", "http://"];
        let known = |scheme: &&str| {
            if scheme.is_empty() {
                self.image_url.is_empty()
            } else {
                self.image_url.starts_with(*scheme)
            }
        };
        if !schemes.iter().any(known) {
            return Err(Invalid::new(
                field("image_url"),
                "must be an http(s) address or start with /",
            ));
        }
        if self.price < 0 {
            return Err(Invalid::new(field("price"), "must not be negative"));
        }
        if self.origin_price.is_some_and(|origin| origin < 0) {
            return Err(Invalid::new(field("origin_price"), "must not be negative"));
        }
        if !(1..=STOCK_MAX).contains(&self.stock) {
            return Err(Invalid::new(field("stock"), format!("must be from 1 to {STOCK_MAX}")));
        }
        if !(1..=LIMIT_PER_USER_MAX).contains(&self.limit_per_user) {
            let range = format!("must be from 1 to {LIMIT_PER_USER_MAX}");
            return Err(Invalid::new(field("limit_per_user"), range));
        }
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            return Err(Invalid::new(field("shards"), format!("must be from 1 to {SHARDS_MAX}")));
        }
        if Money::new(self.price, self.currency).times(self.limit_per_user).is_none() {
            return Err(Invalid::new(field("price"), "is too large"));
        }
        Ok(())
    }
}

fn check_name(field: &str, name: &str) -> Result<(), Invalid> {
    let chars = name.chars().count();
    if name.trim().is_empty() || chars > NAME_CHARS_MAX || name.chars().any(char::is_control) {
        let rule = format!("must be 1 to {NAME_CHARS_MAX} characters without control characters");
        return Err(Invalid::new(field, rule));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity() -> NewActivity {
        NewActivity {
            name: "双十一".into(),
            opens_ms: 1_000,
            closes_ms: 2_000,
            pay_within_ms: PAY_WITHIN_MS_DEFAULT,
            items: vec![NewItem {
                name: "iPhone 15 Pro 256GB".into(),
                image_url: String::new(),
                price: 699_900,
                origin_price: Some(799_900),
                currency: Currency::CNY,
                stock: 10_000,
                limit_per_user: 1,
                shards: 1,
            }],
        }
    }

    fn refused(change: impl FnOnce(&mut NewActivity)) -> String {
        let mut activity = activity();
        change(&mut activity);
        activity.validate().unwrap_err().field
    }

    #[test]
    fn nonsense_is_refused_with_its_field() {
        assert_eq!(activity().validate(), Ok(()));
        assert_eq!(refused(|a| a.closes_ms = a.opens_ms), "closes_at");
        assert_eq!(refused(|a| a.opens_ms = 0), "opens_at");
        assert_eq!(refused(|a| a.closes_ms = i64::MAX), "closes_at");
        assert_eq!(refused(|a| a.name = " ".into()), "name");
        assert_eq!(refused(|a| a.pay_within_ms = 0), "pay_within_ms");
        assert_eq!(refused(|a| a.items.clear()), "items");
        assert_eq!(refused(|a| a.items[0].stock = 0), "items[0].stock");
        assert_eq!(refused(|a| a.items[0].price = -1), "items[0].price");
        assert_eq!(refused(|a| a.items[0].limit_per_user = 0), "items[0].limit_per_user");
        assert_eq!(refused(|a| a.items[0].shards = 65), "items[0].shards");
        assert_eq!(refused(|a| a.items[0].image_url = "javascript:1".into()), "items[0].image_url");
        let huge = |a: &mut NewActivity| {
            a.items[0].price = i64::MAX;
            a.items[0].limit_per_user = 2;
        };
        assert_eq!(refused(huge), "items[0].price");
    }

    #[test]
    fn an_ended_activity_stays_ended() {
        for to in ActivityState::ALL {
            assert!(!ActivityState::Ended.may_become(to));
        }
        assert!(ActivityState::Published.may_become(ActivityState::Paused));
        assert!(!ActivityState::Published.may_become(ActivityState::Draft));
    }
}
