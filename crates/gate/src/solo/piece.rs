//! A piece of an item: some of its buyers, and what each of them holds.
//!
//! An item may have millions of buyers, so it is kept, written and read in pieces of bounded size. Which
//! piece a buyer belongs to is decided by the last bits of a hash of their name: `bits` of them are
//! `suffix`. A piece that has grown too large becomes two, which differ in one bit more.
//!
//! Buyers lie dense, and their names beside each other: two thirds of what a map of names would take.

use hashbrown::HashTable;
use sale::UserId;

use crate::mark::{Bytes, Garbled, Mark, buyer_hash, put_mark_of, put_u64};

/// More buyers than this make two pieces of one. An index of 4,096 places is full with so many.
/// Stories of this crate's own see many divisions of few buyers.
pub(super) const PIECE_MARKS_MAX: usize = if cfg!(test) { 14 } else { 3_584 };
/// Pieces are not divided further than to so many bits: 65,536 pieces are for two hundred million buyers.
const BITS_MAX: u8 = 16;
/// A list that is full grows by this share of its length, so that little of what it takes is empty.
const GROWTH_SHARE: usize = 8;

/// One buyer.
#[derive(Clone, Copy)]
struct Holder {
    mark: Mark,
    /// Where the name is in `names`.
    name_at: u32,
    name_len: u16,
    /// The last load that brought this mark; see [`super::item::GateItem::begin_filling`].
    load: u16,
}

#[derive(Default)]
pub(super) struct Piece {
    pub(super) suffix: u32,
    pub(super) bits: u8,
    /// The file holds it as it was when all entries up to this one had been applied.
    pub(super) as_of: u64,
    /// The file holds it as it is.
    pub(super) is_written: bool,
    /// The file has a row for this suffix and these bits.
    pub(super) has_row: bool,
    holders: Vec<Holder>,
    names: Vec<u8>,
    /// Bytes of names that nobody has any more.
    unused: usize,
    /// Places in `holders`, by the hash of the name.
    index: HashTable<u32>,
}

/// The last bits of the hash are the same for all of a piece, and a table looks at the first and the
/// last ones: so it is given them the other way round.
fn in_table(hash: u64) -> u64 {
    hash.rotate_right(32)
}

