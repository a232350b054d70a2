//! A rehearsal from the first request to the verdict.
//!
//! 1. Everybody signs in. How long that takes tells when the sale can open.
//! 2. An activity of the rehearsal's own is created, published and warmed; everybody fetches a sale
//!    token; all connections are opened.
//! 3. Bots start a moment before the opening, everybody else at its planned instant. The time line
//!    is sampled until all is quiet: claims are orders, unpaid orders have timed out.
//! 4. *Last call*: strangers ask for every unit that is left and one more. Each unit must be sold and
//!    the one too many refused, or units are stranded. Then they cancel.
//! 5. What the buyers were told and what is there are compared by the checker, the deployment
//!    compares itself, and the activity is ended, whatever happened. (There is no deleting: orders
//!    were made and stay in the books.)

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use checker::{Answer, CONSERVATION, DRAINS, History, MONEY, Observed, STRANDED, Violation, check};
use client::{Api, ApiError, CreatedSale, Login, NewSale, NotSettled, observe};
use sale::OrderNo;
use serde_json::{Value, json};
use tokio::time::{sleep_until, timeout};

use crate::{
    Note, Plan, Report, Site,
    agenda::Agenda,
    buyers::{BOT_CLAIMS_AT_ONCE, BuyerState, Buyers, Rules, Task},
    open_loop::Senders,
    people::{AskFor, Person, everybody_asks},
    plan::{Character, Ending, Manner},
    progress::Progress,
    report::{Check, Funnel, Generator, Percentiles, Rates, Reconciled, Target, Timings},
    site::{self, REST_WITHIN, dev_login, differences, server_clock},
    timeline::{Overview, SAMPLE_EVERY, Timeline},
};

/// Bots start this long before the opening.
const BOTS_EARLY: Duration = Duration::from_millis(300);
/// Of the connections, one in so many belongs to the bots, so that their noise does not keep the
/// other buyers' requests from leaving.
const BOT_CONNECTIONS_SHARE: usize = 4;
/// Buyers who are sent away come again for this long after the last one arrived.
const PATIENCE: Duration = Duration::from_secs(30);
/// The sale opens so long after everybody is thought to be ready.
const LEAD: Duration = Duration::from_millis(1_500);
/// Fetching sale tokens may be this much slower than signing in was.
const SLOWER_MAX: f64 = 1.5;
const TIME_ASKERS_MAX: usize = 2_000;
/// If more units are left, there is no last call.
const LAST_CALL_MAX: i64 = 20_000;
/// Nobody is in a hurry there.
const LAST_CALL_CONNECTIONS_MAX: usize = 64;
/// The sale does not close before the rehearsal is over.
const WINDOW: Duration = Duration::from_secs(3_600);
const END_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum RehearseError {
    #[error("{0}")]
    Plan(String),
    #[error("the admin token is not accepted, or its role is below operator")]
    AdminToken,
    #[error(
        "buyers cannot sign in: the dev login is off; give the shop's HS256 secret with --jwt-secret"
    )]
    NoLogin,
    #[error("the deployment cannot be rehearsed on: {0}")]
    Api(#[from] ApiError),
    #[error("the load cannot be made: {0}")]
    Io(#[from] std::io::Error),
    #[error("interrupted; the activity of the rehearsal is ended")]
    Interrupted,
}

/// Play the plan. When `stop` resolves the rehearsal is given up and cleaned up after.
pub async fn rehearse(
    plan: &Plan,
    site: &Site,
    progress: &Progress,
    stop: impl Future<Output = ()>,
) -> Result<Report, RehearseError> {
    let mistakes = plan.mistakes();
    if !mistakes.is_empty() {
        return Err(RehearseError::Plan(mistakes.join("; ")));
    }
    let mut activity = None;
    let played = tokio::select! {
        played = play(plan, site, progress, &mut activity) => played,
        () = stop => Err(RehearseError::Interrupted),
    };
    if let Some(id) = activity {
        progress.wait("ending");
        // A deployment that does not answer now has failed above already, and that is what is reported.
        let end = format!("/api/v1/admin/activities/{id}/end");
        let _ = timeout(END_WITHIN, site.admin().post(&end, &json!({}))).await;
    }
    progress.close();
    played
}

async fn play(
    plan: &Plan,
    site: &Site,
    progress: &Progress,
    activity: &mut Option<i64>,
) -> Result<Report, RehearseError> {
    Rehearsal::open(plan, site, progress).await?.play(activity).await
}

/// What is known of the deployment before the crowd comes.
struct Rehearsal<'a> {
    plan: &'a Plan,
    site: &'a Site,
    progress: &'a Progress,
    admin: Api,
    login: Login,
    /// There is a sandbox to pay at.
    cashier: bool,
    target: Target,
    /// All that is left will be asked for at the end.
    last_call: bool,
    differences_before: u64,
    notes: Vec<Note>,
}

