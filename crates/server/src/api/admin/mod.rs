//! What operators ask for. Reading needs the role viewer, running sales operator, money and tokens
//! admin. What they do is in the audit under the name of the token that did it.

pub(super) mod activities;
pub(super) mod audit;
pub(super) mod by_hand;
pub(super) mod claims;
mod csv;
pub(super) mod dead_letters;
mod door;
pub(super) mod import;
pub(super) mod items;
pub(super) mod keys;
pub(super) mod lists;
pub(super) mod orders;
pub(super) mod overview;
pub(super) mod plans;
pub(super) mod preflight;
pub(super) mod reconcile;
pub(super) mod rehearsals;
mod report;
pub(super) mod sandbox;
pub(super) mod session;
pub(super) mod story;
pub(super) mod tokens;
pub(super) mod totals;
pub(super) mod webhooks;

pub(super) use activities::{LISTED_DEFAULT, PlannedItem};
pub(super) use audit::AUDIT_WORD_CHARS_MAX;
pub(crate) use csv::cell as csv_cell;
pub(super) use orders::REFUND_NOTE_CHARS_MAX;
