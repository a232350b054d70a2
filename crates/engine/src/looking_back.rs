//! Looking back: the claims that were admitted, read from the claim log, and what the books say of them.
//!
//! The log is read first and the books afterwards. A claim is taken off the log when it is in the books, so
//! one that is read as settled must be found there; one that is still waiting may be found there or not. What
//! is in neither is a difference: a claim that was promised and of which nobody knows any more.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use ledger::{DeadLetter, DeadLetterState};
use sale::{
    BackMark, Claim, InvalidBackMark, ItemId, LoggedClaim, LookBack, LookBackError, Millis, Order,
    OrderNo, OrderStatus, UserId,
};

use crate::shared::{Shared, StoreError};

/// One answer is complete when it has so many claims…
const PAGE_CLAIMS: usize = 1_000;
/// …or the log was read so often for it, or for so long.
const READS_MAX: u32 = 512;
const READING_MAX: Duration = Duration::from_secs(2);
/// Claims that the ledger is asked for in one statement.
const ASKED_MAX: usize = 1_000;

/// Which claims are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimFilter {
    /// Made at this time or later…
    pub since_ms: Millis,
    /// …and before this one.
    pub until_ms: Option<Millis>,
    pub item: Option<ItemId>,
    pub user: Option<UserId>,
}

impl ClaimFilter {
    fn fits(&self, claim: &Claim) -> bool {
        claim.claimed_ms >= self.since_ms
            && self.until_ms.is_none_or(|until_ms| claim.claimed_ms < until_ms)
            && self.item.is_none_or(|item| claim.item == item)
            && self.user.as_ref().is_none_or(|user| claim.user == *user)
    }
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// An order, in this state now.
    Order(OrderStatus),
    /// The ledger could not honour it, or an operator gave it up.
    Void,
    /// It failed, and waits for its next try.
    Retrying,
    /// It failed, and waits for a person.
    Dead,
    /// No worker has settled it yet.
    Queued,
    /// Nobody knows of it: a difference.
    Missing,
}

/// A claim of the log, and if it was asked for, what became of it.
#[derive(Clone, Debug)]
pub struct PastClaim {
    pub claim: Claim,
    pub waits: bool,
    pub became: Option<Became>,
}

#[derive(Debug, Default)]
pub struct PastClaims {
    pub claims: Vec<PastClaim>,
    /// Where the next page begins; `None` at the end of the log.
    pub next: Option<BackMark>,
}

#[derive(Debug, thiserror::Error)]
pub enum CannotLookBack {
    #[error(transparent)]
    Mark(#[from] InvalidBackMark),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<LookBackError> for CannotLookBack {
    fn from(error: LookBackError) -> Self {
        match error {
            LookBackError::Mark(error) => error.into(),
            LookBackError::Log(error) => {
                let gate = gate::GateError::new(gate::GateFailure::Unreachable, error);
                StoreError::Gate(gate).into()
            }
        }
    }
}

impl From<ledger::LedgerError> for CannotLookBack {
    fn from(error: ledger::LedgerError) -> Self {
        StoreError::Ledger(error).into()
    }
}

pub struct LookingBack {
    shared: Arc<Shared>,
    /// Whichever claim log is in use.
    log: Arc<dyn LookBack>,
}

impl LookingBack {
    pub(crate) fn new(shared: Arc<Shared>, log: Arc<dyn LookBack>) -> LookingBack {
        LookingBack { shared, log }
    }

    /// Some of the claims that the log still has, from its beginning or from where an earlier page stopped. A
    /// page may be empty and not the last one. A claim that is settled between two pages may be on both.
    pub async fn claims(
        &self,
        filter: &ClaimFilter,
        from: Option<BackMark>,
        compare: bool,
    ) -> Result<PastClaims, CannotLookBack> {
        let begun = Instant::now();
        let (mut found, mut next): (Vec<LoggedClaim>, _) = (Vec::new(), from);
        for _ in 0..READS_MAX {
            let page = self.log.look_back(filter.since_ms, next.as_ref()).await?;
            found.extend(page.claims.into_iter().filter(|logged| filter.fits(&logged.claim)));
            next = page.next;
            if next.is_none() || found.len() >= PAGE_CLAIMS || begun.elapsed() >= READING_MAX {
                break;
            }
        }
        let mut claims = Vec::with_capacity(found.len());
        if compare {
            for some in found.chunks(ASKED_MAX) {
                claims.extend(self.compare(some).await?);
            }
            self.look_again(&mut claims).await?;
        } else {
            let as_logged = |LoggedClaim { claim, waits }| PastClaim { claim, waits, became: None };
            claims.extend(found.into_iter().map(as_logged));
        }
        Ok(PastClaims { claims, next })
    }

