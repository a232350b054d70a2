//! Rehearsing a sale: an open-loop crowd over real HTTP, and the report of `seckill rehearse`.
//!
//! [`rehearse`] plays a whole sale: buyers who come when they were planned to, repeat, pay, abandon,
//! and bots. The crowd writes down everything it was told; afterwards the deployment is observed from
//! outside and the checker compares the two. [`OpenLoop`] is the same load generator with buyers who
//! claim once and leave, for benchmarks.

mod agenda;
mod bot_drill;
mod buyers;
mod curve;
mod measurements;
mod open_loop;
mod own_server;
mod page;
mod people;
mod plan;
mod plots;
mod progress;
mod rehearse;
mod report;
mod site;
mod target;
mod timeline;
mod words;

pub use bot_drill::{BotDrill, BotPlan, Defence, DrillRow, bot_drill};
pub use curve::Curve;
pub use open_loop::{Arrival, LAG_P99_US_MAX, Latencies, OpenLoop, OpenLoopReport};
pub use own_server::OwnServer;
pub use plan::Plan;
pub use plots::PlotError;
pub use progress::Progress;
pub use rehearse::{RehearseError, rehearse};
pub use report::{
    Check, Funnel, Generator, Outcome, Percentiles, Rates, Reconciled, Report, Target, Timings,
};
pub use site::Site;
pub use target::{TargetError, find_target};
pub use timeline::{Rate, Sample};
pub use words::{Language, Note};
