//! Apache Kafka: one node that is its own controller.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::OnceLock,
    time::Duration,
};

use super::{
    java::{JavaProgram, jars},
    needed,
    place::{Port, ServiceFolder},
};

const JARS: &str = "kafka-4.1.0";
const HEAP_MB: u32 = 400;
/// Any will do for a cluster of one that nobody else ever joins.
const CLUSTER_ID: &str = "4L6g3nShT-eMCtK--X86sw";
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The request that names the brokers which serve clients.
const METADATA: u16 = 3;

/// How the node is set up.
#[derive(Clone, Debug, Default)]
pub struct KafkaOptions {
    /// More lines of its configuration: `["num.partitions=8"]`. They win over ours.
    pub extra: Vec<String>,
}

/// One for the whole test process. Use topics and groups of your own.
pub fn shared_kafka() -> &'static Kafka {
    static SHARED: OnceLock<Kafka> = OnceLock::new();
    SHARED.get_or_init(|| needed(Kafka::start(KafkaOptions::default())))
}

/// A running node, whose ports and files stay its own while it is down.
#[derive(Debug)]
pub struct Kafka {
    /// Comes first because it is dropped first: a process that lives would miss its folder.
    node: JavaProgram,
    port: Port,
    /// Where it votes for itself.
    _controller: Port,
    _folder: ServiceFolder,
}

impl Kafka {
    pub fn start(options: KafkaOptions) -> io::Result<Kafka> {
        let jars = jars(JARS)?;
        let folder = ServiceFolder::new("kafka")?;
        let (port, controller) = (Port::reserve()?, Port::reserve()?);
        let home = folder.path();
        let conf = home.join("server.properties");
        fs::write(&conf, settings(&options, &port, &controller, &folder))?;
        let conf = conf.to_string_lossy();
        let program = |class_and_args: &[&str]| {
            JavaProgram::new(&jars, HEAP_MB, home, &[], class_and_args, folder.log())
        };
        let format =
            ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", &conf, "--standalone"];
        program(&format)?.run_to_the_end("the formatting of Kafka's files")?;
        let node = program(&["kafka.Kafka", &conf])?;
        let kafka = Kafka { node, port, _controller: controller, _folder: folder };
        kafka.restart()?;
        Ok(kafka)
    }

    /// The bootstrap server.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The process id, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.node.pid()
    }

    pub fn is_running(&self) -> bool {
        self.node.is_running()
    }

    /// `kill -9`.
    pub fn kill(&self) -> io::Result<()> {
        self.node.kill()
    }

    /// A polite stop.
    pub fn stop(&self) -> io::Result<()> {
        self.node.stop()
    }

    /// SIGSTOP: connections stay open and nothing is answered.
    pub fn pause(&self) -> io::Result<()> {
        self.node.pause()
    }

    pub fn resume(&self) -> io::Result<()> {
        self.node.resume()
    }

    /// Again with the same port and files; stopped first if it still runs. Returns when it serves clients.
    pub fn restart(&self) -> io::Result<()> {
        self.node.restart("Kafka", || match brokers_at(self.address())? {
            0 => Err(io::Error::other("it does not serve clients yet")),
            _ => Ok(()),
        })
    }

    /// What it printed.
    pub fn log(&self) -> String {
        self.node.log()
    }
}

fn settings(
    options: &KafkaOptions,
    port: &Port,
    controller: &Port,
    folder: &ServiceFolder,
) -> String {
    let (port, controller) = (port.address(), controller.address());
    let mut lines = vec![
        "process.roles=broker,controller\nnode.id=1".to_owned(),
        format!("controller.quorum.bootstrap.servers={controller}"),
        format!("listeners=PLAINTEXT://{port},CONTROLLER://{controller}"),
        format!("advertised.listeners=PLAINTEXT://{port},CONTROLLER://{controller}"),
        "controller.listener.names=CONTROLLER".to_owned(),
        format!("log.dirs={}", folder.data().display()),
        // Its own topics ask for three nodes and fifty partitions otherwise.
        "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=4".to_owned(),
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1".to_owned(),
        "transaction.state.log.num.partitions=4\nshare.coordinator.state.topic.num.partitions=1"
            .to_owned(),
        "share.coordinator.state.topic.replication.factor=1".to_owned(),
        "share.coordinator.state.topic.min.isr=1\nmin.insync.replicas=1".to_owned(),
        // A group that has just come together is not waited for.
        "group.initial.rebalance.delay.ms=0\nnum.partitions=4".to_owned(),
        // A confirmed message is on disk, as it would be on another machine.
        "log.flush.interval.messages=1".to_owned(),
        "num.network.threads=2\nnum.io.threads=2\nlog.cleaner.dedupe.buffer.size=2097152"
            .to_owned(),
    ];
    lines.extend(options.extra.iter().cloned());
    lines.join("\n") + "\n"
}

/// How many brokers serve clients, by the word of this one. A request is its length, what is asked in
/// which version, a number to know the answer by, and who asks; no topics are asked about.
fn brokers_at(address: SocketAddr) -> io::Result<u32> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let mut request = METADATA.to_be_bytes().to_vec();
    request.extend(1_u16.to_be_bytes());
    request.extend(7_u32.to_be_bytes());
    request.extend(5_u16.to_be_bytes());
    request.extend(b"ready");
    request.extend(0_u32.to_be_bytes());
    let length = u32::try_from(request.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &request].concat())?;
    let mut word = [0; 4];
    stream.read_exact(&mut word)?;
    let length = u32::from_be_bytes(word) as usize;
    if !(8..=ANSWER_BYTES_MAX).contains(&length) {
        return Err(io::Error::other("this is no answer of Kafka"));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    word.copy_from_slice(&answer[4..8]);
    Ok(u32::from_be_bytes(word))
}
