//! Redis: can the gate keep its word on it?
//!
//! Of a Redis Cluster every master is asked, for each of them holds promises of its own. All of it
//! is read; the one thing that is written is how many partitions there are
//! ([`agree_on_partitions`]): two instances that count differently would look for one item in
//! different places, and each would sell all of it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use redis::{InfoDict, RedisResult, aio::MultiplexedConnection};
use redis_link::{LinkOptions, RedisServers, Server};
use sale::{Clock, SystemClock};

use super::{CLOCK_OFFSET_MS_MAX, CheckResult};
use crate::settings;

const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const OPTIONS: LinkOptions =
    LinkOptions { answer_within: ANSWER_WITHIN, connections: 1, may_ask_twice: true };
/// The oldest with all that the scripts use.
const OLDEST: [u32; 2] = [7, 0];
const SETTINGS: [&str; 5] = [
    "appendonly",
    "appendfsync",
    "maxmemory-policy",
    "min-replicas-to-write",
    "cluster-require-full-coverage",
];

/// What one server says of itself.
#[derive(Clone, Debug, Default)]
struct Facts {
    /// Of Redis. Whoever only speaks as Redis does tells which one, and is judged by that.
    version: String,
    /// What it is in truth, where that is Valkey.
    valkey_version: Option<String>,
    is_master: bool,
    replicas: u32,
    /// Only of a member of a cluster.
    cluster_state: Option<String>,
    /// Those that it tells; a hosted one may tell none.
    settings: HashMap<String, String>,
    clock_offset_ms: i64,
}

impl Facts {
    /// What `INFO` says; the rest is asked for.
    fn told_by(info: &InfoDict) -> Facts {
        Facts {
            version: info.get("redis_version").unwrap_or_default(),
            valkey_version: info.get("valkey_version"),
            is_master: info.get::<String>("role").is_some_and(|role| role == "master"),
            replicas: info.get("connected_slaves").unwrap_or(0),
            ..Facts::default()
        }
    }
}

/// Everything that can be checked without changing anything.
pub async fn check(settings: &settings::Redis) -> Vec<CheckResult> {
    match settings.servers() {
        Ok(servers) => check_at(settings, &servers).await,
        Err(error) => vec![CheckResult::Fail(format!("Redis cannot be reached: {error}"))],
    }
}

pub(crate) async fn check_at(
    settings: &settings::Redis,
    servers: &Arc<RedisServers>,
) -> Vec<CheckResult> {
    let mut findings = Vec::new();
    match servers.all(ANSWER_WITHIN).await {
        Ok(all) => {
            for server in all {
                let of_cluster = servers.is_cluster();
                findings.extend(check_server(&server, of_cluster, settings.wait_replicas).await);
            }
        }
        Err(error) => return vec![CheckResult::Fail(format!("Redis does not answer: {error}"))],
    }
    findings.push(match partitions_kept(settings, servers, None).await {
        Ok(kept) => judge_partitions(settings.partitions, kept),
        Err(error) => CheckResult::Fail(format!("Redis does not answer: {error}")),
    });
    findings
}

/// Does somebody answer who can tell? Of a cluster the two without whom nobody starts, who may be two
/// servers: one says how many partitions there are, the other which items are at the gate.
pub(crate) async fn try_out(settings: &settings::Redis) -> RedisResult<()> {
    let servers = settings.servers()?;
    partitions_kept(settings, &servers, None).await?;
    let items = redis::cmd("HLEN").arg(format!("{}:items", settings.prefix)).to_owned();
    servers.link(OPTIONS).await?.ask::<u64>(&items).await.map(drop)
}

/// The first instance says how many partitions there are; the others must count the same.
pub(crate) async fn agree_on_partitions(
    settings: &settings::Redis,
    servers: &Arc<RedisServers>,
) -> RedisResult<CheckResult> {
    let kept = partitions_kept(settings, servers, Some(settings.partitions)).await?;
    Ok(judge_partitions(settings.partitions, kept))
}

