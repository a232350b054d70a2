//! What can go wrong, on purpose. For tests and for a developer's machine; nothing that ships
//! depends on this crate.
//!
//! Architecture invariant: it knows no other crate of the workspace. It starts other people's
//! programs, or stands in for companies, and does bad things to them; what that means for a sale is said by
//! the tests.

pub mod disk;
pub mod providers;
pub mod services;
