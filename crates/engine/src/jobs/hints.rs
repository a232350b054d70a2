//! Hears what the other instances tell, and passes it on to those who listen here.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;

use crate::{Push, coordination::Hint, shared::Shared};

pub(super) async fn hear_hints(shared: Arc<Shared>, push: Arc<Push>) {
    let mut hints = shared.coordination.hints();
    loop {
        match hints.recv().await {
            Ok(Hint::Orders { orders }) => push.tell(&orders),
            Ok(Hint::Units { item }) => shared.lanes.forget(item),
            // Too many to keep up with: buyers poll, and a cached "no" is at most a second old.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
