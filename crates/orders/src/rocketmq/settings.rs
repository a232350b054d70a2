//! What the brokers are set to, for `seckill doctor`.
//!
//! The client asks for a broker's settings in a way that only brokers written in Rust answer. So this
//! asks itself, in the protocol of RocketMQ: a frame is its length, the length of the header, the
//! header as JSON, and the body. It is read-only, it is not signed, and a broker that wants signatures
//! is said to be not readable.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::client::Client;
use crate::broker::BrokerFinding;

const ASK_MAX: Duration = Duration::from_secs(3);
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Requests of the protocol.
const GET_BROKER_CONFIG: u32 = 26;
const GET_BROKER_RUNTIME_INFO: u32 = 28;
const GET_BROKER_CLUSTER_INFO: u32 = 106;
const BROKERS_MAX: usize = 64;
/// Brokers keep no message for longer unless told otherwise, and reminders wait as long as there is to pay.
const REMINDERS_S_DEFAULT: u64 = 3 * 24 * 60 * 60;
/// Brokers take no message when their disk is fuller than nine tenths, whatever they are set to.
const DISK_USED_MAX: f64 = 0.85;
/// Claims of a worker whose machine is gone wait for so long. Its heartbeats come every five seconds.
const EXPIRED_MS_MAX: u64 = 60_000;

pub(super) async fn findings(client: &Arc<Client>) -> Vec<BrokerFinding> {
    let mut brokers = Err("rocketmq.name_servers names none".to_owned());
    for name_server in &client.options.name_servers {
        brokers = ask(name_server, GET_BROKER_CLUSTER_INFO).await.map(|said| masters_in(&said));
        if brokers.is_ok() {
            break;
        }
    }
    let brokers = match brokers {
        Ok(brokers) if brokers.is_empty() => {
            let text = "RocketMQ's name servers answer, and no broker has come to them yet";
            return vec![BrokerFinding::Fail(text.into())];
        }
        Ok(brokers) => brokers,
        Err(error) => {
            return vec![BrokerFinding::Fail(format!(
                "no name server of RocketMQ answers ({error}); check rocketmq.name_servers"
            ))];
        }
    };
    let count = brokers.len();
    let mut found =
        vec![BrokerFinding::Ok(format!("RocketMQ's name servers answer, with {count} brokers"))];
    for broker in brokers.into_iter().take(BROKERS_MAX) {
        match ask(&broker, GET_BROKER_CONFIG).await {
            Ok(settings) => {
                found.extend(judged(&broker, &settings));
                let state = ask(&broker, GET_BROKER_RUNTIME_INFO).await.unwrap_or_default();
                found.extend(room_on_disk(&broker, &state));
            }
            Err(error) => found.push(BrokerFinding::Warn(format!(
                "the settings of RocketMQ's broker {broker} cannot be read ({error}): see that \
                 flushDiskType is SYNC_FLUSH, or brokerRole SYNC_MASTER"
            ))),
        }
    }
    found
}

/// What a broker's settings mean for a message that it has confirmed.
fn judged(broker: &str, settings: &str) -> Vec<BrokerFinding> {
    let value = |name: &str| {
        let line = |line: &str| {
            line.strip_prefix(name)?.strip_prefix('=').map(str::trim).map(str::to_owned)
        };
        settings.lines().find_map(line)
    };
    let is = |name: &str, wanted: &str| value(name).is_some_and(|value| value == wanted);
    let mut found = Vec::new();
    let (flushed, copied) = (is("flushDiskType", "SYNC_FLUSH"), is("brokerRole", "SYNC_MASTER"));
    let dledger = is("enableDLegerCommitLog", "true");
    found.push(match (flushed, copied || dledger) {
        (true, _) => BrokerFinding::Ok(format!(
            "RocketMQ's broker {broker} has a message on its disk before it confirms it"
        )),
        (false, true) => BrokerFinding::Ok(format!(
            "RocketMQ's broker {broker} has a message at a replica before it confirms it"
        )),
        (false, false) => BrokerFinding::Warn(format!(
            "RocketMQ's broker {broker} confirms messages that a crash of its machine loses: set \
             flushDiskType=SYNC_FLUSH, or brokerRole=SYNC_MASTER with a replica. No claim is lost by it, \
             for each is on the gate's own log until it is an order, but it may be minutes late"
        )),
    });
    if is("timerWheelEnable", "false") || value("timerWheelEnable").is_none() {
        found.push(BrokerFinding::Warn(format!(
            "RocketMQ's broker {broker} delivers no message at a given time (timerWheelEnable, RocketMQ 5): \
             unpaid orders are found by their index alone"
        )));
    }
    let expired_ms = value("channelExpiredTimeout").and_then(|text| text.parse().ok());
    if let Some(expired_ms) = expired_ms.filter(|expired_ms: &u64| *expired_ms > EXPIRED_MS_MAX) {
        found.push(BrokerFinding::Warn(format!(
            "RocketMQ's broker {broker} notices only after {} s that a worker's machine is gone \
             (channelExpiredTimeout), and for so long its claims wait: 30000 is enough",
            expired_ms / 1_000
        )));
    }
    let kept_s = value("timerMaxDelaySec").and_then(|text| text.parse().ok());
    if kept_s.is_some_and(|kept_s: u64| kept_s < REMINDERS_S_DEFAULT) {
        found.push(BrokerFinding::Warn(format!(
            "RocketMQ's broker {broker} keeps a message for no longer than {} s (timerMaxDelaySec): \
             orders with more time to pay are found by their index alone",
            kept_s.unwrap_or_default()
        )));
    }
    found
}

