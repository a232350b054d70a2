//! What we need to know of an X.509 certificate, read from its DER.
//!
//! Providers name their keys by the serial numbers of certificates, and Alipay by a digest of issuer and
//! serial. TLS libraries keep those to themselves, and a whole parser would be the largest part of this
//! crate; a certificate is a sequence of fields, of which we read the first few.

use std::fmt::Write;

use ring::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    UnparsedPublicKey,
};
use sale::{Millis, parse_iso_time};

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// The version of a certificate, which may be left out.
const CONTEXT_0: u8 = 0xa0;

/// 1.2.840.113549.1.1: all that has to do with RSA. The next byte says which.
const RSA_FAMILY: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
const RSA_ENCRYPTION: u8 = 1;

/// Short names of the parts of a name (RFC 2253), by the last byte of 2.5.4.x.
const NAME_PARTS: &[(u8, &str)] =
    &[(3, "CN"), (6, "C"), (7, "L"), (8, "ST"), (9, "STREET"), (10, "O"), (11, "OU")];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// Big-endian, without leading zeros.
    serial: Vec<u8>,
    issuer: Vec<u8>,
    subject: Vec<u8>,
    pub(crate) not_before_ms: Millis,
    pub(crate) not_after_ms: Millis,
    /// Of an RSA certificate: modulus and exponent, as PKCS#1 has them.
    pub(crate) rsa_key: Option<Vec<u8>>,
    /// Which signature of the RSA family it carries, if of that family at all.
    signature_kind: Option<u8>,
    signed: Vec<u8>,
    signature: Vec<u8>,
}

/// DER that is still to be read.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next element, whatever it is: its tag, its content, and all of its bytes.
    fn any(&mut self) -> Option<(u8, &'a [u8], &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = if first < 0x80 {
            (usize::from(first), rest)
        } else {
            // Four bytes of length are more than any certificate has; no length at all is not DER.
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            if bytes.is_empty() || bytes.len() > 4 {
                return None;
            }
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        };
        let (content, rest) = rest.split_at_checked(length)?;
        let whole = &self.0[..self.0.len() - rest.len()];
        self.0 = rest;
        Some((tag, content, whole))
    }

    fn element(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.any().filter(|(tag, ..)| *tag == wanted).map(|(_, content, _)| content)
    }

    fn whole(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.any().filter(|(tag, ..)| *tag == wanted).map(|(.., whole)| whole)
    }
}

impl Certificate {
    /// None if this is no certificate.
    pub(crate) fn from_der(der: &[u8]) -> Option<Certificate> {
        let mut certificate = Der(Der(der).element(SEQUENCE)?);
        let signed = certificate.whole(SEQUENCE)?;
        let signature_kind = rsa_kind(certificate.element(SEQUENCE)?);
        let signature = bits(certificate.element(BIT_STRING)?)?;
        let mut fields = Der(Der(signed).element(SEQUENCE)?);
        if fields.0.first() == Some(&CONTEXT_0) {
            fields.any()?;
        }
        let serial = fields.element(INTEGER)?;
        fields.element(SEQUENCE)?;
        let issuer = fields.whole(SEQUENCE)?;
        let mut validity = Der(fields.element(SEQUENCE)?);
        let subject = fields.whole(SEQUENCE)?;
        Some(Certificate {
            serial: serial.iter().copied().skip_while(|byte| *byte == 0).collect(),
            issuer: issuer.to_vec(),
            subject: subject.to_vec(),
            not_before_ms: time(&mut validity)?,
            not_after_ms: time(&mut validity)?,
            rsa_key: rsa_key(fields.whole(SEQUENCE)?).map(<[u8]>::to_vec),
            signature_kind,
            signed: signed.to_vec(),
            signature: signature.to_vec(),
        })
    }

    /// As WeChat writes it: capital hexadecimal digits.
    pub(crate) fn serial_hex(&self) -> String {
        hex(&self.serial)
    }

    /// As Alipay writes it: a decimal number, however long.
    pub(crate) fn serial_decimal(&self) -> String {
        // Digits from the last to the first.
        let mut digits = vec![0_u8];
        for byte in &self.serial {
            let mut carry = u32::from(*byte);
            for digit in &mut digits {
                let value = u32::from(*digit) * 256 + carry;
                *digit = (value % 10) as u8;
                carry = value / 10;
            }
            while carry > 0 {
                digits.push((carry % 10) as u8);
                carry /= 10;
            }
        }
        digits.iter().rev().map(|digit| char::from(b'0' + digit)).collect()
    }

