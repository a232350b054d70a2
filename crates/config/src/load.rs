//! Where settings come from: default ← file ← environment ← flags.
//!
//! Every layer is reduced to pairs of a dotted key and a value, each checked against its rule as it
//! is laid over the ones before. Mistakes are collected, not thrown, so that an operator repairs a
//! file in one round; each names its key, and the nearest right one if there is no such key.

use std::{collections::BTreeMap, ffi::OsString, fmt, path::PathBuf};

use toml::{Table, Value};

use super::{
    Config, DEFAULT_TOML, listen,
    rules::{self, Rule},
};

/// The file that is read if it is there and no other is named.
pub const FILE_NAME: &str = "seckill.toml";
const FILE_BYTES_MAX: u64 = 1_048_576;

const PREFIX: &str = "SECKILL_";
/// Short names for what is set most often beside the keys of the top level.
const SHORT_NAMES: &[(&str, &str)] =
    &[("SECKILL_ADMIN_TOKEN", "auth.admin_token"), ("SECKILL_JWT_SECRET", "auth.jwt_secret")];
/// Variables with our prefix that are not settings.
const NOT_SETTINGS: &[&str] = &["SECKILL_CONFIG"];
/// A suggestion less alike than this (1 is equal) would only confuse.
const LIKENESS_MIN: f64 = 0.6;

/// The flags that override settings.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// Read settings from this file instead of ./seckill.toml
    #[arg(long, value_name = "PATH", global = true, env = "SECKILL_CONFIG")]
    pub config: Option<PathBuf>,
    /// Keep databases, the journal and secrets in this directory
    #[arg(long, value_name = "DIR", global = true)]
    pub data: Option<String>,
    /// Listen on this address and port; a port alone is on this machine only
    #[arg(long, value_name = "[ADDR:]PORT", global = true)]
    pub listen: Option<String>,
    /// Of `serve --role`
    #[arg(skip)]
    pub roles: Option<String>,
}

/// Everything that is wrong with the settings, one sentence each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return write!(f, "the settings cannot be used: {only}");
        }
        write!(f, "the settings cannot be used, for {} reasons:", self.0.len())?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for ConfigErrors {}

pub(super) fn load(flags: &Flags) -> Result<Config, ConfigErrors> {
    let file = read_file(flags).map_err(|problem| ConfigErrors(vec![problem]))?;
    let file = file.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
    merge(file, std::env::vars_os(), flags)
}

/// The name and text of the file to read, if there is one.
fn read_file(flags: &Flags) -> Result<Option<(String, String)>, String> {
    let path = match &flags.config {
        Some(path) => path.clone(),
        None if std::path::Path::new(FILE_NAME).exists() => PathBuf::from(FILE_NAME),
        None => return Ok(None),
    };
    let name = path.display().to_string();
    let unreadable = |cause: std::io::Error| format!("{name} cannot be read: {cause}");
    if std::fs::metadata(&path).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(format!("{name} is larger than {FILE_BYTES_MAX} bytes"));
    }
    let text = std::fs::read_to_string(&path).map_err(unreadable)?;
    Ok(Some((name, text)))
}

pub(super) fn merge(
    file: Option<(&str, &str)>,
    environment: impl Iterator<Item = (OsString, OsString)>,
    flags: &Flags,
) -> Result<Config, ConfigErrors> {
    let mut layers = Layers::new();
    if let Some((name, text)) = file {
        layers.lay_file(name, text);
    }
    layers.lay_environment(environment);
    for (key, flag, value) in
        [("data", "--data", &flags.data), ("listen", "--listen", &flags.listen)]
    {
        if let Some(value) = value {
            layers.set(key, Value::from(value.as_str()), format!("from {flag}"));
        }
    }
    if let Some(roles) = &flags.roles {
        let roles: Vec<&str> = roles.split(',').map(str::trim).collect();
        layers.set("roles", Value::from(roles), "from --role".into());
    }
    layers.finish()
}

struct Layers {
    /// Every key there is, with the value in force.
    values: BTreeMap<String, Value>,
    /// Where a key was set, in words, if not by the default.
    origins: BTreeMap<String, String>,
    problems: Vec<String>,
}

