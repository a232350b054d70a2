//! The report as one HTML page that needs nothing else: no script, no font, no address.
//!
//! It is mailed, attached to tickets and opened years later, on phones and in the dark, and printed. So
//! everything is inside, and everything that came from outside (a server's version, an error text) is
//! escaped. What one wants to know comes first: did it hold, and three figures.

use std::fmt::{self, Display, Write};

use crate::{
    BotDrill, Check, Language, Outcome, Report, Sample,
    plots::{self, LINES_MAX, Line, PlotError},
};

const STYLE: &str = include_str!("page.css");

/// Text as it may stand in HTML.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.to_string().chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            other => f.write_char(other),
        })
    }
}

/// A count with its thousands apart.
struct Grouped(u64);

impl Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (n, digit) in digits.chars().enumerate() {
            if n > 0 && (digits.len() - n).is_multiple_of(3) {
                f.write_char(',')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

fn whole(value: f64) -> Grouped {
    Grouped(value.round().max(0.0) as u64)
}

fn ms(us: u64) -> String {
    format!("{:.1}", us as f64 / 1_000.0)
}

/// A plot with its title and the names of its lines.
struct Figure {
    title: &'static str,
    unit: &'static str,
    names: Vec<&'static str>,
    plot: String,
}

/// A page that is being written, in one language.
struct Page<'a> {
    report: &'a Report,
    lang: Language,
    out: String,
}

impl Report {
    /// The whole page.
    pub fn html(&self, lang: Language) -> Result<String, PlotError> {
        let figures = self.figures(lang)?;
        let mut page = Page { report: self, lang, out: String::new() };
        // Writing to a string cannot fail.
        let _ = page.write(&figures);
        Ok(page.out)
    }

    fn figures(&self, lang: Language) -> Result<Vec<Figure>, PlotError> {
        let timeline = &self.timeline;
        let per_s =
            |name, count: fn(&Sample) -> Option<u64>| Line { name, points: slope(timeline, count) };
        let rates = [
            per_s("arrived", |sample| Some(sample.arrived)),
            per_s("accepted", |sample| Some(sample.admitted)),
            per_s("persisted", |sample| sample.persisted),
            per_s("rejected", |sample| Some(sample.refused)),
        ];
        let level = |name, value: fn(&Sample) -> Option<f64>| Line {
            name,
            points: timeline.iter().filter_map(|s| Some((seconds(s), value(s)?))).collect(),
        };
        let stock = [level("units left", |sample| sample.stock_left.map(|units| units as f64))];
        let backlog =
            [level("claims on the log", |sample| sample.backlog.map(|claims| claims as f64))];
        let latencies = self.latency.named();
        let latencies: Vec<(&str, &[(f64, u64)])> =
            latencies.iter().map(|(name, of)| (*name, of.points.as_slice())).collect();
        let over_time = |title, unit, lines: &[Line]| {
            let names = lines.iter().map(|line| lang.name(line.name)).collect();
            plots::over_time(lines).map(|plot| Figure { title, unit, names, plot })
        };
        Ok(vec![
            over_time(
                lang.say("Rates over time", "速率"),
                lang.say("per second, after the opening", "每秒，开抢后"),
                &rates,
            )?,
            Figure {
                title: lang.say("Latency percentiles", "延迟分位"),
                unit: lang.say("share of the answers", "答复占比"),
                names: self.latency.named().iter().map(|(name, _)| lang.name(name)).collect(),
                plot: plots::percentiles(&latencies)?,
            },
            over_time(lang.say("Stock left", "剩余库存"), lang.say("units", "件"), &stock)?,
            over_time(lang.say("Backlog", "积压"), lang.say("claims", "笔"), &backlog)?,
        ])
    }
}

impl Page<'_> {
    fn write(&mut self, figures: &[Figure]) -> fmt::Result {
        self.head()?;
        self.verdict()?;
        self.three_figures()?;
        self.checks()?;
        self.notes()?;
        write!(self.out, "<h2>{}</h2><div class=\"plots\">", self.lang.say("Over time", "过程"))?;
        figures.iter().try_for_each(|figure| self.figure(figure))?;
        self.funnel()?;
        write!(self.out, "</div>")?;
        self.tables()?;
        self.foot()
    }

