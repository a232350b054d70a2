//! The guide for a shop's engineer: every command of it is typed, in its order, as one person would type
//! them in one terminal. Only ports are others than on the page, and nobody waits so long for the opening.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
};

use server::problem::Code;

use crate::fixtures::blocking;

const PAGES: [&str; 2] = ["INTEGRATION.md", "INTEGRATION.zh-CN.md"];
/// The server, the receiver of webhooks, and the shop's page.
const PORTS: [&str; 3] = ["8080", "9000", "9001"];
/// How long before the opening the page imports its sale, and how long we do.
const OPENING: [&str; 2] = ["in 20s", "in 4s"];
/// Whatever was left behind ends with the terminal.
const AT_THE_END: &str = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";

fn page(name: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    fs::read_to_string(docs.join(name)).unwrap()
}

/// The blocks of commands, in their order.
fn commands(page: &str) -> Vec<&str> {
    page.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

#[test]
fn both_languages_have_the_same_commands() {
    let [english, chinese] = PAGES.map(page);
    assert_eq!(commands(&english), commands(&chinese));
    assert_eq!(english.matches("```").count(), 2 * commands(&english).len(), "all are commands");
}

/// What to do with it stands in both, behind its status.
#[test]
fn every_code_is_in_the_guide_and_no_other() {
    for name in PAGES {
        let page = page(name);
        let rows = page.lines().filter_map(|line| {
            let (status, rest) = line.strip_prefix("| ")?.split_once(" `")?;
            let (code, told) = rest.split_once("` | ")?;
            let status: u16 = status.parse().ok()?;
            let cells: Vec<&str> = told.trim_end_matches(" |").split(" | ").collect();
            assert!(cells.len() == 2 && cells.iter().all(|cell| cell.len() > 4), "{line}");
            Some((status, code.to_owned()))
        });
        let mut told: Vec<(u16, String)> = rows.collect();
        let all = Code::ALL.iter().map(|code| (code.status().as_u16(), code.as_str().to_owned()));
        let mut all: Vec<(u16, String)> = all.collect();
        told.sort_unstable();
        all.sort_unstable();
        assert_eq!(told, all, "{name}");
    }
}

fn free_ports() -> [String; 3] {
    // All are held until all are known, so that no two are the same.
    let held = PORTS.map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    held.each_ref().map(|port| port.local_addr().unwrap().port().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_leads_from_nothing_to_the_first_paid_order() {
    let mut script = commands(&page(PAGES[0])).concat();
    let ports = free_ports();
    let replaced = PORTS.into_iter().zip(ports.iter().map(String::as_str));
    for (from, to) in replaced.chain([(OPENING[0], OPENING[1])]) {
        assert!(script.contains(from), "{from}");
        script = script.replace(from, to);
    }
    let folder = tempfile::tempdir().unwrap();
    let binaries: PathBuf = Path::new(env!("CARGO_BIN_EXE_seckill")).parent().unwrap().into();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    let script = format!("{AT_THE_END}{script}");
    let mut typed = Command::new("bash");
    typed
        .args(["-e", "-u", "-x", "-o", "pipefail", "-c", &script])
        .env("PATH", path)
        .env("SECKILL_LISTEN", format!("127.0.0.1:{}", ports[0]))
        .current_dir(folder.path());
    let typed = blocking(move || typed.output()).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complaints) = (text(&typed.stdout), text(&typed.stderr));
    let log = fs::read_to_string(folder.path().join("seckill.log")).unwrap_or_default();
    assert!(typed.status.success(), "{said}\n{complaints}\n{log}");
    // Seen with the key pair, by the same user.
    assert_eq!(said.lines().last(), Some("paid"), "{said}");
    println!("{said}");
}
