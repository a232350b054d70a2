//! For the tests of the engine: a shop whose jobs run when the test says so, at a gate and beside a bank
//! that do as they are told.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use gate::{ClaimRequest, Decision};
use ledger::PaymentNotice;
use parking_lot::Mutex;
use payment::{
    BillLine, CloseOutcome, Notice, NoticeAnswer, NoticeError, Opened, Paid, PayRequest, Provider,
    ProviderError, QueryOutcome, RefundOutcome, RefundRequest,
};
use sale::{
    Activity, ActivityMove, ActivityState, Currency, ItemId, ManualClock, Millis, Money,
    NewActivity, NewItem, OrderNo, SigningKeys,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
};

use super::{
    Engine, Parts,
    cashier::Cashier,
    jobs::Job,
    moving_gate::{GateControls, MovingGate},
    with_timeout::{PROVIDER_ANSWER_MAX, WithTimeout},
};
use crate::{Secret, Settings};

pub(super) const NOW_MS: Millis = 1_800_000_000_000;

/// A buyer wants one, without a key.
pub(super) fn one_unit(item: ItemId, user: &str) -> ClaimRequest {
    ClaimRequest { item, user: user.parse().unwrap(), quantity: 1, key: None }
}

pub(super) struct TestEngine {
    pub(super) engine: Arc<Engine>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) gate: Arc<GateControls>,
    pub(super) bank: Bank,
    pub(super) data: tempfile::TempDir,
}

impl TestEngine {
    pub(super) async fn without_a_sale(change: impl FnOnce(&mut Settings)) -> TestEngine {
        let mut settings = Settings::default();
        change(&mut settings);
        TestEngine::open(settings, ManualClock::at(NOW_MS), tempfile::tempdir().unwrap()).await
    }

    async fn open(
        settings: Settings,
        clock: Arc<ManualClock>,
        data: tempfile::TempDir,
    ) -> TestEngine {
        TestEngine::open_beside(Bank::default(), settings, clock, data).await
    }

    async fn open_beside(
        bank: Bank,
        settings: Settings,
        clock: Arc<ManualClock>,
        data: tempfile::TempDir,
    ) -> TestEngine {
        let keys = SigningKeys::from_secret(b"a secret of the tests").unwrap();
        let mut parts = Parts::open(&settings, data.path(), clock.clone()).await.unwrap();
        let moving = MovingGate::new(parts.gate);
        let gate = moving.controls.clone();
        parts.gate = Arc::new(moving);
        let answer_max = bank.answer_max.unwrap_or(PROVIDER_ANSWER_MAX);
        let provider = WithTimeout::around(Arc::new(bank.clone()), answer_max);
        let providers = HashMap::from([(Bank::NAME.to_owned(), provider)]);
        let cashier = Cashier { providers, sandbox: None };
        let joined = Engine::join(settings, data.path(), keys, clock.clone(), parts, cashier).await;
        TestEngine { engine: joined.unwrap(), clock, gate, bank, data }
    }

    /// The process ends, and another one starts on the same data.
    pub(super) async fn reopen(self) -> TestEngine {
        let TestEngine { engine, clock, data, .. } = self;
        engine.stop().await;
        let settings = engine.settings().clone();
        drop(engine);
        TestEngine::open(settings, clock, data).await
    }

    /// An open sale of one item, ten units at one fen.
    pub(super) async fn with_a_sale(change: impl FnOnce(&mut Settings)) -> (TestEngine, Activity) {
        TestEngine::without_a_sale(change).await.and_a_sale().await
    }

    /// The same beside a bank that is waited for so long.
    pub(super) async fn beside_a_bank(answer_max: Duration) -> (TestEngine, Activity) {
        let bank = Bank { answer_max: Some(answer_max), ..Bank::default() };
        let (settings, clock) = (Settings::default(), ManualClock::at(NOW_MS));
        let data = tempfile::tempdir().unwrap();
        TestEngine::open_beside(bank, settings, clock, data).await.and_a_sale().await
    }

