//! Reading orders for buyers who poll: those who ask at the same moment share one statement.
//!
//! While a crowd waits, everybody asks for their order every second or two. Nobody keeps a copy for them:
//! an answer is what the ledger said *after* the question was asked, so whoever paid at one instance is not
//! told `unpaid` at another, and no copies fill the memory that selling needs. What makes it cheap is that
//! a few hundred numbers in one statement cost the ledger little more than a few.

use std::{collections::HashMap, sync::Arc};

use gate::{Gathered, GatheredLimits};
use ledger::{Ledger, LedgerError, PaymentRow};
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

type Payments = Result<Vec<PaymentRow>, LedgerError>;

/// What is on record of orders' payments, read by the same rules.
pub(crate) struct PaymentReads(Arc<Gathered<OrderNo, Payments>>);

impl PaymentReads {
    pub(crate) fn new(ledger: Arc<dyn Ledger>) -> PaymentReads {
        PaymentReads(Gathered::new(LIMITS, move |numbers| {
            let ledger = ledger.clone();
            Box::pin(async move { read_payments(&*ledger, &numbers).await })
        }))
    }

    /// Oldest first.
    pub(crate) async fn of(&self, no: OrderNo) -> Payments {
        let nobody = || Err(LedgerError::Unavailable("too many payments are asked for".into()));
        self.0.ask(no).await.unwrap_or_else(nobody)
    }
}

/// Each order's, in the order in which they were given.
pub(crate) fn by_order(rows: Vec<PaymentRow>) -> HashMap<OrderNo, Vec<PaymentRow>> {
    let mut orders: HashMap<OrderNo, Vec<PaymentRow>> = HashMap::new();
    for row in rows {
        orders.entry(row.order_no).or_default().push(row);
    }
    orders
}

async fn read_payments(ledger: &dyn Ledger, numbers: &[OrderNo]) -> Vec<Payments> {
    let found = ledger.payments_of(numbers).await.map(by_order);
    let answer = |no: &OrderNo| match &found {
        Ok(rows) => Ok(rows.get(no).cloned().unwrap_or_default()),
        Err(error) => Err(same(error)),
    };
    numbers.iter().map(answer).collect()
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