    fn head(&mut self) -> fmt::Result {
        let (tag, title) = (self.lang.tag(), self.lang.say("Rehearsal", "演练报告"));
        let class = if self.report.ok { "good" } else { "bad" };
        write!(
            self.out,
            "<!doctype html><html lang=\"{tag}\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" \
             content=\"default-src 'none'; style-src 'unsafe-inline'\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\">\
             <title>{title} · Seckill</title><style>{STYLE}</style></head>\
             <body class=\"{class}\"><main><p class=\"brand\">Seckill · {title}</p>"
        )
    }

    fn verdict(&mut self) -> fmt::Result {
        let Page { report, lang, out } = self;
        let (mark, verdict) = match (report.violations.len(), *lang) {
            (0, Language::English) => ("✓", report.verdict()),
            (0, Language::Chinese) => ("✓", "全部检查通过。".to_owned()),
            (_, Language::English) => ("✗", report.verdict()),
            (more, Language::Chinese) => ("✗", format!("{more} 处未通过检查。")),
        };
        write!(
            out,
            "<div class=\"verdict\"><span class=\"mark\" aria-hidden=\"true\">{mark}</span>\
             <h1>{verdict}</h1></div>"
        )?;
        if !report.violations.is_empty() {
            write!(out, "<ul class=\"violations\">")?;
            for violation in &report.violations {
                let (name, detail) = (lang.name(violation.invariant), Escaped(&violation.detail));
                write!(out, "<li><b>{name}</b>: {detail}</li>")?;
            }
            write!(out, "</ul>")?;
        }
        for line in report.headline(*lang) {
            write!(out, "<p class=\"how\">{}</p>", Escaped(line))?;
        }
        Ok(())
    }

    /// Who got something, how many a second, and how long a claim took.
    fn three_figures(&mut self) -> fmt::Result {
        let Page { report, lang, out } = self;
        let (funnel, rates, claims) = (&report.funnel, &report.rates, &report.latency.claims);
        let units = Grouped((report.plan.items as u64) * report.plan.stock.unsigned_abs());
        let (came, got, paid) =
            (Grouped(funnel.buyers), Grouped(funnel.admitted), Grouped(funnel.paid));
        let (accepted, rejected) =
            (whole(rates.accepted.peak_per_s), whole(rates.rejected.peak_per_s));
        let persisted = whole(rates.persisted.peak_per_s);
        // More got one than there were units: what is given back is sold again.
        let again = Grouped(funnel.admitted.saturating_sub(funnel.paid));
        let [p50, p99, max] = [claims.p50_us, claims.p99_us, claims.max_us].map(ms);
        let told = match lang {
            Language::English => [
                format!(
                    "of {came} who came for {units} units; {paid} paid, {again} gave theirs back or let it go"
                ),
                format!("at the peak; {persisted} into the ledger, {rejected} refused"),
                format!("from wanting to the answer; half within {p50} ms, all within {max} ms"),
            ],
            Language::Chinese => [
                format!(
                    "{came} 人来抢 {units} 件；{paid} 人已付款，{again} 人取消或逾期，库存已放回"
                ),
                format!("峰值；每秒入账 {persisted} 笔，拒绝 {rejected} 笔"),
                format!("自买家想买起至得到答复；半数在 {p50} ms 内，全部在 {max} ms 内"),
            ],
        };
        let figures = [
            (lang.say("Buyers who got one", "抢到的买家"), got.to_string(), ""),
            (lang.say("Claims accepted per second", "每秒抢购成功"), accepted.to_string(), ""),
            (lang.say("99 of 100 claims within", "百分之九十九的抢购快于"), p99, " ms"),
        ];
        write!(out, "<dl class=\"figures\">")?;
        for ((name, figure, unit), more) in figures.into_iter().zip(told) {
            write!(
                out,
                "<div><dt>{name}</dt><dd>{figure}<small>{unit}</small></dd>\
                 <dd class=\"more\">{more}</dd></div>"
            )?;
        }
        write!(out, "</dl>")
    }

