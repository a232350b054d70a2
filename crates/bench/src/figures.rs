//! The figures of a run: a table for people, keys for programs.

use serde_json::{Map, Number, Value};

/// What a figure should be, on two cores shared with the client.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    None,
    AtLeast(f64),
    AtMost(f64),
}

struct Figure {
    key: String,
    what: String,
    value: f64,
    goal: Goal,
}

#[derive(Default)]
pub(crate) struct Figures(Vec<Figure>);

impl Figures {
    /// `key` is the name in the JSON file and never changes; `what` is for people.
    pub(crate) fn add(&mut self, key: &str, what: &str, value: f64, goal: Goal) {
        self.0.push(Figure { key: key.into(), what: what.into(), value, goal });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn print(&self) {
        let width = |of: fn(&Figure) -> &str| {
            self.0.iter().map(|figure| of(figure).chars().count()).max().unwrap_or(0)
        };
        let (keys, whats) = (width(|f| &f.key), width(|f| &f.what));
        println!("\n{:keys$}  {:whats$}  {:>11}  goal", "key", "best round", "");
        for figure in &self.0 {
            let Figure { key, what, value, goal } = figure;
            let goal = match *goal {
                Goal::None => String::new(),
                Goal::AtLeast(goal) => said("≥", goal, *value >= goal),
                Goal::AtMost(goal) => said("≤", goal, *value <= goal),
            };
            println!("{key:keys$}  {what:whats$}  {:>11}  {goal}", shown(*value));
        }
    }

    pub(crate) fn json(&self) -> Value {
        let number =
            |value: f64| Number::from_f64(rounded(value)).map_or(Value::Null, Value::Number);
        let pairs = self.0.iter().map(|figure| (figure.key.clone(), number(figure.value)));
        Value::Object(pairs.collect::<Map<_, _>>())
    }
}

/// A drawing of all figures that have a goal: how much of it was reached, from left to right.
impl Figures {
    pub(crate) fn svg(&self) -> String {
        let bars: Vec<(&Figure, f64)> =
            self.0.iter().filter_map(|figure| Some((figure, reached(figure)?))).collect();
        let height = TOP + ROW * bars.len() as u32;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"{GOAL}\" y=\"16\" text-anchor=\"middle\" fill=\"#555\">goal</text>\n"
        );
        for (n, (figure, part)) in bars.iter().enumerate() {
            let y = TOP + ROW * n as u32;
            let long = (part.min(PART_MAX) * f64::from(GOAL - LEFT)) as u32;
            let colour = if *part >= 1.0 { "#2a7" } else { "#c73" };
            let (label, middle) = (LEFT - 8, y + 14);
            out += &format!(
                "<text x=\"{label}\" y=\"{middle}\" text-anchor=\"end\">{}</text>\n\
                 <rect x=\"{LEFT}\" y=\"{y}\" width=\"{long}\" height=\"{}\" fill=\"{colour}\"/>\n\
                 <text x=\"{}\" y=\"{middle}\">{}</text>\n",
                figure.key,
                ROW - 4,
                LEFT + long + 6,
                shown(figure.value),
            );
        }
        out += &format!(
            "<line x1=\"{GOAL}\" y1=\"{TOP}\" x2=\"{GOAL}\" y2=\"{height}\" stroke=\"#555\"/>\n</svg>\n"
        );
        out
    }
}

const WIDTH: u32 = 760;
const LEFT: u32 = 230;
/// Where a goal that is just reached ends.
const GOAL: u32 = 470;
const TOP: u32 = 24;
const ROW: u32 = 22;
/// Longer bars are cut here.
const PART_MAX: f64 = 1.8;

/// How much of its goal a figure reaches; one is all of it.
fn reached(figure: &Figure) -> Option<f64> {
    match figure.goal {
        Goal::None => None,
        Goal::AtLeast(goal) => Some(figure.value / goal),
        // One that is nothing, or less, is as good as can be.
        Goal::AtMost(goal) if figure.value <= 0.0 => Some(goal.max(PART_MAX)),
        Goal::AtMost(goal) => Some(goal / figure.value),
    }
}

fn said(sign: &str, goal: f64, reached: bool) -> String {
    format!("{sign} {}{}", shown(goal), if reached { "" } else { "  missed" })
}

/// Four digits say more than the machine knows.
fn rounded(value: f64) -> f64 {
    let step = if value.abs() >= 100.0 { 1.0 } else { 1_000.0 };
    (value * step).round() / step
}

/// Thousands apart; two digits behind the point where there are few before it.
fn shown(value: f64) -> String {
    if value.abs() < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) && digit.is_ascii_digit() {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The largest of several rounds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Best(pub(crate) f64);

impl Best {
    pub(crate) fn note(&mut self, value: f64) -> f64 {
        self.0 = self.0.max(value);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_goal_is_reached() {
        let mut figures = Figures::default();
        figures.add("half", "", 5.0, Goal::AtLeast(10.0));
        figures.add("all", "", 5.0, Goal::AtMost(5.0));
        figures.add("far", "", 0.0, Goal::AtMost(1.0));
        figures.add("no goal", "", 1.0, Goal::None);
        let svg = figures.svg();
        for width in [120, 240, 432] {
            assert!(svg.contains(&format!("width=\"{width}\"")), "{svg}");
        }
        assert!(!svg.contains("no goal"));
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(shown(1_234_567.4), "1,234,567");
        assert_eq!(shown(999.6), "1,000");
        assert_eq!(shown(100.0), "100");
        assert_eq!(shown(8.126), "8.13");
        assert_eq!(rounded(8.12649), 8.126);
    }
}
