//! Who is trusted and who we are, where the connection is encrypted.
//!
//! A file that is given means that TLS is wanted: a server that does not offer it, or whose certificate
//! is not good, is refused. Without files `?require_ssl=true` in the URL asks for TLS with the public
//! authorities (Mozilla's list, built in).

use std::path::{Path, PathBuf};

use mysql_async::{ClientIdentity, OptsBuilder, SslOpts};

use super::OpenError;

/// Files in PEM format; an empty path is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that are trusted, instead of the public ones.
    pub ca: PathBuf,
    /// Our own certificate, for servers that ask for one, and its key.
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl TlsFiles {
    pub(super) fn secure(&self, builder: OptsBuilder) -> Result<OptsBuilder, OpenError> {
        let ca = read("ledger.tls_ca_file", &self.ca)?;
        let cert = read("ledger.tls_cert_file", &self.cert)?;
        let key = read("ledger.tls_key_file", &self.key)?;
        let mut tls = SslOpts::default();
        if ca.is_none() && cert.is_none() && key.is_none() {
            return Ok(builder);
        }
        if let Some(ca) = ca {
            tls = tls.with_root_certs(vec![ca.into()]).with_disable_built_in_roots(true);
        }
        tls = match (cert, key) {
            (Some(cert), Some(key)) => {
                tls.with_client_identity(Some(ClientIdentity::new(cert.into(), key.into())))
            }
            (None, None) => tls,
            _ => return Err(OpenError::HalfAnIdentity),
        };
        Ok(builder.ssl_opts(Some(tls)))
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let failed = |cause| OpenError::TlsFile { setting, path: path.to_owned(), cause };
    std::fs::read(path).map(Some).map_err(failed)
}
