//! Looking back into the journal: what was admitted and is settled since, and what is not.

use async_trait::async_trait;
use sale::{
    BackMark, BackPage, InvalidBackMark, LogError, LoggedClaim, LookBack, LookBackError, Millis,
};

use super::{SoloGate, journal::kept::claims_of};
use crate::Result;

/// A place in the journal is this letter and the number of an entry.
const PLACE: &str = "j";
/// Steps of dropping what is too old in one round of upkeep. Between two of them buyers are served.
const DROP_STEPS_MAX: u32 = 8;

impl SoloGate {
    /// Drop what is kept and too old or too much.
    pub(super) async fn drop_kept(&self) -> Result<()> {
        for _ in 0..DROP_STEPS_MAX {
            let step = self.with_journal(|inner, writer| {
                let now_ms = inner.clock.now_ms();
                writer.journal()?.drop_kept(inner.options.keep, now_ms)
            });
            if !step.await? {
                break;
            }
        }
        Ok(())
    }

    async fn page_after(&self, after: u64, since_ms: Millis) -> Result<BackPage> {
        let read = self.with_journal(move |inner, writer| {
            let journal = writer.journal()?;
            // That somebody cannot look back is no trouble of those who write.
            let piece = journal.piece_after(after, since_ms);
            let waits = |(seq, _, _): &(u64, _, _)| inner.log.lock().is_owed(*seq);
            Ok(piece.map(|piece| {
                let waiting: Vec<bool> = piece.batches.iter().map(waits).collect();
                (piece, waiting)
            }))
        });
        let unreadable = |error| crate::GateError::new(crate::GateFailure::Unreadable, error);
        let (piece, waiting) = read.await?.map_err(unreadable)?;
        let kept_since_ms = self.0.options.keep.since_ms(self.0.clock.now_ms());
        let mut claims = Vec::new();
        for ((_, item, batch), waits) in piece.batches.into_iter().zip(waiting) {
            let batch = claims_of(item, &batch).map_err(unreadable)?;
            // A start may need what is older, and it is not for anybody else.
            let told = |claim: &sale::Claim| waits || claim.claimed_ms >= kept_since_ms;
            let told = batch.into_iter().filter(told);
            claims.extend(told.map(|claim| LoggedClaim { claim, waits }));
        }
        let next = piece.more_after.and_then(|seq| format!("{PLACE}{seq}").parse().ok());
        Ok(BackPage { claims, next })
    }
}

fn seq_of(mark: &BackMark) -> std::result::Result<u64, InvalidBackMark> {
    let seq = mark.as_str().strip_prefix(PLACE).and_then(|seq| seq.parse().ok());
    // As far as SQLite can count.
    seq.filter(|seq| i64::try_from(*seq).is_ok()).ok_or(InvalidBackMark)
}

#[async_trait]
impl LookBack for SoloGate {
    async fn look_back(
        &self,
        since_ms: Millis,
        from: Option<&BackMark>,
    ) -> std::result::Result<BackPage, LookBackError> {
        let after = from.map(seq_of).transpose()?.unwrap_or(0);
        let page = self.page_after(after, since_ms).await;
        page.map_err(|error| LogError(error.detail).into())
    }
}
