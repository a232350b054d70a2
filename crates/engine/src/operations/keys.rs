//! Signing keys after the first one: made, learned by every instance before they sign, taken away by hand.
//!
//! A new key is a row of the ledger that says from when on it signs. Every instance reads the rows every few
//! seconds, so all of them can verify what it signs before the first of them signs with it: that is what the
//! lead is for. Old keys go on verifying. Sale tokens and tickets live for minutes, receipts for as long as
//! somebody may present one, so nobody but a person decides that a key is not needed any more.
//!
//! An instance that cannot read the ledger keeps the keys it knows, and begins to sign with one it knew of
//! when its time has come. One that could not read it during the whole lead refuses the new tokens of others
//! until it can; buyers then fetch one there.

use std::sync::Arc;

use ledger::LaterKey;
use parking_lot::Mutex;
use sale::{FIRST_KEY, Millis, SigningKeys};
use serde_json::json;

use super::{OperateError, Result};
use crate::{
    actor::{Actor, audit_entry},
    secrets,
    shared::Shared,
};

/// How long before it signs a key is made, unless somebody says otherwise.
pub const KEY_LEAD_MS: u64 = 300_000;
/// Nobody plans further ahead.
pub const KEY_LEAD_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1_000;

/// What a key does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// It will sign.
    Next,
    Signing,
    /// What it signed is still good.
    Verifying,
    /// What it signed is void.
    Retired,
}

#[derive(Clone, Debug)]
pub struct KnownKey {
    pub id: u8,
    pub state: KeyState,
    /// Absent for the first one.
    pub created_ms: Option<Millis>,
    pub signs_from_ms: Option<Millis>,
    pub retired_ms: Option<Millis>,
}

pub struct Keys {
    pub(crate) shared: Arc<Shared>,
    pub(crate) keys: SigningKeys,
    /// As they were last read.
    pub(crate) known: Mutex<Vec<LaterKey>>,
}

impl Keys {
    /// Learn of new keys, and let the right one sign. Without the ledger those that are known go on.
    pub async fn learn(&self) -> ledger::Result<()> {
        let read = self.shared.ledger.signing_keys().await;
        if let Ok(rows) = &read {
            self.known.lock().clone_from(rows);
        }
        let (now_ms, before) = (self.shared.now_ms(), self.keys.signing());
        let known = self.known.lock().clone();
        let good = known.iter().filter(|key| key.id != FIRST_KEY && key.retired_ms.is_none());
        let good = good.map(|key| (key.id, key.secret.expose().as_bytes()));
        let signing = signing(&known, now_ms);
        let with_first = !is_retired(&known, FIRST_KEY);
        if self.keys.replace(good, with_first, signing) && signing != before {
            tracing::info!(key = signing, "another key signs from now on");
        }
        read.map(drop)
    }

    pub async fn all(&self) -> Result<Vec<KnownKey>> {
        let known = self.shared.ledger.signing_keys().await?;
        Ok(shown(&known, self.shared.now_ms()))
    }

    /// Make a key that signs after this time.
    pub async fn rotate(&self, who: impl Into<Actor>, after_ms: u64) -> Result<KnownKey> {
        let secret =
            secrets::generate().map_err(|error| OperateError::Random(error.to_string()))?;
        let now_ms = self.shared.now_ms();
        let signs_from_ms = now_ms.saturating_add_unsigned(after_ms.min(KEY_LEAD_MS_MAX));
        let detail = json!({"signs_from": signs_from_ms});
        let entry = audit_entry(who, "key.rotate", "key".into(), detail);
        let ledger = &self.shared.ledger;
        let made = ledger.add_signing_key(secret.expose(), signs_from_ms, &entry, now_ms).await?;
        let id = made.ok_or(OperateError::Conflict("the last of 255 keys"))?;
        self.learn().await?;
        let known = self.known.lock().clone();
        shown(&known, now_ms).into_iter().find(|key| key.id == id).ok_or(OperateError::NotFound)
    }

    /// Take a key away for good: what it signed is void.
    pub async fn retire(&self, who: impl Into<Actor>, id: u8) -> Result<()> {
        let known = self.shared.ledger.signing_keys().await?;
        let now_ms = self.shared.now_ms();
        let key = shown(&known, now_ms).into_iter().find(|key| key.id == id);
        match key.ok_or(OperateError::NotFound)?.state {
            KeyState::Signing => return Err(OperateError::Conflict("signing")),
            KeyState::Retired => return Err(OperateError::Conflict("retired")),
            KeyState::Next | KeyState::Verifying => {}
        }
        let entry = audit_entry(who, "key.retire", format!("key:{id}"), json!({}));
        self.shared.ledger.retire_signing_key(id, &entry, now_ms).await?;
        Ok(self.learn().await?)
    }
}

fn is_retired(known: &[LaterKey], id: u8) -> bool {
    known.iter().any(|key| key.id == id && key.retired_ms.is_some())
}

/// The one that is to sign at this time: the last one whose time has come.
fn signing(known: &[LaterKey], now_ms: Millis) -> u8 {
    let due = known.iter().filter(|key| {
        key.id != FIRST_KEY && key.retired_ms.is_none() && key.signs_from_ms <= now_ms
    });
    due.max_by_key(|key| (key.signs_from_ms, key.id)).map_or(FIRST_KEY, |key| key.id)
}

fn shown(known: &[LaterKey], now_ms: Millis) -> Vec<KnownKey> {
    let signing = signing(known, now_ms);
    let state = |id: u8, signs_from_ms: Millis| match id {
        id if is_retired(known, id) => KeyState::Retired,
        id if id == signing => KeyState::Signing,
        _ if signs_from_ms > now_ms => KeyState::Next,
        _ => KeyState::Verifying,
    };
    let first_retired = known.iter().find(|key| key.id == FIRST_KEY).and_then(|key| key.retired_ms);
    let first = KnownKey {
        id: FIRST_KEY,
        state: state(FIRST_KEY, 0),
        created_ms: None,
        signs_from_ms: None,
        retired_ms: first_retired,
    };
    let later = known.iter().filter(|key| key.id != FIRST_KEY).map(|key| KnownKey {
        id: key.id,
        state: state(key.id, key.signs_from_ms),
        created_ms: Some(key.created_ms),
        signs_from_ms: Some(key.signs_from_ms),
        retired_ms: key.retired_ms,
    });
    std::iter::once(first).chain(later).collect()
}

#[cfg(test)]
mod tests {
    use sale::Secret;

    use super::*;

    fn key(id: u8, signs_from_ms: Millis, retired_ms: Option<Millis>) -> LaterKey {
        LaterKey { id, secret: Secret::new("x"), created_ms: 0, signs_from_ms, retired_ms }
    }

    #[test]
    fn the_last_key_whose_time_has_come_signs() {
        let keys = [key(1, 100, None), key(2, 200, None), key(3, 150, Some(5))];
        for (now_ms, id) in [(99, 0), (100, 1), (199, 1), (200, 2)] {
            assert_eq!(signing(&keys, now_ms), id, "{now_ms}");
        }
        let states: Vec<KeyState> = shown(&keys, 150).iter().map(|key| key.state).collect();
        use KeyState::{Next, Retired, Signing, Verifying};
        assert_eq!(states, [Verifying, Signing, Next, Retired]);
        let gone = [key(0, 0, Some(7)), key(1, 100, None)];
        assert_eq!(shown(&gone, 150)[0].state, Retired);
    }
}
