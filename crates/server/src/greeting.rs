//! What a person who started a server wants to know first: where it is, what it is for, what to type
//! next. To standard output; the log goes to standard error, and after it.

use std::{
    fmt::Write,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use sale::Millis;

use crate::terminal;
use config::{Config, ProcessRole, Profile};

/// How operators of this start get their token.
pub(crate) enum FirstToken {
    /// Made now, and shown on a terminal, this once.
    Shown(String),
    /// Made now, and written where only the owner of the data directory can read it.
    InFile(PathBuf),
    /// The operator gave one in the settings.
    Configured,
    /// Some were made before.
    Before,
}

pub(crate) struct Greeting<'a> {
    pub(crate) config: &'a Config,
    pub(crate) address: SocketAddr,
    /// Where operators and machines ask, if not there.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) data: &'a Path,
    pub(crate) token: FirstToken,
    /// When the demo sale opens at the latest, if it waits for somebody to look; and the time now.
    pub(crate) demo: Option<(Millis, Millis)>,
    /// What this program was called.
    pub(crate) program: String,
}

impl Greeting<'_> {
    pub(crate) fn print(&self) {
        print!("{}", self.text(terminal::somebody_looks()));
    }

    fn text(&self, somebody_looks: bool) -> String {
        let mut text = String::new();
        let mut line = |name: &str, what: &str| {
            writeln!(text, "  {name:10} {what}").expect("a string takes everything");
        };
        let pages =
            self.config.profile == Profile::Solo || self.config.roles.contains(&ProcessRole::Web);
        let links = if pages {
            [("shop", "/"), ("API docs", "/docs")]
        } else {
            [("health", "/healthz"), ("metrics", "/metrics")]
        };
        let (host, everywhere) = reached_at(self.address);
        let scheme = if self.config.http.has_tls() { "https" } else { "http" };
        for (name, path) in links {
            line(name, &format!("{scheme}://{host}{path}{everywhere}"));
        }
        let (host, everywhere) = reached_at(self.admin.unwrap_or(self.address));
        line("console", &format!("{scheme}://{host}/console{everywhere}"));
        line("data", &self.data.display().to_string());
        if let Some((latest_ms, now_ms)) = self.demo {
            let left_s = (latest_ms - now_ms + 999) / 1_000;
            let when = format!("opens 30 s after somebody looks, at the latest in {left_s} s");
            line("demo sale", &when);
        }
        line("operators", &self.operators());
        for danger in self.config.dangers() {
            line(&terminal::red("RISK", somebody_looks), &terminal::red(&danger, somebody_looks));
        }
        for missing in self.config.missing() {
            line("MISSING", &missing);
        }
        let what = self.what_it_is();
        let next = self.next_steps(pages);
        format!("Seckill {} {what}\n{text}{next}", env!("CARGO_PKG_VERSION"))
    }

    fn what_it_is(&self) -> String {
        let roles = &self.config.roles;
        if self.config.profile == Profile::Solo {
            return "is open".into();
        }
        let words: Vec<&str> = roles
            .iter()
            .map(|role| match role {
                ProcessRole::Web => "answers buyers and operators",
                ProcessRole::Worker => "turns claims into orders",
                ProcessRole::Jobs => "runs the jobs",
            })
            .collect();
        words.join(", ")
    }

    fn operators(&self) -> String {
        let another = format!("{} token create NAME --role admin", self.command());
        match &self.token {
            FirstToken::Shown(token) => {
                format!("{token}\n             (shown once; another one: {another})")
            }
            FirstToken::InFile(path) => {
                format!("the first admin token is in {}: read it, then delete it", path.display())
            }
            FirstToken::Configured => "the admin token of the settings (auth.admin_token)".into(),
            FirstToken::Before => format!("a new admin token: {another}"),
        }
    }

    fn next_steps(&self, pages: bool) -> String {
        if !pages {
            return String::new();
        }
        let command = self.command();
        let mut lines = vec![
            format!("{command} console"),
            format!("{command} sale list"),
            format!(
                "{command} sale create --name 'First sale' --opens 'in 10m' --lasts 1h \
                 --item 'Phone;price=6999.00;stock=100' --publish"
            ),
        ];
        if self.demo.is_some() {
            lines.push(format!("{} rehearse", self.program));
        }
        format!("try next\n  {}\n", lines.join("\n  "))
    }

    /// The program with the directory it must be pointed at, ready to be copied.
    fn command(&self) -> String {
        let default = Config::defaults().data;
        if self.config.data == default || std::env::var_os("SECKILL_DATA").is_some() {
            return self.program.clone();
        }
        format!("{} --data {}", self.program, quoted(&self.config.data.display().to_string()))
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// An address that a browser on this machine can open, and what else is true of it.
pub(crate) fn reached_at(address: SocketAddr) -> (SocketAddr, &'static str) {
    if !address.ip().is_unspecified() {
        return (address, "");
    }
    let here = match address {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    (SocketAddr::new(here, address.port()), "  (and at every other address of this machine)")
}

/// As it was typed, if it can be typed again.
pub(crate) fn program() -> String {
    std::env::args().next().map_or_else(|| "seckill".into(), |name| quoted(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Secret, Switch};

    const NOW_MS: Millis = 1_800_000_000_000;

    fn greeting(config: &Config) -> Greeting<'_> {
        Greeting {
            config,
            admin: None,
            address: config.listen,
            data: Path::new("/home/ann/data"),
            token: FirstToken::Before,
            demo: None,
            program: "seckill".into(),
        }
    }

    #[test]
    fn the_first_start_says_where_when_and_what_next() {
        let config = Config::defaults();
        let text = Greeting {
            demo: Some((NOW_MS + 60_000, NOW_MS)),
            token: FirstToken::Shown("sk_admin_x".into()),
            ..greeting(&config)
        }
        .text(true);
        for part in [
            "is open\n",
            "http://127.0.0.1:8080/\n",
            "http://127.0.0.1:8080/docs\n",
            "http://127.0.0.1:8080/console\n",
            "/home/ann/data\n",
            "opens 30 s after somebody looks, at the latest in 60 s\n",
            "sk_admin_x",
            "try next\n  seckill console\n  seckill sale list\n",
            "seckill rehearse",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!text.contains("RISK") && !text.contains("MISSING"), "{text}");
    }

    #[test]
    fn what_a_shop_must_know_stands_out() {
        let mut config = Config::defaults();
        config.listen = "0.0.0.0:80".parse().unwrap();
        config.data = "/srv/it's here".into();
        config.payment.sandbox = Switch::On;
        let text = greeting(&config).text(true);
        for part in [
            "http://127.0.0.1:80/  (and at every other address of this machine)",
            "\x1b[1;31mpayment.sandbox is switched on: every order can be paid without money\x1b[0m",
            "MISSING    nobody can buy",
            r"seckill --data '/srv/it'\''s here' token create NAME --role admin",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!greeting(&config).text(false).contains('\x1b'));
    }

    #[test]
    fn a_worker_names_only_what_it_serves() {
        let mut config = Config::defaults();
        config.profile = Profile::Cluster;
        config.roles = vec![ProcessRole::Worker];
        config.auth.jwt_secret = Secret::new("the shop's own secret");
        let text = greeting(&config).text(false);
        assert!(text.contains("turns claims into orders\n"), "{text}");
        assert!(text.contains("/healthz") && text.contains("/metrics"), "{text}");
        assert!(!text.contains("shop ") && !text.contains("/docs") && !text.contains("try next"));
    }
}
