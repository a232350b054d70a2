//! What every value must satisfy.
//!
//! One rule per key of `default.toml` (a test holds the two lists together), then the rules about
//! pairs of keys. Rules look at raw TOML values, before they become a struct, so that all mistakes
//! of a file can be told at once and each with its key and where it was set.
//!
//! Long because it is one list, of every key there is.

use toml::Value;

use engine::REDACTED;
use orders::{ClaimLogKind, broker::MESSAGE_CLAIMS_MAX};

use super::{
    Config, Profile, Switch, listen,
    shapes::{has_scheme, is_endpoint, is_host_name, is_origin, is_robot, is_site},
};

/// Nobody means a pause longer than a week; a larger number is a typing error.
const WEEK_MS: i64 = 7 * 24 * 60 * 60 * 1_000;
const MINUTE_MS: i64 = 60_000;
const SECRET_CHARS_MIN: usize = 16;
pub(super) const TEXT_CHARS_MAX: usize = 4_096;
const RETRY_STEPS_MAX: usize = 64;
const ORIGINS_MAX: usize = 100;
const LIST_MAX: usize = 100;
const ENDPOINTS_MAX: usize = 32;
const SIGNING_SECRETS_MAX: usize = 8;

pub(super) enum Rule {
    /// "auto", true or false.
    Switch,
    /// A whole number from … to ….
    Number(i64, i64),
    /// A list of such numbers, at most so many.
    Numbers(i64, i64, usize),
    /// A text, possibly empty.
    Text,
    /// A text that is not empty.
    Required,
    OneOf(&'static [&'static str]),
    /// A list of some of these.
    SomeOf(&'static [&'static str]),
    /// A list of origins of web pages, at most so many.
    Origins(usize),
    /// How often something may happen.
    Rate,
    /// A list of networks, at most so many.
    Networks(usize),
    /// An IP address and a port, or a port alone.
    Address,
    /// The same, or empty.
    MaybeAddress,
    /// A list of names of hosts, at most so many.
    Hosts(usize),
    /// Not to be shown; empty, or at least so many characters.
    Secret(usize),
    /// A list of texts that are not empty, at most so many.
    Texts(usize),
    /// A list of webhook endpoints: tables with url, secret and perhaps events.
    Endpoints(usize),
    /// A list of secrets that sign, at most so many; not to be shown.
    SigningSecrets(usize),
    /// A list of texts such as name=value, at most so many; not to be shown.
    Properties(usize),
    /// An address in which names in braces stand for something of an order, or empty.
    Template,
    /// A list of robots: tables with kind, url and perhaps a secret.
    Robots(usize),
    /// An http or https address, shown to anybody, or empty.
    Site,
    /// An address with one of these schemes, or empty. Not to be shown: it may carry a password.
    Url(&'static [&'static str]),
}

/// `none` is not among them, on purpose: there is no such algorithm here.
pub const HMAC_ALGORITHMS: &[&str] = &["HS256", "HS384", "HS512"];
const ALGORITHMS: &[&str] = &[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256",
    "ES384", "EdDSA",
];

const REDIS_SCHEMES: &[&str] =
    &["redis://", "rediss://", "redis+sentinel://", "rediss+sentinel://", "unix://"];

