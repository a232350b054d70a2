//! Posting to addresses that somebody else named, so that they can be sure it is us and we can be sure
//! that it is not one of our own machines.
//!
//! - [`SigningSecret`] signs as [Standard Webhooks](https://www.standardwebhooks.com) says, so that shops
//!   verify with a library of their language; [`verify`] believes those who sign so what they tell us.
//! - [`Poster`] posts JSON, by the calls of the crate `outgoing`.
//!
//! The crate knows nothing of orders, retries and tables.

mod post;
mod signing;

pub use outgoing::{
    Answer, BadAuthorities, BadTarget, NotAnswered, Reach, TARGET_CHARS_MAX, Target, is_public,
};
pub use post::Poster;
pub use signing::{BadSecret, NotSigned, SigningSecret, signatures, verify};
