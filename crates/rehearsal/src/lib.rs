//! Rehearsing a sale: a crowd over real HTTP, and a checker for what must always hold.
//!
//! [`rehearse`] plays a whole sale: buyers who come when they were planned to, repeat, pay, abandon,
//! and bots. [`Crowd`] and [`OpenLoop`] only claim, for tests and benchmarks.
//!
//! The crowd writes down everything it was told ([`History`]). Afterwards the deployment is looked
//! at from outside, through its admin API ([`observe`]), and [`check`] compares the two: a pure
//! function from what was said and what is there to a list of named violations. Tests that end a
//! sale end with it.

mod agenda;
mod buyers;
mod checker;
mod client;
mod crowd;
mod curve;
mod deployment;
mod notes;
mod observe;
mod open_loop;
mod own_server;
mod page;
mod people;
mod plan;
mod plots;
mod rehearse;
mod report;
mod target;
mod timeline;
mod view;

pub use checker::{
    Answer, Bill, Charge, History, Observed, ObservedItem, ObservedOrder, StockLogRow, Told,
    Violation, check,
};
pub use client::{Api, ApiError, Connection, Response};
pub use crowd::{Crowd, CrowdReport, Login, SaleTokens, answer, sale_tokens};
pub use curve::Curve;
pub use deployment::{Deployment, Launch};
pub use observe::{ObserveError, observe, settled};
pub use open_loop::{Arrival, LAG_P99_US_MAX, Latencies, OpenLoop, OpenLoopReport};
pub use own_server::OwnServer;
pub use plan::Plan;
pub use plots::PlotError;
pub use rehearse::{RehearseError, Site, rehearse};
pub use report::{Funnel, Generator, Percentiles, Rates, Reconciled, Report, Target, Timings};
pub use target::{TargetError, find_target};
pub use timeline::{Rate, Sample};
pub use view::View;
