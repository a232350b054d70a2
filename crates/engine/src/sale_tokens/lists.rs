//! Lists of buyers: read for those who want a token, and changed by operators.

use std::sync::Arc;

use gate::{Gathered, GatheredLimits};
use ledger::{BuyerList, CoolDown, LISTED_AT_ONCE_MAX, Ledger, LedgerError, Listed};
use sale::{ActivityId, Invalid, UserId};
use serde_json::json;

use super::Hoarding;
use crate::{
    OperateError,
    actor::{Actor, audit_entry},
    coordination::Hint,
};

const LIMITS: GatheredLimits =
    GatheredLimits { batch_max: 500, at_once_max: 2, waiting_max: 100_000 };

type Answer = Result<Listed, LedgerError>;

/// Those who ask at the same moment share one statement.
pub(super) struct ListReads(Arc<Gathered<(ActivityId, UserId), Answer>>);

impl ListReads {
    pub(super) fn new(ledger: Arc<dyn Ledger>) -> ListReads {
        ListReads(Gathered::new(LIMITS, move |asked: Vec<(ActivityId, UserId)>| {
            let ledger = ledger.clone();
            Box::pin(async move {
                match ledger.listed(&asked).await {
                    Ok(listed) => listed.into_iter().map(Ok).collect(),
                    Err(error) => {
                        let why = error.to_string();
                        asked.iter().map(|_| Err(LedgerError::Unavailable(why.clone()))).collect()
                    }
                }
            })
        }))
    }

    pub(super) async fn listed(&self, activity: ActivityId, user: UserId) -> Answer {
        let nobody = || Err(LedgerError::Unavailable("too many lists are asked for".into()));
        self.0.ask((activity, user)).await.unwrap_or_else(nobody)
    }
}

/// What operators do with lists, and with those who wait.
pub struct Lists {
    pub(crate) hoarding: Arc<Hoarding>,
}

impl Lists {
    /// Puts buyers on a list; how many were not on it yet.
    pub async fn add(
        &self,
        who: impl Into<Actor>,
        list: BuyerList,
        users: &[UserId],
    ) -> Result<u64, OperateError> {
        self.change(who.into(), list, users, "list.add").await
    }

    /// Takes buyers off a list; how many were on it.
    pub async fn remove(
        &self,
        who: impl Into<Actor>,
        list: BuyerList,
        users: &[UserId],
    ) -> Result<u64, OperateError> {
        self.change(who.into(), list, users, "list.remove").await
    }

    /// Takes everybody off a list; how many were on it.
    pub async fn clear(&self, who: impl Into<Actor>, list: BuyerList) -> Result<u64, OperateError> {
        let (who, mut gone) = (who.into(), 0);
        loop {
            let page = self.listed(list, None, LISTED_AT_ONCE_MAX).await?;
            if page.is_empty() {
                return Ok(gone);
            }
            gone += self.change(who.clone(), list, &page, "list.remove").await?;
        }
    }

    /// Piece by piece: whoever is cut off asks again, and what was done is done.
    async fn change(
        &self,
        who: Actor,
        list: BuyerList,
        users: &[UserId],
        action: &str,
    ) -> Result<u64, OperateError> {
        let shared = &self.hoarding.shared;
        if let Some(id) = list.activity
            && shared.ledger.activity(id).await?.is_none()
        {
            let problem = "is no activity that there is";
            return Err(Invalid::new("activity", problem).zh("活动不存在").into());
        }
        let place = list.activity.map_or("shop".to_owned(), |id| format!("activity:{id}"));
        let target = format!("list:{}:{place}", list.kind.as_str());
        let (mut changed, now_ms) = (0, shared.now_ms());
        for piece in users.chunks(LISTED_AT_ONCE_MAX) {
            let given = json!({"given": piece.len()});
            let entry = audit_entry(who.clone(), action, target.clone(), given);
            changed += match action {
                "list.add" => shared.ledger.list_buyers(list, piece, &entry, now_ms).await?,
                _ => shared.ledger.unlist_buyers(list, piece, &entry, now_ms).await?,
            };
        }
        self.hoarding.refresh().await?;
        shared.coordination.tell(&Hint::Door).await;
        Ok(changed)
    }

    pub async fn listed(
        &self,
        list: BuyerList,
        after: Option<&UserId>,
        limit: usize,
    ) -> ledger::Result<Vec<UserId>> {
        self.hoarding.shared.ledger.listed_buyers(list, after, limit).await
    }

    /// The lists that hold anybody, and how many.
    pub async fn all(&self) -> ledger::Result<Vec<(BuyerList, u64)>> {
        self.hoarding.shared.ledger.buyer_lists().await
    }

    /// Who has to wait, the longest wait first.
    pub async fn cooling_down(&self, limit: usize) -> ledger::Result<Vec<CoolDown>> {
        let shared = &self.hoarding.shared;
        let now_ms = shared.now_ms();
        let mut waiting = shared.ledger.cooling_down(now_ms, limit).await?;
        let latest_ms = self.hoarding.latest_ms(now_ms);
        waiting.retain(|waiting| waiting.until_ms <= latest_ms);
        Ok(waiting)
    }

    /// This one need not wait any more. False if they did not.
    pub async fn let_go(&self, who: impl Into<Actor>, user: &UserId) -> ledger::Result<bool> {
        self.hoarding.let_go(who.into(), user).await
    }
}
