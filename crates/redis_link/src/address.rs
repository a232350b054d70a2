//! What can stand in `redis.url`.
//!
//! | form | means |
//! |---|---|
//! | `redis://[user:password@]host:port[/db]` | one address |
//! | several of them, by comma | members of one Redis Cluster |
//! | `redis+sentinel://[user:password@]host:port,host:port…/name[/db]` | what these sentinels call so |
//!
//! `rediss` instead of `redis` is the same with TLS, in all three; the sentinels are spoken to with TLS
//! as well. User and password are those of the servers; sentinels that want some have their own.

use std::fmt;

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisResult, io::tcp::TcpSettings,
};

use crate::tls::{TlsFiles, wrong};

const SENTINEL_PORT: u16 = 26_379;

/// As it was set.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisAddress {
    pub url: String,
    pub tls: TlsFiles,
    /// Of the sentinels; empty where they want none.
    pub sentinel_user: String,
    pub sentinel_password: String,
}

/// There are passwords in it.
impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisAddress").field("tls", &self.tls).finish_non_exhaustive()
    }
}

/// As it was understood.
#[derive(Debug)]
pub(crate) enum Layout {
    One(ConnectionInfo),
    /// At least two.
    Cluster(Vec<ConnectionInfo>),
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        name: String,
        /// How the servers are logged into; its address is that of the first sentinel.
        server: ConnectionInfo,
    },
}

impl RedisAddress {
    /// Without a password for sentinels and files for TLS.
    pub fn new(url: impl Into<String>) -> RedisAddress {
        RedisAddress { url: url.into(), ..RedisAddress::default() }
    }

    pub(crate) fn layout(&self) -> RedisResult<Layout> {
        for (scheme, plain) in [("redis+sentinel://", "redis"), ("rediss+sentinel://", "rediss")] {
            if let Some(rest) = self.url.trim().strip_prefix(scheme) {
                return self.sentinel_layout(plain, rest);
            }
        }
        let servers = self.url.split(',').map(|url| self.server(url.trim()));
        let mut servers: Vec<ConnectionInfo> = servers.collect::<RedisResult<_>>()?;
        match servers.len() {
            1 => Ok(Layout::One(servers.remove(0))),
            _ => Ok(Layout::Cluster(servers)),
        }
    }

    fn server(&self, url: &str) -> RedisResult<ConnectionInfo> {
        let info = self.tls.secure(url.into_connection_info()?)?;
        Ok(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
    }

    fn sentinel_layout(&self, scheme: &str, rest: &str) -> RedisResult<Layout> {
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (format!("{login}@"), rest),
            None => (String::new(), rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, db) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() || hosts.is_empty() {
            return Err(wrong(
                "the form is redis+sentinel://host:port,host:port/name, with the name by which the \
                 sentinels know the primary",
            ));
        }
        let sentinel = |host: &str| {
            let info = self.server(&format!("{scheme}://{}", with_port(host.trim())))?;
            let mut login = info.redis_settings().clone();
            if !self.sentinel_user.is_empty() {
                login = login.set_username(&self.sentinel_user);
            }
            if !self.sentinel_password.is_empty() {
                login = login.set_password(&self.sentinel_password);
            }
            Ok(info.set_redis_settings(login))
        };
        let sentinels = hosts.split(',').map(sentinel).collect::<RedisResult<Vec<_>>>()?;
        let first = with_port(hosts.split(',').next().unwrap_or_default().trim());
        let server = self.server(&format!("{scheme}://{login}{first}/{db}"))?;
        Ok(Layout::Sentinel { sentinels, name: name.to_owned(), server })
    }
}

fn with_port(host: &str) -> String {
    // An address of IPv6 is in brackets.
    let after_brackets = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    if after_brackets.contains(':') { host.to_owned() } else { format!("{host}:{SENTINEL_PORT}") }
}

/// Another server, spoken to in the same way.
pub(crate) fn at(like: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let address = match like.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(url: &str) -> RedisResult<Layout> {
        let sentinel_password = "of the sentinels".into();
        RedisAddress { sentinel_password, ..RedisAddress::new(url) }.layout()
    }

    #[test]
    fn three_forms_are_understood() {
        assert!(matches!(layout("redis://h:1/2").unwrap(), Layout::One(info)
            if info.redis_settings().db() == 2));
        assert!(matches!(layout("redis://a:1, redis://b:2").unwrap(), Layout::Cluster(all)
            if all.len() == 2));
        let Layout::Sentinel { sentinels, name, server } =
            layout("rediss+sentinel://u:p%40w@a,b:5,[::1]/main/3").unwrap()
        else {
            panic!("sentinels")
        };
        let places: Vec<String> = sentinels.iter().map(|one| one.addr().to_string()).collect();
        assert_eq!(places, ["a:26379", "b:5", "::1:26379"]);
        assert_eq!(name, "main");
        assert!(matches!(server.addr(), ConnectionAddr::TcpTls { .. }));
        let login = server.redis_settings();
        assert_eq!((login.username(), login.password(), login.db()), (Some("u"), Some("p@w"), 3));
        let login = sentinels[0].redis_settings();
        assert_eq!((login.username(), login.password()), (None, Some("of the sentinels")));
        let other = at(&server, "z", 9);
        assert!(
            matches!(other.addr(), ConnectionAddr::TcpTls { host, port: 9, .. } if host == "z")
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert!(layout("redis+sentinel://a:1").unwrap_err().to_string().contains("name"));
        let files = TlsFiles { ca: "/nowhere.pem".into(), ..TlsFiles::default() };
        let plain = RedisAddress { tls: files.clone(), ..RedisAddress::new("redis://h:1") };
        assert!(plain.layout().unwrap_err().to_string().contains("rediss://"));
        let missing = RedisAddress { tls: files, ..RedisAddress::new("rediss://h:1") };
        assert!(missing.layout().unwrap_err().to_string().contains("redis.tls_ca_file"));
        let half = TlsFiles { cert: "/x.pem".into(), ..TlsFiles::default() };
        let half = RedisAddress { tls: half, ..RedisAddress::new("rediss://h:1") };
        assert!(half.layout().unwrap_err().to_string().contains("belong together"));
    }
}
