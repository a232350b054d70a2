//! Addresses, as limits see them: which network they are in, and what counts as one address.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// A subscriber is given this much of IPv6, and can have as many addresses as they like in it.
const IPV6_PREFIX_BITS: u32 = 64;

/// What counts as one address: an IPv4 one, or the first half of an IPv6 one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subscriber(u64, bool);

impl Subscriber {
    pub fn of(address: IpAddr) -> Subscriber {
        match address.to_canonical() {
            IpAddr::V4(v4) => Subscriber(u64::from(v4.to_bits()), false),
            IpAddr::V6(v6) => Subscriber((v6.to_bits() >> (128 - IPV6_PREFIX_BITS)) as u64, true),
        }
    }

    /// The same in every process, for a table that they share.
    pub(crate) fn name(self) -> String {
        format!("{:x}{}", self.0, if self.1 { "/64" } else { "" })
    }
}

/// A range of addresses, written as `10.0.0.0/8`; an address alone is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    first: IpAddr,
    bits: u32,
}

impl Network {
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                same_start(first.to_bits().into(), address.to_bits().into(), 32 - self.bits)
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                same_start(first.to_bits(), address.to_bits(), 128 - self.bits)
            }
            _ => false,
        }
    }
}

/// Are two addresses the same but for so many bits at their ends?
fn same_start(one: u128, other: u128, bits_apart: u32) -> bool {
    (one ^ other).checked_shr(bits_apart).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let wrong = || {
            format!("{text:?} is no network: write \"10.0.0.0/8\", \"::1\" or \"2001:db8::/32\"")
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        let all = if first.is_ipv4() { 32 } else { Ipv6Addr::BITS };
        let bits = match bits {
            None => all,
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= all).ok_or_else(wrong)?,
        };
        Ok(Network { first, bits })
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Network, String> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> String {
        network.to_string()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_own() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
            ("::1", "::1", "::2"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
            ("192.168.0.0/16", "::ffff:192.168.3.4", "::ffff:192.169.3.4"),
        ] {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{network} {inside}");
            assert!(!network.contains(outside.parse().unwrap()), "{network} {outside}");
        }
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/", "10.0.0.0/-1", "host"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_subscriber_of_ipv6_is_one_address() {
        let of = |text: &str| Subscriber::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:1.2.3.4"), of("1.2.3.4"));
        assert_ne!(of("1.2.3.4"), of("1.2.3.5"));
        assert_ne!(of("0.0.0.1"), of("0:0:0:1::"), "an address of one kind is none of the other");
    }
}