/// What was found when everything had come to rest, or had not.
struct Verdict {
    violations: Vec<Violation>,
    reconcile: Reconciled,
    /// Only what rests can be compared.
    compared: bool,
}

/// The sale of the rehearsal.
struct RehearsedSale {
    activity: i64,
    items: Vec<i64>,
    opens_ms: i64,
    opening: Instant,
}

impl<'a> Rehearsal<'a> {
    async fn open(
        plan: &'a Plan,
        site: &'a Site,
        progress: &'a Progress,
    ) -> Result<Self, RehearseError> {
        progress.wait("connecting");
        let mut admin = site.admin();
        let response = admin.get("/api/v1/admin/overview").await?;
        if matches!(response.status, 401 | 403) {
            return Err(RehearseError::AdminToken);
        }
        let overview = response.json();
        let word = |name: &str| overview[name].as_str().unwrap_or("unknown").to_owned();
        let target = Target {
            addresses: site.addresses.iter().map(ToString::to_string).collect(),
            own: site.own,
            version: word("version"),
            profile: word("profile"),
            activity: 0,
        };
        let cashier = admin.get("/api/v1/admin/sandbox/bill").await?.status == 200;
        let login = match &site.login {
            Some(login) => login.clone(),
            None => dev_login(site).await?,
        };
        let differences_before = differences(&mut admin).await?;
        let mut notes = Vec::new();
        if !cashier {
            notes.push(Note::new(
                "there is no sandbox cashier: nobody pays, orders are left unpaid",
                "没有沙盒收银台：无人付款，订单都未支付",
            ));
        }
        Ok(Rehearsal {
            plan,
            site,
            progress,
            admin,
            login,
            cashier,
            target,
            last_call: true,
            differences_before,
            notes,
        })
    }

    async fn play(&mut self, activity: &mut Option<i64>) -> Result<Report, RehearseError> {
        let characters = self.plan.crowd();
        let (people, took) = self.log_in(characters.len(), "b").await?;
        let sale = self.create_sale(took, activity).await?;
        let buyers = self.invite(&sale, people, characters).await?;
        let senders = self.connect().await;
        let opening = self.wait_for_opening(&sale).await;
        let (tasks, schedule) = plan_tasks(&buyers, opening);
        let timeline = Timeline::new(opening, schedule);
        let rest = tokio::select! {
            rest = self.sell(&sale, &buyers, senders, tasks) => rest?,
            () = sample(self.site.admin(), &sale.items, &buyers, &timeline, self.progress) => Ok(()),
        };
        let counts = buyers.measurements.counts();
        timeline.add(Instant::now(), counts, Overview::read(&mut self.admin, &sale.items).await);
        let verdict = self.judge(&sale, &buyers, rest).await?;
        Ok(self.report(&sale, &buyers, timeline, verdict))
    }

    /// Answers also how long it took.
    async fn log_in(
        &mut self,
        count: usize,
        name: &str,
    ) -> Result<(Vec<Person>, Duration), RehearseError> {
        // Names of this rehearsal alone, so that no one of an earlier one is met again.
        let run = self.plan.seed ^ sale::Clock::now_ms(&sale::SystemClock).unsigned_abs();
        let person =
            |n| Person { user: format!("rehearsal-{run:x}-{name}{n}"), ..Person::default() };
        let people: Vec<Person> = (0..count).map(person).collect();
        self.progress.begin("signing in", count);
        let wanted = AskFor::Bearer(self.login.clone());
        let started = Instant::now();
        let people = everybody_asks(&self.site.addresses, wanted, people, self.progress).await?;
        if matches!(self.login, Login::Dev) {
            return Ok((people, started.elapsed()));
        }
        // Signing a JWT here says nothing of the deployment, so some ask for the time.
        let some = count.min(TIME_ASKERS_MAX);
        let askers = vec![Person::default(); some];
        let started = Instant::now();
        everybody_asks(&self.site.addresses, AskFor::Time, askers, self.progress).await?;
        Ok((people, started.elapsed().mul_f64(count as f64 / some.max(1) as f64)))
    }

