//! What Alipay signs and wants signed: parameters in the order of their names, joined as `name=value&…`,
//! with RSA and SHA-256, which it calls RSA2.
//!
//! In a request all parameters but `sign` and the empty ones count; in a notice all but `sign` and
//! `sign_type`, with the empty ones or without. What is sent as a form is signed as it reads, not as it is
//! encoded.

use std::{collections::BTreeMap, path::Path};

use md5::{Digest, Md5};
use sale::{Millis, SharedClock};

use super::settings::AlipaySettings;
use crate::{
    certificate::{Certificate, hex},
    key_files::{KeyFiles, Keyring},
    rsa::{SigningKey, VerifyingKey, certificates},
};

pub(super) type Parameters = BTreeMap<String, String>;

/// Certificates between Alipay's own and the root.
const CHAIN_MAX: usize = 4;
/// How Alipay's key is called where it has no name.
const UNNAMED: &str = "alipay";

/// Ours, Alipay's, and what both are called.
pub(super) struct Keys {
    pub(super) own: SigningKey,
    pub(super) alipay: Keyring,
    /// Of the app's certificate and of the root, where Alipay is told of certificates.
    pub(super) serials: Option<(String, String)>,
}

pub(super) fn content<'a>(parameters: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut content = String::new();
    for (name, value) in parameters {
        if !content.is_empty() {
            content.push('&');
        }
        content.push_str(name);
        content.push('=');
        content.push_str(value);
    }
    content
}

/// What of a request is signed.
pub(super) fn of_request(parameters: &Parameters) -> String {
    let counts = |(name, value): &(&String, &String)| *name != "sign" && !value.is_empty();
    content(parameters.iter().filter(counts).map(|(name, value)| (name.as_str(), value.as_str())))
}

/// What of a notice is signed.
pub(super) fn of_notice(parameters: &Parameters) -> String {
    let counts = |(name, _): &(&String, &String)| *name != "sign" && *name != "sign_type";
    content(parameters.iter().filter(counts).map(|(name, value)| (name.as_str(), value.as_str())))
}

impl Keys {
    /// Is this Alipay's signature? By the certificate it names, or by any key of its that is good.
    pub(super) fn verify(
        &self,
        message: &str,
        signature: &str,
        named: Option<&str>,
        now_ms: Millis,
    ) -> bool {
        let good = |key: &VerifyingKey| key.verify(message.as_bytes(), signature);
        match named {
            Some(name) => self.alipay.get(name, now_ms).is_some_and(good),
            None => self.alipay.all(now_ms).any(good),
        }
    }
}

pub(super) fn key_files(
    settings: &AlipaySettings,
    clock: SharedClock,
) -> Result<KeyFiles<Keys>, String> {
    let mut files = vec![settings.private_key_file.clone()];
    if settings.by_certificates() {
        files.extend(settings.certificate_files().map(Path::to_path_buf));
    } else {
        files.push(settings.public_key_file.clone());
    }
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    KeyFiles::open(files, move |texts, before: Option<&Keys>| {
        let before = before.map(|keys| &keys.alipay);
        let said = |at: usize| {
            let name = names[at].clone();
            move |why: String| format!("{name} {why}")
        };
        let own = SigningKey::from_text(&texts[0]).map_err(said(0))?;
        let [_, app, alipay, root] = texts else {
            let key = VerifyingKey::from_text(&texts[1]).map_err(said(1))?;
            if key.is_of(&own) {
                return Err(said(1)("is our own public key; Alipay's belongs here".into()));
            }
            // Its name is the key itself, so that another one does not take its place at once.
            let name = format!("{UNNAMED}:{key:?}");
            let alipay = Keyring::of([(name, key, Millis::MAX)], before);
            return Ok(Keys { own, alipay, serials: None });
        };
        let app = &certificates(app).map_err(said(1))?[0];
        if !VerifyingKey::of(app).is_some_and(|public| public.is_of(&own)) {
            return Err(said(1)(format!("is not the certificate of the key in {}", names[0])));
        }
        let alipay = certificates(alipay).map_err(said(2))?;
        let roots = certificates(root).map_err(said(3))?;
        let now_ms = clock.now_ms();
        if !leads_to(&alipay, &roots, now_ms) {
            return Err(said(2)(format!("is not valid now, or does not lead to {}", names[3])));
        }
        let key = VerifyingKey::of(&alipay[0]).ok_or_else(|| said(2)("has no RSA key".into()))?;
        let unreadable = |at: usize| said(at)("names an issuer that cannot be read".into());
        let name = serial(&alipay[0]).ok_or_else(|| unreadable(2))?;
        let serials = (
            serial(app).ok_or_else(|| unreadable(1))?,
            root_serial(&roots).ok_or_else(|| unreadable(3))?,
        );
        let ring = Keyring::of([(name, key, alipay[0].not_after_ms)], before);
        Ok(Keys { own, alipay: ring, serials: Some(serials) })
    })
}

/// How Alipay calls a certificate: the MD5 digest of its issuer and serial number. It is a name, and
/// nothing relies on its strength.
pub(super) fn serial(certificate: &Certificate) -> Option<String> {
    let named = certificate.issuer_text()? + &certificate.serial_decimal();
    Some(hex(&Md5::digest(named.as_bytes())).to_ascii_lowercase())
}

/// Of all roots whose signature is one of RSA.
pub(super) fn root_serial(roots: &[Certificate]) -> Option<String> {
    let of_rsa = roots.iter().filter(|root| root.is_signed_by_rsa());
    let all: Option<Vec<String>> = of_rsa.map(serial).collect();
    all.map(|all| all.join("_"))
}

/// Does the first of these lead to one of the roots, by the others?
fn leads_to(chain: &[Certificate], roots: &[Certificate], now_ms: Millis) -> bool {
    let Some((mut last, others)) = chain.split_first() else { return false };
    for _ in 0..=CHAIN_MAX {
        if !last.is_valid_at(now_ms) {
            return false;
        }
        if roots.iter().any(|root| last.is_signed_by(root) && root.is_valid_at(now_ms)) {
            return true;
        }
        match others.iter().find(|other| last.is_signed_by(other) && *other != last) {
            Some(next) => last = next,
            None => return false,
        }
    }
    false
}
