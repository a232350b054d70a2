//! Figures over sizes, as a drawing: whether what is ten or a thousand times larger costs more.

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 600.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 220.0;
const COLOURS: [&str; 4] = ["#27a", "#c73", "#2a7", "#a3a"];

/// One line: a point for each size.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Sizes to the right, each ten times as far as the one before it is from its own; values upwards.
pub(crate) fn svg(title: &str, lines: &[Line], goal: f64) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let smallest = points().map(|(size, _)| size.log10()).fold(f64::MAX, f64::min);
    let largest = points().map(|(size, _)| size.log10()).fold(f64::MIN, f64::max);
    let top = points().map(|(_, value)| *value).fold(goal, f64::max) * 1.1;
    let x = |size: f64| {
        let part = (size.log10() - smallest) / (largest - smallest).max(f64::MIN_POSITIVE);
        LEFT + part * (RIGHT - LEFT)
    };
    let y = |value: f64| BOTTOM - value / top * (BOTTOM - TOP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"18\">{title}</text>\n\
         <path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"#555\"/>\n"
    );
    let at = y(goal);
    out += &format!(
        "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#555\" stroke-dasharray=\"4 4\"/>\n\
         <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{goal}</text>\n",
        LEFT - 6.0,
        at + 4.0
    );
    for (n, (line, colour)) in lines.iter().zip(COLOURS).enumerate() {
        let path: Vec<String> =
            line.points.iter().map(|(s, v)| format!("{:.1} {:.1}", x(*s), y(*v))).collect();
        out += &format!(
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>\n",
            path.join("L"),
            RIGHT + 12.0,
            TOP + 18.0 * n as f64,
            line.name
        );
        for (size, value) in &line.points {
            out += &format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{size}</text>\n",
                x(*size),
                y(*value),
                x(*size),
                BOTTOM + 18.0
            );
        }
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ten_times_larger_is_as_far_again_to_the_right() {
        let line =
            Line { name: "solo".into(), points: vec![(10.0, 1.0), (100.0, 1.0), (1e3, 2.0)] };
        let svg = svg("idle", &[line], 2.0);
        for x in ["cx=\"60.0\"", "cx=\"330.0\"", "cx=\"600.0\""] {
            assert!(svg.contains(x), "{svg}");
        }
    }
}
