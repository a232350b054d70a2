//! The solo gate alone: no HTTP, no lane, one caller, every batch on disk before the next.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use gate::{
    Admission, GiveBack, Keep, Upkeep,
    solo::{SoloGate, SoloOptions},
};
use sale::{ClaimLog, ItemId};

use crate::{
    Failure, PROBE, Plan,
    claims::{Crowd, all_admitted, batches, clock, open_item},
    figures::{Best, Figures, Goal},
};

const ITEM: ItemId = ItemId(42);
const OPTIONS: SoloOptions =
    SoloOptions { log_claims_max: u64::MAX, keep: Keep { ms: 86_400_000, bytes_max: 128 << 20 } };
const MILLION: usize = 1_000_000;

/// Buyers already marked when the cost of one more is measured.
const MARKED: [(usize, &str); 4] = [
    (1_000, "growth_us_1e3"),
    (100_000, "growth_us_1e5"),
    (MILLION, "growth_us_1e6"),
    (5 * MILLION, "growth_us_5e6"),
];
/// Items at the gate when the cost of a claim on one of them is measured.
const ITEMS: [(usize, &str); 3] =
    [(1, "growth_us_1_item"), (100, "growth_us_100_items"), (10_000, "growth_us_10000_items")];
/// A burst is short, so that a thousand marked buyers stay about a thousand.
const BURST_BATCHES: usize = 4;
const BURST_BATCH: usize = 256;

/// The batches of a sale's first seconds are small: the lane takes what has gathered meanwhile.
const START_BATCH: usize = 16;

async fn open(data: &Path, stock: usize) -> Result<SoloGate, Failure> {
    std::fs::create_dir_all(data)?;
    let gate = SoloGate::open(data, OPTIONS, clock())?;
    gate.load(open_item(ITEM, stock, 1, Vec::new())).await?;
    Ok(gate)
}

pub(crate) async fn per_second(
    plan: &Plan,
    data: &Path,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let mut best = [Best::default(); 2];
    for round in 0..plan.rounds(10, 4) {
        for (best, (size, buyers)) in best.iter_mut().zip([(64, 200_000), (256, 500_000)]) {
            let data = data.join(format!("solo-{round}-{size}"));
            let gate = open(&data, buyers).await?;
            let batches = batches(Crowd::new().requests(ITEM, buyers)?, size);
            let began = Instant::now();
            for batch in batches {
                all_admitted(&gate.admit(batch).await)?;
            }
            let per_s = best.note(buyers as f64 / began.elapsed().as_secs_f64());
            println!("  round {round}: {per_s:.0}/s in batches of {size}");
            drop(gate);
            std::fs::remove_dir_all(data)?;
        }
    }
    let [small, large] = best;
    let what = "solo gate, fsynced admissions/s, batches of 256";
    figures.add("gate_solo_per_s", what, large.0, Goal::AtLeast(600_000.0));
    let what = "the same, batches of 64";
    figures.add("gate_solo_per_s_64", what, small.0, Goal::None);
    Ok(())
}

/// The cost of an admission must not depend on how many were admitted before it.
pub(crate) async fn growth(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let mut crowd = Crowd::new();
    let mut gates = Vec::new();
    for (marked, key) in MARKED {
        let data = data.join(key);
        std::fs::create_dir_all(&data)?;
        let gate = SoloGate::open(&data, OPTIONS, clock())?;
        let marks = crowd.claims(ITEM, marked)?;
        gate.load(open_item(ITEM, MILLION, 1, marks)).await?;
        gates.push((gate, f64::INFINITY));
    }
    bursts(&mut crowd, &mut gates, plan.rounds(150, 60)).await?;
    for ((gate, best), (marked, key)) in gates.into_iter().zip(MARKED) {
        let us = best * 1e6 / (BURST_BATCHES * BURST_BATCH) as f64;
        let what = format!("solo gate, µs per fsynced admission with {marked} buyers marked");
        figures.add(key, &what, us, Goal::None);
        drop(gate);
        std::fs::remove_dir_all(data.join(key))?;
    }
    Ok(())
}

/// Nor on how many items are on sale.
pub(crate) async fn growth_of_items(
    plan: &Plan,
    data: &Path,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let mut crowd = Crowd::new();
    let mut gates = Vec::new();
    for (items, key) in ITEMS {
        let data = data.join(key);
        let gate = open(&data, MILLION).await?;
        for other in 1..items {
            let id = ItemId(ITEM.0 + other as i64);
            gate.load(open_item(id, 1_000, 1, Vec::new())).await?;
        }
        gates.push((gate, f64::INFINITY));
    }
    bursts(&mut crowd, &mut gates, plan.rounds(150, 60)).await?;
    for ((gate, best), (items, key)) in gates.into_iter().zip(ITEMS) {
        let us = best * 1e6 / (BURST_BATCHES * BURST_BATCH) as f64;
        let what = format!("solo gate, µs per fsynced admission with {items} items on sale");
        figures.add(key, &what, us, Goal::None);
        drop(gate);
        std::fs::remove_dir_all(data.join(key))?;
    }
    Ok(())
}

