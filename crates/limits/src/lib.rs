//! How often somebody may ask: rates by class of request, per buyer and per address, in one bounded
//! [memory](memory) that every request looks into without waiting for anybody.
//!
//! It knows neither HTTP nor sales. A limit that several processes share is asked for by whoever can reach
//! them; here is only said who should be asked about, and how they are called there.

mod memory;
mod network;
mod rate;

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hash},
    net::IpAddr,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use memory::{Counted, Memory};
pub use network::{Network, Subscriber};
pub use rate::{Rate, Unit};

/// Whoever has used up this part of a burst here may be doing so elsewhere, too.
const SUSPICIOUS_PART: u32 = 4;
/// Nobody is told to come back sooner, or all at the same instant.
const JITTER_MS_MIN: u64 = 500;

/// What kind of request it is. Each has rates of its own, so that whoever looks too often can still buy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// What anybody may look at.
    Pages,
    /// What is needed before a claim.
    Tokens,
    Claims,
    /// Orders, payments, news.
    Orders,
    /// Operators, and logins.
    Admin,
}

impl Class {
    pub const ALL: [Class; 5] =
        [Class::Pages, Class::Tokens, Class::Claims, Class::Orders, Class::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Class::Pages => "pages",
            Class::Tokens => "tokens",
            Class::Claims => "claims",
            Class::Orders => "orders",
            Class::Admin => "admin",
        }
    }

    /// Do the instances of a cluster count these together? Not claims: nothing but the gate may be waited for
    /// on their way, and whoever sends them must have a token, which are counted together. Nor what is looked
    /// at, which costs nobody anything.
    pub fn is_shared(self) -> bool {
        matches!(self, Class::Tokens | Class::Orders | Class::Admin)
    }
}

/// Who is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum By {
    User,
    Address,
}

impl By {
    pub const ALL: [By; 2] = [By::User, By::Address];

    pub fn as_str(self) -> &'static str {
        match self {
            By::User => "user",
            By::Address => "address",
        }
    }
}

/// What an operator can set: the section `[limits]` of the settings, as it is written there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    pub pages_per_address: Rate,
    pub tokens_per_user: Rate,
    pub tokens_per_address: Rate,
    pub claims_per_user: Rate,
    pub claims_per_address: Rate,
    pub orders_per_user: Rate,
    pub orders_per_address: Rate,
    pub admin_per_address: Rate,
    pub keys_max: usize,
}

impl LimitSettings {
    pub fn rate(&self, class: Class, by: By) -> Rate {
        match (class, by) {
            (Class::Pages | Class::Admin, By::User) => Rate::Off,
            (Class::Pages, By::Address) => self.pages_per_address,
            (Class::Tokens, By::User) => self.tokens_per_user,
            (Class::Tokens, By::Address) => self.tokens_per_address,
            (Class::Claims, By::User) => self.claims_per_user,
            (Class::Claims, By::Address) => self.claims_per_address,
            (Class::Orders, By::User) => self.orders_per_user,
            (Class::Orders, By::Address) => self.orders_per_address,
            (Class::Admin, By::Address) => self.admin_per_address,
        }
    }
}

/// The limits of one process.
pub struct Limits {
    /// By class and by whom is counted: nanoseconds until a request is forgotten, and the burst.
    rates: [[Option<(u64, u32)>; 2]; 5],
    exempt: Vec<Network>,
    hashes: RandomState,
    memory: Memory,
}

/// It was within its limit here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// And nobody else need be asked.
    Wholly,
    /// But the other processes should be asked, where there are any.
    Here { step: Duration, burst: u32 },
}

/// Too often: what the limit is, and when one more may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    pub class: Class,
    pub by: By,
    pub burst: u32,
    /// In which so many may come again.
    pub window_s: u32,
    /// When the next may come, and a little later by chance, so that not all come together.
    pub retry_after_ms: u32,
}

impl Limits {
    /// Nobody in an exempt network is limited by address.
    pub fn new(settings: &LimitSettings, exempt: &[Network]) -> Limits {
        let rates = Class::ALL.map(|class| By::ALL.map(|by| settings.rate(class, by).parts()));
        Limits {
            rates,
            exempt: exempt.to_vec(),
            hashes: RandomState::new(),
            memory: Memory::new(settings.keys_max),
        }
    }

    /// One more request from this address.
    pub fn count_address(
        &self,
        class: Class,
        address: IpAddr,
        now: Instant,
    ) -> Result<Passed, Exceeded> {
        if self.exempt.iter().any(|network| network.contains(address)) {
            return Ok(Passed::Wholly);
        }
        self.count(class, By::Address, Subscriber::of(address), now)
    }

