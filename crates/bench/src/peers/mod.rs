//! The ways people sell today, written down as they are described and as fast as they can be: what
//! they send is prepared before the watch starts, their statements are prepared, and each consumer
//! has a connection of its own.

pub(crate) mod per_order;
pub(crate) mod script;
