//! Sale tokens: who is given one, and what they have to do for it.
//!
//! Everything that takes time or asks a store is done here, in the minutes before the opening; the claim
//! carries the token and is asked for nothing but that (and whether its buyer has to wait, from memory). In
//! this order, so that whoever brings nothing costs nothing: is there a sale, does the buyer have to wait, is
//! it time, is the challenge solved (one HMAC, then as much work as the buyer did for one try), what do the
//! lists say (the ledger, many buyers in one statement), was the challenge used before (memory, or one call
//! of Redis for all instances).
//!
//! **A challenge is kept by nobody until it is spent.** A wrong answer spends it as well, so letters are
//! guessed once. In one process what is spent is in memory, and what was made before the process began is
//! over; buyers' pages ask for a new one by themselves.

mod cool_downs;
mod hoarding;
mod lists;
mod wrong_answers;

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
};

use ledger::{LedgerError, Listed};
use sale::{
    Activity, ActivityState, CODE_CHARS, CODE_LETTERS, Challenge, ChallengeFault, ChallengeKind,
    DIFFICULTY_MAX, Item, Millis, NewChallenge, OpenedChallenge, SaleToken, SigningKeys, UserId,
};

use crate::{
    OnShow,
    coordination::{Hint, Spending},
    shared::Shared,
};
pub(crate) use cool_downs::CoolDowns;
pub(crate) use hoarding::Hoarding;
use lists::ListReads;
pub use lists::Lists;
pub(crate) use wrong_answers::WrongAnswers;

/// Whoever cannot read a picture has the machine work so much longer instead: eight times.
const INSTEAD_OF_READING_BITS: u32 = 3;
/// So far the clocks of instances may be apart, and one may step. A wait that lasts for longer than this
/// beyond the longest there is was noted by a clock that has been set right since.
const CLOCKS_APART_MS_MAX: Millis = 10_000;

pub struct SaleTokens {
    shared: Arc<Shared>,
    keys: SigningKeys,
    pub(crate) hoarding: Arc<Hoarding>,
    lists: ListReads,
    /// Of the challenges that this process makes. Where nobody else remembers which were spent, those of
    /// earlier processes are over.
    series: u64,
}

