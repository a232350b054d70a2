//! All connections of one listener: how many there may be, who gives way, which are late, how they drain.
//!
//! **Nobody is locked out by those who came first.** An address has a share of all connections; one that has
//! used it up gives up its own oldest idle connection for a new one. When the house is full, the address
//! that has most of it gives way, and of its connections the one that is worth least and has been so for
//! longest: idle before half-asked before slow before listening before served. Of an address that is no
//! buyer's own (a proxy) only what is idle is taken, and nobody loses a request to a newcomer whose address
//! has as many connections as theirs. So a crowd of one address can keep out nobody but itself.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use limits::Subscriber;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    Hosts, HttpSettings,
    connection::{Connection, ConnectionGuard, Worth},
    looked::{IdleOnes, Looked},
    metrics::{CONNECTIONS, CONNECTIONS_CUT, CUT_FOR_ROOM, REFUSED_REASONS},
};

/// The watchman's round; time limits are kept to within it.
pub(crate) const ROUND: Duration = Duration::from_millis(ROUND_MS);
pub(crate) const ROUND_MS: u64 = 100;
/// A longer time between two rounds counts as this much.
const ROUND_MS_MAX: u64 = 2 * ROUND_MS;

/// Room is made for this part of all connections at a time, so that a crowd at a full house does not look
/// through all of them for each newcomer.
const ROOM_PART: usize = 128;
/// Connections that were cut to make room and still close; beyond it newcomers are refused.
const GIVING_WAY_MAX: usize = 256;

const FULL: &str = REFUSED_REASONS[0];
const ADDRESS_FULL: &str = REFUSED_REASONS[1];

/// All connections of one listener.
pub(crate) struct Connections {
    open: Mutex<Open>,
    settings: HttpSettings,
    hosts: Hosts,
    began: Instant,
    now_ms: AtomicU64,
    /// When the watchman last went round, by the clock.
    last_round_ms: AtomicU64,
    last_id: AtomicU64,
    draining: AtomicBool,
    emptied: Notify,
}

#[derive(Default)]
struct Open {
    all: HashMap<u64, Arc<Connection>>,
    /// Those of each address, but for such as have given way.
    of: HashMap<Subscriber, HashSet<u64>>,
    /// Those that have given way and are not closed yet.
    giving_way: usize,
    looked: Looked,
}

impl Open {
    fn count(&self) -> usize {
        self.all.len() - self.giving_way
    }

    fn count_of(&self, subscriber: Subscriber) -> usize {
        self.of.get(&subscriber).map_or(0, HashSet::len)
    }

    fn forget(&mut self, connection: &Connection) {
        if let Entry::Occupied(mut entry) = self.of.entry(connection.subscriber) {
            entry.get_mut().remove(&connection.id());
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }

    /// Cut the one of this address that has been idle for longest. False if none is, as far as this round
    /// knows.
    fn make_room_of(&mut self, whose: Subscriber) -> bool {
        let mut known = self.looked.take_idle_of(whose);
        loop {
            let mut idle = known.take().unwrap_or_else(|| self.look_for_idle_of(whose));
            while let Some((since_ms, id)) = idle.next() {
                let worth = self.all.get(&id).filter(|one| !one.is_cut()).map(|one| one.worth());
                if worth == Some((Worth::Idle, since_ms)) {
                    self.looked.keep_idle_of(whose, idle);
                    self.give_way(id);
                    return true;
                }
            }
            if idle.are_all() {
                self.looked.keep_idle_of(whose, idle);
                return false;
            }
        }
    }

    fn look_for_idle_of(&self, whose: Subscriber) -> IdleOnes {
        let ids = self.of.get(&whose).into_iter().flatten();
        let those = ids.filter_map(|id| self.all.get(id)).filter(|one| !one.is_cut());
        let idle = those.filter_map(|one| match one.worth() {
            (Worth::Idle, since_ms) => Some((since_ms, one.id())),
            _ => None,
        });
        IdleOnes::of(idle.collect())
    }

    /// Cut up to so many of those that may be taken, from the one that is worth least on; how many it were.
    fn make_room(
        &mut self,
        room: usize,
        may_be_taken: impl Fn(&Connection, Worth) -> bool,
    ) -> usize {
        let mut found: Vec<(Worth, u64, u64)> = self
            .all
            .values()
            .filter(|connection| !connection.is_cut())
            .filter_map(|connection| {
                let (worth, since_ms) = connection.worth();
                may_be_taken(connection, worth).then_some((worth, since_ms, connection.id()))
            })
            .collect();
        if found.len() > room {
            found.select_nth_unstable(room);
            found.truncate(room);
        }
        found.iter().for_each(|(.., id)| self.give_way(*id));
        found.len()
    }

    fn give_way(&mut self, id: u64) {
        let Some(connection) = self.all.get(&id).cloned() else { return };
        connection.give_way();
        self.giving_way += 1;
        self.forget(&connection);
        metrics::counter!(CONNECTIONS_CUT, "reason" => CUT_FOR_ROOM).increment(1);
    }
}

impl Connections {
    pub(crate) fn new(settings: HttpSettings) -> Arc<Self> {
        Arc::new(Connections {
            open: Mutex::default(),
            hosts: Hosts::new(&settings.allowed_hosts),
            settings,
            began: Instant::now(),
            now_ms: AtomicU64::new(0),
            last_round_ms: AtomicU64::new(0),
            last_id: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            emptied: Notify::new(),
        })
    }

