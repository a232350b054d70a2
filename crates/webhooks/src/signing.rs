//! Signatures of Standard Webhooks: HMAC-SHA256 over id, time and body.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderMap;
use ring::hmac;

const PREFIX: &str = "whsec_";
/// What a library of Standard Webhooks takes for a secret.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const NEW_KEY_BYTES: usize = 32;
/// How far the clock of somebody who signs may be from ours.
const WINDOW_S: u64 = 5 * 60;
/// Signatures of one header that are tried; whoever rotates has two.
const SIGNATURES_MAX: usize = 8;

/// The key that a shop and we share, written as `whsec_` and base64.
#[derive(Clone)]
pub struct SigningSecret(hmac::Key);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be whsec_ and the base64 of 24 to 64 bytes")]
pub struct BadSecret;

impl SigningSecret {
    pub fn parse(text: &str) -> Result<SigningSecret, BadSecret> {
        let encoded = text.strip_prefix(PREFIX).ok_or(BadSecret)?;
        let key = STANDARD.decode(encoded).map_err(|_| BadSecret)?;
        if !KEY_BYTES.contains(&key.len()) {
            return Err(BadSecret);
        }
        Ok(SigningSecret(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// A new one, as it is shown once and kept.
    pub fn generate() -> Result<String, getrandom::Error> {
        let mut key = [0; NEW_KEY_BYTES];
        getrandom::fill(&mut key)?;
        Ok(format!("{PREFIX}{}", STANDARD.encode(key)))
    }

    /// In constant time, whatever is sent.
    fn has_signed(&self, signature: &[u8], id: &str, timestamp: &str, body: &[u8]) -> bool {
        let signed = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].concat();
        hmac::verify(&self.0, &signed, signature).is_ok()
    }

    fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{timestamp_s}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
}

/// Why somebody who calls us is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    #[error(
        "webhook-id, webhook-timestamp or webhook-signature is missing, or there are two of them"
    )]
    Missing,
    #[error("webhook-timestamp is no time in seconds, or more than {} minutes away", WINDOW_S / 60)]
    Stale,
    #[error("webhook-signature is by none of the secrets over these bytes")]
    BadSignature,
}

/// Did somebody who knows one of these secrets sign this body, just now? The other direction of
/// [`signatures`].
pub fn verify(
    secrets: &[SigningSecret],
    headers: &HeaderMap,
    body: &[u8],
    now_s: i64,
) -> Result<(), NotSigned> {
    let only = |name: &str| {
        let mut values = headers.get_all(name).iter();
        let (value, None) = (values.next()?, values.next()) else { return None };
        value.to_str().ok()
    };
    let headers = (only("webhook-id"), only("webhook-timestamp"), only("webhook-signature"));
    let (Some(id), Some(timestamp), Some(signed)) = headers else {
        return Err(NotSigned::Missing);
    };
    let at_s: i64 = timestamp.parse().map_err(|_| NotSigned::Stale)?;
    if now_s.abs_diff(at_s) > WINDOW_S {
        return Err(NotSigned::Stale);
    }
    let signatures = signed.split(' ').take(SIGNATURES_MAX);
    let signatures = signatures.filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
    let by_one = |signature: Vec<u8>| {
        secrets.iter().any(|secret| secret.has_signed(&signature, id, timestamp, body))
    };
    if signatures.into_iter().any(by_one) { Ok(()) } else { Err(NotSigned::BadSignature) }
}