async fn partitions_kept(
    settings: &settings::Redis,
    servers: &Arc<RedisServers>,
    wanted: Option<usize>,
) -> RedisResult<Option<usize>> {
    let link = servers.link(OPTIONS).await?;
    let key = format!("{}:partitions", settings.prefix);
    if let Some(wanted) = wanted {
        let set = redis::cmd("SET").arg(&key).arg(wanted).arg("NX").to_owned();
        link.ask::<redis::Value>(&set).await?;
    }
    link.ask(redis::cmd("GET").arg(&key)).await
}

fn judge_partitions(wanted: usize, kept: Option<usize>) -> CheckResult {
    match kept {
        None => CheckResult::Ok(format!("redis.partitions is {wanted}, nobody has started yet")),
        Some(kept) if kept == wanted => {
            CheckResult::Ok(format!("redis.partitions is {wanted}, here and in Redis"))
        }
        Some(kept) => CheckResult::Refuse(format!(
            "redis.partitions is {wanted} here, and the instances before this one used {kept}: it \
             must be the same everywhere"
        )),
    }
}

async fn check_server(server: &Server, of_cluster: bool, wait_replicas: u32) -> Vec<CheckResult> {
    let facts = match &server.connection {
        Ok(connection) => facts(connection.clone()).await,
        Err(error) => {
            return vec![CheckResult::Fail(format!(
                "Redis {} does not answer: {error}",
                server.name
            ))];
        }
    };
    match facts {
        Ok(facts) => judge(&server.name, &facts, of_cluster, wait_replicas),
        Err(error) => {
            vec![CheckResult::Fail(format!("Redis {} does not answer: {error}", server.name))]
        }
    }
}

async fn facts(mut connection: MultiplexedConnection) -> RedisResult<Facts> {
    let info: InfoDict = redis::cmd("INFO").query_async(&mut connection).await?;
    let mut facts = Facts::told_by(&info);
    if info.get::<u8>("cluster_enabled") == Some(1) {
        let state: InfoDict =
            redis::cmd("CLUSTER").arg("INFO").query_async(&mut connection).await?;
        facts.cluster_state = state.get("cluster_state");
    }
    for name in SETTINGS {
        let asked = redis::cmd("CONFIG").arg("GET").arg(name).query_async(&mut connection).await;
        // Hosted servers refuse the question.
        let told: HashMap<String, String> = asked.unwrap_or_default();
        facts.settings.extend(told);
    }
    let before_ms = SystemClock.now_ms();
    let (s, us): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
    // Half of the journey there and back.
    let ours_ms = before_ms + (SystemClock.now_ms() - before_ms) / 2;
    facts.clock_offset_ms = s * 1_000 + us / 1_000 - ours_ms;
    Ok(facts)
}

fn judge(name: &str, facts: &Facts, of_cluster: bool, wait_replicas: u32) -> Vec<CheckResult> {
    let mut findings = vec![judge_version(&facts.version, facts.valkey_version.as_deref())];
    findings.extend(judge_role(facts, of_cluster));
    let setting = |name: &str| facts.settings.get(name).map(String::as_str);
    findings.push(judge_file(setting("appendonly"), setting("appendfsync")));
    findings.push(judge_memory(setting("maxmemory-policy")));
    findings.push(judge_replicas(facts.replicas, setting("min-replicas-to-write"), wait_replicas));
    if of_cluster {
        findings.extend(judge_coverage(setting("cluster-require-full-coverage")));
    }
    findings.push(judge_clock(facts.clock_offset_ms));
    let named = |text: String| format!("Redis {name}: {text}");
    let named = |finding| match finding {
        CheckResult::Ok(text) => CheckResult::Ok(named(text)),
        CheckResult::Warn(text) => CheckResult::Warn(named(text)),
        CheckResult::Danger(text) => CheckResult::Danger(named(text)),
        CheckResult::Fail(text) => CheckResult::Fail(named(text)),
        CheckResult::Refuse(text) => CheckResult::Refuse(named(text)),
    };
    findings.into_iter().map(named).collect()
}