impl Layers {
    fn new() -> Self {
        let default: Table =
            DEFAULT_TOML.parse().expect("the embedded default file is TOML (a test reads it)");
        Layers {
            values: flatten(default).into_iter().collect(),
            origins: BTreeMap::new(),
            problems: Vec::new(),
        }
    }

    fn lay_file(&mut self, name: &str, text: &str) {
        let table: Table = match text.parse() {
            Ok(table) => table,
            Err(error) => return self.problems.push(syntax_problem(name, text, &error)),
        };
        for (key, value) in flatten(table) {
            let within = format!("{key}.");
            let is_section = self.values.keys().any(|known| known.starts_with(&within));
            if self.values.contains_key(&key) {
                self.set(&key, value, format!("in {name}"));
            } else if is_section {
                // A section named without keys changes nothing; anything else under its name does.
                if !value.is_table() {
                    self.problems.push(format!(
                        "{key:?} in {name} is a section: write [{key}] and its keys below it"
                    ));
                }
            } else {
                let hint = did_you_mean(&key, self.values.keys().map(String::as_str));
                self.problems.push(format!("unknown key {key:?} in {name}{hint}"));
            }
        }
    }

    fn lay_environment(&mut self, environment: impl Iterator<Item = (OsString, OsString)>) {
        let names: BTreeMap<String, String> = environment_names(self.values.keys());
        let mut ours: Vec<(String, OsString)> = environment
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with(PREFIX) && !NOT_SETTINGS.contains(&name.as_str()))
            .collect();
        // The order of the environment is not the operator's choice; the messages should not vary.
        ours.sort();
        for (name, value) in ours {
            let Some(key) = names.get(&name) else {
                let hint = did_you_mean(&name, names.keys().map(String::as_str));
                self.problems.push(format!("unknown variable {name:?} in the environment{hint}"));
                continue;
            };
            let Some(text) = value.to_str() else {
                self.problems.push(format!("{name} in the environment is not UTF-8"));
                continue;
            };
            let value = rules::rule_of(key).map_or_else(|| Value::from(text), |r| r.read(text));
            let before = self.origins.get(key).filter(|origin| origin.starts_with("from "));
            if let Some(before) = before.filter(|_| self.values.get(key) != Some(&value)) {
                let problem = format!("{key} is set twice, {before} and from {name}: keep one");
                self.problems.push(problem);
                continue;
            }
            self.set(key, value, format!("from {name}"));
        }
    }

    fn set(&mut self, key: &str, value: Value, origin: String) {
        if let Some(rule) = rules::rule_of(key).filter(|rule| !rule.is_met_by(&value)) {
            let shown = shown(rule, &value);
            self.problems.push(format!("{key} = {shown} {origin}: {}", rule.sentence()));
            return;
        }
        let value = match rules::rule_of(key) {
            // Whatever way it was written, one way from here on.
            Some(Rule::Address | Rule::MaybeAddress) => {
                listen::read(&value).map_or(value, |at| at.to_string().into())
            }
            _ => value,
        };
        self.values.insert(key.into(), value);
        self.origins.insert(key.into(), origin);
    }

    fn finish(mut self) -> Result<Config, ConfigErrors> {
        // A value that broke its rule left the default in place, so that the rules about pairs can
        // still be checked and reported in the same round.
        match unflatten(self.values).try_into::<Config>() {
            Ok(config) => {
                self.problems.extend(rules::check_pairs(&config));
                if self.problems.is_empty() {
                    return Ok(config);
                }
            }
            Err(error) => self.problems.push(error.message().to_owned()),
        }
        Err(ConfigErrors(self.problems))
    }
}

/// The parser's own words would quote the line, and the line may hold a secret.
fn syntax_problem(name: &str, text: &str, error: &toml::de::Error) -> String {
    let at = error.span().and_then(|span| text.get(..span.start));
    let line = at.map_or(1, |before| before.matches('\n').count() + 1);
    format!("{name} is not TOML, line {line}: {}", error.message())
}

