//! Who is marked on an item: its [pieces](super::piece), and which of them has whom.
//!
//! The directory has a place for every ending of a buyer's hash, and says which piece has the buyers
//! with that ending. Dividing a piece touches no other one, so that nobody waits for more than that,
//! however many there are.

use sale::UserId;

use super::piece::Piece;
use crate::mark::{Mark, buyer_hash};

pub(super) struct Marks {
    pieces: Vec<Piece>,
    /// A power of two of them.
    directory: Vec<u32>,
    len: usize,
    units: i64,
    /// Rows of the file, by suffix and bits, whose buyers are in pieces of more bits now.
    divided: Vec<(u32, u8)>,
}

impl Default for Marks {
    fn default() -> Marks {
        let pieces = vec![Piece::of(0, 0)];
        Marks { pieces, directory: vec![0], len: 0, units: 0, divided: Vec::new() }
    }
}

impl Marks {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn units(&self) -> i64 {
        self.units
    }

    fn place(&self, hash: u64) -> usize {
        self.directory[hash as usize & (self.directory.len() - 1)] as usize
    }

    pub(super) fn get(&self, user: &UserId) -> Option<&Mark> {
        let hash = buyer_hash(user.as_str().as_bytes());
        self.pieces[self.place(hash)].get(hash, user.as_str())
    }

    /// Answers what the buyer held before.
    pub(super) fn put(&mut self, user: &str, mark: Mark, load: u16) -> Option<Mark> {
        let hash = buyer_hash(user.as_bytes());
        let place = self.place(hash);
        let before = self.pieces[place].put(hash, user, mark, load);
        self.units += i64::from(mark.quantity);
        match before {
            Some(before) => self.units -= i64::from(before.quantity),
            None => {
                self.len += 1;
                if self.pieces[place].is_too_large() {
                    self.divide(place);
                }
            }
        }
        before
    }

    pub(super) fn remove(&mut self, user: &UserId) -> Option<Mark> {
        let hash = buyer_hash(user.as_str().as_bytes());
        let place = self.place(hash);
        let mark = self.pieces[place].remove(hash, user.as_str())?;
        self.len -= 1;
        self.units -= i64::from(mark.quantity);
        Some(mark)
    }

    fn divide(&mut self, place: usize) {
        let piece = &mut self.pieces[place];
        if piece.has_row {
            self.divided.push((piece.suffix, piece.bits));
        }
        let other = piece.divide();
        let (suffix, bits) = (other.suffix as usize, other.bits);
        if 1 << bits > self.directory.len() {
            self.directory.extend_from_within(..);
        }
        let new = self.pieces.len() as u32;
        // Every ending that goes on with the new piece's own.
        self.directory.iter_mut().skip(suffix).step_by(1 << bits).for_each(|piece| *piece = new);
        self.pieces.push(other);
    }

    /// Pieces have places, which they keep: who walks over all of them, step by step, meets every buyer
    /// who was there from the beginning. New ones come behind.
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(super) fn piece_mut(&mut self, place: usize) -> Option<&mut Piece> {
        self.pieces.get_mut(place)
    }

    /// The piece that has this buyer.
    pub(super) fn piece_of(&self, user: &UserId) -> &Piece {
        &self.pieces[self.place(buyer_hash(user.as_str().as_bytes()))]
    }

    /// Takes whoever this load did not bring out of one piece, and tells who held what.
    pub(super) fn take_out_others(&mut self, place: usize, load: u16) -> Vec<(UserId, Mark)> {
        let mut gone = Vec::new();
        if let Some(piece) = self.pieces.get_mut(place) {
            piece.take_out_others(load, |user, mark| gone.push((user, mark)));
        }
        self.len -= gone.len();
        self.units -= gone.iter().map(|(_, mark)| i64::from(mark.quantity)).sum::<i64>();
        gone
    }

    /// A piece as the file holds it takes the place of what was known of these buyers. Those with fewer
    /// bits must come first: a row of more bits is younger than the one it was divided from.
    pub(super) fn restore(&mut self, piece: Piece) {
        let hash = u64::from(piece.suffix);
        while self.pieces[self.place(hash)].bits < piece.bits {
            self.divide(self.place(hash));
        }
        let place = self.place(hash);
        let sum = |piece: &Piece| piece.marks().map(|mark| i64::from(mark.quantity)).sum::<i64>();
        self.len = self.len + piece.len() - self.pieces[place].len();
        self.units += sum(&piece) - sum(&self.pieces[place]);
        self.pieces[place] = piece;
    }

    /// Rows that nobody needs once all pieces there are now have been written.
    pub(super) fn divided(&self) -> Vec<(u32, u8)> {
        self.divided.clone()
    }

    pub(super) fn forget_divided(&mut self, rows: &[(u32, u8)]) {
        self.divided.retain(|row| !rows.contains(row));
    }

    /// The file has the pieces that there are now, and no others.
    pub(super) fn is_all_written(&mut self, as_of: u64) {
        self.divided.clear();
        for piece in &mut self.pieces {
            piece.note_written(as_of);
        }
    }

    /// Nothing of what is in the file is worth anything: it is written anew.
    pub(super) fn is_all_unwritten(&mut self) {
        self.divided.clear();
        for piece in &mut self.pieces {
            (piece.is_written, piece.has_row) = (false, false);
        }
    }

