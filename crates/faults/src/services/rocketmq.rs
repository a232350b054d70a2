//! Apache RocketMQ: a name server and one broker, spoken to over its remoting protocol.
//!
//! The broker writes to disk before it confirms, and everything else is as small as it goes. Topics are
//! made when somebody sends to them, as brokers do unless told otherwise. One listener of the broker, that
//! for replicas, cannot be told an address and listens on all of them; nobody talks to it.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::OnceLock,
    time::Duration,
};

use super::{
    java::{JavaProgram, jars},
    needed,
    place::{Port, ServiceFolder},
};

const JARS: &str = "rocketmq-5.3.3";
const NAME_SERVER_HEAP_MB: u32 = 128;
const BROKER_HEAP_MB: u32 = 384;
/// Requests of the remoting protocol.
const GET_BROKER_CLUSTER_INFO: u32 = 106;
const GET_BROKER_RUNTIME_INFO: u32 = 28;
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: usize = 1 << 20;
const DISK_USED_MAX: f64 = 0.9;

/// How a broker is set up. The default is what claims should be sent to.
#[derive(Clone, Debug)]
pub struct RocketMqOptions {
    /// On disk before a message is confirmed.
    pub flush_sync: bool,
    /// The pauses between tries of a message, one per level, in the broker's words.
    pub delay_levels: Option<String>,
    /// More lines of its configuration: `["maxMessageSize=1024"]`. They win over ours.
    pub extra: Vec<String>,
}

impl Default for RocketMqOptions {
    fn default() -> RocketMqOptions {
        RocketMqOptions { flush_sync: true, delay_levels: None, extra: Vec::new() }
    }
}

/// One for the whole test process. Use topics and groups of your own.
pub fn shared_rocketmq() -> &'static RocketMq {
    static SHARED: OnceLock<RocketMq> = OnceLock::new();
    SHARED.get_or_init(|| needed(RocketMq::start(RocketMqOptions::default())))
}

/// A running name server and broker, whose ports and files stay their own while they are down.
#[derive(Debug)]
pub struct RocketMq {
    /// They come first because they are dropped first: a process that lives would miss its folder.
    broker: JavaProgram,
    names: JavaProgram,
    names_port: Port,
    broker_port: Port,
    /// The one for those in a hurry, which the broker opens two below its own, and that for replicas.
    _beside: [Port; 2],
    _folder: ServiceFolder,
}

impl RocketMq {
    pub fn start(options: RocketMqOptions) -> io::Result<RocketMq> {
        let jars = jars(JARS)?;
        let folder = ServiceFolder::new("rocketmq")?;
        fs::create_dir(folder.data())?;
        let (names_port, ha_port) = (Port::reserve()?, Port::reserve()?);
        let (broker_port, fast_port) = Port::reserve_with_one_below(2)?;
        let home = folder.path();
        let names_conf = home.join("names.conf");
        fs::write(&names_conf, names_settings(&names_port, home))?;
        let broker_conf = home.join("broker.conf");
        let settings =
            broker_settings(&options, &names_port, &broker_port, &ha_port, &folder.data());
        fs::write(&broker_conf, settings)?;
        let program = |class: &str, heap_mb: u32, conf: &Path, log: &str| {
            let home_is = format!("-Drocketmq.home.dir={}", home.display());
            let conf = conf.to_string_lossy();
            let all = [class, "-c", &*conf];
            JavaProgram::new(&jars, heap_mb, home, &[&home_is], &all, home.join(log))
        };
        let names = program(
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            NAME_SERVER_HEAP_MB,
            &names_conf,
            "names.log",
        )?;
        let broker = program(
            "org.apache.rocketmq.broker.BrokerStartup",
            BROKER_HEAP_MB,
            &broker_conf,
            "log",
        )?;
        let beside = [fast_port, ha_port];
        let rocketmq =
            RocketMq { broker, names, names_port, broker_port, _beside: beside, _folder: folder };
        rocketmq.restart_name_server()?;
        rocketmq.restart()?;
        rocketmq.has_room()?;
        Ok(rocketmq)
    }

    /// A minute after its start a broker looks how full the disk is, and then may take no messages. No
    /// setting goes beyond nine tenths.
    fn has_room(&self) -> io::Result<()> {
        let told = ask(self.broker(), GET_BROKER_RUNTIME_INFO)?;
        let used = told.split("\"commitLogDiskRatio\":\"").nth(1);
        let used = used.and_then(|rest| rest.split('"').next()?.parse::<f64>().ok());
        match used {
            Some(used) if used > DISK_USED_MAX => Err(io::Error::other(format!(
                "the disk is {:.0} % full, and RocketMQ's broker takes no messages from 90 % on",
                used * 100.0
            ))),
            _ => Ok(()),
        }
    }

