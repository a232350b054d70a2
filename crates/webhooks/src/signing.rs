//! Signatures of Standard Webhooks: HMAC-SHA256 over id, time and body.

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::hmac;

const PREFIX: &str = "whsec_";
/// What a library of Standard Webhooks takes for a secret.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const NEW_KEY_BYTES: usize = 32;

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

    fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{timestamp_s}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
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
        let mut headers = http::HeaderMap::new();
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
    fn what_is_no_secret_is_refused() {
        let short = format!("whsec_{}", STANDARD.encode([1; 23]));
        let long = format!("whsec_{}", STANDARD.encode([1; 65]));
        for bad in ["", "whsec_", "secret", "whsec_!!!!", &short, &long] {
            assert!(SigningSecret::parse(bad).is_err(), "{bad}");
        }
    }
}
