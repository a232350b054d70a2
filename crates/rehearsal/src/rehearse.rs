//! A rehearsal from the first look at the deployment to the verdict.
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
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use checker::{Answer, CONSERVATION, DRAINS, History, Observed, STRANDED, Violation, check};
use client::{Api, ApiError, CreatedSale, Login, NewSale, ObserveError, observe, settled};
use sale::OrderNo;
use serde_json::{Value, json};
use tokio::time::{sleep, sleep_until, timeout};

use crate::{
    Plan, Report,
    agenda::Agenda,
    buyers::{BOT_FINGERS, Buyers, Errand, Fate, Rules},
    open_loop::Links,
    people::{Person, Wanted, everybody_asks},
    plan::{Character, Ending, Manner},
    report::{Funnel, Generator, Percentiles, Rates, Reconciled, Target, Timings},
    timeline::{Overview, SAMPLE_EVERY, Timeline},
    view::View,
};

/// Bots start this long before the opening.
const BOTS_EARLY: Duration = Duration::from_millis(300);
/// Of the connections, one in so many belongs to the bots, so that their noise does not keep the
/// other buyers' requests from leaving.
const BOT_CONNECTIONS_SHARE: usize = 4;
/// Buyers who are sent away come again for this long after the last one arrived.
const PATIENCE: Duration = Duration::from_secs(30);
/// All claims are orders and all time-outs are done after this, or something is wrong.
const REST_WITHIN: Duration = Duration::from_secs(120);
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
const UNPAID_LOOK: Duration = Duration::from_millis(250);

/// The deployment to rehearse on.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its instances; the first is asked what operators ask.
    pub addresses: Vec<SocketAddr>,
    pub admin_token: String,
    /// How buyers sign in; with the dev login if not given.
    pub login: Option<Login>,
    /// Started for this rehearsal.
    pub own: bool,
}

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
    view: &View,
    stop: impl Future<Output = ()>,
) -> Result<Report, RehearseError> {
    let mistakes = plan.mistakes();
    if !mistakes.is_empty() {
        return Err(RehearseError::Plan(mistakes.join("; ")));
    }
    let mut activity = None;
    let played = tokio::select! {
        played = play(plan, site, view, &mut activity) => played,
        () = stop => Err(RehearseError::Interrupted),
    };
    if let Some(id) = activity {
        view.wait("ending");
        // Best effort: a deployment that does not answer has been told about above.
        let end = format!("/api/v1/admin/activities/{id}/end");
        let _ = timeout(END_WITHIN, site.admin().post(&end, &json!({}))).await;
    }
    view.close();
    played
}

async fn play(
    plan: &Plan,
    site: &Site,
    view: &View,
    activity: &mut Option<i64>,
) -> Result<Report, RehearseError> {
    Stage::open(plan, site, view).await?.play(activity).await
}

impl Site {
    fn admin(&self) -> Api {
        Api::new(self.addresses[0], Some(&self.admin_token))
    }
}

/// What is known of the deployment before the crowd comes.
struct Stage<'a> {
    plan: &'a Plan,
    site: &'a Site,
    view: &'a View,
    admin: Api,
    login: Login,
    /// There is a sandbox to pay at.
    cashier: bool,
    target: Target,
    differences_before: u64,
    notes: Vec<String>,
}

/// The sale of the rehearsal.
struct Sale {
    activity: i64,
    items: Vec<i64>,
    opens_ms: i64,
    opening: Instant,
}