    pub(crate) fn settings(&self) -> &HttpSettings {
        &self.settings
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Since the start, as of the watchman's last round: connections note the time several times
    /// per request, and a look at a number costs less than a look at the clock.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms.load(Relaxed)
    }

    /// Why not, if there is no room and nobody can give way.
    pub(crate) fn open(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionGuard, &'static str> {
        let mut open = self.open.lock();
        self.make_room_for(&mut open, address)?;
        let id = self.last_id.fetch_add(1, Relaxed);
        let connection = Connection::new(id, address, self);
        open.of.entry(connection.subscriber).or_default().insert(id);
        open.all.insert(id, connection.clone());
        // There may be a second listener, for operators.
        metrics::gauge!(CONNECTIONS).increment(1);
        Ok(ConnectionGuard(connection))
    }

    fn make_room_for(&self, open: &mut Open, address: IpAddr) -> Result<(), &'static str> {
        let newcomer = Subscriber::of(address);
        let of_newcomer = open.count_of(newcomer);
        let is_full = open.count() >= self.settings.connections_max;
        let is_address_full =
            !self.is_exempt(address) && of_newcomer >= self.settings.connections_per_address_max;
        if !is_full && !is_address_full {
            return Ok(());
        }
        if open.giving_way >= GIVING_WAY_MAX {
            return Err(FULL);
        }
        open.looked.in_round(self.now_ms());
        if is_address_full {
            return if open.make_room_of(newcomer) { Ok(()) } else { Err(ADDRESS_FULL) };
        }
        if open.looked.is_in_vain(of_newcomer) {
            return Err(FULL);
        }
        let room = (self.settings.connections_max / ROOM_PART).max(1);
        let most = open.of.iter().max_by_key(|(_, ids)| ids.len());
        let most = most.map(|(whose, ids)| (*whose, ids.len()));
        let made = most.is_some_and(|(whose, count)| {
            let spare = count.saturating_sub(of_newcomer + 1);
            let takes_more = |connection: &Connection, worth| {
                connection.subscriber == whose
                    && (worth == Worth::Idle || !self.is_exempt(connection.address()))
            };
            match spare {
                0 => open.make_room_of(whose),
                spare => open.make_room(room.min(spare), takes_more) > 0,
            }
        });
        // Nobody has much, or whoever has is busy: then anybody's idle ones.
        if made || open.make_room(room, |_, worth| worth == Worth::Idle) > 0 {
            return Ok(());
        }
        open.looked.note_in_vain(of_newcomer);
        Err(FULL)
    }

    /// Is it no buyer's own address? Behind proxies none is.
    fn is_exempt(&self, address: IpAddr) -> bool {
        let networks = &self.settings.exempt_networks;
        self.settings.proxy_hops > 0 || networks.iter().any(|network| network.contains(address))
    }

    pub(crate) fn close(&self, connection: &Connection) {
        let mut open = self.open.lock();
        open.all.remove(&connection.id());
        if connection.has_given_way() {
            open.giving_way -= 1;
        } else {
            open.forget(connection);
        }
        metrics::gauge!(CONNECTIONS).decrement(1);
        if open.all.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.lock().all.len()
    }

    /// One round of the watchman: cut those that are late.
    pub(crate) fn cut_late(&self) {
        // A process that slept has not been waiting: its clients were not either.
        let real_ms = self.began.elapsed().as_millis() as u64;
        let slept_ms = real_ms.saturating_sub(self.last_round_ms.swap(real_ms, Relaxed));
        self.now_ms.fetch_add(slept_ms.min(ROUND_MS_MAX), Relaxed);
        let open = self.open.lock();
        for connection in open.all.values().filter(|connection| !connection.is_cut()) {
            if let Some(reason) = connection.is_late() {
                metrics::counter!(CONNECTIONS_CUT, "reason" => reason).increment(1);
                connection.cut();
            } else if connection.is_overdue() {
                connection.wake();
            }
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Tell every connection that no further request is served on it.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Relaxed);
        self.open.lock().all.values().for_each(|connection| connection.wake());
    }