    fn checks(&mut self) -> fmt::Result {
        let Page { report, lang, out } = self;
        let title = lang.say("What was checked", "检查项");
        write!(out, "<h2>{title}</h2><ul class=\"card checks\">")?;
        for Check { invariant, outcome } in &report.checks {
            let (class, mark, said) = match outcome {
                Outcome::Held => ("held", "✓", lang.say("held", "成立")),
                Outcome::Violated => ("violated", "✗", lang.say("violated", "违反")),
                Outcome::NotChecked => ("not_checked", "–", lang.say("not checked", "未检查")),
            };
            let name = lang.name(invariant);
            write!(
                out,
                "<li class=\"{class}\"><b role=\"img\" aria-label=\"{said}\">{mark}</b>{name}</li>"
            )?;
        }
        write!(out, "</ul>")
    }

    fn notes(&mut self) -> fmt::Result {
        if self.report.notes.is_empty() {
            return Ok(());
        }
        write!(self.out, "<ul class=\"notes\">")?;
        for note in &self.report.notes {
            let note = note.in_words_of(self.lang);
            write!(self.out, "<li>{}</li>", Escaped(note))?;
        }
        write!(self.out, "</ul>")
    }

    fn figure(&mut self, Figure { title, unit, names, plot }: &Figure) -> fmt::Result {
        write!(
            self.out,
            "<figure><figcaption>{title} <span>· {unit}</span></figcaption>{plot}<ul class=\"names\">"
        )?;
        for (n, name) in names.iter().take(LINES_MAX).enumerate() {
            write!(self.out, "<li style=\"--of:var(--line-{})\">{name}</li>", n + 1)?;
        }
        write!(self.out, "</ul></figure>")
    }

    fn funnel(&mut self) -> fmt::Result {
        let Page { report, lang, out } = self;
        let title = lang.say("The funnel", "漏斗");
        let buyers = lang.say("buyers", "买家");
        let all = report.funnel.buyers.max(1) as f64;
        write!(
            out,
            "<figure><figcaption>{title} <span>· {buyers}</span></figcaption><ul class=\"bars\">"
        )?;
        let stages = report.funnel.stages().into_iter().map(|stage| ("in", stage));
        let ways_out = report.funnel.ways_out().into_iter().map(|way| ("out", way));
        for (class, (name, count)) in stages.chain(ways_out.filter(|(_, (_, count))| *count > 0)) {
            let (name, share) = (lang.name(name), count as f64 * 100.0 / all);
            write!(
                out,
                "<li class=\"{class}\">{name}<b>{}</b><i style=\"--share:{share:.2}%\"></i></li>",
                Grouped(count)
            )?;
        }
        write!(out, "</ul></figure>")
    }

    fn table(&mut self, title: &str, heads: &[&str], rows: &[Vec<String>]) -> fmt::Result {
        let out = &mut self.out;
        write!(
            out,
            "<h2>{title}</h2><div class=\"card wide\" tabindex=\"0\" role=\"region\" \
             aria-label=\"{title}\"><table><thead><tr>"
        )?;
        heads.iter().try_for_each(|head| write!(out, "<th scope=\"col\">{head}</th>"))?;
        write!(out, "</tr></thead><tbody>")?;
        for row in rows {
            write!(out, "<tr>")?;
            row.iter().try_for_each(|cell| write!(out, "<td>{}</td>", Escaped(cell)))?;
            write!(out, "</tr>")?;
        }
        write!(out, "</tbody></table></div>")
    }

    fn tables(&mut self) -> fmt::Result {
        let (report, lang) = (self.report, self.lang);
        let rates = report.rates.named().map(|(name, rate)| {
            let (mean, peak) = (whole(rate.mean_per_s), whole(rate.peak_per_s));
            vec![lang.name(name).into(), rate.total.to_string(), mean.to_string(), peak.to_string()]
        });
        let heads =
            ["", lang.say("total", "总数"), lang.say("mean", "平均"), lang.say("peak", "峰值")];
        self.table(lang.say("Claims per second", "每秒笔数"), &heads, &rates)?;
        let latencies = report.latency.named().into_iter().map(|(name, of)| {
            let times = [of.p50_us, of.p90_us, of.p99_us, of.p999_us, of.max_us].map(ms);
            [lang.name(name).into(), of.count.to_string()].into_iter().chain(times).collect()
        });
        let heads =
            ["", lang.say("count", "次数"), "p50", "p90", "p99", "p99.9", lang.say("max", "最大")];
        let latencies: Vec<Vec<String>> = latencies.collect();
        self.table(lang.say("Latency in milliseconds", "延迟（毫秒）"), &heads, &latencies)?;
        if !report.refusals.is_empty() {
            let row = |(code, count): (&String, &u64)| vec![code.clone(), count.to_string()];
            let refusals: Vec<Vec<String>> = report.refusals.iter().map(row).collect();
            let heads = [lang.say("code", "错误码"), lang.say("claims", "笔数")];
            self.table(lang.say("Refused", "拒绝"), &heads, &refusals)?;
        }
        report.bots.as_ref().map_or(Ok(()), |drill| self.bots(drill))
    }

