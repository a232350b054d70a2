//! Reading orders for buyers who poll: those who ask at the same moment share one statement.
//!
//! While a crowd waits, everybody asks for their order every second or two. Nobody keeps a copy for them:
//! an answer is what the ledger said *after* the question was asked, so whoever paid at one instance is not
//! told `unpaid` at another, and no copies fill the memory that selling needs. What makes it cheap is that
//! a few hundred numbers in one statement cost the ledger little more than a few.

use std::{collections::HashMap, sync::Arc};

use gate::{Gathered, GatheredLimits};
use ledger::{Ledger, LedgerError};
use sale::{Order, OrderNo};

const LIMITS: GatheredLimits =
    GatheredLimits { batch_max: 500, at_once_max: 2, waiting_max: 100_000 };

type Answer = Result<Option<Order>, LedgerError>;

pub(crate) struct OrderReads(Arc<Gathered<OrderNo, Answer>>);

impl OrderReads {
    pub(crate) fn new(ledger: Arc<dyn Ledger>) -> OrderReads {
        OrderReads(Gathered::new(LIMITS, move |numbers| {
            let ledger = ledger.clone();
            Box::pin(async move { read(&*ledger, &numbers).await })
        }))
    }

    /// As it is in the ledger now. Dropping the future forgets the question.
    pub(crate) async fn order(&self, no: OrderNo) -> Answer {
        let nobody = || Err(LedgerError::Unavailable("too many orders are asked for".into()));
        self.0.ask(no).await.unwrap_or_else(nobody)
    }
}

async fn read(ledger: &dyn Ledger, numbers: &[OrderNo]) -> Vec<Answer> {
    let found: Result<HashMap<OrderNo, Order>, LedgerError> =
        match ledger.orders_by_no(numbers).await {
            Ok(orders) => Ok(orders.into_iter().map(|order| (order.order_no, order)).collect()),
            Err(error) => Err(error),
        };
    let answer = |no| match &found {
        Ok(orders) => Ok(orders.get(no).cloned()),
        Err(error) => Err(same(error)),
    };
    numbers.iter().map(answer).collect()
}

/// One failure for everybody who asked.
fn same(error: &LedgerError) -> LedgerError {
    match error {
        LedgerError::Unavailable(why) => LedgerError::Unavailable(why.clone()),
        LedgerError::Broken(why) => LedgerError::Broken(why.clone()),
        other => LedgerError::Broken(other.to_string()),
    }
}
