//! The draw of a fair start: who goes first among those who came in the first moments.
//!
//! With a fair start everybody who claims between the opening and `shuffle_ms` later stands in one queue,
//! whose order was fixed before anybody came and has nothing to do with when they came:
//!
//! | | is | known to |
//! |---|---|---|
//! | seed | 32 random bytes of the activity | nobody until the draw is over, then everybody |
//! | commitment | SHA-256 of the seed | everybody, from when the activity is published |
//! | salt | 32 more of them | nobody, ever |
//! | ticket | HMAC of the salt over `<item>/<user>` | the buyer it is of |
//! | place | HMAC of the seed over `<item>/<ticket>` | everybody, when it is over; the smallest is first |
//!
//! The commitment binds the shop to the seed, and so to every place, before the first claim. The ticket
//! stands between buyer and place because ids of buyers can be guessed: with the seed and a list of ids
//! anybody could find out who took part, and with tickets only those who did can find themselves.
//!
//! What it does not prove: that the shop, which knows seed and salt, gave nobody an account with a good
//! place.

use std::{fmt, str::FromStr};

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Invalid, ItemId, Millis, UserId};

/// Buyers wait this much longer for their answer, so it is well below what browsers, proxies and
/// `http.request_timeout_ms` allow.
pub const SHUFFLE_MS_MAX: Millis = 5_000;
/// The seed is shown so long after the window: by then no instance, whatever its clock says, gathers any
/// more.
pub const SEED_SHOWN_AFTER_MS: Millis = 10_000;
pub const SEED_BYTES: usize = 32;

/// That an activity has a draw, as everybody may know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draw {
    /// For so long from the opening on claims are gathered.
    pub shuffle_ms: Millis,
    /// SHA-256 of the seed.
    pub commitment: String,
}

/// How long claims are gathered; 0: nobody is drawn.
pub fn check_shuffle(
    shuffle_ms: Millis,
    opens_ms: Millis,
    closes_ms: Millis,
) -> Result<(), Invalid> {
    if !(0..=SHUFFLE_MS_MAX).contains(&shuffle_ms) {
        return Err(Invalid::new("shuffle_ms", format!("must be from 0 to {SHUFFLE_MS_MAX}")));
    }
    if shuffle_ms > 0 && closes_ms.saturating_sub(opens_ms) <= shuffle_ms {
        let problem = "must be shorter than the sale";
        return Err(Invalid::new("shuffle_ms", problem).zh("必须短于活动时长"));
    }
    Ok(())
}

/// What decides a draw. It shows itself nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct DrawSecrets {
    seed: [u8; SEED_BYTES],
    salt: [u8; SEED_BYTES],
}

impl DrawSecrets {
    pub fn new(seed: [u8; SEED_BYTES], salt: [u8; SEED_BYTES]) -> DrawSecrets {
        DrawSecrets { seed, salt }
    }

    /// As they are kept.
    pub fn from_hex(seed: &str, salt: &str) -> Option<DrawSecrets> {
        Some(DrawSecrets { seed: from_hex(seed)?, salt: from_hex(salt)? })
    }

    /// For whoever keeps it, and for everybody when the draw is over.
    pub fn expose_seed(&self) -> String {
        hex(&self.seed)
    }

    /// For whoever keeps it, and for nobody else.
    pub fn expose_salt(&self) -> String {
        hex(&self.salt)
    }

    pub fn commitment(&self) -> String {
        hex(&Sha256::digest(self.seed))
    }

    /// What a buyer recognises their place by.
    pub fn ticket(&self, item: ItemId, user: &UserId) -> String {
        hex(&short(&mac(&self.salt), item, user.as_str()))
    }

    /// The order of one item.
    pub fn order(&self, item: ItemId) -> DrawOrder {
        DrawOrder { item, seed: mac(&self.seed), salt: mac(&self.salt) }
    }
}

impl fmt::Debug for DrawSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DrawSecrets(redacted)")
    }
}

/// Says in which place a buyer stands. The keys are absorbed already, so that a claim costs two short hashes.
#[derive(Clone)]
pub struct DrawOrder {
    item: ItemId,
    seed: Hmac<Sha256>,
    salt: Hmac<Sha256>,
}

impl DrawOrder {
    pub fn place(&self, user: &UserId) -> DrawPlace {
        self.place_of_ticket(&hex(&short(&self.salt, self.item, user.as_str())))
    }

    pub fn place_of_ticket(&self, ticket: &str) -> DrawPlace {
        DrawPlace(u128::from_be_bytes(short(&self.seed, self.item, ticket)))
    }
}

impl fmt::Debug for DrawOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrawOrder({})", self.item)
    }
}

/// Where somebody stands in a draw: the smallest goes first. Its text is in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DrawPlace(pub u128);

impl fmt::Display for DrawPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("must be 32 hexadecimal digits, in lower case")]
pub struct InvalidPlace;

