//! What an operator can set: one commented default file, one struct per concern.
//!
//! `default.toml` is the only list of keys. The names in the environment, the types a file is
//! checked against and what `seckill config` prints are all derived from it, so none of them can
//! forget a key. What a value must satisfy is in `rules.rs`; where values come from, and how every
//! mistake is reported at once and by name, in `load.rs`.

mod listen;
mod load;
mod rules;
mod shapes;

use std::{net::SocketAddr, path::PathBuf};

use auth::AuthSettings;
use engine::settings::{
    Alerts, AlipaySettings, DoorSettings, External, Gate, Jobs, LedgerStore, LookBack,
    ProviderSettings, Push, Redis, SandboxSettings, Settings, Webhooks, WechatSettings,
};
use limits::LimitSettings;
use listener::HttpSettings;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};

pub use engine::{ProcessRole, Profile, Secret};
pub use load::{ConfigErrors, FILE_NAME, Flags};
pub use rules::HMAC_ALGORITHMS;
pub use sale::Switch;

/// A buyer in the longest draw, of several instances, waits so long for an answer.
const DRAWN_ANSWER_MS: u64 = sale::SHUFFLE_MS_MAX as u64 + 3_000;

/// Every key with its default and a sentence about it.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub profile: Profile,
    pub roles: Vec<ProcessRole>,
    pub listen: SocketAddr,
    pub data: PathBuf,
    pub secret: Secret,
    pub demo: Switch,
    pub claim_log: orders::ClaimLogKind,
    pub http: HttpSettings,
    pub limits: LimitSettings,
    pub auth: AuthSettings,
    pub redis: Redis,
    pub ledger: LedgerStore,
    pub lane: gate::LaneOptions,
    pub gate: Gate,
    pub look_back: LookBack,
    pub relay: orders::RelayOptions,
    pub kafka: orders::KafkaOptions,
    pub rocketmq: orders::RocketmqOptions,
    pub orders: orders::Options,
    pub jobs: Jobs,
    pub payment: Payment,
    pub alerts: Alerts,
    pub push: Push,
    pub webhooks: Webhooks,
    pub door: DoorSettings,
    pub log: Log,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payment {
    pub sandbox: Switch,
    pub sandbox_file: PathBuf,
    pub sandbox_merchant: String,
    pub public_url: String,
    pub wechat: WechatSettings,
    pub external: External,
    pub alipay: AlipaySettings,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    pub level: String,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

/// How the names of its client's modules begin.
const ROCKETMQ: &str = "rocketmq";

impl Log {
    /// A level, or one for some modules as well, such as `info,gate=debug`.
    pub fn filter(&self) -> Result<Targets, String> {
        // A bare word that is no level would be taken for the name of a module, and log nothing.
        let level = self.level.replace(' ', "");
        let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
        if let Some(word) = level.split(',').find(|word| !word.contains('=') && !is_level(word)) {
            return Err(format!("{word:?} is none of error, warn, info, debug, trace, off"));
        }
        let filter: Targets = level.parse().map_err(|cause: ParseError| cause.to_string())?;
        // RocketMQ's client tells of each start and each question that failed, at all levels. What somebody
        // should know of it we say ourselves.
        if level.contains(ROCKETMQ) {
            return Ok(filter);
        }
        Ok(filter.with_target(ROCKETMQ, LevelFilter::OFF))
    }
}

impl Config {
    /// Default ← file ← environment ← flags, checked whole.
    pub fn load(flags: &Flags) -> Result<Config, ConfigErrors> {
        load::load(flags)
    }

    /// What of this concerns the engine.
    pub fn engine(&self) -> Settings {
        let sandbox = SandboxSettings {
            file: self.payment.sandbox_file.clone(),
            merchant: self.payment.sandbox_merchant.clone(),
        };
        Settings {
            profile: self.profile,
            roles: self.roles.clone(),
            claim_log: self.claim_log,
            redis: self.redis.clone(),
            ledger: self.ledger.clone(),
            lane: self.lane,
            gate: self.gate.clone(),
            look_back: self.look_back,
            relay: self.relay.clone(),
            kafka: self.kafka.clone(),
            rocketmq: self.rocketmq.clone(),
            orders: self.orders.clone(),
            jobs: self.jobs.clone(),
            sandbox: self.sandbox_is_on().then_some(sandbox),
            providers: ProviderSettings {
                public_url: self.payment.public_url.clone(),
                wechat: self.payment.wechat.clone(),
                alipay: self.payment.alipay.clone(),
            },
            external: self.payment.external.clone(),
            alerts: self.alerts.clone(),
            push: self.push.clone(),
            webhooks: self.webhooks.clone(),
            door: self.door.clone(),
        }
    }

    /// What a start with nothing set would use; for tests and tools.
    pub fn defaults() -> Config {
        load::merge(None, std::iter::empty(), &Flags::default())
            .expect("the embedded default file passes its own rules (a test holds it to that)")
    }

    /// Why this is not the bare default run, in which all that belongs to the demo is on by itself:
    /// one process, nobody's key, and nobody from outside can come.
    pub fn why_not_bare(&self) -> Option<String> {
        if self.profile == Profile::Cluster {
            return Some("the profile is \"cluster\"".into());
        }
        if let Some(key) = self.auth.shop_keys().next() {
            return Some(format!("the shop has a key of its own, {key}"));
        }
        if !self.listen.ip().is_loopback() {
            return Some(format!("{} can be reached from outside", self.listen));
        }
        // A proxy before us is there to let the outside in.
        (self.http.proxy_hops > 0).then(|| "http.proxy_hops says that a proxy is in front".into())
    }

    /// Does a new data directory start with a demo sale?
    pub fn demo_is_on(&self) -> bool {
        self.demo.is_on(self.why_not_bare().is_none())
    }

    /// Can anybody sign in as anybody?
    pub fn dev_login_is_on(&self) -> bool {
        self.auth.dev_login.is_on(self.why_not_bare().is_none())
    }

    /// Can orders be paid without money?
    pub fn sandbox_is_on(&self) -> bool {
        self.payment.sandbox.is_on(self.why_not_bare().is_none())
    }

    /// Is there somebody who takes real money?
    pub fn has_provider(&self) -> bool {
        self.has_company() || !self.payment.external.secrets.is_empty()
    }

    /// Is there a company that must be told where it reaches us?
    pub fn has_company(&self) -> bool {
        self.payment.wechat.is_on() || self.payment.alipay.is_on()
    }

    /// The settings in force, as a commented TOML file with the secrets redacted.
    ///
    /// It is the default file with the changed values put in, so that what an operator reads here
    /// carries the same explanations, and (the secrets aside) can be used as a file. So a switch that
    /// decides for itself stays one, with a comment on what it decided: written out as `true` it
    /// would be asked for by name wherever the file is used next.
    pub fn print(&self) -> String {
        let in_force = toml::Table::try_from(self).unwrap_or_default();
        let default: toml::Table = DEFAULT_TOML.parse().unwrap_or_default();
        let mut section = None;
        let mut text = String::new();
        for line in DEFAULT_TOML.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = Some(name);
            }
            let key = line.split_once(" = ").map(|(key, _)| key).filter(|key| !key.contains('#'));
            let now = key.and_then(|key| Some((key, lookup(&in_force, section, key)?)));
            match now {
                Some((key, now)) if lookup(&default, section, key) != Some(now) => {
                    text.push_str(&format!("{key} = {now}"));
                }
                Some((_, now)) if now.as_str() == Some(Switch::AUTO) => {
                    text.push_str(line);
                    text.push_str(&self.decided());
                }
                _ => text.push_str(line),
            }
            text.push('\n');
        }
        text
    }

    /// What a switch that decides for itself has decided, as a comment.
    fn decided(&self) -> String {
        self.why_not_bare().map_or_else(
            || "  # now on: this is the bare default run".into(),
            |why| format!("  # now off: {why}"),
        )
    }

    /// What was switched on by name and belongs to a demo, one sentence each. Every start and
    /// `seckill doctor` say so in red.
    pub fn dangers(&self) -> Vec<String> {
        let switches = [
            (
                self.payment.sandbox,
                "payment.sandbox is switched on: every order can be paid without money",
            ),
            (self.auth.dev_login, "auth.dev_login is switched on: anybody can buy as anybody"),
            (self.demo, "demo is switched on: a new data directory puts a demo sale on the page"),
        ];
        let named = switches.into_iter().filter(|(switch, _)| *switch == Switch::On);
        named.map(|(_, sentence)| sentence.to_owned()).collect()
    }

    /// What a sale needs and is not there, one sentence each, with what to set.
    pub fn missing(&self) -> Vec<String> {
        let solo = self.profile == Profile::Solo;
        if !solo && !self.roles.contains(&ProcessRole::Web) {
            return Vec::new();
        }
        let why = self.why_not_bare().unwrap_or_else(|| "it is switched off by name".into());
        let mut missing = Vec::new();
        if !self.auth.has_shop_key() && !self.dev_login_is_on() {
            let demo = if solo { "; for a demo, SECKILL_AUTH_DEV_LOGIN=true" } else { "" };
            missing.push(format!(
                "nobody can buy: no key of the shop is set, and the demo login is off ({why}). Set \
                 SECKILL_JWT_SECRET, auth.jwt_public_key_file or auth.jwt_jwks_file{demo}"
            ));
        }
        if !self.sandbox_is_on() && !self.has_provider() {
            missing.push(format!(
                "no order can be paid: there is no payment provider, and the sandbox is off ({why}). \
                 Orders will time out. Set the keys of [payment.wechat] or [payment.alipay], or \
                 payment.external.secrets for a cashier of the shop's own; for a rehearsal, \
                 SECKILL_PAYMENT_SANDBOX=true"
            ));
        }
        missing
    }

    /// Pairs of settings that are allowed but rarely meant, one sentence each, to log at start.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.sandbox_is_on()
            && self.profile == Profile::Cluster
            && self.payment.sandbox_file.as_os_str().is_empty()
        {
            warnings.push(
                "payment.sandbox_file is not set: each instance has a bank of its own, and knows \
                 nothing of payments opened at another"
                    .into(),
            );
        }
        if self.payment.external.secrets.is_empty() && !self.payment.external.url.is_empty() {
            warnings.push(
                "payment.external.url is not used: without payment.external.secrets nobody can tell \
                 us that an order was paid there"
                    .into(),
            );
        }
        if self.http.request_timeout_ms < DRAWN_ANSWER_MS {
            let (given, needed) = (self.http.request_timeout_ms, DRAWN_ANSWER_MS);
            warnings.push(format!(
                "http.request_timeout_ms = {given} is short for sales with a fair start: the longest draw \
                 answers after {needed} ms"
            ));
        }
        if self.profile == Profile::Solo
            && !(self.redis.url.is_empty() && self.ledger.url.is_empty())
        {
            warnings.push("redis.url and ledger.url are not used in the solo profile".into());
        }
        warnings
    }
}

