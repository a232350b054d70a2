//! A primary with one replica, and what an operator does when the primary is lost.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{AGREE_WITHIN, NotYet, Redis, RedisOptions, Relay, wait_for};

/// Two Redis servers, one of which follows the other. Who is who changes by [`RedisPair::promote`].
#[derive(Debug)]
pub struct RedisPair {
    nodes: [Redis; 2],
    primary: AtomicUsize,
    front: Relay,
}

impl RedisPair {
    /// Both on disk before they answer; the replica is in sync.
    pub fn start() -> io::Result<RedisPair> {
        RedisPair::start_with(RedisOptions::default())
    }

    pub fn start_with(options: RedisOptions) -> io::Result<RedisPair> {
        let primary = Redis::start(RedisOptions { replica_of: None, ..options.clone() })?;
        let replica_of = Some(primary.address());
        let replica = Redis::start(RedisOptions { replica_of, ..options })?;
        let front = Relay::start(primary.address())?;
        let pair = RedisPair { nodes: [primary, replica], primary: AtomicUsize::new(0), front };
        pair.wait_in_sync()?;
        Ok(pair)
    }

    /// Leads to whoever is the primary; stays the same over promotions.
    pub fn url(&self) -> String {
        format!("redis://{}", self.front.address())
    }

    pub fn front(&self) -> &Relay {
        &self.front
    }

    pub fn primary(&self) -> &Redis {
        &self.nodes[self.primary.load(Ordering::SeqCst)]
    }

    pub fn replica(&self) -> &Redis {
        &self.nodes[1 - self.primary.load(Ordering::SeqCst)]
    }

    /// The two change roles, as by an operator: nothing is lost, and connections stay open, also those
    /// to the one that is a replica now. New ones still go there, until
    /// [`RedisPair::lead_to_the_primary`].
    pub fn demote(&self) -> io::Result<()> {
        self.wait_in_sync()?;
        let (old, new) = (self.primary(), self.replica());
        new.follow(None)?;
        old.follow(Some(new.address()))?;
        self.primary.fetch_xor(1, Ordering::SeqCst);
        Ok(())
    }

    pub fn lead_to_the_primary(&self) {
        self.front.lead_to(self.primary().address());
    }

    /// Kill the primary and make the replica the new one, with whatever it has received. The old
    /// primary stays down until [`RedisPair::rejoin`].
    pub fn promote(&self) -> io::Result<&Redis> {
        self.primary().kill()?;
        let new = self.replica();
        new.follow(None)?;
        wait_for("the promotion of the replica", AGREE_WITHIN, || {
            match new.info("role")?.as_str() {
                "master" => Ok(()),
                other => Err(NotYet::Because(format!("its role is {other}"))),
            }
        })?;
        self.primary.fetch_xor(1, Ordering::SeqCst);
        self.front.point_at(new.address());
        Ok(new)
    }

    /// Bring the one that is down back as the replica of the other, in sync.
    pub fn rejoin(&self) -> io::Result<()> {
        let replica = self.replica();
        replica.follow(Some(self.primary().address()))?;
        if !replica.is_running() {
            replica.restart()?;
        }
        self.wait_in_sync()
    }

    /// Wait until the replica has what the primary had when this was called.
    pub fn wait_in_sync(&self) -> io::Result<()> {
        let written = offset(self.primary())?;
        self.replica().wait_in_sync()?;
        wait_for("the replica", AGREE_WITHIN, || {
            let seen = offset(self.replica())?;
            if seen >= written {
                return Ok(());
            }
            Err(NotYet::Because(format!("it is at {seen} of {written}")))
        })
    }
}

/// How far the stream of changes has come, in bytes.
fn offset(node: &Redis) -> io::Result<u64> {
    let offset = node.info("master_repl_offset")?;
    offset.parse().map_err(|_| io::Error::other(format!("{offset} is no offset")))
}
