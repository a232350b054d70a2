//! The comparison itself, one function per group of invariants.

use std::collections::{HashMap, HashSet};

use sale::{OrderNo, OrderStatus};
use serde::Serialize;

use crate::{Answer, Bill, History, Observed, ObservedItem, ObservedOrder};

/// Something that must hold and does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The invariant, e.g. `I1 no oversell`.
    pub invariant: &'static str,
    pub detail: String,
}

/// Everything that does not hold of what must.
pub fn check(history: &History, observed: &Observed) -> Vec<Violation> {
    let mut found = Violations::default();
    let orders: HashMap<OrderNo, &ObservedOrder> =
        observed.orders.iter().map(|order| (order.order_no, order)).collect();
    if orders.len() != observed.orders.len() {
        found.add(ONE_ORDER, "an order number stands twice in the ledger".into());
    }
    for item in &observed.items {
        check_item(item, &observed.orders, &mut found);
    }
    check_buyers(observed, &mut found);
    check_promises(history, &orders, &observed.open_claims, &mut found);
    check_keys(history, &mut found);
    if let Some(bill) = &observed.bill {
        check_money(bill, &orders, &mut found);
    }
    found.0
}

const OVERSELL: &str = "I1 no oversell";
pub const CONSERVATION: &str = "I2 conservation";
const LIMIT: &str = "I3 limit per buyer";
const ONE_ORDER: &str = "I4 one claim, one order";
const SILENT_LOSS: &str = "I5 no silent loss";
pub const MONEY: &str = "I7 money once";
const RETURNED: &str = "I8 units returned once";
const SAME_KEY: &str = "I10 same key, same answer";
pub const STRANDED: &str = "L1 nothing stranded";
/// Not found by [`check`], which wants a deployment at rest, but by whoever waits for that.
pub const DRAINS: &str = "L2 the backlog drains";

/// Every invariant that this crate, or whoever waits for rest, can find broken.
pub const CHECKED: [&str; 10] = [
    OVERSELL,
    CONSERVATION,
    LIMIT,
    ONE_ORDER,
    SILENT_LOSS,
    MONEY,
    RETURNED,
    SAME_KEY,
    STRANDED,
    DRAINS,
];

#[derive(Default)]
struct Violations(Vec<Violation>);

impl Violations {
    fn add(&mut self, invariant: &'static str, detail: String) {
        self.0.push(Violation { invariant, detail });
    }
}

fn check_item(item: &ObservedItem, orders: &[ObservedOrder], found: &mut Violations) {
    let of_item = || orders.iter().filter(|order| order.item_id == item.id);
    let live: i64 = of_item().filter(|o| o.status.is_live()).map(|o| o.quantity).sum();
    if live > item.total || item.stock < 0 {
        found.add(OVERSELL, format!("item {}: {live} sold of {}", item.id, item.total));
    }
    if item.stock + live != item.total {
        let detail =
            format!("item {}: stock {} + sold {live} ≠ {}", item.id, item.stock, item.total);
        found.add(CONSERVATION, detail);
    }
    if let Some(left) = item.gate_left
        && left != item.stock - item.dead_units
    {
        let detail = format!(
            "item {}: the gate has {left} left, the ledger {} of which {} dead",
            item.id, item.stock, item.dead_units
        );
        found.add(CONSERVATION, detail);
    }
    if item.demand_exceeds_stock && item.stock - item.dead_units > 0 {
        found.add(STRANDED, format!("item {}: {} units could not be bought", item.id, item.stock));
    }
    check_stock_log(item, &of_item().collect::<Vec<_>>(), found);
}

