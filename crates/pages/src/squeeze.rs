//! The same script with fewer letters.
//!
//! Blanks and comments go, and names that nobody outside can see are made short: `#private`, `LIKE_THIS`,
//! and what is declared here and stands nowhere where it might be the name of a property. It relies on how
//! these files are written: statements end with a semicolon, and no two modules use one name for two things.
//! A browser runs what comes out, in the tests.

use std::{
    collections::{HashMap, HashSet},
    iter::Peekable,
    str::Chars,
};

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '#')
}

/// The same with fewer letters. What stands in quotes or in a regular expression is left alone.
pub(crate) fn squeezed(code: &str) -> String {
    let mut names = Names::default();
    // Without blanks, what is before and behind a word says what it is.
    let dense = names.pass(code);
    names.looking = true;
    names.pass(&dense);
    names.looking = false;
    names.renaming = true;
    names.pass(&dense)
}

type Code<'c> = Peekable<Chars<'c>>;

/// Names that only this script knows.
#[derive(Default)]
struct Names {
    looking: bool,
    renaming: bool,
    declared: HashSet<String>,
    /// Seen where it is, or might be, the name of a property.
    of_properties: HashSet<String>,
    /// In the order in which they come.
    short: HashMap<String, String>,
    /// The brackets around the place that is looked at; `f` is that of a function's parameters, and `$` that
    /// of what is filled into a text.
    open: Vec<char>,
    /// How many brackets are around each `const` whose statement is not over.
    consts: Vec<usize>,
}

impl Names {
    fn pass(&mut self, code: &str) -> String {
        let mut out = String::with_capacity(code.len());
        self.squeeze(&mut code.chars().peekable(), &mut out, false);
        out
    }

    /// To the end, or to the brace that ends what is filled into a text.
    fn squeeze(&mut self, rest: &mut Code<'_>, out: &mut String, filled_in: bool) {
        let outside = self.open.len();
        while let Some(c) = rest.next() {
            let before = out.chars().next_back().unwrap_or(';');
            match c {
                '"' | '\'' | '`' => self.quoted(c, rest, out),
                '/' if rest.peek() == Some(&'*') => skip_comment(rest),
                '/' if rest.peek() == Some(&'/') => while rest.next_if(|c| *c != '\n').is_some() {},
                '/' if begins_expression(out) => expression(rest, out),
                ' ' => {
                    let after = rest.peek().copied().unwrap_or(';');
                    let signs = |c: char| matches!(c, '+' | '-' | '/');
                    if (in_word(before) && in_word(after)) || (signs(before) && signs(after)) {
                        out.push(' ');
                    }
                }
                '\n' if matches!(before, '{' | '}' | ',' | ';' | '(' | '[') => {}
                '}' if filled_in && self.open.len() == outside => return out.push('}'),
                '}' => {
                    self.close();
                    // Behind the last one of a list or a block nothing need be said.
                    if matches!(before, ',' | ';') {
                        out.pop();
                    }
                    out.push('}');
                }
                c if in_word(c) => {
                    let mut word = String::from(c);
                    word.extend(std::iter::from_fn(|| rest.next_if(|c| in_word(*c))));
                    if self.looking {
                        self.look_at(&word, out, rest);
                    }
                    if word == "const" {
                        self.consts.push(self.open.len());
                    }
                    out.push_str(&self.shortened(word));
                }
                '(' if self.renaming && !in_word(before) && lone_parameter(rest).is_some() => {
                    let word = lone_parameter(rest).unwrap_or_default();
                    // With the bracket behind it.
                    rest.nth(word.chars().count());
                    out.push_str(&self.shortened(word));
                }
                c => {
                    match c {
                        '(' if is_function(out) => self.open.push('f'),
                        '(' | '[' | '{' => self.open.push(c),
                        ')' | ']' => self.close(),
                        ';' if self.consts.last() == Some(&self.open.len()) => {
                            // A const behind a const is one more of the same statement.
                            if self.renaming && goes_on(rest, "const") {
                                rest.nth("const".len() - 1);
                                rest.next_if_eq(&' ');
                                out.push(',');
                                continue;
                            }
                            self.consts.pop();
                        }
                        _ => {}
                    }
                    out.push(c);
                }
            }
        }
    }

    /// A bracket is closed, and with it whatever stood in it.
    fn close(&mut self) {
        self.open.pop();
        self.consts.retain(|around| *around <= self.open.len());
    }

    fn quoted(&mut self, quote: char, rest: &mut Code<'_>, out: &mut String) {
        out.push(quote);
        while let Some(c) = rest.next() {
            out.push(c);
            match c {
                '\\' => out.extend(rest.next()),
                '$' if quote == '`' && rest.next_if_eq(&'{').is_some() => {
                    out.push('{');
                    self.open.push('$');
                    self.squeeze(rest, out, true);
                    self.close();
                }
                c if c == quote => return,
                _ => {}
            }
        }
    }

    fn look_at(&mut self, word: &str, before: &str, rest: &Code<'_>) {
        let (inside, after) = (self.open.last(), rest.clone().next());
        let declares = ["const ", "let ", "function ", "class ", "catch("];
        let parameter = inside == Some(&'f') && before.ends_with(['(', ',']);
        let lone = before.ends_with('(') && goes_on(rest, ")=>");
        if parameter || lone || declares.iter().any(|kind| before.ends_with(kind)) {
            self.declared.insert(word.to_owned());
        }
        let in_list = inside == Some(&'{') && before.ends_with(['{', ',']);
        let listed = in_list && matches!(after, Some(',' | '}' | '='));
        if before.ends_with('.') || after == Some(':') || listed {
            self.of_properties.insert(word.to_owned());
        }
    }

