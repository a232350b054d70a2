//! Draws before real lanes, and whether it helps to come early.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use sale::{
    Claim, DrawOrder, DrawOutcome, DrawPlace, DrawSecrets, Drawn, ItemId, ManualClock, Millis,
    OrderNumbers, SystemClock, UserId,
};
use tokio::sync::{Barrier, Mutex};

use super::{DrawExchange, DrawWindow, NobodyElse, PostedPlace, Room, Rooms};
use crate::{
    Admission, Busy, ClaimRequest, Decision, LaneOptions, Lanes, NumberedRequest, PendingDecision,
};

const OPENS_MS: Millis = 1_800_000_000_000;
const SHUFFLE_MS: Millis = 500;
const ITEM: ItemId = ItemId(7);

fn order(seed: u8) -> DrawOrder {
    DrawSecrets::new([seed; 32], [4; 32]).order(ITEM)
}

fn window(order: DrawOrder) -> DrawWindow {
    DrawWindow { item: ITEM, opens_ms: OPENS_MS, ends_ms: OPENS_MS + SHUFFLE_MS, order }
}

fn user(n: usize) -> UserId {
    format!("u{n}").parse().unwrap()
}

fn request(n: usize, quantity: u32) -> ClaimRequest {
    ClaimRequest { item: ITEM, user: user(n), quantity, key: None }
}

/// A gate with so many units and several lanes, which overtake each other; it is slow.
#[derive(Default)]
struct Shelf {
    left: AtomicI64,
    asked: AtomicUsize,
    /// Batches for which its clock is still before the end of the window.
    early: AtomicUsize,
    /// What it says is left, if it has not looked since.
    stale: Option<i64>,
    /// Whom it gives nothing.
    refused: HashSet<UserId>,
}

impl Shelf {
    fn of(units: i64) -> Arc<Shelf> {
        Arc::new(Shelf { left: units.into(), ..Shelf::default() })
    }

    fn decide(&self, (order_no, request): NumberedRequest) -> Decision {
        self.asked.fetch_add(1, SeqCst);
        if self.refused.contains(&request.user) {
            return Decision::Busy(Busy::NotLoaded);
        }
        let wanted = i64::from(request.quantity);
        let taken = self
            .left
            .fetch_update(SeqCst, SeqCst, |left| (left >= wanted).then_some(left - wanted));
        match taken {
            Ok(_) => {
                let claim = request.claim(order_no, 1, OPENS_MS);
                Decision::Admitted { claim, repeated: false, ahead: 0 }
            }
            Err(left) => Decision::SoldOut { left, version: 1 },
        }
    }
}

#[async_trait]
impl Admission for Shelf {
    fn partitions(&self) -> usize {
        4
    }

    fn partition_of(&self, _: ItemId, user: &UserId) -> usize {
        user.as_str().bytes().map(usize::from).sum::<usize>() % 4
    }

    fn blocks(&self) -> bool {
        false
    }

    async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
        tokio::time::sleep(Duration::from_micros(300)).await;
        if self.early.fetch_update(SeqCst, SeqCst, |early| early.checked_sub(1)).is_ok() {
            return vec![Decision::NotStarted { opens_ms: OPENS_MS + SHUFFLE_MS }; batch.len()];
        }
        batch.into_iter().map(|request| self.decide(request)).collect()
    }

    fn may_hold_mark(&self, _: ItemId, _: &UserId, _: bool) -> bool {
        false
    }

    fn units_left(&self, _: ItemId) -> Option<i64> {
        Some(self.stale.unwrap_or_else(|| self.left.load(SeqCst)))
    }
}

/// An instance: its lanes, its room and its clock.
struct Instance {
    lanes: Lanes,
    room: Arc<Room>,
    clock: Arc<ManualClock>,
}

impl Instance {
    fn before(shelf: &Arc<Shelf>, options: LaneOptions) -> Instance {
        let numbers = Arc::new(OrderNumbers::new(0, Arc::new(SystemClock)));
        let (may_number, nobody) = (Arc::new(|| true), Arc::new(|_: &Claim, _| {}));
        let lanes = Lanes::start(options, 1_000, shelf.clone(), numbers, may_number, nobody);
        let (lanes, clock) = (lanes.unwrap(), ManualClock::at(OPENS_MS));
        let room = lanes.open_room(window(order(3)), clock.clone()).unwrap();
        Instance { lanes, room, clock }
    }