/// What stands in `webhook-signature`: one for each secret that is good now.
pub fn signatures(secrets: &[SigningSecret], id: &str, timestamp_s: i64, body: &[u8]) -> String {
    let signed = secrets.iter().map(|secret| secret.sign(id, timestamp_s, body));
    signed.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_specification_is_signed_as_it_says() {
        let secret = SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed =
            secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_library_that_shops_use_takes_what_we_sign_with_either_secret() {
        let texts = [SigningSecret::generate().unwrap(), SigningSecret::generate().unwrap()];
        let secrets = texts.each_ref().map(|text| SigningSecret::parse(text).unwrap());
        let now_s =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
                as i64;
        let body = "{\"type\":\"order.paid\"}".as_bytes();
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", "evt_1".parse().unwrap());
        headers.insert("webhook-timestamp", now_s.to_string().parse().unwrap());
        let signed = signatures(&secrets, "evt_1", now_s, body);
        headers.insert("webhook-signature", signed.parse().unwrap());
        for text in &texts {
            let theirs = standardwebhooks::Webhook::new(text).unwrap();
            theirs.verify(body, &headers).unwrap();
            assert!(theirs.verify(b"{}", &headers).is_err());
        }
        let other = standardwebhooks::Webhook::new(&SigningSecret::generate().unwrap()).unwrap();
        assert!(other.verify(body, &headers).is_err());
    }

    #[test]
    fn what_a_library_that_shops_use_signs_is_believed_and_nothing_else() {
        let (text, other) =
            (SigningSecret::generate().unwrap(), SigningSecret::generate().unwrap());
        let secrets = [&other, &text].map(|text| SigningSecret::parse(text).unwrap());
        let (now_s, body) = (1_800_000_000, br#"{"order_no":"SK1"}"#);
        let theirs = standardwebhooks::Webhook::new(&text).unwrap();
        let signed = theirs.sign("msg_1", now_s, body).unwrap();
        let headers = |id: &str, at_s: &str, signed: &str| {
            let mut headers = HeaderMap::new();
            for (name, value) in
                [("webhook-id", id), ("webhook-timestamp", at_s), ("webhook-signature", signed)]
            {
                headers.insert(name, value.parse().unwrap());
            }
            headers
        };
        let good = headers("msg_1", &now_s.to_string(), &signed);
        assert_eq!(verify(&secrets, &good, body, now_s), Ok(()));
        assert_eq!(verify(&secrets, &good, body, now_s + 300), Ok(()));
        assert_eq!(verify(&secrets, &good, body, now_s + 301), Err(NotSigned::Stale));
        assert_eq!(verify(&secrets, &good, body, now_s - 301), Err(NotSigned::Stale));
        assert_eq!(verify(&secrets[..1], &good, body, now_s), Err(NotSigned::BadSignature));
        assert_eq!(verify(&[], &good, body, now_s), Err(NotSigned::BadSignature));
        let rotated = format!("v1,AAAA v1a,xx {signed}");
        let rotated = headers("msg_1", &now_s.to_string(), &rotated);
        assert_eq!(verify(&secrets, &rotated, body, now_s), Ok(()), "one of several is enough");
        // Every byte counts.
        for n in 0..body.len() {
            let mut other = body.to_vec();
            other[n] ^= 1;
            assert_eq!(verify(&secrets, &good, &other, now_s), Err(NotSigned::BadSignature));
        }
        for n in 0..signed.len() {
            let mut other = signed.clone().into_bytes();
            other[n] = if other[n] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            let headers = headers("msg_1", &now_s.to_string(), &other);
            assert!(verify(&secrets, &headers, body, now_s).is_err(), "{n}: {other}");
        }
        for (id, at_s) in [("msg_2", now_s), ("msg_1", now_s + 1)] {
            let headers = headers(id, &at_s.to_string(), &signed);
            assert_eq!(verify(&secrets, &headers, body, now_s), Err(NotSigned::BadSignature));
        }
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            let mut without = good.clone();
            without.remove(name);
            assert_eq!(verify(&secrets, &without, body, now_s), Err(NotSigned::Missing));
            let mut twice = good.clone();
            twice.append(name, good[name].clone());
            assert_eq!(verify(&secrets, &twice, body, now_s), Err(NotSigned::Missing));
        }
        let headers = headers("msg_1", "+1800000000", &signed);
        assert_eq!(verify(&secrets, &headers, body, now_s), Err(NotSigned::BadSignature));
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let short = format!("whsec_{}", STANDARD.encode([1; 23]));
        let long = format!("whsec_{}", STANDARD.encode([1; 65]));
        for bad in ["", "whsec_", "secret", "whsec_!!!!", &short, &long] {
            assert!(SigningSecret::parse(bad).is_err(), "{bad}");
        }
    }
}
