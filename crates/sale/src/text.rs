//! Which characters may stand in a text that people read and compare: names and ids.
//!
//! Some characters show nothing and some turn the order of others around. With them two ids that
//! look alike are two buyers, and a name in the audit says another than it shows. In ids there are
//! none of them. Names of products are other people's languages: the joiners of Persian and of emoji
//! and the selectors that make a sign colourful are allowed where they do something, that is
//! directly after a character that shows.

/// Joins or keeps apart the letters around it, as Persian, the languages of India and emoji need it.
const JOINERS: [char; 2] = ['\u{200C}', '\u{200D}'];

/// Choose how the character before them is drawn.
fn is_selector(c: char) -> bool {
    matches!(c, '\u{FE00}'..='\u{FE0F}')
}

/// Shows nothing by itself, or changes the direction of what follows: Unicode's *default ignorable*
/// characters, and the few signs for annotations.
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{00AD}' | '\u{034F}' | '\u{061C}'
        | '\u{115F}'..='\u{1160}'
        | '\u{17B4}'..='\u{17B5}'
        | '\u{180B}'..='\u{180F}'
        | '\u{200B}'..='\u{200F}'
        | '\u{202A}'..='\u{202E}'
        | '\u{2060}'..='\u{206F}'
        | '\u{3164}'
        | '\u{FE00}'..='\u{FE0F}'
        | '\u{FEFF}' | '\u{FFA0}'
        | '\u{FFF0}'..='\u{FFFB}'
        | '\u{1BCA0}'..='\u{1BCA3}'
        | '\u{1D173}'..='\u{1D17A}'
        | '\u{E0000}'..='\u{E0FFF}')
}

/// Shows as itself and takes part in no tricks: what ids are made of.
fn is_plain(c: char) -> bool {
    c.is_ascii_graphic()
        || (!c.is_ascii() && !c.is_control() && !c.is_whitespace() && !is_hidden(c))
}

/// Is this an id of 1 to `chars_max` characters, all of which show? Counting stops past the maximum,
/// so that a hostile megabyte costs no more than that many steps.
pub fn is_plain_id(id: &str, chars_max: usize) -> bool {
    let chars = id.chars().take(chars_max + 1).count();
    (1..=chars_max).contains(&chars) && id.chars().all(is_plain)
}

/// Is this a name that reads as it is written? It may have spaces, but no line breaks or other
/// controls, nothing that turns the direction, and joiners and selectors only after what they act on.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut before = ' ';
    let good = name.chars().all(|c| {
        let acts_on = std::mem::replace(&mut before, c);
        if JOINERS.contains(&c) || is_selector(c) {
            let shows = is_plain(acts_on) || is_selector(acts_on);
            return shows;
        }
        is_plain(c) || (c.is_whitespace() && !c.is_control() && !is_line_break(c))
    });
    // A joiner joins two things; at the end it only makes two names out of one.
    good && !JOINERS.contains(&before)
}

/// Is this a text of several lines that reads as it is written? Each line is as a name may be, and they
/// are ended by line feeds.
pub(crate) fn is_plain_text(text: &str) -> bool {
    let blanks = |c: char| if matches!(c, '\n' | '\t') { ' ' } else { c };
    is_plain_name(&text.chars().map(blanks).collect::<String>())
}

fn is_line_break(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}')
}

/// Is this where a page may fetch a picture from: nowhere (empty), a path of the same shop, or
/// another server by https? Other schemes are mixed content at best; `//` and backslashes lead to
/// another server than they seem to.
pub(crate) fn is_image_address(address: &str) -> bool {
    if address.is_empty() {
        return true;
    }
    if address.contains('\\') || !address.chars().all(is_plain) {
        return false;
    }
    match address.strip_prefix("https://") {
        Some(rest) => !rest.is_empty() && !rest.starts_with(['/', '?', '#', ':', '@']),
        None => address.starts_with('/') && !address.starts_with("//"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ones with which texts have been forged.
    const HIDDEN: &str = "\u{AD}\u{61C}\u{200B}\u{200C}\u{200D}\u{200E}\u{200F}\u{202A}\u{202B}\
        \u{202C}\u{202D}\u{202E}\u{2060}\u{2064}\u{2066}\u{2067}\u{2068}\u{2069}\u{FEFF}\u{3164}\
        \u{FE0F}\u{E0041}";

    #[test]
    fn an_id_has_only_characters_that_show() {
        for good in ["u1002", "用户1002", "josé", "a@b.c", "😀", "القميص"] {
            assert!(is_plain_id(good, 64), "{good}");
        }
        for bad in ["", " ", "a b", "a\u{3000}b", "a\n", "\u{7f}", "\u{85}", "\u{2028}"] {
            assert!(!is_plain_id(bad, 64), "{bad:?}");
        }
        for hidden in HIDDEN.chars() {
            assert!(!is_plain_id(&format!("ad{hidden}min"), 64), "{hidden:?}");
        }
        assert!(is_plain_id(&"长".repeat(64), 64) && !is_plain_id(&"长".repeat(65), 64));
    }

    #[test]
    fn a_name_may_join_and_colour_its_signs_but_not_hide_or_turn_any() {
        let family = "👨\u{200D}👩\u{200D}👧";
        for good in ["iPhone 15 Pro", "双十一 秒杀", family, "❤\u{FE0F} sale", "می\u{200C}خواهم"]
        {
            assert!(is_plain_name(good), "{good:?}");
        }
        for bad in [
            "\u{200D}x",
            "x\u{200D}",
            "x\u{200D}\u{200D}y",
            "x \u{200C}y",
            "x\u{200B}y",
            "gpj.\u{202E}x",
            "\u{2066}x\u{2069}",
            "x\u{FEFF}",
            "x\u{AD}y",
            "a\nb",
            "a\u{2028}b",
            "a\tb",
            "x\u{E0041}",
            "\u{FE0F}x",
        ] {
            assert!(!is_plain_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_text_is_lines_of_names() {
        for good in ["", "\n", "one\ntwo", "\ttab", "家 👨\u{200D}👩\n❤\u{FE0F}"] {
            assert!(is_plain_text(good), "{good:?}");
        }
        for bad in ["a\rb", "\u{0}", "a\u{2028}b", "\u{202E}x", "x\u{200D}"] {
            assert!(!is_plain_text(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_picture_is_fetched_by_https_or_from_the_shop_itself() {
        for good in
            ["", "/img/1.png", "/", "https://cdn.shop/a.webp?v=2#x", "https://图片.shop/一.png"]
        {
            assert!(is_image_address(good), "{good:?}");
        }
        for bad in [
            "http://cdn.shop/a.png",
            "//cdn.shop/a.png",
            "/\\cdn.shop/a",
            "https:/a",
            "https://",
            "https:///a",
            "https://@x",
            "HTTPS://x",
            "data:image/png;base64,AA",
            "javascript:alert(1)",
            "img/1.png",
            "https://cdn.shop/a b",
            "https://cdn.shop/\u{202E}gnp.a",
            "/a\nb",
            "/a\u{0}",
            " /a",
            "ftp://x/y",
        ] {
            assert!(!is_image_address(bad), "{bad:?}");
        }
    }
}