    fn enter(&self, n: usize, quantity: u32) -> PendingDecision {
        self.lanes.enter(request(n, quantity), Instant::now()).unwrap()
    }

    async fn hold(&self, exchange: &dyn DrawExchange) -> Vec<Drawn> {
        self.clock.set(OPENS_MS + SHUFFLE_MS);
        self.lanes.hold_draw(&self.room, exchange).await
    }
}

fn won(record: &[Drawn]) -> Vec<DrawPlace> {
    let won = record.iter().filter(|drawn| drawn.outcome == DrawOutcome::Won);
    won.map(|drawn| drawn.place).collect()
}

/// In the order of the draw.
fn places(people: impl Iterator<Item = usize>) -> Vec<DrawPlace> {
    let mut places: Vec<DrawPlace> = people.map(|n| order(3).place(&user(n))).collect();
    places.sort();
    places
}

#[tokio::test]
async fn those_with_the_smallest_places_win_and_everybody_is_told_what_the_gate_said() {
    let shelf = Shelf::of(20);
    shelf.early.store(3, SeqCst);
    let here = Instance::before(&shelf, LaneOptions::default());
    let mut waiting: Vec<PendingDecision> = (0..300).map(|n| here.enter(n, 1)).collect();
    assert_eq!(shelf.asked.load(SeqCst), 0, "nothing is taken in the window");
    // One hangs up, who would have won: the next one does.
    let smallest = places(0..300);
    let gone = (0..300).find(|n| order(3).place(&user(*n)) == smallest[0]).unwrap();
    drop(waiting.remove(gone));
    let record = here.hold(&NobodyElse).await;
    assert_eq!(record.len(), 300);
    assert_eq!(record[0].outcome, DrawOutcome::Left);
    assert_eq!(won(&record), smallest[1..21]);
    let mut heard = [0, 0];
    for decision in waiting {
        match decision.await {
            Decision::Admitted { .. } => heard[0] += 1,
            Decision::SoldOut { .. } => heard[1] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(heard, [20, 279]);
    let asked = shelf.asked.load(SeqCst);
    assert!(asked < 300, "{asked}: whoever could not win any more did not reach the gate");
    // Afterwards it is as if there had been no room.
    assert!(here.lanes.has_room(ITEM));
    let late = here.lanes.claim(request(1_000, 1)).await;
    assert!(matches!(late, Decision::SoldOut { .. }));
    here.lanes.close_room(&here.room, &Decision::Ended);
    assert!(!here.lanes.has_room(ITEM));
}

#[tokio::test]
async fn whoever_wants_more_than_is_left_hears_so_and_the_next_one_has_it() {
    let shelf = Shelf::of(5);
    let here = Instance::before(&shelf, LaneOptions::default());
    let quantity = |n: usize| if n.is_multiple_of(2) { 2 } else { 1 };
    let _waiting: Vec<PendingDecision> = (0..40).map(|n| here.enter(n, quantity(n))).collect();
    let record = here.hold(&NobodyElse).await;
    let mut left = 5;
    for drawn in &record {
        let fits = drawn.quantity <= left;
        assert_eq!(drawn.outcome == DrawOutcome::Won, fits, "{left} left: {drawn:?}");
        left -= if fits { drawn.quantity } else { 0 };
    }
    assert_eq!(left, 0);
}

#[tokio::test]
async fn whoever_asked_for_more_at_a_second_try_stands_there_with_what_they_still_want() {
    let shelf = Shelf::of(5);
    let here = Instance::before(&shelf, LaneOptions::default());
    let mut waiting: Vec<PendingDecision> = (0..12).map(|n| here.enter(n, 1)).collect();
    // The first in line hangs up and comes again for all there is.
    let first = (0..12).min_by_key(|n| order(3).place(&user(*n))).unwrap();
    let gone = std::mem::replace(&mut waiting[first], here.enter(first, 5));
    drop(gone);
    let record = here.hold(&NobodyElse).await;
    assert_eq!((record[0].quantity, record[0].outcome), (5, DrawOutcome::Won), "{record:?}");
    assert_eq!(won(&record).len(), 1, "nobody behind them is served before them");
}

#[tokio::test]
async fn a_gate_that_tells_of_more_than_is_left_lets_nobody_overtake() {
    // Five of those in front get nothing: there are five units for the next five, and the gate speaks of
    // twenty.
    let all = places(0..100);
    let in_front = |n: &usize| all[..5].contains(&order(3).place(&user(*n)));
    let refused = (0..100).filter(in_front).map(user).collect();
    let (left, stale) = (20.into(), Some(20));
    let shelf = Arc::new(Shelf { left, stale, refused, ..Shelf::default() });
    let here = Instance::before(&shelf, LaneOptions::default());
    let _waiting: Vec<PendingDecision> = (0..100).map(|n| here.enter(n, 1)).collect();
    let record = here.hold(&NobodyElse).await;
    assert_eq!(won(&record), all[5..25]);
}

#[tokio::test]
async fn a_pace_is_kept_and_whoever_comes_behind_the_draw_stays_behind_it() {
    let shelf = Shelf::of(30);
    let options = LaneOptions { rate_per_s: 500, wait_ms_max: 1_000, ..LaneOptions::default() };
    let here = Instance::before(&shelf, options);
    let _drawn: Vec<PendingDecision> = (0..30).map(|n| here.enter(n, 1)).collect();
    here.clock.set(OPENS_MS + SHUFFLE_MS);
    // It is there first, by the gate's clock, and its claim could be decided at once.
    let behind = here.enter(99, 1);
    let began = Instant::now();
    assert_eq!(won(&here.hold(&NobodyElse).await).len(), 30);
    assert!(began.elapsed() > Duration::from_millis(15), "an even pace: {:?}", began.elapsed());
    assert!(matches!(behind.await, Decision::SoldOut { .. }));
}

#[tokio::test]
async fn a_lane_that_stops_in_the_window_takes_nothing() {
    let shelf = Shelf::of(30);
    let here = Instance::before(&shelf, LaneOptions::default());
    let waiting = here.enter(1, 1);
    here.lanes.stop().await;
    assert_eq!(waiting.await, Decision::Busy(Busy::Unwritable));
    assert_eq!((shelf.left.load(SeqCst), shelf.asked.load(SeqCst)), (30, 0));
}

/// What one instance tells is there for the other when both have told.
struct Table {
    posted: Mutex<Vec<(usize, Vec<PostedPlace>)>>,
    told: Barrier,
    fed: Barrier,
}

struct AtTable<'t>(usize, &'t Table);

#[async_trait]
impl DrawExchange for AtTable<'_> {
    async fn swap(&self, ours: Vec<PostedPlace>) -> Vec<Vec<PostedPlace>> {
        self.1.posted.lock().await.push((self.0, ours));
        self.1.told.wait().await;
        let posted = self.1.posted.lock().await;
        let others = posted.iter().filter(|(who, _)| *who != self.0);
        others.map(|(_, places)| places.clone()).collect()
    }

    async fn fed(&self, others: usize) {
        assert_eq!(others, 1);
        self.1.fed.wait().await;
    }
}