fn judge_version(version: &str, valkey: Option<&str>) -> CheckResult {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let known = [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)];
    if known < OLDEST {
        return CheckResult::Fail(format!("version {version}: 7.0 is the oldest that will do"));
    }
    CheckResult::Ok(match valkey {
        Some(valkey) => format!("Valkey {valkey}, which speaks as Redis {version}"),
        None => format!("version {version}"),
    })
}

fn judge_role(facts: &Facts, of_cluster: bool) -> Option<CheckResult> {
    if !facts.is_master {
        return Some(CheckResult::Fail("this is a replica: use the primary".into()));
    }
    match (&facts.cluster_state, of_cluster) {
        (Some(_), false) => Some(CheckResult::Fail(
            "a member of a cluster: give the addresses of several of its members".into(),
        )),
        (Some(state), true) if state != "ok" => Some(CheckResult::Fail(format!(
            "cluster_state is {state}: some slots are served by nobody"
        ))),
        (Some(_), true) => Some(CheckResult::Ok("cluster_state is ok".into())),
        (None, _) => None,
    }
}

fn judge_file(appendonly: Option<&str>, appendfsync: Option<&str>) -> CheckResult {
    match (appendonly, appendfsync) {
        (Some("yes"), Some("always")) => CheckResult::Ok(
            "every promise is on disk before it is given (appendfsync always)".into(),
        ),
        (Some("yes"), Some("everysec")) => CheckResult::Warn(
            "appendfsync is everysec: a crash loses the promises of the last second, until their \
             receipts are presented"
                .into(),
        ),
        (Some("yes"), Some(other)) => CheckResult::Warn(format!(
            "appendfsync is {other}: a crash of the machine loses promises, set it to always"
        )),
        (None, _) | (Some("yes"), None) => {
            CheckResult::Warn("appendonly and appendfsync cannot be read".into())
        }
        (Some(other), _) => CheckResult::Warn(format!(
            "appendonly is {other}: a restart loses every promise that is not an order, set it to yes"
        )),
    }
}

/// Whatever is evicted, it is wrong: a mark lets a buyer buy twice, a stock or stream sells anew or
/// loses what was sold, a lease lets two instances hand out the same order numbers.
fn judge_memory(policy: Option<&str>) -> CheckResult {
    match policy {
        Some("noeviction") => CheckResult::Ok("nothing is evicted".into()),
        Some(other) => CheckResult::Refuse(format!(
            "maxmemory-policy is {other}: it would throw out claims to make room, set it to noeviction"
        )),
        None => CheckResult::Warn("maxmemory-policy cannot be read: it must be noeviction".into()),
    }
}

fn judge_replicas(replicas: u32, min_to_write: Option<&str>, wait_replicas: u32) -> CheckResult {
    let text = format!("{replicas} replicas");
    if replicas < wait_replicas {
        return CheckResult::Fail(format!(
            "{text}, and redis.wait_replicas is {wait_replicas}: nobody would be admitted"
        ));
    }
    let min_to_write: Option<u32> = min_to_write.and_then(|min| min.parse().ok());
    if let Some(min) = min_to_write.filter(|min| replicas < *min) {
        return CheckResult::Fail(format!(
            "{text}, and min-replicas-to-write is {min}: it refuses every write until there are more"
        ));
    }
    if replicas > 0 && min_to_write == Some(0) {
        return CheckResult::Warn(format!(
            "{text}, and min-replicas-to-write is 0: a primary that is cut off goes on admitting, and \
             all of that is lost; set it to 1"
        ));
    }
    match min_to_write.filter(|min| *min > 0) {
        Some(min) => CheckResult::Ok(format!(
            "{text}, and one that is cut off from them admits nobody (min-replicas-to-write {min})"
        )),
        None => CheckResult::Ok(text),
    }
}

