//! What an operator copies onto a machine is read by the programs it is for.
//!
//! What can be run is run: nginx, Redis, MariaDB. There is no systemd and no container engine here;
//! units are verified offline, and the compose file is parsed and compared with what exists.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use faults::services::{MariaDb, MariaDbOptions, Nginx, Redis, RedisOptions, Reply, find_program};

/// A hardened service is far below; one without any care has 9.6.
const EXPOSURE_MAX: &str = "20";
/// Python as Debian packages it: only that one surely has Debian's YAML reader.
const PYTHON: &str = "/usr/bin/python3";

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn deploy(file: &str) -> PathBuf {
    top().join("deploy").join(file)
}

fn words_of(output: &Output) -> String {
    let words = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&words).into_owned()
}

/// Every setting there is, by the name it has in the environment.
fn settings() -> BTreeSet<String> {
    let default = fs::read_to_string(top().join("crates/config/src/default.toml")).unwrap();
    let mut section = String::new();
    let mut names: BTreeSet<String> =
        ["SECKILL_ADMIN_TOKEN", "SECKILL_JWT_SECRET"].map(String::from).into();
    for line in default.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}_", name.trim_end_matches(']'));
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            names.insert(format!("SECKILL_{section}{key}").to_uppercase());
        }
    }
    assert!(names.contains("SECKILL_HTTP_PROXY_HOPS"), "{names:?}");
    names
}

#[test]
fn systemd_accepts_the_units_and_finds_them_hardened() {
    let analyze = find_program("systemd-analyze", "systemd").unwrap();
    let folder = tempfolder("units");
    for (file, instance) in
        [("seckill.service", "seckill.service"), ("seckill@.service", "seckill@web.service")]
    {
        let unit = fs::read_to_string(deploy("systemd").join(file)).unwrap();
        // Verifying asks whether the program can be executed, and it is not installed here.
        let verifiable = unit.replace("/usr/local/bin/seckill ", "/bin/true ");
        assert_ne!(unit, verifiable);
        let copy = folder.join(file);
        fs::write(&copy, verifiable).unwrap();
        let verify = Command::new(&analyze)
            .args(["verify", "--man=no"])
            .arg(folder.join(instance))
            .output()
            .unwrap();
        let words = words_of(&verify);
        let ours: Vec<&str> = words.lines().filter(|line| line.contains("seckill")).collect();
        assert!(verify.status.success() && ours.is_empty(), "{words}");

        let security = Command::new(&analyze)
            .args(["security", "--offline=true", "--no-pager"])
            .arg(format!("--threshold={EXPOSURE_MAX}"))
            .arg(&copy)
            .output()
            .unwrap();
        let words = words_of(&security);
        println!("{file}: {}", words.lines().last().unwrap_or_default());
        assert!(security.status.success(), "{words}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn environment_files_hold_settings_that_exist() {
    let settings = settings();
    let mut files = 0;
    for entry in fs::read_dir(deploy("systemd")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "env") {
            continue;
        }
        files += 1;
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, _) = line.split_once('=').unwrap();
            assert!(settings.contains(name), "{}: {name}", path.display());
        }
    }
    assert_eq!(files, 5);
}

/// What belongs to a demo has no place in what a shop copies: orders could be paid without money.
#[test]
fn nothing_of_the_demo_is_switched_on() {
    let mut files: Vec<PathBuf> =
        fs::read_dir(deploy("systemd")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.extend([deploy("compose.yaml"), deploy("Containerfile")]);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
            let demo = ["SECKILL_DEMO", "SECKILL_PAYMENT_SANDBOX", "SECKILL_AUTH_DEV_LOGIN"];
            let named = demo.iter().any(|name| {
                let after = line.split_once(name).map(|(_, after)| after);
                after.is_some_and(|after| after.starts_with(['=', ':']))
            });
            assert!(!named || line.contains("false"), "{}: {line}", file.display());
        }
    }
}