    async fn compare(&self, logged: &[LoggedClaim]) -> ledger::Result<Vec<PastClaim>> {
        let ledger = &self.shared.ledger;
        let numbers: Vec<OrderNo> = logged.iter().map(|one| one.claim.order_no).collect();
        let orders = ledger.orders_by_no(&numbers).await?.into_iter();
        let orders: HashMap<OrderNo, Order> = orders.map(|order| (order.order_no, order)).collect();
        let is_own =
            |claim: &Claim| orders.get(&claim.order_no).filter(|order| is_of(order, claim));
        let others = logged.iter().filter(|one| is_own(&one.claim).is_none());
        let others: Vec<OrderNo> = others.map(|one| one.claim.order_no).collect();
        let letters = if others.is_empty() {
            HashMap::new()
        } else {
            let letters = ledger.dead_letters_by_no(&others).await?.into_iter();
            letters.map(|letter| (letter.claim.order_no, letter)).collect()
        };
        let told = logged.iter().map(|LoggedClaim { claim, waits }| {
            let became = match (is_own(claim), letters.get(&claim.order_no)) {
                (Some(order), _) => of_order(order),
                (None, letter) => of_letter(letter, claim, *waits),
            };
            PastClaim { claim: claim.clone(), waits: *waits, became: Some(became) }
        });
        Ok(told.collect())
    }

    /// What nobody knows of is looked for once more. A log that is not the gate's own, a broker's, does not
    /// know which of its claims are settled, and the gate's does: what is there is queued, and what is not
    /// may have become an order, or failed, since the ledger was asked.
    async fn look_again(&self, claims: &mut [PastClaim]) -> Result<(), CannotLookBack> {
        let is_missing = |past: &&mut PastClaim| past.became == Some(Became::Missing);
        let mut missing: Vec<&mut PastClaim> = claims.iter_mut().filter(is_missing).collect();
        for some in missing.chunks_mut(ASKED_MAX) {
            let mut again = Vec::with_capacity(some.len());
            for past in &*some {
                let on_log = self.shared.gate.is_on_log(&past.claim).await;
                let waits = on_log.map_err(StoreError::Gate)?;
                again.push(LoggedClaim { claim: past.claim.clone(), waits });
            }
            for (past, now) in some.iter_mut().zip(self.compare(&again).await?) {
                **past = now;
            }
        }
        Ok(())
    }
}

/// A number alone does not make two rows the same claim.
fn is_of(order: &Order, claim: &Claim) -> bool {
    order.item == claim.item && order.user == claim.user
}

fn of_order(order: &Order) -> Became {
    match order.status {
        OrderStatus::Void => Became::Void,
        status => Became::Order(status),
    }
}

fn of_letter(letter: Option<&DeadLetter>, claim: &Claim, waits: bool) -> Became {
    let own =
        |letter: &&DeadLetter| letter.claim.item == claim.item && letter.claim.user == claim.user;
    match letter.filter(own).map(|letter| letter.state) {
        Some(DeadLetterState::Retrying) => Became::Retrying,
        Some(DeadLetterState::Dead) => Became::Dead,
        // Its number is somebody else's order, so it has no row of its own.
        Some(DeadLetterState::Voided) => Became::Void,
        Some(DeadLetterState::Settled) | None if waits => Became::Queued,
        Some(DeadLetterState::Settled) | None => Became::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::TestEngine;

    async fn all(shop: &TestEngine, filter: &ClaimFilter) -> Vec<PastClaim> {
        let (mut claims, mut from) = (Vec::new(), None);
        loop {
            let page = shop.engine.looking_back().claims(filter, from, true).await.unwrap();
            claims.extend(page.claims);
            from = page.next;
            if from.is_none() {
                return claims;
            }
        }
    }

    #[tokio::test]
    async fn a_claim_is_in_the_books_or_it_is_missing() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let item = activity.items[0].id;
        let mut numbers = Vec::new();
        for user in ["ann", "bob", "cid"] {
            numbers.push(shop.buy(item, user).await);
        }
        let became = async |filter: &ClaimFilter| -> Vec<(OrderNo, Option<Became>)> {
            let claims = all(&shop, filter).await;
            claims.into_iter().map(|past| (past.claim.order_no, past.became)).collect()
        };
        let unpaid = Some(Became::Order(OrderStatus::Unpaid));
        let everybody = ClaimFilter::default();
        assert_eq!(became(&everybody).await, [0, 1, 2].map(|n| (numbers[n], unpaid)));

        shop.change_ledger(&format!(
            "DELETE FROM tb_seckill_order WHERE order_no = '{}';
             UPDATE tb_seckill_order SET user_id = 'eve' WHERE order_no = '{}';",
            numbers[1], numbers[2]
        ));
        let missing = Some(Became::Missing);
        let told = became(&everybody).await;
        assert_eq!(told, [(numbers[0], unpaid), (numbers[1], missing), (numbers[2], missing)]);

        let of_ann = ClaimFilter { user: Some("ann".parse().unwrap()), ..everybody.clone() };
        assert_eq!(became(&of_ann).await, [(numbers[0], unpaid)]);
        let later = ClaimFilter { since_ms: i64::from(u32::MAX) * 1_000, ..everybody.clone() };
        assert_eq!(became(&later).await, []);
        let elsewhere = ClaimFilter { item: Some(ItemId(item.0 + 1)), ..everybody };
        assert_eq!(became(&elsewhere).await, []);
    }

    #[tokio::test]
    async fn a_mark_that_this_log_never_gave_is_refused() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        for foreign in ["k3.1-2", "j-1", "j99999999999999999999"] {
            let from = Some(foreign.parse().unwrap());
            let asked = shop.engine.looking_back();
            let told = asked.claims(&ClaimFilter::default(), from, false).await;
            assert!(matches!(told, Err(CannotLookBack::Mark(_))), "{foreign}: {told:?}");
        }
    }
}
