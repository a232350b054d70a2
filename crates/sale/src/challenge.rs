//! The challenge: what a buyer's machine works on before it is given a sale token.
//!
//! It speaks the second version of the ALTCHA protocol, so that its widget and its libraries solve it. A
//! challenge is a set of parameters and our signature over them, and nobody keeps it:
//!
//! 1. We draw a nonce and a salt and say how the key of a solution must begin (`keyPrefix`).
//! 2. The buyer's machine counts upwards. The key of a number is PBKDF2-HMAC-SHA-256 of the nonce with the
//!    number behind it (four bytes, the first one the largest), with the salt, in `cost` rounds. The first
//!    number whose key begins as it should is the solution: 16 to the power of the prefix's length times
//!    `cost` rounds on average. To check it takes `cost` rounds, 256 at the most, whatever the difficulty.
//! 3. Parameters, signature and solution come back as one text, the base64 of a JSON object.
//!
//! The signature is over the parameters *and the buyer*, who is not among them: a challenge is of no use to
//! anybody else. It names the item and the second at which it is over. Where there is a picture as well, the
//! parameters carry a keyed hash of what is to be read in it; without our key nobody can try letters at home.
//! Whether a challenge was used before is for the caller to remember, by its [`OpenedChallenge::id`]. Who
//! forgets that with its end knows its own challenges by the *series*, with which their salt begins: a time
//! would say something else after the clock was set.

use base64::{Engine, engine::general_purpose::STANDARD};
use pbkdf2::pbkdf2_hmac_array;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::{
    DIFFICULTY_MAX, DIFFICULTY_MIN, ItemId, MAC_BYTES, Millis, Purpose, SigningKeys, UserId,
};

const ALGORITHM: &str = "PBKDF2/SHA-256";
const KEY_BYTES: usize = 32;
const RANDOM_BYTES: usize = 16;
const SERIES_BYTES: usize = 8;
/// The longest solution that is looked at. One of ours is about 700 characters.
pub const SOLUTION_CHARS_MAX: usize = 4_096;
/// Rounds for one key, at the most: what checking a solution costs us.
const COST_BITS_MAX: u32 = 8;
const PREFIX_DIGITS_MIN: u32 = 3;
/// Letters in a picture.
pub const CODE_CHARS: usize = 5;
/// Without those that look like others.
pub const CODE_LETTERS: &[u8] = b"ACDEFHJKLMNPRTUVWXY34679";

/// What is signed. The names and their order are the protocol's: sorted, as it signs them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ChallengeParameters {
    algorithm: String,
    cost: u32,
    data: Subject,
    /// In seconds.
    expires_at: Millis,
    key_length: usize,
    key_prefix: String,
    nonce: String,
    salt: String,
}

/// What it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subject {
    /// A keyed hash of what is to be read in the picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    /// When it was made, in milliseconds.
    issued: Millis,
    item: i64,
}

/// A challenge as it is handed out. A solver may send back more than that, which is not signed and not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    pub parameters: ChallengeParameters,
    pub signature: String,
}

/// What a challenge is made of.
#[derive(Clone, Copy, Debug)]
pub struct NewChallenge<'n> {
    pub user: &'n UserId,
    pub item: ItemId,
    pub difficulty: u32,
    /// What is to be read in the picture, if there is one.
    pub code: Option<&'n str>,
    pub issued_ms: Millis,
    pub expires_ms: Millis,
    /// Drawn by the caller, for all challenges that it remembers together.
    pub series: u64,
    /// Drawn by the caller, for this challenge alone.
    pub random: [u8; 2 * RANDOM_BYTES],
}

/// What comes back.
#[derive(Deserialize)]
struct Payload {
    challenge: Challenge,
    solution: Solution,
}

/// Whatever else a solver tells of itself is its own business.
#[derive(Deserialize)]
struct Solution {
    counter: u32,
}