    pub(super) fn last_order_no(&self) -> Option<sale::OrderNo> {
        self.pieces.iter().flat_map(Piece::marks).map(|mark| mark.order_no).max()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use sale::OrderNo;

    use super::*;
    use crate::solo::piece::PIECE_MARKS_MAX;

    fn mark(n: u64) -> Mark {
        Mark::new(OrderNo::from_u64(n + 1).unwrap(), n as u32 % 3 + 1, 1, None)
    }

    fn user(n: u64) -> UserId {
        format!("用户{n}").parse().unwrap()
    }

    #[test]
    fn many_buyers_are_in_many_pieces_and_all_are_found() {
        let mut marks = Marks::default();
        let buyers = 20 * PIECE_MARKS_MAX as u64;
        for n in 0..buyers {
            assert_eq!(marks.put(user(n).as_str(), mark(n), 0), None);
        }
        assert!(marks.pieces().len() > 20, "{} pieces", marks.pieces().len());
        assert!(marks.pieces().iter().all(|piece| piece.len() <= PIECE_MARKS_MAX));
        assert_eq!(marks.len() as u64, buyers);
        assert!((0..buyers).all(|n| marks.get(&user(n)) == Some(&mark(n))));
        assert_eq!(marks.get(&user(buyers)), None);
        // Written and read back in any state of being divided.
        let mut again = Marks::default();
        let mut rows: Vec<&Piece> = marks.pieces().iter().collect();
        rows.sort_by_key(|piece| piece.bits);
        for row in rows {
            again.restore(Piece::decode(row.suffix, row.bits, &row.encode()).unwrap());
        }
        assert_eq!((again.len(), again.units()), (marks.len(), marks.units()));
        assert!((0..buyers).all(|n| again.get(&user(n)) == Some(&mark(n))));
        assert!((0..buyers).all(|n| again.remove(&user(n)) == Some(mark(n))));
        assert_eq!((again.len(), again.units()), (0, 0));
    }

    #[test]
    fn a_row_that_was_divided_gives_way_to_the_younger_ones() {
        let mut marks = Marks::default();
        let fill = |marks: &mut Marks, buyers: std::ops::Range<u64>| {
            for n in buyers {
                marks.put(user(n).as_str(), mark(n), 0);
            }
        };
        fill(&mut marks, 0..PIECE_MARKS_MAX as u64);
        let old = Piece::decode(0, 0, &marks.pieces()[0].encode()).unwrap();
        fill(&mut marks, PIECE_MARKS_MAX as u64..2 * PIECE_MARKS_MAX as u64);
        let young = &marks.pieces()[1];
        let young = Piece::decode(young.suffix, young.bits, &young.encode()).unwrap();
        let (old_ones, young_ones) = (old.len(), young.len());
        let mut read = Marks::default();
        read.restore(old);
        assert_eq!(read.len(), old_ones);
        let before = read
            .pieces()
            .iter()
            .flat_map(Piece::each)
            .filter(|(user, _)| young.has(buyer_hash(user.as_str().as_bytes())));
        let before = before.count();
        read.restore(young);
        assert_eq!(read.len(), old_ones - before + young_ones);
    }

    #[test]
    fn what_is_not_a_piece_is_refused() {
        let mut piece = Piece::of(0, 0);
        for n in 0..5 {
            piece.put(buyer_hash(user(n).as_str().as_bytes()), user(n).as_str(), mark(n), 0);
        }
        let body = piece.encode();
        assert!((0..body.len()).all(|cut| Piece::decode(0, 0, &body[..cut]).is_err()));
        assert!(Piece::decode(1, 1, &body).is_err(), "buyers of another piece");
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u64..40, any::<bool>(), 0u16..3), 0..300)) {
            let (mut marks, mut model) = (Marks::default(), HashMap::new());
            for (at, (n, put, load)) in steps.into_iter().enumerate() {
                let mark = mark(at as u64);
                if put {
                    let before = model.insert(user(n), (mark, load)).map(|(mark, _)| mark);
                    prop_assert_eq!(marks.put(user(n).as_str(), mark, load), before);
                } else {
                    prop_assert_eq!(marks.remove(&user(n)), model.remove(&user(n)).map(|(m, _)| m));
                }
                prop_assert_eq!(marks.len(), model.len());
            }
            let units: i64 = model.values().map(|(mark, _)| i64::from(mark.quantity)).sum();
            prop_assert_eq!(marks.units(), units);
            let each: HashMap<UserId, Mark> = marks.pieces().iter().flat_map(Piece::each).collect();
            prop_assert!(model.iter().all(|(user, (mark, _))| each[user] == *mark));
            let places = 0..marks.pieces().len();
            let gone: Vec<_> = places.flat_map(|at| marks.take_out_others(at, 2)).collect();
            model.retain(|_, (_, load)| *load == 2);
            prop_assert_eq!(marks.len(), model.len());
            prop_assert!(model.iter().all(|(user, (mark, _))| marks.get(user) == Some(mark)));
            prop_assert!(gone.iter().all(|(user, _)| !model.contains_key(user)));
        }
    }
}