fn room_on_disk(broker: &str, state: &str) -> Option<BrokerFinding> {
    let used = state.split("\"commitLogDiskRatio\":\"").nth(1)?.split('"').next()?;
    let used: f64 = used.parse().ok()?;
    (used > DISK_USED_MAX).then(|| {
        BrokerFinding::Warn(format!(
            "the disk of RocketMQ's broker {broker} is {:.0} % full, and from 90 % on it takes no message: \
             give it room, or claims wait on the gate's own log",
            used * 100.0
        ))
    })
}

/// The addresses of the brokers that are written to, from an answer that is not quite JSON: its numbers
/// may be keys without quotes. A master has the number 0.
fn masters_in(said: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for start in ["{0:\"", "{\"0\":\"", ",0:\"", ",\"0\":\""] {
        for rest in said.split(start).skip(1) {
            let address = rest.split('"').next().unwrap_or_default();
            if address.contains(':') && !found.iter().any(|known| known == address) {
                found.push(address.to_owned());
            }
        }
    }
    found
}

async fn ask(address: &str, code: u32) -> Result<String, String> {
    match timeout(ASK_MAX, ask_slowly(address, code)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".into()),
    }
}

async fn ask_slowly(address: &str, code: u32) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let header = format!(
        r#"{{"code":{code},"flag":0,"language":"RUST","opaque":1,{}}}"#,
        r#""serializeTypeCurrentRPC":"JSON","version":0"#
    );
    let length = u32::try_from(header.len()).map_err(io::Error::other)?;
    let mut frame = (length + 4).to_be_bytes().to_vec();
    frame.extend(length.to_be_bytes());
    frame.extend(header.as_bytes());
    stream.write_all(&frame).await?;
    let length = stream.read_u32().await? as usize;
    // The upper byte says how the header is written; ours are as we asked.
    let header = (stream.read_u32().await? & 0x00FF_FFFF) as usize;
    if length > ANSWER_BYTES_MAX || header + 4 > length {
        return Err(io::Error::other("this is no answer of RocketMQ"));
    }
    let mut answer = vec![0; length - 4];
    stream.read_exact(&mut answer).await?;
    let (header, body) = answer.split_at(header);
    let header = String::from_utf8_lossy(header);
    if !header.contains(r#""code":0"#) {
        return Err(io::Error::other(format!("it refuses: {header}")));
    }
    Ok(String::from_utf8_lossy(body).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_are_read_with_quotes_and_without() {
        let said = r#"{"brokerAddrTable":{"a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},
            "brokerName":"a"},"b":{"brokerAddrs":{"0":"10.0.0.3:10911"}}}}"#;
        assert_eq!(masters_in(said), ["10.0.0.1:10911", "10.0.0.3:10911"]);
        assert_eq!(masters_in("{}"), Vec::<String>::new());
    }

    #[test]
    fn what_a_crash_would_lose_is_told() {
        let told = |settings: &str| judged("b", &format!("{settings}\ntimerWheelEnable=true"));
        assert!(matches!(told("flushDiskType=SYNC_FLUSH")[..], [BrokerFinding::Ok(_)]));
        let copied = "flushDiskType=ASYNC_FLUSH\nbrokerRole=SYNC_MASTER";
        assert!(matches!(told(copied)[..], [BrokerFinding::Ok(_)]));
        assert!(matches!(told("flushDiskType=ASYNC_FLUSH")[..], [BrokerFinding::Warn(_)]));
        let found = judged("b", "flushDiskType=SYNC_FLUSH\ntimerWheelEnable=false");
        assert!(matches!(found[..], [BrokerFinding::Ok(_), BrokerFinding::Warn(_)]));
    }

    #[test]
    fn a_worker_that_is_missed_late_and_a_disk_that_is_nearly_full_are_told() {
        let told = |expired_ms: &str| {
            let settings =
                "flushDiskType=SYNC_FLUSH\ntimerWheelEnable=true\nchannelExpiredTimeout=";
            judged("b", &format!("{settings}{expired_ms}")).len()
        };
        assert_eq!((told("30000"), told("120000")), (1, 2));
        let state =
            |used: &str| format!(r#"{{"table":{{"commitLogDiskRatio":"{used}","x":"1"}}}}"#);
        assert_eq!(room_on_disk("b", &state("0.17")), None);
        assert_eq!(room_on_disk("b", "it refuses"), None);
        let Some(BrokerFinding::Warn(told)) = room_on_disk("b", &state("0.87")) else {
            panic!("it is nearly full")
        };
        assert!(told.contains("87 % full"), "{told}");
    }
}