    fn bots(&mut self, drill: &BotDrill) -> fmt::Result {
        let title = self.lang.say("Bots", "机器人");
        write!(self.out, "<h2>{title}</h2><pre>{}</pre>", Escaped(drill.lines().join("\n")))
    }

    fn foot(&mut self) -> fmt::Result {
        let (lang, report) = (self.lang, self.report);
        let data = serde_json::to_string_pretty(report).unwrap_or_default();
        writeln!(
            self.out,
            "<h2>{}</h2><pre>{}</pre><details><summary>{}</summary><pre>{}</pre></details>\
             </main></body></html>",
            lang.say("The same crowd again", "再来一次"),
            Escaped(&report.repeat_with),
            lang.say("All data", "全部数据"),
            Escaped(data)
        )
    }
}

fn seconds(sample: &Sample) -> f64 {
    sample.at_ms as f64 / 1_000.0
}

/// How fast a count grew, at the end of each step.
fn slope(timeline: &[Sample], count: impl Fn(&Sample) -> Option<u64>) -> Vec<(f64, f64)> {
    let known: Vec<(f64, u64)> =
        timeline.iter().filter_map(|sample| Some((seconds(sample), count(sample)?))).collect();
    let step = |pair: &[(f64, u64)]| {
        let more = pair[1].1.saturating_sub(pair[0].1) as f64;
        (pair[1].0, more / (pair[1].0 - pair[0].0).max(0.001))
    };
    known.windows(2).map(step).collect()
}

#[cfg(test)]
mod tests {
    use checker::{CHECKED, Violation};

    use super::*;
    use crate::report::tests::report;

    #[test]
    fn the_page_has_all_plots_and_refers_to_nothing_outside() {
        for lang in [Language::English, Language::Chinese] {
            let page = report().html(lang).unwrap();
            assert_eq!(page.matches("<svg").count(), 4);
            assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
            for check in CHECKED {
                assert!(page.contains(lang.name(check)), "{check}");
            }
            for outside in ["://", "<script", "src=", "href=", "url(", "@import"] {
                assert!(!page.contains(outside), "{outside}");
            }
        }
        let chinese = report().html(Language::Chinese).unwrap();
        let words = chinese.split("<h2>过程</h2>").next().unwrap();
        for english in ["Rehearsal", "buyers", "units", "generator"] {
            assert!(!words.split("</style>").last().unwrap().contains(english), "{english}");
        }
        let page = report().html(Language::English).unwrap();
        for wanted in ["All checks passed", "Rates over time", "Latency percentiles", "Backlog"] {
            assert!(page.contains(wanted), "{wanted}");
        }
    }

    #[test]
    fn what_comes_from_outside_is_escaped() {
        let mut report = report();
        report.ok = false;
        let detail = "item <b onclick='x'>&\"".to_owned();
        report.violations = vec![Violation { invariant: "I1 no oversell", detail }];
        report.refusals.insert("<i>odd</i>".into(), 1);
        let page = report.html(Language::English).unwrap();
        assert!(page.contains("item &lt;b onclick=&#39;x&#39;&gt;&amp;&quot;"));
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt; &amp; co"));
        assert!(page.contains("1 violation.") && !page.contains("<i>odd"));
    }

    #[test]
    fn a_rehearsal_without_samples_still_has_a_page() {
        let mut report = report();
        report.timeline.clear();
        report.latency.claims.points.clear();
        report.funnel = crate::Funnel::default();
        assert_eq!(report.html(Language::Chinese).unwrap().matches("<svg").count(), 4);
    }

    #[test]
    fn counts_have_their_thousands_apart() {
        let told = [0, 7, 999, 1_000, 20_000, 1_234_567].map(|count| Grouped(count).to_string());
        assert_eq!(told, ["0", "7", "999", "1,000", "20,000", "1,234,567"]);
    }
}
