//! Plots as inline SVG: small enough for a phone, in the colours of the page they stand in.
//!
//! The library knows only colours, and a page has them by name, one set for the light and one for the dark.
//! So each is drawn in a colour that stands for a name, and that is replaced.

use plotters::{coord::Shift, prelude::*};

/// As wide as a phone, so that letters on a phone are as large as they are here.
const SIZE: (u32, u32) = (400, 230);
const MARGIN: u32 = 6;
const BELOW: u32 = 34;
const BESIDE: u32 = 46;
const FONT: (&str, u32) = ("sans-serif", 12);
const LINE_WIDTH: u32 = 2;
/// Text, axes and the lines between them.
const INK: RGBColor = RGBColor(1, 1, 1);
const INK_HEX: &str = "#010101";
/// What stands for the colours of lines, in the order of their names.
const LINES: [(RGBColor, &str); LINES_MAX] = [
    (RGBColor(1, 1, 2), "#010102"),
    (RGBColor(1, 1, 3), "#010103"),
    (RGBColor(1, 1, 4), "#010104"),
    (RGBColor(1, 1, 5), "#010105"),
    (RGBColor(1, 1, 6), "#010106"),
    (RGBColor(1, 1, 7), "#010107"),
    (RGBColor(1, 1, 8), "#010108"),
];
/// The page names so many colours: `--line-1` and so on.
pub(crate) const LINES_MAX: usize = 7;
/// Where the slowest answer of all stands on the axis of nines: one step after p99.99.
const NINES_MAX: f64 = 5.0;
/// Below this a logarithm is of no interest.
const MS_MIN: f64 = 0.1;

/// A plot that cannot be drawn, in the words of the library.
#[derive(Debug, thiserror::Error)]
#[error("a plot cannot be drawn: {0}")]
pub struct PlotError(String);

impl PlotError {
    fn because(cause: impl std::fmt::Display) -> PlotError {
        PlotError(cause.to_string())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draw into a string, as it may stand in a page.
fn svg(draw: impl FnOnce(&Area) -> Result<(), PlotError>) -> Result<String, PlotError> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&area)?;
        area.present().map_err(PlotError::because)?;
    }
    // Inside HTML the name space goes without saying, and a page without addresses is easily seen
    // to need none. What it shows stands in the tables as well.
    let text = text.replace(" xmlns=\"http://www.w3.org/2000/svg\"", " aria-hidden=\"true\"");
    let text = text.replace(INK_HEX, "currentColor");
    Ok(LINES
        .iter()
        .enumerate()
        .fold(text, |text, (n, (_, hex))| text.replace(hex, &format!("var(--line-{})", n + 1))))
}

/// Levels or rates over the seconds since the opening.
pub(crate) fn over_time(lines: &[Line]) -> Result<String, PlotError> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let most = |of: fn(&(f64, f64)) -> f64, least: f64| points().map(of).fold(least, f64::max);
    let from = points().map(|point| point.0).fold(0.0, f64::min);
    let (to, top) = (most(|point| point.0, from + 0.25), most(|point| point.1, 1.0));
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(MARGIN)
            .x_label_area_size(BELOW)
            .y_label_area_size(BESIDE)
            .build_cartesian_2d(from..to, 0.0..top * 1.05)
            .map_err(PlotError::because)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh().axis_style(INK.mix(0.5)).bold_line_style(INK.mix(0.15));
        mesh.light_line_style(TRANSPARENT).label_style(FONT.into_font().color(&INK));
        mesh.x_labels(6).y_labels(5).x_label_formatter(&|s| format!("{} s", short(*s)));
        mesh.y_label_formatter(&|value| short(*value));
        mesh.draw().map_err(PlotError::because)?;
        for (line, (colour, _)) in lines.iter().zip(LINES) {
            let points = line.points.iter().copied();
            let series = LineSeries::new(points, colour.stroke_width(LINE_WIDTH));
            chart.draw_series(series).map_err(PlotError::because)?;
        }
        Ok(())
    })
}

/// A number of an axis, as short as it can be told.
fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        1_000_000.0.. => (value / 1_000_000.0, "M"),
        1_000.0.. => (value / 1_000.0, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.1}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Latency against the share of answers, on an axis of nines: p90, p99, p99.9 …
pub(crate) fn percentiles(lines: &[(&str, &[(f64, u64)])]) -> Result<String, PlotError> {
    let nines = |share: f64| if share < 1.0 { -(1.0 - share).log10() } else { NINES_MAX };
    let ms = |us: u64| (us as f64 / 1_000.0).max(MS_MIN);
    let slowest = lines.iter().flat_map(|(_, points)| *points).map(|point| ms(point.1));
    let top = slowest.fold(1.0, f64::max) * 1.5;
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(MARGIN)
            .margin_right(24)
            .x_label_area_size(BELOW)
            .y_label_area_size(BESIDE)
            .build_cartesian_2d(0.0..NINES_MAX, (MS_MIN..top).log_scale())
            .map_err(PlotError::because)?;
        let mut mesh = chart.configure_mesh();
        mesh.axis_style(INK.mix(0.5)).bold_line_style(INK.mix(0.15));
        mesh.light_line_style(TRANSPARENT).label_style(FONT.into_font().color(&INK));
        mesh.x_labels(6).y_labels(6).x_label_formatter(&|at| percentile(*at));
        mesh.y_label_formatter(&|ms| format!("{} ms", short(*ms)));
        mesh.draw().map_err(PlotError::because)?;
        for ((_, points), (colour, _)) in lines.iter().zip(LINES) {
            let points = points.iter().map(|(share, us)| (nines(*share), ms(*us)));
            let series = LineSeries::new(points, colour.stroke_width(LINE_WIDTH));
            chart.draw_series(series).map_err(PlotError::because)?;
        }
        Ok(())
    })
}

fn percentile(nines: f64) -> String {
    match nines.round() as i64 {
        ..=0 => "0".into(),
        1 => "p90".into(),
        2 => "p99".into(),
        nines if (nines as f64) < NINES_MAX => format!("p99.{}", "9".repeat(nines as usize - 2)),
        _ => "max".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_of_nines_has_names() {
        let names: Vec<String> = (0..=5).map(|nines| percentile(nines.into())).collect();
        assert_eq!(names, ["0", "p90", "p99", "p99.9", "p99.99", "max"]);
    }

    #[test]
    fn numbers_of_axes_are_short() {
        let told = [0.0, 0.25, 3.0, 950.0, 1_000.0, 12_500.0, 2_000_000.0, -0.5].map(short);
        assert_eq!(told, ["0", "0.2", "3", "950", "1k", "12.5k", "2M", "-0.5"]);
    }

    #[test]
    fn every_colour_is_one_of_the_page() {
        let line = |n: usize| Line { name: "line", points: vec![(0.0, n as f64), (9.0, 2.0)] };
        let plot = over_time(&(0..LINES_MAX).map(line).collect::<Vec<_>>()).unwrap();
        for n in 1..=LINES_MAX {
            assert!(plot.contains(&format!("var(--line-{n})")), "{n}");
        }
        let colours = plot.split('"').filter(|value| value.starts_with('#'));
        assert_eq!(colours.collect::<Vec<_>>(), [""; 0], "a colour of its own");
    }
}
