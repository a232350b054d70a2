//! What is rehearsed: how many buyers come when, and what they are like.
//!
//! A plan and its seed say everything about a crowd, so that a rehearsal can be repeated.

use std::time::Duration;

use serde::Serialize;

use crate::Curve;

pub(crate) const BUYERS_MAX: usize = 1_000_000;
pub(crate) const CONNECTIONS_MAX: usize = 20_000;
pub(crate) const ITEMS_MAX: usize = 100;
pub(crate) const SHARDS_MAX: u32 = 64;
/// Sale tokens live for ten minutes, and are fetched before the opening.
pub(crate) const OVER_MS_MAX: u64 = 300_000;
pub(crate) const PAY_WITHIN_MS_MIN: u64 = 1_000;
pub(crate) const PAY_WITHIN_MS_MAX: u64 = 600_000;

/// Of the buyers who find it sold out, this share comes back when unpaid orders have timed out.
const COME_BACK_SHARE: f64 = 0.2;

/// Times are in milliseconds, as everywhere in reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub buyers: usize,
    pub items: usize,
    /// Units of each item.
    pub stock: i64,
    /// Over how many partitions of the gate each item is spread.
    pub shards: u32,
    pub connections: usize,
    #[serde(rename = "arrive", serialize_with = "as_word")]
    pub curve: Curve,
    pub over_ms: u64,
    /// Between seeing the order and paying or cancelling it.
    pub think_ms: u64,
    pub pay_within_ms: u64,
    /// Of all buyers: those who send their claim again after it was answered.
    pub repeat_share: f64,
    /// Of all buyers: those who claim from before the opening, many times at once, without a pause.
    pub bot_share: f64,
    /// Of those who get a unit: those who pay.
    pub pay_share: f64,
    /// Of those who get a unit: those who leave it unpaid. All others cancel.
    pub abandon_share: f64,
    pub seed: u64,
}

fn as_word<S: serde::Serializer>(curve: &Curve, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(curve.as_str())
}

impl Plan {
    /// Everything that makes the plan impossible, one sentence each.
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut within = |name: &str, value: u64, min: u64, max: u64| {
            if !(min..=max).contains(&value) {
                found.push(format!("{name} must be from {min} to {max}, not {value}"));
            }
        };
        within("buyers", self.buyers as u64, 1, BUYERS_MAX as u64);
        within("items", self.items as u64, 1, ITEMS_MAX as u64);
        let stock = u64::try_from(self.stock).unwrap_or(0);
        within("stock", stock, 1, sale::STOCK_MAX.unsigned_abs());
        within("shards", self.shards.into(), 1, SHARDS_MAX.into());
        within("connections", self.connections as u64, 1, CONNECTIONS_MAX as u64);
        within("over (in ms)", self.over_ms, 0, OVER_MS_MAX);
        let (least, most) = (PAY_WITHIN_MS_MIN, PAY_WITHIN_MS_MAX);
        within("pay-within (in ms)", self.pay_within_ms, least, most);
        if self.think_ms >= self.pay_within_ms {
            found.push("buyers who think for longer than pay-within could never pay".into());
        }
        self.check_shares(&mut found);
        found
    }

    fn check_shares(&self, found: &mut Vec<String>) {
        let pairs = [
            [("repeat-share", self.repeat_share), ("bot-share", self.bot_share)],
            [("pay-share", self.pay_share), ("abandon-share", self.abandon_share)],
        ];
        for pair in pairs {
            let mut good = true;
            for (name, share) in pair {
                // Also false for what is not a number.
                if !(0.0..=1.0).contains(&share) {
                    good = false;
                    found.push(format!("{name} must be from 0 to 1, not {share}"));
                }
            }
            let [(one, a), (other, b)] = pair;
            if good && a + b > 1.0 + 1e-9 {
                found.push(format!("{one} and {other} together must not be above 1"));
            }
        }
    }

    /// The command that rehearses the same again, on a server of its own.
    pub fn command(&self) -> String {
        format!(
            "seckill rehearse --buyers {} --items {} --stock {} --shards {} --connections {} --arrive {} \
             --over {}ms --think {}ms --pay-within {}ms --repeat-share {} --bot-share {} --pay-share {} \
             --abandon-share {} --seed {}",
            self.buyers,
            self.items,
            self.stock,
            self.shards,
            self.connections,
            self.curve.as_str(),
            self.over_ms,
            self.think_ms,
            self.pay_within_ms,
            self.repeat_share,
            self.bot_share,
            self.pay_share,
            self.abandon_share,
            self.seed
        )
    }

    /// Who comes: every buyer's habits and the instant it comes, in the order of coming.
    pub(crate) fn crowd(&self) -> Vec<Character> {
        let mut dice = fastrand::Rng::with_seed(self.seed);
        let over = Duration::from_millis(self.over_ms);
        let instants = self.curve.instants(self.buyers, over, || dice.f64());
        let units_come_back = self.abandon_share > 0.0;
        let one = |(n, at)| Character {
            at,
            item: n % self.items,
            manner: self.manner(dice.f64()),
            ending: self.ending(dice.f64()),
            comes_back: units_come_back && dice.f64() < COME_BACK_SHARE,
        };
        instants.into_iter().enumerate().map(one).collect()
    }

    fn manner(&self, drawn: f64) -> Manner {
        if drawn < self.bot_share {
            Manner::Bot
        } else if drawn < self.bot_share + self.repeat_share {
            Manner::Repeats
        } else {
            Manner::Plain
        }
    }

    fn ending(&self, drawn: f64) -> Ending {
        if drawn < self.pay_share {
            Ending::Pays
        } else if drawn < self.pay_share + self.abandon_share {
            Ending::Abandons
        } else {
            Ending::Cancels
        }
    }
}

