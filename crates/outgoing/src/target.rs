//! An address that can be posted to, taken apart.

use std::{fmt, net::IpAddr, str::FromStr};

use http::Uri;

pub const TARGET_CHARS_MAX: usize = 2_000;

/// An http or https address without a user, a password or a fragment.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub(crate) tls: bool,
    /// A name, or an IP address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// What stands in the `Host` header.
    pub(crate) authority: String,
    /// Path and query. They may carry a secret, and are not shown.
    pub(crate) path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be an http:// or https:// address of at most {TARGET_CHARS_MAX} characters, without a user, a \
     password and a fragment"
)]
pub struct BadTarget;

impl Target {
    /// The name that is resolved, or an IP address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Path and query, as they are asked for.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Target, BadTarget> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.len() > TARGET_CHARS_MAX || !visible || text.contains('#') {
            return Err(BadTarget);
        }
        // One way to write it, as the API's document says.
        if !text.starts_with("http://") && !text.starts_with("https://") {
            return Err(BadTarget);
        }
        let uri: Uri = text.parse().map_err(|_| BadTarget)?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(BadTarget),
        };
        let authority = uri.authority().ok_or(BadTarget)?.as_str();
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(BadTarget)?;
        if authority.contains('@') {
            return Err(BadTarget);
        }
        let port_text = authority.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
        let port = match (uri.port_u16(), port_text) {
            (Some(port), _) if port > 0 => port,
            (None, None) => {
                if tls {
                    443
                } else {
                    80
                }
            }
            _ => return Err(BadTarget),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        // Other ways to write an IP address, such as 0x7f.1 or 2130706433, are names to us, and what they
        // are resolved to is judged like that of any name.
        Ok(Target {
            tls,
            host: bare.to_ascii_lowercase(),
            port,
            authority: authority.to_owned(),
            path: path.to_owned(),
        })
    }
}

/// Scheme, host and port, as they may be shown to anybody.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let target: Target = "https://Shop.example/hooks/s3cret?x=1".parse().unwrap();
        assert_eq!((target.tls, target.host(), target.port), (true, "shop.example", 443));
        assert_eq!(target.path, "/hooks/s3cret?x=1");
        assert_eq!(format!("{target:?}"), "https://Shop.example");
        let target: Target = "http://[::1]:8080".parse().unwrap();
        assert_eq!((target.tls, target.port, target.ip()), (false, 8080, "::1".parse().ok()));
        assert_eq!(target.path, "/");
    }

    #[test]
    fn what_cannot_or_must_not_be_posted_to_is_refused() {
        let long = format!("http://shop.example/{}", "x".repeat(TARGET_CHARS_MAX));
        for bad in [
            "",
            "HTTP://shop.example/",
            "shop.example",
            "/hook",
            "ftp://shop.example/",
            "file:///etc/passwd",
            "gopher://x/",
            "http://",
            "http:///path",
            "http://user:pw@shop.example/",
            "http://user@shop.example/",
            "http://shop.example:99999/",
            "http://shop.example:0/",
            "http://shop.example:/",
            "http://shop.example/#part",
            "http://shöp.example/",
            "http://shop example/",
            &long,
        ] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
