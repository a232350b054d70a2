//! What both gates must hold, each story run on either: what buyers, workers and operators see, also
//! after the process that said it is gone.

use std::{sync::Arc, time::Duration};

use gate::{AdjustOutcome, Busy, ClaimRequest, Decision, GiveBack, Loading, Readmitted, Shut};
use sale::{Claim, ItemId, KeyHash};

use crate::fixture::{
    Home, ITEM, RedisHome, SoloHome, admitted, give_back, ids, keyed, left, load, one, one_unit,
    units,
};

/// Each story becomes two tests, `solo::…` and `redis::…`.
macro_rules! both_gates {
    ($($(#[$about:meta])* async fn $story:ident($home:ident) $body:block)*) => {
        $($(#[$about])* async fn $story($home: &dyn Home) $body)*

        mod solo {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                super::$story(&super::SoloHome::new()).await;
            })*
        }

        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                super::$story(&super::RedisHome::new()).await;
            })*
        }
    };
}

both_gates! {
async fn a_batch_sells_what_there_is_and_no_more(home) {
    let gate = home.open().await;
    let missing = one(&*gate, home.request("early", 1)).await;
    assert_eq!(missing, Decision::Busy(Busy::NotLoaded), "missing state is closed");
    assert!(load(&*gate, home.loading(1, 3)).await);
    let batch = ["a", "b", "a", "c", "d"].map(|user| home.request(user, 1)).to_vec();
    let decisions = gate.admit(batch).await;
    let first = admitted(&decisions[0]);
    admitted(&decisions[1]);
    assert_eq!(decisions[2], Decision::AlreadyBought { order_no: first.order_no });
    admitted(&decisions[3]);
    assert!(matches!(decisions[4], Decision::SoldOut { left: 0, .. }));
    assert_eq!(one(&*gate, home.request("e", 3)).await, Decision::OverLimit { limit: 2 });
    let entries = gate.take(100).await.unwrap();
    assert_eq!(entries.len(), 1, "one entry for the whole batch");
    let users: Vec<&str> = entries[0].claims.iter().map(|claim| claim.user.as_str()).collect();
    assert_eq!(users, ["a", "b", "c"]);
    assert_eq!((entries[0].item, entries[0].epoch), (ITEM, 1));
    let gate = home.reopen(gate).await;
    assert_eq!(left(&*gate).await, 0, "every process sees the same");
    let queued = gate.queued(&first.user, first.order_no).await.unwrap().unwrap();
    assert_eq!(queued, Claim { claimed_ms: queued.claimed_ms, ..first });
}

/// At Redis a batch whose epoch is known and in which everybody wins is written as the caller prepared
/// it; any other is decided buyer by buyer. Both must leave the same behind.
async fn a_batch_in_which_everybody_wins_is_like_any_other(home) {
    let gate = home.open().await;
    load(&*gate, home.loading(7, 10)).await;
    let with_key = |user: &str, key| keyed(home.request(user, 1), key);
    let unknown = vec![home.request("a", 1), home.request("b", 2), with_key("c", 5)];
    let prepared = vec![home.request("d", 2), with_key("e", 6), home.request("用户", 1)];
    let mut claims = Vec::new();
    for (before, batch) in [(0, unknown), (3, prepared)] {
        let decisions = gate.admit(batch.clone()).await;
        for ((place, (order_no, request)), decision) in (before..).zip(&batch).zip(&decisions) {
            let claim = admitted(decision);
            assert_eq!((claim.order_no, &claim.user), (*order_no, &request.user));
            assert_eq!((claim.quantity, claim.key), (request.quantity, request.key));
            assert_eq!((claim.item, claim.epoch), (ITEM, 7));
            assert!(matches!(decision, Decision::Admitted { ahead, .. } if *ahead == place));
            claims.push(claim);
        }
    }
    let mixed = vec![home.request("f", 2), with_key("e", 6), home.request("f", 1)];
    let mixed = gate.admit(mixed).await;
    let last = admitted(&mixed[0]);
    assert_eq!(mixed[2], Decision::AlreadyBought { order_no: last.order_no });
    assert!(matches!(&mixed[1], Decision::Admitted { claim, repeated: true, .. }
        if claim.order_no == claims[4].order_no));
    claims.push(last);
    let mut logged: Vec<Claim> = Vec::new();
    while logged.len() < claims.len() {
        let entries = gate.take(100).await.unwrap();
        logged.extend(entries.into_iter().flat_map(|entry| entry.claims));
    }
    assert_eq!(logged, claims, "the log says what the buyers were told");
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    let units: i64 = claims.iter().map(|claim| i64::from(claim.quantity)).sum();
    assert_eq!((reading.left, reading.marked_units), (10 - units, units));
    assert_eq!((reading.marks, reading.epoch), (claims.len() as u64, 7));
    assert_eq!(gate.measure_backlog().await.unwrap(), claims.len() as u64);
}

async fn a_key_keeps_its_answer_and_means_one_thing(home) {
    let gate = home.open().await;
    load(&*gate, home.loading(1, 2)).await;
    let with_key = |key| keyed(home.request("a", 1), key);
    let claim = admitted(&one(&*gate, with_key(7)).await);
    let gate = home.reopen(gate).await;
    let again = one(&*gate, with_key(7)).await;
    assert!(matches!(again, Decision::Admitted { repeated: true, .. }), "{again:?}");
    assert_eq!(admitted(&again).order_no, claim.order_no);
    let for_two = || keyed(home.request("a", 2), 7);
    let reused = Decision::KeyReused { order_no: claim.order_no };
    assert_eq!(one(&*gate, for_two()).await, reused, "the same key for something else");
    assert_eq!(gate.release(&[give_back(&claim)]).await.unwrap()[0].units, 1);
    let gate = home.reopen(gate).await;
    assert_eq!(gate.release(&[give_back(&claim)]).await.unwrap(), []);
    assert_eq!(left(&*gate).await, 2);
    let spent = one(&*gate, with_key(7)).await;
    assert!(matches!(spent, Decision::Admitted { repeated: true, .. }), "{spent:?}");
    assert_eq!(one(&*gate, for_two()).await, reused, "also when it is spent");
    let second = admitted(&one(&*gate, with_key(8)).await);
    assert_ne!(second.order_no, claim.order_no);
    assert_eq!(gate.marks(ITEM).await.unwrap(), [(second.user.clone(), second.order_no)]);
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.left, reading.marks, reading.marked_units), (1, 1, 1));
}

