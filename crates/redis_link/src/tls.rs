//! Who is trusted and who we are, where the connection is encrypted (`rediss://`).
//!
//! Without a file of our own the public authorities are trusted (Mozilla's list, built in). There is no
//! way to switch the check off, and none back to a plain connection.

use std::path::{Path, PathBuf};

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult,
    TlsCertificates,
};

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
    pub(crate) fn is_empty(&self) -> bool {
        [&self.ca, &self.cert, &self.key].iter().all(|path| path.as_os_str().is_empty())
    }

    fn read(&self) -> RedisResult<TlsCertificates> {
        let client_tls = match (self.cert.as_os_str().is_empty(), self.key.as_os_str().is_empty()) {
            (true, true) => None,
            (false, false) => Some(ClientTlsConfig {
                client_cert: read("redis.tls_cert_file", &self.cert)?,
                client_key: read("redis.tls_key_file", &self.key)?,
            }),
            _ => return Err(wrong("redis.tls_cert_file and redis.tls_key_file belong together")),
        };
        let has_ca = !self.ca.as_os_str().is_empty();
        let root_cert = has_ca.then(|| read("redis.tls_ca_file", &self.ca)).transpose()?;
        Ok(TlsCertificates { client_tls, root_cert })
    }

    /// The same server, with these certificates.
    pub(crate) fn secure(&self, info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        match info.addr() {
            ConnectionAddr::TcpTls { .. } => {
                // Whoever else uses TLS in this process may have said so already.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let client = Client::build_with_tls(info, self.read()?).map_err(|error| {
                    let files =
                        "the files of redis.tls_ca_file, redis.tls_cert_file, redis.tls_key_file";
                    wrong(format!("{files} cannot be used: {error}"))
                })?;
                Ok(client.get_connection_info().clone())
            }
            _ if self.is_empty() => Ok(info),
            _ => Err(wrong(
                "redis.tls_ca_file, redis.tls_cert_file and redis.tls_key_file are for rediss:// \
                 addresses, and redis.url is not one",
            )),
        }
    }
}

fn read(setting: &str, path: &Path) -> RedisResult<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| wrong(format!("{setting}: {} cannot be read: {error}", path.display())))
}

/// What no waiting will mend.
pub(crate) fn wrong(what: impl Into<String>) -> RedisError {
    (ErrorKind::InvalidClientConfig, "redis.url or its files", what.into()).into()
}
