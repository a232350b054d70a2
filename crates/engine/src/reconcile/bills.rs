//! Comparing bills: what a provider says moved on a day, beside what the ledger says.
//!
//! Once a day is over and its provider has made the bill, it is fetched and gone through in both directions.
//! A charge of one of our orders that nobody told us of is credited (or given back, if the order is over);
//! money that went back unknown to us is noted. What has no rule is shown to a person. A day that agreed is
//! not fetched again; one that did not, a few hours later. A bill that could not be had (providers make none
//! of a day on which nothing moved) is asked for again later, and the days after it do not wait for it.
//!
//! A bill may take its provider minutes. So it is fetched beside the runs: a run takes what has come, and
//! does not wait for what has not. What one side noted just before midnight and the other just after is not a
//! difference: before a payment is called missing its provider is asked about it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ledger::{BillDay, Noted, PaymentKind, PaymentNotice, PaymentRow, RefundDone, RefundTold};
use payment::{BillLine, Provider, ProviderError, QueryOutcome};
use sale::{Millis, OrderNo};
use tokio::{sync::Mutex, task::JoinHandle};

use super::{Finding, found_money};
use crate::{Payments, StoreError, shared::Shared};

const DAY_MS: Millis = 24 * 60 * 60 * 1_000;
/// Days that are looked back for bills that were not compared.
const BILL_DAYS_MAX: Millis = 7;
/// A day that did not agree is fetched again after this.
const DIFFERING_AGAIN_MS: Millis = 6 * 60 * 60 * 1_000;
/// A bill that could not be had is asked for again after this.
const NOT_HAD_AGAIN_MS: Millis = 30 * 60 * 1_000;
/// For so long it is remembered that a day was compared.
const REMEMBERED_MS: Millis = 400 * DAY_MS;
/// How long a run waits for a bill.
const BILL_WAIT_MAX: Duration = Duration::from_secs(5);
/// Lines and rows that are compared at once.
const PAGE_ROWS: usize = 500;
/// Findings of one bill that are told, and payments that a provider is asked about for one.
const FINDINGS_MAX: usize = 1_000;
const ASKED_MAX: usize = 100;

type Fetched = Result<Option<Vec<BillLine>>, ProviderError>;

pub(super) struct BillComparison {
    shared: Arc<Shared>,
    payments: Arc<Payments>,
    /// Bills on their way, at most one of each provider.
    fetching: Mutex<HashMap<String, Fetching>>,
    /// By provider and day, when a bill could not be had. At most so many days as are looked back for.
    not_had: parking_lot::Mutex<HashMap<(String, Millis), Millis>>,
}

struct Fetching {
    day_ms: Millis,
    bill: JoinHandle<Fetched>,
}

impl BillComparison {
    pub(super) fn new(shared: Arc<Shared>, payments: Arc<Payments>) -> BillComparison {
        let (fetching, not_had) = Default::default();
        BillComparison { shared, payments, fetching, not_had }
    }

