//! How an activity lets buyers in, as operators say and see it.

use sale::{ChallengeKind, Door, DoorEdit};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    super::{schemas, times::GivenTime},
    plans::given,
};

#[derive(Serialize, ToSchema)]
#[schema(as = Door)]
pub(in super::super) struct DoorJson {
    #[schema(schema_with = schemas::door_challenge)]
    challenge: ChallengeKind,
    difficulty: u32,
    /// Null: as the settings say where there is a challenge, else at any time.
    token_before_ms: Option<i64>,
    /// Null: members come with all others.
    members_from: Option<i64>,
    members_only: bool,
}

impl From<Door> for DoorJson {
    fn from(door: Door) -> Self {
        DoorJson {
            challenge: door.challenge,
            difficulty: door.difficulty,
            token_before_ms: door.token_before_ms,
            members_from: door.members_from,
            members_only: door.members_only,
        }
    }
}

/// What is absent stays as it is.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct DoorChange {
    #[schema(schema_with = schemas::edited_challenge)]
    challenge: Option<ChallengeKind>,
    #[schema(schema_with = schemas::edited_difficulty)]
    difficulty: Option<u32>,
    /// How long before the opening sale tokens are given. Null: as the settings say where there is a
    /// challenge, else at any time.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = schemas::token_before_ms)]
    token_before_ms: Option<Option<i64>>,
    /// When members may buy, up to a day before the others. Null: with all others.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<GivenTime>)]
    members_from: Option<Option<GivenTime>>,
    /// Nobody but members may buy.
    members_only: Option<bool>,
}

impl From<DoorChange> for DoorEdit {
    fn from(change: DoorChange) -> Self {
        DoorEdit {
            challenge: change.challenge,
            difficulty: change.difficulty,
            token_before_ms: change.token_before_ms,
            members_from: change.members_from.map(|given| given.map(|time| time.0)),
            members_only: change.members_only,
        }
    }
}
