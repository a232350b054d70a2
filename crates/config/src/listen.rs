//! An address to listen on, in the ways people write it.
//!
//! A port alone is on this machine: nobody becomes public by leaving something out.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use toml::Value;

/// `8081`, `:8081`, `localhost:8081`, `0.0.0.0:8081` or `[::1]:8081`.
pub(super) fn read(value: &Value) -> Option<SocketAddr> {
    let here = |port: u16| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let text = match value {
        Value::Integer(port) => return u16::try_from(*port).ok().map(here),
        Value::String(text) => text,
        _ => return None,
    };
    let port = text.strip_prefix("localhost:").or(text.strip_prefix(':')).unwrap_or(text);
    // The parser of numbers would take a sign.
    if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) {
        return port.parse().ok().map(here);
    }
    text.parse().ok()
}
