//! Keys and certificates, made anew for each stand-in by openssl, in its own folder. Signing and verifying
//! is ring's.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey},
};

use crate::services::find_program;

/// An RSA key of 2048 bits.
#[derive(Debug)]
pub struct KeyPair {
    /// PKCS#8, in PEM.
    pub private: PathBuf,
    /// In PEM.
    pub public: PathBuf,
    pair: RsaKeyPair,
}

impl KeyPair {
    pub(super) fn make(folder: &Path, name: &str) -> io::Result<KeyPair> {
        let private = folder.join(format!("{name}.key"));
        let public = folder.join(format!("{name}.pub"));
        let mut make = openssl()?;
        make.args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out"]);
        run(make.arg(&private))?;
        run(openssl()?.args(["pkey", "-pubout", "-in"]).arg(&private).arg("-out").arg(&public))?;
        let pair = RsaKeyPair::from_pkcs8(&der(&private)?);
        let pair = pair.map_err(|rejected| io::Error::other(rejected.to_string()))?;
        Ok(KeyPair { private, public, pair })
    }

    /// In Base64.
    pub(super) fn sign(&self, message: &[u8]) -> String {
        let mut signature = vec![0; self.pair.public().modulus_len()];
        let random = SystemRandom::new();
        let signed = self.pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature);
        signed.expect("a key that was made here signs");
        STANDARD.encode(signature)
    }

    pub(super) fn verify(&self, message: &[u8], signature: &str) -> bool {
        let Ok(signature) = STANDARD.decode(signature) else { return false };
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, self.pair.public());
        public.verify(message, &signature).is_ok()
    }
}

/// A key with a certificate.
#[derive(Debug)]
pub struct Certified {
    pub key: KeyPair,
    /// In PEM.
    pub certificate: PathBuf,
    /// In capital hexadecimal digits, without zeros before.
    pub serial: String,
}

impl Certified {
    pub(super) fn make(
        folder: &Path,
        name: &str,
        subject: &str,
        by: Option<&Certified>,
    ) -> io::Result<Certified> {
        let key = KeyPair::make(folder, name)?;
        let certificate = folder.join(format!("{name}.pem"));
        // Not zero and not negative as a number of sixteen bytes.
        let serial = format!("{:X}", fastrand::u128(1 << 124..1 << 126));
        let mut make = openssl()?;
        make.args(["req", "-x509", "-days", "30", "-subj", subject]);
        make.args(["-set_serial", &format!("0x{serial}")]);
        make.arg("-key").arg(&key.private).arg("-out").arg(&certificate);
        if let Some(authority) = by {
            make.arg("-CA").arg(&authority.certificate);
            make.arg("-CAkey").arg(&authority.key.private);
        }
        run(&mut make)?;
        Ok(Certified { key, certificate, serial })
    }

    pub(super) fn pem(&self) -> io::Result<String> {
        fs::read_to_string(&self.certificate)
    }

    /// What Alipay calls the serial number of a certificate: MD5 of the issuer's name and the serial in
    /// decimal digits.
    pub(super) fn sn(&self) -> io::Result<String> {
        let mut ask = openssl()?;
        ask.args(["x509", "-noout", "-issuer", "-nameopt", "RFC2253", "-in"]);
        let issuer = run(ask.arg(&self.certificate))?;
        let issuer = issuer.trim().trim_start_matches("issuer=");
        let serial = u128::from_str_radix(&self.serial, 16).map_err(io::Error::other)?;
        md5(&format!("{issuer}{serial}"))
    }
}

/// A certificate of an elliptic curve, which Alipay's root file has beside those of RSA.
pub(super) fn curve_certificate(folder: &Path) -> io::Result<String> {
    let (key, certificate) = (folder.join("curve.key"), folder.join("curve.pem"));
    let mut make = openssl()?;
    make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    make.args(["-days", "30", "-subj", "/C=CN/O=Another/CN=Another root"]);
    run(make.arg("-keyout").arg(key).arg("-out").arg(&certificate))?;
    fs::read_to_string(certificate)
}

fn md5(text: &str) -> io::Result<String> {
    let mut digest = openssl()?;
    digest.args(["dgst", "-md5", "-r"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = digest.spawn()?;
    if let Some(mut stdin) = running.stdin.take() {
        io::Write::write_all(&mut stdin, text.as_bytes())?;
    }
    let said = String::from_utf8_lossy(&running.wait_with_output()?.stdout).into_owned();
    let sum = said.split_whitespace().next().unwrap_or_default();
    Ok(sum.to_ascii_lowercase())
}

/// The bytes in a PEM file.
fn der(pem: &Path) -> io::Result<Vec<u8>> {
    let text = fs::read_to_string(pem)?;
    let body: String = text.lines().filter(|line| !line.starts_with('-')).collect();
    STANDARD.decode(body).map_err(io::Error::other)
}

fn openssl() -> io::Result<Command> {
    Ok(Command::new(find_program("openssl", "openssl")?))
}

fn run(command: &mut Command) -> io::Result<String> {
    let done = command.output()?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::ServiceFolder;

    /// openssl is asked whether it believes what ring signed, and the other way round.
    #[test]
    fn signatures_are_the_ones_that_openssl_makes_and_believes() {
        let folder = ServiceFolder::new("keys").unwrap();
        let key = KeyPair::make(folder.path(), "one").unwrap();
        let (text, signature) = (folder.path().join("text"), folder.path().join("signature"));
        fs::write(&text, "a message\n").unwrap();
        fs::write(&signature, STANDARD.decode(key.sign(b"a message\n")).unwrap()).unwrap();
        let mut verify = openssl().unwrap();
        verify.args(["dgst", "-sha256", "-verify"]).arg(&key.public);
        let said = run(verify.arg("-signature").arg(&signature).arg(&text)).unwrap();
        assert_eq!(said.trim(), "Verified OK");
        let mut sign = openssl().unwrap();
        sign.args(["dgst", "-sha256", "-sign"]).arg(&key.private);
        run(sign.arg("-out").arg(&signature).arg(&text)).unwrap();
        let theirs = STANDARD.encode(fs::read(&signature).unwrap());
        assert!(key.verify(b"a message\n", &theirs));
        assert!(!key.verify(b"another message\n", &theirs) && !key.verify(b"a message\n", "%"));
        let other = KeyPair::make(folder.path(), "other").unwrap();
        assert!(!other.verify(b"a message\n", &theirs));
    }

    #[test]
    fn a_certificate_says_its_serial_and_who_signed_it() {
        let folder = ServiceFolder::new("keys").unwrap();
        let root = Certified::make(folder.path(), "root", "/C=CN/O=Root/CN=Root R1", None).unwrap();
        let leaf =
            Certified::make(folder.path(), "leaf", "/C=CN/O=Leaf/CN=Leaf", Some(&root)).unwrap();
        let mut verify = openssl().unwrap();
        verify.arg("verify").arg("-CAfile").arg(&root.certificate).arg(&leaf.certificate);
        assert!(run(&mut verify).unwrap().contains("OK"));
        let mut ask = openssl().unwrap();
        let said =
            run(ask.args(["x509", "-noout", "-serial", "-in"]).arg(&leaf.certificate)).unwrap();
        assert_eq!(said.trim(), format!("serial={}", leaf.serial));
        let serial = u128::from_str_radix(&leaf.serial, 16).unwrap();
        let expected = md5(&format!("CN=Root R1,O=Root,C=CN{serial}")).unwrap();
        assert_eq!(leaf.sn().unwrap(), expected);
        assert_eq!(md5("").unwrap(), "d41d8cd98f00b204e9800998ecf8427e");
    }
}
