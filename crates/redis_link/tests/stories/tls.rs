//! Servers that speak TLS and want to know who we are.

use std::sync::Arc;

use faults::services::{Certificates, Redis, RedisOptions};
use redis::RedisResult;
use redis_link::{RedisAddress, RedisServers, TlsFiles, is_away};

use super::{OPTIONS, count};

async fn counted(url: String, tls: TlsFiles) -> RedisResult<i64> {
    let servers = RedisServers::new(&RedisAddress { tls, ..RedisAddress::new(url) })?;
    servers.subscribe("news").await?;
    count(&servers.link(OPTIONS).await?, "a").await
}

#[tokio::test]
async fn only_certificates_that_fit_open_the_way_and_there_is_no_other_way() {
    let files = Arc::new(Certificates::make().unwrap());
    let options = RedisOptions { tls: Some(files.clone()), ..RedisOptions::default() };
    let redis = Redis::start(options).unwrap();
    let (cert, key) = (files.cert("client"), files.key("client"));
    let good = TlsFiles { ca: files.cert("ca"), cert, key };
    assert_eq!(counted(redis.tls_url(), good.clone()).await.unwrap(), 1);
    let bad = [
        ("another authority", TlsFiles { ca: files.cert("stranger"), ..good.clone() }),
        ("the public authorities", TlsFiles { ca: "".into(), ..good.clone() }),
        ("nobody we are", TlsFiles { cert: "".into(), key: "".into(), ..good.clone() }),
    ];
    for (what, tls) in bad {
        let refused = counted(redis.tls_url(), tls).await.unwrap_err();
        println!("{what}: {refused}");
        assert!(!is_away(&refused), "{what}: waiting does not mend {refused}");
    }
    let plain = redis.tls_url().replace("rediss", "redis");
    assert!(counted(plain, TlsFiles::default()).await.is_err(), "the port is for TLS");
    assert_eq!(redis.call(&["GET", "a"]).unwrap().text(), "1", "nobody else came through");
    redis.kill().unwrap();
    assert!(is_away(&counted(redis.tls_url(), good).await.unwrap_err()), "it may come back");
}
