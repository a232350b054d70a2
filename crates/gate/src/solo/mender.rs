//! The mender: brings a journal back that could not be written.
//!
//! A write that fails hands the journal over to this thread, and while it is here the gate admits
//! nobody and changes nothing; it still answers what it knows. The thread waits a moment, tries, and
//! waits longer each time, so that neither a full disk nor a broken one is kept busy by us, and nobody
//! who wants to buy waits for it. When the journal can be written it goes back to the gate.
//!
//! The pauses are measured by the machine's own time: a clock that steps back does not make them longer.

use std::{
    path::{Path, PathBuf},
    sync::{Weak, mpsc},
    time::{Duration, Instant},
};

use sale::LogEntry;

use super::{
    Inner,
    journal::{Acked, Journal, JournalError, Stored},
    record::Record,
};

/// The first pause, and the longest; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A journal that was well for this long begins with the shortest pause again.
const WELL: Duration = Duration::from_secs(10);

/// A journal that could not be written.
pub(super) enum Broken {
    /// The write was refused. The file is as it was.
    Refused(Box<Journal>),
    /// It is not known what of the file is on the disk. Nobody has it open.
    InDoubt(PathBuf),
}

/// A try to mend it failed.
type Failed = Box<(JournalError, Broken)>;

impl Broken {
    pub(super) fn by(journal: Journal, error: &JournalError) -> Broken {
        if error.is_in_doubt() || !journal.is_idle() {
            Broken::InDoubt(journal.close_untouched())
        } else {
            Broken::Refused(Box::new(journal))
        }
    }

    fn path(&self) -> &Path {
        match self {
            Broken::Refused(journal) => journal.path(),
            Broken::InDoubt(path) => path,
        }
    }

    fn still(journal: Journal, error: JournalError) -> Failed {
        let broken = Broken::by(journal, &error);
        Box::new((error, broken))
    }
}

/// Start the thread. It ends when the gate is gone.
pub(super) fn start(broken: mpsc::Receiver<Broken>, gate: Weak<Inner>) -> std::io::Result<()> {
    let mend = move || {
        let mut pause = PAUSE_MIN;
        let mut mended_at = None::<Instant>;
        while let Ok(journal) = broken.recv() {
            if mended_at.is_none_or(|at| at.elapsed() > WELL) {
                pause = PAUSE_MIN;
            }
            if !mend(&gate, &broken, journal, &mut pause) {
                return;
            }
            mended_at = Some(Instant::now());
        }
    };
    std::thread::Builder::new().name("journal-mender".into()).spawn(mend).map(drop)
}

/// Try until it is done. False if the gate is gone.
fn mend(
    gate: &Weak<Inner>,
    gone: &mpsc::Receiver<Broken>,
    mut broken: Broken,
    pause: &mut Duration,
) -> bool {
    loop {
        // There is one journal, and it is here: all that can be heard is that the gate is gone.
        if !matches!(gone.recv_timeout(*pause), Err(mpsc::RecvTimeoutError::Timeout)) {
            return false;
        }
        *pause = (*pause * 2).min(PAUSE_MAX);
        let Some(inner) = gate.upgrade() else { return false };
        match inner.mend(broken) {
            Ok(()) => return true,
            Err(failed) => {
                let (error, still) = *failed;
                // Once the pauses are long, no more: a line every two seconds would fill the log.
                if *pause < PAUSE_MAX {
                    let path = still.path().display();
                    tracing::warn!(%path, %error, "the journal still cannot be written");
                }
                broken = still;
            }
        }
    }
}

impl Inner {
    /// One try to bring the journal back.
    fn mend(&self, broken: Broken) -> Result<(), Failed> {
        let mut journal = match broken {
            Broken::Refused(journal) => *journal,
            Broken::InDoubt(path) => match Journal::reopen(&path) {
                Ok(journal) => return self.mend_in_doubt(journal),
                Err(error) => return Err(Box::new((error.into(), Broken::InDoubt(path)))),
            },
        };
        match journal.try_again() {
            Ok(()) => self.put_back(journal, None),
            Err(error) => Err(Broken::still(journal, error)),
        }
    }

    /// The file is secured; what the gate knows is written into it anew.
    fn mend_in_doubt(&self, mut journal: Journal) -> Result<(), Failed> {
        match self.write_anew(&mut journal) {
            Ok(rewritten_seq) => self.put_back(journal, Some(rewritten_seq)),
            // Whatever it was: the file may hold what the gate does not.
            Err(error) => Err(Box::new((error, Broken::InDoubt(journal.close_untouched())))),
        }
    }

    /// Nobody changes the items meanwhile: every change needs the journal first.
    fn write_anew(&self, journal: &mut Journal) -> Result<u64, JournalError> {
        let as_of = self.writer.lock().last_seq;
        let owed: Vec<Stored> = self.log.lock().all().map(stored).collect();
        self.items.replace_in(journal, as_of, &owed)?;
        // Of an item that is being loaded for the first time nothing is in the file any more.
        self.forget_written_of_new_ones();
        Ok(as_of)
    }

    fn put_back(&self, mut journal: Journal, rewritten_seq: Option<u64>) -> Result<(), Failed> {
        let mut writer = self.writer.lock();
        let mut log = self.log.lock();
        // What was acknowledged meanwhile is known in memory only.
        let acked = Acked { cursor: log.acked, beyond: log.unsaved.clone() };
        if let Err(error) = journal.ack(&acked) {
            return Err(Broken::still(journal, error));
        }
        log.unsaved.clear();
        drop(log);
        writer.rewritten_seq = rewritten_seq.unwrap_or(writer.rewritten_seq);
        tracing::info!(path = %journal.path().display(), "the journal can be written again");
        writer.journal = Some(journal);
        Ok(())
    }
}

/// An entry of the log as it lies in the journal.
fn stored(entry: &LogEntry) -> Stored {
    let claimed_ms = entry.claims.first().map_or(0, |claim| claim.claimed_ms);
    let record = Record::Claims { epoch: entry.epoch, claimed_ms, claims: entry.claims.clone() };
    Stored { seq: entry.id.place.0, item: entry.item, record }
}
