//! A script, and one call of it.

use std::{fmt::Display, io::Write, sync::OnceLock};

use redis::Cmd;

use crate::slot;

/// A script and its hash.
pub struct Script {
    text: &'static str,
    sha: OnceLock<String>,
}

impl Script {
    pub const fn new(text: &'static str) -> Script {
        Script { text, sha: OnceLock::new() }
    }

    fn sha(&self) -> &str {
        self.sha.get_or_init(|| sha1_smol::Sha1::from(self.text).digest().to_string())
    }
}

/// One call of a script: all keys are of one slot.
pub struct Call<'s> {
    script: &'s Script,
    keys: Vec<String>,
    /// The arguments one behind the other, and where each ends: a batch has hundreds.
    args: Vec<u8>,
    ends: Vec<usize>,
}

impl<'s> Call<'s> {
    pub fn new(script: &'s Script, keys: impl IntoIterator<Item = String>) -> Call<'s> {
        let keys = keys.into_iter().collect();
        Call { script, keys, args: Vec::new(), ends: Vec::new() }
    }

    pub fn arg(mut self, arg: impl AsRef<[u8]>) -> Call<'s> {
        self.push(arg);
        self
    }

    /// A number, in decimal digits.
    pub fn number(mut self, number: impl Display) -> Call<'s> {
        self.push_number(number);
        self
    }

    pub fn push(&mut self, arg: impl AsRef<[u8]>) {
        self.args.extend_from_slice(arg.as_ref());
        self.ends.push(self.args.len());
    }

    pub fn push_number(&mut self, number: impl Display) {
        write!(self.args, "{number}").expect("a vector takes everything");
        self.ends.push(self.args.len());
    }

    pub(crate) fn slot(&self) -> u16 {
        self.keys.first().map_or(0, |key| slot::of_key(key.as_bytes()))
    }

    /// The call of a script that the server has seen before.
    pub(crate) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", self.script.sha())
    }

    pub(crate) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let words = 3 + self.keys.len() + self.ends.len();
        let keys_bytes: usize = self.keys.iter().map(String::len).sum();
        let bytes = name.len() + script.len() + 8 + keys_bytes + self.args.len();
        let mut command = Cmd::with_capacity(words, bytes);
        command.arg(name).arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }
        let mut from = 0;
        for end in &self.ends {
            command.arg(&self.args[from..*end]);
            from = *end;
        }
        command
    }
}
