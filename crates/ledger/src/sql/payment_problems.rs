//! Payments that do not add up.
//!
//! All of them, or those that may have changed lately. All are checked page by page, so many orders at a
//! time: an order and its payments are one, and what becomes of it while other pages are read is found by
//! the next look, which begins before this one. What changed lately is found by indexes, so that its price
//! follows what happens and not how many payments there ever were:
//!
//! - an order can become paid until its time is over, so paid orders are found by their deadline;
//! - payments and refunds that were noted since are found by when they were noted;
//! - an order whose money is being given back says so in its status, for as long as that takes;
//! - what is owed besides, such as the second payment of a paid order, was noted once, and whoever looked
//!   then asks about it again.

use sale::{Millis, OrderNo, OrderStatus};

use super::{
    Access, SqlLedger,
    columns::{coded, get, parsed},
    failure::Outcome,
    payments::{NOT_REFUNDED, OWED},
    session::{Row, Session, Value, values},
};
use crate::{
    BOOKS_PAGE_ROWS, CheckedPayments, OWED_TOLD_MAX, OwedPayment, PaymentKind, PaymentProblem,
    PaymentsSince, Result,
};

/// Its refund is in the outbox, of a payment `p`.
const QUEUED: &str = "EXISTS (SELECT 1 FROM tb_outbox AS w
     WHERE w.provider = p.provider AND w.provider_txn = p.provider_txn)";

/// Behind every order number.
const END: &str = "~";

/// What was found so far, at most so much of each kind.
#[derive(Default)]
struct Found {
    without_money: Vec<PaymentProblem>,
    too_much: Vec<PaymentProblem>,
    owed: Vec<Owed>,
}

impl Found {
    fn add(&mut self, page: Found, limit: usize) {
        self.without_money.extend(page.without_money);
        self.without_money.truncate(limit);
        self.too_much.extend(page.too_much);
        self.too_much.truncate(limit);
        self.owed.extend(page.owed);
        // What nobody is at work on comes first.
        self.owed.sort_by_key(|owed| owed.queued);
        self.owed.truncate(limit + OWED_TOLD_MAX);
    }
}

pub(super) async fn all(ledger: &SqlLedger, limit: usize) -> Result<CheckedPayments> {
    let (mut found, mut after) = (Found::default(), None);
    loop {
        let page: Result<(Found, Option<OrderNo>)> = ledger
            .run(Access::Snapshot, after, move |session, after| {
                Box::pin(page(session, *after, limit))
            })
            .await;
        let (page, last) = page?;
        found.add(page, limit);
        if last.is_none() {
            let Found { without_money, too_much, owed } = found;
            return Ok(checked([without_money, too_much].concat(), owed, limit));
        }
        after = last;
    }
}

/// So many orders behind this one; and the last of them, if there may be more.
async fn page(
    session: &mut dyn Session,
    after: Option<OrderNo>,
    limit: usize,
) -> Outcome<(Found, Option<OrderNo>)> {
    let dialect = session.dialect();
    let sql = format!(
        "SELECT order_no FROM tb_seckill_order {}
         WHERE order_no > ? ORDER BY order_no LIMIT 1 OFFSET ?",
        dialect.by_primary_key()
    );
    let from = after.map(|no| no.to_string()).unwrap_or_default();
    let asked = values![&from, BOOKS_PAGE_ROWS - 1];
    let last: Option<OrderNo> = session.first(&sql, asked, |row| parsed(row, 0)).await?;
    let to = last.map_or_else(|| END.to_owned(), |no| no.to_string());

    // The sign keeps SQLite from taking the index of all orders of this status.
    let orders = Rows {
        by: dialect.by_primary_key(),
        that: "+o.status = ? AND o.order_no > ? AND o.order_no <= ?",
    };
    let asked = values![OrderStatus::Paid.code(), &from, &to, limit];
    let without_money = paid_without_money(session, orders, asked).await?;
    let by_order = dialect.by_index("ix_payment_order");
    let payments = Rows { by: &by_order, that: "p.order_no > ? AND p.order_no <= ?" };
    let owed = owed_among(session, payments, values![&from, &to], limit).await?;
    let these = "AND order_no > ? AND order_no <= ?";
    let too_much = refunded_too_much(session, these, values![&from, &to, limit]).await?;
    Ok((Found { without_money, too_much, owed }, last))
}

/// Among which rows something is looked for, and by which index if the engine is to be told.
struct Rows<'r> {
    by: &'r str,
    that: &'r str,
}

impl<'r> From<&'r str> for Rows<'r> {
    fn from(that: &'r str) -> Rows<'r> {
        Rows { by: "", that }
    }
}

pub(super) async fn since(
    session: &mut dyn Session,
    since: &PaymentsSince,
    limit: usize,
) -> Outcome<CheckedPayments> {
    let PaymentsSince { since_ms, owed, orders } = since;
    let paid = OrderStatus::Paid.code();
    let by_deadline = values![paid, *since_ms, limit];
    let mut problems =
        paid_without_money(session, "status = ? AND pay_deadline >= ?".into(), by_deadline).await?;
    let again = || Value::list(orders.iter().copied());
    let asked_again = &[paid.into(), again(), limit.into()];
    let again_asked = "status = ? AND order_no IN ?".into();
    problems.extend(paid_without_money(session, again_asked, asked_again).await?);
    let too_much = &[again(), limit.into()];
    problems.extend(refunded_too_much(session, "AND order_no IN ?", too_much).await?);
    let refunding = values![OrderStatus::Refunding.code()];
    let mut found = owed_among(session, "o.status = ?".into(), refunding, limit).await?;
    found.extend(owed_among(session, "p.order_no IN ?".into(), &[again()], limit).await?);
    for provider in providers(session).await? {
        let noted = "p.provider = ? AND p.kind = 1 AND p.created_at >= ?";
        let asked = values![&provider, *since_ms];
        found.extend(owed_among(session, noted.into(), asked, limit).await?);
        let known = owed.iter().filter(|one| one.provider == provider);
        let known = Value::list(known.map(|one| one.provider_txn.as_str()));
        let among = "p.provider = ? AND p.provider_txn IN ?";
        let asked = &[Value::from(&provider), known];
        found.extend(owed_among(session, among.into(), asked, limit).await?);
        problems.extend(refunded_too_much_since(session, &provider, *since_ms, limit).await?);
    }
    Ok(checked(problems, found, limit))
}

