//! A connection to a Redis Cluster that does not stay broken.
//!
//! The client follows slots that move, but after failovers one was seen to go on asking for nodes
//! that are gone until its commands timed out, again and again. So failures that are not the
//! server's own answers are counted, and a connection that keeps failing is opened anew from the
//! addresses it was first opened with.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;
use redis::{
    Cmd, ErrorKind, FromRedisValue, RedisResult, cluster::ClusterClient,
    cluster_async::ClusterConnection,
};

/// So many failures in a row, and the connection is replaced.
const FAILURES_MAX: u32 = 3;

pub struct ClusterLine {
    client: ClusterClient,
    connection: RwLock<ClusterConnection>,
    failures: AtomicU32,
}

impl ClusterLine {
    pub async fn open(client: ClusterClient) -> RedisResult<ClusterLine> {
        let connection = RwLock::new(client.get_async_connection().await?);
        Ok(ClusterLine { client, connection, failures: AtomicU32::new(0) })
    }

    /// The connection of the moment. Whoever uses it tells [`ClusterLine::note`] how it went.
    pub fn connection(&self) -> ClusterConnection {
        self.connection.read().clone()
    }

    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let done = command.query_async(&mut self.connection()).await;
        self.note(&done).await;
        done
    }

    pub async fn note<T>(&self, done: &RedisResult<T>) {
        match done {
            Ok(_) => self.failures.store(0, Ordering::Relaxed),
            // The server answered; the connection is fine.
            Err(error) if matches!(error.kind(), ErrorKind::Server(_)) => {}
            Err(_) if self.failures.fetch_add(1, Ordering::Relaxed) + 1 < FAILURES_MAX => {}
            Err(_) => {
                self.failures.store(0, Ordering::Relaxed);
                match self.client.get_async_connection().await {
                    Ok(fresh) => {
                        *self.connection.write() = fresh;
                        tracing::info!("the connection to the Redis Cluster was opened anew");
                    }
                    Err(error) => tracing::debug!(%error, "the Redis Cluster cannot be reached"),
                }
            }
        }
    }
}
