//! The key under which whoever asks again gets what came of it the first time.

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::claims::{IDEMPOTENCY_KEY, IDEMPOTENCY_KEY_CHARS_MAX};
use crate::problem::Problem;

/// The `Idempotency-Key` of a request of an operator, if there is one.
pub(super) struct GivenKey(pub(super) Option<String>);

impl<S: Sync> FromRequestParts<S> for GivenKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut given = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(key) = given.next() else { return Ok(GivenKey(None)) };
        let key = key.to_str().unwrap_or_default();
        let good = (1..=IDEMPOTENCY_KEY_CHARS_MAX).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_graphic());
        if !good || given.next().is_some() {
            let rule = format!(
                "must be one, of 1 to {IDEMPOTENCY_KEY_CHARS_MAX} visible ASCII characters"
            );
            let zh = format!("只能有一个，且为 1 到 {IDEMPOTENCY_KEY_CHARS_MAX} 个可见 ASCII 字符");
            return Err(Problem::invalid_in("Idempotency-Key", &rule, &zh));
        }
        Ok(GivenKey(Some(key.to_owned())))
    }
}
