//! What a rehearsal found, as data and as a table for the terminal.
//!
//! Accepted, persisted and rejected are three figures, never one: a server that refuses quickly is
//! not a server that sells quickly.

use std::{collections::BTreeMap, fmt::Write};

use checker::{CHECKED, Violation};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{BotDrill, LAG_P99_US_MAX, Language, Latencies, Note, Plan, Rate, Sample};

/// The shares of answers whose latency is reported; the last is the slowest answer of all.
const QUANTILES: [f64; 11] = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 1.0];
/// Violations in the table; all of them are in the data.
const SHOWN_MAX: usize = 20;

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Nothing was violated.
    pub ok: bool,
    pub violations: Vec<Violation>,
    /// All that must hold, and whether it was seen to.
    pub checks: Vec<Check>,
    /// What the reader should know before believing the figures.
    pub notes: Vec<Note>,
    pub plan: Plan,
    /// The command that plays the same crowd again.
    pub repeat_with: String,
    pub target: Target,
    pub generator: Generator,
    /// Unix milliseconds.
    pub opened_at: i64,
    pub funnel: Funnel,
    pub rates: Rates,
    /// Claims refused, by their codes; a claim may be refused several times.
    pub refusals: BTreeMap<String, u64>,
    pub latency: Timings,
    pub reconcile: Reconciled,
    pub timeline: Vec<Sample>,
    /// What bots win with each defence, where that was drilled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bots: Option<BotDrill>,
}

/// Something that must hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    pub invariant: &'static str,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Held,
    Violated,
    /// It could not be compared; a note or a violation says why.
    NotChecked,
}

