//! TLS, and the certificate that is read anew when its files change.
//!
//! Only versions 1.2 and 1.3 are spoken, with the cipher suites of rustls, none of which is known to be weak.
//! A client that comes back within hours resumes its session by a ticket, which costs us no signature and no
//! memory. Data that arrives before the handshake is over (0-RTT) could be replayed, and is not taken.
//!
//! A certificate is replaced by writing its two files; nobody is disconnected, and whoever connects next sees
//! the new one. The two files cannot be written in one instant, so a pair that does not fit together is
//! looked at a second time before anybody is told, and the pair before stays in use for as long as it takes.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};

/// What clients and we may agree on, and how it is called on the wire.
pub(crate) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// A longer file is no certificate.
const FILE_BYTES_MAX: u64 = 1_024 * 1_024;

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{0} cannot be read: {1}")]
    Unreadable(PathBuf, io::Error),
    #[error("{0} is not a certificate or a key: it is larger than a megabyte")]
    TooLarge(PathBuf),
    #[error("{0} holds no certificate in PEM")]
    NoCertificate(PathBuf),
    #[error("{0} holds no private key in PEM")]
    NoKey(PathBuf),
    #[error("the certificate {0} and the key {1} cannot be used together: {2}")]
    Unusable(PathBuf, PathBuf, rustls::Error),
    #[error("no random numbers for session tickets: {0}")]
    Tickets(rustls::Error),
}

/// What a look at the files has shown.
#[derive(Debug)]
pub enum Look {
    /// They are as they were.
    Same,
    /// There is a new certificate, and it is in use from now on.
    Renewed,
    /// They have changed and cannot be used; perhaps somebody is still writing them.
    Doubtful,
    /// They still cannot be used. The pair before them stays.
    Bad(TlsError),
}

/// A certificate, and all that is needed to shake hands.
pub struct Tls {
    config: Arc<ServerConfig>,
    current: Arc<CurrentCertificate>,
    files: Files,
    seen: Mutex<Seen>,
}

impl Tls {
    /// Both files are PEM: the certificate with those that vouch for it behind it, and its private key.
    pub fn open(cert_file: &Path, key_file: &Path) -> Result<Tls, TlsError> {
        let files = Files { cert: cert_file.to_owned(), key: key_file.to_owned() };
        let provider = Arc::new(ring::default_provider());
        let contents = files.read()?;
        let certified = files.certify(&contents, &provider)?;
        let current = Arc::new(CurrentCertificate(RwLock::new(Arc::new(certified))));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .expect("ring speaks both")
            .with_no_client_auth()
            .with_cert_resolver(current.clone());
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        config.ticketer = ring::Ticketer::new().map_err(TlsError::Tickets)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        let seen = Mutex::new(Seen { contents, in_use: true });
        Ok(Tls { config: Arc::new(config), current, files, seen })
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// Look whether there is a new certificate. It reads files, so it is not for an async thread.
    pub fn look(&self) -> Look {
        let mut seen = self.seen.lock();
        let contents = match self.files.read() {
            Ok(contents) => contents,
            Err(error) => {
                // No file reads as empty ones; the pair in use is none of those.
                let again = seen.replace(Contents::default(), false);
                return if again { Look::Bad(error) } else { Look::Doubtful };
            }
        };
        if seen.in_use && seen.contents == contents {
            return Look::Same;
        }
        match self.files.certify(&contents, self.config.crypto_provider()) {
            Ok(certified) => {
                *self.current.0.write() = Arc::new(certified);
                seen.replace(contents, true);
                Look::Renewed
            }
            Err(error) if seen.replace(contents, false) => Look::Bad(error),
            Err(_) => Look::Doubtful,
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({})", self.files.cert.display())
    }
}

/// What was in the files when they were last read.
struct Seen {
    contents: Contents,
    /// It is what clients are shown.
    in_use: bool,
}

impl Seen {
    /// True if it was the same, and as useless, the last time.
    fn replace(&mut self, contents: Contents, in_use: bool) -> bool {
        let again = !self.in_use && !in_use && self.contents == contents;
        *self = Seen { contents, in_use };
        again
    }
}

#[derive(Default, PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
}

struct Files {
    cert: PathBuf,
    key: PathBuf,
}

impl Files {
    fn read(&self) -> Result<Contents, TlsError> {
        Ok(Contents { cert: read(&self.cert)?, key: read(&self.key)? })
    }

    fn certify(
        &self,
        contents: &Contents,
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, TlsError> {
        let chain = CertificateDer::pem_slice_iter(&contents.cert).collect::<Result<Vec<_>, _>>();
        let chain = chain.unwrap_or_default();
        if chain.is_empty() {
            return Err(TlsError::NoCertificate(self.cert.clone()));
        }
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|_| TlsError::NoKey(self.key.clone()))?;
        CertifiedKey::from_der(chain, key, provider)
            .map_err(|error| TlsError::Unusable(self.cert.clone(), self.key.clone(), error))
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |error| TlsError::Unreadable(file.to_owned(), error);
    if fs::metadata(file).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(TlsError::TooLarge(file.to_owned()));
    }
    fs::read(file).map_err(unreadable)
}

struct CurrentCertificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CurrentCertificate {
    /// Whatever name the client asks for: there is one certificate, and the client judges it.
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

impl fmt::Debug for CurrentCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CurrentCertificate")
    }
}