    async fn create_sale(
        &mut self,
        sign_in_took: Duration,
        activity: &mut Option<i64>,
    ) -> Result<RehearsedSale, RehearseError> {
        let plan = self.plan;
        let connecting = Duration::from_micros(500) * plan.connections as u32;
        let ready_in = sign_in_took.mul_f64(SLOWER_MAX) + connecting + LEAD;
        let (now_ms, at) = server_clock(&mut self.admin).await?;
        let opens_ms = now_ms + ready_in.as_millis() as i64;
        let sale = NewSale {
            name: "rehearsal".into(),
            items: plan.items,
            price: 100,
            shards: plan.shards,
            pay_within_ms: plan.pay_within_ms as i64,
            opens_ms,
            closes_ms: opens_ms + WINDOW.as_millis() as i64,
            ..NewSale::of(plan.stock)
        };
        let created = sale.draft(&mut self.admin).await?;
        *activity = Some(created.activity);
        self.target.activity = created.activity;
        created.publish(&mut self.admin).await?;
        let CreatedSale { activity, items } = created;
        Ok(RehearsedSale { activity, items, opens_ms, opening: at + ready_in })
    }

    /// Everybody gets a sale token.
    async fn invite(
        &self,
        sale: &RehearsedSale,
        mut people: Vec<Person>,
        characters: Vec<Character>,
    ) -> Result<Arc<Buyers>, RehearseError> {
        self.progress.begin("sale tokens", people.len());
        for (person, character) in people.iter_mut().zip(&characters) {
            person.item = sale.items[character.item];
        }
        let wanted = AskFor::SaleToken;
        let people = everybody_asks(&self.site.addresses, wanted, people, self.progress).await?;
        let rules = self.rules(sale.opening.max(Instant::now()));
        Ok(Arc::new(Buyers::new(people, characters, rules)))
    }

    fn rules(&self, opening: Instant) -> Rules {
        let pay_within = Duration::from_millis(self.plan.pay_within_ms);
        let last = opening + Duration::from_millis(self.plan.over_ms) + pay_within;
        Rules {
            think: Duration::from_millis(self.plan.think_ms),
            pay_within,
            cashier: self.cashier,
            claims_until: last + PATIENCE,
            orders_until: last + pay_within + REST_WITHIN,
        }
    }

    /// For buyers, and for bots if there are any.
    async fn connect(&self) -> (Senders, Senders) {
        self.progress.wait("connecting");
        let all = self.plan.connections;
        let bots = if self.plan.bot_share > 0.0 { (all / BOT_CONNECTIONS_SHARE).max(1) } else { 0 };
        let addresses = &self.site.addresses;
        let buyers = Senders::open(addresses, all.saturating_sub(bots).max(1)).await;
        (buyers, Senders::open(addresses, bots).await)
    }

    /// Sleep until the bots may start. Answers the opening, or now if it is too late for it.
    async fn wait_for_opening(&mut self, sale: &RehearsedSale) -> Instant {
        self.progress.wait("waiting");
        let early = sale.opening - BOTS_EARLY;
        if Instant::now() > early {
            self.notes.push(Note::new(
                "signing in took longer than was thought: the sale was open before the crowd came",
                "登录用时比预计的长：买家到来之前活动已经开始",
            ));
            return Instant::now() + BOTS_EARLY;
        }
        sleep_until(early.into()).await;
        sale.opening
    }

    /// Until all is quiet. Inside: whether it became quiet.
    async fn sell(
        &self,
        sale: &RehearsedSale,
        buyers: &Arc<Buyers>,
        (buyer_senders, bot_senders): (Senders, Senders),
        (buyer_tasks, bot_tasks): (Tasks, Tasks),
    ) -> Result<Result<(), Violation>, RehearseError> {
        self.progress.begin("selling", self.plan.buyers);
        let bots = StopWhenDropped::new(bot_tasks);
        let others = StopWhenDropped::new(buyer_tasks);
        tokio::try_join!(
            bot_senders.perform(buyers.clone(), bots.0.clone()),
            buyer_senders.perform(buyers.clone(), others.0.clone()),
        )?;
        self.progress.wait("coming to rest");
        self.come_to_rest(sale).await
    }

    async fn come_to_rest(
        &self,
        sale: &RehearsedSale,
    ) -> Result<Result<(), Violation>, RehearseError> {
        let pay_within = Duration::from_millis(self.plan.pay_within_ms);
        match site::come_to_rest(&mut self.site.admin(), sale.activity, pay_within).await {
            Ok(()) => Ok(Ok(())),
            Err(NotSettled::Busy(detail)) => Ok(Err(Violation { invariant: DRAINS, detail })),
            Err(NotSettled::Api(error)) => Err(error.into()),
        }
    }

