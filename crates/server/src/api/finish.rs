//! What was begun is finished, whether or not its client still waits.

use std::future::Future;

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
    // What it logs still names the request.
    match tokio::spawn(work.in_current_span()).await {
        Ok(done) => done.map_err(Into::into),
        Err(died) => Err(Problem::internal(died)),
    }
}