    pub(super) async fn compare(&self, heal: bool) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        for name in self.payments.provider_names() {
            let Some(provider) = self.payments.provider(&name).cloned() else { continue };
            let Some((day_ms, lines)) = self.next_bill(&name, &provider).await? else { continue };
            let found = self.compare_day(&name, &*provider, day_ms, &lines, heal).await?;
            let left = found.iter().filter(|finding| finding.healed.is_none()).count() as u64;
            let compared_ms = self.shared.now_ms();
            let lines = lines.len() as u64;
            let day = BillDay { day_ms, lines, differences: left, compared_ms };
            if heal {
                let forget_ms = compared_ms - REMEMBERED_MS;
                self.shared.ledger.bill_compared(&name, &day, forget_ms).await?;
            }
            findings.extend(found);
        }
        Ok(findings)
    }

    /// The bill of the oldest day that is to be compared, once it is here.
    async fn next_bill(
        &self,
        name: &str,
        provider: &Arc<dyn Provider>,
    ) -> Result<Option<(Millis, Vec<BillLine>)>, StoreError> {
        let mut fetching = self.fetching.lock().await;
        if !fetching.contains_key(name) {
            let Some(day_ms) = self.day_to_compare(name, &**provider).await? else {
                return Ok(None);
            };
            let asked = provider.clone();
            let bill = tokio::spawn(async move { asked.bill(day_ms).await });
            fetching.insert(name.to_owned(), Fetching { day_ms, bill });
        }
        let Some(Fetching { day_ms, bill }) = fetching.get_mut(name) else { return Ok(None) };
        let day_ms = *day_ms;
        let Ok(fetched) = tokio::time::timeout(BILL_WAIT_MAX, bill).await else {
            return Ok(None);
        };
        fetching.remove(name);
        let lines = match fetched {
            Ok(Ok(lines)) => lines,
            Ok(Err(error)) => {
                tracing::warn!(provider = name, %error, "a bill could not be had; it is asked for again");
                None
            }
            Err(panic) => {
                tracing::error!(provider = name, %panic, "fetching a bill panicked");
                None
            }
        };
        if lines.is_none() {
            self.not_had.lock().insert((name.to_owned(), day_ms), self.shared.now_ms());
        }
        Ok(lines.map(|lines| (day_ms, lines)))
    }

    async fn day_to_compare(
        &self,
        name: &str,
        provider: &dyn Provider,
    ) -> Result<Option<Millis>, StoreError> {
        let (now_ms, ahead_ms) = (self.shared.now_ms(), provider.calendar_ahead_ms());
        let today_ms = (now_ms + ahead_ms).div_euclid(DAY_MS) * DAY_MS - ahead_ms;
        let first_ms = today_ms - BILL_DAYS_MAX * DAY_MS;
        let known = self.shared.ledger.bill_days(name, first_ms).await?;
        let known: HashMap<Millis, BillDay> =
            known.into_iter().map(|day| (day.day_ms, day)).collect();
        let mut not_had = self.not_had.lock();
        not_had.retain(|(_, day_ms), asked_ms| {
            *day_ms >= first_ms && (now_ms - *asked_ms).abs() < NOT_HAD_AGAIN_MS
        });
        let is_due = |day_ms: &Millis| {
            if not_had.contains_key(&(name.to_owned(), *day_ms)) {
                return false;
            }
            known.get(day_ms).is_none_or(|day| {
                day.differences > 0 && (now_ms - day.compared_ms).abs() >= DIFFERING_AGAIN_MS
            })
        };
        Ok((0..BILL_DAYS_MAX).map(|n| first_ms + n * DAY_MS).find(is_due))
    }

    async fn compare_day(
        &self,
        name: &str,
        provider: &dyn Provider,
        day_ms: Millis,
        lines: &[BillLine],
        heal: bool,
    ) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        for some in lines.chunks(PAGE_ROWS) {
            let txns: Vec<String> = some.iter().map(|line| line.provider_txn.clone()).collect();
            let known = self.shared.ledger.payments_by_txn(name, &txns).await?;
            for line in some {
                // Another system of the same merchant has numbers of its own.
                let Ok(no) = line.order_no.parse::<OrderNo>() else { continue };
                let of_it = |kind| {
                    let mut known = known.iter();
                    known.find(|row| row.kind == kind && row.provider_txn == line.provider_txn)
                };
                let (paid, back) = (of_it(PaymentKind::Pay), of_it(PaymentKind::Refund));
                let found = match (line.refund, paid) {
                    (false, None) => self.unknown_charge(name, no, line, heal).await?,
                    (false, Some(paid)) => differs(name, no, line, paid),
                    (true, Some(paid)) if back.is_none() => {
                        self.unknown_refund(name, line, paid, heal).await?
                    }
                    // The charge itself is on this bill or an earlier one.
                    (true, _) => None,
                };
                findings.extend(found.filter(|_| findings.len() < FINDINGS_MAX));
            }
        }
        let listed = |refund: bool| -> HashSet<&str> {
            let of_kind = lines.iter().filter(|line| line.refund == refund);
            of_kind.map(|line| line.provider_txn.as_str()).collect()
        };
        for (kind, listed) in
            [(PaymentKind::Pay, listed(false)), (PaymentKind::Refund, listed(true))]
        {
            findings.extend(self.missing(name, provider, day_ms, kind, &listed).await?);
        }
        Ok(findings)
    }

    /// The provider has money for one of our orders, and nobody told us.
    async fn unknown_charge(
        &self,
        name: &str,
        no: OrderNo,
        line: &BillLine,
        heal: bool,
    ) -> Result<Option<Finding>, StoreError> {
        let detail = format!("{no}: {name} {} is on the bill and not on record", line.provider_txn);
        let finding = Finding::new("bill_charge_unknown", detail);
        if !heal {
            return Ok(Some(finding));
        }
        let money = PaymentNotice {
            provider: name.into(),
            provider_txn: line.provider_txn.clone(),
            order_no: no,
            amount: line.amount,
            paid_ms: line.at_ms,
        };
        found_money::credit(&self.payments, &money, finding).await
    }

    /// The provider gave money back, and nobody told us.
    async fn unknown_refund(
        &self,
        name: &str,
        line: &BillLine,
        paid: &PaymentRow,
        heal: bool,
    ) -> Result<Option<Finding>, StoreError> {
        let no = paid.order_no;
        let detail = format!("{no}: {name} {} went back, and is not on record", line.provider_txn);
        let finding = Finding::new("bill_refund_unknown", detail);
        if !heal || line.amount != paid.amount {
            return Ok(Some(finding));
        }
        let done = RefundDone {
            provider: name.into(),
            provider_txn: line.provider_txn.clone(),
            order_no: no,
            amount: line.amount,
        };
        match self.shared.ledger.refund_told(&done, None, self.shared.now_ms()).await? {
            RefundTold::Noted(_) => {
                self.shared.wake.outbox_written();
                let how = "noted as given back";
                found_money::healed(&self.shared, no, finding, how).await.map(Some)
            }
            RefundTold::Repeated(_) => Ok(None),
            RefundTold::Mismatch(..) | RefundTold::UnknownPayment => Ok(Some(finding)),
        }
    }

    /// What is on record here and not on the bill, unless the provider says that it is so.
    async fn missing(
        &self,
        name: &str,
        provider: &dyn Provider,
        day_ms: Millis,
        kind: PaymentKind,
        listed: &HashSet<&str>,
    ) -> Result<Vec<Finding>, StoreError> {
        let mut page = Noted { from_ms: day_ms, to_ms: day_ms + DAY_MS, after_id: 0 };
        let (mut findings, mut asked) = (Vec::new(), 0);
        loop {
            let ledger = &self.shared.ledger;
            let rows = ledger.payments_noted(name, kind, page, PAGE_ROWS).await?;
            let unlisted = rows.iter().map(|(_, row)| row);
            for row in unlisted.filter(|row| !listed.contains(row.provider_txn.as_str())) {
                asked += 1;
                if asked > ASKED_MAX || agrees(provider, row).await {
                    continue;
                }
                let (no, txn) = (row.order_no, &row.provider_txn);
                let (word, what) = match kind {
                    PaymentKind::Refund => ("bill_refund_missing", "is on record as given back"),
                    _ => ("bill_charge_missing", "is on record as paid"),
                };
                let detail = format!("{no}: {name} {txn} {what}, and not on the provider's bill");
                findings.push(Finding::new(word, detail));
            }
            let Some((id, last)) = rows.last().filter(|_| rows.len() == PAGE_ROWS) else {
                return Ok(findings);
            };
            page = Noted { from_ms: last.created_ms, after_id: *id, ..page };
        }
    }
}

