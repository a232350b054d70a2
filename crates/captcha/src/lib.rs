//! Letters in a picture, which people read and programs find hard.
//!
//! Each letter is turned, stretched and shifted by itself, all of them are bent by a wave, and lines nearly
//! as thick as the letters run through them, so that neither cutting the picture into columns nor wiping away
//! what is thin tells them apart. It is one hurdle of several: whoever has people read pictures for money, or
//! a program trained for these, pays for it, and that is what it is for.

mod letters;

use std::f32::consts::TAU;

use fastrand::Rng;

const WIDTH: usize = 240;
const HEIGHT: usize = 80;
const PAPER: u8 = 244;
const INK: u8 = 40;
/// Lines that mean nothing.
const LINES: usize = 2;
const SPECKS: usize = 160;

/// A picture of these letters as a PNG. The same letters and another seed make another picture. Letters that
/// are not known leave a gap.
pub fn picture(letters: &str, seed: u64) -> Vec<u8> {
    let mut sheet = Sheet::new(Rng::with_seed(seed));
    sheet.write(letters);
    for _ in 0..LINES {
        sheet.line();
    }
    sheet.specks();
    encoded(&sheet.pixels)
}

struct Sheet {
    rng: Rng,
    pixels: Vec<u8>,
    /// How far everything is bent, across and down: how much, how often, and where it begins.
    waves: [(f32, f32, f32); 2],
}

impl Sheet {
    fn new(mut rng: Rng) -> Sheet {
        let mut wave = |bend: f32| {
            let length = between(&mut rng, 60.0, 110.0);
            (between(&mut rng, bend * 0.6, bend), TAU / length, between(&mut rng, 0.0, TAU))
        };
        let waves = [wave(3.5), wave(4.5)];
        Sheet { rng, pixels: vec![PAPER; WIDTH * HEIGHT], waves }
    }

    fn write(&mut self, letters: &str) {
        let count = letters.chars().count().max(1) as f32;
        let pitch = (WIDTH as f32 - 56.0) / count;
        let mut across = 28.0 + pitch / 2.0;
        for letter in letters.chars() {
            let place = (
                across + between(&mut self.rng, -4.0, 4.0),
                HEIGHT as f32 / 2.0 + between(&mut self.rng, -7.0, 7.0),
            );
            self.letter(letter, place);
            across += pitch;
        }
    }

    fn letter(&mut self, letter: char, (x, y): (f32, f32)) {
        let rng = &mut self.rng;
        let (turn, lean) = (between(rng, -0.3, 0.3), between(rng, -0.2, 0.2));
        let (wide, high) = (between(rng, 12.0, 15.0), between(rng, 19.0, 24.0));
        let pen = between(rng, 1.9, 2.6);
        let (sin, cos) = turn.sin_cos();
        for stroke in letters::strokes(letter) {
            let placed = stroke.into_iter().map(|(across, down)| {
                let (across, down) = (wide * (across + lean * down), high * down);
                (x + across * cos - down * sin, y + across * sin + down * cos)
            });
            let points: Vec<(f32, f32)> = placed.collect();
            self.stroke(&points, pen);
        }
    }

    /// From one side to the other, up and down.
    fn line(&mut self) {
        let rng = &mut self.rng;
        let pen = between(rng, 1.0, 1.7);
        let (from, to) = (between(rng, 8.0, 72.0), between(rng, 8.0, 72.0));
        let (swing, often) = (between(rng, 4.0, 14.0), between(rng, 1.0, 2.5));
        let start = between(rng, 0.0, TAU);
        let points: Vec<(f32, f32)> = (0..=24)
            .map(|n| {
                let part = n as f32 / 24.0;
                let down = from + (to - from) * part + swing * (start + TAU * often * part).sin();
                (part * WIDTH as f32, down)
            })
            .collect();
        self.stroke(&points, pen);
    }

