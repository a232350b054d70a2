//! The sandbox's own books: payments, charges, and notices still to be delivered.
//!
//! A payment's row only says what was done *to the payment* (open, failed, closed). Whether it is
//! paid or refunded follows from its charges, so the two can never disagree, and late money needs
//! nobody to notice that it landed.
//!
//! The processes of a cluster may share one file of books, so nobody can be sure to have it alone. Where
//! somebody does, at a start and after a fault, what is read of it is made to be what is on the disk
//! ([`sqlite_file`] says why); where another process has it open, that one's index of the WAL tells what
//! was really committed.

use std::{io, path::Path};

use rusqlite::{
    Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params,
    types::{FromSqlError, Type},
};
use sale::{Millis, Money, OrderNo};

use super::{
    ActError, Action, CashierView, Charge, LATE_BY_MS, PaymentState,
    deliver::{Delivery, Next},
    signature::{NoticeBody, WireOutcome, to_hex},
};
use crate::{
    CloseOutcome, Paid, PayRequest, ProviderError, QueryOutcome, RefundOutcome, RefundRequest,
};

const SCHEMA_VERSION: i64 = 1;
const SCHEMA: &str = "
CREATE TABLE payments (
    txn             TEXT PRIMARY KEY,
    order_no        TEXT NOT NULL UNIQUE,
    user            TEXT NOT NULL,
    amount          INTEGER NOT NULL CHECK (amount >= 0),
    currency        TEXT NOT NULL,
    subject         TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('open', 'failed', 'closed')),
    pay_deadline_ms INTEGER NOT NULL,
    created_ms      INTEGER NOT NULL,
    closed_ms       INTEGER
) STRICT;
CREATE TABLE charges (
    id           INTEGER PRIMARY KEY,
    provider_txn TEXT NOT NULL UNIQUE,
    txn          TEXT NOT NULL REFERENCES payments (txn),
    -- When the money lands. In the future for late money.
    paid_ms      INTEGER NOT NULL,
    refunded_ms  INTEGER
) STRICT;
CREATE INDEX charges_txn ON charges (txn);
CREATE TABLE notices (
    id          INTEGER PRIMARY KEY,
    body        TEXT NOT NULL,
    next_try_ms INTEGER NOT NULL,
    tries       INTEGER NOT NULL DEFAULT 0,
    state       TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'given_up'))
) STRICT;
CREATE INDEX notices_due ON notices (next_try_ms) WHERE state = 'waiting';
";

/// Pages that the WAL may have before it is moved into the file.
const WAL_PAGES_MAX: u32 = 1_000;

pub(super) struct Book {
    db: Connection,
    length: sqlite_file::Length,
}

/// A payment with all its charges, also those that have not landed.
pub(super) struct Payment {
    txn: String,
    order_no: OrderNo,
    amount: Money,
    subject: String,
    state: PaymentState,
    pay_deadline_ms: Millis,
    charges: Vec<Charge>,
}

pub(super) struct DueNotice {
    pub(super) id: i64,
    pub(super) body: String,
    pub(super) tries: u32,
}

type Sql<T> = rusqlite::Result<T>;

impl Book {
    pub(super) fn open(path: &Path) -> Result<Self, ProviderError> {
        let failed =
            |error: io::Error| ProviderError::Unavailable(format!("{}: {error}", path.display()));
        sqlite_file::secure_unless_open(path).map_err(failed)?;
        let mut db = Connection::open(path)?;
        sqlite_file::use_wal(&db)?;
        db.pragma_update(None, "synchronous", "FULL")?;
        let length = sqlite_file::Length::new(WAL_PAGES_MAX);
        length.watch(&mut db)?;
        db.pragma_update(None, "foreign_keys", true)?;
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let version: i64 = tx.pragma_query_value(None, "user_version", |row| row.get(0))?;
        match version {
            0 => {
                tx.execute_batch(SCHEMA)?;
                tx.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            }
            SCHEMA_VERSION => {}
            newer => {
                let problem =
                    format!("the sandbox's books are of version {newer}, not {SCHEMA_VERSION}");
                return Err(ProviderError::Refused(problem));
            }
        }
        tx.commit()?;
        sqlite_file::sync_names(path).map_err(failed)?;
        Ok(Book { db, length })
    }

    /// After a fault: close them, and touch the file no more.
    pub(super) fn close_untouched(self) {
        sqlite_file::close_untouched(self.db);
    }

