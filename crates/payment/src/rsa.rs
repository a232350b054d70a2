//! RSA with SHA-256, which both providers sign with, and the files that its keys come in.

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey},
};
use rustls_pki_types::pem::{PemObject, SectionKind};

use crate::certificate::{Certificate, rsa_key};

/// What we sign with.
pub(crate) struct SigningKey(RsaKeyPair);

impl SigningKey {
    /// From a PEM file (PKCS#1 or PKCS#8), or the bare base64 that Alipay's tool writes.
    pub(crate) fn from_text(text: &str) -> Result<SigningKey, String> {
        let pair = match sections(text)?.into_iter().find(|(kind, _)| is_private(*kind)) {
            Some((SectionKind::RsaPrivateKey, der)) => RsaKeyPair::from_der(&der),
            Some((_, der)) => RsaKeyPair::from_pkcs8(&der),
            None => {
                let der = bare(text).ok_or("holds no private key")?;
                RsaKeyPair::from_pkcs8(&der).or_else(|_| RsaKeyPair::from_der(&der))
            }
        };
        pair.map(SigningKey).map_err(|why| {
            format!("holds no private RSA key of 2048 bits or more that can be used ({why})")
        })
    }

    /// In base64.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<String, String> {
        let mut signature = vec![0; self.0.public().modulus_len()];
        self.0
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature)
            .map_err(|_| "the system gives no random bytes to sign with".to_owned())?;
        Ok(STANDARD.encode(signature))
    }

    /// The public half, as PKCS#1 has it.
    pub(crate) fn public_key(&self) -> &[u8] {
        self.0.public().as_ref()
    }
}

/// What somebody else signs with, seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerifyingKey(Vec<u8>);

impl VerifyingKey {
    /// From a PEM file with a public key, or its bare base64.
    pub(crate) fn from_text(text: &str) -> Result<VerifyingKey, String> {
        let found = sections(text)?;
        if found.iter().any(|(kind, _)| is_private(*kind)) {
            return Err("holds a private key; only the public one belongs here".into());
        }
        let named = found.into_iter().find(|(kind, _)| *kind == SectionKind::PublicKey);
        let info = named.map(|(_, der)| der).or_else(|| bare(text));
        let key = info.as_deref().and_then(rsa_key).ok_or("holds no public RSA key")?;
        Ok(VerifyingKey(key.to_vec()))
    }

    pub(crate) fn of(certificate: &Certificate) -> Option<VerifyingKey> {
        certificate.rsa_key.clone().map(VerifyingKey)
    }

    pub(crate) fn is_of(&self, key: &SigningKey) -> bool {
        self.0 == key.public_key()
    }

    pub(crate) fn verify(&self, message: &[u8], signature: &str) -> bool {
        let Ok(signature) = STANDARD.decode(signature) else { return false };
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.0);
        key.verify(message, &signature).is_ok()
    }
}

/// All certificates of a PEM file, in their order; at least one.
pub(crate) fn certificates(text: &str) -> Result<Vec<Certificate>, String> {
    let found = sections(text)?;
    let of_kind = found.iter().filter(|(kind, _)| *kind == SectionKind::Certificate);
    let read: Option<Vec<_>> = of_kind.map(|(_, der)| Certificate::from_der(der)).collect();
    match read {
        Some(read) if !read.is_empty() => Ok(read),
        Some(_) => Err("holds no certificate".into()),
        None => Err("holds a certificate that cannot be read".into()),
    }
}

fn is_private(kind: SectionKind) -> bool {
    matches!(kind, SectionKind::RsaPrivateKey | SectionKind::PrivateKey)
}

fn sections(text: &str) -> Result<Vec<(SectionKind, Vec<u8>)>, String> {
    let all: Result<Vec<_>, _> = PemObject::pem_slice_iter(text.as_bytes()).collect();
    all.map_err(|_| "is not a PEM file that can be read".into())
}

fn bare(text: &str) -> Option<Vec<u8>> {
    let joined: String = text.split_whitespace().collect();
    STANDARD.decode(joined).ok().filter(|der| !der.is_empty())
}