pub(super) const RULES: &[(&str, Rule)] = &[
    ("profile", Rule::OneOf(&["solo", "cluster"])),
    ("roles", Rule::SomeOf(&["web", "worker", "jobs"])),
    ("listen", Rule::Address),
    ("data", Rule::Required),
    ("secret", Rule::Secret(SECRET_CHARS_MIN)),
    ("demo", Rule::Switch),
    ("claim_log", Rule::OneOf(&["native", "rocketmq", "kafka"])),
    ("http.connections_max", Rule::Number(1, 1_000_000)),
    ("http.connections_per_address_max", Rule::Number(1, 1_000_000)),
    ("http.exempt_networks", Rule::Networks(LIST_MAX)),
    ("http.backlog_max", Rule::Number(1, 65_535)),
    ("http.header_timeout_ms", Rule::Number(10, MINUTE_MS)),
    // Hyper's own buffer cannot be smaller than 8 KiB.
    ("http.header_bytes_max", Rule::Number(8_192, 1_048_576)),
    ("http.body_timeout_ms", Rule::Number(10, 10 * MINUTE_MS)),
    ("http.body_bytes_max", Rule::Number(1_024, 16_777_216)),
    ("http.admin_body_bytes_max", Rule::Number(1_024, 67_108_864)),
    ("http.import_body_bytes_max", Rule::Number(1_024, 67_108_864)),
    ("http.idle_timeout_ms", Rule::Number(10, 60 * MINUTE_MS)),
    ("http.write_timeout_ms", Rule::Number(10, 10 * MINUTE_MS)),
    ("http.request_timeout_ms", Rule::Number(10, 10 * MINUTE_MS)),
    // A process that is told to stop is gone within five seconds.
    ("http.drain_ms_max", Rule::Number(0, 4_999)),
    ("http.proxy_hops", Rule::Number(0, 16)),
    ("http.allowed_origins", Rule::Origins(ORIGINS_MAX)),
    ("http.allowed_frames", Rule::Origins(ORIGINS_MAX)),
    ("http.allowed_hosts", Rule::Hosts(LIST_MAX)),
    ("http.admin_listen", Rule::MaybeAddress),
    ("http.tls_cert_file", Rule::Text),
    ("http.tls_key_file", Rule::Text),
    ("http.redirect_listen", Rule::MaybeAddress),
    ("http.tls_handshake_timeout_ms", Rule::Number(10, MINUTE_MS)),
    ("http.tls_handshakes_max", Rule::Number(1, 1_000_000)),
    ("http.http2_streams_max", Rule::Number(1, 1_000)),
    ("limits.pages_per_address", Rule::Rate),
    ("limits.tokens_per_user", Rule::Rate),
    ("limits.tokens_per_address", Rule::Rate),
    ("limits.claims_per_user", Rule::Rate),
    ("limits.claims_per_address", Rule::Rate),
    ("limits.orders_per_user", Rule::Rate),
    ("limits.orders_per_address", Rule::Rate),
    ("limits.admin_per_address", Rule::Rate),
    ("limits.keys_max", Rule::Number(1, 100_000_000)),
    ("auth.jwt_secret", Rule::Secret(SECRET_CHARS_MIN)),
    ("auth.jwt_public_key_file", Rule::Text),
    ("auth.jwt_jwks_file", Rule::Text),
    ("auth.jwt_algorithms", Rule::SomeOf(ALGORITHMS)),
    ("auth.jwt_audience", Rule::Text),
    ("auth.jwt_issuer", Rule::Text),
    ("auth.leeway_ms", Rule::Number(0, 10 * MINUTE_MS)),
    ("auth.token_cache_max", Rule::Number(0, 10_000_000)),
    ("auth.dev_login", Rule::Switch),
    ("auth.dev_login_ttl_ms", Rule::Number(1_000, 52 * WEEK_MS)),
    ("auth.sale_token_ttl_ms", Rule::Number(1_000, WEEK_MS)),
    ("auth.admin_token", Rule::Secret(SECRET_CHARS_MIN)),
    ("auth.admin_cache_max", Rule::Number(0, 1_000_000)),
    ("auth.admin_token_ttl_ms", Rule::Number(0, 520 * WEEK_MS)),
    ("auth.console_idle_ms", Rule::Number(MINUTE_MS, WEEK_MS)),
    ("auth.console_session_ms", Rule::Number(MINUTE_MS, WEEK_MS)),
    ("redis.url", Rule::Url(REDIS_SCHEMES)),
    ("redis.tls_ca_file", Rule::Text),
    ("redis.tls_cert_file", Rule::Text),
    ("redis.tls_key_file", Rule::Text),
    ("redis.sentinel_user", Rule::Text),
    ("redis.sentinel_password", Rule::Secret(1)),
    ("redis.prefix", Rule::Required),
    ("redis.partitions", Rule::Number(1, 1_024)),
    ("redis.answer_ms_max", Rule::Number(10, MINUTE_MS)),
    ("redis.takeover_ms", Rule::Number(100, 10 * MINUTE_MS)),
    ("redis.wait_replicas", Rule::Number(0, 16)),
    ("redis.wait_ms_max", Rule::Number(1, MINUTE_MS)),
    ("ledger.url", Rule::Url(&["mysql://"])),
    ("ledger.tls_ca_file", Rule::Text),
    ("ledger.tls_cert_file", Rule::Text),
    ("ledger.tls_key_file", Rule::Text),
    ("ledger.connections_max", Rule::Number(2, 1_000)),
    ("lane.queue_max", Rule::Number(1, 1_000_000)),
    ("lane.batch_max", Rule::Number(1, 10_000)),
    ("lane.rate_per_s", Rule::Number(0, 10_000_000)),
    ("lane.draw_max", Rule::Number(1, 1_000_000)),
    ("lane.wait_ms_max", Rule::Number(1, 10 * MINUTE_MS)),
    ("gate.log_claims_max", Rule::Number(1, 100_000_000)),
    ("gate.sold_out_cache_ms_max", Rule::Number(0, 1_000)),
    ("gate.warm_before_ms", Rule::Number(0, WEEK_MS)),
    ("gate.keep_after_close_ms", Rule::Number(0, WEEK_MS)),
    ("look_back.keep_ms", Rule::Number(0, 52 * WEEK_MS)),
    ("look_back.journal_bytes_max", Rule::Number(0, 1 << 40)),
    ("look_back.redis_bytes_max", Rule::Number(0, 1 << 40)),
    ("relay.batch_claims_max", Rule::Number(1, 100_000)),
    ("relay.publishes_max", Rule::Number(1, 64)),
    ("relay.republish_after_ms", Rule::Number(1_000, WEEK_MS)),
    ("kafka.servers", Rule::Texts(LIST_MAX)),
    ("kafka.topic", Rule::Required),
    ("kafka.group", Rule::Required),
    ("kafka.partitions", Rule::Number(1, 1_000)),
    ("kafka.replication", Rule::Number(0, 16)),
    ("kafka.properties", Rule::Properties(LIST_MAX)),
    ("kafka.answer_ms_max", Rule::Number(100, 5 * MINUTE_MS)),
    ("kafka.session_ms", Rule::Number(1_000, 5 * MINUTE_MS)),
    ("rocketmq.name_servers", Rule::Texts(LIST_MAX)),
    ("rocketmq.topic", Rule::Required),
    ("rocketmq.group", Rule::Required),
    ("rocketmq.unpaid_topic", Rule::Required),
    ("rocketmq.access_key", Rule::Text),
    ("rocketmq.secret_key", Rule::Secret(1)),
    ("rocketmq.answer_ms_max", Rule::Number(100, 5 * MINUTE_MS)),
    ("orders.batch_claims_max", Rule::Number(1, 10_000)),
    ("orders.retry_ladder_ms", Rule::Numbers(1, WEEK_MS, RETRY_STEPS_MAX)),
    ("orders.pause_ms_min", Rule::Number(1, MINUTE_MS)),
    ("orders.pause_ms_max", Rule::Number(1, 60 * MINUTE_MS)),
    ("orders.retry_batch_max", Rule::Number(1, 10_000)),
    ("orders.retry_poll_ms", Rule::Number(1, 10 * MINUTE_MS)),
    ("jobs.timeout_poll_ms", Rule::Number(1, 10 * MINUTE_MS)),
    ("jobs.timeout_batch_max", Rule::Number(1, 10_000)),
    ("jobs.outbox_poll_ms", Rule::Number(1, 10 * MINUTE_MS)),
    ("jobs.outbox_batch_max", Rule::Number(1, 10_000)),
    ("jobs.reconcile_every_ms", Rule::Number(100, WEEK_MS)),
    ("jobs.reconcile_whole_hour_utc", Rule::Number(0, 23)),
    ("jobs.warm_poll_ms", Rule::Number(1, 10 * MINUTE_MS)),
    ("jobs.catalogue_refresh_ms", Rule::Number(1, 10 * MINUTE_MS)),
    ("jobs.count_every_ms", Rule::Number(1, 10 * MINUTE_MS)),
    ("jobs.archive_after_ms", Rule::Number(0, 100 * 52 * WEEK_MS)),
    ("payment.sandbox", Rule::Switch),
    ("payment.sandbox_file", Rule::Text),
    ("payment.sandbox_merchant", Rule::Required),
    ("payment.public_url", Rule::Site),
    ("payment.wechat.merchant_id", Rule::Text),
    ("payment.wechat.app_id", Rule::Text),
    ("payment.wechat.methods", Rule::SomeOf(&["qr", "phone", "app"])),
    ("payment.wechat.private_key_file", Rule::Text),
    ("payment.wechat.certificate_file", Rule::Text),
    ("payment.wechat.certificate_serial", Rule::Text),
    ("payment.wechat.api_v3_key", Rule::Secret(32)),
    ("payment.wechat.api_v3_key_file", Rule::Text),
    ("payment.wechat.public_keys", Rule::Texts(LIST_MAX)),
    ("payment.wechat.platform_certificates_file", Rule::Text),
    ("payment.wechat.base_url", Rule::Site),
    ("payment.wechat.ca_file", Rule::Text),
    ("payment.external.secrets", Rule::SigningSecrets(SIGNING_SECRETS_MAX)),
    ("payment.external.url", Rule::Template),
    ("payment.external.close_answer_ms_max", Rule::Number(0, 10 * MINUTE_MS)),
    ("payment.external.refund_repeat_ms", Rule::Number(1_000, WEEK_MS)),
    ("payment.alipay.app_id", Rule::Text),
    ("payment.alipay.seller_id", Rule::Text),
    ("payment.alipay.methods", Rule::SomeOf(&["page", "phone", "qr"])),
    ("payment.alipay.private_key_file", Rule::Text),
    ("payment.alipay.public_key_file", Rule::Text),
    ("payment.alipay.app_certificate_file", Rule::Text),
    ("payment.alipay.alipay_certificate_file", Rule::Text),
    ("payment.alipay.root_certificate_file", Rule::Text),
    ("payment.alipay.base_url", Rule::Site),
    ("payment.alipay.ca_file", Rule::Text),
    ("alerts.webhook_url", Rule::Url(&["https://", "http://"])),
    ("alerts.robots", Rule::Robots(ENDPOINTS_MAX)),
    ("alerts.webhook_timeout_ms", Rule::Number(10, MINUTE_MS)),
    ("alerts.raise_after_ms", Rule::Number(0, 60 * MINUTE_MS)),
    ("alerts.resolve_after_ms", Rule::Number(0, 60 * MINUTE_MS)),
    ("alerts.backlog_age_ms_max", Rule::Number(100, WEEK_MS)),
    ("alerts.disk_low_bytes", Rule::Number(0, i64::MAX)),
    ("alerts.disk_full_bytes", Rule::Number(0, i64::MAX)),
    ("push.streams_max", Rule::Number(0, 1_000_000)),
    ("push.streams_per_user_max", Rule::Number(1, 1_000)),
    ("push.queue_max", Rule::Number(1, 100_000)),
    ("push.heartbeat_ms", Rule::Number(100, 600_000)),
    ("webhooks.endpoints", Rule::Endpoints(ENDPOINTS_MAX)),
    ("webhooks.allowed_hosts", Rule::Texts(LIST_MAX)),
    ("webhooks.tls_ca_file", Rule::Text),
    ("webhooks.endpoints_max", Rule::Number(0, 100)),
    ("webhooks.concurrent_max", Rule::Number(1, 256)),
    ("webhooks.timeout_ms", Rule::Number(10, 10 * MINUTE_MS)),
    ("webhooks.retry_ladder_ms", Rule::Numbers(1, WEEK_MS, RETRY_STEPS_MAX)),
    ("webhooks.down_pause_ms_max", Rule::Number(1, 60 * MINUTE_MS)),
    ("webhooks.give_up_after_ms", Rule::Number(0, 52 * WEEK_MS)),
    ("webhooks.switch_off_after_ms", Rule::Number(0, 52 * WEEK_MS)),
    ("webhooks.rotation_ms", Rule::Number(0, 52 * WEEK_MS)),
    ("webhooks.keep_delivered_ms", Rule::Number(0, 520 * WEEK_MS)),
    ("webhooks.keep_failed_ms", Rule::Number(0, 520 * WEEK_MS)),
    ("door.token_before_ms", Rule::Number(0, WEEK_MS)),
    ("door.challenge_ttl_ms", Rule::Number(1_000, 60 * MINUTE_MS)),
    ("door.wrong_answers_max", Rule::Number(1, 1_000)),
    ("door.wrong_cool_down_ms", Rule::Number(1, WEEK_MS)),
    ("door.unpaid_closes_max", Rule::Number(0, 1_000_000)),
    ("door.unpaid_window_ms", Rule::Number(1, WEEK_MS)),
    ("door.unpaid_cool_down_ms", Rule::Number(1, WEEK_MS)),
    ("log.level", Rule::Required),
    ("log.format", Rule::OneOf(&["text", "json"])),
];