#[tokio::test]
async fn of_two_instances_those_win_who_have_the_smallest_places_of_all() {
    let shelf = Shelf::of(25);
    let (here, there) = (
        Instance::before(&shelf, LaneOptions::default()),
        Instance::before(&shelf, LaneOptions::default()),
    );
    // Nine of ten come to one of them.
    let at = |n: usize| if n.is_multiple_of(10) { &here } else { &there };
    let _waiting: Vec<PendingDecision> = (0..500).map(|n| at(n).enter(n, 1)).collect();
    let (posted, told, fed) = (Mutex::default(), Barrier::new(2), Barrier::new(2));
    let table = Table { posted, told, fed };
    let (one, two) = (AtTable(1, &table), AtTable(2, &table));
    let (mine, theirs) = tokio::join!(here.hold(&one), there.hold(&two));
    let mut winners = [won(&mine), won(&theirs)].concat();
    winners.sort();
    assert_eq!(winners, places(0..500)[..25]);
    let told = table.posted.lock().await.iter().map(|(_, places)| places.len()).max();
    assert_eq!(told, Some(25), "nobody tells of more than can win");
}

/// Ranks from 0 to 1.
fn ranks<T: PartialOrd>(values: &[T]) -> Vec<f64> {
    let mut by_value: Vec<usize> = (0..values.len()).collect();
    by_value.sort_by(|a, b| values[*a].partial_cmp(&values[*b]).unwrap());
    let mut ranks = vec![0.0; values.len()];
    for (rank, at) in by_value.into_iter().enumerate() {
        ranks[at] = rank as f64 / (values.len() - 1) as f64;
    }
    ranks
}