fn shown(rule: &Rule, value: &Value) -> String {
    if rule.has_secrets() { engine::REDACTED.into() } else { value.to_string() }
}

/// A table as pairs of dotted key and value. An empty table stays itself, to be judged by its name.
pub(super) fn flatten(table: Table) -> Vec<(String, Value)> {
    let mut leaves = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) if !inner.is_empty() => {
                let below = flatten(inner).into_iter();
                leaves.extend(below.map(|(name, value)| (format!("{key}.{name}"), value)));
            }
            value => leaves.push((key, value)),
        }
    }
    leaves
}

fn unflatten(leaves: BTreeMap<String, Value>) -> Table {
    let mut table = Table::new();
    for (key, value) in leaves {
        insert(&mut table, &key, value);
    }
    table
}

/// Puts a value where its dotted key says.
pub(super) fn insert(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.into(), value);
        }
        Some((section, key)) => {
            let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(section) = section {
                insert(section, key, value);
            }
        }
    }
}

/// The variable of every key, and the short names.
fn environment_names<'a>(keys: impl Iterator<Item = &'a String>) -> BTreeMap<String, String> {
    let name = |key: &str| format!("{PREFIX}{}", key.replace('.', "_").to_uppercase());
    let derived = keys.map(|key| (name(key), key.clone()));
    let short = SHORT_NAMES.iter().map(|(name, key)| ((*name).into(), (*key).into()));
    derived.chain(short).collect()
}

