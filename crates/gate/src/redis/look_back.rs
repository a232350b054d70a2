//! Looking back into the streams: first what waits, partition by partition, then what is kept.
//!
//! In this order, for a claim that is settled meanwhile moves from the first to the second: it may be told
//! twice, never not at all. An entry is among what is kept from when it was acknowledged, which is later than
//! its claims; so whoever wants claims since a time begins there and filters.

use async_trait::async_trait;
use sale::{
    BackMark, BackPage, EntryId, InvalidBackMark, LogError, LoggedClaim, LookBack, LookBackError,
    Millis,
};

use super::{
    RedisGate,
    streams::{id_text, page_from},
};
use crate::Result;

/// Entries in one page.
const PAGE_ENTRIES: usize = 32;
/// Clocks of servers that take over from one another may differ by this.
const CLOCKS_DIFFER_MS_MAX: Millis = 60_000;

/// Where a reading is: in what waits or in what is kept of a partition, behind this entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    waits: bool,
    partition: usize,
    after: Option<(u64, u64)>,
}

impl Place {
    const BEGINNING: Place = Place { waits: true, partition: 0, after: None };

    /// `w` or `k`, the partition, and the id behind a point: `k3.1700000000000-4`.
    fn mark(self) -> std::result::Result<BackMark, InvalidBackMark> {
        let stream = if self.waits { 'w' } else { 'k' };
        let after = self.after.map_or_else(String::new, |(ms, n)| format!(".{ms}-{n}"));
        format!("{stream}{}{after}", self.partition).parse()
    }

    fn of(mark: &BackMark, partitions: usize) -> std::result::Result<Place, InvalidBackMark> {
        let text = mark.as_str();
        let (stream, rest) = text.split_at_checked(1).ok_or(InvalidBackMark)?;
        let waits = match stream {
            "w" => true,
            "k" => false,
            _ => return Err(InvalidBackMark),
        };
        let (partition, after) = match rest.split_once('.') {
            Some((partition, id)) => (partition, Some(id_of(id).ok_or(InvalidBackMark)?)),
            None => (rest, None),
        };
        let partition = partition.parse().ok().filter(|partition| *partition < partitions);
        Ok(Place { waits, partition: partition.ok_or(InvalidBackMark)?, after })
    }

    /// Behind the last entry of its stream; `None` behind the last stream of all.
    fn next_stream(self, partitions: usize) -> Option<Place> {
        let Place { waits, partition, .. } = self;
        if partition + 1 < partitions {
            return Some(Place { waits, partition: partition + 1, after: None });
        }
        waits.then_some(Place { waits: false, partition: 0, after: None })
    }
}

fn id_of(text: &str) -> Option<(u64, u64)> {
    let (ms, n) = text.split_once('-')?;
    Some((ms.parse().ok()?, n.parse().ok()?))
}

impl RedisGate {
    async fn page_at(&self, since_ms: Millis, place: Place) -> Result<BackPage> {
        let store = &self.0.store;
        let Place { waits, partition, after } = place;
        let stream = if waits { store.keys.orders(partition) } else { store.keys.kept(partition) };
        let from = match after {
            Some((ms, n)) => format!("({ms}-{n}"),
            None => since_ms.saturating_sub(CLOCKS_DIFFER_MS_MAX).max(0).to_string(),
        };
        let page = page_from(store, partition, &stream, (&from, "+"), PAGE_ENTRIES).await?;
        let (entries, next) = match page {
            Some((entries, last)) => {
                let place =
                    Place { after: id_of(&id_text(EntryId { content: 0, ..last })), ..place };
                (entries, Some(place))
            }
            None => (Vec::new(), place.next_stream(store.partitions)),
        };
        let claims = entries.into_iter().flat_map(|entry| entry.claims);
        let wanted = claims.filter(|claim| claim.claimed_ms >= since_ms);
        Ok(BackPage {
            claims: wanted.map(|claim| LoggedClaim { claim, waits }).collect(),
            next: next.and_then(|place| place.mark().ok()),
        })
    }
}

#[async_trait]
impl LookBack for RedisGate {
    async fn look_back(
        &self,
        since_ms: Millis,
        from: Option<&BackMark>,
    ) -> std::result::Result<BackPage, LookBackError> {
        let partitions = self.0.store.partitions;
        let place = from.map(|mark| Place::of(mark, partitions)).transpose()?;
        let page = self.page_at(since_ms, place.unwrap_or(Place::BEGINNING)).await;
        page.map_err(|error| LogError(error.detail).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_back_from_its_mark() {
        let after = Some((1_800_000_000_000, 7));
        for place in [
            Place::BEGINNING,
            Place { waits: false, partition: 3, after },
            Place { waits: true, partition: 0, after: Some((0, u64::MAX)) },
        ] {
            assert_eq!(Place::of(&place.mark().unwrap(), 4), Ok(place));
        }
        for bad in ["j7", "w", "w4", "k1.", "k1.5", "k1.5-", "k1.-5", "x0", "w0.1-2-3", "w-1"] {
            assert_eq!(Place::of(&bad.parse().unwrap(), 4), Err(InvalidBackMark), "{bad}");
        }
    }

    #[test]
    fn all_that_waits_is_read_before_anything_that_is_kept() {
        let mut place = Place::BEGINNING;
        let mut seen = vec![(place.waits, place.partition)];
        while let Some(next) = place.next_stream(2) {
            seen.push((next.waits, next.partition));
            place = next;
        }
        assert_eq!(seen, [(true, 0), (true, 1), (false, 0), (false, 1)]);
    }
}