impl Piece {
    pub(super) fn of(suffix: u32, bits: u8) -> Piece {
        Piece { suffix, bits, ..Piece::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }

    pub(super) fn is_too_large(&self) -> bool {
        self.len() > PIECE_MARKS_MAX && self.bits < BITS_MAX
    }

    pub(super) fn has(&self, hash: u64) -> bool {
        hash & ((1 << self.bits) - 1) == u64::from(self.suffix)
    }

    fn name(&self, holder: &Holder) -> &[u8] {
        let at = holder.name_at as usize;
        &self.names[at..at + usize::from(holder.name_len)]
    }

    fn place(&self, hash: u64, user: &str) -> Option<usize> {
        let is_theirs = |at: &u32| self.name(&self.holders[*at as usize]) == user.as_bytes();
        self.index.find(in_table(hash), is_theirs).map(|at| *at as usize)
    }

    pub(super) fn get(&self, hash: u64, user: &str) -> Option<&Mark> {
        Some(&self.holders[self.place(hash, user)?].mark)
    }

    /// Answers what the buyer held before.
    pub(super) fn put(&mut self, hash: u64, user: &str, mark: Mark, load: u16) -> Option<Mark> {
        if let Some(at) = self.place(hash, user) {
            let holder = &mut self.holders[at];
            holder.load = load;
            let before = std::mem::replace(&mut holder.mark, mark);
            self.is_written &= before == mark;
            return Some(before);
        }
        self.is_written = false;
        self.make_room(user.len());
        let (at, name_at) = (self.holders.len() as u32, self.names.len() as u32);
        self.names.extend_from_slice(user.as_bytes());
        self.holders.push(Holder { mark, name_at, name_len: user.len() as u16, load });
        let Piece { index, holders, names, .. } = self;
        index.insert_unique(in_table(hash), at, |at| in_table(hash_at(holders, names, *at)));
        None
    }

    /// By little: what lies empty in a thousand pieces adds up.
    fn make_room(&mut self, name_len: usize) {
        if self.holders.len() == self.holders.capacity() {
            self.holders.reserve_exact(self.holders.len() / GROWTH_SHARE + 4);
        }
        if self.names.len() + name_len > self.names.capacity() {
            self.names.reserve_exact(self.names.len() / GROWTH_SHARE + name_len + 64);
        }
    }

    pub(super) fn remove(&mut self, hash: u64, user: &str) -> Option<Mark> {
        let at = self.place(hash, user)?;
        Some(self.take_out(at, hash))
    }

    /// The last one takes the place that is free.
    fn take_out(&mut self, at: usize, hash: u64) -> Mark {
        self.is_written = false;
        if let Ok(entry) = self.index.find_entry(in_table(hash), |place| *place as usize == at) {
            entry.remove();
        }
        let gone = self.holders.swap_remove(at);
        let moved = self.holders.len();
        if at < moved {
            let hash = hash_at(&self.holders, &self.names, at as u32);
            let is_moved = |place: &u32| *place as usize == moved;
            if let Some(place) = self.index.find_mut(in_table(hash), is_moved) {
                *place = at as u32;
            }
        }
        self.unused += usize::from(gone.name_len);
        if self.unused > self.names.len() / 2 {
            self.put_names_together();
        }
        gone.mark
    }

    fn put_names_together(&mut self) {
        let mut names = Vec::with_capacity(self.names.len() - self.unused);
        for holder in &mut self.holders {
            let at = holder.name_at as usize;
            holder.name_at = names.len() as u32;
            names.extend_from_slice(&self.names[at..at + usize::from(holder.name_len)]);
        }
        (self.names, self.unused) = (names, 0);
    }

    /// Takes out whoever this load did not bring, and tells who held what.
    pub(super) fn take_out_others(&mut self, load: u16, mut gone: impl FnMut(UserId, Mark)) {
        for at in (0..self.holders.len()).rev() {
            if self.holders[at].load == load {
                continue;
            }
            let hash = hash_at(&self.holders, &self.names, at as u32);
            let user = user_of(self.name(&self.holders[at]));
            let mark = self.take_out(at, hash);
            user.into_iter().for_each(|user| gone(user, mark));
        }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (UserId, Mark)> {
        self.holders.iter().filter_map(|holder| Some((user_of(self.name(holder))?, holder.mark)))
    }

    pub(super) fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.holders.iter().map(|holder| &holder.mark)
    }

    /// Makes two of it: this one keeps those whose next bit is zero.
    pub(super) fn divide(&mut self) -> Piece {
        let (suffix, bits, as_of) = (self.suffix, self.bits + 1, self.as_of);
        let mut halves = [suffix, suffix | 1 << self.bits].map(|suffix| {
            let (holders, names) = (self.len() / 2 + 1, self.names.len() / 2 + 1);
            let mut half = Piece { as_of, ..Piece::of(suffix, bits) };
            half.holders.reserve_exact(holders);
            half.names.reserve_exact(names);
            half
        });
        for holder in &self.holders {
            let name = self.name(holder);
            let hash = buyer_hash(name);
            let half = &mut halves[usize::from(!halves[0].has(hash))];
            // Names that are here were names when they came.
            if let Ok(user) = std::str::from_utf8(name) {
                half.put(hash, user, holder.mark, holder.load);
            }
        }
        let [zero, one] = halves;
        *self = zero;
        one
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + self.len() * 26 + self.names.len());
        put_u64(&mut out, self.len() as u64);
        for holder in &self.holders {
            put_mark_of(&mut out, self.name(holder), &holder.mark);
        }
        out
    }

    /// The file holds it as it is, with all entries up to this one.
    pub(super) fn note_written(&mut self, as_of: u64) {
        (self.as_of, self.is_written, self.has_row) = (as_of, true, true);
    }

    /// As it was written.
    pub(super) fn decode(suffix: u32, bits: u8, body: &[u8]) -> Result<Piece, Garbled> {
        let mut from = Bytes(body);
        let mut piece = Piece::of(suffix, bits);
        let marks = from.u64()?;
        let room = (marks as usize).min(body.len() / 27);
        piece.holders.reserve_exact(room);
        piece.names.reserve_exact(body.len().saturating_sub(room * 26));
        for _ in 0..marks {
            let (user, mark) = from.mark()?;
            let hash = buyer_hash(user.as_str().as_bytes());
            if !piece.has(hash) || piece.put(hash, user.as_str(), mark, 0).is_some() {
                return Err(Garbled("piece of an item"));
            }
        }
        from.end()?;
        Ok(piece)
    }
}

fn hash_at(holders: &[Holder], names: &[u8], at: u32) -> u64 {
    let Holder { name_at, name_len, .. } = holders[at as usize];
    buyer_hash(&names[name_at as usize..name_at as usize + usize::from(name_len)])
}

fn user_of(name: &[u8]) -> Option<UserId> {
    UserId::stored(std::str::from_utf8(name).ok()?).ok()
}
