//! What a message says: one entry of the claim log, as JSON that others may read.
//!
//! ```json
//! {"mac":"…","entry":{"v":1,"item_id":42,"epoch":3,"claimed_ms":1800000000000,"place":"7.0",
//!   "content":"…","claims":[{"order_no":"SK…","user_id":"u1002","quantity":1}]}}
//! ```
//!
//! Whoever may write to the topic could make orders of claims that no gate admitted, and two deployments that
//! share a topic by mistake would buy for each other's customers. So the entry is signed, byte by byte as it
//! is written, and what is not ours is not believed. What is thrown away by that is not lost: ours is on the
//! log.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sale::{
    Claim, EntryId, Epoch, ItemId, KeyHash, LogEntry, Millis, OrderNo, Purpose, SigningKeys, UserId,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Message;

/// The largest entry that is sure to be taken: with the longest buyers it stays below the million bytes that
/// brokers usually allow.
pub const MESSAGE_CLAIMS_MAX: usize = 2_000;
/// No message is larger.
pub const MESSAGE_BYTES_MAX: usize = 1_000_000;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Signed<'a> {
    mac: String,
    #[serde(borrow)]
    entry: &'a RawValue,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    v: u32,
    item_id: ItemId,
    epoch: Epoch,
    claimed_ms: Millis,
    /// Where it is on the log of the gate, in two numbers too large for JSON in a browser.
    place: String,
    content: String,
    claims: Vec<EntryClaim>,
}

#[derive(Serialize, Deserialize)]
struct EntryClaim {
    order_no: OrderNo,
    user_id: UserId,
    quantity: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum NotOurs {
    #[error("it is no message of a claim log: {0}")]
    Unreadable(String),
    #[error("none of this deployment's keys has signed it")]
    Forged,
    #[error("it is of version {0}, and this binary knows {VERSION}")]
    Newer(u32),
}

/// `None` for an entry without claims, of which there is nothing to tell.
pub(super) fn seal(entry: &LogEntry, keys: &SigningKeys) -> Option<Message> {
    let first = entry.claims.first()?;
    let claims = entry.claims.iter().map(|claim| EntryClaim {
        order_no: claim.order_no,
        user_id: claim.user.clone(),
        quantity: claim.quantity,
        key: claim.key.map(|key| format!("{:016x}", key.0)),
    });
    let written = Entry {
        v: VERSION,
        item_id: entry.item,
        epoch: entry.epoch,
        claimed_ms: first.claimed_ms,
        place: format!("{}.{}", entry.id.place.0, entry.id.place.1),
        content: format!("{:016x}", entry.id.content),
        claims: claims.collect(),
    };
    let raw = serde_json::value::to_raw_value(&written).expect("plain fields");
    let mac = URL_SAFE_NO_PAD.encode(keys.mac(Purpose::Message, raw.get().as_bytes()));
    let body = serde_json::to_vec(&Signed { mac, entry: &raw }).expect("plain fields");
    Some(Message { key: first.order_no.to_string(), body, made_ms: first.claimed_ms })
}

pub(super) fn open(body: &[u8], keys: &SigningKeys) -> Result<LogEntry, NotOurs> {
    let unreadable = |error: &dyn std::fmt::Display| NotOurs::Unreadable(error.to_string());
    let signed: Signed<'_> = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
    let mac = URL_SAFE_NO_PAD.decode(&signed.mac).map_err(|error| unreadable(&error))?;
    if !keys.has_signed(Purpose::Message, signed.entry.get().as_bytes(), &mac) {
        return Err(NotOurs::Forged);
    }
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let Version { v } =
        serde_json::from_str(signed.entry.get()).map_err(|error| unreadable(&error))?;
    if v != VERSION {
        return Err(NotOurs::Newer(v));
    }
    let entry: Entry =
        serde_json::from_str(signed.entry.get()).map_err(|error| unreadable(&error))?;
    read(entry).ok_or_else(|| NotOurs::Unreadable("a number of it is none".into()))
}

fn read(entry: Entry) -> Option<LogEntry> {
    let (major, minor) = entry.place.split_once('.')?;
    let place = (major.parse().ok()?, minor.parse().ok()?);
    let content = u64::from_str_radix(&entry.content, 16).ok()?;
    let Entry { item_id: item, epoch, claimed_ms, claims, .. } = entry;
    let claims = claims.into_iter().map(|claim| {
        let key = match claim.key {
            Some(key) => Some(KeyHash(u64::from_str_radix(&key, 16).ok()?)),
            None => None,
        };
        let EntryClaim { order_no, user_id: user, quantity, .. } = claim;
        Some(Claim { order_no, item, user, quantity, epoch, claimed_ms, key })
    });
    let claims: Option<Vec<Claim>> = claims.collect();
    Some(LogEntry { id: EntryId { place, content }, item, epoch, claims: claims? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secret: &str) -> SigningKeys {
        SigningKeys::from_secret(secret.as_bytes()).unwrap()
    }

    fn entry(claims: usize, user: &str) -> LogEntry {
        let claim = |n| Claim {
            order_no: OrderNo::from_u64(n as u64 + 1).unwrap(),
            item: ItemId(42),
            user: user.parse().unwrap(),
            quantity: 2,
            epoch: 3,
            claimed_ms: 1_800_000_000_000,
            key: (n % 2 == 0).then_some(KeyHash(u64::MAX)),
        };
        let id = EntryId { place: (3 << 48 | 9, u64::MAX), content: u64::MAX - 1 };
        LogEntry { id, item: ItemId(42), epoch: 3, claims: (0..claims).map(claim).collect() }
    }

    #[test]
    fn an_entry_is_read_back_from_its_message_and_from_no_other() {
        let (ours, theirs) = (keys("a secret of this shop"), keys("a secret of another"));
        let entry = entry(3, "买家\"1\"");
        let sealed = seal(&entry, &ours).unwrap();
        assert_eq!(sealed.key, entry.claims[0].order_no.to_string());
        let opened = open(&sealed.body, &ours).unwrap();
        assert_eq!((opened.id, opened.item, opened.epoch), (entry.id, entry.item, entry.epoch));
        assert_eq!(opened.claims, entry.claims);
        assert_eq!(open(&sealed.body, &theirs).unwrap_err(), NotOurs::Forged);
        let text = String::from_utf8(sealed.body).unwrap();
        let changed = text.replace("\"quantity\":2", "\"quantity\":9");
        assert_eq!(open(changed.as_bytes(), &ours).unwrap_err(), NotOurs::Forged);
        for bad in ["", "{}", "[1]", r#"{"mac":"!","entry":{}}"#] {
            let error = open(bad.as_bytes(), &ours).unwrap_err();
            assert!(matches!(error, NotOurs::Unreadable(_)), "{bad}: {error}");
        }
    }

    #[test]
    fn the_largest_entry_fits_into_what_brokers_take() {
        let longest = "\u{10ffff}".parse::<UserId>().map_or("买", |_| "\u{10ffff}").repeat(64);
        let sealed = seal(&entry(MESSAGE_CLAIMS_MAX, &longest), &keys("a secret of this shop"));
        let bytes = sealed.unwrap().body.len();
        assert!(bytes <= MESSAGE_BYTES_MAX, "{bytes}");
    }

    #[test]
    fn nothing_is_told_of_nothing() {
        assert!(seal(&entry(0, "ann"), &keys("a secret of this shop")).is_none());
    }
}
