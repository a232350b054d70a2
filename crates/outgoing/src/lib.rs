//! HTTP calls that we make to machines of others: a shop's webhook, a payment provider.
//!
//! - [`Target`] is an address that can be called, and [`Reach`] says which machines it may lead to.
//! - [`Caller`] calls: the name is resolved, the addresses are judged, and the connection goes to one of the
//!   very addresses that were judged. Redirects are not followed, proxies of the environment not asked. A
//!   call takes as long as it may and no longer, and of its answer so much is read as it may have.
//!
//! The crate knows nothing of what is said in a call.

mod call;
mod reach;
mod target;

pub use call::{Answer, BadAuthorities, Call, Caller, NotAnswered};
pub use reach::{Reach, is_public};
pub use target::{BadTarget, TARGET_CHARS_MAX, Target};
