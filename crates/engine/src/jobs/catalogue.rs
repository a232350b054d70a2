//! Keeps what pages show up to date.

use super::{JobResult, Progress};
use crate::{Engine, settings::Role};

impl Engine {
    /// Pages of a process without jobs come from the copy that the others keep in the coordination; only
    /// if there is none is the ledger asked.
    pub(crate) async fn show_catalogue(&self) -> JobResult {
        match self.coordination.catalogue().await {
            Some(activities) if !self.does(Role::Jobs) => {
                self.catalogue.show(activities, self.clock.now_ms());
            }
            _ => {
                self.catalogue.refresh(&*self.ledger, self.clock.now_ms()).await?;
                self.coordination.put_catalogue(&self.catalogue.snapshot().activities).await;
            }
        }
        self.health.catalogue_is_fresh();
        Ok(Progress::CaughtUp)
    }
}