fn judge_coverage(require_all: Option<&str>) -> Option<CheckResult> {
    Some(match require_all? {
        "no" => CheckResult::Ok(
            "a dead master stops only its own slots (cluster-require-full-coverage no)".into(),
        ),
        other => CheckResult::Warn(format!(
            "cluster-require-full-coverage is {other}: one dead master without a replica stops all the \
             others, set it to no"
        )),
    })
}

fn judge_clock(offset_ms: i64) -> CheckResult {
    let text = format!("its clock is {offset_ms} ms ahead of ours");
    if offset_ms.abs() > CLOCK_OFFSET_MS_MAX {
        return CheckResult::Warn(format!("{text}: sales open and close by it, check NTP on both"));
    }
    CheckResult::Ok(text)
}

#[cfg(test)]
mod tests {
    use faults::services::{Redis, RedisCluster, RedisOptions};

    use super::*;
    use crate::{Secret, Settings};

    fn good() -> Facts {
        let settings = ["yes", "always", "noeviction", "0", "no"];
        let settings = SETTINGS.iter().zip(settings);
        Facts {
            version: "7.0.15".into(),
            is_master: true,
            settings: settings.map(|(name, value)| ((*name).into(), value.into())).collect(),
            ..Facts::default()
        }
    }

    /// What is not good about a server that differs from a good one.
    fn complaints(change: impl FnOnce(&mut Facts)) -> Vec<CheckResult> {
        let mut facts = good();
        change(&mut facts);
        let findings = judge("r1:6379", &facts, false, 0).into_iter();
        findings.filter(|finding| !matches!(finding, CheckResult::Ok(_))).collect()
    }

    fn set(name: &'static str, value: &'static str) -> impl FnOnce(&mut Facts) {
        move |facts: &mut Facts| drop(facts.settings.insert(name.into(), value.into()))
    }

    #[test]
    fn each_way_to_lose_a_promise_is_told() {
        assert_eq!(complaints(|_| {}), []);
        let one = |found: Vec<CheckResult>| <[CheckResult; 1]>::try_from(found).unwrap()[0].clone();
        let policy = one(complaints(set("maxmemory-policy", "volatile-lru")));
        assert!(matches!(&policy, CheckResult::Refuse(text)
            if text.starts_with("Redis r1:6379: maxmemory-policy is volatile-lru")));
        for (name, value) in
            [("appendonly", "no"), ("appendfsync", "everysec"), ("appendfsync", "no")]
        {
            let found = one(complaints(set(name, value)));
            assert!(matches!(&found, CheckResult::Warn(text) if text.contains(name)), "{found:?}");
        }
        let old = one(complaints(|facts| facts.version = "6.2.14".into()));
        assert!(matches!(old, CheckResult::Fail(_)));
        assert!(matches!(one(complaints(|facts| facts.is_master = false)), CheckResult::Fail(_)));
        assert!(matches!(one(complaints(|facts| facts.replicas = 1)), CheckResult::Warn(_)));
        assert!(matches!(one(complaints(|f| f.clock_offset_ms = -1_001)), CheckResult::Warn(_)));
        let member = one(complaints(|facts| facts.cluster_state = Some("ok".into())));
        assert!(matches!(member, CheckResult::Fail(_)), "one address leads to one member");
        let mut facts = good();
        facts.cluster_state = Some("fail".into());
        let broken = judge("r", &facts, true, 1);
        assert_eq!(broken.iter().filter(|f| matches!(f, CheckResult::Fail(_))).count(), 2);
        let one_for_all = judge_coverage(Some("yes"));
        assert!(
            matches!(one_for_all, Some(CheckResult::Warn(text)) if text.contains("set it to no"))
        );
        assert!(matches!(judge_coverage(Some("no")), Some(CheckResult::Ok(_))));
        let short = one(complaints(set("min-replicas-to-write", "1")));
        assert!(matches!(short, CheckResult::Fail(_)), "{short:?}");
        assert!(matches!(judge_replicas(1, Some("1"), 1), CheckResult::Ok(_)));
        let silent = complaints(|facts| facts.settings.clear());
        assert_eq!(silent.len(), 2, "a hosted server: {silent:?}");
    }

