//! A company's accounts: what the shop asked it to collect, what buyers paid, what went back, and the bill.
//!
//! Nothing here knows a protocol. Money is an integer of the smallest unit. What happens later than now (a
//! payment that lands late, a refund that takes its time) is written down at once with its instant, and is
//! simply not seen before.

use std::collections::HashMap;

/// Orders of one stand-in; a story has some thousands.
pub(super) const TRADES_MAX: usize = 100_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Trade {
    pub(super) order_no: String,
    pub(super) amount: i64,
    pub(super) subject: String,
    /// In the company's words, e.g. `NATIVE`.
    pub(super) method: String,
    pub(super) notify_url: String,
    pub(super) expires_ms: Option<i64>,
    pub(super) made_ms: i64,
    /// What a code says or where a page is, so that asking again gets the same.
    pub(super) code: String,
    /// Has a buyer looked at it? Alipay knows no trade before.
    pub(super) visited: bool,
    pub(super) closed_ms: Option<i64>,
    pub(super) waiting: Option<Paying>,
}

/// One charge: money that was taken from a buyer.
#[derive(Clone, Debug)]
pub struct Charge {
    /// The company's own number of it.
    pub txn: String,
    pub order_no: String,
    pub amount: i64,
    pub at_ms: i64,
    pub(super) refunds: Vec<Refund>,
}

#[derive(Clone, Debug)]
pub(super) struct Refund {
    /// The shop's number of it, by which it is asked for once.
    pub(super) number: String,
    pub(super) id: String,
    pub(super) amount: i64,
    pub(super) asked_ms: i64,
    /// Never, while it is stuck.
    pub(super) done_ms: i64,
    pub(super) stuck: Option<Stuck>,
}

/// Why money that was to go back does not arrive by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// The buyer's card or account takes no money: the shop has to see to it at the company.
    Abnormal,
    /// The company gave it up.
    Closed,
}

/// How a buyer pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paying {
    Now,
    /// Two charges for one order: the company errs.
    Twice,
    /// In the very instant of the next close, just before it.
    AtClose,
    /// The money is under way when the shop closes, and lands so many milliseconds after.
    Late(i64),
}

/// How the trade stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Open,
    Closed,
    /// By the first charge, this one.
    Paid(usize),
    /// All that was charged first went back.
    Refunded(usize),
}

/// A line of the bill as the shop's books should have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub txn: String,
    pub order_no: String,
    pub amount: i64,
    pub refunded: i64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RefundRefusal {
    NoSuchCharge,
    /// The same number was used for another sum or another charge.
    OtherUnderThisNumber,
    MoreThanWasPaid,
}

#[derive(Default)]
pub(super) struct Accounts {
    trades: HashMap<String, Trade>,
    charges: Vec<Charge>,
    /// Charges of an order, in the order in which they were written down.
    of_order: HashMap<String, Vec<usize>>,
    by_refund: HashMap<String, usize>,
    numbers: u64,
    /// Refunds that are asked for from now on get stuck like this.
    refunds_stick: Option<Stuck>,
}

impl Accounts {
    /// Numbers of the company's own: like the real ones they begin with what kind they are and the day.
    fn number(&mut self, prefix: &str, now_ms: i64) -> String {
        self.numbers += 1;
        let day = super::calendar::date(now_ms).replace('-', "");
        format!("{prefix}{day}{:010}", self.numbers)
    }

    pub(super) fn trade(&self, order_no: &str) -> Option<&Trade> {
        self.trades.get(order_no)
    }

    pub(super) fn trade_mut(&mut self, order_no: &str) -> Option<&mut Trade> {
        self.trades.get_mut(order_no)
    }

    /// What was agreed first stays; the answer is what is there now.
    pub(super) fn open(&mut self, trade: Trade) -> &Trade {
        assert!(self.trades.len() < TRADES_MAX, "more orders than a story has");
        let order_no = trade.order_no.clone();
        self.trades.entry(order_no).or_insert(trade)
    }