/// ": did you mean …?", or nothing if no known name is near.
///
/// The last part of a dotted name is also compared alone, because forgetting (or mistaking) the
/// section is as common as mistyping the key.
fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let last = |name: &'a str| name.rsplit('.').next().unwrap_or(name);
    let own_last = name.rsplit('.').next().unwrap_or(name);
    let likeness = |other: &'a str| {
        let whole = strsim::normalized_damerau_levenshtein(name, other);
        let end = strsim::normalized_damerau_levenshtein(own_last, last(other));
        // The whole name decides between keys whose last parts are equally alike.
        if other.contains('.') { whole.max(0.9 * end + 0.1 * whole) } else { whole }
    };
    known
        .map(|other| (likeness(other), other))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or_else(String::new, |(_, nearest)| format!(": did you mean {nearest:?}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(file: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
        let environment = environment.iter().map(|(k, v)| (k.into(), v.into()));
        merge(Some(("seckill.toml", file)), environment, &Flags::default())
    }

    fn problems(file: &str, environment: &[(&str, &str)]) -> Vec<String> {
        merged(file, environment).unwrap_err().0
    }

    #[test]
    fn later_layers_win() {
        let file =
            "listen = '127.0.0.1:1'\ndata = 'file'\n[lane]\nqueue_max = 11\nbatch_max = 12\n";
        let environment = [
            ("SECKILL_LANE_QUEUE_MAX", "2_1"),
            ("SECKILL_DATA", "environment"),
            ("SECKILL_LISTEN", "127.0.0.1:2"),
            ("SECKILL_ORDERS_RETRY_LADDER_MS", "10, 20"),
            ("SECKILL_DEMO", "false"),
            ("SECKILL_CONFIG", "not a setting"),
            ("PATH", "/bin"),
        ];
        let environment = environment.iter().map(|(k, v)| (k.into(), v.into()));
        let flags = Flags { listen: Some("127.0.0.1:3".into()), ..Flags::default() };
        let config = merge(Some(("seckill.toml", file)), environment, &flags).unwrap();
        assert_eq!(config.listen.port(), 3);
        assert_eq!(config.data, PathBuf::from("environment"));
        assert_eq!((config.lane.queue_max, config.lane.batch_max), (21, 12));
        assert_eq!(config.orders.retry_ladder_ms, [10, 20]);
        assert!(!config.demo_is_on());
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_right_name() {
        let cases = [
            (
                "[lane]\nqueu_max = 1",
                r#"unknown key "lane.queu_max" in seckill.toml: did you mean "lane.queue_max"?"#,
            ),
            (
                "warm_before_ms = 1",
                r#"unknown key "warm_before_ms" in seckill.toml: did you mean "gate.warm_before_ms"?"#,
            ),
            ("lisen = 'x'", r#"unknown key "lisen" in seckill.toml: did you mean "listen"?"#),
            (
                "[lanes]\nqueue_max = 1",
                r#"unknown key "lanes.queue_max" in seckill.toml: did you mean "lane.queue_max"?"#,
            ),
            ("zzzzz = 1", r#"unknown key "zzzzz" in seckill.toml"#),
            ("[zzzzz]", r#"unknown key "zzzzz" in seckill.toml"#),
            ("[listen.deep]\nx = 1", r#"unknown key "listen.deep.x" in seckill.toml"#),
        ];
        for (file, expected) in cases {
            assert_eq!(problems(file, &[]), [expected], "{file}");
        }
        assert_eq!(
            problems("lane = 3", &[]),
            [r#""lane" in seckill.toml is a section: write [lane] and its keys below it"#]
        );
        assert!(merged("[lane]", &[]).is_ok());
    }

    #[test]
    fn an_unknown_variable_is_refused_with_the_nearest_right_name() {
        assert_eq!(
            problems("", &[("SECKILL_LANE_QUEU_MAX", "1"), ("SECKILL_ADMIN_TOKN", "x")]),
            [
                ("SECKILL_ADMIN_TOKN", "SECKILL_ADMIN_TOKEN"),
                ("SECKILL_LANE_QUEU_MAX", "SECKILL_LANE_QUEUE_MAX"),
            ]
            .map(|(wrong, right)| {
                format!("unknown variable {wrong:?} in the environment: did you mean {right:?}?")
            })
        );
    }

    #[test]
    fn all_mistakes_are_told_at_once_with_key_value_and_rule() {
        let file = "listen = 'here'\n[lane]\nqueue_max = 0\nbatch_max = 'many'\n[gate]\nx = 1\n";
        let problems = problems(file, &[("SECKILL_HTTP_DRAIN_MS_MAX", "5000")]);
        for expected in [
            "listen = \"here\" in seckill.toml: must be a port, or an IP address and a port, such \
             as 8080, 0.0.0.0:8080 or [::1]:8080",
            "lane.queue_max = 0 in seckill.toml: must be a whole number from 1 to 1000000",
            "lane.batch_max = \"many\" in seckill.toml: must be a whole number from 1 to 10000",
            "unknown key \"gate.x\" in seckill.toml",
            "http.drain_ms_max = 5000 from SECKILL_HTTP_DRAIN_MS_MAX: must be a whole number \
             from 0 to 4999",
        ] {
            assert!(problems.iter().any(|p| p.starts_with(expected)), "{expected}\n{problems:#?}");
        }
        assert_eq!(problems.len(), 5, "{problems:#?}");
    }

    #[test]
    fn a_refused_secret_is_not_quoted() {
        let short = [("SECKILL_JWT_SECRET", "hunter2")];
        assert_eq!(
            problems("", &short),
            [
                "auth.jwt_secret = *** from SECKILL_JWT_SECRET: must be empty or at least 16 characters"
            ]
        );
        let broken = problems("# first\nsecret = 'hunter2", &[]);
        assert!(broken[0].starts_with("seckill.toml is not TOML, line 2: "), "{broken:?}");
        assert!(!broken[0].contains("hunter2"));
    }

    #[test]
    fn the_short_and_the_long_variable_must_agree() {
        let secret = "a secret of the shop";
        let twice = [("SECKILL_JWT_SECRET", secret), ("SECKILL_AUTH_JWT_SECRET", secret)];
        assert_eq!(merged("", &twice).unwrap().auth.jwt_secret.expose(), secret);
        let differ =
            [("SECKILL_JWT_SECRET", secret), ("SECKILL_AUTH_JWT_SECRET", "something else here")];
        assert_eq!(
            problems("", &differ),
            ["auth.jwt_secret is set twice, from SECKILL_AUTH_JWT_SECRET and from \
              SECKILL_JWT_SECRET: keep one"]
        );
    }

    #[test]
    fn no_two_keys_share_a_variable() {
        let layers = Layers::new();
        let names = environment_names(layers.values.keys());
        assert_eq!(names.len(), layers.values.len() + SHORT_NAMES.len());
        for (_, key) in SHORT_NAMES {
            assert!(layers.values.contains_key(*key), "{key}");
        }
    }

    const KEY: &str = "[auth]\njwt_secret = 'a secret of the shop'\n";
    const CLUSTER: &str =
        "profile = 'cluster'\n[redis]\nurl = 'redis://r'\n[ledger]\nurl = 'mysql://m'\n";

    /// Is anything of the demo on: sale, login, sandbox?
    fn demo_of(file: &str, environment: &[(&str, &str)]) -> [bool; 3] {
        let config = merged(file, environment).unwrap();
        [config.demo_is_on(), config.dev_login_is_on(), config.sandbox_is_on()]
    }

    #[test]
    fn what_belongs_to_the_demo_is_on_in_the_bare_run_alone() {
        assert_eq!(demo_of("", &[]), [true; 3]);
        assert_eq!(demo_of("listen = '[::1]:8080'", &[]), [true; 3]);
        for real in [
            KEY,
            "[auth]\njwt_public_key_file = 'x'",
            "[auth]\njwt_jwks_file = 'x'",
            CLUSTER,
            "listen = '0.0.0.0:8080'",
            "listen = '[::]:8080'",
            "listen = '192.168.1.7:8080'",
            "[http]\nproxy_hops = 1",
        ] {
            assert_eq!(demo_of(real, &[]), [false; 3], "{real}");
        }
    }

    #[test]
    fn what_is_asked_for_by_name_is_on_and_off_anywhere() {
        let on = [
            ("SECKILL_DEMO", "true"),
            ("SECKILL_AUTH_DEV_LOGIN", "true"),
            ("SECKILL_PAYMENT_SANDBOX", "true"),
        ];
        assert_eq!(demo_of(KEY, &on), [true; 3]);
        assert_eq!(demo_of("listen = '0.0.0.0:8080'", &on), [true; 3]);
        assert_eq!(demo_of(CLUSTER, &on[2..]), [false, false, true]);
        let off = on.map(|(name, _)| (name, "0"));
        assert_eq!(demo_of("", &off), [false; 3]);
        let auto = on.map(|(name, _)| (name, "auto"));
        assert_eq!(demo_of("", &auto), [true; 3]);
        assert_eq!(demo_of(KEY, &auto), [false; 3]);
        let wrong = problems("demo = 'yes'", &[]);
        assert_eq!(wrong, ["demo = \"yes\" in seckill.toml: must be \"auto\", true or false"]);
    }

    #[test]
    fn the_cluster_needs_its_engines_and_refuses_the_demo() {
        assert!(merged(CLUSTER, &[]).is_ok());
        let file = "profile = 'cluster'\ndemo = true\n[auth]\ndev_login = true";
        let wrong = problems(file, &[]).join("\n");
        for part in ["redis.url", "ledger.url", "auth.dev_login", "demo = true"] {
            assert!(wrong.contains(part), "{wrong}");
        }
    }

    #[test]
    fn a_port_alone_is_on_this_machine() {
        for (text, address) in [
            ("8081", "127.0.0.1:8081"),
            (":8081", "127.0.0.1:8081"),
            ("localhost:8081", "127.0.0.1:8081"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:8081", "[::1]:8081"),
            ("0", "127.0.0.1:0"),
        ] {
            let flags = Flags { listen: Some(text.into()), ..Flags::default() };
            let config = merge(None, std::iter::empty(), &flags).unwrap();
            assert_eq!(config.listen.to_string(), address, "{text}");
            let environment = [("SECKILL_LISTEN", text)];
            assert_eq!(merged("", &environment).unwrap().listen.to_string(), address);
        }
        assert_eq!(merged("listen = 8081", &[]).unwrap().listen.port(), 8081);
        for bad in ["", ":", "65536", "-1", "shop:80", "8081 ", "127.0.0.1", "1.2.3:4", "+80"] {
            assert!(merged(&format!("listen = {bad:?}"), &[]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn pairs_that_contradict_each_other_are_refused() {
        let key = KEY;
        for (file, part) in [
            ("[orders]\npause_ms_min = 2\npause_ms_max = 1".to_owned(), "orders.pause_ms_max"),
            ("[jobs]\narchive_after_ms = 86400000".to_owned(), "must be 0 or at least 2592000000"),
            (format!("{key}jwt_jwks_file = 'x'"), "only one of them"),
            (format!("{key}jwt_algorithms = ['RS256']"), "does not go with a secret"),
            (
                "[auth]\njwt_public_key_file = 'x'\njwt_algorithms = ['HS256']".into(),
                "does not go with a public key",
            ),
            (format!("{key}jwt_algorithms = ['none']"), "must be a list of some of"),
            ("[auth]\njwt_algorithms = ['HS256']".into(), "none of the shop's keys"),
            ("[log]\nlevel = 'inof'".into(), "\"inof\" is none of error"),
        ] {
            let problems = problems(&file, &[]);
            assert!(problems.len() == 1 && problems[0].contains(part), "{problems:?}");
        }
    }

    #[test]
    fn the_flags_are_understood_before_and_after_a_sub_command() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: Flags,
            #[command(subcommand)]
            _command: Option<Command>,
        }
        #[derive(clap::Subcommand)]
        enum Command {
            Serve,
        }
        for line in [&["seckill", "--data", "d"][..], &["seckill", "serve", "--data", "d"]] {
            let line = <Line as clap::Parser>::try_parse_from(line).unwrap();
            assert_eq!(line.flags.data.as_deref(), Some("d"));
        }
    }

    #[test]
    fn a_named_file_must_be_there() {
        let flags = Flags { config: Some("/nowhere/at/all.toml".into()), ..Flags::default() };
        let error = load(&flags).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all.toml cannot be read"), "{error}");
    }

    #[test]
    fn endpoints_and_robots_are_lists_whose_secrets_are_not_quoted() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let list = format!("[{{ url = 'http://10.0.0.1/', secret = '{secret}' }}]");
        let file = format!(
            "[[webhooks.endpoints]]\nurl = 'https://shop.example/'\nsecret = '{secret}'\n\
             events = ['order.paid']\n[[alerts.robots]]\nkind = 'wecom'\nurl = 'https://r.example/k'\n"
        );
        let config = merged(&file, &[]).unwrap();
        assert_eq!(config.webhooks.endpoints[0].url, "https://shop.example/");
        assert_eq!(config.alerts.robots.len(), 1);
        let shown = format!("{}{config:?}", config.print());
        assert!(!shown.contains(secret) && !shown.contains("r.example/k"), "{shown}");
        let config = merged(&file, &[("SECKILL_WEBHOOKS_ENDPOINTS", &list)]).unwrap();
        assert_eq!(config.webhooks.endpoints[0].url, "http://10.0.0.1/");
        for bad in [
            "[{ url = 'http://x/', secret = 'whsec_s3cret' }]",
            "[{ url = 'ftp://x/', secret = 'whsec_s3cret' }]",
            "[{ url = 'http://x/' }]",
            "[{ s3cret",
            "s3cret",
        ] {
            let problems = problems("", &[("SECKILL_WEBHOOKS_ENDPOINTS", bad)]).join("\n");
            assert!(problems.contains("webhooks.endpoints"), "{problems}");
            assert!(!problems.contains("s3cret"), "{problems}");
        }
        let robots =
            problems("", &[("SECKILL_ALERTS_ROBOTS", "[{ kind = 'irc', url = 'http://x' }]")]);
        assert!(robots[0].contains("wecom"), "{robots:?}");
        let twice = format!("{list}, {list}").replace("], [", ", ");
        let problems = problems("", &[("SECKILL_WEBHOOKS_ENDPOINTS", &twice)]);
        assert!(problems[0].contains("earlier"), "{problems:?}");
    }
}
