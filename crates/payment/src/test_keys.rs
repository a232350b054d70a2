//! Keys and certificates for tests, made by `openssl`: an implementation that is not ours.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{key_files::read, rsa::SigningKey};

pub(crate) fn openssl(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("openssl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl is installed");
    child.stdin.take().unwrap().write_all(input).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// A key (PKCS#8), its public half, and a certificate of it, as files.
pub(crate) struct TestKey {
    pub(crate) key_file: PathBuf,
    pub(crate) public_file: PathBuf,
    pub(crate) certificate_file: PathBuf,
    pub(crate) key: SigningKey,
}

impl TestKey {
    /// Signed by itself.
    pub(crate) fn make(dir: &Path, name: &str, serial: &str) -> TestKey {
        let made = TestKey::without_certificate(dir, name);
        let (key, certificate) = (text(&made.key_file), text(&made.certificate_file));
        let subject = format!("/C=CN/O=Test, Inc/OU=Keys/CN={name}");
        openssl(
            &[
                "req",
                "-x509",
                "-new",
                "-key",
                &key,
                "-subj",
                &subject,
                "-days",
                "3650",
                "-set_serial",
                serial,
                "-out",
                &certificate,
            ],
            b"",
        );
        made
    }

    /// Signed by another.
    pub(crate) fn signed_by(dir: &Path, name: &str, serial: &str, issuer: &TestKey) -> TestKey {
        let made = TestKey::without_certificate(dir, name);
        let subject = format!("/C=CN/O=Test, Inc/CN={name}");
        let request =
            openssl(&["req", "-new", "-key", &text(&made.key_file), "-subj", &subject], b"");
        openssl(
            &[
                "x509",
                "-req",
                "-CA",
                &text(&issuer.certificate_file),
                "-CAkey",
                &text(&issuer.key_file),
                "-set_serial",
                serial,
                "-days",
                "3650",
                "-out",
                &text(&made.certificate_file),
            ],
            &request,
        );
        made
    }

    fn without_certificate(dir: &Path, name: &str) -> TestKey {
        let file = |kind: &str| dir.join(format!("{name}.{kind}"));
        let (key_file, public_file) = (file("key"), file("pub"));
        openssl(&["genrsa", "-out", &text(&key_file), "2048"], b"");
        openssl(&["pkey", "-in", &text(&key_file), "-pubout", "-out", &text(&public_file)], b"");
        let key = SigningKey::from_text(&read(&key_file).unwrap()).unwrap();
        TestKey { key_file, public_file, certificate_file: file("crt"), key }
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