async fn units_come_back_once_and_only_for_the_order_that_holds_them(home) {
    let gate = home.open().await;
    load(&*gate, home.loading(1, 1)).await;
    let first = admitted(&one(&*gate, home.request("a", 1)).await);
    assert_eq!(gate.release(&[give_back(&first)]).await.unwrap()[0].units, 1);
    assert_eq!(gate.release(&[give_back(&first)]).await.unwrap(), []);
    let second = admitted(&one(&*gate, home.request("a", 1)).await);
    assert_eq!(gate.release(&[give_back(&first)]).await.unwrap(), [], "a late repetition");
    assert_eq!(left(&*gate).await, 0);
    assert_eq!(gate.marks(ITEM).await.unwrap(), [(second.user, second.order_no)]);
}

async fn an_outline_follows_whatever_changes_an_item(home) {
    let gate = home.open().await;
    let other = ItemId(ITEM.0 + 1);
    load(&*gate, Loading { shards: 2, ..home.loading(1, 5) }).await;
    load(&*gate, Loading { item: other, ..home.loading(1, 5) }).await;
    let outline = async |item| gate.outlines().await.unwrap().get(&item).copied();
    let (mut before, elsewhere) = (outline(ITEM).await.unwrap(), outline(other).await);
    assert_eq!((before.epoch, before.left, before.marks), (1, 5, 0));
    let mut changes = async |what: &str| {
        let now = outline(ITEM).await.unwrap();
        assert_ne!(now, before, "{what}");
        assert_eq!(now, gate.reading(ITEM).await.unwrap().unwrap().outline(), "{what}");
        before = now;
    };
    let claim = admitted(&one(&*gate, home.request("a", 2)).await);
    changes("a claim").await;
    let held = [(claim.user.clone(), claim.order_no), ("b".parse().unwrap(), claim.order_no)];
    let marked = gate.marked(ITEM, &held).await.unwrap();
    assert_eq!(marked.into_iter().collect::<Vec<_>>(), [claim.order_no]);
    gate.release(&[give_back(&claim)]).await.unwrap();
    changes("units came back").await;
    assert!(gate.marked(ITEM, &held).await.unwrap().is_empty());
    gate.adjust(ITEM, claim.order_no, 3, true).await.unwrap();
    changes("there are more").await;
    gate.shut(ITEM, Some(Shut::Paused)).await.unwrap();
    changes("it is shut").await;
    load(&*gate, Loading { shards: 2, ..home.loading(2, 5) }).await;
    changes("it was loaded anew").await;
    assert_eq!(outline(other).await, elsewhere, "nothing happened there");
    gate.unload(ITEM).await.unwrap();
    assert_eq!(outline(ITEM).await, None);
}

