//! Admission: a batch is decided in memory, written down in one commit, and only then told.

use std::time::Instant;

use sale::{Claim, Epoch, ItemId, Millis};

use super::{Inner, journal::JournalError, record::Record, writer::Writer};
use crate::{Busy, Decision, NumberedRequest};

impl Inner {
    pub(super) fn admit(&self, batch: &[NumberedRequest]) -> Vec<Decision> {
        let busy = || vec![Decision::Busy(Busy::Unwritable); batch.len()];
        let mut writer = self.writer.lock();
        if writer.journal.is_none() {
            return busy();
        }
        let (decisions, won) = self.decide(batch);
        if won.is_empty() {
            return decisions;
        }
        match self.write_down(&mut writer, won) {
            Ok(()) => decisions,
            // Even a "sold out" of this batch may rest on units that were not really taken.
            Err(error) => {
                writer.give_to_mender(&error);
                busy()
            }
        }
    }

    /// Decide a batch in memory. Winners are marked afterwards, and in the answer grouped by item, but
    /// not yet in the journal.
    fn decide(&self, batch: &[NumberedRequest]) -> (Vec<Decision>, Vec<(ItemId, Record)>) {
        let now_ms = self.clock.now_ms();
        let mut ahead = self.log.backlog();
        let mut decisions = Vec::with_capacity(batch.len());
        let mut won: Vec<(ItemId, Record)> = Vec::new();
        // Neighbours mostly want the same item: look it up once per run of them.
        for run in batch.chunk_by(|(_, a), (_, b)| a.item == b.item) {
            let Some(item) = self.items.get(run[0].1.item) else {
                decisions.extend(run.iter().map(|_| Decision::Busy(Busy::NotLoaded)));
                continue;
            };
            let mut item = item.write();
            let (left_before, marks_before) = (item.left, item.marks.len());
            let (mut winners, mut units) = (0, 0);
            for numbered in run {
                let full = ahead >= self.options.log_claims_max;
                let decision = if full && item.answered(&numbered.1, ahead).is_none() {
                    Decision::Busy(Busy::LogFull)
                } else {
                    item.decide(numbered, now_ms, ahead)
                };
                if let Decision::Admitted { claim, repeated: false, .. } = &decision {
                    ahead += 1;
                    winners += 1;
                    units += i64::from(claim.quantity);
                    push_winner(&mut won, claim, item.epoch, now_ms);
                }
                decisions.push(decision);
            }
            // If one of these is broken, the lane that asked stops before anybody of the batch is told
            // and before anything is in the journal, from which the next start rebuilds the item.
            assert_eq!(item.left, left_before - units, "units of {}", item.item);
            assert!(units == 0 || item.left >= 0, "{} is oversold: {}", item.item, item.left);
            assert_eq!(item.marks.len(), marks_before + winners, "marks of {}", item.item);
        }
        (decisions, won)
    }

    /// The durable half of admitting, and word to the workers.
    fn write_down(
        &self,
        writer: &mut Writer,
        won: Vec<(ItemId, Record)>,
    ) -> Result<(), JournalError> {
        let records: Vec<_> = won.iter().map(|(item, record)| (*item, record)).collect();
        let first = writer.last_seq + 1;
        if let Err(error) = writer.append(&records) {
            self.take_back(&won);
            return Err(error);
        }
        writer.admitted_at = Some(Instant::now());
        self.rush.note(won.iter().map(|(_, record)| record.claims()).sum());
        self.log.push(first, won);
        Ok(())
    }

    /// These winners could not be written down: nobody was told, and their units are there again.
    fn take_back(&self, won: &[(ItemId, Record)]) {
        for (item, record) in won {
            if let (Record::Claims { claims, .. }, Some(item)) = (record, self.items.get(*item)) {
                let mut item = item.write();
                claims.iter().for_each(|claim| item.untake(claim));
            }
        }
    }
}

fn push_winner(won: &mut Vec<(ItemId, Record)>, claim: &Claim, epoch: Epoch, claimed_ms: Millis) {
    // Runs of an item are few per batch, so looking through them is cheaper than hashing.
    let known = won.iter_mut().find(|(item, _)| *item == claim.item);
    match known {
        Some((_, Record::Claims { claims, .. })) => claims.push(claim.clone()),
        _ => {
            let claims = vec![claim.clone()];
            won.push((claim.item, Record::Claims { epoch, claimed_ms, claims }));
        }
    }
}