/// Spearman's coefficient, and how often each tenth of the arrivals is in each tenth of the places.
fn compare(arrivals: &[f64], places: &[f64], table: &mut [[f64; 10]; 10]) -> f64 {
    let mean = 0.5;
    let (mut both, mut square) = (0.0, 0.0);
    for (arrival, place) in arrivals.iter().zip(places) {
        both += (arrival - mean) * (place - mean);
        square += (arrival - mean).powi(2);
        let tenth = |rank: f64| ((rank * 10.0) as usize).min(9);
        table[tenth(*arrival)][tenth(*place)] += 1.0;
    }
    both / square
}

fn chi_square(table: &[[f64; 10]; 10]) -> f64 {
    let all: f64 = table.iter().flatten().sum();
    let row = |n: usize| table[n].iter().sum::<f64>();
    let column = |n: usize| table.iter().map(|row| row[n]).sum::<f64>();
    let cell = |n: usize| (row(n / 10) * column(n % 10) / all, table[n / 10][n % 10]);
    (0..100).map(cell).map(|(expected, found)| (found - expected).powi(2) / expected).sum()
}

/// A thousand draws with a hundred buyers each, of seeds that are always the same. Were places independent
/// of arrivals, the mean of the coefficients would be normal around zero with a deviation of 1/√(99 · 1000)
/// = 0.0032, and chi square of the tenths would have 81 degrees of freedom: below 126 in 999 of 1,000 cases.
#[test]
fn over_a_thousand_draws_the_place_does_not_depend_on_the_instant_of_arrival() {
    const DRAWS: u16 = 1_000;
    const BUYERS: usize = 100;
    let (mut drawn, mut served) = ([[0.0; 10]; 10], [[0.0; 10]; 10]);
    let (mut correlation, mut camping_won) = (0.0, 0_usize);
    for draw in 0..DRAWS {
        let mut seed = [0; 32];
        seed[..2].copy_from_slice(&draw.to_be_bytes());
        let secrets = DrawSecrets::new(seed, [1; 32]);
        let clock = ManualClock::at(OPENS_MS);
        let rooms = Rooms::default();
        let room = rooms.open(window(secrets.order(ITEM)), 1_000, clock.clone()).unwrap();
        let mut waiting = Vec::new();
        // The first twenty camp on the first milliseconds, the others come over the whole window.
        let arrival = |n: usize| if n < 20 { n / 10 } else { 2 + (n - 20) * 497 / 80 } as Millis;
        for n in 0..BUYERS {
            clock.set(OPENS_MS + arrival(n));
            waiting.push(rooms.enter(request(n, 1), Instant::now()));
        }
        let order = secrets.order(ITEM);
        let of: Vec<DrawPlace> = (0..BUYERS).map(|n| order.place(&user(n))).collect();
        let left_in: Vec<DrawPlace> = room.begin().iter().map(|c| c.place).collect();
        let stood = |place: &DrawPlace| left_in.iter().position(|p| p == place).unwrap();
        let stood: Vec<usize> = of.iter().map(stood).collect();
        camping_won += (0..20).filter(|n| stood[*n] < 10).count();
        let arrivals = ranks(&(0..BUYERS).collect::<Vec<_>>());
        correlation += compare(&arrivals, &ranks(&stood), &mut drawn) / f64::from(DRAWS);
        compare(&arrivals, &arrivals, &mut served);
    }
    let chi = chi_square(&drawn);
    let campers = camping_won as f64 / f64::from(DRAWS) / 10.0;
    println!(
        "mean rank correlation {correlation:.4}, chi square {chi:.1}, campers win {campers:.3}"
    );
    assert!(correlation.abs() < 3.3 * 0.0032, "{correlation}");
    assert!(chi < 126.0, "{chi}");
    assert!((0.19..0.21).contains(&campers), "a fifth of the buyers win a fifth: {campers}");
    assert!(chi_square(&served) > 100_000.0, "and first come, first served would not pass");
}
