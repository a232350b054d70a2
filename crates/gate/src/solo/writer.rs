//! What the journal lock guards. Whoever changes anything holds the lock from the decision to the commit,
//! so changes have one order and that order is the journal's.

use std::{sync::mpsc, time::Instant};

use sale::ItemId;

use super::{
    journal::{Journal, JournalError, pieces::Leftover},
    mender::Broken,
    record::Record,
};

pub(super) struct Writer {
    /// None while it cannot be written: then the mender has it.
    pub(super) journal: Option<Journal>,
    mender: mpsc::Sender<Broken>,
    pub(super) last_seq: u64,
    /// The items' rows contain all entries up to about this one.
    pub(super) rewritten_seq: u64,
    /// Pieces in the file that are of no item, and go little by little.
    pub(super) leftovers: Vec<Leftover>,
    /// When somebody was last admitted.
    pub(super) admitted_at: Option<Instant>,
}

impl Writer {
    pub(super) fn new(mender: mpsc::Sender<Broken>) -> Writer {
        Writer {
            journal: None,
            mender,
            last_seq: 0,
            rewritten_seq: 0,
            leftovers: Vec::new(),
            admitted_at: None,
        }
    }

    /// The journal, before anything is changed that must be in it.
    pub(super) fn journal(&mut self) -> Result<&mut Journal, JournalError> {
        self.journal.as_mut().ok_or(JournalError::Away)
    }

    /// Write changes down. When this returns they are on disk.
    pub(super) fn append(&mut self, records: &[(ItemId, &Record)]) -> Result<(), JournalError> {
        let first = self.last_seq + 1;
        let journal = self.journal()?;
        journal.append(first, records)?;
        let long = journal.checkpoint();
        self.last_seq += records.len() as u64;
        if let Err(error) = long {
            // What was written is written; what comes next waits for the mender.
            self.give_to_mender(&error);
        }
        Ok(())
    }

    /// Something could not be written: the journal goes to the mender. What was to be written must be
    /// undone in memory, or not have been done yet.
    pub(super) fn give_to_mender(&mut self, error: &JournalError) {
        let Some(journal) = self.journal.take() else { return };
        let path = journal.path().display();
        tracing::error!(%path, %error, "the journal cannot be written; nobody is admitted until it can");
        // The mender ends only when this gate is gone.
        let _ = self.mender.send(Broken::by(journal, error));
    }
}
