//! A claim as it goes over the wire, and what its response says.

use std::net::SocketAddr;

use checker::Answer;
use serde::Deserialize;

use crate::{Response, connection::write_request};

/// The `Idempotency-Key` of a buyer who claims one thing only.
pub fn key_of(user: &str) -> String {
    format!("key-{user}")
}

/// Write a claim with its sale token and, if there is one, its key.
pub fn write_claim(
    out: &mut Vec<u8>,
    address: SocketAddr,
    path: &str,
    (token, key): (&str, Option<&str>),
    body: &str,
) {
    let headers = [
        ("content-type", "application/json"),
        ("x-sale-token", token),
        ("idempotency-key", key.unwrap_or_default()),
    ];
    let headers = if key.is_some() { &headers[..] } else { &headers[..2] };
    write_request(out, address, ("POST", path), headers, body.as_bytes());
}

/// What a response to a claim says.
pub fn answer_of(response: &Response) -> Answer {
    /// The two fields that matter; a text with escapes in it would not be one of ours.
    #[derive(Default, Deserialize)]
    struct Said<'a> {
        #[serde(default, borrow)]
        order_no: Option<&'a str>,
        #[serde(default, borrow)]
        code: Option<&'a str>,
    }
    let said: Said = serde_json::from_slice(&response.body).unwrap_or_default();
    let order_no = || said.order_no.and_then(|no| no.parse().ok());
    match (response.status, said.code) {
        (202, _) => order_no().map_or(Answer::Unknown, |order_no| Answer::Admitted { order_no }),
        (409, Some("already_bought")) => {
            order_no().map_or(Answer::Unknown, |order_no| Answer::AlreadyBought { order_no })
        }
        (409, Some("sold_out")) => Answer::SoldOut,
        (status, code) => Answer::Refused(code.unwrap_or(&status.to_string()).to_owned()),
    }
}