/// One buyer, before it has a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Character {
    /// After the opening. A bot does not wait for it.
    pub(crate) at: Duration,
    /// Which of the items it wants.
    pub(crate) item: usize,
    pub(crate) manner: Manner,
    pub(crate) ending: Ending,
    /// Tries once more, later, if it was sold out.
    pub(crate) comes_back: bool,
}

/// How a buyer claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Plain,
    /// Sends the same claim again, with the same key.
    Repeats,
    Bot,
}

/// What a buyer does with its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Pays,
    Abandons,
    Cancels,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn plan() -> Plan {
        Plan {
            buyers: 10_000,
            items: 2,
            stock: 100,
            shards: 1,
            connections: 64,
            curve: Curve::Steady,
            over_ms: 2_000,
            think_ms: 100,
            pay_within_ms: 3_000,
            repeat_share: 0.1,
            bot_share: 0.05,
            pay_share: 0.7,
            abandon_share: 0.2,
            seed: 11,
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        assert_eq!(plan().mistakes(), Vec::<String>::new());
        let check = |change: fn(&mut Plan), word: &str| {
            let mut plan = plan();
            change(&mut plan);
            let mistakes = plan.mistakes();
            assert!(mistakes.len() == 1 && mistakes[0].contains(word), "{word}: {mistakes:?}");
        };
        check(|plan| plan.buyers = 0, "buyers must be from 1 to 1000000, not 0");
        check(|plan| plan.buyers = BUYERS_MAX + 1, "buyers");
        check(|plan| plan.stock = -1, "stock");
        check(|plan| plan.items = 0, "items");
        check(|plan| plan.connections = 0, "connections");
        check(|plan| plan.over_ms = OVER_MS_MAX + 1, "over");
        check(|plan| plan.think_ms = 3_000, "think");
        check(|plan| plan.repeat_share = 1.1, "repeat-share");
        check(|plan| plan.pay_share = -0.1, "pay-share");
        check(|plan| plan.bot_share = f64::NAN, "bot-share");
        check(|plan| plan.pay_share = 0.9, "pay-share and abandon-share together");
    }

    #[test]
    fn shares_become_people() {
        let crowd = plan().crowd();
        let share = |wanted: fn(&Character) -> bool| {
            crowd.iter().filter(|one| wanted(one)).count() as f64 / crowd.len() as f64
        };
        let near = |share: f64, wanted: f64| assert!((share - wanted).abs() < 0.02, "{share}");
        near(share(|one| one.manner == Manner::Bot), 0.05);
        near(share(|one| one.manner == Manner::Repeats), 0.1);
        near(share(|one| one.ending == Ending::Pays), 0.7);
        near(share(|one| one.ending == Ending::Abandons), 0.2);
        near(share(|one| one.ending == Ending::Cancels), 0.1);
        near(share(|one| one.item == 1), 0.5);
        near(share(|one| one.comes_back), COME_BACK_SHARE);
    }

    #[test]
    fn the_same_seed_brings_the_same_crowd() {
        assert_eq!(plan().crowd(), plan().crowd());
        assert_ne!(plan().crowd(), Plan { seed: 12, ..plan() }.crowd());
        let all = Plan { pay_share: 1.0, abandon_share: 0.0, ..plan() }.crowd();
        assert!(all.iter().all(|one| one.ending == Ending::Pays && !one.comes_back));
    }
}