    async fn and_a_sale(self) -> (TestEngine, Activity) {
        let window = (NOW_MS - 1, NOW_MS + 3_600_000);
        let activity = self.another_sale("iPhone", window, 60_000).await;
        self.engine.operations.warm_activity("ann", activity.id, false).await.unwrap();
        (self, activity)
    }

    /// A sale of ten units at one fen; published, and nothing more.
    pub(super) async fn another_sale(
        &self,
        name: &str,
        window: (Millis, Millis),
        pay_within_ms: Millis,
    ) -> Activity {
        let (engine, new) = (&self.engine, plan(name, window, pay_within_ms));
        let id = engine.plans.create("ann", new, None).await.unwrap().id;
        engine.operations.move_activity("ann", id, ActivityMove::Publish).await.unwrap().0
    }

    /// Very many activities of one item each, by way of the back door, for it takes a while to plan so
    /// many one by one. Answers the ids of their items.
    pub(super) async fn plan_many(
        &self,
        state: ActivityState,
        count: i64,
        (opens_ms, closes_ms): (Millis, Millis),
    ) -> std::ops::Range<i64> {
        let ledger = rusqlite::Connection::open(self.data.path().join(super::LEDGER_FILE)).unwrap();
        ledger.busy_timeout(Duration::from_secs(30)).unwrap();
        let last = |table: &str| -> i64 {
            let sql = format!("SELECT COALESCE(MAX(id), 0) FROM {table}");
            ledger.query_row(&sql, [], |row| row.get(0)).unwrap()
        };
        let (activity, item) = (last("tb_seckill_activity"), last("tb_seckill_product"));
        let state = state.code();
        let numbers = format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        );
        ledger
            .execute_batch(&format!(
                "BEGIN IMMEDIATE;
                 INSERT INTO tb_seckill_activity (id, name, opens_at, closes_at, pay_within_ms, state,
                     created_at, updated_at)
                 {numbers} SELECT {activity} + i, 'one of many', {opens_ms}, {closes_ms}, 60000,
                     {state}, {NOW_MS}, {NOW_MS} FROM n;
                 INSERT INTO tb_seckill_product (id, activity_id, name, image_url, price, currency,
                     stock, total, limit_per_user, shards, state)
                 {numbers} SELECT {item} + i, {activity} + i, 'pen', '', 1, 'CNY', 1, 1, 1, 1, 0 FROM n;
                 COMMIT;"
            ))
            .unwrap();
        item + 1..item + 1 + count
    }

    /// Whoever asks the ledger for activities gets no answer.
    pub(super) fn hide_activities(&self, hide: bool) {
        let (from, to) = if hide { ("", "_hidden") } else { ("_hidden", "") };
        let table = "tb_seckill_activity";
        self.change_ledger(&format!("ALTER TABLE {table}{from} RENAME TO {table}{to}"));
    }

    /// Somebody changes the ledger by the back door.
    pub(super) fn change_ledger(&self, sql: &str) {
        let ledger = rusqlite::Connection::open(self.data.path().join(super::LEDGER_FILE)).unwrap();
        ledger.busy_timeout(Duration::from_secs(30)).unwrap();
        ledger.execute_batch(sql).unwrap();
    }

    /// All pauses of jobs are over.
    pub(super) fn pauses_end(&self) {
        self.engine.jobs.timeout.pauses_end();
    }

    /// Runs a job until this is so: what one round did not wait for goes on beside the next.
    pub(super) async fn rounds_until(&self, job: &dyn Job, is_so: impl AsyncFn() -> bool) {
        let rounds = async {
            while !is_so().await {
                job.run().await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), rounds).await.expect("it becomes so");
    }

    /// When nothing waits on the claim log any more.
    pub(super) async fn becomes_idle(&self) {
        while self.engine.shared.gate.backlog() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Buys one, and waits until it is an order.
    pub(super) async fn buy(&self, item: ItemId, user: &str) -> OrderNo {
        let answer = self.engine.claims.claim(one_unit(item, user)).await;
        let Decision::Admitted { claim, .. } = answer else { panic!("{answer:?}") };
        while self.engine.shared.ledger.order(claim.order_no).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        claim.order_no
    }
}

