//! What operators read: rows of the ledger and of the gate as they are. Nothing here changes anything.

use std::sync::Arc;

use gate::Loaded;
use ledger::{
    ActivityOrder, AuditRow, DeadLetter, DeadLetterState, JobRun, OrderFilter, RefundWaiting,
    Result, StockLogRow,
};
use sale::{Activity, ActivityId, Item, ItemId, Millis, Order, OrderNo, UserId};

use crate::{
    Totals,
    due::{Pages, published},
    shared::Shared,
    totals::TotalsCounter,
};

pub struct Records {
    shared: Arc<Shared>,
    totals: TotalsCounter,
}

impl Records {
    pub(crate) fn new(shared: Arc<Shared>) -> Records {
        Records { totals: TotalsCounter::new(shared.clone()), shared }
    }

    /// Newest first.
    pub async fn activities(
        &self,
        before: Option<ActivityId>,
        rows: usize,
    ) -> Result<Vec<Activity>> {
        self.shared.ledger.activities(before, rows).await
    }

    pub async fn activity(&self, id: ActivityId) -> Result<Option<Activity>> {
        self.shared.ledger.activity(id).await
    }

    /// The activity that the shop knows by this id.
    pub async fn activity_by_external_id(&self, external_id: &str) -> Result<Option<Activity>> {
        let wanted = [external_id.to_owned()];
        Ok(self.shared.ledger.activities_of(&[], &[], &wanted).await?.pop())
    }

    /// The items that the shop knows by this id, newest first.
    pub async fn items_by_sku(
        &self,
        sku: &str,
        activity: Option<ActivityId>,
        before: Option<ItemId>,
        rows: usize,
    ) -> Result<Vec<Item>> {
        self.shared.ledger.items_by_sku(sku, activity, before, rows).await
    }

    /// What is on sale and what will be, those that open first before the others, until these have so
    /// many items; without the long words of these.
    pub async fn live_activities(&self, now_ms: Millis, items_max: usize) -> Result<Vec<Activity>> {
        let mut live = Vec::new();
        for filter in published() {
            let filter = filter.closing_after(now_ms).in_order(ActivityOrder::OpensFirst);
            let mut pages = Pages::briefly(&*self.shared.ledger, [filter]);
            let mut items = 0;
            while items <= items_max
                && let Some(page) = pages.next().await?
            {
                items += page.iter().map(|activity| activity.items.len()).sum::<usize>();
                live.extend(page);
            }
        }
        live.sort_by_key(|activity| (activity.opens_ms, activity.id));
        Ok(live)
    }

    /// What an activity came to, counted lately.
    pub async fn totals(&self, id: ActivityId) -> Result<Arc<Totals>> {
        self.totals.of(id).await
    }

    pub async fn item(&self, id: ItemId) -> Result<Option<Item>> {
        self.shared.ledger.item(id).await
    }

    pub async fn stock_log(
        &self,
        item: ItemId,
        after: i64,
        rows: usize,
    ) -> Result<Vec<StockLogRow>> {
        self.shared.ledger.stock_log(item, after, rows).await
    }

    /// What an order did to the stock, oldest first.
    pub async fn stock_log_of(&self, no: OrderNo) -> Result<Vec<StockLogRow>> {
        self.shared.ledger.stock_log_of(no).await
    }

    /// The orders of a payment, by the number that one of these providers gave it.
    pub async fn orders_of_payment(
        &self,
        providers: &[String],
        provider_txn: &str,
    ) -> Result<Vec<OrderNo>> {
        self.shared.ledger.orders_of_payment(providers, provider_txn).await
    }

    pub async fn orders(&self, filter: &OrderFilter) -> Result<Vec<Order>> {
        self.shared.ledger.orders(filter).await
    }

    /// The refunds of an order that wait to be done, and why they were not.
    pub async fn refunds_waiting(&self, no: OrderNo) -> Result<Vec<RefundWaiting>> {
        self.shared.ledger.refunds_waiting(no).await
    }

    pub async fn dead_letter(&self, no: OrderNo) -> Result<Option<DeadLetter>> {
        self.shared.ledger.dead_letter(no).await
    }

    /// Newest first; of one buyer, if one is named.
    pub async fn dead_letters(
        &self,
        user: Option<&UserId>,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        rows: usize,
    ) -> Result<Vec<DeadLetter>> {
        let ledger = &self.shared.ledger;
        match user {
            Some(user) => ledger.dead_letters_of(user, state, before, rows).await,
            None => ledger.dead_letters(state, before, rows).await,
        }
    }

    pub async fn audit_log(&self, before: Option<i64>, rows: usize) -> Result<Vec<AuditRow>> {
        self.shared.ledger.audit_log(before, rows).await
    }

    pub async fn job_runs(&self, job: &str, rows: usize) -> Result<Vec<JobRun>> {
        self.shared.ledger.job_runs(job, rows).await
    }

    /// Items at the gate.
    pub async fn at_gate(&self) -> gate::Result<Vec<Loaded>> {
        self.shared.gate.loaded().await
    }

    /// Units nobody has claimed; `None` if the item is not at the gate. From memory.
    pub fn left(&self, item: ItemId) -> Option<i64> {
        self.shared.gate.left(item)
    }

    /// Units of claims of this item that are on the log.
    pub async fn units_in_flight(&self, item: ItemId) -> gate::Result<u64> {
        let claims = self.shared.gate.in_flight(item).await?;
        Ok(claims.iter().map(|claim| u64::from(claim.quantity)).sum())
    }

    /// Claims on the log that are not in the ledger yet, as far as this process knows.
    pub fn backlog(&self) -> u64 {
        self.shared.gate.backlog()
    }

    /// The same, asked of the log.
    pub async fn measure_backlog(&self) -> gate::Result<u64> {
        self.shared.gate.measure_backlog().await
    }
}