pub(super) fn rule_of(key: &str) -> Option<&'static Rule> {
    RULES.iter().find(|(name, _)| *name == key).map(|(_, rule)| rule)
}

impl Rule {
    pub(super) fn is_met_by(&self, value: &Value) -> bool {
        let number = |v: &Value, min, max| v.as_integer().is_some_and(|n| n >= min && n <= max);
        let text = value.as_str().filter(|text| text.chars().count() <= TEXT_CHARS_MAX);
        match *self {
            Rule::Switch => value.is_bool() || text == Some(Switch::AUTO),
            Rule::Number(min, max) => number(value, min, max),
            Rule::Numbers(min, max, count) => value.as_array().is_some_and(|list| {
                list.len() <= count && list.iter().all(|v| number(v, min, max))
            }),
            Rule::Text => text.is_some(),
            Rule::Required => text.is_some_and(|text| !text.trim().is_empty()),
            Rule::OneOf(words) => text.is_some_and(|text| words.contains(&text)),
            Rule::SomeOf(words) => value.as_array().is_some_and(|list| {
                list.iter().all(|v| v.as_str().is_some_and(|word| words.contains(&word)))
            }),
            Rule::Origins(count) => value.as_array().is_some_and(|list| {
                list.len() <= count && list.iter().all(|v| v.as_str().is_some_and(is_origin))
            }),
            Rule::Rate => text.is_some_and(|text| text.parse::<limits::Rate>().is_ok()),
            Rule::Networks(count) => value.as_array().is_some_and(|list| {
                let network = |v: &Value| v.as_str()?.parse::<limits::Network>().ok();
                list.len() <= count && list.iter().all(|v| network(v).is_some())
            }),
            Rule::Address => listen::read(value).is_some(),
            Rule::MaybeAddress => text == Some("") || listen::read(value).is_some(),
            Rule::Hosts(count) => value.as_array().is_some_and(|list| {
                list.len() <= count && list.iter().all(|v| v.as_str().is_some_and(is_host_name))
            }),
            Rule::Secret(min) => text.is_some_and(|text| {
                text.is_empty() || (text.chars().count() >= min && text != REDACTED)
            }),
            Rule::Texts(count) => value.as_array().is_some_and(|list| {
                let filled = |v: &Value| v.as_str().is_some_and(|text| !text.trim().is_empty());
                list.len() <= count && list.iter().all(filled)
            }),
            Rule::Endpoints(count) => value
                .as_array()
                .is_some_and(|list| list.len() <= count && list.iter().all(is_endpoint)),
            Rule::SigningSecrets(count) => value.as_array().is_some_and(|list| {
                let signs = |v: &Value| v.as_str().is_some_and(engine::is_webhook_secret);
                list.len() <= count && list.iter().all(signs)
            }),
            Rule::Properties(count) => value.as_array().is_some_and(|list| {
                let named = |v: &Value| {
                    let name = v.as_str().and_then(|text| text.split_once('='));
                    name.is_some_and(|(name, _)| !name.trim().is_empty())
                };
                list.len() <= count && list.iter().all(named)
            }),
            Rule::Template => text.is_some_and(engine::is_cashier_url),
            Rule::Robots(count) => value
                .as_array()
                .is_some_and(|list| list.len() <= count && list.iter().all(is_robot)),
            Rule::Site => text.is_some_and(|text| text.is_empty() || is_site(text)),
            Rule::Url(schemes) => text.is_some_and(|text| {
                text.is_empty() || schemes.iter().any(|scheme| has_scheme(text, scheme))
            }),
        }
    }

