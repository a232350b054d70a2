//! For whom requests may be: the names under which we are known.
//!
//! A page of somebody else can be given a name that leads to us, and its scripts then talk to us as if they
//! were ours; a cache before us can be made to store an answer under a name that is not ours. Where the names
//! are listed, a request for another one is refused. The fast path leaves it to the router to say so.

use std::sync::Arc;

/// The names that may be asked for; none is any. A clone is a reference.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Arc<[String]>);

impl Hosts {
    pub fn new(allowed: &[String]) -> Hosts {
        Hosts(allowed.into())
    }

    /// May this be asked for? The port does not matter, nor do capitals or the dot of a full name.
    pub fn allow(&self, host: &[u8]) -> bool {
        self.0.is_empty() || {
            let name = without_port(host);
            let name = name.strip_suffix(b".").unwrap_or(name);
            self.0.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(name))
        }
    }
}

/// An address of IPv6 is in brackets, which it keeps.
fn without_port(host: &[u8]) -> &[u8] {
    let digits = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = &host[..host.len() - digits];
    rest.strip_suffix(b":").unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_names_may_be_asked_for() {
        let hosts = Hosts::new(&["shop.example".into(), "[::1]".into(), "10.0.0.7".into()]);
        for good in
            ["shop.example", "SHOP.example:443", "shop.example.", "[::1]:8080", "10.0.0.7:80"]
        {
            assert!(hosts.allow(good.as_bytes()), "{good}");
        }
        for bad in
            ["", "evil.example", "shop.example.evil", "xshop.example", "[::2]", ":443", "10.0.0.71"]
        {
            assert!(!hosts.allow(bad.as_bytes()), "{bad}");
        }
        assert!(Hosts::default().allow(b"whatever"));
    }
}
