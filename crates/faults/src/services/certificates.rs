//! Certificates for one test: an authority of its own, and what it has signed for this machine.

use std::{io, path::PathBuf, process::Command};

use super::{place::ServiceFolder, programs};

#[derive(Debug)]
pub struct Certificates {
    folder: ServiceFolder,
}

impl Certificates {
    pub fn make() -> io::Result<Certificates> {
        let certificates = Certificates { folder: ServiceFolder::new("certificates")? };
        certificates.sign("ca", None, "basicConstraints=critical,CA:TRUE")?;
        certificates.sign("stranger", None, "basicConstraints=critical,CA:TRUE")?;
        let here = "subjectAltName=IP:127.0.0.1,DNS:localhost";
        certificates.sign("server", Some("ca"), here)?;
        certificates.sign("client", Some("ca"), here)?;
        Ok(certificates)
    }

    /// Of the authority `ca`, of one that has signed nothing here (`stranger`), of `server` and `client`.
    pub fn cert(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.pem"))
    }

    pub fn key(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.key"))
    }

    fn sign(&self, name: &str, by: Option<&str>, extension: &str) -> io::Result<()> {
        let mut openssl = Command::new(programs::find("openssl", "openssl")?);
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        openssl.args(["-nodes", "-days", "30", "-subj", &format!("/CN={name}")]);
        openssl.args(["-addext", extension]);
        openssl.arg("-keyout").arg(self.key(name)).arg("-out").arg(self.cert(name));
        if let Some(authority) = by {
            openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
            openssl.arg("-CA").arg(self.cert(authority)).arg("-CAkey").arg(self.key(authority));
        }
        let done = openssl.output()?;
        if done.status.success() {
            return Ok(());
        }
        Err(io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()))
    }
}