    pub(super) fn is_secret(&self) -> bool {
        matches!(self, Rule::Secret(_) | Rule::Url(_))
    }

    /// A secret is somewhere in it.
    pub(super) fn has_secrets(&self) -> bool {
        self.is_secret()
            || matches!(self, Rule::Endpoints(_) | Rule::Robots(_))
            || matches!(self, Rule::SigningSecrets(_) | Rule::Properties(_))
    }

    /// The rest of a sentence that begins with the key.
    pub(super) fn sentence(&self) -> String {
        match *self {
            Rule::Switch => "must be \"auto\", true or false".into(),
            Rule::Number(min, max) => format!("must be a whole number from {min} to {max}"),
            Rule::Numbers(min, max, count) => {
                format!("must be a list of at most {count} whole numbers from {min} to {max}")
            }
            Rule::Text => format!("must be a text of at most {TEXT_CHARS_MAX} characters"),
            Rule::Required => "must be a text that is not empty".into(),
            Rule::OneOf(words) => format!("must be one of {}", words.join(", ")),
            Rule::SomeOf(words) => format!("must be a list of some of {}", words.join(", ")),
            Rule::Origins(count) => format!(
                "must be a list of at most {count} origins as browsers write them, such as \
                 https://shop.example or http://127.0.0.1:3000: in small letters, without a path, the \
                 usual port or a *"
            ),
            Rule::Rate => "must be \"off\" or a rate such as \"10/s burst 30\" or \"5/m burst 10\"".into(),
            Rule::Networks(count) => format!(
                "must be a list of at most {count} networks, such as 10.0.0.0/8, ::1 or 2001:db8::/32"
            ),
            Rule::Address => {
                "must be a port, or an IP address and a port, such as 8080, 0.0.0.0:8080 or [::1]:8080"
                    .into()
            }
            Rule::MaybeAddress => {
                "must be empty, a port, or an IP address and a port, such as 9090 or 10.0.0.7:9090".into()
            }
            Rule::Hosts(count) => format!(
                "must be a list of at most {count} names or addresses of hosts without a port, such as \
                 shop.example, 10.0.0.7 or [2001:db8::7]"
            ),
            Rule::Secret(min) => format!("must be empty or at least {min} characters"),
            Rule::Texts(count) => format!("must be a list of at most {count} texts, none of them empty"),
            Rule::Endpoints(count) => format!(
                "must be a list of at most {count} tables, each with a url (http or https, without \
                 a user), a secret (whsec_ and the base64 of 24 to 64 bytes) and perhaps events ({})",
                engine::WebhookKind::ALL.map(engine::WebhookKind::as_str).join(", ")
            ),
            Rule::SigningSecrets(count) => format!(
                "must be a list of at most {count} secrets, each whsec_ and the base64 of 24 to 64 bytes"
            ),
            Rule::Properties(count) => {
                format!("must be a list of at most {count} texts such as \"name=value\"")
            }
            Rule::Template => format!(
                "must be empty, or an address that starts with https://, http:// or / and names nothing \
                 in braces but {}",
                engine::CASHIER_URL_NAMES.map(|name| format!("{{{name}}}")).join(", ")
            ),
            Rule::Robots(count) => format!(
                "must be a list of at most {count} tables, each with a kind ({}), a url (http or https) and \
                 perhaps a secret",
                orders::RobotKind::ALL.map(orders::RobotKind::as_str).join(", ")
            ),
            Rule::Site => "must be empty or an address such as https://shop.example, without a query".into(),
            Rule::Url(schemes) => {
                format!("must be empty or an address that starts with {}", schemes.join(" or "))
            }
        }
    }

