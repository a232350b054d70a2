//! The numbers of what is on sale, item by item, for `/metrics`.
//!
//! They are written by hand at each scrape and not kept by the recorder, because items come and go:
//! a recorder would show for ever what left the gate last year. Only items that are at the gate, or
//! whose activity is not over, are shown, and at most [`ITEMS_MAX`] of them, those at the gate first.
//! Everything is read from memory, so a scrape costs what is on sale and touches nobody. Labels are
//! numbers of items and activities; no buyer and no order is ever one.

use std::{collections::HashMap, fmt::Write};

use ledger::OutstandingClaims;
use sale::{Activity, ActivityState, Item, ItemId};

use super::catalogue::SaleState;
use engine::Engine;

/// Items shown; a shop with more on sale at once is told how many are left out.
const ITEMS_MAX: usize = 1_000;

/// A name, what it says, and how it is read. `None` is not shown.
type Metric = (&'static str, &'static str, fn(&Shown<'_>) -> Option<i64>);

const METRICS: &[Metric] = &[
    ("seckill_item_units", "Units there are in all.", |item| Some(item.item.total)),
    (
        "seckill_item_units_left",
        "Units at the gate that nobody has claimed; absent if the item is not there.",
        |item| item.left,
    ),
    ("seckill_item_units_sold", "Units of live orders, paid or not, in the ledger.", |item| {
        Some(item.item.total - item.item.stock)
    }),
    (
        "seckill_item_units_in_flight",
        "Units between gate and ledger: claims on the log, and units on their way back.",
        |item| Some((item.item.stock - item.left? - item.failed?.units).max(0)),
    ),
    ("seckill_item_retrying_claims", "Claims that failed and are tried again.", |item| {
        Some(item.failed?.retrying as i64)
    }),
    ("seckill_item_dead_letters", "Claims that failed all their tries.", |item| {
        Some(item.failed?.dead as i64)
    }),
    (
        "seckill_item_live_orders",
        "Orders unpaid or paid, as of the last comparison of gate and ledger.",
        |item| item.live_orders,
    ),
    ("seckill_item_opens_timestamp_seconds", "When its sale opens.", |item| {
        Some(item.activity.opens_ms / 1_000)
    }),
    ("seckill_item_closes_timestamp_seconds", "When its sale closes.", |item| {
        Some(item.activity.closes_ms / 1_000)
    }),
];

struct Shown<'a> {
    activity: &'a Activity,
    item: &'a Item,
    left: Option<i64>,
    /// Known where what waits is counted: in processes with the role `jobs`.
    failed: Option<OutstandingClaims>,
    live_orders: Option<i64>,
}

impl Shown<'_> {
    fn labels(&self) -> String {
        format!("item=\"{}\",activity=\"{}\"", self.item.id, self.activity.id)
    }
}

pub(super) fn write(engine: &Engine, out: &mut String) {
    let now_ms = engine.now_ms();
    let snapshot = engine.catalogue().snapshot();
    let counted: Option<HashMap<ItemId, OutstandingClaims>> =
        engine.outstanding().map(|outstanding| {
            outstanding.claims.iter().map(|claims| (claims.item, *claims)).collect()
        });
    let live_orders = engine.reconcile().live_orders();
    let mut items: Vec<Shown<'_>> = Vec::new();
    for activity in &snapshot.activities {
        for item in &activity.items {
            let left = engine.records().left(item.id);
            if left.is_none() && activity.state == ActivityState::Ended {
                continue;
            }
            let none = OutstandingClaims { item: item.id, retrying: 0, dead: 0, units: 0 };
            let of_item = |counted: &HashMap<ItemId, OutstandingClaims>| {
                counted.get(&item.id).copied().unwrap_or(none)
            };
            let failed = counted.as_ref().map(of_item);
            let live_orders = live_orders.get(&item.id).map(|orders| *orders as i64);
            items.push(Shown { activity, item, left, failed, live_orders });
        }
    }
    items.sort_by_key(|shown| (shown.left.is_none(), shown.activity.opens_ms, shown.item.id));
    let left_out = items.len().saturating_sub(ITEMS_MAX);
    items.truncate(ITEMS_MAX);
    write_all(&items, now_ms, out);
    let name = "seckill_items_left_out";
    head(out, name, &format!("Items on sale beyond the {ITEMS_MAX} that are shown."));
    let _ = writeln!(out, "{name} {left_out}");
}

fn write_all(items: &[Shown<'_>], now_ms: sale::Millis, out: &mut String) {
    for (name, help, read) in METRICS {
        head(out, name, help);
        for shown in items {
            if let Some(value) = read(shown) {
                let _ = writeln!(out, "{name}{{{}}} {value}", shown.labels());
            }
        }
    }
    let name = "seckill_item_state";
    head(out, name, "1 for the state the item is in: waiting, open, sold_out, paused or ended.");
    for shown in items {
        let state = SaleState::of(shown.activity, shown.left, now_ms).as_str();
        let _ = writeln!(out, "{name}{{{},state=\"{state}\"}} 1", shown.labels());
    }
}

fn head(out: &mut String, name: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
}