    async fn judge(
        &mut self,
        sale: &RehearsedSale,
        buyers: &Buyers,
        rest: Result<(), Violation>,
    ) -> Result<Verdict, RehearseError> {
        // Whoever is not at rest cannot be compared; that alone is the verdict.
        if let Err(restless) = rest {
            let reconcile =
                Reconciled { differences_before: self.differences_before, ..Default::default() };
            return Ok(Verdict { violations: vec![restless], reconcile, compared: false });
        }
        let mut history =
            History { claims: std::mem::take(&mut buyers.measurements.lock().claims) };
        let mut violations = self.last_call(sale, &mut history).await?;
        self.progress.wait("checking");
        let observed = ours(observe(&mut self.admin, &sale.items).await?, &history);
        violations.extend(check(&history, &observed));
        let reconcile = Reconciled {
            differences_before: self.differences_before,
            differences_after: differences(&mut self.admin).await?,
        };
        violations.extend(new_differences(reconcile));
        Ok(Verdict { violations, reconcile, compared: true })
    }

    /// Strangers ask for all that is left and one more.
    async fn last_call(
        &mut self,
        sale: &RehearsedSale,
        history: &mut History,
    ) -> Result<Vec<Violation>, RehearseError> {
        let mut left = Vec::new();
        for item in &sale.items {
            let sides: Value = self.admin.read(&format!("/api/v1/admin/items/{item}")).await?;
            // The gate, because units of dead letters are in the ledger and cannot be bought.
            left.push(sides["gate"]["left"].as_i64().unwrap_or(0).max(0));
        }
        if left.iter().sum::<i64>() > LAST_CALL_MAX {
            self.notes.push(Note::new(
                format!("more than {LAST_CALL_MAX} units were left: no last call"),
                format!("剩余超过 {LAST_CALL_MAX} 件，未做最后的清仓检查"),
            ));
            self.last_call = false;
            return Ok(vec![]);
        }
        let wanted: Vec<usize> = left
            .iter()
            .enumerate()
            .flat_map(|(item, units)| std::iter::repeat_n(item, *units as usize + 1))
            .collect();
        let stranger = |item: &usize| Character {
            at: Duration::ZERO,
            item: *item,
            manner: Manner::Plain,
            ending: Ending::Cancels,
            comes_back: false,
        };
        let (people, _) = self.log_in(wanted.len(), "late").await?;
        let strangers = wanted.iter().map(stranger).collect();
        let strangers = self.invite(sale, people, strangers).await?;
        self.progress.begin("last call", wanted.len());
        let connections = self.plan.connections.min(LAST_CALL_CONNECTIONS_MAX);
        let senders = Senders::open(&self.site.addresses, connections).await;
        let open = StopWhenDropped::new(plan_tasks(&strangers, Instant::now()).0.0);
        senders.perform(strangers.clone(), open.0.clone()).await?;
        let rest = self.come_to_rest(sale).await?;
        history.claims.extend(std::mem::take(&mut strangers.measurements.lock().claims));
        let mut violations: Vec<Violation> = rest.err().into_iter().collect();
        for (item, units) in sale.items.iter().zip(left) {
            violations.extend(stranded(&strangers, *item, units));
        }
        Ok(violations)
    }

    fn report(
        &self,
        sale: &RehearsedSale,
        buyers: &Buyers,
        timeline: Timeline,
        Verdict { violations, reconcile, compared }: Verdict,
    ) -> Report {
        let measured = buyers.measurements.lock();
        let counts = measured.counts;
        let generator = Generator::of(&measured.buyers);
        let mut notes = self.notes.clone();
        notes.extend(generator.notes(measured.buyers.latency.len()));
        if counts.broken > 0 {
            let broken = counts.broken;
            notes.push(Note::new(
                format!("{broken} requests lost their connection and were sent again"),
                format!("{broken} 个请求断开了连接，已重新发送"),
            ));
        }
        notes.extend(measured.unexpected.iter().map(|what| {
            Note::new(format!("not expected: {what}"), format!("意料之外的答复：{what}"))
        }));
        let timeline = timeline.take();
        Report {
            ok: violations.is_empty(),
            checks: Check::all(&violations, |invariant| match invariant {
                MONEY => compared && self.cashier,
                STRANDED => compared && self.last_call,
                _ => compared,
            }),
            violations,
            notes,
            plan: self.plan.clone(),
            repeat_with: self.plan.command(),
            target: self.target.clone(),
            generator,
            opened_at: sale.opens_ms,
            funnel: Funnel {
                buyers: buyers.people.len() as u64,
                admitted: counts.admitted,
                ordered: counts.ordered,
                paid: counts.paid,
                cancelled: counts.cancelled,
                abandoned: counts.abandoned,
                missed: counts.missed,
                void: counts.void,
                sold_out: buyers.count_in(BuyerState::SoldOut, None),
                sent_away: buyers.count_in(BuyerState::SentAway, None),
            },
            rates: Rates::of(&timeline),
            refusals: measured.refusals.clone(),
            latency: Timings {
                claims: Percentiles::of(&measured.buyers.latency),
                service: Percentiles::of(&measured.buyers.service),
                lag: Percentiles::of(&measured.buyers.lag),
                bots: Percentiles::of(&measured.bots.latency),
                decided: Percentiles::of(&measured.decided),
                ordered: Percentiles::of(&measured.ordered),
                paid: Percentiles::of(&measured.paid),
            },
            reconcile,
            timeline,
            bots: None,
        }
    }
}