    /// Where clients ask for everything else.
    pub fn name_server(&self) -> SocketAddr {
        self.names_port.address()
    }

    pub fn broker(&self) -> SocketAddr {
        self.broker_port.address()
    }

    /// The broker's process id, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.broker.pid()
    }

    pub fn is_running(&self) -> bool {
        self.broker.is_running()
    }

    /// `kill -9` of the broker.
    pub fn kill(&self) -> io::Result<()> {
        self.broker.kill()
    }

    /// A polite stop of the broker.
    pub fn stop(&self) -> io::Result<()> {
        self.broker.stop()
    }

    /// SIGSTOP of the broker: connections stay open and nothing is answered.
    pub fn pause(&self) -> io::Result<()> {
        self.broker.pause()
    }

    pub fn resume(&self) -> io::Result<()> {
        self.broker.resume()
    }

    /// The broker again with the same port and files; stopped first if it still runs. Returns when it
    /// answers and the name server tells of it.
    pub fn restart(&self) -> io::Result<()> {
        self.broker.restart("RocketMQ's broker", || {
            ask(self.broker(), GET_BROKER_RUNTIME_INFO)?;
            let known = ask(self.name_server(), GET_BROKER_CLUSTER_INFO)?;
            let broker = self.broker().to_string();
            if known.contains(&broker) {
                return Ok(());
            }
            Err(io::Error::other("the name server does not know it yet"))
        })
    }

    pub fn kill_name_server(&self) -> io::Result<()> {
        self.names.kill()
    }

    pub fn restart_name_server(&self) -> io::Result<()> {
        self.names.restart("RocketMQ's name server", || {
            ask(self.name_server(), GET_BROKER_CLUSTER_INFO).map(drop)
        })
    }

    /// What the broker printed.
    pub fn log(&self) -> String {
        self.broker.log()
    }
}

fn names_settings(port: &Port, home: &Path) -> String {
    format!(
        "bindAddress=127.0.0.1\nlistenPort={}\nkvConfigPath={}\n",
        port.number(),
        home.join("names.json").display()
    )
}

fn broker_settings(
    options: &RocketMqOptions,
    names: &Port,
    port: &Port,
    ha: &Port,
    data: &Path,
) -> String {
    let flush = if options.flush_sync { "SYNC_FLUSH" } else { "ASYNC_FLUSH" };
    let (names, number, ha) = (names.address(), port.number(), ha.number());
    let (store, log) = (data.display(), data.join("commitlog"));
    let mut lines = vec![
        "brokerClusterName=tests\nbrokerName=tests\nbrokerId=0".to_owned(),
        format!(
            "namesrvAddr={names}\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1"
        ),
        format!("listenPort={number}\nhaListenPort={ha}"),
        format!("storePathRootDir={store}\nstorePathCommitLog={}", log.display()),
        format!("flushDiskType={flush}\nbrokerRole=ASYNC_MASTER"),
        "autoCreateTopicEnable=true\nautoCreateSubscriptionGroup=true".to_owned(),
        // Files are made whole, and there are few messages in a test.
        "mappedFileSizeCommitLog=67108864\nmaxHashSlotNum=100000\nmaxIndexNum=400000".to_owned(),
        // The disk of a machine that builds is fuller than that of a broker.
        "diskMaxUsedSpaceRatio=98".to_owned(),
        // A client that is frozen loses its queues after half a minute and not after two: it is looked every
        // ten seconds who was silent for so long.
        "channelExpiredTimeout=15000".to_owned(),
        // A machine that does everything else too is busy at times, which is no reason to refuse.
        "waitTimeMillsInSendQueue=5000\nosPageCacheBusyTimeOutMills=5000".to_owned(),
    ];
    lines.extend(options.delay_levels.iter().map(|levels| format!("messageDelayLevel={levels}")));
    lines.extend(options.extra.iter().cloned());
    lines.join("\n") + "\n"
}

/// One request without content, and what was answered. A frame is its length, the length of the header,
/// the header in JSON, and the body.
fn ask(address: SocketAddr, code: u32) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let header = format!(
        r#"{{"code":{code},"flag":0,"language":"RUST","opaque":1,{}}}"#,
        r#""serializeTypeCurrentRPC":"JSON","version":0"#
    );
    let length = u32::try_from(header.len()).map_err(io::Error::other)?;
    let mut frame = (length + 4).to_be_bytes().to_vec();
    frame.extend(length.to_be_bytes());
    frame.extend(header.as_bytes());
    stream.write_all(&frame)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > ANSWER_BYTES_MAX {
        return Err(io::Error::other("this is no answer of RocketMQ"));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    if answer.contains(r#""code":0"#) {
        return Ok(answer);
    }
    Err(io::Error::other(format!("RocketMQ answered {answer}")))
}
