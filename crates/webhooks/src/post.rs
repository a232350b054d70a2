//! One post of JSON to whoever was named.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use outgoing::{Answer, BadAuthorities, Call, Caller, NotAnswered, Reach, Target};

/// What is read of an answer: enough to show an operator why something was not taken.
const ANSWER_BYTES_MAX: usize = 4_096;

/// Posts, and keeps connections.
pub struct Poster(Caller);

impl Poster {
    /// Trusts the public authorities, and besides them those of this PEM file; an empty path is none.
    pub fn trusting(authorities: &Path) -> Result<Poster, BadAuthorities> {
        let none = authorities.as_os_str().is_empty();
        Ok(Poster(if none { Caller::default() } else { Caller::trusting_also(authorities)? }))
    }

    /// Posts JSON, with these headers besides. Everything together takes at most `within`.
    pub async fn post(
        &self,
        target: &Target,
        reach: Reach,
        mut headers: HeaderMap,
        body: Bytes,
        within: Duration,
    ) -> Result<Answer, NotAnswered> {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let call = Call {
            method: Method::POST,
            target,
            reach,
            headers,
            body,
            within,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        self.0.call(&call).await
    }

    /// Would a post be let through now? For whoever enters an address and wants to hear of it at once.
    pub async fn judge(target: &Target, reach: Reach, within: Duration) -> Result<(), NotAnswered> {
        Caller::judge(target, reach, within).await
    }
}
