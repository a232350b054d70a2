//! A code that a provider's app scans, drawn as SVG: one path of squares, with the quiet edge scanners want.

use std::fmt::Write;

use qrcode::{Color, EcLevel, QrCode};

/// Modules of white around the code.
const QUIET: usize = 4;

/// `None` if the text is longer than any code can hold.
pub(super) fn svg(text: &str) -> Option<String> {
    let code = QrCode::with_error_correction_level(text, EcLevel::M).ok()?;
    let width = code.width();
    let colors = code.to_colors();
    let mut path = String::with_capacity(width * width);
    for (y, row) in colors.chunks(width).enumerate() {
        let mut x = 0;
        for run in row.chunk_by(|a, b| a == b) {
            if run[0] == Color::Dark {
                // Writing to a string cannot fail.
                let _ =
                    write!(path, "M{} {}h{}v1h-{}z", x + QUIET, y + QUIET, run.len(), run.len());
            }
            x += run.len();
        }
    }
    let side = width + 2 * QUIET;
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {side} {side}\" \
         shape-rendering=\"crispEdges\"><path fill=\"#fff\" d=\"M0 0h{side}v{side}H0z\"/>\
         <path d=\"{path}\"/></svg>"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dark modules that the path draws.
    fn drawn(svg: &str) -> Vec<(usize, usize)> {
        let path = svg.split("<path d=\"").nth(1).unwrap().split('"').next().unwrap();
        let mut dark = Vec::new();
        for square in path.split('M').skip(1) {
            let numbers: Vec<usize> = square
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|number| number.parse().ok())
                .collect();
            dark.extend((0..numbers[2]).map(|n| (numbers[0] + n - QUIET, numbers[1] - QUIET)));
        }
        dark
    }

    #[test]
    fn every_dark_module_is_drawn_and_nothing_else() {
        let text = "weixin://wxpay/bizpayurl?pr=NwY5Mz9&groupid=00";
        let svg = svg(text).unwrap();
        let code = QrCode::with_error_correction_level(text, EcLevel::M).unwrap();
        let dark: Vec<(usize, usize)> = (0..code.width() * code.width())
            .map(|n| (n % code.width(), n / code.width()))
            .filter(|at| code[*at] == Color::Dark)
            .collect();
        assert_eq!(drawn(&svg), dark);
        assert!(svg.len() < 16_000, "{}", svg.len());
        assert!(!svg.contains(text) && !svg.contains("script"));
    }

    #[test]
    fn what_no_code_can_hold_is_not_drawn() {
        assert!(svg(&"x".repeat(10_000)).is_none());
    }
}
