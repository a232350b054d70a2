//! The language a message is written in, chosen by the client's `Accept-Language`.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::{HeaderMap, HeaderValue, header::ACCEPT_LANGUAGE, request::Parts};

/// Languages looked at in one header; a longer list is not a person's.
const RANGES_MAX: usize = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lang {
    #[default]
    En,
    Zh,
}

impl Lang {
    pub const ALL: [Lang; 2] = [Lang::En, Lang::Zh];

    pub fn as_str(self) -> &'static str {
        match self {
            Lang::En => "en",
            Lang::Zh => "zh",
        }
    }

    pub fn of(headers: &HeaderMap) -> Lang {
        headers.get(ACCEPT_LANGUAGE).map_or(Lang::En, Lang::of_header)
    }

    pub(crate) fn of_header(value: &HeaderValue) -> Lang {
        Lang::of_bytes(value.as_bytes())
    }

    pub(crate) fn of_bytes(value: &[u8]) -> Lang {
        std::str::from_utf8(value).map_or(Lang::En, Lang::preferred)
    }

    /// The best liked of our two languages; English if neither is named. Of equally liked ones the
    /// first wins.
    fn preferred(header: &str) -> Lang {
        let mut best = (0, Lang::En);
        for range in header.split(',').take(RANGES_MAX) {
            let mut parts = range.split(';');
            let tag = parts.next().unwrap_or_default().trim();
            let primary = tag.split('-').next().unwrap_or_default();
            let lang = match primary {
                _ if primary.eq_ignore_ascii_case("zh") => Lang::Zh,
                _ if primary.eq_ignore_ascii_case("en") || primary == "*" => Lang::En,
                _ => continue,
            };
            let liking = parts.next().map_or(1_000, thousandths);
            if liking > best.0 {
                best = (liking, lang);
            }
        }
        best.1
    }
}

/// `q=0.8` as 800. What cannot be read counts as nothing.
fn thousandths(parameter: &str) -> u32 {
    let value = parameter.trim().strip_prefix("q=").and_then(|q| q.trim().parse::<f32>().ok());
    value.filter(|q| (0.0..=1.0).contains(q)).map_or(0, |q| (q * 1_000.0) as u32)
}

impl<S: Sync> FromRequestParts<S> for Lang {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Lang::of(&parts.headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_liked_language_wins() {
        for (header, lang) in [
            ("", Lang::En),
            ("zh", Lang::Zh),
            ("zh-CN,zh;q=0.9,en;q=0.8", Lang::Zh),
            ("ZH-Hant-TW", Lang::Zh),
            ("en-US,en;q=0.9,zh;q=0.8", Lang::En),
            ("en;q=0.1, zh;q=0.2", Lang::Zh),
            ("de, fr;q=0.9", Lang::En),
            ("de, zh;q=0.1", Lang::Zh),
            ("zh;q=0", Lang::En),
            ("zh;q=x, en;q=0.1", Lang::En),
            ("*, zh;q=0.5", Lang::En),
            (";;;,,,=q", Lang::En),
            ("zhuang", Lang::En),
        ] {
            assert_eq!(Lang::preferred(header), lang, "{header:?}");
        }
    }
}