    /// A text from the environment as the kind of value the rule is about. What cannot be read
    /// stays a text, which the rule then refuses in its own words.
    pub(super) fn read(&self, text: &str) -> Value {
        let number = |text: &str| {
            let text = text.trim();
            text.replace('_', "").parse().map_or_else(|_| Value::from(text), Value::Integer)
        };
        let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
        match self {
            Rule::Number(..) => number(text),
            Rule::Numbers(..) => Value::Array(parts().map(number).collect()),
            Rule::SomeOf(_)
            | Rule::Origins(_)
            | Rule::Texts(_)
            | Rule::Hosts(_)
            | Rule::SigningSecrets(_)
            | Rule::Properties(_)
            | Rule::Networks(_) => Value::Array(parts().map(Value::from).collect()),
            // As it would stand in the file.
            Rule::Endpoints(_) | Rule::Robots(_) => format!("list = {text}")
                .parse::<toml::Table>()
                .ok()
                .and_then(|mut table| table.remove("list"))
                .unwrap_or_else(|| Value::from(text)),
            Rule::Switch => match text.trim() {
                "true" | "1" => Value::Boolean(true),
                "false" | "0" => Value::Boolean(false),
                other => Value::from(other),
            },
            _ => Value::from(text),
        }
    }
}

/// Thirty days.
const ARCHIVE_AFTER_MS_MIN: u64 = 30 * 24 * 60 * 60 * 1_000;