#[test]
fn the_compose_file_is_sound_as_far_as_one_can_see_without_running_it() {
    let program =
        "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
    let parse = Command::new(PYTHON).args(["-c", program]).arg(deploy("compose.yaml")).output();
    let parse = parse.expect("/usr/bin/python3: apt-get install python3-yaml");
    assert!(parse.status.success(), "{}", words_of(&parse));
    let text = fs::read_to_string(deploy("compose.yaml")).unwrap();
    let settings = settings();
    let keys = text.lines().filter_map(|line| line.trim().split_once(": "));
    let keys: Vec<&str> =
        keys.map(|(key, _)| key).filter(|key| key.starts_with("SECKILL")).collect();
    assert!(keys.len() >= 8, "{keys:?}");
    for key in keys {
        assert!(settings.contains(key), "{key}");
    }
    for file in ["Containerfile", "redis.conf", "mysql.cnf"] {
        assert!(text.contains(file) && deploy(file).is_file(), "{file}");
    }
    for file in ["Containerfile", "compose.yaml"] {
        let head = fs::read_to_string(deploy(file)).unwrap();
        assert!(head.contains("# NOT RUN"), "{file} must say that nobody ran it");
    }
    for role in ["web", "worker", "jobs"] {
        assert!(text.contains(&format!("[serve, --role, {role}]")), "{role}");
    }
}

/// Prometheus' own tool, on the rules, on outages that must wake somebody, and on the example around them.
#[test]
fn prometheus_understands_its_rules_and_they_fire_when_they_should() {
    let promtool = find_program("promtool", "prometheus").unwrap();
    for (task, file) in [
        (["check", "rules"], "seckill.rules.yml"),
        (["test", "rules"], "seckill.rules.test.yml"),
        (["check", "config"], "prometheus.yml"),
    ] {
        let file = deploy("prometheus").join(file);
        let ran = Command::new(&promtool).args(task).arg(&file).output().unwrap();
        let words = words_of(&ran);
        assert!(ran.status.success() && words.contains("SUCCESS"), "{words}");
    }
    // Every alert says what is wrong and what to do.
    let rules = fs::read_to_string(deploy("prometheus/seckill.rules.yml")).unwrap();
    let of = |word: &str| rules.matches(word).count();
    assert_eq!((of("summary:"), of("description:")), (of("- alert:"), of("- alert:")));
}

#[test]
fn redis_runs_with_the_recommended_settings() {
    let file = deploy("redis.conf").display().to_string();
    // Ours are the opposite, so that what is seen comes from the file.
    let redis = Redis::start(RedisOptions {
        appendonly: false,
        appendfsync: "no".into(),
        extra: vec!["--include".into(), file],
        ..RedisOptions::default()
    })
    .unwrap();
    for (name, value) in [
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("save", ""),
        ("maxmemory", "2147483648"),
        ("maxmemory-policy", "noeviction"),
        ("repl-backlog-size", "268435456"),
        ("latency-monitor-threshold", "50"),
    ] {
        let said = redis.call(&["CONFIG", "GET", name]).unwrap();
        assert_eq!(said, Reply::List([name, value].map(|t| Reply::Text(t.into())).to_vec()));
    }
}

#[test]
fn mariadb_runs_with_the_recommended_settings() {
    let options =
        MariaDbOptions { defaults_file: Some(deploy("mysql.cnf")), ..MariaDbOptions::default() };
    let mariadb = MariaDb::start(options).unwrap();
    let said = mariadb
        .query(
            "SELECT @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@log_bin, @@binlog_format, \
             @@innodb_autoinc_lock_mode, @@innodb_lock_wait_timeout, @@max_connections",
        )
        .unwrap();
    // Ours win where both speak: connections.
    assert_eq!(said, "1\t1\t1\tROW\t2\t5\t400\n");
}

/// A stand-in for Seckill that tells what reached it. It hangs up on a claim that says so.
fn stand_in() -> SocketAddr {
    counting_stand_in().0
}

/// The same, and how many claims have reached it.
fn counting_stand_in() -> (SocketAddr, Arc<AtomicUsize>) {
    let claims = Arc::new(AtomicUsize::new(0));
    let counted = claims.clone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let counted = counted.clone();
            thread::spawn(move || answer_all(stream, &counted));
        }
    });
    (address, claims)
}