    /// Move the WAL into the file if it has grown long.
    pub(super) fn checkpoint(&self) -> Sql<()> {
        self.length.check(&self.db)
    }

    pub(super) fn payment_by_txn(&self, txn: &str) -> Sql<Option<Payment>> {
        payment(&self.db, "txn", txn)
    }

    pub(super) fn payment_by_order(&self, order_no: OrderNo) -> Sql<Option<Payment>> {
        payment(&self.db, "order_no", &order_no.to_string())
    }

    /// The number of the order's one payment, made now if there is none.
    pub(super) fn open_payment(
        &mut self,
        request: &PayRequest,
        now_ms: Millis,
    ) -> Result<String, ProviderError> {
        let refuse = |problem: &str| Err(ProviderError::Refused(problem.into()));
        let tx = self.begin()?;
        if let Some(found) = payment(&tx, "order_no", &request.order_no.to_string())? {
            return match found.state(now_ms) {
                PaymentState::Closed => refuse("the payment is closed"),
                _ if found.amount != request.amount => refuse("it was opened with another amount"),
                _ => Ok(found.txn),
            };
        }
        if request.amount.minor < 0 {
            return refuse("the amount is negative");
        }
        if request.deadline_ms <= now_ms {
            return refuse("the time to pay is over");
        }
        let txn = new_number("sbp")?;
        tx.execute(
            "INSERT INTO payments (txn, order_no, user, amount, currency, subject, state,
                                   pay_deadline_ms, created_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'open', ?7, ?8)",
            params![
                txn,
                request.order_no.to_string(),
                request.user.as_str(),
                request.amount.minor,
                request.amount.currency.as_str(),
                request.subject,
                request.deadline_ms,
                now_ms,
            ],
        )?;
        tx.commit()?;
        Ok(txn)
    }

    pub(super) fn close(&mut self, order_no: OrderNo, now_ms: Millis) -> Sql<CloseOutcome> {
        let tx = self.begin()?;
        let Some(found) = payment(&tx, "order_no", &order_no.to_string())? else {
            return Ok(CloseOutcome::NeverOpened);
        };
        if let Some(paid) = found.paid(now_ms) {
            return Ok(CloseOutcome::AlreadyPaid(paid));
        }
        tx.execute(
            "UPDATE payments SET state = 'closed', closed_ms = ?2
             WHERE txn = ?1 AND state <> 'closed'",
            params![found.txn, now_ms],
        )?;
        tx.commit()?;
        Ok(CloseOutcome::Closed)
    }

    pub(super) fn act(
        &mut self,
        merchant: &str,
        txn: &str,
        action: Action,
        now_ms: Millis,
    ) -> Result<CashierView, ActError> {
        let tx = self.begin()?;
        let found = payment(&tx, "txn", txn)?.ok_or(ActError::Unknown)?;
        found.may_be_acted_on(now_ms)?;
        let teller = Teller { tx: &tx, merchant, payment: &found };
        match action {
            Action::Pay => _ = teller.charge(now_ms)?,
            Action::Fail => teller.fail(now_ms)?,
            Action::PayTwice => {
                let first = teller.charge(now_ms)?;
                teller.notify(&first, WireOutcome::Paid, now_ms)?;
                teller.charge(now_ms)?;
            }
            Action::PayLate => _ = teller.charge(found.pay_deadline_ms + LATE_BY_MS)?,
        }
        let after = payment(&tx, "txn", txn)?.ok_or(ActError::Unknown)?;
        tx.commit()?;
        Ok(after.view(now_ms))
    }

    pub(super) fn refund(
        &mut self,
        request: &RefundRequest,
        now_ms: Millis,
    ) -> Result<RefundOutcome, ProviderError> {
        let refuse = |problem: &str| Err(ProviderError::Refused(problem.into()));
        let tx = self.begin()?;
        let found = payment(&tx, "order_no", &request.order_no.to_string())?;
        let charge = found.as_ref().and_then(|payment| {
            payment.landed(now_ms).find(|charge| charge.provider_txn == request.provider_txn)
        });
        let Some(charge) = charge else { return refuse("the order has no such charge") };
        if charge.amount != request.amount {
            return refuse("a charge is given back whole");
        }
        tx.execute(
            "UPDATE charges SET refunded_ms = ?2 WHERE provider_txn = ?1 AND refunded_ms IS NULL",
            params![request.provider_txn, now_ms],
        )?;
        tx.commit()?;
        Ok(RefundOutcome::Done)
    }

    pub(super) fn bill(&self, now_ms: Millis) -> Sql<Vec<Charge>> {
        charges(&self.db, "WHERE c.paid_ms <= ?1 ORDER BY c.paid_ms, c.id", now_ms)
    }

    /// Notices due now, and when the next one will be if there is none.
    pub(super) fn due(
        &self,
        now_ms: Millis,
        limit: usize,
    ) -> Sql<(Vec<DueNotice>, Option<Millis>)> {
        let mut select = self.db.prepare_cached(
            "SELECT id, body, tries FROM notices WHERE state = 'waiting' AND next_try_ms <= ?1
             ORDER BY next_try_ms, id LIMIT ?2",
        )?;
        let due = select
            .query_map(params![now_ms, limit as i64], |row| {
                Ok(DueNotice { id: row.get(0)?, body: row.get(1)?, tries: row.get(2)? })
            })?
            .collect::<Sql<Vec<_>>>()?;
        let next = self.db.query_row(
            "SELECT min(next_try_ms) FROM notices WHERE state = 'waiting'",
            [],
            |row| row.get(0),
        )?;
        Ok((due, next))
    }

    pub(super) fn note_deliveries(&mut self, done: &[Delivery]) -> Sql<()> {
        let tx = self.begin()?;
        for Delivery { id, next } in done {
            let (state, next_try_ms) = match next {
                Next::Accepted => ("delivered", None),
                Next::GiveUp => ("given_up", None),
                Next::TryAt(at) => ("waiting", Some(at)),
            };
            tx.execute(
                "UPDATE notices SET tries = tries + 1, state = ?2,
                        next_try_ms = coalesce(?3, next_try_ms) WHERE id = ?1",
                params![id, state, next_try_ms],
            )?;
        }
        tx.commit()
    }

    fn begin(&mut self) -> Sql<Transaction<'_>> {
        self.db.transaction_with_behavior(TransactionBehavior::Immediate)
    }
}

