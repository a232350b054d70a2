//! The message brokers do what the tests of the other crates rely on. They are fetched by
//! `cargo xtask test --brokers`, which runs this.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{net::TcpStream, path::Path};

use faults::services::{Kafka, KafkaOptions, RocketMq, RocketMqOptions};

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).is_dir()
}

#[test]
fn a_rocketmq_broker_is_killed_paused_and_brought_back_where_it_was() {
    let rocketmq = RocketMq::start(RocketMqOptions::default()).unwrap();
    let (address, first) = (rocketmq.broker(), rocketmq.pid().unwrap());
    rocketmq.pause().unwrap();
    assert!(rocketmq.is_running(), "it stands still and is there");
    rocketmq.resume().unwrap();
    rocketmq.kill().unwrap();
    assert!(!is_alive(first) && TcpStream::connect(address).is_err());
    rocketmq.restart().unwrap();
    assert_eq!(rocketmq.broker(), address);
    rocketmq.kill_name_server().unwrap();
    assert!(TcpStream::connect(rocketmq.name_server()).is_err());
    rocketmq.restart_name_server().unwrap();
    let last = rocketmq.pid().unwrap();
    drop(rocketmq);
    assert!(!is_alive(last), "nothing outlives the test");
}

#[test]
fn a_kafka_node_is_killed_paused_and_brought_back_where_it_was() {
    let kafka = Kafka::start(KafkaOptions::default()).unwrap();
    let (address, first) = (kafka.address(), kafka.pid().unwrap());
    kafka.pause().unwrap();
    assert!(kafka.is_running(), "it stands still and is there");
    kafka.resume().unwrap();
    kafka.kill().unwrap();
    assert!(!is_alive(first) && TcpStream::connect(address).is_err());
    kafka.restart().unwrap();
    assert_eq!(kafka.address(), address);
    let last = kafka.pid().unwrap();
    drop(kafka);
    assert!(!is_alive(last), "nothing outlives the test");
}
