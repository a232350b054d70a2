//! Files with keys, read again when they change, so that keys are replaced without a restart.
//!
//! A file that cannot be used leaves things as they are, and is told of once. What was read before is
//! given to whoever reads, so that a key that was taken away can be honoured a while longer: what the
//! provider signed or sealed a moment before the change is still on its way.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use sale::Millis;

use crate::rsa::VerifyingKey;

const FILE_BYTES_MAX: u64 = 1_048_576;
/// Files are looked at when they are needed, and no more often than this. They are small and on a local
/// disk: reading them holds nobody up.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a key that was taken away is honoured.
pub(crate) const RETIRED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// Keys of one provider, new and retired. Nobody has more than a handful.
const KEYS_MAX: usize = 64;

type Read<T> = Box<dyn Fn(&[String], Option<&T>) -> Result<T, String> + Send + Sync>;

pub(crate) struct KeyFiles<T> {
    files: Vec<PathBuf>,
    read: Read<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    texts: Vec<String>,
    value: Arc<T>,
    looked_at: Instant,
    /// What was last wrong, so that it is told once.
    problem: Option<String>,
}

impl<T> KeyFiles<T> {
    /// `read` makes the keys from the texts of the files, and from what it made before.
    pub(crate) fn open(
        files: Vec<PathBuf>,
        read: impl Fn(&[String], Option<&T>) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<KeyFiles<T>, String> {
        let texts = texts(&files)?;
        let value = Arc::new(read(&texts, None)?);
        let state = State { texts, value, looked_at: Instant::now(), problem: None };
        Ok(KeyFiles { files, read: Box::new(read), state: Mutex::new(state) })
    }

    /// The keys of now.
    pub(crate) fn now(&self) -> Arc<T> {
        let mut state = self.state.lock();
        if !self.files.is_empty() && state.looked_at.elapsed() >= LOOK_EVERY {
            state.looked_at = Instant::now();
            let found = texts(&self.files);
            if found.as_ref() != Ok(&state.texts) {
                self.renew(&mut state, found);
            }
        }
        state.value.clone()
    }

    fn renew(&self, state: &mut State<T>, found: Result<Vec<String>, String>) {
        let renewed = found.and_then(|texts| {
            let value = (self.read)(&texts, Some(&state.value))?;
            Ok((texts, value))
        });
        match renewed {
            Ok((texts, value)) => {
                tracing::info!(files = ?self.files, "the keys of a payment provider were read anew");
                (state.texts, state.value, state.problem) = (texts, Arc::new(value), None);
            }
            Err(problem) => {
                if state.problem.as_ref() != Some(&problem) {
                    tracing::error!(problem, "keys that changed cannot be used; the old ones stay");
                }
                state.problem = Some(problem);
            }
        }
    }

    /// As if its time to look again had come.
    #[cfg(test)]
    pub(crate) fn look_again(&self) {
        self.state.lock().looked_at = Instant::now() - LOOK_EVERY;
    }
}

fn texts(files: &[PathBuf]) -> Result<Vec<String>, String> {
    files.iter().map(|file| read(file)).collect()
}

pub(crate) fn read(file: &Path) -> Result<String, String> {
    let name = file.display();
    let unreadable = |cause: std::io::Error| format!("{name} cannot be read: {cause}");
    if std::fs::metadata(file).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(format!("{name} is larger than {FILE_BYTES_MAX} bytes"));
    }
    std::fs::read_to_string(file).map_err(unreadable)
}

/// A provider's public keys, by the name that it gives them.
#[derive(Clone, Default)]
pub(crate) struct Keyring(HashMap<String, RingKey>);

#[derive(Clone)]
struct RingKey {
    key: VerifyingKey,
    not_after_ms: Millis,
    /// Since when it is not among the keys that are named any more.
    retired: Option<Instant>,
}

impl Keyring {
    /// These keys from now on, with the last instant of each; those of before for a while longer.
    pub(crate) fn of(
        keys: impl IntoIterator<Item = (String, VerifyingKey, Millis)>,
        before: Option<&Keyring>,
    ) -> Keyring {
        let mut ring: HashMap<String, RingKey> = HashMap::new();
        for (name, key, not_after_ms) in keys.into_iter().take(KEYS_MAX) {
            ring.insert(name, RingKey { key, not_after_ms, retired: None });
        }
        for (name, old) in before.iter().flat_map(|before| &before.0) {
            let retired = old.retired.unwrap_or_else(Instant::now);
            if retired.elapsed() < RETIRED_FOR && ring.len() < KEYS_MAX {
                let old = RingKey { retired: Some(retired), ..old.clone() };
                ring.entry(name.clone()).or_insert(old);
            }
        }
        Keyring(ring)
    }

    pub(crate) fn get(&self, name: &str, now_ms: Millis) -> Option<&VerifyingKey> {
        self.0.get(name).filter(|found| found.is_good(now_ms)).map(|found| &found.key)
    }

    /// All that are good now, in no order.
    pub(crate) fn all(&self, now_ms: Millis) -> impl Iterator<Item = &VerifyingKey> {
        self.0.values().filter(move |found| found.is_good(now_ms)).map(|found| &found.key)
    }
}

impl RingKey {
    fn is_good(&self, now_ms: Millis) -> bool {
        now_ms <= self.not_after_ms
            && self.retired.is_none_or(|since| since.elapsed() < RETIRED_FOR)
    }
}
