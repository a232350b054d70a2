//! An address that stays while the one who answers behind it changes.
//!
//! A shop reaches the primary of a pair through a name, a virtual address or Sentinel; a relay plays
//! that part. It passes bytes on and knows nothing about them. While nobody answers at its goal, it
//! accepts and closes at once.

use std::{
    collections::HashMap,
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use super::place::Port;

const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// One thread per direction; a crowd belongs in front of the shop, not here.
const CONNECTIONS_MAX: usize = 1_000;

#[derive(Debug)]
pub struct Relay {
    port: Port,
    switch: Arc<Mutex<Switch>>,
}

#[derive(Debug)]
struct Switch {
    /// Nobody once the relay is dropped.
    goal: Option<SocketAddr>,
    next: u64,
    /// Both ends of what is open, to be able to cut it.
    open: HashMap<u64, [TcpStream; 2]>,
}

impl Relay {
    pub fn start(goal: SocketAddr) -> io::Result<Relay> {
        let port = Port::reserve()?;
        let listener = TcpListener::bind(port.address())?;
        let switch = Switch { goal: Some(goal), next: 0, open: HashMap::new() };
        let switch = Arc::new(Mutex::new(switch));
        let accepting = Arc::clone(&switch);
        thread::spawn(move || accept(&listener, &accepting));
        Ok(Relay { port, switch })
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Pass new connections on to somebody else, and cut the old ones.
    pub fn point_at(&self, goal: SocketAddr) {
        self.lead_to(goal);
        self.cut();
    }

    /// Pass new connections on to somebody else. The old ones stay where they are.
    pub fn lead_to(&self, goal: SocketAddr) {
        lock(&self.switch).goal = Some(goal);
    }

    /// Close every open connection, at both ends.
    pub fn cut(&self) {
        for (_, ends) in lock(&self.switch).open.drain() {
            close(&ends);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        lock(&self.switch).goal = None;
        self.cut();
        // The accepting thread looks at the goal when somebody comes.
        let _ = TcpStream::connect(self.port.address());
    }
}

fn accept(listener: &TcpListener, switch: &Arc<Mutex<Switch>>) {
    for client in listener.incoming() {
        let Some(goal) = lock(switch).goal else { return };
        // A client that cannot be served sees its connection closed, as by a server that is down.
        let _ = client.and_then(|client| pass_on(client, goal, switch));
    }
}

fn pass_on(client: TcpStream, goal: SocketAddr, switch: &Arc<Mutex<Switch>>) -> io::Result<()> {
    let server = TcpStream::connect_timeout(&goal, CONNECT_WITHIN)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ends = [client.try_clone()?, server.try_clone()?];
    let id = {
        let mut switch = lock(switch);
        if switch.open.len() >= CONNECTIONS_MAX || switch.goal != Some(goal) {
            return Ok(());
        }
        switch.next += 1;
        let id = switch.next;
        switch.open.insert(id, ends);
        id
    };
    for (mut from, mut to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        let switch = Arc::clone(switch);
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            // One side has ended; none of these protocols goes on with half a connection.
            if let Some(ends) = lock(&switch).open.remove(&id) {
                close(&ends);
            }
        });
    }
    Ok(())
}

fn close(ends: &[TcpStream; 2]) {
    for end in ends {
        let _ = end.shutdown(Shutdown::Both);
    }
}

fn lock(switch: &Mutex<Switch>) -> MutexGuard<'_, Switch> {
    switch.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
