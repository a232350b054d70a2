//! Looking back where claims go by a broker: what it still has, for as long as its topic is kept.
//!
//! What is on the log of the gate may not be at the broker yet, while it is away. So the log is read first,
//! and of it what waits is told; then the broker is. A claim that waits and is at the broker as well is told
//! twice.

use std::sync::Arc;

use async_trait::async_trait;
use sale::{
    BackMark, BackPage, Claim, InvalidBackMark, LogError, LoggedClaim, LookBack, LookBackError,
    Millis, SigningKeys,
};

use super::{BackPlace, Broker, message};

/// Before the marks of the gate's own log.
const OWN: &str = "n";
/// Before a queue and an offset.
const AT_BROKER: &str = "b";

pub struct BrokerLookBack {
    pub own: Arc<dyn LookBack>,
    pub broker: Arc<dyn Broker>,
    pub keys: SigningKeys,
}

/// Where a reading is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// In the gate's own log.
    Own(Option<BackMark>),
    Broker(Option<BackPlace>),
}

impl Place {
    fn of(mark: &BackMark) -> Result<Place, InvalidBackMark> {
        let text = mark.as_str();
        if let Some(own) = text.strip_prefix(OWN) {
            return Ok(Place::Own(Some(own.parse()?)));
        }
        let place = text.strip_prefix(AT_BROKER).ok_or(InvalidBackMark)?;
        if place.is_empty() {
            return Ok(Place::Broker(None));
        }
        let (queue, offset) = place.split_once('.').ok_or(InvalidBackMark)?;
        let queue = queue.parse().map_err(|_| InvalidBackMark)?;
        let offset = offset.parse().map_err(|_| InvalidBackMark)?;
        // As far as brokers count.
        if i64::try_from(offset).is_err() || i32::try_from(queue).is_err() {
            return Err(InvalidBackMark);
        }
        Ok(Place::Broker(Some(BackPlace { queue, offset })))
    }

    fn mark(&self) -> Result<BackMark, InvalidBackMark> {
        match self {
            Place::Own(None) => Err(InvalidBackMark),
            Place::Own(Some(mark)) => format!("{OWN}{mark}").parse(),
            Place::Broker(None) => AT_BROKER.parse(),
            Place::Broker(Some(BackPlace { queue, offset })) => {
                format!("{AT_BROKER}{queue}.{offset}").parse()
            }
        }
    }
}

#[async_trait]
impl LookBack for BrokerLookBack {
    async fn look_back(
        &self,
        since_ms: Millis,
        from: Option<&BackMark>,
    ) -> Result<BackPage, LookBackError> {
        match from.map(Place::of).transpose()?.unwrap_or(Place::Own(None)) {
            Place::Own(mark) => {
                let page = self.own.look_back(since_ms, mark.as_ref()).await?;
                let waits = page.claims.into_iter().filter(|logged| logged.waits);
                let next = page.next.map_or(Place::Broker(None), |mark| Place::Own(Some(mark)));
                Ok(BackPage { claims: waits.collect(), next: Some(next.mark()?) })
            }
            Place::Broker(place) => {
                let read = self.broker.read_back(since_ms, place).await;
                let read = read.map_err(|error| LogError(error.to_string()))?;
                let entries = read.bodies.iter().filter_map(|body| {
                    // What is not ours is none of our claims.
                    message::open(body, &self.keys).ok()
                });
                let claims = entries.flat_map(|entry| entry.claims);
                let wanted = claims.filter(|claim: &Claim| claim.claimed_ms >= since_ms);
                let next = read.next.map(|place| Place::Broker(Some(place)).mark()).transpose()?;
                // Which of them are settled the broker does not know: the gate's own log does.
                let told = wanted.map(|claim| LoggedClaim { claim, waits: false });
                Ok(BackPage { claims: told.collect(), next })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_back_from_its_mark() {
        for place in [
            Place::Own(Some("k3.1700000000000-4".parse().unwrap())),
            Place::Broker(None),
            Place::Broker(Some(BackPlace { queue: 11, offset: 7 })),
        ] {
            assert_eq!(Place::of(&place.mark().unwrap()), Ok(place));
        }
        for bad in ["j7", "n", "b1", "b1.", "b.1", "b1.99999999999999999999", "b4294967295.1", "x"]
        {
            assert_eq!(Place::of(&bad.parse().unwrap()), Err(InvalidBackMark), "{bad}");
        }
    }
}