async fn warming_twice_changes_nothing_and_a_new_epoch_replaces_the_old(home) {
    let gate = home.open().await;
    let loading = |epoch, left| Loading { shards: 2, ..home.loading(epoch, left) };
    assert!(load(&*gate, loading(1, 5)).await);
    let claim = admitted(&one(&*gate, home.request("a", 1)).await);
    assert!(!load(&*gate, loading(1, 5)).await);
    assert_eq!(left(&*gate).await, 4);
    assert!(load(&*gate, Loading { marks: vec![claim.clone()], ..loading(2, 4) }).await);
    assert!(!load(&*gate, loading(1, 99)).await, "a late message of the old epoch");
    let gate = home.reopen(gate).await;
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.epoch, reading.left, reading.marks), (2, 4, 1));
    assert_eq!(reading.in_flight.len(), 1, "the claim of the old epoch is still owed");
    assert_eq!(admitted(&one(&*gate, home.request("b", 1)).await).epoch, 2);
    assert_eq!(gate.loaded().await.unwrap().len(), 1);
    gate.unload(ITEM).await.unwrap();
    assert!(gate.loaded().await.unwrap().is_empty());
    assert_eq!(gate.in_flight(ITEM).await.unwrap().len(), 2, "what is on the log stays there");
}

async fn marks_that_come_in_parts_are_all_there_and_keys_of_those_that_ended_stay_spent(home) {
    const BUYERS: usize = 5_000;
    let gate = home.open().await;
    let buyer = |n: usize| {
        let key = n.is_multiple_of(2).then_some(KeyHash(n as u64 + 1));
        Claim { key, ..home.lost(&format!("u{n}")) }
    };
    let buyers: Vec<Claim> = (0..BUYERS).map(buyer).collect();
    for (epoch, marked) in [(1, &buyers[..]), (2, &buyers[2..])] {
        let loading = Loading { shards: 2, ..home.loading(epoch, 10) };
        assert!(gate.begin_load(ITEM, epoch, 2).await.unwrap());
        let (last, parts) = marked.split_at(7);
        for part in parts.chunks(2_200) {
            assert!(gate.fill(ITEM, epoch, part.to_vec()).await.unwrap());
            assert!(gate.keep_loading(ITEM, epoch).await.unwrap());
        }
        assert!(gate.load(Loading { marks: last.to_vec(), ..loading }).await.unwrap());
        let reading = gate.reading(ITEM).await.unwrap().unwrap();
        assert_eq!((reading.left, reading.epoch), (10, epoch));
        assert_eq!((reading.marks, reading.marked_units), (marked.len() as u64, marked.len() as i64));
        assert!(!gate.fill(ITEM, epoch - 1, vec![home.lost("late")]).await.unwrap());
    }
    // The orders of the first two are closed; their release is still on its way.
    let again = one(&*gate, keyed(home.request("u0", 1), 1)).await;
    assert!(matches!(&again, Decision::Admitted { repeated: true, claim, .. }
        if claim.order_no == buyers[0].order_no), "{again:?}");
    admitted(&one(&*gate, home.request("u1", 1)).await);
    let known = one(&*gate, home.request("u4999", 1)).await;
    assert_eq!(known, Decision::AlreadyBought { order_no: buyers[4_999].order_no });
}