/// Does what the buyer asked for, inside one transaction.
struct Teller<'a> {
    tx: &'a Transaction<'a>,
    merchant: &'a str,
    payment: &'a Payment,
}

impl Teller<'_> {
    /// A charge that lands at `paid_ms`, and the notice of it, due at the same moment.
    fn charge(&self, paid_ms: Millis) -> Result<String, ActError> {
        let provider_txn = new_number("sbc")?;
        self.tx.execute(
            "INSERT INTO charges (provider_txn, txn, paid_ms) VALUES (?1, ?2, ?3)",
            params![provider_txn, self.payment.txn, paid_ms],
        )?;
        self.notify(&provider_txn, WireOutcome::Paid, paid_ms)?;
        Ok(provider_txn)
    }

    fn fail(&self, now_ms: Millis) -> Result<(), ActError> {
        self.tx.execute(
            "UPDATE payments SET state = 'failed' WHERE txn = ?1",
            params![self.payment.txn],
        )?;
        // A failed try has a number too, though nothing is charged under it.
        self.notify(&new_number("sbf")?, WireOutcome::Failed, now_ms)
    }

    fn notify(
        &self,
        provider_txn: &str,
        outcome: WireOutcome,
        at_ms: Millis,
    ) -> Result<(), ActError> {
        let body = NoticeBody {
            merchant: self.merchant.to_owned(),
            provider_txn: provider_txn.to_owned(),
            order_no: self.payment.order_no,
            amount: self.payment.amount.minor,
            currency: self.payment.amount.currency,
            paid_at: at_ms,
            outcome,
        };
        let body = serde_json::to_string(&body)
            .map_err(|fault| ActError::Unavailable(fault.to_string()))?;
        self.tx.execute(
            "INSERT INTO notices (body, next_try_ms) VALUES (?1, ?2)",
            params![body, at_ms],
        )?;
        Ok(())
    }
}

impl Payment {
    fn landed(&self, now_ms: Millis) -> impl Iterator<Item = &Charge> {
        self.charges.iter().filter(move |charge| charge.paid_ms <= now_ms)
    }

    /// The first charge that was not given back, else the first.
    fn paid(&self, now_ms: Millis) -> Option<Paid> {
        let kept = self.landed(now_ms).find(|charge| charge.refunded_ms.is_none());
        let charge = kept.or_else(|| self.landed(now_ms).next())?;
        Some(Paid {
            provider_txn: charge.provider_txn.clone(),
            amount: charge.amount,
            paid_ms: charge.paid_ms,
        })
    }

