//! A range of addresses, as operators write it: `10.0.0.0/8`, `2001:db8::/32`, or one address alone.

use std::{fmt, net::IpAddr, str::FromStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

impl Network {
    /// Is this address in it? One of IPv4 that is written as one of IPv6 is the same address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.first.is_ipv4()
            && masked(address, self.bits) == masked(self.first, self.bits)
    }
}

/// What is left of an address if only its first bits count.
fn masked(address: IpAddr, bits: u8) -> u128 {
    let (number, width) = match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    number.checked_shr(width - u32::from(bits)).unwrap_or(0)
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let rule =
            || format!("{text:?} is no address and no range, such as 10.0.0.0/8 or 2001:db8::/32");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| rule())?;
        let width = if first.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => width,
            // The parser of numbers would take a sign.
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                bits.parse().ok().filter(|bits| *bits <= width).ok_or_else(rule)?
            }
            Some(_) => return Err(rule()),
        };
        if first.to_canonical() != first {
            return Err(format!("{text:?} is an address of IPv4: write it as one"));
        }
        let network = Network { first, bits };
        // 10.1.2.3/8 may mean one address or sixteen million.
        let rest = u32::from(width - bits);
        let number = masked(first, width);
        if number != number.checked_shr(rest).and_then(|n| n.checked_shl(rest)).unwrap_or(0) {
            return Err(format!("{text:?} names more of the address than its {bits} bits"));
        }
        Ok(network)
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
    fn an_address_is_in_its_range_and_in_no_other() {
        for (range, inside, outside) in [
            (
                "10.0.0.0/8",
                &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"][..],
                &["11.0.0.0", "::1"][..],
            ),
            ("203.0.113.7", &["203.0.113.7"], &["203.0.113.8", "::203.0.113.7"]),
            ("0.0.0.0/0", &["1.2.3.4"], &["2001:db8::1"]),
            ("2001:db8::/32", &["2001:db8:ffff::1"], &["2001:db9::1", "32.1.13.184"]),
            ("::/0", &["::1", "2001:db8::1"], &["1.2.3.4"]),
            ("::1", &["::1"], &["::2", "127.0.0.1"]),
        ] {
            let network: Network = range.parse().unwrap();
            assert!(inside.iter().all(|one| network.contains(one.parse().unwrap())), "{range}");
            assert!(!outside.iter().any(|one| network.contains(one.parse().unwrap())), "{range}");
            assert_eq!(network.to_string().parse(), Ok(network));
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for bad in [
            "",
            "/",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.1.0.0/8",
            "::/129",
            "10.0.0/8",
            "host",
            "10.0.0.0/8/8",
            "::ffff:10.0.0.0/104",
            " 10.0.0.1",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
