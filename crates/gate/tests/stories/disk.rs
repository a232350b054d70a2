//! Stories of the solo gate on a disk that fails and forgets: whatever happens to the journal's file, a
//! claim that was acknowledged is there after the power cut, and the gate opens again by itself.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Child,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::fixture::{ITEM, KEEP, one_unit};
use faults::disk::{self, Failing, Fault, ForgetfulDisk, Operations};
use gate::{
    Admission, Busy, Decision, GiveBack, Inspection, Loading, NumberedRequest, Upkeep,
    solo::{SoloGate, SoloOptions},
};
use sale::{Claim, ClaimLog, OrderNo, OrderNumbers, SystemClock, UserId};

const UNITS: i64 = 1_000;
const ROUNDS: usize = 6;
const PATIENCE: Duration = Duration::from_secs(60);
/// Tells the process that sells where it shall work.
const PLACE: &str = "GATE_STORY";
/// The exit code of a gate that could not be opened: whoever supervises it starts it again.
const NOT_OPENED: i32 = 3;

fn open(data: &Path) -> Result<SoloGate, gate::solo::OpenError> {
    SoloGate::open(
        data,
        SoloOptions { log_claims_max: 1_000_000, keep: KEEP },
        Arc::new(SystemClock),
    )
}

fn loading(marks: Vec<Claim>) -> Loading {
    Loading {
        item: ITEM,
        epoch: 1,
        opens_ms: 0,
        closes_ms: i64::MAX,
        limit: 1,
        shards: 1,
        left: UNITS,
        marks,
        adjusted: vec![],
        shut: None,
    }
}

/// What the buyers were told, kept where no power cut reaches.
struct Promises(fs::File);

impl Promises {
    fn beside(data: &Path) -> Promises {
        let path = data.with_extension("told");
        Promises(fs::File::options().create(true).append(true).open(path).unwrap())
    }

    fn note(&mut self, what: &str, user: &UserId, order_no: OrderNo) {
        // In one piece: the process may die in the middle of many, and the next one writes on.
        let line = format!("{what} {user} {order_no}\n");
        self.0.write_all(line.as_bytes()).unwrap();
    }
}

