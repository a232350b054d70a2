//! What was begun is finished, whether or not its client still waits.

use std::{future::Future, pin::Pin};

use tokio::{sync::oneshot, task::JoinHandle};
use tracing::Instrument;

use crate::problem::Problem;

/// Run to the end, whether or not the client waits for it. A publish that is cut between ledger and
/// gate would leave one of them behind until the next run of a job.
pub(super) async fn finish<T, E>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, Problem>
where
    T: Send + 'static,
    E: Into<Problem> + Send + 'static,
{
    let (tell, told) = oneshot::channel();
    let task = begin(Box::pin(async move {
        // Nobody may be waiting any more.
        let _ = tell.send(work.await);
    }));
    match told.await {
        Ok(done) => done.map_err(Into::into),
        Err(untold) => {
            let died = task.await.err().map(|died| died.to_string());
            Err(Problem::internal(died.unwrap_or_else(|| untold.to_string())))
        }
    }
}

/// Not generic: a task of its own type for each of the handlers would be ten kilobytes of the same code each.
fn begin(work: Pin<Box<dyn Future<Output = ()> + Send>>) -> JoinHandle<()> {
    // What it logs still names the request.
    tokio::spawn(work.in_current_span())
}
