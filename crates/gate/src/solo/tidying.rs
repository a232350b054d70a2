//! Tidying up the journal: items are written anew, and the entries they contain dropped, so that the
//! file does not grow for ever nor a start take for ever. All of it in steps, between which buyers are
//! served.

use std::{sync::Arc, time::Duration};

use parking_lot::RwLock;

use super::{
    Inner, SoloGate,
    item::GateItem,
    journal::{Journal, JournalError, kept::Trim},
    writer::Writer,
    writing::Pass,
};
use crate::Result;

/// So many entries on top of the items are too many: at a start, and in a quiet moment ([`SoloGate::tidy`]).
pub const REWRITE_AFTER_ENTRIES: u64 = 20_000;
/// With this many times as many, no quiet moment is waited for: the journal must not grow for ever,
/// nor a restart take for ever.
const REWRITE_AT_ONCE_TIMES: u64 = 10;
/// A moment is quiet when nobody was admitted for this long and no more claims than this wait.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_CLAIMS_MAX: u64 = 1_000;

impl SoloGate {
    /// Write what changed of the items and drop the entries they contain, if there are more than
    /// `entries_max` and the moment is quiet. Answers whether it was done.
    pub async fn tidy(&self, entries_max: u64) -> Result<bool> {
        let due = self.with_journal(move |inner, writer| {
            let entries = writer.last_seq - writer.rewritten_seq;
            let at_once = entries_max.saturating_mul(REWRITE_AT_ONCE_TIMES);
            let is_due = entries > entries_max && (entries > at_once || inner.is_quiet(writer));
            Ok(is_due.then_some((writer.last_seq, entries)))
        });
        let Some((last_seq, entries)) = due.await? else { return Ok(false) };
        for state in self.0.items.all() {
            let changed = state.read().is_to_be_written();
            if changed {
                self.write_item(state).await?;
            }
        }
        let trimmed = self.trim().await?;
        self.with_journal(move |_, writer| {
            writer.rewritten_seq = writer.rewritten_seq.max(last_seq);
            Ok(())
        })
        .await?;
        tracing::info!(entries, trimmed, "the journal was tidied up");
        Ok(true)
    }

    async fn write_item(&self, state: Arc<RwLock<GateItem>>) -> Result<()> {
        let mut pass = None::<Pass>;
        loop {
            let state = state.clone();
            let written =
                self.with_journal(move |inner, writer| inner.next_step(writer, &state, pass));
            match written.await? {
                Some(under_way) => pass = Some(under_way),
                None => return Ok(()),
            }
        }
    }

    /// Entries that nobody needs go. Answers how many.
    pub(super) async fn trim(&self) -> Result<usize> {
        let mut trim = Trim::default();
        loop {
            let trimmed = self.with_journal(move |inner, writer| {
                let mut trim = trim;
                let more = writer.journal()?.trim_step(&mut trim, inner.options.keep)?;
                Ok((trim, more))
            });
            let more;
            (trim, more) = trimmed.await?;
            if !more {
                return Ok(trim.trimmed);
            }
        }
    }

    /// What is of no item goes.
    pub(super) async fn drop_leftovers(&self) -> Result<()> {
        while self
            .with_journal(|_, writer| {
                let Some(leftover) = writer.leftovers.last().copied() else { return Ok(false) };
                if !writer.journal()?.drop_leftover(leftover)? {
                    writer.leftovers.pop();
                }
                Ok(true)
            })
            .await?
        {}
        Ok(())
    }
}

impl Inner {
    /// One step of writing an item. `None`: it is written, or not at the gate any more, or being loaded,
    /// which writes it as well.
    fn next_step(
        &self,
        writer: &mut Writer,
        state: &Arc<RwLock<GateItem>>,
        pass: Option<Pass>,
    ) -> std::result::Result<Option<Pass>, JournalError> {
        let item = state.read().item;
        let is_here = self.items.get(item).is_some_and(|here| Arc::ptr_eq(&here, state));
        if !is_here || self.is_filling(item) {
            return Ok(None);
        }
        let mut pass = pass.unwrap_or_else(|| Pass::of(&state.read(), writer));
        let more = self.write_step(writer, state, &mut pass, None)?;
        Ok(more.then_some(pass))
    }

    /// Take what the journal holds for the truth.
    pub(super) fn begin_with(&self, journal: Journal) -> std::result::Result<(), JournalError> {
        let contents = journal.read_all()?;
        let mut writer = self.writer.lock();
        writer.last_seq = contents.last_seq;
        writer.rewritten_seq = contents.last_seq - contents.replayed.min(contents.last_seq);
        writer.leftovers = contents.leftovers;
        for item in contents.items {
            self.items.put(item.item, Arc::new(RwLock::new(item)));
        }
        self.log.restore(contents.acked, contents.unsettled);
        let keep = self.options.keep;
        writer.journal = Some(journal);
        if contents.replayed > REWRITE_AFTER_ENTRIES {
            for state in self.items.all() {
                let mut pass = None;
                loop {
                    pass = self.next_step(&mut writer, &state, pass)?;
                    if pass.is_none() {
                        break;
                    }
                }
            }
            writer.rewritten_seq = writer.last_seq;
        }
        let mut trim = Trim::default();
        while writer.journal()?.trim_step(&mut trim, keep)? {}
        Ok(())
    }

    fn is_quiet(&self, writer: &Writer) -> bool {
        writer.admitted_at.is_none_or(|admitted_at| admitted_at.elapsed() >= QUIET)
            && self.log.backlog() <= QUIET_CLAIMS_MAX
    }
}
