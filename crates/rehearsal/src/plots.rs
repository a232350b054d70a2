//! Plots as inline SVG.

use plotters::{coord::Shift, prelude::*};

const SIZE: (u32, u32) = (900, 320);
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 7] = [
    RGBColor(31, 119, 180),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(214, 39, 40),
    RGBColor(255, 127, 14),
    RGBColor(23, 190, 207),
    RGBColor(127, 127, 127),
];
/// Where the slowest answer of all stands on the axis of nines: one step after p99.99.
const NINES_MAX: f64 = 5.0;
/// Right of it the lines are named.
const NAMES_WIDTH: f64 = 1.4;
/// Below this a logarithm is of no interest.
const MS_MIN: f64 = 0.01;

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
        area.fill(&WHITE).map_err(PlotError::because)?;
        draw(&area)?;
        area.present().map_err(PlotError::because)?;
    }
    // Inside HTML the name space goes without saying, and a page without addresses is easily seen
    // to need none.
    Ok(text.replace(" xmlns=\"http://www.w3.org/2000/svg\"", ""))
}

/// Levels or rates over the seconds since the opening.
pub(crate) fn over_time(lines: &[Line]) -> Result<String, PlotError> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let most = |of: fn(&(f64, f64)) -> f64, least: f64| points().map(of).fold(least, f64::max);
    let from = points().map(|point| point.0).fold(0.0, f64::min);
    let (to, top) = (most(|point| point.0, from + 0.25), most(|point| point.1, 1.0));
    // Room for the names of the lines.
    let to = to + (to - from) * 0.15;
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(70)
            .build_cartesian_2d(from..to, 0.0..top * 1.05)
            .map_err(PlotError::because)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("seconds after the opening").label_style((FONT, 13)).light_line_style(WHITE);
        mesh.y_label_formatter(&|value| format!("{value:.0}"));
        mesh.draw().map_err(PlotError::because)?;
        for (line, colour) in lines.iter().zip(COLOURS) {
            let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
            let drawn = chart.draw_series(series).map_err(PlotError::because)?;
            drawn.label(line.name).legend(move |at| sign(at, colour));
        }
        let mut labels = chart.configure_series_labels();
        labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.2));
        labels.label_font((FONT, 13)).draw().map_err(PlotError::because)
    })
}

fn sign((x, y): (i32, i32), colour: RGBColor) -> PathElement<(i32, i32)> {
    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
}

/// Latency against the share of answers, on an axis of nines: p90, p99, p99.9 …
pub(crate) fn percentiles(lines: &[(&str, &[(f64, u64)])]) -> Result<String, PlotError> {
    let nines = |share: f64| if share < 1.0 { -(1.0 - share).log10() } else { NINES_MAX };
    let ms = |us: u64| (us as f64 / 1_000.0).max(MS_MIN);
    let slowest = lines.iter().flat_map(|(_, points)| *points).map(|point| ms(point.1));
    let top = slowest.fold(1.0, f64::max) * 1.5;
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..NINES_MAX + NAMES_WIDTH, (MS_MIN..top).log_scale())
            .map_err(PlotError::because)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("share of the answers").x_labels(7).label_style((FONT, 13));
        mesh.light_line_style(WHITE).x_label_formatter(&|at| percentile(*at));
        mesh.draw().map_err(PlotError::because)?;
        for ((name, points), colour) in lines.iter().zip(COLOURS) {
            let points = points.iter().map(|(share, us)| (nines(*share), ms(*us)));
            let series = LineSeries::new(points, colour.stroke_width(2));
            let drawn = chart.draw_series(series).map_err(PlotError::because)?;
            drawn.label(*name).legend(move |at| sign(at, colour));
        }
        let mut labels = chart.configure_series_labels();
        labels.position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.8));
        labels.label_font((FONT, 13)).draw().map_err(PlotError::because)
    })
}

fn percentile(nines: f64) -> String {
    match nines.round() as i64 {
        ..=0 => "fastest".into(),
        1 => "p90".into(),
        2 => "p99".into(),
        nines if (nines as f64) < NINES_MAX => format!("p99.{}", "9".repeat(nines as usize - 2)),
        nines if nines as f64 == NINES_MAX => "slowest".into(),
        _ => String::new(),
    }
}

/// One bar under the other.
pub(crate) fn bars(counts: &[(&str, u64)]) -> Result<String, PlotError> {
    let widest = counts.iter().map(|(_, count)| *count).max().unwrap_or(0).max(1) as f64;
    let rows = counts.len().max(1) as f64;
    svg(|area| {
        let chart = ChartBuilder::on(area)
            .margin(10)
            .build_cartesian_2d(-0.18..1.14, rows..0.0)
            .map_err(PlotError::because)?;
        let place = chart.plotting_area();
        for (n, (name, count)) in counts.iter().enumerate() {
            let (top, width) = (n as f64, *count as f64 / widest);
            let bar = Rectangle::new([(0.0, top + 0.15), (width, top + 0.85)], COLOURS[0].filled());
            place.draw(&bar).map_err(PlotError::because)?;
            for (text, x) in [((*name).to_owned(), -0.17), (count.to_string(), width + 0.01)] {
                let text = Text::new(text, (x, top + 0.3), (FONT, 14));
                place.draw(&text).map_err(PlotError::because)?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_of_nines_has_names() {
        let names: Vec<String> = (0..=6).map(|nines| percentile(nines.into())).collect();
        assert_eq!(names, ["fastest", "p90", "p99", "p99.9", "p99.99", "slowest", ""]);
    }

    #[test]
    fn plots_name_their_lines_and_bars() {
        let line = Line { name: "accepted", points: vec![(-0.25, 0.0), (0.0, 10.0), (0.25, 40.0)] };
        let plot = over_time(&[line]).unwrap();
        assert!(plot.contains("accepted") && plot.contains("<polyline"), "{plot}");
        let plot = percentiles(&[("claim", &[(0.5, 900), (0.99, 7_000), (1.0, 9_000)])]).unwrap();
        assert!(plot.contains("claim") && plot.contains("p99.9"), "{plot}");
        let plot = bars(&[("buyers", 100), ("paid", 7)]).unwrap();
        assert!(plot.contains("buyers") && plot.contains("7"), "{plot}");
    }
}