async fn frozen_lasts_until_the_load_and_ended_for_good(home) {
    let gate = home.open().await;
    load(&*gate, home.loading(1, 10)).await;
    gate.shut(ITEM, Some(Shut::Frozen)).await.unwrap();
    for operator in [None, Some(Shut::Paused), None] {
        gate.shut(ITEM, operator).await.unwrap();
        let decision = one(&*gate, home.request("a", 1)).await;
        let busy = Decision::Busy(Busy::Frozen);
        assert_eq!(decision, busy, "the load in the making knows no claim");
    }
    assert!(load(&*gate, home.loading(2, 10)).await);
    admitted(&one(&*gate, home.request("a", 1)).await);
    gate.shut(ITEM, Some(Shut::Ended)).await.unwrap();
    gate.shut(ITEM, None).await.unwrap();
    assert_eq!(one(&*gate, home.request("b", 1)).await, Decision::Ended);
}

async fn the_window_is_by_the_clock_of_the_gate(home) {
    let gate = home.open().await;
    let opens_ms = home.now_ms() + 60_000;
    load(&*gate, Loading { opens_ms, ..home.loading(1, 3) }).await;
    let early = one(&*gate, home.request("a", 1)).await;
    assert_eq!(early, Decision::NotStarted { opens_ms });
    let closes_ms = home.now_ms() - 60_000;
    load(&*gate, Loading { opens_ms: 1, closes_ms, ..home.loading(2, 3) }).await;
    assert_eq!(one(&*gate, home.request("a", 1)).await, Decision::Ended);
}

async fn an_adjustment_counts_once_and_never_takes_what_is_claimed(home) {
    let gate = home.open().await;
    let number = || home.numbers().next();
    assert_eq!(gate.adjust(ITEM, number(), 5, true).await.unwrap(), AdjustOutcome::NotLoaded);
    let contained = number();
    let adjusted = vec![contained];
    load(&*gate, Loading { adjusted, shards: 3, ..home.loading(1, 6) }).await;
    assert_eq!(gate.adjust(ITEM, contained, 3, true).await.unwrap(), AdjustOutcome::Repeated);
    let more = number();
    assert!(matches!(gate.adjust(ITEM, more, 3, true).await.unwrap(), AdjustOutcome::Done(_)));
    assert_eq!(gate.adjust(ITEM, more, 3, true).await.unwrap(), AdjustOutcome::Repeated);
    assert_eq!(left(&*gate).await, 9);
    let less = number();
    let short = gate.adjust(ITEM, less, -10, false).await.unwrap();
    assert_eq!(short, AdjustOutcome::Short { left: 9 });
    assert_eq!(left(&*gate).await, 9, "refused is as if never asked");
    assert!(matches!(gate.adjust(ITEM, less, -8, false).await.unwrap(), AdjustOutcome::Done(_)));
    assert_eq!(left(&*gate).await, 1);
    let gate = home.reopen(gate).await;
    assert_eq!(gate.forget_adjust(ITEM, less).await.unwrap().unwrap().units, 8);
    assert_eq!(gate.forget_adjust(ITEM, less).await.unwrap(), None);
    assert_eq!(left(&*gate).await, 9);
}

