//! The engine: everything that sells, joined together, without HTTP.
//!
//! The only place where gate, workers, ledger and providers meet. It is made of components, each with
//! what it remembers in its own fields; what they have in common is [`shared`]. [`Engine`] is its public
//! face: what the API above may do is what the components offer there. The jobs beside it do what nobody
//! asks for. Above [`parts`] nothing knows which profile runs.

pub mod actor;
mod adopting;
mod alerting;
mod cashier;
mod catalogue;
pub mod checkup;
mod claims;
pub mod coordination;
pub mod data_dir;
mod demo;
mod due;
mod external;
mod fair_start;
mod gate_turns;
mod health;
mod jobs;
mod last_known;
mod leases;
mod looking_back;
#[cfg(any(test, feature = "testing"))]
pub mod moving_gate;
mod node;
mod operations;
mod order_lookup;
mod order_reads;
mod parts;
mod payments;
mod published;
mod push;
mod reconcile;
mod records;
mod reminders;
mod sale_tokens;
pub mod secrets;
pub mod settings;
mod settling;
mod shared;
mod silence;
#[cfg(test)]
mod test_engine;
mod totals;
mod warming;
mod webhooks;
mod with_timeout;

use std::{path::Path, sync::Arc};

use ledger::Outstanding;
pub use ledger::WebhookKind;
use sale::{Millis, SharedClock, SigningKeys};

pub use cashier::{SANDBOX_FILE, check_providers};
pub use catalogue::{ACTIVITIES_SHOWN_MAX, Catalogue, NoCursor, OnShow, Place, Snapshot};
pub use claims::Claims;
pub use demo::Demo;
pub use external::{
    CASHIER_URL_NAMES, EXTERNAL, TRANSACTION_ID_CHARS_MAX, ToldError, ToldMoney, ToldOutcome,
    is_cashier_url,
};
pub use fair_start::{DrawTicket, FairStart};
pub use health::{Health, OpenAlert, Part, Readiness, Status, WorkersState};
pub use looking_back::{Became, CannotLookBack, ClaimFilter, LookingBack, PastClaim, PastClaims};
pub use operations::{
    AtGate, BadPlan, ByHand, CONSOLE_LINK_MS, Console, IMPORT_ACTIVITIES_MAX, IMPORT_ITEMS_MAX,
    KEY_LEAD_MS, KEY_LEAD_MS_MAX, KeyState, Keys, KnownKey, LOCAL_TOKEN, MANUAL, OperateError,
    Operations, Plans, REASON_CHARS_MAX, REFERENCE_CHARS_MAX, StockChanges, TOKEN_NAME_CHARS_MAX,
    Tokens,
};
pub use order_lookup::{Found, OrderLookup, OrderView, fits};
pub use parts::{LEDGER_FILE, MissingEngine, OpenError, Parts, missing_engines, open_broker};
pub use payments::{NoticeFailure, PayChoice, PayError, Payments, Providers};
pub use push::{
    EventId, Feed, FeedEnd, FollowError, News, Push, QueuedClaim, TooMany, WATCHED_ITEMS_MAX,
};
pub use reconcile::{
    Finding, ItemReport, ItemVerdict, RECONCILE_JOB, Reconcile, ReconcileAsk, ReconcileRun, Report,
    TooManyRuns,
};
pub use records::Records;
pub use sale::{REDACTED, Secret};
pub use sale_tokens::{
    BadChallenge, CoolReason, GivenSolution, Lists, MadeChallenge, NotEligible, NotLetIn,
    SaleTokens,
};
pub use settings::{ProcessRole, Profile, Settings};
pub use shared::{Shared, StoreError};
pub use totals::{ItemTotals, Totals};
pub use warming::{WarmError, Warmed};
pub use webhooks::{
    PingOutcome, Shown, WEBHOOK_DESCRIPTION_CHARS_MAX, WEBHOOK_URL_CHARS_MAX, Webhooks,
    is_webhook_secret, is_webhook_url,
};

use alerting::Alerting;
use cashier::Cashier;
use coordination::Coordination;
use health::RememberedAlerts;
use jobs::Jobs;
use last_known::LastKnown;
use sale_tokens::Hoarding;
use warming::Warming;