fn check_stock_log(item: &ObservedItem, orders: &[&ObservedOrder], found: &mut Violations) {
    for pair in item.stock_log.windows(2) {
        if pair[0].after_stock != pair[1].before_stock {
            let detail = format!("item {}: stock log breaks after row {}", item.id, pair[0].id);
            found.add(CONSERVATION, detail);
        }
    }
    if let Some(last) = item.stock_log.last()
        && last.after_stock != item.stock
    {
        let detail = format!(
            "item {}: stock log ends at {}, stock is {}",
            item.id, last.after_stock, item.stock
        );
        found.add(CONSERVATION, detail);
    }
    let mut deducted: HashMap<OrderNo, u32> = HashMap::new();
    let mut returned: HashMap<OrderNo, u32> = HashMap::new();
    for row in &item.stock_log {
        let (by_order, sign) = match row.kind.as_str() {
            "deduct" => (&mut deducted, -1),
            "return" => (&mut returned, 1),
            _ => continue,
        };
        *by_order.entry(row.order_no).or_default() += 1;
        if row.after_stock - row.before_stock != sign * row.quantity {
            found.add(CONSERVATION, format!("stock log row {} does not add up", row.id));
        }
    }
    for order in orders {
        let times = |map: &HashMap<OrderNo, u32>| map.get(&order.order_no).copied().unwrap_or(0);
        let was_sold = u32::from(order.status != OrderStatus::Void);
        if times(&deducted) != was_sold {
            let detail = format!("{} was deducted {} times", order.order_no, times(&deducted));
            found.add(ONE_ORDER, detail);
        }
        let came_back = u32::from(was_sold == 1 && !order.status.is_live());
        if times(&returned) != came_back {
            let detail = format!(
                "{} is {} and was returned {} times",
                order.order_no,
                order.status,
                times(&returned)
            );
            found.add(RETURNED, detail);
        }
    }
}

fn check_buyers(observed: &Observed, found: &mut Violations) {
    let limits: HashMap<i64, i64> =
        observed.items.iter().map(|item| (item.id, item.limit_per_user)).collect();
    let mut held: HashMap<(&str, i64), (i64, u32)> = HashMap::new();
    for order in observed.orders.iter().filter(|order| order.status.is_live()) {
        let of_buyer = held.entry((&order.user_id, order.item_id)).or_default();
        of_buyer.0 += order.quantity;
        of_buyer.1 += 1;
    }
    for ((user, item), (units, orders)) in held {
        let limit = limits.get(&item).copied().unwrap_or(i64::MAX);
        if units > limit || orders > 1 {
            found.add(
                LIMIT,
                format!("{user} holds {units} units of item {item} in {orders} orders"),
            );
        }
    }
}

/// Every 202, and every "you already bought this", is an order, a void with a reason, or visibly
/// waiting for a person.
fn check_promises(
    history: &History,
    orders: &HashMap<OrderNo, &ObservedOrder>,
    open_claims: &HashSet<OrderNo>,
    found: &mut Violations,
) {
    for claim in &history.claims {
        let (Answer::Admitted { order_no } | Answer::AlreadyBought { order_no }) = &claim.answer
        else {
            continue;
        };
        match orders.get(order_no) {
            None if open_claims.contains(order_no) => {}
            None => found.add(SILENT_LOSS, format!("{order_no} of {} is nowhere", claim.user)),
            Some(order) if order.user_id != claim.user || order.item_id != claim.item => {
                found.add(SILENT_LOSS, format!("{order_no} of {} is somebody else's", claim.user));
            }
            Some(order) if order.status == OrderStatus::Void && order.reason.is_none() => {
                found.add(SILENT_LOSS, format!("{order_no} is void without a reason"));
            }
            Some(_) => {}
        }
    }
}