impl FromStr for DrawPlace {
    type Err = InvalidPlace;

    fn from_str(text: &str) -> Result<DrawPlace, InvalidPlace> {
        from_hex(text).map(|bytes| DrawPlace(u128::from_be_bytes(bytes))).ok_or(InvalidPlace)
    }
}

/// What became of somebody in a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrawOutcome {
    /// The gate admitted the claim, or knew it already.
    Won,
    /// Too little was left for it.
    SoldOut,
    /// Refused for another reason, such as a limit.
    Refused,
    /// The client had gone before the draw.
    Left,
}

impl DrawOutcome {
    pub const ALL: [DrawOutcome; 4] =
        [DrawOutcome::Won, DrawOutcome::SoldOut, DrawOutcome::Refused, DrawOutcome::Left];

    pub fn as_str(self) -> &'static str {
        match self {
            DrawOutcome::Won => "won",
            DrawOutcome::SoldOut => "sold_out",
            DrawOutcome::Refused => "refused",
            DrawOutcome::Left => "left",
        }
    }

    /// The number in the ledger's `outcome` column. Of two that a buyer has by way of two instances the
    /// smaller one counts.
    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        DrawOutcome::ALL.into_iter().find(|outcome| outcome.code() == code)
    }
}

/// One line of the record of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    pub place: DrawPlace,
    pub quantity: u32,
    pub outcome: DrawOutcome,
}

fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes a key of any length")
}

/// The first half of the MAC over `<item>/<whom>`.
fn short(mac: &Hmac<Sha256>, item: ItemId, whom: &str) -> [u8; 16] {
    let mut mac = mac.clone();
    mac.update(item.0.to_string().as_bytes());
    mac.update(b"/");
    mac.update(whom.as_bytes());
    let full = mac.finalize().into_bytes();
    let mut half = [0; 16];
    half.copy_from_slice(&full[..16]);
    half
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let pairs = text.as_bytes().chunks_exact(2);
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(n: usize) -> UserId {
        format!("u{n}").parse().unwrap()
    }

    /// Computed with Python's hashlib and hmac.
    #[test]
    fn known_answers() {
        let secrets = DrawSecrets::new([7; SEED_BYTES], [9; SEED_BYTES]);
        let (item, ann) = (ItemId(42), "ann".parse().unwrap());
        let ticket = secrets.ticket(item, &ann);
        let place = secrets.order(item).place(&ann);
        assert_eq!(place, secrets.order(item).place_of_ticket(&ticket));
        let commitment = "4bb06f8e4e3a7715d201d573d0aa423762e55dabd61a2c02278fa56cc6d294e0";
        assert_eq!(secrets.commitment(), commitment);
        assert_eq!(ticket, "6d3de6ed3259fd073acdc608d3909ed8");
        assert_eq!(place.to_string(), "64e5d6ab617d484ca98800754405fd57");
    }

    #[test]
    fn nothing_secret_shows_itself() {
        let secrets = DrawSecrets::new([7; SEED_BYTES], [9; SEED_BYTES]);
        let shown = format!("{secrets:?} {:?}", secrets.order(ItemId(1)));
        assert_eq!(shown, "DrawSecrets(redacted) DrawOrder(1)");
        let (seed, salt) = (secrets.expose_seed(), secrets.expose_salt());
        assert_eq!(DrawSecrets::from_hex(&seed, &salt), Some(secrets));
        assert_eq!(DrawSecrets::from_hex(&seed, "07"), None);
        assert_eq!(DrawSecrets::from_hex(&seed.to_uppercase().replace('0', "G"), &salt), None);
    }

    #[test]
    fn places_are_ordered_as_their_texts_and_differ_by_item() {
        let secrets = DrawSecrets::new([1; SEED_BYTES], [2; SEED_BYTES]);
        let order = secrets.order(ItemId(1));
        let mut places: Vec<DrawPlace> = (0..500).map(|n| order.place(&user(n))).collect();
        places.sort();
        let texts: Vec<String> = places.iter().map(DrawPlace::to_string).collect();
        assert!(texts.is_sorted());
        assert_eq!(texts[7].parse::<DrawPlace>().unwrap(), places[7]);
        assert!("7".parse::<DrawPlace>().is_err() && "é".repeat(16).parse::<DrawPlace>().is_err());
        assert_ne!(order.place(&user(1)), secrets.order(ItemId(2)).place(&user(1)));
    }

    #[test]
    fn a_window_is_bounded_and_shorter_than_the_sale() {
        let refused = |ms, closes| check_shuffle(ms, 1_000, closes).is_err();
        assert!(!refused(0, 1_001) && !refused(SHUFFLE_MS_MAX, 60_000) && !refused(2_000, 3_001));
        assert!(
            refused(-1, 60_000) && refused(SHUFFLE_MS_MAX + 1, 60_000) && refused(2_000, 3_000)
        );
    }
}