/// The rules about more than one key.
pub(super) fn check_pairs(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    if config.alerts.disk_full_bytes > config.alerts.disk_low_bytes {
        problems.push(format!(
            "alerts.disk_full_bytes = {}: must not be above alerts.disk_low_bytes = {}",
            config.alerts.disk_full_bytes, config.alerts.disk_low_bytes
        ));
    }
    if config.orders.pause_ms_min > config.orders.pause_ms_max {
        problems.push(format!(
            "orders.pause_ms_min = {}: must not be above orders.pause_ms_max = {}",
            config.orders.pause_ms_min, config.orders.pause_ms_max
        ));
    }
    if (1..ARCHIVE_AFTER_MS_MIN).contains(&config.jobs.archive_after_ms) {
        problems.push(format!(
            "jobs.archive_after_ms = {}: must be 0 or at least {ARCHIVE_AFTER_MS_MIN}: what ended lately \
             is still compared, and paid or given back",
            config.jobs.archive_after_ms
        ));
    }
    problems.extend(check_doors(config));
    problems.extend(check_broker(config));
    let endpoints = &config.webhooks.endpoints;
    for (n, one) in endpoints.iter().enumerate() {
        if endpoints[..n].iter().any(|earlier| earlier.url == one.url) {
            problems.push(format!("webhooks.endpoints[{n}] has the url of an earlier one"));
        }
    }
    problems.extend(config.payment.wechat.problems());
    problems.extend(config.payment.alipay.problems());
    if config.has_company() && config.payment.public_url.is_empty() {
        problems.push(
            "payment.public_url is empty: payment providers must be told where they reach us"
                .into(),
        );
    }
    let keys: Vec<_> = config.auth.shop_keys().collect();
    if keys.len() > 1 {
        problems.push(format!("{}: only one of them may be set", keys.join(" and ")));
    }
    problems.extend(check_algorithms(config));
    if let Err(cause) = config.log.filter() {
        problems.push(format!("log.level = {:?}: {cause}", config.log.level));
    }
    if config.profile == Profile::Cluster {
        for (key, url) in [("redis.url", &config.redis.url), ("ledger.url", &config.ledger.url)] {
            if url.is_empty() {
                problems.push(format!("{key} is empty: the cluster profile needs it"));
            }
        }
        if config.roles.is_empty() {
            problems.push("roles is empty: name one of web, worker, jobs".into());
        }
        if config.auth.dev_login == Switch::On {
            problems.push(
                "auth.dev_login = true: not in the cluster profile, it would let anybody be anybody"
                    .into(),
            );
        }
        if config.demo == Switch::On {
            problems.push(
                "demo = true: not in the cluster profile; make a sale with `seckill sale create`"
                    .into(),
            );
        }
    }
    problems
}