    pub(super) fn standing(&self, trade: &Trade, now_ms: i64) -> Standing {
        let charges = self.of_order.get(&trade.order_no).into_iter().flatten().copied();
        let first = charges.into_iter().find(|&at| self.charges[at].at_ms <= now_ms);
        match first {
            Some(at) if self.refunded(at, now_ms) == self.charges[at].amount => {
                Standing::Refunded(at)
            }
            Some(at) => Standing::Paid(at),
            None if trade.closed_ms.is_some() => Standing::Closed,
            None if trade.expires_ms.is_some_and(|end_ms| end_ms <= now_ms) => Standing::Closed,
            None => Standing::Open,
        }
    }

    pub(super) fn charge(&self, at: usize) -> &Charge {
        &self.charges[at]
    }

    pub(super) fn charge_by_txn(&self, txn: &str) -> Option<usize> {
        self.charges.iter().position(|charge| charge.txn == txn)
    }

    /// The first charge of an order that can be seen.
    pub(super) fn charge_of(&self, order_no: &str, now_ms: i64) -> Option<usize> {
        let charges = self.of_order.get(order_no)?;
        charges.iter().copied().find(|&at| self.charges[at].at_ms <= now_ms)
    }

    fn refunded(&self, at: usize, now_ms: i64) -> i64 {
        let done = self.charges[at].refunds.iter().filter(|refund| refund.done_ms <= now_ms);
        done.map(|refund| refund.amount).sum()
    }

    fn add_charge(&mut self, prefix: &str, order_no: &str, at_ms: i64) -> usize {
        let amount = self.trades[order_no].amount;
        let txn = self.number(prefix, at_ms);
        let charge = Charge { txn, order_no: order_no.into(), amount, at_ms, refunds: Vec::new() };
        self.charges.push(charge);
        let at = self.charges.len() - 1;
        self.of_order.entry(order_no.into()).or_default().push(at);
        at
    }