/// A sale of ten units of one item at one fen.
pub(super) fn plan(
    name: &str,
    (opens_ms, closes_ms): (Millis, Millis),
    pay_within_ms: Millis,
) -> NewActivity {
    let item = NewItem {
        name: name.into(),
        image_url: String::new(),
        price: 1,
        origin_price: None,
        currency: Currency::CNY,
        stock: 10,
        limit_per_user: 1,
        shards: 1,
        words: Default::default(),
    };
    NewActivity {
        external_id: None,
        name: name.into(),
        opens_ms,
        closes_ms,
        pay_within_ms,
        publish_ms: None,
        door: Default::default(),
        shuffle_ms: 0,
        items: vec![item],
    }
}

/// A provider that never tells of anything by itself.
#[derive(Clone, Default)]
pub(super) struct Bank {
    /// How long it is waited for, if not as long as any provider.
    answer_max: Option<Duration>,
    paid: Arc<Mutex<HashMap<OrderNo, Paid>>>,
    closed: Arc<Mutex<HashSet<OrderNo>>>,
    calls: Arc<AtomicU64>,
    /// The same, by what was asked.
    calls_by: Arc<Mutex<HashMap<&'static str, u64>>>,
    hangs: Arc<watch::Sender<bool>>,
    down: Arc<AtomicBool>,
    /// Every so many calls one answer is lost; none if it is zero.
    loses_every: Arc<AtomicU64>,
    refuses: Arc<AtomicBool>,
    /// Why it gave money back.
    reasons: Arc<Mutex<Vec<String>>>,
    /// None: it keeps no bill.
    bill: Arc<Mutex<Option<Vec<BillLine>>>>,
    bills_fetched: Arc<AtomicU64>,
    /// Of days before this one it has none.
    bills_from_ms: Arc<AtomicI64>,
    /// Done while a payment is being opened.
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

type Meanwhile = Box<dyn FnOnce() -> futures_util::future::BoxFuture<'static, ()> + Send>;

impl Bank {
    pub(super) const NAME: &str = "bank";

    pub(super) fn pay(&self, no: OrderNo, minor: i64, paid_ms: Millis) {
        let amount = Money::new(minor, Currency::CNY);
        self.paid.lock().insert(no, Paid { provider_txn: format!("T{no}"), amount, paid_ms });
    }

    pub(super) fn reasons(&self) -> Vec<String> {
        self.reasons.lock().clone()
    }

    pub(super) fn is_closed(&self, no: OrderNo) -> bool {
        self.closed.lock().contains(&no)
    }

    /// A good notice of the money for an order.
    pub(super) fn money(&self, no: OrderNo) -> PaymentNotice {
        PaymentNotice {
            provider: Bank::NAME.into(),
            provider_txn: format!("T{no}"),
            order_no: no,
            amount: Money::new(1, Currency::CNY),
            paid_ms: NOW_MS,
        }
    }

    /// While it hangs it answers nobody.
    pub(super) fn hang(&self, hangs: bool) {
        self.hangs.send_replace(hangs);
    }

    /// Of so many calls it loses the answer to one.
    pub(super) fn lose_every(&self, calls: u64) {
        self.loses_every.store(calls, Ordering::SeqCst);
    }

    /// While it is down whoever asks is told so at once.
    pub(super) fn down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// It gives no money back.
    pub(super) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    /// What its bills list.
    pub(super) fn bills(&self, lines: Vec<BillLine>) {
        *self.bill.lock() = Some(lines);
    }

    pub(super) fn no_bill_before(&self, day_ms: Millis) {
        self.bills_from_ms.store(day_ms, Ordering::SeqCst);
    }

    pub(super) fn bills_fetched(&self) -> u64 {
        self.bills_fetched.load(Ordering::SeqCst)
    }

    /// What happens while the next payment is being opened.
    pub(super) fn while_opening(&self, what: Meanwhile) {
        *self.meanwhile.lock() = Some(what);
    }