impl<'a> Stage<'a> {
    async fn open(plan: &'a Plan, site: &'a Site, view: &'a View) -> Result<Self, RehearseError> {
        view.wait("looking");
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
            notes.push("there is no sandbox cashier: nobody pays, orders are left unpaid".into());
        }
        Ok(Stage { plan, site, view, admin, login, cashier, target, differences_before, notes })
    }

    async fn play(&mut self, activity: &mut Option<i64>) -> Result<Report, RehearseError> {
        let characters = self.plan.crowd();
        let (people, took) = self.log_in(characters.len(), "b").await?;
        let sale = self.create_sale(took, activity).await?;
        let buyers = self.invite(&sale, people, characters).await?;
        let links = self.connect().await;
        let opening = self.wait_for_opening(&sale).await;
        let (errands, schedule) = plan_errands(&buyers, opening);
        let timeline = Timeline::new(opening, schedule);
        let rest = tokio::select! {
            rest = self.sell(&sale, &buyers, links, errands) => rest?,
            () = sample(self.site.admin(), &sale.items, &buyers, &timeline, self.view) => Ok(()),
        };
        let counts = buyers.notes.counts();
        timeline.add(Instant::now(), counts, Overview::read(&mut self.admin, &sale.items).await);
        let (violations, reconcile) = self.judge(&sale, &buyers, rest).await?;
        Ok(self.report(&sale, &buyers, timeline, violations, reconcile))
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
        self.view.begin("signing in", count);
        let wanted = Wanted::Bearer(self.login.clone());
        let started = Instant::now();
        let people = everybody_asks(&self.site.addresses, wanted, people, self.view).await?;
        if matches!(self.login, Login::Dev) {
            return Ok((people, started.elapsed()));
        }
        // Signing a JWT here says nothing of the deployment, so some ask for the time.
        let some = count.min(TIME_ASKERS_MAX);
        let askers = vec![Person::default(); some];
        let started = Instant::now();
        everybody_asks(&self.site.addresses, Wanted::Time, askers, self.view).await?;
        Ok((people, started.elapsed().mul_f64(count as f64 / some.max(1) as f64)))
    }

    async fn create_sale(
        &mut self,
        sign_in_took: Duration,
        activity: &mut Option<i64>,
    ) -> Result<Sale, RehearseError> {
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
        Ok(Sale { activity, items, opens_ms, opening: at + ready_in })
    }

    /// Everybody gets a sale token.
    async fn invite(
        &self,
        sale: &Sale,
        mut people: Vec<Person>,
        characters: Vec<Character>,
    ) -> Result<Arc<Buyers>, RehearseError> {
        self.view.begin("sale tokens", people.len());
        for (person, character) in people.iter_mut().zip(&characters) {
            person.item = sale.items[character.item];
        }
        let wanted = Wanted::SaleToken;
        let people = everybody_asks(&self.site.addresses, wanted, people, self.view).await?;
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
            looks_until: last + pay_within + REST_WITHIN,
        }
    }

    /// For buyers, and for bots if there are any.
    async fn connect(&self) -> (Links, Links) {
        self.view.wait("connecting");
        let all = self.plan.connections;
        let bots = if self.plan.bot_share > 0.0 { (all / BOT_CONNECTIONS_SHARE).max(1) } else { 0 };
        let addresses = &self.site.addresses;
        let buyers = Links::open(addresses, all.saturating_sub(bots).max(1)).await;
        (buyers, Links::open(addresses, bots).await)
    }

    /// Sleep until the bots may start. Answers the opening, or now if it is too late for it.
    async fn wait_for_opening(&mut self, sale: &Sale) -> Instant {
        self.view.wait("waiting");
        let early = sale.opening - BOTS_EARLY;
        if Instant::now() > early {
            let note =
                "signing in took longer than was thought: the sale was open before the crowd came";
            self.notes.push(note.into());
            return Instant::now() + BOTS_EARLY;
        }
        sleep_until(early.into()).await;
        sale.opening
    }

    /// Until all is quiet. Inside: whether it became quiet.
    async fn sell(
        &self,
        sale: &Sale,
        buyers: &Arc<Buyers>,
        (buyer_links, bot_links): (Links, Links),
        (buyer_errands, bot_errands): (Errands, Errands),
    ) -> Result<Result<(), Violation>, RehearseError> {
        self.view.begin("selling", self.plan.buyers);
        let bots = Open::new(bot_errands);
        let others = Open::new(buyer_errands);
        tokio::try_join!(
            bot_links.perform(buyers.clone(), bots.0.clone()),
            buyer_links.perform(buyers.clone(), others.0.clone()),
        )?;
        self.view.wait("coming to rest");
        self.come_to_rest(sale).await
    }

    async fn come_to_rest(&self, sale: &Sale) -> Result<Result<(), Violation>, RehearseError> {
        let mut admin = self.site.admin();
        let drains = |detail| Ok(Err(Violation { invariant: DRAINS, detail }));
        match settled(&mut admin, REST_WITHIN).await {
            Ok(()) => {}
            Err(ObserveError::NotAtRest(overview)) => return drains(overview),
            Err(ObserveError::Api(error)) => return Err(error.into()),
        }
        let patience = Duration::from_millis(self.plan.pay_within_ms) + REST_WITHIN;
        let deadline = Instant::now() + patience;
        while any_unpaid(&mut admin, sale.activity).await? {
            if Instant::now() > deadline {
                return drains("unpaid orders do not time out".into());
            }
            sleep(UNPAID_LOOK).await;
        }
        match settled(&mut admin, REST_WITHIN).await {
            Ok(()) => Ok(Ok(())),
            Err(ObserveError::NotAtRest(overview)) => drains(overview),
            Err(ObserveError::Api(error)) => Err(error.into()),
        }
    }

    async fn judge(
        &mut self,
        sale: &Sale,
        buyers: &Buyers,
        rest: Result<(), Violation>,
    ) -> Result<(Vec<Violation>, Reconciled), RehearseError> {
        // Whoever is not at rest cannot be compared; that alone is the verdict.
        if let Err(restless) = rest {
            let reconcile =
                Reconciled { differences_before: self.differences_before, ..Default::default() };
            return Ok((vec![restless], reconcile));
        }
        let mut history = History { claims: std::mem::take(&mut buyers.notes.open().claims) };
        let mut violations = self.last_call(sale, &mut history).await?;
        self.view.wait("checking");
        let observed = match observe(&mut self.admin, &sale.items).await {
            Ok(observed) => ours(observed, &history),
            Err(ObserveError::Api(error)) => return Err(error.into()),
            Err(ObserveError::NotAtRest(detail)) => {
                violations.push(Violation { invariant: DRAINS, detail });
                Observed::default()
            }
        };
        violations.extend(check(&history, &observed));
        let reconcile = Reconciled {
            differences_before: self.differences_before,
            differences_after: differences(&mut self.admin).await?,
        };
        violations.extend(new_differences(reconcile));
        Ok((violations, reconcile))
    }

    /// Strangers ask for all that is left and one more.
    async fn last_call(
        &mut self,
        sale: &Sale,
        history: &mut History,
    ) -> Result<Vec<Violation>, RehearseError> {
        let mut left = Vec::new();
        for item in &sale.items {
            let sides: Value = self.admin.read(&format!("/api/v1/admin/items/{item}")).await?;
            // The gate, because units of dead letters are in the ledger and cannot be bought.
            left.push(sides["gate"]["left"].as_i64().unwrap_or(0).max(0));
        }
        if left.iter().sum::<i64>() > LAST_CALL_MAX {
            self.notes.push(format!("more than {LAST_CALL_MAX} units were left: no last call"));
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
        self.view.begin("last call", wanted.len());
        let connections = self.plan.connections.min(LAST_CALL_CONNECTIONS_MAX);
        let links = Links::open(&self.site.addresses, connections).await;
        let open = Open::new(plan_errands(&strangers, Instant::now()).0.0);
        links.perform(strangers.clone(), open.0.clone()).await?;
        let rest = self.come_to_rest(sale).await?;
        history.claims.extend(std::mem::take(&mut strangers.notes.open().claims));
        let mut violations: Vec<Violation> = rest.err().into_iter().collect();
        for (item, units) in sale.items.iter().zip(left) {
            violations.extend(stranded(&strangers, *item, units));
        }
        Ok(violations)
    }

    fn report(
        &self,
        sale: &Sale,
        buyers: &Buyers,
        timeline: Timeline,
        violations: Vec<Violation>,
        reconcile: Reconciled,
    ) -> Report {
        let written = buyers.notes.open();
        let counts = written.counts;
        let generator = Generator::of(&written.buyers);
        let mut notes = self.notes.clone();
        notes.extend(generator.notes(written.buyers.latency.len()));
        if counts.broken > 0 {
            notes.push(format!(
                "{} requests lost their connection and were sent again",
                counts.broken
            ));
        }
        notes.extend(written.unexpected.iter().map(|what| format!("not expected: {what}")));
        let timeline = timeline.take();
        Report {
            ok: violations.is_empty(),
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
                sold_out: buyers.met(Fate::SoldOut, None),
                sent_away: buyers.met(Fate::SentAway, None),
            },
            rates: Rates::of(&timeline),
            refusals: written.refusals.clone(),
            latency: Timings {
                claims: Percentiles::of(&written.buyers.latency),
                service: Percentiles::of(&written.buyers.service),
                lag: Percentiles::of(&written.buyers.lag),
                bots: Percentiles::of(&written.bots.latency),
                decided: Percentiles::of(&written.decided),
                ordered: Percentiles::of(&written.ordered),
                paid: Percentiles::of(&written.paid),
            },
            reconcile,
            timeline,
        }
    }
}