/// Where claims go by a broker, it is named, and takes what the gate logs.
fn check_broker(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    let (name, servers) = match config.claim_log {
        ClaimLogKind::Native => return problems,
        ClaimLogKind::Kafka => ("kafka.servers", &config.kafka.servers),
        ClaimLogKind::Rocketmq => ("rocketmq.name_servers", &config.rocketmq.name_servers),
    };
    if servers.is_empty() {
        problems.push(format!("{name} is empty: claim_log says that claims go there"));
    }
    if config.lane.batch_max > MESSAGE_CLAIMS_MAX {
        problems.push(format!(
            "lane.batch_max = {}: with a broker as claim_log at most {MESSAGE_CLAIMS_MAX}, for a batch is \
             one message",
            config.lane.batch_max
        ));
    }
    problems
}

/// Which addresses there are, and how they are spoken to.
fn check_doors(config: &Config) -> Vec<String> {
    let (http, mut problems) = (&config.http, Vec::new());
    if http.tls_cert_file.as_os_str().is_empty() != http.tls_key_file.as_os_str().is_empty() {
        problems.push("http.tls_cert_file and http.tls_key_file: set both, or none".into());
    }
    if http.redirect_listen.is_some() && !http.has_tls() {
        problems.push(
            "http.redirect_listen is set, but there is no certificate: nothing to send anybody to"
                .into(),
        );
    }
    let doors = [
        ("listen", Some(config.listen)),
        ("http.admin_listen", http.admin_listen),
        ("http.redirect_listen", http.redirect_listen),
    ];
    for (n, (name, at)) in doors.iter().enumerate() {
        let taken = |(_, other): &&(&str, Option<std::net::SocketAddr>)| {
            at.is_some_and(|at| at.port() != 0 && *other == Some(at))
        };
        if let (Some(at), Some((earlier, _))) = (at, doors[..n].iter().find(taken)) {
            problems.push(format!("{name} = {at}: {earlier} is there already"));
        }
    }
    problems
}

