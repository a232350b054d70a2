//! The front door and the engine room of a sale.
//!
//! This crate alone joins the others and alone knows HTTP. From the outside in: [`listener`] accepts
//! connections, [`edge`] bounds and explains, handlers take requests apart with [`extract`], know
//! who asks through [`access`], and refuse with a [`problem`].

pub mod access;
pub mod api;
pub mod cli;
mod doors;
pub mod edge;
pub mod extract;
pub mod front_door;
pub mod greeting;
pub mod logging;
mod lost;
pub mod metrics;
pub mod origins;
pub mod problem;
mod rehearsing;
pub mod serve;
mod starting;
pub mod terminal;
pub mod web;