fn differs(name: &str, no: OrderNo, line: &BillLine, paid: &PaymentRow) -> Option<Finding> {
    if (paid.order_no, paid.amount) == (no, line.amount) {
        return None;
    }
    let detail = format!(
        "{}: {name} {} is {} on record, and {} for {no} on the bill",
        paid.order_no, paid.provider_txn, paid.amount, line.amount
    );
    Some(Finding::new("bill_charge_differs", detail))
}

/// Does the provider say of this payment what is on record? One that does not answer does not differ.
async fn agrees(provider: &dyn Provider, row: &PaymentRow) -> bool {
    match provider.query(row.order_no).await {
        Ok(QueryOutcome::Refunded(paid)) => paid.provider_txn == row.provider_txn,
        Ok(QueryOutcome::Paid(paid)) => {
            row.kind == PaymentKind::Pay && paid.provider_txn == row.provider_txn
        }
        Ok(_) | Err(ProviderError::Refused(_)) => false,
        Err(ProviderError::Unavailable(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use sale::{Currency, Money, OrderStatus};

    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine};

    fn line(no: impl ToString, txn: &str, minor: i64, refund: bool) -> BillLine {
        BillLine {
            provider_txn: txn.into(),
            order_no: no.to_string(),
            amount: Money::new(minor, Currency::CNY),
            at_ms: NOW_MS,
            refund,
        }
    }

    #[tokio::test]
    async fn a_bill_is_compared_once_and_what_has_a_rule_is_healed() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let mut orders = Vec::new();
        for user in ["ann", "bob", "cat", "dan", "eve"] {
            orders.push(shop.buy(item, user).await);
        }
        let [unknown, back, differing, agreed, missing] = orders[..] else { panic!() };
        for no in [back, differing, agreed, missing] {
            engine.payments.credit(&shop.bank.money(no)).await.unwrap();
        }
        shop.bank.pay(agreed, 1, NOW_MS);
        let txn = |no: OrderNo| format!("T{no}");
        shop.bank.bills(vec![
            line(unknown, "T-unknown", 1, false),
            line(back, &txn(back), 1, false),
            line(back, &txn(back), 1, true),
            line(differing, &txn(differing), 2, false),
            line("of another system", "T-other", 5, false),
        ]);
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        shop.clock.advance(DAY_MS);
        let mut found = Vec::new();
        for _ in 0..BILL_DAYS_MAX {
            found.extend(engine.reconcile.run(true).await.unwrap().payments);
        }
        let mut kinds: Vec<&str> = found.iter().map(|finding| finding.kind.as_str()).collect();
        kinds.sort_unstable();
        assert_eq!(
            kinds,
            [
                "bill_charge_differs",
                "bill_charge_missing",
                "bill_charge_unknown",
                "bill_refund_unknown"
            ],
            "{found:?}"
        );
        assert_eq!(found.iter().filter(|finding| finding.healed.is_some()).count(), 2);
        assert_eq!(status(unknown).await, OrderStatus::Paid);
        assert_eq!(status(back).await, OrderStatus::Refunded);
        let fetched = shop.bank.bills_fetched();
        assert_eq!(fetched, BILL_DAYS_MAX as u64, "each day once");
        let again = engine.reconcile.run(true).await.unwrap();
        assert_eq!((again.payments.len(), shop.bank.bills_fetched()), (0, fetched));
        shop.clock.advance(DIFFERING_AGAIN_MS);
        let later = engine.reconcile.run(true).await.unwrap();
        assert_eq!(
            later.payments.len(),
            2,
            "what is left is looked at again: {:?}",
            later.payments
        );
        assert_eq!(engine.shared.ledger.payments(unknown).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_day_of_which_there_is_no_bill_keeps_no_other_day_waiting() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let engine = shop.engine.clone();
        let no = shop.buy(activity.items[0].id, "ann").await;
        shop.bank.bills(vec![line(no, "T-unknown", 1, false)]);
        shop.clock.advance(DAY_MS);
        let today_ms = NOW_MS + DAY_MS;
        shop.bank.no_bill_before(today_ms - 2 * DAY_MS);
        for _ in 0..BILL_DAYS_MAX {
            engine.reconcile.run(true).await.unwrap();
        }
        let order = engine.shared.ledger.order(no).await.unwrap().unwrap();
        assert_eq!(order.status, OrderStatus::Paid, "yesterday was compared");
        let asked = shop.bank.bills_fetched();
        engine.reconcile.run(true).await.unwrap();
        assert_eq!(shop.bank.bills_fetched(), asked, "it is not asked again and again");
        shop.clock.advance(NOT_HAD_AGAIN_MS);
        engine.reconcile.run(true).await.unwrap();
        assert_eq!(shop.bank.bills_fetched(), asked + 1, "but later");
    }

    #[tokio::test]
    async fn a_bill_that_does_not_come_holds_up_no_run_for_long() {
        let (shop, _) = TestEngine::with_a_sale(|_| {}).await;
        shop.bank.bills(Vec::new());
        shop.bank.hang(true);
        for _ in 0..2 {
            let run = shop.engine.reconcile.run(true);
            let report = tokio::time::timeout(BILL_WAIT_MAX * 3, run).await.expect("it goes on");
            assert_eq!(report.unwrap().differences, 0);
        }
        assert_eq!(shop.bank.bills_fetched(), 1, "it is still on its way");
    }
}