    #[test]
    fn a_server_that_speaks_as_redis_is_called_by_its_name() {
        let version = |lines: &str| {
            let facts = Facts::told_by(&InfoDict::new(lines));
            judge_version(&facts.version, facts.valkey_version.as_deref())
        };
        let valkey =
            "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n";
        let told = CheckResult::Ok("Valkey 8.1.1, which speaks as Redis 7.2.4".into());
        assert_eq!(version(valkey), told);
        let redis = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n";
        assert_eq!(version(redis), CheckResult::Ok("version 7.0.15".into()));
    }

    async fn agreed(settings: &settings::Redis) -> CheckResult {
        agree_on_partitions(settings, &settings.servers().unwrap()).await.unwrap()
    }

    fn config_of(redis: &Redis) -> settings::Redis {
        let mut settings = Settings::default().redis;
        settings.url = Secret::new(redis.url());
        settings
    }

    #[tokio::test]
    async fn a_real_server_is_checked() {
        let redis = Redis::start(RedisOptions::default()).unwrap();
        let mut settings = config_of(&redis);
        let found = check(&settings).await;
        assert!(found.iter().all(|finding| matches!(finding, CheckResult::Ok(_))), "{found:?}");
        assert_eq!(found.len(), 6, "{found:?}");
        // The first instance decides how many partitions there are.
        let first = agreed(&settings).await;
        assert!(matches!(first, CheckResult::Ok(_)));
        settings.partitions += 1;
        let disagreed = agreed(&settings).await;
        assert!(matches!(disagreed, CheckResult::Refuse(_)), "{disagreed:?}");
        assert!(check(&settings).await.contains(&disagreed));
        drop(redis);
        let gone = check(&settings).await;
        assert!(matches!(&gone[..], [CheckResult::Fail(_)]), "{gone:?}");
    }

    #[tokio::test]
    async fn every_master_of_a_real_cluster_is_checked() {
        let cluster = RedisCluster::start().unwrap();
        let mut settings = Settings::default().redis;
        settings.url = Secret::new(cluster.urls());
        let first = agreed(&settings).await;
        assert!(matches!(first, CheckResult::Ok(_)), "{first:?}");
        let found = check(&settings).await;
        let texts = found.iter().map(|finding| format!("{finding:?}"));
        let states = texts.filter(|text| text.contains("cluster_state is ok"));
        assert_eq!(states.count(), 3, "{found:?}");
        assert!(found.contains(&first), "{found:?}");
        let bad = |finding: &CheckResult| {
            matches!(finding, CheckResult::Fail(_) | CheckResult::Refuse(_))
        };
        assert!(!found.iter().any(bad), "{found:?}");
        // One member's address alone is not enough: most slots are elsewhere.
        settings.url = Secret::new(cluster.nodes()[0].url());
        assert!(check(&settings).await.iter().any(bad));
    }

    #[tokio::test]
    async fn nothing_starts_on_a_redis_that_evicts() {
        let extra = vec!["--maxmemory-policy".into(), "allkeys-lru".into()];
        let redis = Redis::start(RedisOptions { extra, ..RedisOptions::default() }).unwrap();
        let mut settings = Settings::default();
        settings.profile = settings::Profile::Cluster;
        settings.redis = config_of(&redis);
        // Nobody gets as far as the ledger, which is nowhere.
        settings.ledger.url = Secret::new("mysql://root@127.0.0.1:1/none");
        let data = tempfile::tempdir().unwrap();
        let clock = Arc::new(SystemClock);
        let opened = crate::Parts::open(&settings, data.path(), clock).await;
        let refused = opened.err().expect("it is refused").to_string();
        assert!(refused.contains("maxmemory-policy is allkeys-lru"), "{refused}");
    }
}
