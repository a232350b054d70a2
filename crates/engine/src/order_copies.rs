//! Copies of orders, at which buyers look while they wait, so that not all of them ask the ledger.
//!
//! Only a cluster has them. A copy is a hint of how the order was a moment ago; whoever decides
//! something by an order reads the ledger.

use std::sync::Arc;

use sale::{Millis, Order, OrderNo};

use crate::{
    coordination::OrderCopy,
    shared::{AnyError, Shared},
};

/// A copy of an order that is older is not told before the ledger was asked.
const COPY_MS_MAX: Millis = 10_000;

pub(crate) struct OrderCopies {
    pub(crate) shared: Arc<Shared>,
}

impl OrderCopies {
    pub(crate) async fn of(&self, no: OrderNo) -> Option<OrderCopy> {
        self.shared.coordination.order(no).await
    }

    pub(crate) async fn renew(&self, numbers: &[OrderNo]) -> Result<(), AnyError> {
        // The time first: a copy must not pass for younger than it is.
        let read_ms = self.shared.coordination.now_ms().await?;
        let current = self.shared.ledger.orders_by_no(numbers).await?;
        Ok(self.shared.coordination.keep_orders(&current, read_ms).await?)
    }

    /// Whoever has just changed an order should see it changed. The outbox does the same a moment
    /// later, so this may fail.
    pub(crate) async fn renew_one(&self, no: OrderNo) {
        if self.shared.is_cluster()
            && let Err(error) = self.renew(&[no]).await
        {
            tracing::debug!(%error, "the copy of an order could not be renewed yet");
        }
    }

    /// Who asks next need not ask the ledger. If it does not work, they do.
    pub(crate) async fn replace(&self, old: &OrderCopy, order: &Order) {
        let read = std::slice::from_ref(order);
        if let Err(error) = self.shared.coordination.keep_orders(read, old.now_ms).await {
            tracing::debug!(%error, "the copy of an order could not be renewed");
        }
    }
}

/// Young enough to be told without asking the ledger.
pub(crate) fn is_fresh(copy: &OrderCopy) -> bool {
    (0..COPY_MS_MAX).contains(&(copy.now_ms - copy.read_ms))
}
