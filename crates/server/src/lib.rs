//! The front door and the engine room of a sale.
//!
//! This crate alone joins the others and alone knows HTTP. From the outside in: [`net`] accepts
//! connections, [`edge`] bounds and explains, handlers take requests apart with [`extract`], know
//! who asks through [`auth`], and refuse with a [`problem`].

pub mod actor;
pub mod api;
pub mod auth;
pub mod checkup;
pub mod cli;
pub mod commons;
pub mod config;
pub mod data_dir;
#[cfg(test)]
mod documents;
pub mod edge;
pub mod engine;
pub mod extract;
pub mod greeting;
pub mod logging;
pub mod metrics;
pub mod net;
pub mod problem;
pub mod secrets;
pub mod serve;
pub mod terminal;
pub mod web;