/// Why a solution is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChallengeFault {
    #[error("it cannot be read")]
    Unreadable,
    /// Made by somebody else, for somebody else, or changed.
    #[error("it is not one of ours for this buyer")]
    Forged,
    #[error("it is for another item")]
    OtherItem,
    #[error("it is over")]
    Expired,
    #[error("it is not solved")]
    Unsolved,
    #[error("the letters are others")]
    WrongCode,
}

/// A challenge of ours that came back in time, to the one it was for.
pub struct OpenedChallenge {
    parameters: ChallengeParameters,
    counter: u32,
    /// No other challenge has it.
    pub id: u64,
    pub series: u64,
    pub issued_ms: Millis,
    pub expires_ms: Millis,
}

impl Challenge {
    pub fn new(new: NewChallenge<'_>, keys: &SigningKeys) -> Challenge {
        let (nonce, salt) = new.random.split_at(RANDOM_BYTES);
        let salt = [&new.series.to_be_bytes()[..], &salt[SERIES_BYTES..]].concat();
        let bits = new.difficulty.clamp(DIFFICULTY_MIN, DIFFICULTY_MAX);
        let digits = bits.saturating_sub(COST_BITS_MAX).div_ceil(4).max(PREFIX_DIGITS_MIN);
        let parameters = ChallengeParameters {
            algorithm: ALGORITHM.into(),
            cost: 1 << (bits - 4 * digits),
            data: Subject {
                code: new
                    .code
                    .map(|code| hex(&keys.mac(Purpose::Challenge, &code_text(nonce, code)))),
                issued: new.issued_ms,
                item: new.item.0,
            },
            // In whole seconds, and not before what was meant.
            expires_at: new.expires_ms.div_euclid(1_000) + 1,
            key_length: KEY_BYTES,
            key_prefix: "0".repeat(digits as usize),
            nonce: hex(nonce),
            salt: hex(&salt),
        };
        let signed = signed_text(&parameters, new.user);
        let signature = hex(&keys.mac(Purpose::Challenge, &signed));
        Challenge { parameters, signature }
    }
}

impl OpenedChallenge {
    /// Is this one of ours, for this buyer and item, and not over? Costs one HMAC.
    pub fn open(
        text: &str,
        user: &UserId,
        item: ItemId,
        keys: &SigningKeys,
        now_ms: Millis,
    ) -> Result<OpenedChallenge, ChallengeFault> {
        if text.len() > SOLUTION_CHARS_MAX {
            return Err(ChallengeFault::Unreadable);
        }
        let json = STANDARD.decode(text).map_err(|_| ChallengeFault::Unreadable)?;
        let Payload { challenge, solution } =
            serde_json::from_slice(&json).map_err(|_| ChallengeFault::Unreadable)?;
        let parameters = challenge.parameters;
        let seal = unhex::<MAC_BYTES>(&challenge.signature);
        let signed = signed_text(&parameters, user);
        if !seal.is_some_and(|seal| keys.has_signed(Purpose::Challenge, &signed, &seal)) {
            return Err(ChallengeFault::Forged);
        }
        if parameters.data.item != item.0 {
            return Err(ChallengeFault::OtherItem);
        }
        let expires_ms = parameters.expires_at.saturating_mul(1_000);
        if now_ms >= expires_ms {
            return Err(ChallengeFault::Expired);
        }
        let nonce = unhex::<RANDOM_BYTES>(&parameters.nonce).ok_or(ChallengeFault::Forged)?;
        let salt = unhex::<RANDOM_BYTES>(&parameters.salt).ok_or(ChallengeFault::Forged)?;
        let begins_with =
            |bytes: &[u8]| u64::from_be_bytes(bytes[..8].try_into().unwrap_or_default());
        Ok(OpenedChallenge {
            id: begins_with(&nonce),
            series: begins_with(&salt),
            issued_ms: parameters.data.issued,
            expires_ms,
            counter: solution.counter,
            parameters,
        })
    }

    /// Is there a picture to be read?
    pub fn has_code(&self) -> bool {
        self.parameters.data.code.is_some()
    }