/// Each once, at most so many of each kind.
fn checked(
    mut problems: Vec<PaymentProblem>,
    mut owed: Vec<Owed>,
    limit: usize,
) -> CheckedPayments {
    owed.sort_by(|a, b| a.payment.cmp(&b.payment));
    owed.dedup_by(|a, b| a.payment == b.payment);
    let forgotten = owed.iter().filter(|owed| !owed.queued).map(Owed::forgotten);
    problems.extend(forgotten.take(limit));
    let mut seen: Vec<PaymentProblem> = Vec::new();
    problems.retain(|problem| {
        let new = !seen.contains(problem);
        if new {
            seen.push(problem.clone());
        }
        new
    });
    let owed = owed.into_iter().filter(|owed| owed.status != OrderStatus::Refunding);
    CheckedPayments { problems, owed: owed.map(|owed| owed.payment).collect() }
}

async fn paid_without_money(
    session: &mut dyn Session,
    Rows { by, that }: Rows<'_>,
    asked: &[Value<'_>],
) -> Outcome<Vec<PaymentProblem>> {
    let sql = format!(
        "SELECT order_no FROM tb_seckill_order AS o {by}
         WHERE {that} AND NOT EXISTS (SELECT 1 FROM tb_payment AS p
             WHERE p.order_no = o.order_no AND p.kind = 1 AND {NOT_REFUNDED})
         ORDER BY order_no LIMIT ?"
    );
    let problem =
        |row: &dyn Row| Ok(PaymentProblem::PaidWithoutMoney { order_no: parsed(row, 0)? });
    session.rows(&sql, asked, problem).await
}

/// Money that is owed back and was not given back.
struct Owed {
    order_no: OrderNo,
    payment: OwedPayment,
    /// Its refund is in the outbox.
    queued: bool,
    status: OrderStatus,
}

impl Owed {
    fn forgotten(&self) -> PaymentProblem {
        let OwedPayment { provider, provider_txn } = self.payment.clone();
        PaymentProblem::RefundNotQueued { order_no: self.order_no, provider, provider_txn }
    }
}

/// What nobody is at work on comes first. Of orders that are being refunded what somebody is at work on is
/// left out: it is found again by the order's status.
async fn owed_among(
    session: &mut dyn Session,
    Rows { by, that }: Rows<'_>,
    asked: &[Value<'_>],
    limit: usize,
) -> Outcome<Vec<Owed>> {
    let sql = format!(
        "SELECT p.order_no, p.provider, p.provider_txn, {QUEUED}, o.status
         FROM tb_payment AS p {by} JOIN tb_seckill_order AS o ON o.order_no = p.order_no
         WHERE {that} AND {OWED} AND {NOT_REFUNDED} AND (o.status <> 3 OR NOT {QUEUED})
         ORDER BY 4, p.id LIMIT ?"
    );
    let read = |row: &dyn Row| {
        Ok(Owed {
            order_no: parsed(row, 0)?,
            payment: OwedPayment { provider: get(row, 1)?, provider_txn: get(row, 2)? },
            queued: get(row, 3)?,
            status: coded(row, 4, OrderStatus::from_code)?,
        })
    };
    let mut asked = asked.to_vec();
    asked.push((limit + OWED_TOLD_MAX).into());
    session.rows(&sql, &asked, read).await
}

async fn refunded_too_much(
    session: &mut dyn Session,
    also: &str,
    asked: &[Value<'_>],
) -> Outcome<Vec<PaymentProblem>> {
    let sql = format!(
        "SELECT order_no FROM tb_payment WHERE kind IN (1, 2) {also} GROUP BY order_no
         HAVING SUM(CASE kind WHEN 2 THEN amount ELSE -amount END) > 0 LIMIT ?"
    );
    let problem = |row: &dyn Row| Ok(PaymentProblem::RefundedTooMuch { order_no: parsed(row, 0)? });
    session.rows(&sql, asked, problem).await
}

async fn refunded_too_much_since(
    session: &mut dyn Session,
    provider: &str,
    since_ms: Millis,
    limit: usize,
) -> Outcome<Vec<PaymentProblem>> {
    let of_orders = "AND order_no IN (SELECT order_no FROM tb_payment
             WHERE provider = ? AND kind = ? AND created_at >= ?)";
    let asked = values![provider, PaymentKind::Refund.code(), since_ms, limit];
    refunded_too_much(session, of_orders, asked).await
}

/// Who has payments on record, from one to the next by the index.
async fn providers(session: &mut dyn Session) -> Outcome<Vec<String>> {
    let sql = "SELECT MIN(provider) FROM tb_payment WHERE provider > ?";
    let (mut found, mut last) = (Vec::new(), String::new());
    while let Some(next) =
        session.first(sql, values![&last], |row| get::<Option<String>>(row, 0)).await?.flatten()
    {
        last.clone_from(&next);
        found.push(next);
    }
    Ok(found)
}