pub struct Engine {
    shared: Arc<Shared>,
    /// What signs sale tokens and receipts.
    keys: SigningKeys,
    signing_keys: Arc<Keys>,
    catalogue: Arc<Catalogue>,
    fair_start: Arc<FairStart>,
    claims: Claims,
    orders: Arc<OrderLookup>,
    payments: Arc<Payments>,
    operations: Arc<Operations>,
    plans: Arc<Plans>,
    stock: Arc<StockChanges>,
    tokens: Arc<Tokens>,
    console: Arc<Console>,
    sale_tokens: SaleTokens,
    lists: Lists,
    reconcile: Arc<Reconcile>,
    records: Records,
    looking_back: LookingBack,
    push: Arc<Push>,
    webhooks: Arc<Webhooks>,
    health: Arc<Health>,
    demo: Arc<Demo>,
    jobs: Jobs,
}

impl Engine {
    /// Join the parts. Where this process is a worker it starts at once: what is on the log is owed,
    /// whoever asked for the engine. Jobs start with [`Engine::run_jobs`].
    pub async fn open(
        settings: Settings,
        data: &Path,
        secret: &[u8],
        keys: SigningKeys,
        clock: SharedClock,
        parts: Parts,
    ) -> Result<Arc<Engine>, OpenError> {
        let cashier = Cashier::open(&settings, data, secret, &clock)?;
        Engine::join(settings, data, keys, clock, parts, cashier).await
    }

    async fn join(
        settings: Settings,
        data: &Path,
        keys: SigningKeys,
        clock: SharedClock,
        parts: Parts,
        Cashier { providers, sandbox }: Cashier,
    ) -> Result<Arc<Engine>, OpenError> {
        let remembered = RememberedAlerts::read(data);
        let waiting = remembered.waiting.clone();
        let alerts = Alerting::start(&settings, &parts, waiting, clock.clone());
        let shared = Arc::new(Shared::start(settings, clock, parts, alerts, &keys)?);
        let s = || shared.clone();
        let catalogue = Arc::new(Catalogue::new(
            shared.ledger.clone(),
            shared.published.clone(),
            shared.clock.clone(),
        ));
        let last_known = Arc::new(LastKnown::default());
        let orders = Arc::new(OrderLookup::new(s(), last_known.clone()));
        let push = Arc::new(Push::new(s(), orders.clone(), catalogue.clone(), last_known));
        let warming = Arc::new(Warming { shared: s(), catalogue: catalogue.clone() });
        let hoarding = Arc::new(Hoarding { shared: s(), cool_downs: Arc::default() });
        let payments = Payments::new(s(), orders.clone(), hoarding.clone(), providers, sandbox);
        let payments = Arc::new(payments);
        let stock = Arc::new(StockChanges { shared: s() });
        let plans =
            Arc::new(Plans { shared: s(), catalogue: catalogue.clone(), warming: warming.clone() });
        let reconcile = Reconcile::new(s(), warming.clone(), stock.clone(), payments.clone());
        let reconcile = Arc::new(reconcile);
        let operations = Arc::new(Operations {
            shared: s(),
            catalogue: catalogue.clone(),
            warming: warming.clone(),
            reconcile: reconcile.clone(),
        });
        let health = Health::new(s(), push.clone(), data.to_owned(), remembered);
        let health = Arc::new(health);
        let webhooks = Arc::new(Webhooks::new(s())?);
        let fair_start = Arc::new(FairStart::new(s(), catalogue.clone()));
        let jobs = Jobs::new(
            s(),
            &catalogue,
            &warming,
            payments.clone(),
            reconcile.clone(),
            push.clone(),
            &webhooks,
            health.clone(),
            hoarding.clone(),
            fair_start.clone(),
        );
        catalogue.refresh().await?;
        hoarding.refresh().await?;
        if !shared.is_cluster() {
            // The data are ours alone, so nobody is in the middle of it.
            stock.undo_cut_off_adjusts().await;
        }
        let signing_keys = Keys { shared: s(), keys: keys.clone(), known: Default::default() };
        // Before anybody is served: others may sign with a key that is not the first one.
        signing_keys.learn().await?;
        Ok(Arc::new(Engine {
            signing_keys: Arc::new(signing_keys),
            claims: Claims { shared: s(), catalogue: catalogue.clone(), orders: orders.clone() },
            tokens: Arc::new(Tokens { shared: s() }),
            console: Arc::new(Console { shared: s() }),
            sale_tokens: SaleTokens::new(s(), keys.clone(), hoarding.clone()),
            lists: Lists { hoarding },
            records: Records::new(s()),
            looking_back: LookingBack::new(s(), shared.log_to_look_into(&keys)),
            demo: Arc::new(Demo::new(s(), plans.clone(), operations.clone())),
            keys,
            catalogue,
            fair_start,
            orders,
            payments,
            operations,
            plans,
            stock,
            reconcile,
            push,
            webhooks,
            health,
            jobs,
            shared,
        }))
    }

    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// A name of this process that a person can find, and no other process has.
    pub fn instance(&self) -> &str {
        &self.shared.instance
    }

