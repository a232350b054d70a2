//! Draws of a fair start: what decides them, kept until they are over, and what came of them.
//!
//! Nothing here is asked while buyers claim: secrets are read before the opening, and the record is written
//! when everybody has been answered.

use async_trait::async_trait;
use sale::{ActivityId, DrawPlace, DrawSecrets, Drawn, ItemId};

use crate::Result;

/// Lines of a record that are written in one transaction.
pub const DRAWN_AT_ONCE_MAX: usize = 5_000;

#[async_trait]
pub trait Draws: Send + Sync {
    /// What decides the draws of an activity. Every activity with a `shuffle_ms` has been given it in the
    /// transaction that gave it that.
    async fn draw_secrets(&self, activity: ActivityId) -> Result<Option<DrawSecrets>>;

    /// Lines of the record, [`DRAWN_AT_ONCE_MAX`] at most. Twice is once; of two lines of one place, from two
    /// instances at which a buyer asked, the better one stays.
    async fn note_drawn(&self, item: ItemId, drawn: &[Drawn]) -> Result<()>;

    /// The record behind this place, in its order.
    async fn drawn(
        &self,
        item: ItemId,
        after: Option<DrawPlace>,
        limit: usize,
    ) -> Result<Vec<Drawn>>;

    /// The line of one place.
    async fn drawn_at(&self, item: ItemId, place: DrawPlace) -> Result<Option<Drawn>>;
}