    /// One more request of this buyer or operator.
    pub fn count_user(&self, class: Class, user: &str, now: Instant) -> Result<Passed, Exceeded> {
        self.count(class, By::User, user, now)
    }

    fn count(
        &self,
        class: Class,
        by: By,
        who: impl Hash,
        now: Instant,
    ) -> Result<Passed, Exceeded> {
        let Some((step_ns, burst)) = self.rates[class as usize][by as usize] else {
            return Ok(Passed::Wholly);
        };
        let key = self.hashes.hash_one((class as u8, by as u8, who));
        match self.memory.count(key, step_ns, burst, now) {
            Counted::Over { wait } => {
                Err(Exceeded::new(class, by, Duration::from_nanos(step_ns), burst, wait))
            }
            Counted::Within { left }
                if class.is_shared() && burst - left > burst.div_ceil(SUSPICIOUS_PART) =>
            {
                Ok(Passed::Here { step: Duration::from_nanos(step_ns), burst })
            }
            Counted::Within { .. } => Ok(Passed::Wholly),
        }
    }
}

impl Exceeded {
    pub fn new(class: Class, by: By, step: Duration, burst: u32, wait: Duration) -> Exceeded {
        let wait_ms = wait.as_millis() as u64 + 1;
        let jitter_ms = fastrand::u64(..JITTER_MS_MIN.max(wait_ms / 2));
        let retry_after_ms = u32::try_from(wait_ms + jitter_ms).unwrap_or(u32::MAX);
        let window_s = (step * burst).as_secs_f64().ceil().max(1.0) as u32;
        Exceeded { class, by, burst, window_s, retry_after_ms }
    }
}

/// What somebody is called in a table that all processes share. It does not say who it is.
pub fn shared_name(class: Class, who: Who<'_>) -> String {
    let (by, who) = match who {
        Who::User(user) => (By::User, user.to_owned()),
        Who::Address(address) => (By::Address, Subscriber::of(address).name()),
    };
    let hash = Sha256::digest(format!("{} {} {who}", class.as_str(), by.as_str()));
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Clone, Copy, Debug)]
pub enum Who<'a> {
    User(&'a str),
    Address(IpAddr),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> LimitSettings {
        let rate = |text: &str| text.parse().unwrap();
        LimitSettings {
            pages_per_address: rate("off"),
            tokens_per_user: rate("1/s burst 8"),
            tokens_per_address: rate("off"),
            claims_per_user: rate("1/s burst 2"),
            claims_per_address: rate("1/m burst 3"),
            orders_per_user: rate("off"),
            orders_per_address: rate("off"),
            admin_per_address: rate("1/s burst 1"),
            keys_max: 1_000,
        }
    }

    fn limits() -> Limits {
        Limits::new(&settings(), &["10.0.0.0/8".parse().unwrap()])
    }

    #[test]
    fn users_addresses_and_classes_are_counted_apart() {
        let (limits, now) = (limits(), Instant::now());
        let address = "203.0.113.7".parse().unwrap();
        for _ in 0..2 {
            assert!(limits.count_user(Class::Claims, "ann", now).is_ok());
        }
        let over = limits.count_user(Class::Claims, "ann", now).unwrap_err();
        assert_eq!((over.by, over.burst, over.window_s), (By::User, 2, 2));
        assert!((1_000..1_600).contains(&over.retry_after_ms), "{over:?}");
        assert!(limits.count_user(Class::Claims, "bob", now).is_ok());
        assert!(limits.count_user(Class::Tokens, "ann", now).is_ok());
        for _ in 0..3 {
            assert!(limits.count_address(Class::Claims, address, now).is_ok());
        }
        assert_eq!(limits.count_address(Class::Claims, address, now).unwrap_err().window_s, 180);
        assert!(limits.count_address(Class::Admin, address, now).is_ok());
        for _ in 0..1_000 {
            assert!(limits.count_address(Class::Pages, address, now).is_ok(), "switched off");
            let exempt = "10.1.2.3".parse().unwrap();
            assert!(limits.count_address(Class::Claims, exempt, now).is_ok(), "exempt");
        }
    }

    #[test]
    fn others_are_asked_only_about_those_who_ask_much() {
        let (limits, now) = (limits(), Instant::now());
        for n in 0..8 {
            let passed = limits.count_user(Class::Tokens, "ann", now).unwrap();
            assert_eq!(passed == Passed::Wholly, n < 2, "request {n}: {passed:?}");
        }
        let claims = limits.count_user(Class::Claims, "ann", now).unwrap();
        assert_eq!(claims, Passed::Wholly, "nobody is waited for on the way of a claim");
        let name = |user| shared_name(Class::Tokens, Who::User(user));
        assert!(
            name("ann") != name("bob") && !name("ann").contains("ann") && name("ann").len() == 32
        );
    }
}