async fn a_number_stands_for_one_adjustment_until_the_ledger_says_otherwise(home) {
    for shards in [1, 3] {
        let gate = home.open().await;
        load(&*gate, Loading { shards, ..home.loading(u64::from(shards), 10) }).await;
        let no = home.numbers().next();
        assert!(matches!(gate.adjust(ITEM, no, -5, false).await.unwrap(), AdjustOutcome::Done(_)));
        for other in [-3, 4] {
            let refused = gate.adjust(ITEM, no, other, false).await.unwrap();
            assert_eq!(refused, AdjustOutcome::Other { delta: -5 });
        }
        // More than there is: what the number took before is not undone by being refused more.
        let more = gate.adjust(ITEM, no, -30, false).await.unwrap();
        let refused = [AdjustOutcome::Other { delta: -5 }, AdjustOutcome::Short { left: 5 }];
        assert!(refused.contains(&more), "{more:?}");
        assert_eq!(left(&*gate).await, 5);
        assert_eq!(gate.adjusts(ITEM).await.unwrap(), [(no, -5)]);
        // The ledger has the number for another change: the gate follows, once.
        let followed = gate.adjust(ITEM, no, 2, true).await.unwrap();
        assert!(matches!(followed, AdjustOutcome::Done(_)), "{followed:?}");
        let gate = home.reopen(gate).await;
        assert_eq!(gate.adjust(ITEM, no, 2, true).await.unwrap(), AdjustOutcome::Repeated);
        assert_eq!(left(&*gate).await, 12);
        assert_eq!(gate.adjusts(ITEM).await.unwrap(), [(no, 2)]);
        assert_eq!(gate.forget_adjust(ITEM, no).await.unwrap().unwrap().units, -2);
        assert_eq!(left(&*gate).await, 10);
        gate.unload(ITEM).await.unwrap();
    }
}

async fn a_lost_claim_is_admitted_again_if_a_unit_is_left_in_any_shard(home) {
    let gate = home.open().await;
    let closes_ms = home.now_ms() - 1_000;
    load(&*gate, Loading { closes_ms, shards: 4, ..home.loading(1, 1) }).await;
    let claim = home.lost("a");
    assert_eq!(gate.readmit(&claim).await.unwrap(), Readmitted::Admitted, "after the end, too");
    assert_eq!(gate.readmit(&claim).await.unwrap(), Readmitted::Known);
    let held = Readmitted::AlreadyBought { order_no: claim.order_no };
    assert_eq!(gate.readmit(&home.lost("a")).await.unwrap(), held);
    assert_eq!(gate.readmit(&home.lost("b")).await.unwrap(), Readmitted::SoldOut);
    assert_eq!(gate.take(9).await.unwrap()[0].claims[0].order_no, claim.order_no);
}

async fn a_claim_that_is_admitted_again_answers_to_its_key(home) {
    let gate = home.open().await;
    load(&*gate, home.loading(1, 5)).await;
    let claim = Claim { key: Some(KeyHash(7)), ..home.lost("a") };
    assert_eq!(gate.readmit(&claim).await.unwrap(), Readmitted::Admitted);
    for _ in 0..2 {
        let again = one(&*gate, keyed(home.request("a", 1), 7)).await;
        assert!(
            matches!(&again, Decision::Admitted { claim: found, repeated: true, .. }
                if found.order_no == claim.order_no),
            "{again:?}"
        );
        gate.release(&[give_back(&claim)]).await.unwrap();
    }
    assert!(gate.may_hold_mark(ITEM, &claim.user, false), "the sold-out cache does not speak");
}

async fn what_is_given_back_is_delivered_again(home) {
    let gate = home.open().await;
    load(&*gate, home.loading(1, 5)).await;
    one(&*gate, home.request("a", 1)).await;
    let taken = gate.take(9).await.unwrap();
    let id = taken[0].id;
    gate.give_back(taken).await;
    assert_eq!(gate.take(9).await.unwrap()[0].id, id);
}