    /// Cut the connections on which nothing would be lost.
    pub(crate) fn cut_unneeded(&self) {
        let open = self.open.lock();
        open.all
            .values()
            .filter(|connection| !connection.is_needed())
            .for_each(|connection| connection.cut());
    }

    /// Cut all that are left; how many they were.
    pub(crate) fn cut_all(&self) -> usize {
        self.open.lock().all.values().map(|connection| connection.cut()).count()
    }

    /// Wait until no connection is left.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.len() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::connection::Stage;

    const HOUSE: usize = 16_384;
    const SHARE: usize = 4_096;
    const NEWCOMERS: usize = 5_000;

    fn house(exempt_networks: &[&str]) -> Arc<Connections> {
        Connections::new(HttpSettings {
            connections_max: HOUSE,
            connections_per_address_max: SHARE,
            exempt_networks: exempt_networks.iter().map(|text| text.parse().unwrap()).collect(),
            backlog_max: 1,
            header_timeout_ms: 1_000,
            header_bytes_max: 1_000,
            body_timeout_ms: 1_000,
            body_bytes_max: 1_000,
            admin_body_bytes_max: 1_000,
            import_body_bytes_max: 1_000,
            idle_timeout_ms: 1_000,
            write_timeout_ms: 1_000,
            request_timeout_ms: 1_000,
            drain_ms_max: 1_000,
            proxy_hops: 0,
            allowed_origins: Vec::new(),
            allowed_frames: Vec::new(),
            allowed_hosts: Vec::new(),
            admin_listen: None,
            tls_cert_file: Default::default(),
            tls_key_file: Default::default(),
            redirect_listen: None,
            tls_handshake_timeout_ms: 1_000,
            tls_handshakes_max: 1,
            http2_streams_max: 1,
        })
    }

    fn address(n: u8) -> IpAddr {
        Ipv4Addr::new(203, 0, 113, n).into()
    }

    fn come(house: &Arc<Connections>, n: u8, times: usize) -> Vec<ConnectionGuard> {
        (0..times).filter_map(|_| house.open(address(n)).ok()).collect()
    }

    /// Each look at all of them takes a millisecond: five thousand of them would be five seconds, in which
    /// nobody else is accepted.
    #[test]
    fn whoever_is_refused_costs_no_look_at_everybody() {
        let quick = Duration::from_secs(1);
        // Nobody's connection is idle.
        let crowded = house(&[]);
        let _crowd: Vec<_> = (1..4).map(|n| come(&crowded, n, SHARE)).collect();
        let began = Instant::now();
        assert_eq!(come(&crowded, 1, NEWCOMERS).len(), 0, "it has its share");
        assert!(began.elapsed() < quick, "an address at its share: {:?}", began.elapsed());
        assert_eq!(come(&crowded, 9, 1).len(), 1, "others get in");

        // Behind proxies everybody comes from a few addresses, and only who is idle gives way.
        let proxied = house(&["203.0.113.0/24"]);
        let _proxy = come(&proxied, 1, HOUSE);
        let began = Instant::now();
        assert_eq!((0..NEWCOMERS).filter(|_| proxied.open(address(2)).is_ok()).count(), 0);
        assert!(began.elapsed() < quick, "a full house: {:?}", began.elapsed());
        assert_eq!(proxied.len(), HOUSE);
    }

    #[test]
    fn an_address_at_its_share_gives_up_its_oldest_idle_one_each_time() {
        let house = house(&[]);
        let mut own = come(&house, 1, SHARE);
        let others = come(&house, 2, 10);
        for idle in own.iter().take(300).chain(&others) {
            idle.0.enter(Stage::Quiet);
        }
        // One of them is asked something meanwhile.
        own[7].0.enter(Stage::Busy);
        let busy = own[7].0.id();
        let mut newcomers = Vec::new();
        for _ in 0..299 {
            newcomers.extend(come(&house, 1, 1));
            own.retain(|one| !one.0.has_given_way());
        }
        assert_eq!((newcomers.len(), own.len()), (299, SHARE - 299), "more than are named at once");
        assert!(own.iter().any(|one| one.0.id() == busy) && others.iter().all(|o| !o.0.is_cut()));
        assert_eq!(come(&house, 1, 1).len(), 0, "none is idle any more");
    }
}
