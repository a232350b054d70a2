//! What can be set of the engine: one struct per section of the settings file, which the file and the
//! environment fill directly.

use std::{path::PathBuf, sync::Arc};

use ledger::{WebhookKind, mysql};
pub use payment::{AlipaySettings, WechatSettings};
use redis_link::{RedisAddress, RedisServers, TlsFiles};
use sale::Millis;
use serde::{Deserialize, Serialize};

use crate::Secret;

/// Everything the engine was told about its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub profile: Profile,
    pub roles: Vec<ProcessRole>,
    pub claim_log: orders::ClaimLogKind,
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
    /// The built-in cashier, where it is switched on.
    pub sandbox: Option<SandboxSettings>,
    pub providers: ProviderSettings,
    pub external: External,
    pub alerts: Alerts,
    pub push: Push,
    pub webhooks: Webhooks,
    pub door: DoorSettings,
}

impl Settings {
    /// Is this process for that? Solo is for everything.
    pub fn does(&self, role: ProcessRole) -> bool {
        self.profile == Profile::Solo || self.roles.contains(&role)
    }
}

/// One process, nothing set, and nobody can pay: what is for demos alone is never on by default.
impl Default for Settings {
    fn default() -> Self {
        Settings {
            profile: Profile::Solo,
            roles: vec![ProcessRole::Web, ProcessRole::Worker, ProcessRole::Jobs],
            claim_log: orders::ClaimLogKind::Native,
            redis: Redis::default(),
            ledger: LedgerStore::default(),
            lane: gate::LaneOptions::default(),
            gate: Gate::default(),
            look_back: LookBack::default(),
            relay: orders::RelayOptions::default(),
            kafka: orders::KafkaOptions::default(),
            rocketmq: orders::RocketmqOptions::default(),
            orders: orders::Options::default(),
            jobs: Jobs::default(),
            sandbox: None,
            providers: ProviderSettings::default(),
            external: External::default(),
            alerts: Alerts::default(),
            push: Push::default(),
            webhooks: Webhooks::default(),
            door: DoorSettings::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    Solo,
    Cluster,
}

/// What a process of the cluster does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessRole {
    Web,
    Worker,
    Jobs,
}

/// Where the cluster's gate lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    /// Secret, because it may carry a password.
    pub url: Secret,
    pub tls_ca_file: PathBuf,
    pub tls_cert_file: PathBuf,
    pub tls_key_file: PathBuf,
    pub sentinel_user: String,
    pub sentinel_password: Secret,
    pub prefix: String,
    pub partitions: usize,
    pub answer_ms_max: u64,
    pub takeover_ms: u64,
    pub wait_replicas: u32,
    pub wait_ms_max: u64,
}

impl Default for Redis {
    fn default() -> Self {
        Redis {
            url: Secret::default(),
            tls_ca_file: PathBuf::new(),
            tls_cert_file: PathBuf::new(),
            tls_key_file: PathBuf::new(),
            sentinel_user: String::new(),
            sentinel_password: Secret::default(),
            prefix: "seckill".into(),
            partitions: 16,
            answer_ms_max: 2_000,
            takeover_ms: 15_000,
            wait_replicas: 0,
            wait_ms_max: 1_000,
        }
    }
}

impl Redis {
    /// Where the servers are, as the settings say.
    pub fn servers(&self) -> redis::RedisResult<Arc<RedisServers>> {
        RedisServers::new(&RedisAddress {
            url: self.url.expose().into(),
            tls: TlsFiles {
                ca: self.tls_ca_file.clone(),
                cert: self.tls_cert_file.clone(),
                key: self.tls_key_file.clone(),
            },
            sentinel_user: self.sentinel_user.clone(),
            sentinel_password: self.sentinel_password.expose().into(),
        })
    }
}

/// Where the cluster's ledger lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerStore {
    pub url: Secret,
    pub tls_ca_file: PathBuf,
    pub tls_cert_file: PathBuf,
    pub tls_key_file: PathBuf,
    pub connections_max: usize,
}