type Tasks = Vec<(Instant, Task)>;

/// Stops its agenda when it is dropped, so that a rehearsal that is given up claims nothing more.
struct StopWhenDropped(Arc<Agenda<Task>>);

impl StopWhenDropped {
    fn new(tasks: Tasks) -> StopWhenDropped {
        StopWhenDropped(Agenda::new(tasks))
    }
}

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What buyers and what bots begin with, and when everybody comes.
fn plan_tasks(buyers: &Buyers, opening: Instant) -> ((Tasks, Tasks), Vec<Instant>) {
    let (mut people, mut bots, mut schedule) = (Vec::new(), Vec::new(), Vec::new());
    for (n, character) in buyers.characters.iter().enumerate() {
        let is_bot = character.manner == Manner::Bot;
        let came = if is_bot { opening - BOTS_EARLY } else { opening + character.at };
        schedule.push(came);
        if is_bot {
            bots.extend(std::iter::repeat_n(buyers.arrival(n, came), BOT_CLAIMS_AT_ONCE));
        } else {
            people.push(buyers.arrival(n, came));
        }
    }
    ((people, bots), schedule)
}

/// Look four times a second, for ever.
async fn sample(
    mut admin: Api,
    items: &[i64],
    buyers: &Buyers,
    timeline: &Timeline,
    progress: &Progress,
) {
    let mut tick = tokio::time::interval(SAMPLE_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tick.tick().await;
        let overview = Overview::read(&mut admin, items).await;
        let (now, counts) = (Instant::now(), buyers.measurements.counts());
        let sample = timeline.add(now, counts, overview);
        let p99_us = buyers.measurements.lock().buyers.latency.value_at_quantile(0.99);
        let number = |value: Option<i64>| value.map_or("?".into(), |value| value.to_string());
        progress.at(sample.arrived);
        progress.say(format!(
            "admitted {}  refused {}  paid {}  left {}  backlog {}  p99 {:.1} ms",
            sample.admitted,
            sample.refused,
            counts.paid,
            number(sample.stock_left),
            number(sample.backlog.map(|claims| claims as i64)),
            p99_us as f64 / 1_000.0
        ));
    }
}

fn new_differences(reconcile: Reconciled) -> Option<Violation> {
    let Reconciled { differences_before: before, differences_after: after } = reconcile;
    let detail =
        format!("the deployment's own reconcile counts {after} differences, {before} before");
    (after > before).then_some(Violation { invariant: CONSERVATION, detail })
}

/// Each unit that was left must have been sold, and somebody told that there is none.
fn stranded(strangers: &Buyers, item: i64, units: i64) -> Option<Violation> {
    let (sold, refused) = (
        strangers.count_in(BuyerState::Admitted, Some(item)),
        strangers.count_in(BuyerState::SoldOut, Some(item)),
    );
    let detail = format!(
        "item {item}: of {units} units left, last call sold {sold}; {refused} heard \"sold out\""
    );
    (sold != units.unsigned_abs()).then_some(Violation { invariant: STRANDED, detail })
}

/// The bill has everybody's charges; those of other sales are none of ours.
fn ours(mut observed: Observed, history: &History) -> Observed {
    let mut numbers: HashSet<OrderNo> =
        observed.orders.iter().map(|order| order.order_no).collect();
    numbers.extend(history.claims.iter().filter_map(|claim| match claim.answer {
        Answer::Admitted { order_no } | Answer::AlreadyBought { order_no } => Some(order_no),
        _ => None,
    }));
    if let Some(bill) = &mut observed.bill {
        bill.charges.retain(|charge| numbers.contains(&charge.order_no));
    }
    observed
}