    /// Is it solved? Costs as many rounds as were asked for.
    pub fn check(&self, code: Option<&str>, keys: &SigningKeys) -> Result<(), ChallengeFault> {
        let parameters = &self.parameters;
        let nonce = unhex::<RANDOM_BYTES>(&parameters.nonce).ok_or(ChallengeFault::Forged)?;
        let salt = unhex::<RANDOM_BYTES>(&parameters.salt).ok_or(ChallengeFault::Forged)?;
        if let Some(wanted) = &parameters.data.code {
            let read = code_text(&nonce, code.unwrap_or_default());
            let seal = unhex::<MAC_BYTES>(wanted).ok_or(ChallengeFault::Forged)?;
            if !keys.has_signed(Purpose::Challenge, &read, &seal) {
                return Err(ChallengeFault::WrongCode);
            }
        }
        let key = derived_key(&nonce, &salt, parameters.cost, self.counter);
        let solved = hex(&key).starts_with(&parameters.key_prefix);
        if solved { Ok(()) } else { Err(ChallengeFault::Unsolved) }
    }
}

/// The key of one number.
fn derived_key(nonce: &[u8], salt: &[u8], cost: u32, counter: u32) -> [u8; KEY_BYTES] {
    let password = [nonce, &counter.to_be_bytes()].concat();
    pbkdf2_hmac_array::<Sha256, KEY_BYTES>(&password, salt, cost)
}

/// As the protocol writes it: sorted, and without blanks. The buyer is signed for and not told of.
fn signed_text(parameters: &ChallengeParameters, user: &UserId) -> Vec<u8> {
    let mut text = serde_json::to_vec(parameters).unwrap_or_default();
    text.push(0);
    text.extend(user.as_str().as_bytes());
    text
}

