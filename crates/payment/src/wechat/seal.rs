//! What WeChat seals with the merchant's APIv3 key: notices, and its platform certificates.

use std::time::Instant;

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use serde::Deserialize;

use super::settings::API_KEY_BYTES;
use crate::key_files::RETIRED_FOR;

const ALGORITHM: &str = "AEAD_AES_256_GCM";
/// Old keys that are still tried.
const OLD_KEYS_MAX: usize = 4;

/// As it stands in the JSON.
#[derive(Debug, Deserialize)]
pub(super) struct Sealed {
    algorithm: String,
    ciphertext: String,
    nonce: String,
    #[serde(default)]
    associated_data: String,
}

/// The key of now, and those that it replaced a short while ago.
pub(super) struct ApiKeys {
    now: [u8; API_KEY_BYTES],
    old: Vec<([u8; API_KEY_BYTES], Instant)>,
}

impl ApiKeys {
    pub(super) fn new(text: &str, before: Option<&ApiKeys>) -> Result<ApiKeys, String> {
        let now: [u8; API_KEY_BYTES] = text.trim().as_bytes().try_into().map_err(|_| {
            format!("the APIv3 key must have {API_KEY_BYTES} bytes, and has {}", text.trim().len())
        })?;
        let mut old = Vec::new();
        if let Some(before) = before {
            old.push((before.now, Instant::now()));
            old.extend(before.old.iter().filter(|(_, since)| since.elapsed() < RETIRED_FOR));
        }
        old.truncate(OLD_KEYS_MAX);
        Ok(ApiKeys { now, old })
    }

    /// What was sealed, if it was by one of these keys and nobody touched it.
    pub(super) fn open(&self, sealed: &Sealed) -> Option<Vec<u8>> {
        if sealed.algorithm != ALGORITHM {
            return None;
        }
        let ciphertext = STANDARD.decode(&sealed.ciphertext).ok()?;
        let old = self.old.iter().filter(|(_, since)| since.elapsed() < RETIRED_FOR);
        let mut keys = std::iter::once(&self.now).chain(old.map(|(key, _)| key));
        keys.find_map(|key| {
            let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?);
            let nonce = Nonce::try_assume_unique_for_key(sealed.nonce.as_bytes()).ok()?;
            let mut bytes = ciphertext.clone();
            let about = Aad::from(sealed.associated_data.as_bytes());
            let opened = key.open_in_place(nonce, about, &mut bytes).ok()?.len();
            bytes.truncate(opened);
            Some(bytes)
        })
    }
}