/// The key decides the kind of algorithm. Were a public key ever allowed to serve as an HMAC
/// secret, everybody who knows it could sign.
fn check_algorithms(config: &Config) -> Option<String> {
    let named = &config.auth.jwt_algorithms;
    if named.is_empty() {
        return None;
    }
    if !config.auth.has_shop_key() {
        return Some("auth.jwt_algorithms is set, but none of the shop's keys is".into());
    }
    let by_secret = !config.auth.jwt_secret.is_empty();
    let fits = |name: &&String| HMAC_ALGORITHMS.contains(&name.as_str()) == by_secret;
    let wrong = named.iter().find(|name| !fits(name))?;
    let kind = if by_secret { "a secret" } else { "a public key" };
    Some(format!("auth.jwt_algorithms names {wrong}, which does not go with {kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DEFAULT_TOML,
        load::{flatten, insert},
    };

    #[test]
    fn every_key_has_a_rule_and_its_default_meets_it() {
        let default: toml::Table = DEFAULT_TOML.parse().unwrap();
        let leaves = flatten(default);
        for (key, value) in &leaves {
            let rule = rule_of(key).unwrap_or_else(|| panic!("no rule for {key}"));
            assert!(rule.is_met_by(value), "{key} = {value} {}", rule.sentence());
        }
        for (key, _) in RULES {
            assert!(leaves.iter().any(|(leaf, _)| leaf == key), "{key} is not in default.toml");
        }
    }

    #[test]
    fn the_secret_rules_are_on_the_secret_fields() {
        let mut full: toml::Table = DEFAULT_TOML.parse().unwrap();
        let long = Value::from("mysql://a long enough text to be a secret");
        for (key, rule) in RULES.iter().filter(|(_, rule)| rule.is_secret()) {
            assert!(matches!(rule, Rule::Secret(_) | Rule::Url(_)));
            insert(&mut full, key, long.clone());
        }
        let config: Config = full.try_into().unwrap();
        let shown = flatten(toml::Table::try_from(&config).unwrap());
        for (key, value) in shown {
            let redacted = value.as_str() == Some(REDACTED);
            assert_eq!(redacted, rule_of(&key).unwrap().is_secret(), "{key}");
        }
    }

    #[test]
    fn values_at_the_edges() {
        let number = Rule::Number(1, 10);
        for (value, met) in [(0, false), (1, true), (10, true), (11, false), (i64::MIN, false)] {
            assert_eq!(number.is_met_by(&Value::from(value)), met, "{value}");
        }
        assert!(!number.is_met_by(&Value::from("1")));
        assert!(!Rule::Secret(16).is_met_by(&Value::from(REDACTED)));
        assert!(!Rule::Url(&["redis://"]).is_met_by(&Value::from("redis://")));
        assert!(!Rule::Url(&["redis://"]).is_met_by(&Value::from("红色的://x")));
        assert!(Rule::Url(&["redis://"]).is_met_by(&Value::from("REDIS://h")));
    }
}