/// Why there is no token.
#[derive(Debug)]
pub enum NotLetIn {
    Ended,
    /// Tokens are given from then on.
    TooEarly {
        from_ms: Millis,
    },
    /// There is a challenge to be solved first.
    Unsolved(ChallengeKind),
    /// What was brought is no solution.
    BadChallenge(BadChallenge),
    CoolingDown {
        until_ms: Millis,
        reason: CoolReason,
    },
    /// The lists of the shop say no.
    NotEligible(NotEligible),
    /// Nobody can tell now.
    Unknown(String),
    Ledger(LedgerError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadChallenge {
    Fault(ChallengeFault),
    /// It was good, once.
    Spent,
}

impl BadChallenge {
    /// As the API names it.
    pub fn as_str(self) -> &'static str {
        match self {
            BadChallenge::Fault(ChallengeFault::Unreadable) => "unreadable",
            BadChallenge::Fault(ChallengeFault::Forged | ChallengeFault::OtherItem) => "foreign",
            BadChallenge::Fault(ChallengeFault::Expired) => "expired",
            BadChallenge::Fault(ChallengeFault::Unsolved) => "unsolved",
            BadChallenge::Fault(ChallengeFault::WrongCode) => "wrong_code",
            BadChallenge::Spent => "spent",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoolReason {
    UnpaidOrders,
    WrongAnswers,
}

impl CoolReason {
    pub fn as_str(self) -> &'static str {
        match self {
            CoolReason::UnpaidOrders => "unpaid_orders",
            CoolReason::WrongAnswers => "wrong_answers",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotEligible {
    Blocked,
    MembersOnly,
}

impl NotEligible {
    pub fn as_str(self) -> &'static str {
        match self {
            NotEligible::Blocked => "blocked",
            NotEligible::MembersOnly => "members_only",
        }
    }
}

/// A challenge to be handed out.
pub struct MadeChallenge {
    pub kind: ChallengeKind,
    pub challenge: Challenge,
    /// A PNG with letters to be read, where there is one.
    pub picture: Option<Vec<u8>>,
    pub expires_ms: Millis,
}

/// What a buyer brings: the text of a solver, and the letters of the picture.
#[derive(Clone, Copy, Debug)]
pub struct GivenSolution<'s> {
    pub altcha: &'s str,
    pub code: Option<&'s str>,
}

impl SaleTokens {
    pub(crate) fn new(
        shared: Arc<Shared>,
        keys: SigningKeys,
        hoarding: Arc<Hoarding>,
    ) -> SaleTokens {
        SaleTokens {
            lists: ListReads::new(shared.ledger.clone()),
            series: RandomState::new().build_hasher().finish(),
            keys,
            hoarding,
            shared,
        }
    }

    /// Must this buyer's claims wait, and until when? From memory.
    pub fn cooling_down(&self, user: &UserId) -> Option<Millis> {
        self.hoarding.cool_downs.until(user, || self.shared.now_ms())
    }

    /// A challenge for this buyer and item. `instead`: one without a picture, wherever there is one.
    pub fn challenge(
        &self,
        user: &UserId,
        shown: &OnShow,
        instead: bool,
    ) -> Result<MadeChallenge, NotLetIn> {
        let (activity, now_ms) = (shown.activity(), self.shared.now_ms());
        self.check_time(activity, now_ms)?;
        self.check_waits(user, now_ms)?;
        let door = activity.door;
        let mut random = [0; 32];
        let mut drawn = [0; CODE_CHARS + 8];
        let unlucky = |error: getrandom::Error| NotLetIn::Unknown(error.to_string());
        getrandom::fill(&mut random).map_err(unlucky)?;
        getrandom::fill(&mut drawn).map_err(unlucky)?;
        let (letters, seed) = drawn.split_at(CODE_CHARS);
        let reads = door.challenge == ChallengeKind::Captcha && !instead;
        let code: Option<String> = reads.then(|| {
            let letter = |byte: &u8| CODE_LETTERS[usize::from(*byte) % CODE_LETTERS.len()] as char;
            letters.iter().map(letter).collect()
        });
        let harder = door.challenge == ChallengeKind::Captcha && instead;
        let difficulty = door.difficulty + if harder { INSTEAD_OF_READING_BITS } else { 0 };
        let expires_ms = now_ms + self.shared.settings.door.challenge_ttl_ms as Millis;
        let new = NewChallenge {
            user,
            item: shown.item().id,
            difficulty: difficulty.min(DIFFICULTY_MAX),
            code: code.as_deref(),
            issued_ms: now_ms,
            expires_ms,
            series: self.series,
            random,
        };
        let seed = u64::from_be_bytes(seed.try_into().unwrap_or_default());
        Ok(MadeChallenge {
            kind: if reads { ChallengeKind::Captcha } else { ChallengeKind::Pow },
            challenge: Challenge::new(new, &self.keys),
            picture: code.map(|code| captcha::picture(&code, seed)),
            expires_ms,
        })
    }

    /// A sale token, if this buyer may have one.
    pub async fn token(
        &self,
        user: &UserId,
        shown: &OnShow,
        ttl_ms: Millis,
        solution: Option<GivenSolution<'_>>,
    ) -> Result<SaleToken, NotLetIn> {
        let (activity, item) = (shown.activity(), shown.item());
        let now_ms = self.shared.now_ms();
        self.check_time(activity, now_ms)?;
        self.check_waits(user, now_ms)?;
        let solved = match (activity.door.challenge, solution) {
            (ChallengeKind::Off, _) => None,
            (kind, None) => return Err(NotLetIn::Unsolved(kind)),
            (_, Some(solution)) => Some(self.solved(user, item, solution, now_ms).await?),
        };
        let from_ms = self.eligible(user, activity).await?;
        if let Some(opened) = solved {
            self.spend(&opened, now_ms).await?;
        }
        let expires_ms = now_ms + ttl_ms;
        Ok(SaleToken { user: user.clone(), item: item.id, expires_ms, from_ms })
    }

    fn check_time(&self, activity: &Activity, now_ms: Millis) -> Result<(), NotLetIn> {
        if activity.state == ActivityState::Ended || now_ms >= activity.closes_ms {
            return Err(NotLetIn::Ended);
        }
        let door = &activity.door;
        let usual_ms = self.shared.settings.door.token_before_ms as Millis;
        let usual_ms = (door.challenge != ChallengeKind::Off).then_some(usual_ms);
        let Some(before_ms) = door.token_before_ms.or(usual_ms) else { return Ok(()) };
        let from_ms = activity.first_claim_ms().saturating_sub(before_ms);
        if now_ms < from_ms { Err(NotLetIn::TooEarly { from_ms }) } else { Ok(()) }
    }

    fn check_waits(&self, user: &UserId, now_ms: Millis) -> Result<(), NotLetIn> {
        let waits = |until_ms, reason| Err(NotLetIn::CoolingDown { until_ms, reason });
        if let Some(until_ms) = self.cooling_down(user) {
            return waits(until_ms, CoolReason::UnpaidOrders);
        }
        match self.shared.wrong_answers.until(user, now_ms) {
            Some(until_ms) => waits(until_ms, CoolReason::WrongAnswers),
            None => Ok(()),
        }
    }

    /// The challenge that was solved, not spent yet. A wrong answer is counted, and spends it.
    async fn solved(
        &self,
        user: &UserId,
        item: &Item,
        solution: GivenSolution<'_>,
        now_ms: Millis,
    ) -> Result<OpenedChallenge, NotLetIn> {
        let opened = OpenedChallenge::open(solution.altcha, user, item.id, &self.keys, now_ms);
        let opened = match opened {
            Ok(opened) if !self.shared.is_cluster() && opened.series != self.series => {
                return Err(bad(ChallengeFault::Expired));
            }
            Ok(opened) => opened,
            // Nobody's fault: the page was asleep.
            Err(ChallengeFault::Expired) => return Err(bad(ChallengeFault::Expired)),
            Err(fault) => {
                self.note_wrong(user, now_ms).await;
                return Err(bad(fault));
            }
        };
        if let Err(fault) = opened.check(solution.code, &self.keys) {
            self.note_wrong(user, now_ms).await;
            self.spend(&opened, now_ms).await?;
            return Err(bad(fault));
        }
        Ok(opened)
    }

    /// Whoever guesses at all instances in turn has no more tries than at one, but for hints that are lost.
    async fn note_wrong(&self, user: &UserId, now_ms: Millis) {
        self.shared.wrong_answers.note(user, now_ms);
        let from = self.shared.instance.clone();
        self.shared.coordination.tell(&Hint::WrongAnswer { user: user.clone(), from }).await;
    }

    async fn spend(&self, opened: &OpenedChallenge, now_ms: Millis) -> Result<(), NotLetIn> {
        let spending = self.shared.coordination.spend(opened.id, opened.expires_ms, now_ms).await;
        match spending.map_err(NotLetIn::Unknown)? {
            Spending::Done => Ok(()),
            Spending::Before => Err(NotLetIn::BadChallenge(BadChallenge::Spent)),
            Spending::NoRoom => Err(NotLetIn::Unknown("too many challenges are solved".into())),
        }
    }

    /// From when the token is good, if the gate alone does not see to that.
    async fn eligible(
        &self,
        user: &UserId,
        activity: &Activity,
    ) -> Result<Option<Millis>, NotLetIn> {
        let door = &activity.door;
        if !door.asks_for_members() && !self.hoarding.cool_downs.is_anybody_blocked(activity.id) {
            return Ok(None);
        }
        let listed = self.lists.listed(activity.id, user.clone()).await;
        let Listed { member, blocked } = listed.map_err(NotLetIn::Ledger)?;
        if blocked {
            return Err(NotLetIn::NotEligible(NotEligible::Blocked));
        }
        if door.members_only && !member {
            return Err(NotLetIn::NotEligible(NotEligible::MembersOnly));
        }
        Ok(door.members_from.filter(|_| !member).map(|_| activity.opens_ms))
    }
}

fn bad(fault: ChallengeFault) -> NotLetIn {
    NotLetIn::BadChallenge(BadChallenge::Fault(fault))
}
