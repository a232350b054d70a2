//! Where connections live: one thread per processor, each with a runtime of its own.
//!
//! A connection stays on the thread it was given to, so its task is never taken over by another one
//! in the middle of a rush, and the thread that has nothing to read sleeps in one place only: where
//! both the sockets and the gate's answers wake it. With one runtime over all processors a claim that
//! waits for the gate costs a hunt for work by threads that find none (docs/PERFORMANCE.md has the
//! figures). Everything that is not a connection runs on the main runtime.
//!
//! New connections go to the thread that has the fewest, for they live long and are not moved.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use tokio::{
    net::TcpStream,
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// Ends its threads when dropped, and what still runs on them.
pub struct Cores(Vec<Core>);

struct Core {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    /// Dropped, it ends the thread.
    _stop: oneshot::Sender<()>,
}

impl Cores {
    /// One for each processor this process may use.
    pub fn start() -> io::Result<Cores> {
        let processors = thread::available_parallelism().map_or(1, Into::into);
        (0..processors).map(Core::start).collect::<io::Result<_>>().map(Cores)
    }

    /// Move a new connection to one of the threads and serve it there.
    pub(super) fn spawn<F>(
        &self,
        socket: TcpStream,
        serve: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) -> io::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let idlest = self.0.iter().min_by_key(|core| core.connections.load(Relaxed));
        let core = idlest.expect("there is at least one processor");
        let counted = Counted::new(&core.connections);
        let socket = socket.into_std()?;
        core.runtime.spawn(async move {
            let _counted = counted;
            // The socket is heard by the runtime it is made in. One that cannot be is closed.
            if let Ok(socket) = TcpStream::from_std(socket) {
                serve(socket).await;
            }
        });
        Ok(())
    }
}

impl Core {
    fn start(number: usize) -> io::Result<Core> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        thread::Builder::new().name(format!("core-{number}")).spawn(move || {
            let _ = runtime.block_on(stopped);
            // Something that waits for somebody else's answer must not keep the thread.
            runtime.shutdown_background();
        })?;
        Ok(Core { runtime: handle, connections: Arc::default(), _stop: stop })
    }
}

/// A connection that is on a core.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(connections: &Arc<AtomicUsize>) -> Counted {
        connections.fetch_add(1, Relaxed);
        Counted(connections.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, net::TcpListener, sync::mpsc};

    use super::*;

    #[tokio::test]
    async fn connections_are_spread_and_stay_where_they_are() {
        let cores = Cores(vec![Core::start(0).unwrap(), Core::start(1).unwrap()]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, mut served_by) = mpsc::unbounded_channel();
        let connect = async || {
            let client = TcpStream::connect(address).await.unwrap();
            let (socket, _) = listener.accept().await.unwrap();
            let sender = sender.clone();
            let serve = async move |mut socket: TcpStream| {
                let before = thread::current().id();
                let _ = socket.read(&mut [0]).await;
                assert_eq!(thread::current().id(), before);
                sender.send(before).unwrap();
            };
            cores.spawn(socket, serve).unwrap();
            client
        };
        let here = || cores.0.iter().map(|core| core.connections.load(Relaxed)).collect::<Vec<_>>();
        let (first, second) = (connect().await, connect().await);
        assert_eq!(here(), [1, 1]);
        drop(first);
        let left_by = served_by.recv().await.unwrap();
        while here().iter().sum::<usize>() > 1 {
            tokio::task::yield_now().await;
        }
        let third = connect().await;
        assert_eq!(here(), [1, 1], "it took the place of the one that left");
        drop((second, third));
        let others = [served_by.recv().await.unwrap(), served_by.recv().await.unwrap()];
        assert_eq!(others.iter().filter(|thread| **thread == left_by).count(), 1);
    }
}