type Errands = Vec<(Instant, Errand)>;

/// Stops its agenda when it is dropped, so that a rehearsal that is given up claims nothing more.
struct Open(Arc<Agenda<Errand>>);

impl Open {
    fn new(errands: Errands) -> Open {
        Open(Agenda::new(errands))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What buyers and what bots begin with, and when everybody comes.
fn plan_errands(buyers: &Buyers, opening: Instant) -> ((Errands, Errands), Vec<Instant>) {
    let (mut people, mut bots, mut schedule) = (Vec::new(), Vec::new(), Vec::new());
    for (n, character) in buyers.characters.iter().enumerate() {
        let is_bot = character.manner == Manner::Bot;
        let came = if is_bot { opening - BOTS_EARLY } else { opening + character.at };
        schedule.push(came);
        if is_bot {
            bots.extend(std::iter::repeat_n(buyers.arrival(n, came), BOT_FINGERS));
        } else {
            people.push(buyers.arrival(n, came));
        }
    }
    ((people, bots), schedule)
}

/// Look four times a second, for ever.
async fn sample(mut admin: Api, items: &[i64], buyers: &Buyers, timeline: &Timeline, view: &View) {
    let mut tick = tokio::time::interval(SAMPLE_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tick.tick().await;
        let overview = Overview::read(&mut admin, items).await;
        let (now, counts) = (Instant::now(), buyers.notes.counts());
        let sample = timeline.add(now, counts, overview);
        let p99_us = buyers.notes.open().buyers.latency.value_at_quantile(0.99);
        let number = |value: Option<i64>| value.map_or("?".into(), |value| value.to_string());
        view.at(sample.arrived);
        view.say(format!(
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

async fn dev_login(site: &Site) -> Result<Login, RehearseError> {
    let mut api = Api::new(site.addresses[0], None);
    match Login::Dev.token(&mut api, "rehearsal-probe").await {
        Ok(_) => Ok(Login::Dev),
        Err(ApiError::Status { status: 404, .. }) => Err(RehearseError::NoLogin),
        Err(other) => Err(other.into()),
    }
}

/// The deployment's time, and our instant that is the same.
async fn server_clock(admin: &mut Api) -> Result<(i64, Instant), ApiError> {
    const ASKS: usize = 5;
    let mut best: Option<(Duration, i64, Instant)> = None;
    for _ in 0..ASKS {
        let asked = Instant::now();
        let time: Value = admin.read("/api/v1/time").await?;
        let trip = asked.elapsed();
        if best.is_none_or(|(shortest, ..)| trip < shortest) {
            best = Some((trip, time["now_ms"].as_i64().unwrap_or_default(), asked + trip / 2));
        }
    }
    best.map(|(_, now_ms, at)| (now_ms, at)).ok_or_else(|| std::io::Error::other("no time").into())
}

async fn any_unpaid(admin: &mut Api, activity: i64) -> Result<bool, ApiError> {
    let path = format!("/api/v1/admin/orders?activity_id={activity}&status=unpaid&limit=1");
    let page: Value = admin.read(&path).await?;
    Ok(page["orders"].as_array().is_some_and(|orders| !orders.is_empty()))
}

/// Asks the deployment to compare itself, and to change nothing.
async fn differences(admin: &mut Api) -> Result<u64, RehearseError> {
    match admin.write::<Value>("/api/v1/admin/reconcile?heal=false", &json!({})).await {
        Ok(report) => Ok(report["differences"].as_u64().unwrap_or(0)),
        Err(ApiError::Status { status: 401 | 403, .. }) => Err(RehearseError::AdminToken),
        Err(other) => Err(other.into()),
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
    let (sold, refused) =
        (strangers.met(Fate::Won, Some(item)), strangers.met(Fate::SoldOut, Some(item)));
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