fn answer_all(stream: TcpStream, claims: &AtomicUsize) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    let mut count = 0;
    loop {
        let mut head = String::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        let length = head.to_lowercase().lines().find_map(|line| {
            line.strip_prefix("content-length: ").map(|n| n.trim().parse::<usize>().unwrap())
        });
        reader.read_exact(&mut vec![0; length.unwrap_or(0)]).unwrap();
        count += 1;
        let path = head.split(' ').nth(1).unwrap();
        if path.contains("/claims") {
            claims.fetch_add(1, Relaxed);
        }
        if head.contains("x-test: die") {
            return;
        }
        let body = format!("{head}on this connection: {count}\n");
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: public, max-age=60\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// curl over TLS, with the certificate checked. Answers status, headers and body as one text.
fn curl(nginx: &Nginx, path: &str, options: &[&str]) -> String {
    let output = Command::new(find_program("curl", "curl").unwrap())
        .args(["--silent", "--show-error", "--include", "--max-time", "20", "--noproxy", "*"])
        .arg("--cacert")
        .arg(nginx.certificate())
        .args(options)
        .arg(format!("{}{path}", nginx.url()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}\n{}", words_of(&output), nginx.log());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn nginx_stands_in_front_and_keeps_its_promises() {
    let nginx = Nginx::start(&[stand_in()]).unwrap();
    let check = nginx.check().unwrap();
    let words = words_of(&check);
    assert!(check.status.success() && words.contains("test is successful"), "{words}");
    assert!(!words.contains("[warn]"), "{words}");

    // Seckill learns who the buyer is from nginx and not from the buyer.
    let forged = ["--header", "X-Forwarded-For: 6.6.6.6", "--header", "Upgrade: h2c"];
    let seen = curl(&nginx, "/api/v1/orders", &forged).to_lowercase();
    assert_eq!(status(&seen), "200");
    assert!(seen.contains("x-forwarded-for: 127.0.0.1\r\n") && !seen.contains("6.6.6.6"), "{seen}");
    assert!(seen.contains("x-forwarded-proto: https\r\n"), "{seen}");
    assert!(!seen.contains("upgrade: h2c"), "{seen}");
    assert!(seen.contains("strict-transport-security:"), "{seen}");

    // One address may become a WebSocket, and is told the host as the page knows it.
    let upgrade =
        ["--http1.1", "--header", "Upgrade: websocket", "--header", "Connection: Upgrade"];
    let seen = curl(&nginx, "/api/v1/ws?ticket=t", &upgrade).to_lowercase();
    assert!(seen.contains("upgrade: websocket\r\nconnection: upgrade\r\n"), "{seen}");
    let host = nginx.url().replace("https://", "host: ");
    assert!(seen.contains(&format!("{host}\r\n")), "{seen}");

    // A claim with its token and key arrives whole, over a connection that is used again.
    let claim = ["--header", "X-Sale-Token: t", "--header", "Idempotency-Key: k", "--data", "{}"];
    curl(&nginx, "/api/v1/items/42/claims", &claim);
    let seen = curl(&nginx, "/api/v1/items/42/claims", &claim).to_lowercase();
    assert!(seen.contains("x-sale-token: t\r\n") && seen.contains("idempotency-key: k\r\n"));
    assert!(!seen.contains("on this connection: 1\n"), "{seen}");

    // The catalogue is read from a copy, and so is the page, for as long as Seckill says.
    for path in ["/api/v1/activities", "/api/v1/items/42", "/assets/style.css", "/", "/items/42"] {
        let first = curl(&nginx, path, &[]);
        let body = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        assert_eq!(body(&first), body(&curl(&nginx, path, &[])), "{path}");
    }
    // What belongs to one buyer is not.
    assert_ne!(curl(&nginx, "/api/v1/orders", &[]), curl(&nginx, "/api/v1/orders", &[]));

    // The inside stays inside; operators on the machine itself get through.
    for path in ["/metrics", "/readyz", "/readyz/settle", "/api/v1/dev/login"] {
        assert_eq!(status(&curl(&nginx, path, &[])), "404", "{path}");
    }
    assert_eq!(status(&curl(&nginx, "/api/v1/admin/overview", &[])), "200");

    // Its own refusals are in Seckill's words.
    let large = "x".repeat(20_000);
    let refused = curl(&nginx, "/api/v1/items/42/claims", &["--data", &large]);
    assert!(status(&refused) == "413" && refused.contains(r#""code":"too_large""#), "{refused}");
    // An instance that dies in the middle may have done it.
    let die = ["--header", "x-test: die", "--data", "{}"];
    let refused = curl(&nginx, "/api/v1/items/42/claims", &die);
    assert!(status(&refused) == "504" && refused.contains(r#""code":"unknown""#), "{refused}");
    assert!(refused.to_lowercase().contains("retry-after: 1\r\n"), "{refused}");

    // Without TLS there is only the way to TLS.
    let mut plain = TcpStream::connect(nginx.plain_address()).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    plain.write_all(b"GET /x HTTP/1.0\r\nHost: shop.example\r\n\r\n").unwrap();
    let mut seen = String::new();
    plain.read_to_string(&mut seen).unwrap();
    assert!(seen.contains(" 301 ") && seen.contains("https://shop.example/x\r\n"), "{seen}");
}

#[test]
fn nginx_slows_down_a_machine_and_says_so_in_the_words_of_seckill() {
    let nginx = Nginx::start(&[stand_in()]).unwrap();
    // One curl, one connection, far more than a person: the burst is passed, then it is enough.
    let path = format!("{}/api/v1/items/42/claims?n=[1-1500]", nginx.url());
    let output = Command::new(find_program("curl", "curl").unwrap())
        .args(["--silent", "--include", "--noproxy", "*", "--data", "{}", "--parallel"])
        .arg("--cacert")
        .arg(nginx.certificate())
        .arg(path)
        .output()
        .unwrap();
    let answers = String::from_utf8_lossy(&output.stdout).into_owned();
    let passed = answers.matches("HTTP/2 200").count();
    let refused = answers.matches("HTTP/2 429").count();
    assert_eq!(passed + refused, 1_500);
    assert!(passed >= 400 && refused > 0, "{passed} passed, {refused} were refused");
    assert_eq!(answers.matches(r#""code":"rate_limited""#).count(), refused);
    assert!(answers.contains("content-type: application/problem+json"));
}

#[test]
fn nginx_goes_on_with_one_of_two_and_sends_no_claim_twice() {
    let ((one, claims_of_one), (two, claims_of_two)) = (counting_stand_in(), counting_stand_in());
    let claims = || claims_of_one.load(Relaxed) + claims_of_two.load(Relaxed);
    let path = "/api/v1/items/42/claims";
    let nginx = Nginx::start(&[one, two]).unwrap();
    // Whoever has it may have done it: each is told so, and no other instance hears of it.
    for n in 1..=6 {
        let answer = curl(&nginx, path, &["--header", "x-test: die", "--data", "{}"]);
        assert!(status(&answer) == "504" && answer.contains(r#""code":"unknown""#), "{answer}");
        assert_eq!(claims(), n);
    }
    drop(nginx);

    // One that is not there has done nothing, and a claim moves on.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nginx = Nginx::start(&[nobody, two]).unwrap();
    let before = claims();
    for n in 1..=10 {
        assert_eq!(status(&curl(&nginx, path, &["--data", "{}"])), "200");
        assert_eq!(claims(), before + n);
    }
}

#[test]
fn a_file_ends_the_sale_at_nginx() {
    let (instance, claims) = counting_stand_in();
    let nginx = Nginx::start(&[instance]).unwrap();
    let claim = || curl(&nginx, "/api/v1/items/42/claims", &["--data", "{}"]);
    assert_eq!((status(&claim()), claims.load(Relaxed)), ("200", 1));
    nginx.end_the_sale(true).unwrap();
    for path in ["/api/v1/items/42/claims", "/api/v1/items/42/token"] {
        let refused = curl(&nginx, path, &["--data", "{}"]);
        assert!(status(&refused) == "403" && refused.contains(r#""code":"ended""#), "{refused}");
        assert!(refused.contains("content-type: application/problem+json"), "{refused}");
    }
    // Orders, pages and payments go on.
    assert_eq!(status(&curl(&nginx, "/api/v1/orders", &[])), "200");
    assert_eq!(claims.load(Relaxed), 1);
    nginx.end_the_sale(false).unwrap();
    assert_eq!((status(&claim()), claims.load(Relaxed)), ("200", 2));
}

/// What `keepalived -t` says of a file: nothing, if it understands all of it. It sends signals to its own
/// group, and in some containers ends by one after it has read everything.
fn keepalived(file: &Path) -> String {
    let output = Command::new(find_program("keepalived", "keepalived").unwrap())
        .args(["--config-test", "--use-file"])
        .arg(file)
        .process_group(0)
        .output()
        .unwrap();
    words_of(&output)
}

#[test]
fn keepalived_understands_its_configuration() {
    let file = deploy("keepalived/keepalived.conf");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("# NOT RUN"), "it must say that nobody ran it");
    let folder = tempfolder("keepalived");
    let check = |text: &str| {
        let copy = folder.join("keepalived.conf");
        fs::write(&copy, text).unwrap();
        let said = keepalived(&copy);
        // Whether this machine has the interface is not the file's affair.
        let ours = said.lines().filter(|line| !line.contains("nterface") && !line.is_empty());
        ours.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(check(&text), Vec::<String>::new());
    // It would have told.
    for (right, wrong) in [("lb_algo wlc", "lb_algo none_such"), ("priority 100", "priority 1000")]
    {
        let said = check(&text.replacen(right, wrong, 1));
        assert!(!said.is_empty(), "{wrong}");
    }
    fs::remove_dir_all(folder).unwrap();
}

fn tempfolder(name: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}