impl Check {
    /// `checked` says of an invariant whether it could be compared at all.
    pub(crate) fn all(violations: &[Violation], checked: impl Fn(&str) -> bool) -> Vec<Check> {
        let violated = |invariant| violations.iter().any(|found| found.invariant == invariant);
        let outcome = |invariant| match () {
            () if violated(invariant) => Outcome::Violated,
            () if checked(invariant) => Outcome::Held,
            () => Outcome::NotChecked,
        };
        CHECKED.map(|invariant| Check { invariant, outcome: outcome(invariant) }).to_vec()
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Target {
    pub addresses: Vec<String>,
    /// Started for this rehearsal.
    pub own: bool,
    pub version: String,
    pub profile: String,
    pub activity: i64,
}

/// Who made the load, and how well.
#[derive(Clone, Debug, Serialize)]
pub struct Generator {
    pub version: &'static str,
    pub cores: usize,
    pub os: &'static str,
    pub arch: &'static str,
    /// Debug builds of the generator and of a server it started measure little.
    pub optimised: bool,
    pub lag_p99_us: u64,
    /// The figures are the server's, not the generator's.
    pub kept_up: bool,
    /// Requests of buyers that found no connection free.
    pub kept_waiting: u64,
}

impl Generator {
    pub(crate) fn of(buyers: &Latencies) -> Generator {
        Generator {
            version: env!("CARGO_PKG_VERSION"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            optimised: !cfg!(debug_assertions),
            lag_p99_us: buyers.lag.value_at_quantile(0.99),
            kept_up: buyers.generator_kept_up(),
            kept_waiting: buyers.kept_waiting,
        }
    }

    /// What these figures mean for those of the server.
    pub(crate) fn notes(&self, requests: u64) -> Vec<Note> {
        let mut notes = Vec::new();
        if !self.kept_up {
            let (late, fair) = (self.lag_p99_us as f64 / 1_000.0, LAG_P99_US_MAX / 1_000);
            notes.push(Note::new(
                format!(
                    "the generator was the limit: one of a hundred requests left {late:.1} ms late (at most \
                     {fair} ms is fair); use a machine of its own, or a gentler curve"
                ),
                format!(
                    "瓶颈在发压端：每一百个请求中有一个晚发了 {late:.1} 毫秒（不应超过 {fair} 毫秒）；\
                     请换用单独的机器，或让买家来得平缓一些"
                ),
            ));
        }
        if self.kept_waiting * 10 > requests {
            let share = self.kept_waiting as f64 * 100.0 / requests.max(1) as f64;
            notes.push(Note::new(
                format!(
                    "{share:.0} % of the requests found no connection free and waited, which is part of \
                     their latency: the server is saturated, or --connections is too small"
                ),
                format!(
                    "{share:.0}% 的请求没有空闲连接可用而等待，已计入延迟：服务端已饱和，或 --connections 太小"
                ),
            ));
        }
        if !self.optimised {
            notes.push(Note::new(
                "this is a debug build: rates and latencies say little",
                "这是调试版本，速率与延迟没有参考价值",
            ));
        }
        notes
    }
}

/// Buyers, from the crowd to the money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Funnel {
    pub buyers: u64,
    pub admitted: u64,
    /// Saw their order in the ledger.
    pub ordered: u64,
    pub paid: u64,
    pub cancelled: u64,
    /// Left their order unpaid.
    pub abandoned: u64,
    /// AskFor to pay or cancel, and the deadline came first.
    pub missed: u64,
    pub void: u64,
    pub sold_out: u64,
    /// Refused for good, or until their patience ended.
    pub sent_away: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Buyers, as planned.
    pub arrived: Rate,
    /// Claims that got a unit.
    pub accepted: Rate,
    /// Of these, in the ledger.
    pub persisted: Rate,
    /// Claims that were refused.
    pub rejected: Rate,
}

impl Rates {
    pub(crate) fn of(samples: &[Sample]) -> Rates {
        Rates {
            arrived: Rate::of(samples, |sample| Some(sample.arrived)),
            accepted: Rate::of(samples, |sample| Some(sample.admitted)),
            persisted: Rate::of(samples, |sample| sample.persisted),
            rejected: Rate::of(samples, |sample| Some(sample.refused)),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Timings {
    /// A claim of a buyer who is no bot, from its planned instant to the answer.
    pub claims: Percentiles,
    /// The same from sending to the answer, as a closed loop would count.
    pub service: Percentiles,
    /// How late claims left although a connection was free.
    pub lag: Percentiles,
    pub bots: Percentiles,
    /// From a buyer's instant to its final answer, over all tries.
    pub decided: Percentiles,
    /// From the admission to the order seen in the ledger; buyers ask every quarter of a second.
    pub ordered: Percentiles,
    /// From pressing *pay* to the order seen as paid.
    pub paid: Percentiles,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub count: u64,
    pub mean_us: f64,
    pub p50_us: u64,
    pub p90_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
    /// Share of the answers, and the microseconds within which they came.
    pub points: Vec<(f64, u64)>,
}

impl Percentiles {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Percentiles {
        if histogram.is_empty() {
            return Percentiles::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile);
        Percentiles {
            count: histogram.len(),
            mean_us: histogram.mean(),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max(),
            points: QUANTILES.iter().map(|quantile| (*quantile, at(*quantile))).collect(),
        }
    }
}

/// Differences that the deployment's own comparison counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reconciled {
    pub differences_before: u64,
    pub differences_after: u64,
}

impl Report {
    /// For the terminal.
    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_table(&mut out);
        out
    }

    /// What was rehearsed on, and with whom.
    pub(crate) fn headline(&self, language: Language) -> [String; 2] {
        let Plan { buyers, items, stock, connections, curve, over_ms, seed, .. } = &self.plan;
        let Target { addresses, own, version, profile, .. } = &self.target;
        let whose = if *own { "its own" } else { "the" };
        let at = addresses.join(", ");
        let (curve, over_s, cores) =
            (curve.as_str(), *over_ms as f64 / 1_000.0, self.generator.cores);
        if language == Language::Chinese {
            let whose = if *own { "专为演练启动的" } else { "" };
            let Generator { version: generator, os, arch, .. } = &self.generator;
            return [
                format!("演练对象：{whose} {profile} 部署 {version}，地址 {at}"),
                format!(
                    "{buyers} 名买家在 {over_s} 秒内到来（{}），{items} 个商品各 {stock} 件，\
                     {connections} 个连接，种子 {seed}；发压端 {generator}，{cores} 核，{os} {arch}",
                    language.name(curve)
                ),
            ];
        }
        [
            format!("Rehearsal against {whose} {profile} deployment {version} at {at}"),
            format!(
                "{buyers} buyers, {curve} in {over_s} s, {items} × {stock} units, {connections} \
                 connections, seed {seed}; generator {} on {cores} cores, {} {}",
                self.generator.version, self.generator.os, self.generator.arch
            ),
        ]
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        let [what, how] = self.headline(Language::English);
        writeln!(out, "{what}\n{how}\n")?;
        self.write_rates(out)?;
        self.write_latencies(out)?;
        self.write_funnel(out)?;
        for line in self.bots.iter().flat_map(BotDrill::lines) {
            writeln!(out, "{line}")?;
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        self.write_verdict(out)
    }

    fn write_rates(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{:<22}{:>10}{:>14}{:>14}", "", "total", "mean per s", "peak per s")?;
        for (name, rate) in self.rates.named() {
            let Rate { total, mean_per_s, peak_per_s } = rate;
            writeln!(out, "{name:<22}{total:>10}{mean_per_s:>14.0}{peak_per_s:>14.0}")?;
        }
        writeln!(out)
    }

    fn write_latencies(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{:<22}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "milliseconds", "count", "p50", "p90", "p99", "p99.9", "max"
        )?;
        for (name, of) in self.latency.named() {
            let ms = |us: u64| us as f64 / 1_000.0;
            writeln!(
                out,
                "{name:<22}{:>10}{:>10.1}{:>10.1}{:>10.1}{:>10.1}{:>10.1}",
                of.count,
                ms(of.p50_us),
                ms(of.p90_us),
                ms(of.p99_us),
                ms(of.p999_us),
                ms(of.max_us)
            )?;
        }
        writeln!(out)
    }

    fn write_funnel(&self, out: &mut String) -> std::fmt::Result {
        for (name, count) in self.funnel.stages().iter().chain(&self.funnel.ways_out()) {
            writeln!(out, "{name:<22}{count:>10}")?;
        }
        for (code, count) in &self.refusals {
            writeln!(out, "{:<22}{count:>10}", format!("refused: {code}"))?;
        }
        writeln!(out)
    }

    fn write_verdict(&self, out: &mut String) -> std::fmt::Result {
        for Violation { invariant, detail } in self.violations.iter().take(SHOWN_MAX) {
            writeln!(out, "VIOLATED {invariant}: {detail}")?;
        }
        let violated = self.violations.len();
        if violated > SHOWN_MAX {
            writeln!(out, "… and {} more", violated - SHOWN_MAX)?;
        }
        let Reconciled { differences_before, differences_after } = self.reconcile;
        writeln!(
            out,
            "reconcile: {differences_before} differences before, {differences_after} after"
        )?;
        writeln!(out, "{}", self.verdict())
    }

    /// The whole report in a sentence.
    pub(crate) fn verdict(&self) -> String {
        match self.violations.len() {
            0 => "All checks passed.".into(),
            1 => "1 violation.".into(),
            more => format!("{more} violations."),
        }
    }
}

impl Rates {
    pub(crate) fn named(&self) -> [(&'static str, Rate); 4] {
        [
            ("buyers arrived", self.arrived),
            ("claims accepted", self.accepted),
            ("claims persisted", self.persisted),
            ("claims rejected", self.rejected),
        ]
    }
}

impl Timings {
    pub(crate) fn named(&self) -> Vec<(&'static str, &Percentiles)> {
        let all = [
            ("claim", &self.claims),
            ("claim, once sent", &self.service),
            ("claim of a bot", &self.bots),
            ("final answer", &self.decided),
            ("order in the ledger", &self.ordered),
            ("payment", &self.paid),
            ("generator's lag", &self.lag),
        ];
        all.into_iter().filter(|(_, percentiles)| percentiles.count > 0).collect()
    }
}

impl Funnel {
    pub(crate) fn stages(&self) -> [(&'static str, u64); 4] {
        [
            ("buyers", self.buyers),
            ("admitted", self.admitted),
            ("ordered", self.ordered),
            ("paid", self.paid),
        ]
    }

    /// Where those went who did not pay.
    pub(crate) fn ways_out(&self) -> [(&'static str, u64); 6] {
        [
            ("sold out", self.sold_out),
            ("sent away", self.sent_away),
            ("cancelled", self.cancelled),
            ("left unpaid", self.abandoned),
            ("too late to pay", self.missed),
            ("void", self.void),
        ]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use client::new_histogram;

    use super::*;
    use crate::plan::tests::plan;

    pub(crate) fn report() -> Report {
        let mut latencies = Latencies::default();
        (1..=1_000).for_each(|ms| latencies.latency.saturating_record(ms * 1_000));
        let claims = Percentiles::of(&latencies.latency);
        let none = Percentiles::default;
        let at = |at_ms, arrived, admitted| Sample {
            at_ms,
            arrived,
            admitted,
            refused: admitted / 2,
            persisted: Some(admitted / 2),
            stock_left: Some(200 - admitted as i64),
            backlog: Some(admitted / 3),
        };
        let timeline = vec![at(-250, 0, 0), at(0, 500, 40), at(250, 1_000, 90), at(500, 1_000, 90)];
        Report {
            ok: true,
            violations: vec![],
            checks: Check::all(&[], |_| true),
            notes: vec![Note::new("<script>alert(1)</script> & co", "<script>提示</script>")],
            plan: plan(),
            repeat_with: plan().command(),
            target: Target {
                addresses: vec!["127.0.0.1:8080".into()],
                own: true,
                version: "0.1.0".into(),
                profile: "solo".into(),
                activity: 1,
            },
            generator: Generator::of(&latencies),
            opened_at: 1_794_355_200_000,
            funnel: Funnel {
                buyers: 1_000,
                admitted: 90,
                ordered: 90,
                paid: 60,
                ..Funnel::default()
            },
            rates: Rates::of(&timeline),
            refusals: BTreeMap::from([("sold_out".into(), 45)]),
            latency: Timings {
                claims,
                service: none(),
                lag: none(),
                bots: none(),
                decided: none(),
                ordered: none(),
                paid: none(),
            },
            reconcile: Reconciled::default(),
            timeline,
            bots: None,
        }
    }

    fn all_of(notes: &[Note]) -> String {
        notes.iter().map(Note::to_string).collect()
    }

    #[test]
    fn every_check_says_what_became_of_it() {
        let violation = Violation { invariant: CHECKED[0], detail: String::new() };
        let checks = Check::all(&[violation], |invariant| invariant != CHECKED[1]);
        let outcomes: Vec<Outcome> = checks.iter().map(|check| check.outcome).collect();
        assert_eq!(outcomes[..3], [Outcome::Violated, Outcome::NotChecked, Outcome::Held]);
        assert_eq!(outcomes.len(), CHECKED.len());
    }

    #[test]
    fn percentiles_are_those_of_the_histogram() {
        let of = report().latency.claims;
        let near = |us: u64, ms: u64| assert!(us.abs_diff(ms * 1_000) <= 1_000, "{us} µs, {ms} ms");
        near(of.p50_us, 500);
        near(of.p90_us, 900);
        near(of.p99_us, 990);
        near(of.max_us, 1_000);
        assert_eq!((of.count, of.points.len()), (1_000, QUANTILES.len()));
        assert!(of.points.is_sorted());
        assert_eq!(Percentiles::of(&new_histogram()), Percentiles::default());
    }

    #[test]
    fn the_table_says_what_was_measured_and_what_was_violated() {
        let mut report = report();
        let table = report.table();
        for wanted in ["10000 buyers", "claims accepted", "p99.9", "seed 11", "All checks passed"] {
            assert!(table.contains(wanted), "{wanted} is not in\n{table}");
        }
        let detail = "2 sold of 1".to_owned();
        report.violations = vec![Violation { invariant: "I1 no oversell", detail }; 30];
        let table = report.table();
        assert!(table.contains("VIOLATED I1 no oversell: 2 sold of 1"));
        assert!(table.contains("… and 10 more") && table.contains("30 violations."));
    }

    #[test]
    fn a_generator_that_was_the_limit_says_so() {
        let mut latencies = Latencies::default();
        let mut check = |lag_us: u64, kept_up: bool| {
            latencies.lag.reset();
            latencies.lag.record_n(lag_us, 100).unwrap();
            let generator = Generator::of(&latencies);
            assert_eq!(generator.kept_up, kept_up, "{lag_us}");
            let notes = all_of(&generator.notes(100));
            assert_eq!(notes.contains("the generator was the limit"), !kept_up, "{notes}");
        };
        check(900, true);
        check(LAG_P99_US_MAX * 2, false);
        let waiting = Generator { kept_waiting: 20, ..Generator::of(&Latencies::default()) };
        assert!(all_of(&waiting.notes(100)).contains("20 % of the requests"));
    }
}
