//! What a text or a table of the settings must look like: addresses, origins, hosts, endpoints, robots.

use toml::Value;

use super::rules::TEXT_CHARS_MAX;

pub(super) fn is_endpoint(value: &Value) -> bool {
    let Some(table) = value.as_table() else { return false };
    let text = |key: &str| table.get(key).and_then(Value::as_str);
    let events = table.get("events").map(|events| {
        events.as_array().is_some_and(|list| {
            let known = |event: &Value| {
                event.as_str().is_some_and(|word| word.parse::<engine::WebhookKind>().is_ok())
            };
            list.iter().all(known)
        })
    });
    text("url").is_some_and(engine::is_webhook_url)
        && text("secret").is_some_and(engine::is_webhook_secret)
        && events.unwrap_or(true)
        && table.keys().all(|key| ["url", "secret", "events"].contains(&key.as_str()))
}

pub(super) fn is_robot(value: &Value) -> bool {
    let Some(table) = value.as_table() else { return false };
    let text = |key: &str| table.get(key).and_then(Value::as_str);
    let known = |word: &str| orders::RobotKind::ALL.iter().any(|kind| kind.as_str() == word);
    text("kind").is_some_and(known)
        && text("url").is_some_and(engine::is_webhook_url)
        && table.get("secret").is_none_or(Value::is_str)
        && table.keys().all(|key| ["kind", "url", "secret"].contains(&key.as_str()))
}

pub(super) fn has_scheme(text: &str, scheme: &str) -> bool {
    let head = text.get(..scheme.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(scheme)) && text.len() > scheme.len()
}

pub(super) fn is_site(text: &str) -> bool {
    let http = ["https://", "http://"].iter().any(|scheme| has_scheme(text, scheme));
    http && engine::is_webhook_url(text) && !text.contains('?')
}

/// The host of an origin, without a port: what clients write before the colon.
pub(super) fn is_host_name(text: &str) -> bool {
    !text.ends_with('.') && is_origin(&format!("https://{text}")) && split_port(text).1.is_none()
}

/// An address of IPv6 is in brackets.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    }
}

/// Is this an origin, written as browsers write it? Another spelling would never be met.
pub(super) fn is_origin(text: &str) -> bool {
    let rest = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) if !rest.ends_with(":443") => rest,
        (_, Some(rest)) if !rest.ends_with(":80") => rest,
        _ => return false,
    };
    let (host, port) = split_port(rest);
    let plain =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | '_');
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let good_host = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(plain),
    };
    let good_port = port.is_none_or(|port| {
        port.parse::<u16>().is_ok_and(|number| number > 0 && number.to_string() == port)
    });
    good_host && good_port && text.len() <= TEXT_CHARS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_written_as_browsers_write_it() {
        for good in [
            "https://shop.example",
            "http://localhost",
            "http://127.0.0.1:3000",
            "https://shop.example:8443",
            "http://[::1]:8080",
            "https://xn--fiq228c.example",
        ] {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "",
            "*",
            "null",
            "https://*",
            "https://*.shop.example",
            "https://",
            "shop.example",
            "https://shop.example/",
            "https://shop.example/path",
            "https://Shop.example",
            "https://商店.example",
            "https://shop.example:443",
            "http://shop.example:80",
            "https://shop.example:0",
            "https://shop.example:08443",
            "https://shop.example:99999",
            "https://user@shop.example",
            "https://shop.example https://b",
            "https://shop.example;",
            "ftp://shop.example",
            "http://[::g]",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }
}
