//! A Redis Cluster: which member has which slot.
//!
//! The map is read from several members at once, and where they differ the one with the later epoch is
//! right: a member that was cut off still says what was true before. It is read again when a server
//! says that a slot has moved, and when one does not answer.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::{Mutex, RwLock};
use redis::{ConnectionInfo, ErrorKind, RedisError, RedisResult};

use crate::{
    servers::{Kind, Node, RedisServers, at, open, too_late},
    slot::SLOTS,
};

/// The map is read within this, from those who answer.
const READ_WITHIN: Duration = Duration::from_secs(1);
/// And not more often than this, whatever fails.
const READ_PAUSE: Duration = Duration::from_millis(300);
/// So many members are asked.
const ASKED_MAX: usize = 12;

pub(crate) struct Cluster {
    seeds: Vec<ConnectionInfo>,
    map: RwLock<Map>,
    reading: tokio::sync::Mutex<()>,
    read_at: Mutex<Option<Instant>>,
    /// Turns through the members, for those who want any.
    turn: std::sync::atomic::AtomicUsize,
}

#[derive(Default)]
struct Map {
    /// The slots of each, and the epoch under which it has them.
    masters: Vec<Master>,
    members: Vec<(Arc<str>, u16)>,
    /// By slot: which of the masters.
    owners: Vec<Option<usize>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Master {
    place: (Arc<str>, u16),
    epoch: u64,
    is_there: bool,
    slots: Vec<(u16, u16)>,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<ConnectionInfo>) -> Cluster {
        Cluster {
            seeds,
            map: RwLock::default(),
            reading: tokio::sync::Mutex::default(),
            read_at: Mutex::default(),
            turn: std::sync::atomic::AtomicUsize::new(0),
        }
    }

    pub(crate) fn info(&self, host: &str, port: u16) -> ConnectionInfo {
        // All members are logged into in the same way.
        at(&self.seeds[0], host, port)
    }

    pub(crate) fn any_member(&self) -> ConnectionInfo {
        let turn = self.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let map = self.map.read();
        match map.members.get(turn % map.members.len().max(1)) {
            Some((host, port)) => self.info(host, *port),
            None => self.seeds[turn % self.seeds.len()].clone(),
        }
    }

    pub(crate) fn owner(&self, slot: u16) -> RedisResult<Node> {
        let map = self.map.read();
        let owner = map.owners.get(usize::from(slot)).copied().flatten();
        let owner = owner.and_then(|owner| map.masters.get(owner));
        let (host, port) = owner.map(|owner| owner.place.clone()).ok_or_else(|| {
            let what = format!("slot {slot}");
            RedisError::from((ErrorKind::ClusterConnectionNotFound, "no server has", what))
        })?;
        Ok(Node::Member(host, port))
    }

    /// Does anybody still speak of it?
    pub(crate) fn knows(&self, node: &Node) -> bool {
        let map = self.map.read();
        map.members.iter().any(|(host, port)| *node == Node::Member(host.clone(), *port))
    }

    /// A server has said so. The map will say so, too, when it has been read again.
    pub(crate) fn note_moved(&self, slot: u16, host: &Arc<str>, port: u16) {
        let mut map = self.map.write();
        let place = (host.clone(), port);
        let owner = match map.masters.iter().position(|master| master.place == place) {
            Some(known) => known,
            None => {
                let new = Master { place: place.clone(), epoch: 0, is_there: true, slots: vec![] };
                map.masters.push(new);
                map.members.push(place);
                map.masters.len() - 1
            }
        };
        if let Some(slot) = map.owners.get_mut(usize::from(slot)) {
            *slot = Some(owner);
        }
    }

    pub(crate) async fn read_if_unknown(&self) -> RedisResult<()> {
        let _reading = self.reading.lock().await;
        if self.map.read().owners.is_empty() { self.read().await } else { Ok(()) }
    }

    /// The addresses of all masters that are there, read anew.
    pub(crate) async fn masters(&self) -> RedisResult<Vec<ConnectionInfo>> {
        let _reading = self.reading.lock().await;
        self.read().await?;
        let map = self.map.read();
        let there = map.masters.iter().filter(|master| master.is_there);
        Ok(there.map(|master| self.info(&master.place.0, master.place.1)).collect())
    }

    async fn read(&self) -> RedisResult<()> {
        *self.read_at.lock() = Some(Instant::now());
        let members: Vec<ConnectionInfo> = {
            let map = self.map.read();
            map.members.iter().map(|(host, port)| self.info(host, *port)).collect()
        };
        let seeds =
            self.seeds.iter().filter(|seed| members.iter().all(|m| m.addr() != seed.addr()));
        let asked: Vec<ConnectionInfo> =
            members.iter().chain(seeds).take(ASKED_MAX).cloned().collect();
        let map = read_from(asked).await?;
        *self.map.write() = map;
        Ok(())
    }
}

impl RedisServers {
    /// Read the map anew, soon, unless that was just done.
    pub(crate) fn read_map_soon(self: &Arc<Self>) {
        let Kind::Cluster(cluster) = &self.kind else { return };
        let is_recent = |at: Instant| at.elapsed() < READ_PAUSE;
        if cluster.read_at.lock().is_some_and(is_recent) {
            return;
        }
        let servers = self.clone();
        tokio::spawn(async move {
            let Kind::Cluster(cluster) = &servers.kind else { return };
            // Somebody else is at it.
            let Ok(_reading) = cluster.reading.try_lock() else { return };
            if let Err(error) = cluster.read().await {
                tracing::debug!(%error, "the map of the Redis Cluster cannot be read");
            }
        });
    }
}