async fn what_is_acknowledged_is_not_on_the_log_any_more(home) {
    let gate = home.open().await;
    assert!(load(&*gate, Loading { shards: 2, ..home.loading(1, 10) }).await);
    let claim = admitted(&one(&*gate, home.request("ann", 1)).await);
    assert!(gate.is_on_log(&claim).await.unwrap());
    // One that came after the log was read.
    let later = admitted(&one(&*gate, home.request("bob", 1)).await);
    assert!(gate.is_on_log(&later).await.unwrap());
    let stranger = Claim { order_no: home.numbers().next(), ..claim.clone() };
    assert!(!gate.is_on_log(&stranger).await.unwrap());
    let mut acked = 0;
    while acked < 2 {
        let entries = gate.take(10).await.unwrap();
        acked += entries.iter().map(|entry| entry.claims.len()).sum::<usize>();
        gate.ack(&ids(&entries)).await.unwrap();
    }
    let gone = async {
        while gate.is_on_log(&claim).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("it is looked at anew");
    assert_eq!(gate.measure_backlog().await.unwrap(), 0);
    assert_eq!(left(&*gate).await, 8, "settled claims keep their marks and units");
}

async fn a_crowd_through_the_lanes_buys_exactly_the_stock(home) {
    let gate = home.open().await;
    load(&*gate, home.loading(1, 100)).await;
    let lanes = Arc::new(home.lanes(gate.clone(), 10_000));
    let buyers = (0..2_000).map(|n| {
        let lanes = lanes.clone();
        // Every buyer comes twice at the same time.
        let request = one_unit(&format!("u{}", n / 2));
        tokio::spawn(async move { lanes.claim(request).await })
    });
    let mut won = 0;
    for buyer in buyers.collect::<Vec<_>>() {
        match buyer.await.unwrap() {
            Decision::Admitted { .. } => won += 1,
            Decision::SoldOut { .. } | Decision::AlreadyBought { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(won, 100);
    assert_eq!(gate.marks(ITEM).await.unwrap().len(), 100);

    // The cache says no to strangers, the truth to those who bought, and yields to returned units.
    let stranger = one_unit("stranger");
    assert!(lanes.is_sold_out(ITEM, &stranger.user, false));
    let (owner, order_no) = gate.marks(ITEM).await.unwrap().remove(0);
    let again = lanes.claim(one_unit(owner.as_str())).await;
    assert_eq!(again, Decision::AlreadyBought { order_no });
    let unit = GiveBack { item: ITEM, user: owner, order_no, quantity: 1 };
    for change in gate.release(&[unit]).await.unwrap() {
        lanes.stock_changed(change);
    }
    admitted(&lanes.claim(stranger).await);

    lanes.stop().await;
    let late = lanes.claim(one_unit("late")).await;
    assert_eq!(late, Decision::Busy(Busy::Unwritable), "stopped lanes decide nothing");
}

async fn a_key_that_was_spent_on_one_item_or_quantity_buys_no_other(home) {
    let gate = home.open().await;
    let other = ItemId(ITEM.0 + 1);
    load(&*gate, home.loading(1, 5)).await;
    load(&*gate, Loading { item: other, ..home.loading(1, 5) }).await;
    let lanes = home.lanes(gate.clone(), 10);
    let key = Some(KeyHash(7));
    let claim =
        |item, quantity| lanes.claim(ClaimRequest { item, key, ..units("a", quantity) });
    let order_no = admitted(&claim(ITEM, 1).await).order_no;
    assert_eq!(claim(ITEM, 2).await, Decision::KeyReused { order_no });
    assert_eq!(claim(other, 1).await, Decision::KeyReused { order_no });
    assert_eq!(admitted(&claim(ITEM, 1).await).order_no, order_no);
    assert_eq!(gate.left(other), Some(5), "nothing was taken for a key that was spent");
}

async fn a_spent_key_is_answered_from_the_gate_though_the_cache_says_sold_out(home) {
    let gate = home.open().await;
    load(&*gate, home.loading(1, 1)).await;
    let lanes = home.lanes(gate.clone(), 10);
    let with_key = || ClaimRequest { key: Some(KeyHash(7)), ..one_unit("a") };
    let first = admitted(&lanes.claim(with_key()).await);
    for change in gate.release(&[give_back(&first)]).await.unwrap() {
        lanes.stock_changed(change);
    }
    admitted(&lanes.claim(one_unit("b")).await);
    for _ in 0..2 {
        let none = lanes.claim(one_unit("c")).await;
        assert!(matches!(none, Decision::SoldOut { left: 0, .. }), "{none:?}");
    }
    assert_eq!(admitted(&lanes.claim(with_key()).await).order_no, first.order_no);
}
}