fn lookup<'a>(table: &'a toml::Table, section: Option<&str>, key: &str) -> Option<&'a toml::Value> {
    let mut sections = section.iter().flat_map(|section| section.split('.'));
    let found = sections.try_fold(table, |table, name| table.get(name)?.as_table());
    found?.get(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(file: &str) -> Config {
        load::merge(Some(("seckill.toml", file)), std::iter::empty(), &Flags::default()).unwrap()
    }

    #[test]
    fn levels_and_filters_are_told_from_typing_errors() {
        let filter_of = |level: &str| Log { level: level.into(), format: LogFormat::Text }.filter();
        for good in ["info", "WARN", "off", "info,gate=debug", "info, listener=trace"] {
            assert!(filter_of(good).is_ok(), "{good}");
        }
        for bad in ["inof", "", "info,", "gate=loud", "gate"] {
            assert!(filter_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_defaults_print_as_the_default_file() {
        let printed = Config::defaults().print();
        let on = "  # now on: this is the bare default run";
        assert_eq!(printed.matches(on).count(), 3, "{printed}");
        assert_eq!(printed.replace(on, ""), DEFAULT_TOML);
    }

    #[test]
    fn the_default_file_says_what_the_engine_defaults_to() {
        let of_the_file = with("[payment]\nsandbox = false").engine();
        assert_eq!(of_the_file, Settings::default());
    }

    #[test]
    fn a_switch_says_what_it_decided_and_stays_one() {
        let shop = with("[auth]\njwt_secret = 'a long enough secret'");
        let printed = shop.print();
        let off =
            "\nsandbox = \"auto\"  # now off: the shop has a key of its own, auth.jwt_secret\n";
        assert!(printed.contains(off), "{printed}");
        let named = with("[payment]\nsandbox = true").print();
        assert!(named.contains("\nsandbox = true\n"), "{named}");
        // Printed in a bare run and used by a shop: still off.
        let used = Config::defaults()
            .print()
            .replace("jwt_secret = \"\"", "jwt_secret = 'sixteen chars, ok'");
        assert!(!with(&used).sandbox_is_on());
    }

    #[test]
    fn every_key_of_the_default_file_is_explained() {
        let mut explained = false;
        for line in DEFAULT_TOML.lines() {
            if line.contains(" = ") && !line.starts_with('#') {
                assert!(explained, "no sentence above {line:?}");
            }
            explained = line.starts_with("# ") && line.ends_with('.');
        }
    }

    #[test]
    fn what_is_printed_can_be_read_back() {
        let config = with("demo = false\n[lane]\nqueue_max = 7\n[orders]\nretry_ladder_ms = [5]\n");
        let printed = config.print();
        assert!(printed.contains("\nqueue_max = 7\n"), "{printed}");
        assert!(printed.contains("\nretry_ladder_ms = [5]\n"), "{printed}");
        assert_eq!(with(&printed), config);
    }

    #[test]
    fn secrets_are_not_printed() {
        let config =
            with("secret = 'a long enough secret'\n[auth]\nadmin_token = 'sk_admin_1234567890'\n");
        let printed = config.print();
        assert!(printed.contains("\nsecret = \"***\"\n"), "{printed}");
        assert!(printed.contains("\nadmin_token = \"***\"\n"), "{printed}");
        assert!(!format!("{printed}{config:?}").contains("1234567890"));
    }

    const CLUSTER: &str =
        "profile = 'cluster'\n[redis]\nurl = 'redis://r'\n[ledger]\nurl = 'mysql://d/s'\n";

    #[test]
    fn what_is_switched_on_by_name_is_said_each_time() {
        assert_eq!(Config::defaults().dangers(), Vec::<String>::new(), "a bare run is a demo");
        let all = with("demo = true\n[auth]\ndev_login = true\n[payment]\nsandbox = true");
        assert_eq!(all.dangers().len(), 3);
        let cluster = with(&format!("{CLUSTER}[payment]\nsandbox = true")).dangers().join("\n");
        assert!(cluster.contains("paid without money"), "{cluster}");
    }

    #[test]
    fn a_shop_that_can_sell_nothing_is_told_what_to_set() {
        assert_eq!(Config::defaults().missing(), Vec::<String>::new());
        let public = with("listen = '0.0.0.0:80'").missing().join("\n");
        for part in ["nobody can buy", "SECKILL_JWT_SECRET", "no order can be paid", "0.0.0.0:80"] {
            assert!(public.contains(part), "{public}");
        }
        let shop = with("[auth]\njwt_secret = 'a long enough secret'").missing();
        assert!(shop.len() == 1 && shop[0].contains("no order can be paid"), "{shop:?}");
        let cluster = with(CLUSTER).missing().join("\n");
        assert!(cluster.contains("nobody can buy") && !cluster.contains("DEV_LOGIN"), "{cluster}");
        let worker = with(&format!("roles = ['worker']\n{CLUSTER}"));
        assert_eq!(worker.missing(), Vec::<String>::new(), "buyers do not come here");
    }

    #[test]
    fn a_broker_needs_servers_and_batches_that_are_one_message() {
        let refused = |file: &str| {
            let merged =
                load::merge(Some(("seckill.toml", file)), std::iter::empty(), &Flags::default());
            merged.err().map(|errors| errors.to_string())
        };
        let named = refused("claim_log = 'kafka'").unwrap();
        assert!(named.contains("kafka.servers is empty"), "{named}");
        let kafka = "claim_log = 'kafka'\n[kafka]\nservers = ['k:9092']\n";
        assert_eq!(refused(kafka), None);
        let large = refused(&format!("{kafka}[lane]\nbatch_max = 5000")).unwrap();
        assert!(large.contains("at most 2000"), "{large}");
        assert_eq!(refused("[lane]\nbatch_max = 5000"), None);
        let other = refused("claim_log = 'rocketmq'").unwrap();
        assert!(other.contains("rocketmq.name_servers is empty"), "{other}");
        let password = "properties = ['sasl.password=hunter2', 'no name']\n";
        let bad = refused(&format!("{kafka}{password}")).unwrap();
        assert!(bad.contains("name=value") && !bad.contains("hunter2"), "{bad}");
        let good = with(&format!("{kafka}properties = ['sasl.password=hunter2']\n"));
        assert!(!format!("{}{good:?}", good.print()).contains("hunter2"));
    }

    #[test]
    fn banks_that_know_nothing_of_each_other_are_warned_of() {
        let apart = |more: &str| {
            let warnings = with(&format!("{CLUSTER}{more}")).warnings().join("\n");
            warnings.contains("a bank of its own")
        };
        assert!(apart("[payment]\nsandbox = true"));
        assert!(!apart("[payment]\nsandbox = true\nsandbox_file = '/shared/bank.db'"));
        assert!(!apart(""));
    }
}