/// Small letters are as good as large ones, and blanks are nothing.
fn code_text(nonce: &[u8], code: &str) -> Vec<u8> {
    let letters = code.chars().filter(|c| !c.is_whitespace()).take(2 * CODE_CHARS);
    let letters: String = letters.map(|c| c.to_ascii_uppercase()).collect();
    [b"code", nonce, letters.as_bytes()].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Solves a challenge as a buyer's machine does; for tests and rehearsals. The text that is sent back.
pub fn solve_challenge(challenge: &Challenge) -> Option<String> {
    let parameters = &challenge.parameters;
    let nonce = unhex::<RANDOM_BYTES>(&parameters.nonce)?;
    let salt = unhex::<RANDOM_BYTES>(&parameters.salt)?;
    let solves = |counter: &u32| {
        let key = derived_key(&nonce, &salt, parameters.cost, *counter);
        hex(&key[..4]).starts_with(&parameters.key_prefix[..parameters.key_prefix.len().min(8)])
    };
    let counter = (0..=u32::MAX).find(solves)?;
    let key = hex(&derived_key(&nonce, &salt, parameters.cost, counter));
    let solution = serde_json::json!({"challenge": challenge,
        "solution": {"counter": counter, "derivedKey": key, "time": 0}});
    Some(STANDARD.encode(solution.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys() -> SigningKeys {
        SigningKeys::from_secret(b"a secret for the tests").unwrap()
    }

    fn ann() -> UserId {
        "ann".parse().unwrap()
    }

    fn made(code: Option<&str>) -> Challenge {
        let random: [u8; 32] = std::array::from_fn(|n| n as u8);
        let (user, item) = (&ann(), ItemId(42));
        let (issued_ms, expires_ms) = (1_000, 10_000);
        let difficulty = DIFFICULTY_MIN;
        let series = 7;
        let new =
            NewChallenge { user, item, difficulty, code, issued_ms, expires_ms, series, random };
        Challenge::new(new, &keys())
    }

    fn open(text: &str) -> Result<OpenedChallenge, ChallengeFault> {
        OpenedChallenge::open(text, &ann(), ItemId(42), &keys(), 2_000)
    }

    #[test]
    fn a_solution_is_good_for_its_buyer_and_item_until_it_is_over() {
        let text = solve_challenge(&made(None)).unwrap();
        let opened = open(&text).unwrap();
        assert_eq!(opened.check(None, &keys()), Ok(()));
        let told = (opened.id, opened.series, opened.issued_ms);
        assert_eq!(told, (0x0001_0203_0405_0607, 7, 1_000));
        let of = |user: &str, item, now_ms| {
            let user = user.parse().unwrap();
            OpenedChallenge::open(&text, &user, ItemId(item), &keys(), now_ms).err()
        };
        assert_eq!(of("ann", 42, 10_999), None);
        assert_eq!(of("ann", 42, 11_000), Some(ChallengeFault::Expired));
        assert_eq!(of("ann", 43, 2_000), Some(ChallengeFault::OtherItem));
        assert_eq!(of("bob", 42, 2_000), Some(ChallengeFault::Forged));
        let others = SigningKeys::from_secret(b"another secret, not ours").unwrap();
        let forged = OpenedChallenge::open(&text, &ann(), ItemId(42), &others, 2_000);
        assert_eq!(forged.err(), Some(ChallengeFault::Forged));
    }

    #[test]
    fn what_is_not_solved_or_was_made_easier_is_refused() {
        let challenge = made(None);
        let text = |challenge: &Challenge, counter: u32| {
            STANDARD.encode(
                serde_json::json!({"challenge": challenge, "solution": {"counter": counter}})
                    .to_string(),
            )
        };
        let good = solve_challenge(&challenge).unwrap();
        let good: serde_json::Value =
            serde_json::from_slice(&STANDARD.decode(good).unwrap()).unwrap();
        let counter = good["solution"]["counter"].as_u64().unwrap() as u32;
        let unsolved = open(&text(&challenge, counter + 1)).unwrap().check(None, &keys());
        assert_eq!(unsolved, Err(ChallengeFault::Unsolved));
        let mut easier = challenge.clone();
        easier.parameters.key_prefix = String::new();
        assert_eq!(open(&text(&easier, 0)).err(), Some(ChallengeFault::Forged));
        let mut longer = challenge;
        longer.parameters.expires_at += 1;
        assert_eq!(open(&text(&longer, counter)).err(), Some(ChallengeFault::Forged));
        for bad in ["", "e30=", "!", "bnVsbA==", &"A".repeat(SOLUTION_CHARS_MAX + 4)] {
            assert_eq!(open(bad).err(), Some(ChallengeFault::Unreadable), "{bad:.20}");
        }
    }

    #[test]
    fn letters_are_read_as_people_type_them_and_told_to_nobody() {
        let challenge = made(Some("K7M3P"));
        let told = serde_json::to_string(&challenge).unwrap();
        assert!(!told.contains("K7M3P"), "{told}");
        let opened = open(&solve_challenge(&challenge).unwrap()).unwrap();
        assert!(opened.has_code());
        for good in ["K7M3P", "k7m3p", " K7M 3P "] {
            assert_eq!(opened.check(Some(good), &keys()), Ok(()), "{good}");
        }
        for bad in [None, Some(""), Some("K7M3"), Some("K7M3PP"), Some("K7M3Q")] {
            assert_eq!(opened.check(bad, &keys()), Err(ChallengeFault::WrongCode), "{bad:?}");
        }
    }

    #[test]
    fn checking_stays_cheap_however_hard_it_is() {
        for difficulty in DIFFICULTY_MIN..=DIFFICULTY_MAX {
            let user = &ann();
            let new = NewChallenge {
                user,
                item: ItemId(1),
                difficulty,
                code: None,
                issued_ms: 0,
                expires_ms: 0,
                series: 0,
                random: [7; 32],
            };
            let ChallengeParameters { cost, key_prefix, .. } =
                Challenge::new(new, &keys()).parameters;
            assert!((1..=256).contains(&cost), "{difficulty}: {cost}");
            assert_eq!(cost.ilog2() + 4 * key_prefix.len() as u32, difficulty);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic_or_pass(text in "[A-Za-z0-9+/=]{0,500}") {
            prop_assert!(open(&text).is_err());
        }
    }
}