    fn shortened(&mut self, word: String) -> String {
        let private = word.starts_with('#');
        let capitals = word.contains('_')
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        let ours =
            word.len() > 2 && self.declared.contains(&word) && !self.of_properties.contains(&word);
        if !self.renaming || !(private || capitals || ours) {
            return match word.as_str() {
                "true" => "!0".into(),
                "false" => "!1".into(),
                // Nothing assigns to it, so two letters fewer mean the same.
                "const" if self.renaming => "let".into(),
                "undefined" => "void 0".into(),
                "Infinity" => "1/0".into(),
                // 10_000
                number if number.starts_with(|c: char| c.is_ascii_digit()) => word.replace('_', ""),
                _ => word,
            };
        }
        let mark = if private { '#' } else { '$' };
        let next = self.short.values().filter(|short| short.starts_with(mark)).count();
        let short = self.short.entry(word).or_insert_with(|| {
            let letter = |n: usize| match (n % 52) as u8 {
                small @ ..26 => char::from(b'a' + small),
                large => char::from(b'A' + large - 26),
            };
            match next / 52 {
                0 => format!("{mark}{}", letter(next)),
                rounds => format!("{mark}{}{}", letter(rounds - 1), letter(next)),
            }
        });
        short.clone()
    }
}

fn goes_on(rest: &Code<'_>, with: &str) -> bool {
    rest.clone().take(with.len()).eq(with.chars())
}

/// The parameter of a function such as `(x)=>…`, behind its first bracket.
fn lone_parameter(rest: &Code<'_>) -> Option<String> {
    let word: String = rest.clone().take_while(|c| in_word(*c)).collect();
    let mut behind = rest.clone();
    for _ in word.chars() {
        behind.next();
    }
    (!word.is_empty() && goes_on(&behind, ")=>")).then_some(word)
}

/// Does it end with `function name`?
fn is_function(before: &str) -> bool {
    before.trim_end_matches(in_word).ends_with("function ")
}

/// Does a value stand here, so that a slash begins a regular expression and divides nothing?
fn begins_expression(before: &str) -> bool {
    let before = before.trim_end();
    let word = before.rsplit(|c| !in_word(c)).next().unwrap_or_default();
    let ends_value =
        before.ends_with(|c| in_word(c) || matches!(c, ')' | ']' | '}' | '"' | '\'' | '`'));
    !ends_value || matches!(word, "return" | "typeof" | "case")
}

/// A regular expression, behind its first slash.
fn expression(rest: &mut Code<'_>, out: &mut String) {
    out.push('/');
    let mut in_class = false;
    while let Some(c) = rest.next() {
        out.push(c);
        match c {
            '\\' => out.extend(rest.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '/' if !in_class => {
                return out.extend(std::iter::from_fn(|| rest.next_if(char::is_ascii_lowercase)));
            }
            _ => {}
        }
    }
}

fn skip_comment(rest: &mut Code<'_>) {
    let mut before = ' ';
    for c in rest.by_ref() {
        if before == '*' && c == '/' {
            return;
        }
        before = c;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the joiner hands them over.
    fn lines(code: &str) -> String {
        code.lines().map(str::trim).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn regular_expressions_and_remarks_end_where_they_should() {
        let code = "const a = b.search(/\\r\\n|[/\"]| x/g) / 2; // it's\n\
            return /^ '/.test(c);\nf(1 / 2 / 3);";
        let dense = "let a=b.search(/\\r\\n|[/\"]| x/g)/2;return/^ '/.test(c);f(1/2/3);";
        assert_eq!(squeezed(code), dense);
    }

    #[test]
    fn what_is_in_quotes_stays_as_it_is() {
        let code = "const A_B = [1, 2];\nclass X {\n  #long = `a  ${ this.#long + f({ a: \"}\" }) } #long`;\n\
                    get() { return this.#long; }\n}\nx = \"a , b\" + +1 / 2_000;\n\
                    try { y(); } catch { /* it may; */ }\nif (true) y();";
        assert_eq!(
            squeezed(&lines(code)),
            "let $a=[1,2];class X{#a=`a  ${this.#a+f({a:\"}\"})} #long`;get(){return this.#a}}\
             x=\"a , b\"+ +1/2000;try{y()}catch{}if(!0)y();"
        );
        // What may be seen from outside keeps its name.
        let code = "const inner = 1;\nconst shown = 2;\nconst left = `${inner} inner`;\n\
                    function outer(inner, { later = inner }) { return { shown, left: inner, later }; }\n\
                    const later = outer(inner, left).left;\ntry { then((value) => value.inner_too); }\n\
                    catch (failure) { throw failure; }\nrun(async (other) => document.title + other);";
        assert_eq!(
            squeezed(&lines(code)),
            "let $a=1,shown=2,left=`${$a} inner`;\
             function $b($a,{later=$a}){return{shown,left:$a,later}}let later=$b($a,left).left;\
             try{then($c=>$c.inner_too)}catch($d){throw $d}run(async($e)=>document.title+$e);"
        );
    }
}