    /// A buyer pays. Answers the charges that were made now, of which the shop is to be told.
    pub(super) fn pay(
        &mut self,
        prefix: &str,
        order_no: &str,
        paying: Paying,
        now_ms: i64,
    ) -> Result<Vec<usize>, &'static str> {
        let trade = self.trades.get(order_no).ok_or("there is no such payment")?;
        match self.standing(trade, now_ms) {
            Standing::Open if trade.waiting.is_none() => {}
            Standing::Open => return Err("the buyer is paying already"),
            Standing::Closed => return Err("the payment is closed"),
            Standing::Paid(_) | Standing::Refunded(_) => return Err("it is paid already"),
        }
        let trade = self.trades.get_mut(order_no).ok_or("there is no such payment")?;
        trade.visited = true;
        let times = match paying {
            Paying::Now => 1,
            Paying::Twice => 2,
            Paying::AtClose | Paying::Late(_) => {
                trade.waiting = Some(paying);
                0
            }
        };
        Ok((0..times).map(|_| self.add_charge(prefix, order_no, now_ms)).collect())
    }

    /// The shop closes. Answers how it stands after that, and a charge that was made in this instant or
    /// will land later.
    pub(super) fn close(
        &mut self,
        prefix: &str,
        order_no: &str,
        now_ms: i64,
    ) -> Option<(Standing, Option<usize>)> {
        let waiting = self.trades.get_mut(order_no)?.waiting.take();
        let before = self.standing(&self.trades[order_no], now_ms);
        let charge = match waiting.filter(|_| before == Standing::Open) {
            Some(Paying::AtClose) => Some(self.add_charge(prefix, order_no, now_ms)),
            Some(Paying::Late(after_ms)) => {
                Some(self.add_charge(prefix, order_no, now_ms + after_ms))
            }
            _ => None,
        };
        let trade = self.trades.get_mut(order_no)?;
        // Whoever closes what is closed or paid changes nothing.
        let paid_now = matches!(waiting, Some(Paying::AtClose)) && charge.is_some();
        if before == Standing::Open && !paid_now {
            trade.closed_ms = Some(now_ms);
        }
        let trade = &self.trades[order_no];
        Some((self.standing(trade, now_ms), charge))
    }

    /// Money goes back, once for each number. Answers the refund, and whether it was asked for just now.
    pub(super) fn refund(
        &mut self,
        prefix: &str,
        charge: Option<usize>,
        (number, amount): (&str, i64),
        (now_ms, done_ms): (i64, i64),
    ) -> Result<(Refund, bool), RefundRefusal> {
        let at = charge.ok_or(RefundRefusal::NoSuchCharge)?;
        if let Some(&of) = self.by_refund.get(number) {
            let known = self.charges[of].refunds.iter().find(|refund| refund.number == number);
            return match known {
                Some(refund) if of == at && refund.amount == amount => Ok((refund.clone(), false)),
                _ => Err(RefundRefusal::OtherUnderThisNumber),
            };
        }
        let promised: i64 = self.charges[at].refunds.iter().map(|refund| refund.amount).sum();
        if amount <= 0 || promised + amount > self.charges[at].amount {
            return Err(RefundRefusal::MoreThanWasPaid);
        }
        let id = self.number(prefix, now_ms);
        let stuck = self.refunds_stick;
        let done_ms = if stuck.is_some() { i64::MAX } else { done_ms };
        let refund = Refund { number: number.into(), id, amount, asked_ms: now_ms, done_ms, stuck };
        self.charges[at].refunds.push(refund.clone());
        self.by_refund.insert(number.into(), at);
        Ok((refund, true))
    }

    pub(super) fn refunds_stick(&mut self, stuck: Option<Stuck>) {
        self.refunds_stick = stuck;
    }

    /// What was stuck of an order goes on now. Answers the numbers of these refunds.
    pub(super) fn unstick(&mut self, order_no: &str, now_ms: i64) -> Vec<String> {
        let charges = self.charges.iter_mut().filter(|charge| charge.order_no == order_no);
        let refunds = charges.flat_map(|charge| &mut charge.refunds);
        let stuck = refunds.filter(|refund| refund.stuck.is_some());
        let goes_on = stuck.map(|refund| {
            (refund.stuck, refund.done_ms) = (None, now_ms);
            refund.number.clone()
        });
        goes_on.collect()
    }

    /// The number of the first refund of an order.
    pub(super) fn refund_of(&self, order_no: &str) -> Option<&str> {
        let mut charges = self.charges.iter().filter(|charge| charge.order_no == order_no);
        charges.find_map(|charge| Some(charge.refunds.first()?.number.as_str()))
    }

    /// A refund by the shop's number, and its charge.
    pub(super) fn refund_by_number(&self, number: &str) -> Option<(&Charge, &Refund)> {
        let charge = &self.charges[*self.by_refund.get(number)?];
        let refund = charge.refunds.iter().find(|refund| refund.number == number)?;
        Some((charge, refund))
    }

    /// All that moved up to now, oldest first.
    pub(super) fn bill(&self, now_ms: i64) -> Vec<Settled> {
        let seen = self.charges.iter().enumerate().filter(|(_, charge)| charge.at_ms <= now_ms);
        seen.map(|(at, charge)| Settled {
            txn: charge.txn.clone(),
            order_no: charge.order_no.clone(),
            amount: charge.amount,
            refunded: self.refunded(at, now_ms),
        })
        .collect()
    }

    /// Charges with an instant in the future: money under way.
    pub(super) fn under_way(&self, now_ms: i64) -> usize {
        self.charges.iter().filter(|charge| charge.at_ms > now_ms).count()
    }

    pub(super) fn charges(&self) -> &[Charge] {
        &self.charges
    }

    /// A charge as if it had been made then, for bills of days that are over.
    pub(super) fn backdate(&mut self, txn: &str, at_ms: i64) {
        for charge in self.charges.iter_mut().filter(|charge| charge.txn == txn) {
            charge.at_ms = at_ms;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_a_trade() -> Accounts {
        let mut accounts = Accounts::default();
        accounts.open(Trade { order_no: "SK1".into(), amount: 500, ..Trade::default() });
        accounts
    }

    fn standing(accounts: &Accounts, now_ms: i64) -> Standing {
        accounts.standing(accounts.trade("SK1").unwrap(), now_ms)
    }

    #[test]
    fn who_comes_first_of_payment_and_close_wins() {
        let mut paid = with_a_trade();
        assert_eq!(paid.pay("42", "SK1", Paying::Now, 10).unwrap(), [0]);
        assert_eq!(paid.close("42", "SK1", 11), Some((Standing::Paid(0), None)));
        assert!(paid.pay("42", "SK1", Paying::Now, 12).is_err());
        let mut closed = with_a_trade();
        assert_eq!(closed.close("42", "SK1", 10), Some((Standing::Closed, None)));
        assert_eq!(closed.close("42", "SK1", 11), Some((Standing::Closed, None)));
        assert!(closed.pay("42", "SK1", Paying::Now, 12).is_err());
        assert_eq!(closed.close("42", "SK2", 11), None);
        assert!(closed.bill(i64::MAX).is_empty());
    }

    #[test]
    fn a_buyer_may_pay_in_the_instant_of_the_close_or_after_it() {
        let mut at_close = with_a_trade();
        assert!(at_close.pay("42", "SK1", Paying::AtClose, 5).unwrap().is_empty());
        assert_eq!(standing(&at_close, 9), Standing::Open);
        assert_eq!(at_close.close("42", "SK1", 10), Some((Standing::Paid(0), Some(0))));
        let mut late = with_a_trade();
        late.pay("42", "SK1", Paying::Late(100), 5).unwrap();
        assert_eq!(late.close("42", "SK1", 10), Some((Standing::Closed, Some(0))));
        assert_eq!((standing(&late, 109), late.under_way(109)), (Standing::Closed, 1));
        assert_eq!(standing(&late, 110), Standing::Paid(0));
    }

    #[test]
    fn money_goes_back_once_for_each_number_and_never_more_than_came() {
        let mut accounts = with_a_trade();
        accounts.pay("42", "SK1", Paying::Twice, 10).unwrap();
        let (first, is_new) = accounts.refund("50", Some(0), ("R1", 500), (20, 30)).unwrap();
        assert!(is_new);
        let (again, is_new) = accounts.refund("50", Some(0), ("R1", 500), (25, 90)).unwrap();
        assert!(!is_new && again.id == first.id);
        let refused = |accounts: &mut Accounts, charge, number, amount| {
            accounts.refund("50", charge, (number, amount), (40, 40)).unwrap_err()
        };
        let other = RefundRefusal::OtherUnderThisNumber;
        assert_eq!(refused(&mut accounts, Some(0), "R1", 499), other);
        assert_eq!(refused(&mut accounts, Some(1), "R1", 500), other);
        let more = RefundRefusal::MoreThanWasPaid;
        assert_eq!(refused(&mut accounts, Some(0), "R2", 1), more);
        assert_eq!(refused(&mut accounts, None, "R3", 1), RefundRefusal::NoSuchCharge);
        assert_eq!(standing(&accounts, 29), Standing::Paid(0));
        assert_eq!(standing(&accounts, 30), Standing::Refunded(0));
        let refunded: Vec<i64> = accounts.bill(30).iter().map(|line| line.refunded).collect();
        assert_eq!(refunded, [500, 0], "the second charge is kept until it is asked for");
    }

    #[test]
    fn a_payment_is_over_at_its_instant() {
        let mut accounts = Accounts::default();
        let expires_ms = Some(100);
        accounts.open(Trade { order_no: "SK1".into(), amount: 1, expires_ms, ..Trade::default() });
        assert_eq!(standing(&accounts, 99), Standing::Open);
        assert_eq!(standing(&accounts, 100), Standing::Closed);
        assert!(accounts.pay("42", "SK1", Paying::Now, 100).is_err());
    }
}
