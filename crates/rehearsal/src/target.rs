//! What a rehearsal is aimed at. A load generator is a weapon in the wrong hands or with the wrong
//! address, so only the machine itself and private networks are taken without being asked twice.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::{net::TcpStream, time::timeout};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("{0:?} is no target: give http://host:port")]
    NotAnAddress(String),
    #[error("{0}: https is not supported; aim behind the TLS proxy, at the instances themselves")]
    Https(String),
    #[error("{0} cannot be resolved: {1}")]
    Unresolvable(String, String),
    #[error(
        "{0} is the public address {1}: a rehearsal would flood it. If it is yours, say --i-own-this-target"
    )]
    Public(String, IpAddr),
    #[error("nobody answers at {0}")]
    Silent(String),
}

/// The address of one instance that answers.
pub async fn find_target(target: &str, may_be_public: bool) -> Result<SocketAddr, TargetError> {
    let host = host_and_port(target)?;
    let unresolvable = |why: String| TargetError::Unresolvable(target.into(), why);
    let found =
        tokio::net::lookup_host(&host).await.map_err(|error| unresolvable(error.to_string()))?;
    let addresses: Vec<SocketAddr> = found.collect();
    if addresses.is_empty() {
        return Err(unresolvable("it has no address".into()));
    }
    // One public address is enough: nobody knows which of them a proxy in between would choose.
    let public = addresses.iter().map(SocketAddr::ip).find(|ip| is_public(*ip));
    if let Some(ip) = public.filter(|_| !may_be_public) {
        return Err(TargetError::Public(target.into(), ip));
    }
    for address in addresses {
        if let Ok(Ok(_)) = timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
            return Ok(address);
        }
    }
    Err(TargetError::Silent(target.into()))
}

/// `host:port` of `http://host:port/`.
fn host_and_port(target: &str) -> Result<String, TargetError> {
    let not_an_address = || TargetError::NotAnAddress(target.into());
    let (scheme, rest) = target.split_once("://").ok_or_else(not_an_address)?;
    match scheme.to_ascii_lowercase().as_str() {
        "http" => {}
        "https" => return Err(TargetError::Https(target.into())),
        _ => return Err(not_an_address()),
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let odd = |c: char| matches!(c, '/' | '?' | '#' | '@') || c.is_whitespace();
    if rest.is_empty() || rest.contains(odd) {
        return Err(not_an_address());
    }
    // The port comes after the brackets of an IPv6 address, which has colons of its own.
    let after_host = rest.rfind(']').map_or(rest, |end| &rest[end..]);
    match after_host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(rest.into()),
        Some(_) => Err(not_an_address()),
        None => Ok(format!("{rest}:80")),
    }
}

/// Anything but loopback, private and sender-local ranges.
fn is_public(ip: IpAddr) -> bool {
    let near = |ip: Ipv4Addr| ip.is_loopback() || ip.is_private() || ip.is_link_local();
    match ip {
        IpAddr::V4(ip) => !near(ip),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => !near(ip),
            None => !(ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_addresses_are_not_public() {
        for near in [
            "127.0.0.1",
            "127.8.9.10",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.9",
            "169.254.1.1",
            "::1",
            "fe80::1",
            "fd00::7",
            "::ffff:10.0.0.1",
        ] {
            assert!(!is_public(near.parse().unwrap()), "{near}");
        }
        for public in [
            "8.8.8.8",
            "172.32.0.1",
            "100.64.0.1",
            "192.0.2.1",
            "0.0.0.0",
            "2001:db8::1",
            "::",
            "::ffff:8.8.8.8",
            "fec0::1",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn a_target_is_a_plain_http_address() {
        let good = |target: &str, host: &str| {
            assert_eq!(host_and_port(target), Ok(host.into()), "{target}");
        };
        good("http://shop:8080", "shop:8080");
        good("HTTP://shop:8080/", "shop:8080");
        good("http://shop", "shop:80");
        good("http://[::1]:8080", "[::1]:8080");
        good("http://[::1]", "[::1]:80");
        for bad in [
            "shop:8080",
            "ftp://shop",
            "http://",
            "http:///",
            "http://shop:x",
            "http://shop:0",
            "http://shop:99999",
            "http://shop/path",
            "http://me@shop",
            "http://shop?x",
            "",
        ] {
            assert_eq!(host_and_port(bad), Err(TargetError::NotAnAddress(bad.into())));
        }
        assert!(matches!(host_and_port("https://shop"), Err(TargetError::Https(_))));
    }

    #[tokio::test]
    async fn a_public_target_needs_the_word_of_its_owner() {
        // Documentation addresses: nobody has them, and they are looked at before any packet leaves.
        let refused = find_target("http://192.0.2.1:80", false).await.unwrap_err();
        assert!(matches!(refused, TargetError::Public(..)), "{refused}");
        assert!(refused.to_string().contains("--i-own-this-target"));
        let unknown = find_target("http://no-such-host.invalid:80", false).await.unwrap_err();
        assert!(matches!(unknown, TargetError::Unresolvable(..)), "{unknown}");
    }
}
