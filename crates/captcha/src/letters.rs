//! The letters, as strokes of a pen on a grid of four by six.
//!
//! Drawn by ourselves and not taken from a font, so that no two of a kind come out alike and nothing in the
//! picture is text.

/// The strokes of a letter: each a row of points, of which two digits are one, across and down.
const STROKES: &[(char, &[&str])] = &[
    ('A', &["062046", "1434"]),
    ('C', &["4130100105163645"]),
    ('D', &["00062644422000"]),
    ('E', &["40000646", "0333"]),
    ('F', &["400006", "0333"]),
    ('H', &["0006", "4046", "0343"]),
    ('J', &["4045361605"]),
    ('K', &["0006", "4003", "0346"]),
    ('L', &["000646"]),
    ('M', &["0600234046"]),
    ('N', &["06004640"]),
    ('P', &["06003041423303"]),
    ('R', &["06003041423303", "2346"]),
    ('T', &["0040", "2026"]),
    ('U', &["000516364540"]),
    ('V', &["002640"]),
    ('W', &["0016233640"]),
    ('X', &["0046", "4006"]),
    ('Y', &["002340", "2326"]),
    ('3', &["0040224445361605"]),
    ('4', &["36300444"]),
    ('6', &["3011040516364544331304"]),
    ('7', &["004016"]),
    ('9', &["4233130201103041423516"]),
];

/// The strokes of a letter, each from -1 to 1 across and down; none for one that is not known.
pub(crate) fn strokes(letter: char) -> Vec<Vec<(f32, f32)>> {
    let known = STROKES.iter().find(|(known, _)| *known == letter);
    let points = |stroke: &&str| {
        let digits: Vec<f32> = stroke.bytes().map(|digit| f32::from(digit - b'0')).collect();
        digits.chunks(2).map(|point| (point[0] / 2.0 - 1.0, point[1] / 3.0 - 1.0)).collect()
    };
    known.map_or(&[][..], |(_, strokes)| strokes).iter().map(points).collect()
}