/// Do it until the gate can.
async fn at_last<T, E: std::fmt::Display>(mut what: impl AsyncFnMut() -> Result<T, E>) -> T {
    let asked = Instant::now();
    loop {
        match what().await {
            Ok(done) => return done,
            Err(error) => assert!(asked.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

struct Seller {
    gate: SoloGate,
    numbers: OrderNumbers,
    promises: Promises,
}

impl Seller {
    /// Buyers come, and come again while the gate is busy.
    async fn sell(&mut self, users: [String; 2]) -> Vec<Claim> {
        let asked = Instant::now();
        loop {
            let request = |user: &String| (self.numbers.next(), one_unit(user));
            let batch: Vec<NumberedRequest> = users.iter().map(request).collect();
            for (order_no, request) in &batch {
                self.promises.note("tried", &request.user, *order_no);
            }
            let decisions = self.gate.admit(batch).await;
            if decisions.iter().all(|decision| *decision == Decision::Busy(Busy::Unwritable)) {
                assert!(asked.elapsed() < PATIENCE, "the gate does not open again");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
            let admitted = decisions.into_iter().map(|decision| match decision {
                Decision::Admitted { claim, .. } => claim,
                other => panic!("{other:?}"),
            });
            let admitted: Vec<Claim> = admitted.collect();
            for claim in &admitted {
                self.promises.note("admitted", &claim.user, claim.order_no);
            }
            return admitted;
        }
    }

    async fn round(&mut self, n: usize) {
        let me = std::process::id();
        let claims = self.sell([format!("a{me}-{n}"), format!("b{me}-{n}")]).await;
        if n.is_multiple_of(2) {
            let taken = self.gate.take(1).await.unwrap();
            for claim in taken.iter().flat_map(|entry| &entry.claims) {
                // Noted first: it may be delivered again, but need not.
                self.promises.note("settled", &claim.user, claim.order_no);
            }
            self.gate.ack(&taken.iter().map(|e| e.id).collect::<Vec<_>>()).await.unwrap();
        }
        if n % 3 == 1 {
            let Claim { item, user, order_no, quantity, .. } = claims[0].clone();
            self.promises.note("releasing", &user, order_no);
            let unit = [GiveBack { item, user, order_no, quantity }];
            at_last(async || self.gate.release(&unit).await).await;
        }
        if n == 3 {
            at_last(async || self.gate.tidy(0).await).await;
        }
    }
}

#[tokio::test]
#[ignore = "started by the stories of this file, on a disk that fails"]
async fn buyers_come() {
    let Some(data) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let Ok(gate) = open(&data) else { std::process::exit(NOT_OPENED) };
    at_last(async || gate.load(loading(vec![])).await).await;
    let numbers = OrderNumbers::new(0, Arc::new(SystemClock));
    gate.last_order_no().into_iter().for_each(|seen| numbers.start_after(seen));
    let mut shop = Seller { gate, numbers, promises: Promises::beside(&data) };
    for n in 0..ROUNDS {
        shop.round(n).await;
    }
    // As a kill would: nothing is closed.
    std::process::exit(0);
}

fn start(test: &str, disk: &ForgetfulDisk, data: &Path) -> Child {
    let mut command = disk::again(test).unwrap();
    command.envs(disk.env()).env(PLACE, data).spawn().unwrap()
}

struct FailingDiskHome {
    _home: tempfile::TempDir,
    data: PathBuf,
    disk: ForgetfulDisk,
}

fn failing_disk_home() -> FailingDiskHome {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    let disk = ForgetfulDisk::under(&data).unwrap();
    FailingDiskHome { _home: home, data, disk }
}

/// False if nothing failed.
fn every_promise_outlives_the_power_cut(fault: Fault) -> bool {
    let FailingDiskHome { _home, data, disk } = failing_disk_home();
    disk.fail("journal", fault).unwrap();
    let mut ended = start("disk::buyers_come", &disk, &data).wait().unwrap().code();
    let hit = disk.hits().unwrap() > 0;
    disk.heal().unwrap();
    if matches!(ended, Some(disk::DIED | NOT_OPENED)) {
        // With all that is in the kernel's memory still there, the next process sells on.
        ended = start("disk::buyers_come", &disk, &data).wait().unwrap().code();
    }
    assert_eq!(ended, Some(0), "{fault:?}");
    disk.power_cut().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(promises_are_kept(&data, fault));
    hit
}

async fn promises_are_kept(data: &Path, fault: Fault) {
    let mut by_what: HashMap<String, HashSet<(String, String)>> = HashMap::new();
    for line in fs::read_to_string(data.with_extension("told")).unwrap().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let known = by_what.entry(words[0].into()).or_default();
        known.insert((words[1].into(), words[2].into()));
    }
    let mut told = |what: &str| by_what.remove(what).unwrap_or_default();
    let (tried, admitted) = (told("tried"), told("admitted"));
    let (settled, releasing) = (told("settled"), told("releasing"));
    let gate = open(data).unwrap();
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!(reading.left + reading.marked_units, UNITS, "{fault:?}");
    let marks: HashSet<(String, String)> = gate
        .marks(ITEM)
        .await
        .unwrap()
        .into_iter()
        .map(|(user, order_no)| (user.to_string(), order_no.to_string()))
        .collect();
    assert!(marks.is_subset(&tried), "nobody is marked who did not ask: {fault:?}");
    for claim in &admitted {
        let (user, order_no) = claim;
        assert!(marks.contains(claim) || releasing.contains(claim), "{claim:?} is lost: {fault:?}");
        let (user, order_no) = (user.parse().unwrap(), order_no.parse().unwrap());
        let queued = gate.queued(&user, order_no).await.unwrap().is_some();
        assert!(queued || settled.contains(claim), "{claim:?} is never delivered: {fault:?}");
    }
    // Whoever was told to try again holds at most what a crash decided for them.
    assert!(admitted.len() >= 2 * ROUNDS);
}

#[test]
fn whatever_the_disk_does_an_acknowledged_claim_outlives_the_power_cut() {
    disk::at_every_operation(3, every_promise_outlives_the_power_cut);
}

/// How long the disk stays full.
const FULL: Duration = Duration::from_secs(3);
const MARKS: u64 = 20_000;

#[tokio::test]
#[ignore = "started by the stories of this file, on a disk that is full"]
async fn buyers_come_to_a_full_disk() {
    let Some(data) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let gate = open(&data).unwrap();
    let numbers = OrderNumbers::new(0, Arc::new(SystemClock));
    let owner = |n: u64| Claim {
        order_no: numbers.next(),
        item: ITEM,
        user: format!("owner{n}").parse().unwrap(),
        quantity: 1,
        epoch: 1,
        claimed_ms: 0,
        key: None,
    };
    gate.load(loading((0..MARKS).map(owner).collect())).await.unwrap();
    let mut shop = Seller { gate, numbers, promises: Promises::beside(&data) };
    shop.sell(["a".into(), "b".into()]).await;
    fs::write(data.with_extension("ready"), "").unwrap();
    // Comes back when there is room again.
    while !data.with_extension("full").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    shop.sell(["c".into(), "d".into()]).await;
    std::process::exit(0);
}

#[test]
fn a_full_disk_is_not_read_again_and_again() {
    let FailingDiskHome { _home, data, disk } = failing_disk_home();
    disk.fail(
        "journal",
        Fault { of: Operations::Writes, ..Fault::once(u64::MAX, Failing::NoSpace) },
    )
    .unwrap();
    let mut child = start("disk::buyers_come_to_a_full_disk", &disk, &data);
    let asked = Instant::now();
    while !data.with_extension("ready").exists() {
        assert!(asked.elapsed() < PATIENCE && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let full =
        Fault { count: u64::MAX, of: Operations::Writes, ..Fault::once(1, Failing::NoSpace) };
    disk.fail("journal", full).unwrap();
    let before = disk.bytes_read().unwrap();
    fs::write(data.with_extension("full"), "").unwrap();
    std::thread::sleep(FULL);
    let (read, tried) = (disk.bytes_read().unwrap() - before, disk.operations().unwrap());
    println!("while the disk was full for {FULL:?}: {read} bytes read, {tried} writes tried");
    assert!(tried > 0, "nobody noticed that the disk is full");
    // The journal is more than a megabyte long.
    assert!(read < 64 * 1_024, "{read} bytes were read back");
    assert!(tried <= 30, "{tried} writes were tried");
    disk.heal().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "it sells again by itself");
}
