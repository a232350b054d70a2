//! Who may ask how often: what each request is, whose it is counted as, and what one too many hears.
//!
//! The order is that of cost. The address is known before anything is read, so it is counted first; the buyer
//! is known when the token was verified. Both are looked up in [`limits`] without waiting. Where instances
//! share a class, those who ask much are counted together with what the other instances have seen of them,
//! in one call; if nobody answers, each instance keeps its own limits.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use engine::Engine;
use limits::{By, Class, Exceeded, Limits, Passed, Who, shared_name};
use metrics::Counter;
use sale::UserId;

use crate::{
    api::BASE,
    metrics::RATE_LIMITED,
    problem::{Code, Problem},
};
use config::Config;

/// Nobody waits longer for what other instances have counted.
const TOGETHER_WITHIN: Duration = Duration::from_millis(100);

pub struct FrontDoor {
    limits: Limits,
    engine: Arc<Engine>,
    /// By class and by whom was counted.
    refused: [[Counter; 2]; 5],
}

impl FrontDoor {
    /// Call it after the metrics recorder is installed, or the counts go nowhere.
    pub(crate) fn new(config: &Config, engine: Arc<Engine>) -> FrontDoor {
        let limits = Limits::new(&config.limits, &config.http.exempt_networks);
        FrontDoor { limits, engine, refused: counters() }
    }

    /// One more request from this address; without asking the other instances.
    pub(crate) fn count_address(
        &self,
        class: Class,
        address: IpAddr,
        now: Instant,
    ) -> Result<Passed, Problem> {
        self.limits.count_address(class, address, now).map_err(|over| self.refuse(over))
    }

    /// One more claim of this buyer.
    pub(crate) fn count_claim(&self, user: &UserId, now: Instant) -> Result<(), Problem> {
        let counted = self.limits.count_user(Class::Claims, user.as_str(), now);
        counted.map(|_| ()).map_err(|over| self.refuse(over))
    }

    /// One more request of this buyer.
    pub(crate) async fn count_user(&self, class: Class, user: &UserId) -> Result<(), Problem> {
        let counted = self.limits.count_user(class, user.as_str(), Instant::now());
        let passed = counted.map_err(|over| self.refuse(over))?;
        self.count_together(class, Who::User(user.as_str()), passed).await
    }

    /// What passed here is counted with what other instances have seen, if that matters.
    pub(crate) async fn count_together(
        &self,
        class: Class,
        who: Who<'_>,
        passed: Passed,
    ) -> Result<(), Problem> {
        let Passed::Here { step, burst } = passed else { return Ok(()) };
        let name = shared_name(class, who);
        let counted = self.engine.coordination().count_together(&name, step, burst);
        // Who cannot be asked has counted nothing; the limits of this process hold.
        let Ok(Some(wait)) = tokio::time::timeout(TOGETHER_WITHIN, counted).await else {
            return Ok(());
        };
        let by = match who {
            Who::User(_) => By::User,
            Who::Address(_) => By::Address,
        };
        Err(self.refuse(Exceeded::new(class, by, step, burst, wait)))
    }

    fn refuse(&self, over: Exceeded) -> Problem {
        self.refused[over.class as usize][over.by as usize].increment(1);
        Problem::new(Code::RateLimited).limit(over)
    }
}

fn counters() -> [[Counter; 2]; 5] {
    Class::ALL.map(|class| {
        By::ALL.map(
            |by| metrics::counter!(RATE_LIMITED, "class" => class.as_str(), "by" => by.as_str()),
        )
    })
}

/// Show all of the counts, also those of nobody.
pub(crate) fn describe_counts() {
    counters().iter().flatten().for_each(|counter| counter.increment(0));
}

/// What kind of request it is; `None` for what is never limited: machines that watch us, and programs of
/// providers and of the shop, which come from few addresses, in crowds, and sign what they say.
pub(crate) fn class_of(path: &str) -> Option<Class> {
    if path == "/metrics" || path == "/healthz" || path.starts_with("/readyz") {
        return None;
    }
    let Some(path) = path.strip_prefix(BASE) else { return Some(Class::Pages) };
    let is_under = |start: &str| {
        path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if is_under("/payments") || ["/paid", "/refunded"].iter().any(|end| path.ends_with(end)) {
        return None;
    }
    Some(if is_under("/admin") || is_under("/dev") {
        Class::Admin
    } else if is_under("/items") && path.ends_with("/claims") {
        Class::Claims
    } else if is_under("/items")
        && ["/token", "/challenge", "/ticket"].iter().any(|end| path.ends_with(end))
    {
        Class::Tokens
    } else if ["/orders", "/receipts", "/events", "/ws"].into_iter().any(is_under) {
        Class::Orders
    } else {
        Class::Pages
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_its_class() {
        for (path, class) in [
            ("/", Some(Class::Pages)),
            ("/nowhere", Some(Class::Pages)),
            ("/metrics", None),
            ("/readyz/sell", None),
            ("/api/v1/time", Some(Class::Pages)),
            ("/api/v1/items/7", Some(Class::Pages)),
            ("/api/v1/items/7/token", Some(Class::Tokens)),
            ("/api/v1/items/7/challenge", Some(Class::Tokens)),
            ("/api/v1/items/7/ticket", Some(Class::Tokens)),
            ("/api/v1/items/7/draw", Some(Class::Pages)),
            ("/api/v1/items/7/claims", Some(Class::Claims)),
            ("/api/v1/orders", Some(Class::Orders)),
            ("/api/v1/orders/SK1/payments", Some(Class::Orders)),
            ("/api/v1/ordersx", Some(Class::Pages)),
            ("/api/v1/orders/SK1/paid", None),
            ("/api/v1/payments/wechat/notify", None),
            ("/api/v1/receipts", Some(Class::Orders)),
            ("/api/v1/events/ticket", Some(Class::Orders)),
            ("/api/v1/dev/login", Some(Class::Admin)),
            ("/api/v1/admin/activities", Some(Class::Admin)),
        ] {
            assert_eq!(class_of(path), class, "{path}");
        }
    }
}
