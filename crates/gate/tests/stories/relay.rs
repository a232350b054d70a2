//! The logs of both gates, as relays to a message broker see them.

use std::sync::Arc;

use gate::Gate;
use sale::{Claim, EntryId, LogEntry, RelaySource};

use crate::fixture::{Home, ITEM, RedisHome, SoloHome, admitted, ids, load, one, order_numbers};

/// So many buyers, each of whom is an entry of the log.
async fn buyers(gate: &dyn Gate, home: &dyn Home, count: usize) -> Vec<Claim> {
    let mut claims = Vec::new();
    for n in 0..count {
        claims.push(admitted(&one(gate, home.request(&format!("u{n}"), 1)).await));
    }
    claims
}

/// What a relay gets, until it has so many claims.
async fn taken(gate: &dyn Gate, claims: usize) -> Vec<LogEntry> {
    let mut taken: Vec<LogEntry> = Vec::new();
    while taken.len() < claims {
        taken.extend(gate.take_unrelayed(100).await.unwrap());
    }
    taken
}

async fn what_is_relayed_stays_on_the_log_until_the_ledger_has_it(home: &dyn Home) {
    let gate = home.open().await;
    load(&*gate, home.loading(1, 50)).await;
    let claims = buyers(&*gate, home, 20).await;
    let entries = taken(&*gate, 20).await;
    gate.relayed(&ids(&entries)).await;
    assert_eq!(gate.measure_backlog().await.unwrap(), 20);
    assert_eq!(gate.in_flight(ITEM).await.unwrap().len(), 20);
    assert!(gate.is_on_log(&claims[3]).await.unwrap());
    // A worker that a broker served acknowledges it, and twice is once.
    gate.ack(&ids(&entries[..10])).await.unwrap();
    gate.ack(&ids(&entries[..10])).await.unwrap();
    assert_eq!(gate.measure_backlog().await.unwrap(), 10);
    assert_eq!(gate.in_flight(ITEM).await.unwrap().len(), 10);
    // The setting is changed: workers take from the log what is left.
    let gate = home.reopen(gate).await;
    let mut left = Vec::new();
    while left.len() < 10 {
        left.extend(gate.take(100).await.unwrap());
    }
    let (mut left, mut wanted) = (order_numbers(&left), order_numbers(&entries[10..]));
    left.sort();
    wanted.sort();
    assert_eq!(left, wanted);
}

async fn an_acknowledgement_names_what_was_read_and_removes_nothing_else(home: &dyn Home) {
    let gate = home.open().await;
    load(&*gate, home.loading(1, 50)).await;
    buyers(&*gate, home, 1).await;
    let [entry] = &taken(&*gate, 1).await[..] else { panic!("one entry") };
    // A broker may still have messages of a log that is gone, whose places are given again.
    let of_before = EntryId { content: entry.id.content ^ 1, ..entry.id };
    gate.ack(&[of_before]).await.unwrap();
    assert_eq!(gate.measure_backlog().await.unwrap(), 1);
    gate.ack(&[entry.id]).await.unwrap();
    assert_eq!(gate.measure_backlog().await.unwrap(), 0);
}

async fn what_is_overdue_is_told_page_by_page(home: &dyn Home) {
    const CLAIMS: usize = 600;
    let gate = home.open().await;
    load(&*gate, home.loading(1, CLAIMS as i64)).await;
    let claims = buyers(&*gate, home, CLAIMS).await;
    assert!(gate.overdue(claims[0].claimed_ms - 1, None).await.unwrap().is_empty(), "not yet");
    let soon = home.now_ms() + 60_000;
    let (mut told, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = gate.overdue(soon, after).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        pages += 1;
        told.extend(order_numbers(&page));
    }
    told.sort();
    let mut all: Vec<_> = claims.iter().map(|claim| claim.order_no).collect();
    all.sort();
    assert_eq!(told, all);
    assert!(pages > 1);
}

async fn each(story: impl AsyncFn(&dyn Home)) {
    let homes: [Arc<dyn Home>; 2] = [Arc::new(SoloHome::new()), Arc::new(RedisHome::new())];
    for home in homes {
        story(&*home).await;
    }
}

#[tokio::test]
async fn at_both_gates_what_is_relayed_stays_on_the_log_until_the_ledger_has_it() {
    each(what_is_relayed_stays_on_the_log_until_the_ledger_has_it).await;
}

#[tokio::test]
async fn at_both_gates_an_acknowledgement_names_what_was_read() {
    each(an_acknowledgement_names_what_was_read_and_removes_nothing_else).await;
}

#[tokio::test]
async fn at_both_gates_what_is_overdue_is_told_page_by_page() {
    each(what_is_overdue_is_told_page_by_page).await;
}

#[tokio::test]
async fn a_dead_relays_entries_are_taken_by_another_one_and_what_it_relayed_is_not() {
    let home = RedisHome::new();
    let first = home.open_as("first").await;
    load(&first, home.loading(1, 50)).await;
    buyers(&first, &home, 20).await;
    let entries = taken(&first, 20).await;
    first.relayed(&ids(&entries[..12])).await;
    let second = home.open_as("second").await;
    let again = taken(&second, 8).await;
    let (mut again, mut wanted) = (order_numbers(&again), order_numbers(&entries[12..]));
    again.sort();
    wanted.sort();
    assert_eq!(again, wanted);
}

#[tokio::test]
async fn a_restart_of_solo_gives_the_relay_all_that_the_ledger_does_not_have() {
    let home = SoloHome::new();
    let gate = home.open().await;
    load(&*gate, home.loading(1, 50)).await;
    buyers(&*gate, &home, 5).await;
    let entries = taken(&*gate, 5).await;
    gate.relayed(&ids(&entries)).await;
    gate.ack(&ids(&entries[..2])).await.unwrap();
    let gate = home.reopen(gate).await;
    assert_eq!(order_numbers(&taken(&*gate, 3).await), order_numbers(&entries[2..]));
}