/// Bursts at all of these gates in turn; each remembers its shortest, in seconds.
async fn bursts(
    crowd: &mut Crowd,
    gates: &mut [(SoloGate, f64)],
    rounds: usize,
) -> Result<(), Failure> {
    for _ in 0..rounds {
        for (gate, best) in gates.iter_mut() {
            let requests = crowd.requests(ITEM, BURST_BATCHES * BURST_BATCH)?;
            let units: Vec<GiveBack> = requests
                .iter()
                .map(|(order_no, request)| GiveBack {
                    item: request.item,
                    user: request.user.clone(),
                    order_no: *order_no,
                    quantity: request.quantity,
                })
                .collect();
            let batches = batches(requests, BURST_BATCH);
            let began = Instant::now();
            for batch in batches {
                all_admitted(&gate.admit(batch).await)?;
            }
            *best = began.elapsed().as_secs_f64().min(*best);
            settle_all(gate).await?;
            gate.release(&units).await?;
        }
    }
    Ok(())
}

/// As if a worker had put everything into the ledger.
async fn settle_all(gate: &SoloGate) -> Result<(), Failure> {
    while gate.backlog() > 0 {
        let entries = gate.take(100_000).await?;
        gate.ack(&entries.iter().map(|entry| entry.id).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

/// Memory is measured in a process of its own, which has done nothing else.
pub(crate) fn bytes_per_buyer(data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let data = data.join("memory");
    let child = Command::new(std::env::current_exe()?).arg(PROBE).arg(&data).output()?;
    if !child.status.success() {
        return Err(String::from_utf8_lossy(&child.stderr).into());
    }
    let bytes: f64 = String::from_utf8_lossy(&child.stdout).trim().parse()?;
    std::fs::remove_dir_all(data)?;
    let what = "solo gate, resident bytes per marked buyer, of a million";
    figures.add("bytes_per_buyer", what, bytes, Goal::AtMost(120.0));
    Ok(())
}

/// The child: mark a million, settle them, and print what each keeps in memory.
pub(crate) async fn probe_memory(data: &Path) -> Result<(), Failure> {
    let gate = open(data, 2 * MILLION).await?;
    let mut crowd = Crowd::new();
    // What is needed once, whatever the number of buyers, is there after the first batches.
    mark(&gate, &mut crowd, 10).await?;
    let before = resident_bytes()?;
    mark(&gate, &mut crowd, MILLION / 1_000).await?;
    println!("{}", (resident_bytes()? - before) / MILLION as f64);
    Ok(())
}

async fn mark(gate: &SoloGate, crowd: &mut Crowd, batches: usize) -> Result<(), Failure> {
    for _ in 0..batches {
        all_admitted(&gate.admit(crowd.requests(ITEM, 1_000)?).await)?;
        settle_all(gate).await?;
    }
    Ok(())
}

fn resident_bytes() -> Result<f64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmRSS")?;
    Ok(kib.parse::<f64>()? * 1_024.0)
}

/// From nothing to ready, with a million claims in the journal of which the ledger has none: the
/// process was killed in the middle of the largest sale it ever had.
pub(crate) async fn start(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let written = data.join("start");
    let gate = open(&written, MILLION).await?;
    for batch in batches(Crowd::new().requests(ITEM, MILLION)?, START_BATCH) {
        all_admitted(&gate.admit(batch).await)?;
    }
    drop(gate);
    let mut best = Duration::MAX;
    for round in 0..plan.rounds(7, 3) {
        // A start may tidy up the journal, so each gets its own.
        let fresh = data.join(format!("start-{round}"));
        std::fs::create_dir_all(&fresh)?;
        for file in std::fs::read_dir(&written)? {
            let file = file?;
            std::fs::copy(file.path(), fresh.join(file.file_name()))?;
        }
        let began = Instant::now();
        let gate = SoloGate::open(&fresh, OPTIONS, clock())?;
        let took = began.elapsed();
        best = best.min(took);
        println!("  round {round}: ready after {} ms", took.as_millis());
        if gate.backlog() != MILLION as u64 {
            return Err(format!("{} claims came back of a million", gate.backlog()).into());
        }
        drop(gate);
        std::fs::remove_dir_all(fresh)?;
    }
    std::fs::remove_dir_all(written)?;
    let what = format!("ms to open a journal of a million claims, batches of {START_BATCH}");
    figures.add("start_ms_million", &what, best.as_secs_f64() * 1e3, Goal::AtMost(2_000.0));
    Ok(())
}
