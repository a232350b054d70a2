//! A door in front of MariaDB behind which it speaks as TiDB does, as far as a ledger can notice.
//!
//! TiDB itself is in no distribution. What it does otherwise was read in its documents and seen once on a
//! real one (8.5.6); each of these points is said here again, so that a story can tell that the ledger
//! gets along with it: its version, no triggers, no read-only snapshots, SKIP LOCKED that locks nothing,
//! and variables of its own. Numbers of rows that are handed out in ranges are made by triggers of MariaDB
//! itself ([`numbers_in_ranges`]). It is a stand-in and no proof: README says so.
//!
//! A client says one command in one packet, in whose first byte it says which kind it is, and waits for the
//! answer. So a packet can be answered here instead of there, or be changed on its way. What the server
//! says is passed on as it is.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use super::place::Port;

/// As TiDB 8.5.6 says it.
pub const TIDB_VERSION: &str = "8.0.11-TiDB-v8.5.6";

const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
/// What a client may say at once; more than a statement of ours may be long.
const PACKET_BYTES_MAX: usize = 16 * 1024 * 1024 - 1;

/// Errors by what a statement has in it: the number, its class, and the words.
const REFUSED: [(&str, u16, &str, &str); 4] = [
    ("CREATE TRIGGER", 1064, "42000", "You have an error in your SQL syntax; near \"TRIGGER\""),
    ("DROP TRIGGER", 1064, "42000", "You have an error in your SQL syntax; near \"TRIGGER\""),
    (
        "SNAPSHOT, READ ONLY",
        1064,
        "42000",
        "You have an error in your SQL syntax; near \", READ ONLY\"",
    ),
    (
        "TRANSACTION READ ONLY",
        1235,
        "42000",
        "function READ ONLY has only noop implementation in tidb now, use tidb_enable_noop_functions to \
         enable these functions",
    ),
];

/// What is said instead of what.
const SAID_INSTEAD: [(&str, &str); 4] = [
    ("SELECT VERSION()", "SELECT '8.0.11-TiDB-v8.5.6'"),
    ("FOR UPDATE SKIP LOCKED", ""),
    (
        "SHOW GLOBAL VARIABLES LIKE 'tidb_enable_check_constraint'",
        "SELECT 'tidb_enable_check_constraint', 'OFF'",
    ),
    ("SHOW GLOBAL VARIABLES LIKE 'tidb_txn_mode'", "SELECT 'tidb_txn_mode', 'pessimistic'"),
];

/// The door. Dropped, it lets nobody in any more.
#[derive(Debug)]
pub struct TidbStandIn {
    port: Port,
    open: Arc<AtomicBool>,
}

impl TidbStandIn {
    pub fn start(server: SocketAddr) -> io::Result<TidbStandIn> {
        let port = Port::reserve()?;
        let listener = TcpListener::bind(port.address())?;
        let open = Arc::new(AtomicBool::new(true));
        let is_open = Arc::clone(&open);
        thread::spawn(move || {
            for client in listener.incoming() {
                if !is_open.load(Ordering::Relaxed) {
                    return;
                }
                // A client that cannot be served sees its connection closed, as by a server that is down.
                let _ = client.and_then(|client| let_in(client, server));
            }
        });
        Ok(TidbStandIn { port, open })
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }
}

impl Drop for TidbStandIn {
    fn drop(&mut self) {
        self.open.store(false, Ordering::Relaxed);
        // The accepting thread looks when somebody comes.
        let _ = TcpStream::connect(self.port.address());
    }
}

fn let_in(client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut answers, mut to_client) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut answers, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        let _ = pass_on_commands(&client, &server);
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
    Ok(())
}

fn pass_on_commands(mut client: &TcpStream, mut server: &TcpStream) -> io::Result<()> {
    loop {
        let mut head = [0; 4];
        client.read_exact(&mut head)?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
        let mut said = vec![0; length];
        client.read_exact(&mut said)?;
        // Whoever gets in says who he is in packets with other numbers: a command has number 0.
        match (head[3] == 0).then(|| judge(&said)).flatten() {
            Some(Instead::Refuse(error)) => client.write_all(&packet(1, &error)?)?,
            Some(Instead::Say(other)) => server.write_all(&packet(0, &other)?)?,
            None => server.write_all(&[&head[..], &said].concat())?,
        }
    }
}

enum Instead {
    Refuse(Vec<u8>),
    Say(Vec<u8>),
}

fn judge(said: &[u8]) -> Option<Instead> {
    let (kind, sql) = said.split_first()?;
    if ![QUERY, PREPARE].contains(kind) {
        return None;
    }
    let sql = str::from_utf8(sql).ok()?;
    if let Some((_, code, class, words)) = REFUSED.iter().find(|(what, ..)| sql.contains(what)) {
        return Some(Instead::Refuse(error(*code, class, words)));
    }
    let (what, instead) = SAID_INSTEAD.iter().find(|(what, _)| sql.contains(what))?;
    let mut other = vec![*kind];
    other.extend(sql.replace(what, instead).bytes());
    Some(Instead::Say(other))
}

fn error(code: u16, class: &str, words: &str) -> Vec<u8> {
    let mut error = vec![0xff];
    error.extend(code.to_le_bytes());
    error.extend(format!("#{class}{words}").bytes());
    error
}

fn packet(number: u8, bytes: &[u8]) -> io::Result<Vec<u8>> {
    if bytes.len() > PACKET_BYTES_MAX {
        return Err(io::Error::other("a statement too long for one packet"));
    }
    let length = (bytes.len() as u32).to_le_bytes();
    Ok([&length[..3], &[number], bytes].concat())
}

/// SQL for MariaDB that numbers the rows of a table as two servers of a TiDB do, each in a range of its own.
/// They write in turns, row by row, so that later rows come before earlier ones.
pub fn numbers_in_ranges(table: &str) -> Vec<String> {
    let sequence = |what: &str, first: u32| {
        format!("CREATE SEQUENCE {what}_{table} START WITH {first} INCREMENT BY 1 NOCACHE")
    };
    let trigger = format!(
        "CREATE TRIGGER ranges_{table} BEFORE INSERT ON {table} FOR EACH ROW SET NEW.id =
             IF(NEXTVAL(turn_{table}) % 2 = 1, NEXTVAL(high_{table}), NEXTVAL(low_{table}))"
    );
    vec![sequence("turn", 1), sequence("low", 1), sequence("high", 1_000_000), trigger]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(sql: &str) -> Option<Instead> {
        judge(&[&[QUERY], sql.as_bytes()].concat())
    }

    #[test]
    fn what_tidb_does_not_have_is_refused_and_the_rest_passed_on() {
        let refused = judged("CREATE TRIGGER x BEFORE UPDATE ON t FOR EACH ROW …");
        let Some(Instead::Refuse(error)) = refused else { panic!("it was let in") };
        assert_eq!((error[0], u16::from_le_bytes([error[1], error[2]])), (0xff, 1064));
        let skipping = judged("SELECT a FROM t WHERE b = 1 FOR UPDATE SKIP LOCKED");
        let Some(Instead::Say(other)) = skipping else { panic!("it was passed on") };
        assert_eq!(&other[1..], b"SELECT a FROM t WHERE b = 1 ");
        assert!(judged("SELECT a FROM t FOR UPDATE NOWAIT").is_none());
        assert!(judge(&[0x01]).is_none(), "a goodbye");
        assert!(SAID_INSTEAD[0].1.contains(TIDB_VERSION));
    }
}