    /// When it has been called.
    pub(super) async fn called(&self) {
        while self.calls() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    pub(super) fn calls_of(&self, what: &str) -> u64 {
        self.calls_by.lock().get(what).copied().unwrap_or(0)
    }

    async fn answers(&self, what: &'static str) -> Result<(), ProviderError> {
        let calls = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        *self.calls_by.lock().entry(what).or_default() += 1;
        self.hangs.subscribe().wait_for(|hangs| !hangs).await.unwrap();
        let loses_every = self.loses_every.load(Ordering::SeqCst);
        let lost = loses_every > 0 && calls.is_multiple_of(loses_every);
        let down = lost || self.down.load(Ordering::SeqCst);
        if down { Err(ProviderError::Unavailable("it is down".into())) } else { Ok(()) }
    }
}

#[async_trait]
impl Provider for Bank {
    fn name(&self) -> &'static str {
        Bank::NAME
    }

    async fn open(&self, _: &PayRequest) -> Result<Opened, ProviderError> {
        let meanwhile = self.meanwhile.lock().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile().await;
        }
        Ok(Opened::at("/bank"))
    }

    async fn close(&self, no: OrderNo) -> Result<CloseOutcome, ProviderError> {
        self.answers("close").await?;
        let paid = self.paid.lock().get(&no).cloned();
        if paid.is_none() {
            self.closed.lock().insert(no);
        }
        Ok(paid.map_or(CloseOutcome::Closed, CloseOutcome::AlreadyPaid))
    }

    async fn query(&self, no: OrderNo) -> Result<QueryOutcome, ProviderError> {
        self.answers("query").await?;
        let paid = self.paid.lock().get(&no).cloned();
        let unpaid = if self.is_closed(no) { QueryOutcome::Closed } else { QueryOutcome::Open };
        Ok(paid.map_or(unpaid, QueryOutcome::Paid))
    }

    async fn bill(&self, day_from_ms: Millis) -> Result<Option<Vec<BillLine>>, ProviderError> {
        let Some(lines) = self.bill.lock().clone() else { return Ok(None) };
        self.bills_fetched.fetch_add(1, Ordering::SeqCst);
        self.answers("bill").await?;
        if day_from_ms < self.bills_from_ms.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let day = day_from_ms..day_from_ms + 24 * 60 * 60 * 1_000;
        Ok(Some(lines.into_iter().filter(|line| day.contains(&line.at_ms)).collect()))
    }

    async fn refund(&self, request: &RefundRequest) -> Result<RefundOutcome, ProviderError> {
        self.answers("refund").await?;
        if self.refuses.load(Ordering::SeqCst) {
            return Err(ProviderError::Refused("no".into()));
        }
        self.reasons.lock().push(request.reason.clone());
        Ok(RefundOutcome::Done)
    }

    async fn verify_notice(&self, _: &http::HeaderMap, _: &[u8]) -> Result<Notice, NoticeError> {
        Err(NoticeError::BadSignature)
    }

    fn answer(&self, _: NoticeAnswer) -> (u16, &'static str, String) {
        (200, "text/plain", String::new())
    }
}

/// Somebody who is woken by alerts.
pub(super) struct Webhook {
    address: std::net::SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Webhook {
    pub(super) async fn open() -> Webhook {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let hearing = heard.clone();
        tokio::spawn(async move {
            while let Ok((mut caller, _)) = listener.accept().await {
                let mut request = Vec::new();
                // An alert is one JSON object, and the last thing in its request.
                while !request.ends_with(b"}") && caller.read_buf(&mut request).await.unwrap() > 0 {
                }
                hearing.lock().push(String::from_utf8(request).unwrap());
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                caller.write_all(answer).await.unwrap();
            }
        });
        Webhook { address, heard }
    }

    pub(super) fn url(&self) -> Secret {
        Secret::new(format!("http://{}/", self.address))
    }

    pub(super) fn heard(&self) -> Vec<String> {
        self.heard.lock().clone()
    }
}