    fn stroke(&mut self, points: &[(f32, f32)], pen: f32) {
        for ends in points.windows(2) {
            let ((x, y), (to_x, to_y)) = (ends[0], ends[1]);
            let steps = (to_x - x).hypot(to_y - y).ceil().max(1.0) as usize * 2;
            for n in 0..=steps {
                let part = n as f32 / steps as f32;
                self.dot(self.bent((x + (to_x - x) * part, y + (to_y - y) * part)), pen);
            }
        }
    }

    fn bent(&self, (x, y): (f32, f32)) -> (f32, f32) {
        let [across, down] = self.waves;
        let bend =
            |(much, often, start): (f32, f32, f32), by: f32| much * (often * by + start).sin();
        (x + bend(across, y), y + bend(down, x))
    }

    /// Dark in the middle, and lighter at the rim.
    fn dot(&mut self, (x, y): (f32, f32), pen: f32) {
        let reach = pen.ceil() as i32 + 1;
        for down in y as i32 - reach..=y as i32 + reach {
            for across in x as i32 - reach..=x as i32 + reach {
                let far = (across as f32 - x).hypot(down as f32 - y);
                let ink = (pen + 0.5 - far).clamp(0.0, 1.0);
                let shade = PAPER - (f32::from(PAPER - INK) * ink) as u8;
                self.darken(across, down, shade);
            }
        }
    }

    fn darken(&mut self, across: i32, down: i32, shade: u8) {
        let inside = (0..WIDTH as i32).contains(&across) && (0..HEIGHT as i32).contains(&down);
        if inside {
            let pixel = &mut self.pixels[down as usize * WIDTH + across as usize];
            *pixel = shade.min(*pixel);
        }
    }

    fn specks(&mut self) {
        for _ in 0..SPECKS {
            let (across, down) = (self.rng.i32(0..WIDTH as i32), self.rng.i32(0..HEIGHT as i32));
            let shade = self.rng.u8(INK..PAPER);
            self.darken(across, down, shade);
            self.darken(across + 1, down, shade);
        }
    }
}

fn between(rng: &mut Rng, from: f32, to: f32) -> f32 {
    from + (to - from) * rng.f32()
}

fn encoded(pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(8 * 1_024);
    let mut encoder = png::Encoder::new(&mut file, WIDTH as u32, HEIGHT as u32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    // A vector takes everything, and the sizes are the ones that were just named.
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(pixels)?;
        writer.finish()
    });
    debug_assert!(written.is_ok(), "{written:?}");
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "ACDEFHJKLMNPRTUVWXY34679";

    #[test]
    fn every_letter_has_strokes_within_its_place() {
        for letter in ALL.chars() {
            let strokes = letters::strokes(letter);
            assert!(!strokes.is_empty(), "{letter}");
            for (across, down) in strokes.concat() {
                assert!((-1.0..=1.0).contains(&across) && (-1.0..=1.0).contains(&down), "{letter}");
            }
        }
        assert!(letters::strokes('Ω').is_empty());
    }

    #[test]
    fn the_same_letters_never_look_the_same() {
        let pictures: Vec<Vec<u8>> = (0..20).map(|seed| picture("K7M3P", seed)).collect();
        for (n, one) in pictures.iter().enumerate() {
            assert!(pictures[n + 1..].iter().all(|other| other != one));
            assert!(one.starts_with(b"\x89PNG") && one.len() < 16 * 1_024, "{}", one.len());
        }
        assert_eq!(picture("K7M3P", 7), picture("K7M3P", 7));
    }

    #[test]
    fn letters_leave_ink_on_the_paper() {
        let ink = |letters: &str| {
            let mut sheet = Sheet::new(Rng::with_seed(1));
            sheet.write(letters);
            sheet.pixels.iter().filter(|pixel| **pixel < 128).count()
        };
        assert_eq!(ink(""), 0);
        for letter in ALL.chars() {
            assert!(ink(&letter.to_string()) > 100, "{letter}");
        }
    }
}
