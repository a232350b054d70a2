//! Hoarding: whoever claims and does not pay, again and again, keeps units from those who would.
//!
//! After every order that its buyer let go, the buyer's unpaid closes of the last hour are counted in the
//! ledger, by the index of their orders; nothing beside the orders is kept of those who did it a few times.
//! Past the limit the buyer waits: a row in the ledger, which all instances know a second later at the
//! latest. A crash between closing and counting forgets nothing, for the next close counts anew.

use std::sync::Arc;

use sale::{Millis, UserId};

use super::{CLOCKS_APART_MS_MAX, CoolDowns, cool_downs::COOLING_MAX};
use crate::{
    actor::{Actor, audit_entry},
    coordination::Hint,
    shared::Shared,
};

pub(crate) struct Hoarding {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cool_downs: Arc<CoolDowns>,
}

impl Hoarding {
    /// Orders of these buyers were closed, and they had not paid.
    pub(crate) async fn closed(&self, users: Vec<UserId>) {
        let settings = &self.shared.settings.door;
        if settings.unpaid_closes_max == 0 || users.is_empty() {
            return;
        }
        if let Err(error) = self.count(users, settings.unpaid_closes_max).await {
            tracing::warn!(%error, "who lets orders go unpaid could not be counted, the next close does");
        }
    }

    async fn count(&self, users: Vec<UserId>, closes_max: u64) -> ledger::Result<()> {
        let (settings, now_ms) = (&self.shared.settings.door, self.shared.now_ms());
        let since_ms = now_ms - settings.unpaid_window_ms as Millis;
        let counted = self.shared.ledger.unpaid_closes(&users, since_ms).await?;
        let too_many = counted.into_iter().filter(|(_, closes)| *closes >= closes_max);
        let hoarders: Vec<UserId> = too_many.map(|(user, _)| user).collect();
        if hoarders.is_empty() {
            return Ok(());
        }
        let until_ms = now_ms + settings.unpaid_cool_down_ms as Millis;
        self.cool_downs.add(&hoarders, until_ms, now_ms);
        self.shared.ledger.cool_down(&hoarders, until_ms, now_ms).await?;
        metrics::counter!("seckill_cool_downs_total").increment(hoarders.len() as u64);
        tracing::info!(
            buyers = hoarders.len(),
            "buyers who let too many orders go unpaid have to wait"
        );
        self.shared.coordination.tell(&Hint::Door).await;
        Ok(())
    }

    /// Reads what the ledger says: who waits, and which lists there are.
    pub(crate) async fn refresh(&self) -> ledger::Result<()> {
        let now_ms = self.shared.now_ms();
        let lists = self.shared.ledger.buyer_lists().await?;
        self.cool_downs.replace_lists(&lists);
        let waiting = self.shared.ledger.cooling_down(now_ms, COOLING_MAX).await?;
        self.cool_downs.replace(waiting, now_ms, self.latest_ms(now_ms));
        Ok(())
    }

    /// Nobody who is told to wait now is told to wait for longer.
    pub(super) fn latest_ms(&self, now_ms: Millis) -> Millis {
        let longest_ms = self.shared.settings.door.unpaid_cool_down_ms as Millis;
        now_ms.saturating_add(longest_ms).saturating_add(CLOCKS_APART_MS_MAX)
    }

    /// An operator lets this one go. False if they did not have to wait.
    pub(crate) async fn let_go(&self, who: Actor, user: &UserId) -> ledger::Result<bool> {
        let target = format!("buyer:{user}");
        let entry = audit_entry(who, "cool_down.end", target, serde_json::json!({}));
        let now_ms = self.shared.now_ms();
        let ended = self.shared.ledger.end_cool_down(user, &entry, now_ms).await?;
        self.cool_downs.remove(user);
        self.shared.coordination.tell(&Hint::Door).await;
        Ok(ended)
    }
}
