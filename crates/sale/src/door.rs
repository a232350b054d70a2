//! The door of a sale: what a buyer has to do, and who one has to be, to be given a sale token.
//!
//! All of it is asked when a token is asked for, minutes before the opening. The claim itself carries the
//! token and is asked nothing else.

use serde::{Deserialize, Serialize};

use crate::{Invalid, Millis, check_time};

/// The work of a challenge, as the power of two of hashes it takes on average.
pub const DIFFICULTY_MIN: u32 = 12;
pub const DIFFICULTY_MAX: u32 = 28;
/// About a second of a phone.
pub const DIFFICULTY_DEFAULT: u32 = 19;
/// Tokens can be had this long before the opening at the most.
pub const TOKEN_BEFORE_MS_MAX: Millis = 7 * 24 * 60 * 60 * 1_000;
/// Members can come this long before the others at the most.
pub const MEMBERS_FIRST_MS_MAX: Millis = 24 * 60 * 60 * 1_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChallengeKind {
    /// A token is had for the asking.
    #[default]
    Off,
    /// The buyer's machine works for a while.
    Pow,
    /// The same, and the buyer reads letters from a picture; or the machine works longer instead.
    Captcha,
}

impl ChallengeKind {
    pub const ALL: [ChallengeKind; 3] =
        [ChallengeKind::Off, ChallengeKind::Pow, ChallengeKind::Captcha];

    pub fn as_str(self) -> &'static str {
        match self {
            ChallengeKind::Off => "off",
            ChallengeKind::Pow => "pow",
            ChallengeKind::Captcha => "captcha",
        }
    }
}

/// How an activity lets buyers in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Door {
    pub challenge: ChallengeKind,
    pub difficulty: u32,
    /// How long before the opening tokens are given. Absent: as the settings say where there is a challenge,
    /// else at any time.
    pub token_before_ms: Option<Millis>,
    /// When members may buy; everybody else waits for the opening.
    pub members_from: Option<Millis>,
    /// Nobody else may buy at all.
    pub members_only: bool,
}

impl Default for Door {
    fn default() -> Self {
        Door {
            challenge: ChallengeKind::Off,
            difficulty: DIFFICULTY_DEFAULT,
            token_before_ms: None,
            members_from: None,
            members_only: false,
        }
    }
}

impl Door {
    /// Does it matter who is on the list of members?
    pub fn asks_for_members(&self) -> bool {
        self.members_only || self.members_from.is_some()
    }

    pub fn check(&self, opens_ms: Millis) -> Result<(), Invalid> {
        if !(DIFFICULTY_MIN..=DIFFICULTY_MAX).contains(&self.difficulty) {
            let range = format!("must be from {DIFFICULTY_MIN} to {DIFFICULTY_MAX}");
            return Err(Invalid::new("door.difficulty", range));
        }
        if self.token_before_ms.is_some_and(|ms| !(0..=TOKEN_BEFORE_MS_MAX).contains(&ms)) {
            let range = format!("must be from 0 to {TOKEN_BEFORE_MS_MAX}");
            return Err(Invalid::new("door.token_before_ms", range));
        }
        let Some(members_ms) = self.members_from else { return Ok(()) };
        check_time(members_ms).map_err(|why| Invalid::time("door.members_from", why))?;
        let first_ms = opens_ms.saturating_sub(members_ms);
        if !(1..=MEMBERS_FIRST_MS_MAX).contains(&first_ms) {
            let hours = MEMBERS_FIRST_MS_MAX / 3_600_000;
            let rule = format!("must be before opens_at, by {hours} hours at most");
            let zh = format!("必须早于 opens_at，且最多提前 {hours} 小时");
            return Err(Invalid::new("door.members_from", rule).zh(zh));
        }
        Ok(())
    }
}

/// What is absent stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorEdit {
    pub challenge: Option<ChallengeKind>,
    pub difficulty: Option<u32>,
    /// `Some(None)`: as the settings say.
    pub token_before_ms: Option<Option<Millis>>,
    /// `Some(None)`: members come with all others.
    pub members_from: Option<Option<Millis>>,
    pub members_only: Option<bool>,
}

impl DoorEdit {
    pub fn of(&self, door: &Door) -> Door {
        Door {
            challenge: self.challenge.unwrap_or(door.challenge),
            difficulty: self.difficulty.unwrap_or(door.difficulty),
            token_before_ms: self.token_before_ms.unwrap_or(door.token_before_ms),
            members_from: self.members_from.unwrap_or(door.members_from),
            members_only: self.members_only.unwrap_or(door.members_only),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENS_MS: Millis = 1_800_000_000_000;

    #[test]
    fn nonsense_is_refused_with_its_field() {
        let refused = |door: Door| door.check(OPENS_MS).map_err(|invalid| invalid.field);
        let plain = Door::default();
        assert_eq!(refused(plain), Ok(()));
        let members = |ms| Door { members_from: Some(ms), ..plain };
        assert_eq!(refused(members(OPENS_MS - 1)), Ok(()));
        for bad in [OPENS_MS, OPENS_MS + 1, OPENS_MS - MEMBERS_FIRST_MS_MAX - 1, 0] {
            assert_eq!(refused(members(bad)), Err("door.members_from".into()), "{bad}");
        }
        for bad in [0, DIFFICULTY_MIN - 1, DIFFICULTY_MAX + 1] {
            let door = Door { difficulty: bad, ..plain };
            assert_eq!(refused(door), Err("door.difficulty".into()));
        }
        for bad in [-1, TOKEN_BEFORE_MS_MAX + 1] {
            let door = Door { token_before_ms: Some(bad), ..plain };
            assert_eq!(refused(door), Err("door.token_before_ms".into()));
        }
    }

    #[test]
    fn what_is_not_said_stays_and_what_is_kept_can_be_read() {
        let door = Door { difficulty: 20, members_from: Some(7), ..Door::default() };
        assert_eq!(DoorEdit::default().of(&door), door);
        let edit = DoorEdit { members_from: Some(None), ..DoorEdit::default() };
        assert_eq!(edit.of(&door), Door { members_from: None, ..door });
        let kept = serde_json::to_string(&door).unwrap();
        assert_eq!(serde_json::from_str::<Door>(&kept).unwrap(), door);
        assert_eq!(serde_json::from_str::<Door>("{}").unwrap(), Door::default());
    }
}