    /// Who signed it, as RFC 2253 writes names: the last part first. None for a name that cannot be read.
    pub(crate) fn issuer_text(&self) -> Option<String> {
        let mut name = Der(Der(&self.issuer).element(SEQUENCE)?);
        let mut parts = Vec::new();
        while !name.0.is_empty() {
            let mut together = Der(name.element(SET)?);
            let mut pairs = Vec::new();
            while !together.0.is_empty() {
                pairs.push(name_part(together.element(SEQUENCE)?)?);
            }
            parts.push(pairs.join("+"));
        }
        parts.reverse();
        Some(parts.join(","))
    }

    /// Is its signature one of RSA, whatever the digest?
    pub(crate) fn is_signed_by_rsa(&self) -> bool {
        self.signature_kind.is_some()
    }

    pub(crate) fn is_valid_at(&self, now_ms: Millis) -> bool {
        (self.not_before_ms..=self.not_after_ms).contains(&now_ms)
    }

    /// Did the owner of that certificate sign this one?
    pub(crate) fn is_signed_by(&self, issuer: &Certificate) -> bool {
        let Some(key) = issuer.rsa_key.as_ref().filter(|_| issuer.subject == self.issuer) else {
            return false;
        };
        let algorithm = match self.signature_kind {
            Some(11) => &RSA_PKCS1_2048_8192_SHA256,
            Some(12) => &RSA_PKCS1_2048_8192_SHA384,
            Some(13) => &RSA_PKCS1_2048_8192_SHA512,
            _ => return false,
        };
        UnparsedPublicKey::new(algorithm, key).verify(&self.signed, &self.signature).is_ok()
    }
}

/// The RSA key of a SubjectPublicKeyInfo, as PKCS#1 has it. None for another kind of key.
pub(crate) fn rsa_key(info: &[u8]) -> Option<&[u8]> {
    let mut info = Der(Der(info).element(SEQUENCE)?);
    (rsa_kind(info.element(SEQUENCE)?) == Some(RSA_ENCRYPTION)).then_some(())?;
    bits(info.element(BIT_STRING)?)
}

/// Which algorithm of the RSA family is named.
fn rsa_kind(algorithm: &[u8]) -> Option<u8> {
    match Der(algorithm).element(OBJECT_ID)?.strip_prefix(RSA_FAMILY)? {
        [kind] => Some(*kind),
        _ => None,
    }
}

/// A bit string of whole bytes.
fn bits(content: &[u8]) -> Option<&[u8]> {
    content.strip_prefix(&[0])
}

fn time(validity: &mut Der<'_>) -> Option<Millis> {
    let (tag, content, _) = validity.any()?;
    let text = std::str::from_utf8(content).ok()?;
    let text = match tag {
        // Two digits of a year are of 1950 to 2049.
        UTC_TIME if text.get(..2)? >= "50" => format!("19{text}"),
        UTC_TIME => format!("20{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let part = |from: usize, to: usize| text.get(from..to);
    let (date, hour) =
        (part(0, 4)?.to_owned() + "-" + part(4, 6)? + "-" + part(6, 8)?, part(8, 10)?);
    parse_iso_time(&format!("{date}T{hour}:{}:{}{}", part(10, 12)?, part(12, 14)?, part(14, 15)?))
        .ok()
}

fn name_part(pair: &[u8]) -> Option<String> {
    let mut pair = Der(pair);
    let kind = pair.element(OBJECT_ID)?;
    let (_, value, whole) = pair.any()?;
    let short = match kind {
        [0x55, 0x04, last] => NAME_PARTS.iter().find(|(number, _)| number == last),
        _ => None,
    };
    match short {
        Some((_, short)) => Some(format!("{short}={}", escaped(std::str::from_utf8(value).ok()?))),
        None => Some(format!("{}=#{}", dotted(kind)?, hex(whole).to_ascii_lowercase())),
    }
}

fn escaped(value: &str) -> String {
    let mut text = String::new();
    let last = value.chars().count().saturating_sub(1);
    for (at, c) in value.chars().enumerate() {
        let at_an_end = at == 0 || at == last;
        if ",+\"\\<>;".contains(c) || (c == '#' && at == 0) || (c == ' ' && at_an_end) {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

/// An object identifier in numbers.
fn dotted(kind: &[u8]) -> Option<String> {
    let (first, rest) = kind.split_first()?;
    let mut text = format!("{}.{}", first / 40, first % 40);
    let mut number = 0_u64;
    for byte in rest {
        number = number.checked_mul(128)? + u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            let _ = write!(text, ".{number}");
            number = 0;
        }
    }
    Some(text)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02X}");
        text
    })
}