impl Default for LedgerStore {
    fn default() -> Self {
        LedgerStore {
            url: Secret::default(),
            tls_ca_file: PathBuf::new(),
            tls_cert_file: PathBuf::new(),
            tls_key_file: PathBuf::new(),
            connections_max: mysql::CONNECTIONS_MAX_DEFAULT,
        }
    }
}

impl LedgerStore {
    /// How the ledger uses its server, as the settings say.
    pub(crate) fn options(&self) -> mysql::Options {
        mysql::Options {
            connections_max: self.connections_max,
            tls: mysql::TlsFiles {
                ca: self.tls_ca_file.clone(),
                cert: self.tls_cert_file.clone(),
                key: self.tls_key_file.clone(),
            },
            ..mysql::Options::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    pub log_claims_max: u64,
    pub sold_out_cache_ms_max: u64,
    pub warm_before_ms: u64,
    pub keep_after_close_ms: u64,
}

impl Default for Gate {
    fn default() -> Self {
        Gate {
            log_claims_max: 1_000_000,
            sold_out_cache_ms_max: 1_000,
            warm_before_ms: 600_000,
            keep_after_close_ms: 3_600_000,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jobs {
    pub timeout_poll_ms: u64,
    pub timeout_batch_max: usize,
    pub outbox_poll_ms: u64,
    pub outbox_batch_max: usize,
    pub reconcile_every_ms: u64,
    pub reconcile_whole_hour_utc: u64,
    pub warm_poll_ms: u64,
    pub catalogue_refresh_ms: u64,
    pub count_every_ms: u64,
    /// 0: never.
    pub archive_after_ms: u64,
}

impl Default for Jobs {
    fn default() -> Self {
        Jobs {
            timeout_poll_ms: 250,
            timeout_batch_max: 500,
            outbox_poll_ms: 500,
            outbox_batch_max: 500,
            reconcile_every_ms: 300_000,
            reconcile_whole_hour_utc: 19,
            warm_poll_ms: 1_000,
            catalogue_refresh_ms: 1_000,
            count_every_ms: 2_000,
            archive_after_ms: 0,
        }
    }
}

/// What the claim log keeps of what is settled, for those who look back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookBack {
    pub keep_ms: u64,
    pub journal_bytes_max: u64,
    pub redis_bytes_max: u64,
}

impl Default for LookBack {
    fn default() -> Self {
        LookBack { keep_ms: 86_400_000, journal_bytes_max: 128 << 20, redis_bytes_max: 32 << 20 }
    }
}

impl LookBack {
    pub(crate) fn in_journal(&self) -> gate::Keep {
        gate::Keep { ms: self.keep_ms, bytes_max: self.journal_bytes_max }
    }

    pub(crate) fn in_redis(&self) -> gate::Keep {
        gate::Keep { ms: self.keep_ms, bytes_max: self.redis_bytes_max }
    }
}

/// The built-in cashier. Empty `file`: one in the data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxSettings {
    pub file: PathBuf,
    pub merchant: String,
}

/// The companies that take real money for this deployment, each off unless its merchant is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderSettings {
    /// Where buyers and providers reach us, without a slash at its end.
    pub public_url: String,
    pub wechat: WechatSettings,
    pub alipay: AlipaySettings,
}

impl ProviderSettings {
    /// Where a provider tells us of payments.
    pub(crate) fn notify_url(&self, provider: &str) -> String {
        format!("{}/api/v1/payments/{provider}/notify", self.public_url.trim_end_matches('/'))
    }
}

/// The shop's own cashier. On where it has a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct External {
    pub secrets: Vec<Secret>,
    pub url: String,
    pub close_answer_ms_max: Millis,
    pub refund_repeat_ms: Millis,
}

impl Default for External {
    fn default() -> Self {
        External {
            secrets: Vec::new(),
            url: String::new(),
            close_answer_ms_max: 10_000,
            refund_repeat_ms: 3_600_000,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alerts {
    /// Secret, because chat services put the key into the address.
    pub webhook_url: Secret,
    pub robots: Vec<RobotSetting>,
    pub webhook_timeout_ms: u64,
    pub raise_after_ms: u64,
    pub resolve_after_ms: u64,
    pub backlog_age_ms_max: u64,
    pub disk_low_bytes: u64,
    pub disk_full_bytes: u64,
}

/// A robot of a chat service that tells people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RobotSetting {
    pub kind: orders::RobotKind,
    /// With its key.
    pub url: Secret,
    #[serde(default)]
    pub secret: Secret,
}

impl Default for Alerts {
    fn default() -> Self {
        Alerts {
            webhook_url: Secret::default(),
            robots: Vec::new(),
            webhook_timeout_ms: 5_000,
            raise_after_ms: 5_000,
            resolve_after_ms: 30_000,
            backlog_age_ms_max: 60_000,
            disk_low_bytes: 2 << 30,
            disk_full_bytes: 512 << 20,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Push {
    pub streams_max: usize,
    pub streams_per_user_max: usize,
    pub queue_max: usize,
    pub heartbeat_ms: u64,
}

impl Default for Push {
    fn default() -> Self {
        Push { streams_max: 10_000, streams_per_user_max: 4, queue_max: 64, heartbeat_ms: 15_000 }
    }
}

/// What buyers do for a sale token, and when they have to wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoorSettings {
    pub token_before_ms: u64,
    pub challenge_ttl_ms: u64,
    pub wrong_answers_max: u32,
    pub wrong_cool_down_ms: u64,
    pub unpaid_closes_max: u64,
    pub unpaid_window_ms: u64,
    pub unpaid_cool_down_ms: u64,
}

impl Default for DoorSettings {
    fn default() -> Self {
        DoorSettings {
            token_before_ms: 300_000,
            challenge_ttl_ms: 300_000,
            wrong_answers_max: 5,
            wrong_cool_down_ms: 60_000,
            unpaid_closes_max: 5,
            unpaid_window_ms: 3_600_000,
            unpaid_cool_down_ms: 1_800_000,
        }
    }
}

/// How the shop's backend is told of what happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhooks {
    pub endpoints: Vec<WebhookSetting>,
    pub allowed_hosts: Vec<String>,
    pub tls_ca_file: PathBuf,
    pub endpoints_max: usize,
    pub concurrent_max: usize,
    pub timeout_ms: u64,
    pub retry_ladder_ms: Vec<Millis>,
    pub down_pause_ms_max: u64,
    pub give_up_after_ms: Millis,
    pub switch_off_after_ms: Millis,
    pub rotation_ms: Millis,
    pub keep_delivered_ms: Millis,
    pub keep_failed_ms: Millis,
}

/// An endpoint that may be anywhere, because the author of the settings says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookSetting {
    pub url: String,
    pub secret: Secret,
    #[serde(default)]
    pub events: Vec<WebhookKind>,
}

impl Default for Webhooks {
    fn default() -> Self {
        const MINUTE: Millis = 60_000;
        const HOUR: Millis = 60 * MINUTE;
        const DAY: Millis = 24 * HOUR;
        Webhooks {
            endpoints: Vec::new(),
            allowed_hosts: Vec::new(),
            tls_ca_file: PathBuf::new(),
            endpoints_max: 16,
            concurrent_max: 16,
            timeout_ms: 10_000,
            retry_ladder_ms: vec![
                5_000,
                30_000,
                2 * MINUTE,
                10 * MINUTE,
                30 * MINUTE,
                HOUR,
                2 * HOUR,
                4 * HOUR,
                8 * HOUR,
                12 * HOUR,
            ],
            down_pause_ms_max: 60_000,
            give_up_after_ms: 3 * DAY,
            switch_off_after_ms: 5 * DAY,
            rotation_ms: DAY,
            keep_delivered_ms: 7 * DAY,
            keep_failed_ms: 30 * DAY,
        }
    }
}
