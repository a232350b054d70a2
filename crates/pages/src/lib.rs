//! The pages with their scripts, styles and pictures, and the button for pages of others, as browsers are
//! sent them. They are joined, squeezed, packed and named when this crate is built
//! ([`build.rs`](../build.rs)); what is left for here is to find them. It knows no HTTP.
//!
//! A page is any `.html` of the folder `web`. The module that it names is [joined](join) with all that this
//! imports into one script, its styles into one sheet; each thing is named after what is in it, so that it
//! can be kept for ever, and what a page names is what it was built with. What lies in `vendor` is served as
//! it came. What lies in `art` can also be asked for by its plain name, which does not change: shops' items
//! name it.

#[cfg(test)]
mod join;
#[cfg(test)]
mod page;
#[cfg(test)]
mod squeeze;

/// Something that is served.
#[derive(Debug)]
pub struct File {
    /// Its path in `web`: `shop/index.html`, `shop/shop.js`.
    pub path: &'static str,
    /// What it is called in addresses, with its own hash in it: `shop/shop.0123456789abcdef.js`.
    pub name: &'static str,
    /// Half of the hash of what is in it.
    pub hash: &'static str,
    /// Its media type.
    pub kind: &'static str,
    /// Empty where it is there in gzip alone, because it is large and whoever asks takes that: Swagger UI.
    /// Empty too where it is large and there in both packings, to be unpacked for the few who want it so.
    pub plain: &'static [u8],
    /// The same packed, where that makes it smaller.
    pub brotli: Option<&'static [u8]>,
    pub gzip: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// What was asked for by a name, and how long it will be what this name means.
#[derive(Debug)]
pub enum Found {
    /// By its hash: for ever.
    Named(&'static File),
    /// By its plain name.
    Plain(&'static File),
    /// By the hash of another build: pages and scripts of two builds meet while one replaces the other.
    OfAnotherBuild(&'static File),
}

/// A file by its path in `web`.
pub fn file(path: &str) -> Option<&'static File> {
    FILES.binary_search_by(|file| file.path.cmp(path)).ok().map(|place| &FILES[place])
}

/// Everything there is, by its path.
pub fn files() -> &'static [File] {
    FILES
}

/// What a page may name: scripts, styles and pictures, but no page.
pub fn asset(name: &str) -> Option<Found> {
    let (stem, end) = name.rsplit_once('.')?;
    let is_asset = |file: &&File| {
        end != "html" && file.path != DOCUMENT && !file.path.starts_with(SCRIPTS_OF_OTHERS)
    };
    if let Some(plain) = file(name).filter(is_asset) {
        return plain.path.starts_with(ART).then_some(Found::Plain(plain));
    }
    let (stem, hash) = stem.rsplit_once('.')?;
    let found = file(&format!("{stem}.{end}")).filter(is_asset)?;
    let is_hash = hash.len() == HASH_CHARS && hash.bytes().all(|c| c.is_ascii_hexdigit());
    match hash == &found.hash[..HASH_CHARS] {
        true => Some(Found::Named(found)),
        false => is_hash.then_some(Found::OfAnotherBuild(found)),
    }
}

/// So much of the hash stands in a name.
const HASH_CHARS: usize = 16;
const ART: &str = "art/";
/// Other people's pages fetch these, from addresses that do not change.
const SCRIPTS_OF_OTHERS: &str = "embed/";

/// What the API promises, as it stands in the repository.
pub const DOCUMENT: &str = "openapi.json";
/// The button for pages of others.
pub const BUTTON: &str = "embed/button.js";
/// What the button fetches where a sale has a challenge.
pub const SOLVER: &str = "embed/solver.js";

#[cfg(test)]
mod tests {
    use super::*;

    /// More would be felt by whoever puts the button on a page.
    const BUTTON_BYTES_MAX: usize = 15 * 1_024;

    fn text(path: &str) -> &'static str {
        std::str::from_utf8(file(path).unwrap().plain).unwrap()
    }

    #[test]
    fn things_are_found_by_the_hash_of_what_is_in_them() {
        let script = file("shop/shop.js").unwrap();
        assert!(
            matches!(asset(script.name), Some(Found::Named(found)) if found.path == script.path)
        );
        let other = "shop/shop.0123456789abcdef.js";
        assert!(
            matches!(asset(other), Some(Found::OfAnotherBuild(found)) if found.path == script.path)
        );
        for nothing in [
            "shop/shop.js",
            "shop/shop.0123.js",
            "shop/words.js",
            "embed/button.js",
            "shop/index.html",
            "tests/claim.test.js",
            "package.json",
            "",
            ".",
        ] {
            assert!(asset(nothing).is_none(), "{nothing}");
        }
    }

    #[test]
    fn a_page_asks_for_one_script_and_one_sheet() {
        for page in files().iter().filter(|file| file.path.ends_with(".html")) {
            let html = text(page.path);
            assert!(!html.contains("<style") && !html.contains(" style="), "{}", page.path);
            assert!(!html.contains("<script>") && !html.contains(" onclick="), "{}", page.path);
            let named: Vec<&str> =
                html.split('"').filter_map(|part| part.strip_prefix("/assets/")).collect();
            for end in [".css", ".js"] {
                let ours = |name: &&&str| name.ends_with(end) && !name.starts_with("vendor/");
                assert!(named.iter().filter(ours).count() <= 1, "{}: {named:?}", page.path);
            }
            for name in named {
                assert!(matches!(asset(name), Some(Found::Named(_))), "{}: {name}", page.path);
            }
        }
    }

    #[test]
    fn the_button_is_small_and_whole() {
        let script = text(BUTTON);
        assert!(script.len() < BUTTON_BYTES_MAX, "{} bytes", script.len());
        for part in [
            "customElements.define(\"seckill-button\"",
            "立即抢购",
            "X-Sale-Token",
            "adoptedStyleSheets",
        ] {
            assert!(script.contains(part), "{part}");
        }
        for other in ["import ", "export ", "innerHTML", "/**", "eval("] {
            assert!(!script.contains(other), "{other}");
        }
    }

    #[test]
    fn what_solves_challenges_is_found_by_the_button() {
        let (script, solver) = (text(BUTTON), text(SOLVER));
        for text in [script, solver] {
            assert!(text.contains("seckillToken"), "{text}");
        }
        assert!(script.contains("/embed-challenge.js") && solver.contains("PBKDF2"), "{solver}");
        assert!(solver.len() < BUTTON_BYTES_MAX && !solver.contains("export "), "{solver}");
    }
}