    pub fn clock(&self) -> &SharedClock {
        &self.shared.clock
    }

    pub fn now_ms(&self) -> Millis {
        self.shared.now_ms()
    }

    /// What signs sale tokens and receipts.
    pub fn keys(&self) -> &SigningKeys {
        &self.keys
    }

    /// The same, to be looked at, added to and taken away.
    pub fn signing_keys(&self) -> &Arc<Keys> {
        &self.signing_keys
    }

    /// What pages show.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Draws of those who come first.
    pub fn fair_start(&self) -> &FairStart {
        &self.fair_start
    }

    /// Buying.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Orders, wherever they are on their way.
    pub fn orders(&self) -> &OrderLookup {
        &self.orders
    }

    /// Paying, and giving an order up.
    pub fn payments(&self) -> &Payments {
        &self.payments
    }

    /// What operators do with what is on sale, with orders and with claims that failed.
    pub fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    /// Drafts, and the windows of sales.
    pub fn plans(&self) -> &Plans {
        &self.plans
    }

    /// Changes of stock by operators.
    pub fn stock(&self) -> &StockChanges {
        &self.stock
    }

    /// Tokens of operators.
    pub fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// Who is signed in to the console.
    pub fn console(&self) -> &Arc<Console> {
        &self.console
    }

    /// The right to claim, and what buyers do for it.
    pub fn sale_tokens(&self) -> &SaleTokens {
        &self.sale_tokens
    }

    /// Lists of buyers, and those who have to wait.
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    pub fn reconcile(&self) -> &Reconcile {
        &self.reconcile
    }

    /// What operators read.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// What was admitted, read from the claim log.
    pub fn looking_back(&self) -> &LookingBack {
        &self.looking_back
    }

    /// Events of orders to the buyers who listen.
    pub fn push(&self) -> &Arc<Push> {
        &self.push
    }

    /// Events to the shop's backend.
    pub fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// What can be done now, as the watcher last saw it.
    pub fn health(&self) -> &Health {
        &self.health
    }

    pub fn demo(&self) -> &Demo {
        &self.demo
    }

    /// What waits in the ledger, as it was last counted; `None` where nobody counts.
    pub fn outstanding(&self) -> Option<Arc<Outstanding>> {
        self.jobs.count.last()
    }

    /// Counts anew what waits in the ledger.
    pub async fn count_outstanding(&self) -> ledger::Result<Arc<Outstanding>> {
        self.jobs.count.count().await
    }

    /// Its parts, for the tests of the crates above.
    #[cfg(any(test, feature = "testing"))]
    pub fn parts(&self) -> &Shared {
        &self.shared
    }

    /// What several instances have in common.
    pub fn coordination(&self) -> &Arc<dyn Coordination> {
        &self.shared.coordination
    }

    pub fn run_jobs(&self) {
        self.jobs.start();
        for watcher in self.health.watchers() {
            self.jobs.spawn(watcher);
        }
    }

    /// Opens the demo in time if nobody looks at it.
    pub fn await_first_look(&self) {
        self.jobs.spawn(self.demo.clone().await_first_look());
    }

    /// Decide what waits in the lanes, then stop everything. What is on the log stays there.
    pub async fn stop(&self) {
        self.health.stop_watching();
        self.push.close();
        self.shared.lanes.stop().await;
        self.fair_start.stop().await;
        self.jobs.stop().await;
        if let Some(relay) = &self.shared.relay {
            relay.stop().await;
        }
        if let Some(workers) = &self.shared.workers {
            workers.stop().await;
        }
        if let Some(broker) = &self.shared.broker {
            broker.stop().await;
        }
        self.shared.alerts.stop().await;
        if let Some(keeper) = &self.shared.node_keeper {
            keeper.give_back().await;
        }
        // What could not be delivered is delivered after the next start.
        if let Err(error) = self.health.remember_alerts().await {
            tracing::warn!(%error, "alerts that wait for the webhook cannot be kept");
        }
    }
}
