//! Watched items: whoever watches one is told when nothing is left of it, and when there is something again.
//!
//! What is left is what pages show: in one process it is the gate's own number, in a cluster every instance
//! reads what has changed at the gate every second ([`gate::Inspection::left`]). So all instances see the
//! same and nobody has to tell the others; looking costs nothing but memory, and only for watched items.

use std::time::Duration;

use gate::Gate;

use super::hub::Hub;

const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) async fn watch(hub: &Hub, gate: &dyn Gate) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        hub.look_at_stock(|item| gate.left(item));
    }
}
