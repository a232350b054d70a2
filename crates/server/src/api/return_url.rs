//! Where a provider sends a buyer's browser when it is done.
//!
//! A provider shows the address to nobody and follows it: whoever could choose it freely would have the
//! provider's good name lead people anywhere. So it is a path of this site, or at an origin that the settings
//! name.

use http::Uri;

use crate::{origins::Origins, problem::Problem};

pub(super) const RETURN_URL_CHARS_MAX: usize = 512;

/// The address as a provider is told it. `public_url` is where buyers reach this site, empty if nobody has
/// said.
pub(super) fn checked(text: &str, public_url: &str, origins: &Origins) -> Result<String, Problem> {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
    let fits = (1..=RETURN_URL_CHARS_MAX).contains(&text.len()) && text.bytes().all(plain);
    let public_url = public_url.trim_end_matches('/');
    if fits && text.starts_with('/') && !text.starts_with("//") {
        return Ok(format!("{public_url}{text}"));
    }
    let origin = origin_of(text).filter(|_| fits);
    let named = origin.is_some_and(|origin| {
        origins.find(origin.as_bytes()).is_some() || origin_of(public_url) == Some(origin)
    });
    if named {
        return Ok(text.to_owned());
    }
    Err(Problem::invalid_in(
        "return_url",
        "must be a path of this site, or an address at an origin of http.allowed_origins",
        "必须是本站的路径，或位于 http.allowed_origins 所列来源的地址",
    ))
}

/// `https://shop.example` of `https://shop.example/back?x=1`. Nobody is named before the host.
fn origin_of(url: &str) -> Option<&str> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "https" | "http"))?;
    let host = uri.authority().filter(|host| !host.as_str().contains('@'))?;
    url.get(..scheme.len() + "://".len() + host.as_str().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buyers_are_sent_to_this_site_or_to_one_that_is_named_and_nowhere_else() {
        let origins =
            Origins::new(&["https://shop.example".into(), "http://dev.example:3000".into()]);
        let sent = |text: &str| checked(text, "https://sale.example/", &origins).ok();
        assert_eq!(sent("/?order=SK1").as_deref(), Some("https://sale.example/?order=SK1"));
        for good in
            ["https://shop.example/back?x=1", "http://dev.example:3000/", "https://sale.example/x"]
        {
            assert_eq!(sent(good).as_deref(), Some(good));
        }
        for bad in [
            "",
            "//evil.example/",
            "/\\evil.example/",
            "\\\\evil.example",
            "https://evil.example/",
            "https://shop.example.evil.example/",
            "https://shop.example@evil.example/",
            "https://shop.example:8443/",
            "http://shop.example/",
            "javascript:alert(1)",
            "data:text/html,x",
            "back",
            "https://shop.example/\n",
            "/ 1",
            &format!("/{}", "x".repeat(RETURN_URL_CHARS_MAX)),
        ] {
            assert_eq!(sent(bad), None, "{bad}");
        }
        assert_eq!(checked("/x", "", &origins).ok().as_deref(), Some("/x"));
        assert!(checked("https://sale.example/x", "", &origins).is_err());
    }
}