/// Ask all of them; more than half will do.
async fn read_from(asked: Vec<ConnectionInfo>) -> RedisResult<Map> {
    let enough = asked.len() / 2 + 1;
    let mut asked: FuturesUnordered<_> = asked.into_iter().map(nodes).collect();
    let (mut answers, mut failure) = (Vec::new(), None);
    let collect = async {
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) => failure = Some(error),
            }
            if answers.len() >= enough {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(READ_WITHIN, collect).await;
    if answers.is_empty() {
        return Err(failure.unwrap_or_else(too_late));
    }
    Ok(merge(&answers))
}

/// What one member says, and where it was asked.
struct Answer {
    text: String,
    asked_at: ConnectionInfo,
}

async fn nodes(asked_at: ConnectionInfo) -> RedisResult<Answer> {
    let mut connection = open(asked_at.clone(), READ_WITHIN).await?;
    let text = redis::cmd("CLUSTER").arg("NODES").query_async(&mut connection).await?;
    Ok(Answer { text, asked_at })
}

fn merge(answers: &[Answer]) -> Map {
    let mut masters: HashMap<(Arc<str>, u16), Master> = HashMap::new();
    let mut members: Vec<(Arc<str>, u16)> = Vec::new();
    for line in answers.iter().flat_map(|answer| answer.text.lines().map(move |l| (answer, l))) {
        let Some((master, is_master)) = member_in(line.1, line.0) else { continue };
        if !members.contains(&master.place) {
            members.push(master.place.clone());
        }
        let known = masters.get(&master.place);
        if is_master && known.is_none_or(|known| known.epoch <= master.epoch) {
            masters.insert(master.place.clone(), master);
        }
    }
    let mut masters: Vec<Master> = masters.into_values().collect();
    masters.sort_by(|a, b| (a.epoch, &a.place).cmp(&(b.epoch, &b.place)));
    let mut owners = vec![None; usize::from(SLOTS)];
    for (n, master) in masters.iter().enumerate() {
        for (first, last) in &master.slots {
            owners[usize::from(*first)..=usize::from((*last).min(SLOTS - 1))].fill(Some(n));
        }
    }
    Map { masters, members, owners }
}

/// From a line such as `07c3… 127.0.0.1:30004@31004,host master - 0 1426238317239 4 connected 0-5460`:
/// the member, and whether it is a master.
fn member_in(line: &str, answer: &Answer) -> Option<(Master, bool)> {
    use redis::ConnectionAddr::{Tcp, TcpTls};
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, address, flags, _, _, _, epoch, _, slots @ ..] = &words[..] else { return None };
    let has = |flag: &str| flags.split(',').any(|one| one == flag);
    if has("noaddr") || has("handshake") {
        return None;
    }
    let (ip_port, names) = address.split_once('@')?;
    let (ip, port) = ip_port.rsplit_once(':')?;
    let host_name = names.split(',').nth(1).filter(|name| !name.is_empty() && !name.contains('='));
    let host = match answer.asked_at.addr() {
        // A certificate is for a name, if there is one.
        TcpTls { .. } if host_name.is_some() => host_name.unwrap_or(ip),
        // It does not know its own address; we do.
        Tcp(host, _) | TcpTls { host, .. } if ip.is_empty() => host,
        _ => ip,
    };
    let range = |slots: &&str| {
        let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    let slots: Vec<(u16, u16)> = slots.iter().filter_map(range).collect();
    let place = (Arc::from(host), port.parse().ok()?);
    let is_there = !has("fail");
    let epoch = epoch.parse().unwrap_or(0);
    Some((Master { place, epoch, is_there, slots }, has("master")))
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    fn answer(text: &str) -> Answer {
        let asked_at = "redis://10.0.0.9:7001".into_connection_info().unwrap();
        Answer { text: text.into(), asked_at }
    }

    fn owner(map: &Map, slot: u16) -> Option<(&str, u16)> {
        let (host, port) = &map.masters[map.owners[usize::from(slot)]?].place;
        Some((host, *port))
    }

    #[test]
    fn the_map_is_understood() {
        let map = merge(&[answer(
            "a :7001@17001 myself,master - 0 0 1 connected 0-5460\n\
             b 10.0.0.2:7002@17002,two.example master - 0 1 2 connected 5461-10922 [77->-c]\n\
             c 10.0.0.3:7003@17003 slave a 0 1 1 connected\n\
             d 10.0.0.4:7004@17004 master,fail - 1 1 3 disconnected 10923\n\
             e :0@0 master,noaddr - 1 1 3 disconnected\n\
             f ::1:7005@17005 master - 0 1 4 connected 10924-16383\n",
        )]);
        assert_eq!(owner(&map, 0), Some(("10.0.0.9", 7001)));
        assert_eq!(owner(&map, 10_922), Some(("10.0.0.2", 7002)));
        assert_eq!(owner(&map, 10_923), Some(("10.0.0.4", 7004)), "nobody has taken over");
        assert_eq!(owner(&map, 16_383), Some(("::1", 7005)));
        let there = map.masters.iter().filter(|master| master.is_there).count();
        assert_eq!((map.members.len(), map.masters.len(), there), (5, 4, 3));
    }

    #[test]
    fn of_two_who_differ_the_later_one_is_right() {
        let before =
            answer("a h:1@1 master - 0 0 1 connected 0-99\nb h:2@2 slave a 0 0 1 connected");
        let after = "a h:1@1 slave b 0 0 5 connected\nb h:2@2 master - 0 0 5 connected 0-99";
        let map = merge(&[before, answer(after)]);
        assert_eq!(owner(&map, 99), Some(("h", 2)));
        assert_eq!(owner(&map, 100), None);
    }
}
