//! Requests as clients send them, good and bad, through the whole router; and what documents say of it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod archived;
mod attacks;
mod buyers;
mod claims;
mod console;
mod documents;
mod door;
mod draws;
mod external;
mod front_door;
mod machines;
mod manners;
mod openapi;
mod operators;
mod plans;
mod shop;
mod words;
