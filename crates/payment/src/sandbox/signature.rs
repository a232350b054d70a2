//! How a notice of the sandbox proves where it comes from.
//!
//! `X-Sandbox-Timestamp` is the moment of this delivery in Unix milliseconds. `X-Sandbox-Signature`
//! is the hex of HMAC-SHA256 under the shared secret over the time stamp, a dot, and the body as it
//! is sent. The time stamp is signed too, so an old notice cannot be passed off as a fresh one; the
//! merchant is in the body, so one merchant's notice cannot be passed off as another's.

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderValue};
use sale::{Currency, Millis, Money, OrderNo};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::SandboxOptions;
use crate::{NOTICE_BYTES_MAX, Notice, NoticeError, NoticeOutcome};

pub const TIMESTAMP_HEADER: &str = "x-sandbox-timestamp";
pub const SIGNATURE_HEADER: &str = "x-sandbox-signature";
/// How far the time stamp may be from our clock, either way.
pub const WINDOW_MS: Millis = 5 * 60_000;

/// Signed in the place of a time stamp, which it is not: no notice can pass for a cashier's token.
const CASHIER: &[u8] = b"cashier";

/// The body of a notice.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NoticeBody {
    pub(super) merchant: String,
    pub(super) provider_txn: String,
    pub(super) order_no: OrderNo,
    pub(super) amount: i64,
    pub(super) currency: Currency,
    pub(super) paid_at: Millis,
    pub(super) outcome: WireOutcome,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WireOutcome {
    Paid,
    Failed,
}

/// The headers of one delivery.
pub(super) fn sign(secret: &str, body: &[u8], now_ms: Millis) -> HeaderMap {
    let signature = mac(secret, now_ms.to_string().as_bytes(), body).finalize().into_bytes();
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(TIMESTAMP_HEADER, HeaderValue::from(now_ms));
    let hex = HeaderValue::from_str(&to_hex(&signature)).expect("hex is visible ASCII");
    headers.insert(SIGNATURE_HEADER, hex);
    headers
}

/// What the address of a payment's cashier carries beside the payment's number: made from the secret,
/// so that neither a number that somebody read in a log nor a guess pays anything.
pub(super) fn cashier_token(secret: &str, txn: &str) -> String {
    to_hex(&mac(secret, CASHIER, txn.as_bytes()).finalize().into_bytes())
}

/// Compared in constant time.
pub(super) fn is_cashier_token(secret: &str, txn: &str, token: &str) -> bool {
    let token = from_hex(token.as_bytes());
    token.is_some_and(|token| mac(secret, CASHIER, txn.as_bytes()).verify_slice(&token).is_ok())
}

/// The signature is checked before anything that was signed is looked at.
pub(super) fn verify(
    options: &SandboxOptions,
    headers: &HeaderMap,
    body: &[u8],
    now_ms: Millis,
) -> Result<Notice, NoticeError> {
    if body.len() > NOTICE_BYTES_MAX {
        return Err(NoticeError::Malformed("too long".into()));
    }
    let header =
        |name| headers.get(name).map(HeaderValue::as_bytes).ok_or(NoticeError::BadSignature);
    let (timestamp, signature) = (header(TIMESTAMP_HEADER)?, header(SIGNATURE_HEADER)?);
    let signature = from_hex(signature).ok_or(NoticeError::BadSignature)?;
    mac(&options.notify_secret, timestamp, body)
        .verify_slice(&signature)
        .map_err(|_| NoticeError::BadSignature)?;
    let signed_ms =
        std::str::from_utf8(timestamp).ok().and_then(|text| text.parse::<Millis>().ok());
    let signed_ms = signed_ms.ok_or_else(|| NoticeError::Malformed("time stamp".into()))?;
    if now_ms.abs_diff(signed_ms) > WINDOW_MS as u64 {
        return Err(NoticeError::Stale);
    }
    let notice: NoticeBody =
        serde_json::from_slice(body).map_err(|fault| NoticeError::Malformed(fault.to_string()))?;
    if notice.merchant != options.merchant {
        return Err(NoticeError::OtherMerchant);
    }
    Ok(notice.into())
}

impl From<NoticeBody> for Notice {
    fn from(body: NoticeBody) -> Self {
        Notice {
            provider_txn: body.provider_txn,
            order_no: body.order_no,
            amount: Money::new(body.amount, body.currency),
            paid_ms: body.paid_at,
            outcome: match body.outcome {
                WireOutcome::Paid => NoticeOutcome::Paid,
                WireOutcome::Failed => NoticeOutcome::Failed,
            },
        }
    }
}

fn mac(secret: &str, timestamp: &[u8], body: &[u8]) -> Hmac<Sha256> {
    let mut mac: Hmac<Sha256> =
        Hmac::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(timestamp);
    mac.update(b".");
    mac.update(body);
    mac
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |c: &u8| (*c as char).to_digit(16).map(|d| d as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_both_ways() {
        assert_eq!(to_hex(&[0, 0x7f, 0xff]), "007fff");
        assert_eq!(from_hex(b"007FfF"), Some(vec![0, 0x7f, 0xff]));
        assert_eq!(from_hex(b"0"), None);
        assert_eq!(from_hex(b"0g"), None);
    }

    #[test]
    fn a_cashiers_token_is_for_one_payment() {
        let secret = "0123456789abcdef";
        let token = cashier_token(secret, "sbp_1");
        assert!(is_cashier_token(secret, "sbp_1", &token));
        for (secret, txn, token) in [
            (secret, "sbp_2", token.as_str()),
            ("another secret, not ours", "sbp_1", &token),
            (secret, "sbp_1", ""),
            (secret, "sbp_1", &token[2..]),
            (secret, "sbp_1", &"0".repeat(64)),
            (secret, "sbp_1", "no hex"),
        ] {
            assert!(!is_cashier_token(secret, txn, token), "{txn} {token}");
        }
    }

    /// The wire format, pinned: computed with `openssl dgst -sha256 -hmac`.
    #[test]
    fn a_known_signature() {
        let headers = sign("0123456789abcdef", b"{}", 1_800_000_000_000);
        assert_eq!(headers[TIMESTAMP_HEADER], "1800000000000");
        assert_eq!(
            headers[SIGNATURE_HEADER],
            "34ab3bb77c2558f65f1cd6d5b7a3291a0151f71c7b3234c85cf893baeeeccaa9"
        );
    }
}
