//! Curves over the number of orders in the books, as a drawing of its own.

use plotters::prelude::*;

use crate::Failure;

const SIZE: (u32, u32) = (760, 320);
const FONT: (&str, u32) = ("sans-serif", 13);
const COLOURS: [RGBColor; 3] =
    [RGBColor(34, 119, 170), RGBColor(204, 119, 51), RGBColor(34, 170, 119)];
const LINE_WIDTH: u32 = 2;

pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

pub(crate) fn svg(curves: &[Curve]) -> Result<String, Failure> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let to = points().map(|point| point.0).fold(1.0, f64::max);
    let top = points().map(|point| point.1).fold(1.0, f64::max) * 1.1;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..to, 0.0..top)?;
        let thousands = |value: &f64| format!("{:.0}k", value / 1e3);
        let millions = |value: &f64| format!("{:.1}M", value / 1e6);
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT).label_style(FONT).x_labels(6).y_labels(6);
        mesh.x_label_formatter(&millions).y_label_formatter(&thousands);
        mesh.x_desc("orders in the books").y_desc("orders written per second").draw()?;
        for (n, (curve, colour)) in curves.iter().zip(COLOURS).enumerate() {
            let line =
                LineSeries::new(curve.points.iter().copied(), colour.stroke_width(LINE_WIDTH));
            chart.draw_series(line)?;
            let at = (SIZE.0 as i32 - 120, 20 + 18 * n as i32);
            area.draw(&Text::new(curve.name, at, FONT.into_font().color(&colour)))?;
        }
        area.present()?;
    }
    Ok(text)
}