/// Once a key was told yes it is told the same yes for ever: also after the order is closed, and
/// however sold out the item is. (Before it, anything may have been said; and *busy* says nothing.)
fn check_keys(history: &History, found: &mut Violations) {
    let mut answers: HashMap<(&str, i64, &str), OrderNo> = HashMap::new();
    for claim in &history.claims {
        let Some(key) = &claim.key else { continue };
        let asked = (claim.user.as_str(), claim.item, key.as_str());
        let first = answers.get(&asked).copied();
        let second = match (&claim.answer, first) {
            (Answer::Admitted { order_no }, None) => {
                answers.insert(asked, *order_no);
                continue;
            }
            (Answer::Admitted { order_no }, Some(first)) if first != *order_no => {
                order_no.to_string()
            }
            (Answer::AlreadyBought { order_no }, Some(_)) => format!("already_bought {order_no}"),
            (Answer::SoldOut, Some(_)) => "sold_out".into(),
            _ => continue,
        };
        let first = first.map(|no| no.to_string()).unwrap_or_default();
        found.add(SAME_KEY, format!("{} got {first} and {second} for one key", claim.user));
    }
}

fn check_money(bill: &Bill, orders: &HashMap<OrderNo, &ObservedOrder>, found: &mut Violations) {
    let mut kept: HashMap<OrderNo, (u32, i64)> = HashMap::new();
    for charge in bill.charges.iter().filter(|charge| !charge.refunded) {
        let of_order = kept.entry(charge.order_no).or_default();
        of_order.0 += 1;
        of_order.1 += charge.amount;
    }
    for order in orders.values() {
        let (charges, amount) = kept.get(&order.order_no).copied().unwrap_or_default();
        let paid = order.status == OrderStatus::Paid;
        if paid && (charges, amount) != (1, order.amount) {
            let detail =
                format!("{} is paid and {amount} in {charges} charges were kept", order.order_no);
            found.add(MONEY, detail);
        }
        if !paid && charges > 0 {
            let detail = format!("{} is {} and its money was kept", order.order_no, order.status);
            found.add(MONEY, detail);
        }
    }
    for order_no in kept.keys().filter(|order_no| !orders.contains_key(order_no)) {
        found.add(MONEY, format!("money was kept for {order_no}, which is nowhere"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AnsweredClaim, Charge, StockLogRow};

    fn no(n: u64) -> OrderNo {
        OrderNo::from_u64(n).unwrap()
    }

    fn order(n: u64, user: &str, status: OrderStatus) -> ObservedOrder {
        let reason = (status == OrderStatus::Void).then(|| "stock_short".to_owned());
        ObservedOrder {
            order_no: no(n),
            user_id: user.into(),
            item_id: 1,
            quantity: 1,
            amount: 100,
            status,
            reason,
        }
    }

    fn row(id: i64, n: u64, before: i64, after: i64) -> StockLogRow {
        let kind = if after < before { "deduct" } else { "return" }.into();
        StockLogRow {
            id,
            order_no: no(n),
            quantity: 1,
            before_stock: before,
            after_stock: after,
            kind,
        }
    }

    fn answered(user: &str, answer: Answer) -> AnsweredClaim {
        AnsweredClaim { user: user.into(), item: 1, key: None, answer }
    }

    /// Three units: one paid, one closed and returned, one void.
    fn good() -> (History, Observed) {
        let history = History {
            claims: vec![
                answered("a", Answer::Admitted { order_no: no(1) }),
                answered("b", Answer::Admitted { order_no: no(2) }),
                answered("c", Answer::Admitted { order_no: no(3) }),
            ],
        };
        let observed = Observed {
            orders: vec![
                order(1, "a", OrderStatus::Paid),
                order(2, "b", OrderStatus::Closed),
                order(3, "c", OrderStatus::Void),
            ],
            items: vec![ObservedItem {
                id: 1,
                total: 3,
                stock: 2,
                limit_per_user: 1,
                gate_left: Some(2),
                dead_units: 0,
                stock_log: vec![row(1, 1, 3, 2), row(2, 2, 2, 1), row(3, 2, 1, 2)],
                demand_exceeds_stock: false,
            }],
            open_claims: HashSet::new(),
            bill: Some(Bill {
                charges: vec![Charge {
                    provider_txn: "t1".into(),
                    order_no: no(1),
                    amount: 100,
                    refunded: false,
                }],
            }),
        };
        (history, observed)
    }

    fn broken(change: impl FnOnce(&mut History, &mut Observed)) -> Vec<&'static str> {
        let (mut history, mut observed) = good();
        change(&mut history, &mut observed);
        check(&history, &observed).into_iter().map(|violation| violation.invariant).collect()
    }

    #[test]
    fn a_good_sale_has_no_violations() {
        assert_eq!(broken(|_, _| {}), Vec::<&str>::new());
    }

    #[test]
    fn each_broken_promise_is_named() {
        assert!(broken(|_, o| o.items[0].stock = 3).contains(&CONSERVATION));
        assert!(broken(|_, o| o.items[0].gate_left = Some(1)).contains(&CONSERVATION));
        assert!(broken(|_, o| o.items[0].total = 0).contains(&OVERSELL));
        assert!(broken(|_, o| o.orders[1] = order(2, "a", OrderStatus::Paid)).contains(&LIMIT));
        assert!(broken(|_, o| drop(o.orders.remove(2))).contains(&SILENT_LOSS));
        assert!(broken(|_, o| o.orders[2].reason = None).contains(&SILENT_LOSS));
        assert!(broken(|_, o| o.items[0].stock_log[1].before_stock = 9).contains(&CONSERVATION));
        assert!(broken(|_, o| drop(o.items[0].stock_log.pop())).contains(&RETURNED));
        assert!(broken(|_, o| o.items[0].demand_exceeds_stock = true).contains(&STRANDED));
        let twice = |_: &mut History, o: &mut Observed| {
            let bill = o.bill.as_mut().unwrap();
            bill.charges.push(Charge { provider_txn: "t2".into(), ..bill.charges[0].clone() });
        };
        assert!(broken(twice).contains(&MONEY));
        let kept = |_: &mut History, o: &mut Observed| {
            o.bill.as_mut().unwrap().charges[0].order_no = no(2);
        };
        assert!(broken(kept).contains(&MONEY));
        let two_answers = |h: &mut History, o: &mut Observed| {
            o.orders.push(order(4, "a", OrderStatus::Void));
            for n in [1, 4] {
                h.claims.push(answered("a", Answer::Admitted { order_no: no(n) }));
                let last = h.claims.len() - 1;
                h.claims[last].key = Some("k".into());
            }
        };
        assert_eq!(broken(two_answers), [SAME_KEY]);
    }

    #[test]
    fn a_key_that_was_told_yes_is_never_told_no() {
        let heard = |answers: &[Answer]| {
            broken(|history, _| {
                let keyed = |answer: &Answer| AnsweredClaim {
                    key: Some("k".into()),
                    ..answered("a", answer.clone())
                };
                history.claims.extend(answers.iter().map(keyed));
            })
        };
        let yes = Answer::Admitted { order_no: no(1) };
        let bought = Answer::AlreadyBought { order_no: no(1) };
        let nothing = Vec::<&str>::new();
        assert_eq!(heard(&[yes.clone(), bought.clone()]), [SAME_KEY]);
        assert_eq!(heard(&[yes.clone(), Answer::SoldOut, bought.clone()]), [SAME_KEY; 2]);
        // What was said before the yes is another story, and so is what says nothing.
        assert_eq!(heard(&[Answer::SoldOut, bought, yes.clone(), yes.clone()]), nothing);
        let busy = Answer::Refused("busy".into());
        assert_eq!(heard(&[yes.clone(), busy, Answer::Unknown, yes]), nothing);
    }

    #[test]
    fn a_dead_letter_is_visible_not_lost() {
        let dead = broken(|_, o| {
            o.orders.remove(2);
            o.open_claims.insert(no(3));
            o.items[0].dead_units = 1;
            o.items[0].gate_left = Some(1);
        });
        assert_eq!(dead, Vec::<&str>::new());
    }
}
