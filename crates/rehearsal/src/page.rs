//! The report as one HTML page that needs nothing else: no script, no font, no address.
//!
//! It is mailed, attached to tickets and opened years later, so everything is inside, and everything
//! that came from outside (a server's version, an error text) is escaped.

use std::fmt::{self, Display, Write};

use crate::{
    Report, Sample,
    plots::{self, Line, PlotError},
};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:1rem 0}\
td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}\
figure{margin:2rem 0}figcaption{font-weight:600}svg{max-width:100%;height:auto}\
.good{color:#060}.bad{color:#a00}pre{overflow:auto;background:#f4f4f4;padding:1rem}";

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

impl Report {
    /// The whole page.
    pub fn html(&self) -> Result<String, PlotError> {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_head(&mut out);
        for (title, plot) in self.plots()? {
            let _ = write!(out, "<figure><figcaption>{title}</figcaption>{plot}</figure>");
        }
        let _ = self.write_rest(&mut out);
        Ok(out)
    }

    fn write_head(&self, out: &mut String) -> fmt::Result {
        write!(
            out,
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" \
             content=\"default-src 'none'; style-src 'unsafe-inline'\">\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <title>Seckill rehearsal</title><style>{STYLE}</style></head><body><h1>Rehearsal</h1>"
        )?;
        for line in self.headline() {
            write!(out, "<p>{}</p>", Escaped(line))?;
        }
        let (class, verdict) = (if self.ok { "good" } else { "bad" }, self.verdict());
        write!(out, "<p class=\"{class}\">{verdict}</p>")?;
        if !self.ok {
            write!(out, "<ul class=\"bad\">")?;
            for violation in &self.violations {
                let (invariant, detail) = (violation.invariant, Escaped(&violation.detail));
                write!(out, "<li><b>{invariant}</b>: {detail}</li>")?;
            }
            write!(out, "</ul>")?;
        }
        self.write_notes(out)?;
        self.write_tables(out)
    }

    fn write_notes(&self, out: &mut String) -> fmt::Result {
        write!(out, "<ul>")?;
        for note in &self.notes {
            write!(out, "<li>{}</li>", Escaped(note))?;
        }
        write!(out, "</ul>")
    }

    fn write_tables(&self, out: &mut String) -> fmt::Result {
        write!(out, "<table><tr><th>claims<th>total<th>mean per s<th>peak per s</tr>")?;
        for (name, rate) in self.rates.named() {
            let (total, mean, peak) = (rate.total, rate.mean_per_s, rate.peak_per_s);
            write!(out, "<tr><td>{name}<td>{total}<td>{mean:.0}<td>{peak:.0}</tr>")?;
        }
        write!(
            out,
            "</table><table><tr><th>milliseconds<th>count<th>p50<th>p90<th>p99<th>p99.9<th>max</tr>"
        )?;
        for (name, of) in self.latency.named() {
            write!(out, "<tr><td>{name}<td>{}", of.count)?;
            for us in [of.p50_us, of.p90_us, of.p99_us, of.p999_us, of.max_us] {
                write!(out, "<td>{:.1}", us as f64 / 1_000.0)?;
            }
            write!(out, "</tr>")?;
        }
        write!(out, "</table><table><tr><th>refused<th>claims</tr>")?;
        for (code, count) in &self.refusals {
            write!(out, "<tr><td>{}<td>{count}</tr>", Escaped(code))?;
        }
        write!(out, "</table>")
    }

    fn write_rest(&self, out: &mut String) -> fmt::Result {
        let data = serde_json::to_string_pretty(self).unwrap_or_default();
        writeln!(
            out,
            "<h2>Again</h2><pre>{}</pre>\
             <details><summary>All data</summary><pre>{}</pre></details></body></html>",
            Escaped(&self.repeat_with),
            Escaped(data)
        )
    }

    fn plots(&self) -> Result<Vec<(&'static str, String)>, PlotError> {
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
        let stock = level("units left", |sample| sample.stock_left.map(|units| units as f64));
        let backlog =
            level("claims on the log", |sample| sample.backlog.map(|claims| claims as f64));
        let stages: Vec<(&str, u64)> =
            self.funnel.stages().into_iter().chain(self.funnel.ways_out()).collect();
        let latencies = self.latency.named();
        let latencies: Vec<(&str, &[(f64, u64)])> =
            latencies.iter().map(|(name, of)| (*name, of.points.as_slice())).collect();
        Ok(vec![
            ("Rates over time, per second", plots::over_time(&rates)?),
            ("Latency percentiles, milliseconds", plots::percentiles(&latencies)?),
            ("The funnel, buyers", plots::bars(&stages)?),
            ("Stock left, units", plots::over_time(&[stock])?),
            ("Backlog, claims", plots::over_time(&[backlog])?),
        ])
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
    use checker::Violation;

    use crate::report::tests::report;

    #[test]
    fn the_page_has_all_plots_and_refers_to_nothing_outside() {
        let page = report().html().unwrap();
        assert_eq!(page.matches("<svg").count(), 5);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        for wanted in ["Rates over time", "Latency percentiles", "funnel", "Stock left", "Backlog"]
        {
            assert!(page.contains(wanted), "{wanted}");
        }
        for outside in ["://", "<script", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("must hold holds"));
    }

    #[test]
    fn what_comes_from_outside_is_escaped() {
        let mut report = report();
        report.ok = false;
        let detail = "item <b onclick='x'>&\"".to_owned();
        report.violations = vec![Violation { invariant: "I1 no oversell", detail }];
        report.refusals.insert("<i>odd</i>".into(), 1);
        let page = report.html().unwrap();
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
        assert_eq!(report.html().unwrap().matches("<svg").count(), 5);
    }
}
