//! Posting to addresses that somebody else named, so that they can be sure it is us and we can be sure
//! that it is not one of our own machines.
//!
//! - [`SigningSecret`] signs as [Standard Webhooks](https://www.standardwebhooks.com) says, so that shops
//!   verify with a library of their language.
//! - [`Target`] is an address that can be posted to, and [`Reach`] says which machines it may lead to.
//! - [`Poster`] posts: the name is resolved, the addresses are judged, and the connection goes to one of the
//!   very addresses that were judged. Redirects are not followed, proxies of the environment not asked.
//!
//! The crate knows nothing of orders, retries and tables.

mod post;
mod reach;
mod signing;
mod target;

pub use post::{Answer, NotPosted, Poster};
pub use reach::{Reach, is_public};
pub use signing::{BadSecret, SigningSecret, signatures};
pub use target::{BadTarget, TARGET_CHARS_MAX, Target};