    fn state(&self, now_ms: Millis) -> PaymentState {
        if self.landed(now_ms).next().is_none() {
            self.state
        } else if self.landed(now_ms).all(|charge| charge.refunded_ms.is_some()) {
            PaymentState::Refunded
        } else {
            PaymentState::Paid
        }
    }

    fn lands_at_ms(&self, now_ms: Millis) -> Option<Millis> {
        self.charges.iter().map(|charge| charge.paid_ms).filter(|at| *at > now_ms).min()
    }

    fn may_be_acted_on(&self, now_ms: Millis) -> Result<(), ActError> {
        let refuse = |problem| Err(ActError::Refused(problem));
        match self.state(now_ms) {
            PaymentState::Paid => refuse("this payment is already paid"),
            PaymentState::Refunded => refuse("this payment was refunded"),
            PaymentState::Closed => refuse("this payment is closed"),
            PaymentState::Open | PaymentState::Failed if self.lands_at_ms(now_ms).is_some() => {
                refuse("money for this payment is already on its way")
            }
            PaymentState::Open | PaymentState::Failed if self.pay_deadline_ms <= now_ms => {
                refuse("the time to pay is over")
            }
            PaymentState::Open | PaymentState::Failed => Ok(()),
        }
    }

    pub(super) fn query(&self, now_ms: Millis) -> QueryOutcome {
        match (self.state(now_ms), self.paid(now_ms)) {
            (PaymentState::Closed, _) => QueryOutcome::Closed,
            (PaymentState::Refunded, Some(paid)) => QueryOutcome::Refunded(paid),
            (_, Some(paid)) => QueryOutcome::Paid(paid),
            (_, None) => QueryOutcome::Open,
        }
    }

    pub(super) fn view(&self, now_ms: Millis) -> CashierView {
        CashierView {
            txn: self.txn.clone(),
            order_no: self.order_no,
            item_name: self.subject.clone(),
            amount: self.amount.minor,
            currency: self.amount.currency,
            state: self.state(now_ms),
            pay_deadline: self.pay_deadline_ms,
            lands_at: self.lands_at_ms(now_ms),
        }
    }
}

/// `column` is one of ours, never from outside.
fn payment(db: &Connection, column: &'static str, value: &str) -> Sql<Option<Payment>> {
    let select = format!(
        "SELECT txn, order_no, amount, currency, subject, state, pay_deadline_ms
         FROM payments WHERE {column} = ?1"
    );
    let row = db.prepare_cached(&select)?.query_row([value], |row| {
        Ok(Payment {
            txn: row.get(0)?,
            order_no: parsed(row, 1)?,
            amount: Money::new(row.get(2)?, parsed(row, 3)?),
            subject: row.get(4)?,
            state: match row.get::<_, String>(5)?.as_str() {
                "open" => PaymentState::Open,
                "failed" => PaymentState::Failed,
                "closed" => PaymentState::Closed,
                _ => return Err(FromSqlError::InvalidType.into()),
            },
            pay_deadline_ms: row.get(6)?,
            charges: Vec::new(),
        })
    });
    let Some(mut payment) = row.optional()? else { return Ok(None) };
    payment.charges = charges(db, "WHERE c.txn = ?1 ORDER BY c.id", &payment.txn)?;
    Ok(Some(payment))
}

fn charges(db: &Connection, which: &'static str, value: impl rusqlite::ToSql) -> Sql<Vec<Charge>> {
    let select = format!(
        "SELECT c.provider_txn, p.order_no, p.amount, p.currency, c.paid_ms, c.refunded_ms
         FROM charges c JOIN payments p ON p.txn = c.txn {which}"
    );
    let mut select = db.prepare_cached(&select)?;
    let rows = select.query_map([value], |row| {
        Ok(Charge {
            provider_txn: row.get(0)?,
            order_no: parsed(row, 1)?,
            amount: Money::new(row.get(2)?, parsed(row, 3)?),
            paid_ms: row.get(4)?,
            refunded_ms: row.get(5)?,
        })
    })?;
    rows.collect()
}

fn parsed<T>(row: &Row<'_>, column: usize) -> Sql<T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text: String = row.get(column)?;
    text.parse().map_err(|fault| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(fault))
    })
}

/// Not to be guessed: whoever knows a payment's number may act at its cashier.
fn new_number(prefix: &str) -> Result<String, ProviderError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|fault| ProviderError::Unavailable(fault.to_string()))?;
    Ok(format!("{prefix}_{}", to_hex(&random)))
}
