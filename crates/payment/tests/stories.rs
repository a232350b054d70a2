//! Stories of a buyer, a shop and a payment company that keeps its own books.

#![allow(clippy::unwrap_used)]

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use payment::{
    CloseOutcome, Notice, NoticeAnswer, NoticeError, NoticeOutcome, PayRequest, Provider,
    ProviderError, QueryOutcome, RefundOutcome, RefundRequest,
    sandbox::{
        ActError, Action, NoticeSink, PaymentState, SIGNATURE_HEADER, Sandbox, SandboxOptions,
        TIMESTAMP_HEADER, WINDOW_MS,
    },
};
use sale::{Currency, ManualClock, Millis, Money, OrderNo, UserId};
use tokio::sync::{mpsc, oneshot};

const START_MS: Millis = 1_800_000_000_000;
const DEADLINE_MS: Millis = START_MS + 30 * 60_000;

fn options() -> SandboxOptions {
    SandboxOptions {
        notify_secret: "a secret of both companies".into(),
        // The clock is the test's, so it is read often.
        notice_poll_ms_max: 2,
        ..Default::default()
    }
}

fn order(n: u64) -> OrderNo {
    OrderNo::from_u64(n).unwrap()
}

fn price() -> Money {
    Money::new(699_900, Currency::CNY)
}

fn request(n: u64) -> PayRequest {
    PayRequest {
        order_no: order(n),
        amount: price(),
        subject: "一部手机".into(),
        deadline_ms: DEADLINE_MS,
        user: UserId::new("u1002").unwrap(),
        method: None,
        payer: None,
        client_ip: None,
        return_url: None,
    }
}

/// The shop's end of the line: keeps what it hears, verified or not, and accepts or not.
struct Receiver {
    sandbox: Sandbox,
    accepts: Arc<AtomicBool>,
    heard: mpsc::UnboundedSender<(HeaderMap, Bytes, Result<Notice, NoticeError>)>,
}

#[async_trait]
impl NoticeSink for Receiver {
    async fn deliver(&self, provider: &str, headers: HeaderMap, body: Bytes) -> bool {
        assert_eq!(provider, self.sandbox.name());
        let notice = self.sandbox.verify_notice(&headers, &body).await;
        let _ = self.heard.send((headers, body, notice));
        self.accepts.load(Ordering::SeqCst)
    }
}

/// A sandbox that delivers its notices to a receiver, by a clock that the test owns.
struct TestSandbox {
    sandbox: Sandbox,
    clock: Arc<ManualClock>,
    accepts: Arc<AtomicBool>,
    notices: mpsc::UnboundedReceiver<(HeaderMap, Bytes, Result<Notice, NoticeError>)>,
    shutdown: oneshot::Sender<()>,
    delivering: tokio::task::JoinHandle<()>,
}

impl TestSandbox {
    fn open(file: &Path, clock: Arc<ManualClock>) -> TestSandbox {
        let sandbox = Sandbox::open(file, options(), clock.clone()).unwrap();
        let accepts = Arc::new(AtomicBool::new(true));
        let (heard, notices) = mpsc::unbounded_channel();
        let receiver = Receiver { sandbox: sandbox.clone(), accepts: accepts.clone(), heard };
        let (shutdown, down) = oneshot::channel();
        let deliverer = sandbox.clone();
        let delivering = tokio::spawn(async move {
            deliverer.deliver(Arc::new(receiver), async { _ = down.await }).await;
        });
        TestSandbox { sandbox, clock, accepts, notices, shutdown, delivering }
    }

    /// With books of its own; the directory must outlive it.
    fn new() -> (TestSandbox, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let test = TestSandbox::open(&dir.path().join("sandbox.db"), ManualClock::at(START_MS));
        (test, dir)
    }

    async fn shut(self) {
        let _ = self.shutdown.send(());
        soon(self.delivering).await.unwrap();
    }

    /// Opens a payment and answers its number.
    async fn opened(&self, n: u64) -> String {
        self.opened_for(&request(n)).await
    }

    /// The address leads to the payment with its proof.
    async fn opened_for(&self, request: &PayRequest) -> String {
        let url = self.sandbox.open(request).await.unwrap().payment_url.unwrap();
        let (txn, token) = url.strip_prefix("/cashier/").unwrap().split_once("?token=").unwrap();
        assert!(self.sandbox.proves(txn, token) && !self.sandbox.proves("sbp_other", token));
        txn.to_owned()
    }

    async fn notice(&mut self) -> Notice {
        soon(self.notices.recv()).await.unwrap().2.unwrap()
    }

    async fn refund(&self, notice: &Notice) -> Result<RefundOutcome, ProviderError> {
        let request = RefundRequest {
            order_no: notice.order_no,
            provider_txn: notice.provider_txn.clone(),
            amount: notice.amount,
            reason: "The order was over.".into(),
        };
        self.sandbox.refund(&request).await
    }
}

async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), event).await.expect("waited in vain")
}

#[tokio::test]
async fn paying_makes_one_charge_and_one_notice() {
    let (mut test, _dir) = TestSandbox::new();
    let txn = test.opened(1).await;
    assert_eq!(test.sandbox.query(order(1)).await, Ok(QueryOutcome::Open));

    let view = test.sandbox.act(&txn, Action::Pay).await.unwrap();
    assert_eq!(view.state, PaymentState::Paid);
    assert_eq!((view.item_name.as_str(), view.amount), ("一部手机", 699_900));
    let notice = test.notice().await;
    assert_eq!((notice.order_no, notice.amount), (order(1), price()));
    assert_eq!((notice.paid_ms, notice.outcome), (START_MS, NoticeOutcome::Paid));

    let bill = test.sandbox.bill().await.unwrap();
    assert_eq!(bill.len(), 1);
    assert_eq!(bill[0].provider_txn, notice.provider_txn);
    let paid_again = test.sandbox.act(&txn, Action::Pay).await;
    assert_eq!(paid_again, Err(ActError::Refused("this payment is already paid")));
    // Accepted once, told once: the next thing heard, long after, is about another order.
    test.clock.advance(WINDOW_MS);
    let other = test.opened(2).await;
    test.sandbox.act(&other, Action::Pay).await.unwrap();
    assert_eq!(test.notice().await.order_no, order(2));
    test.shut().await;
}

#[tokio::test]
async fn opening_twice_is_one_payment() {
    let (test, _dir) = TestSandbox::new();
    let first = test.opened(1).await;
    assert_eq!(test.opened(1).await, first);
    assert_ne!(test.opened(2).await, first);
    let dearer = PayRequest { amount: Money::new(1, Currency::CNY), ..request(1) };
    assert!(matches!(test.sandbox.open(&dearer).await, Err(ProviderError::Refused(_))));
    assert_eq!(test.sandbox.cashier("sbp_none").await, Ok(None));
    let view = test.sandbox.cashier(&first).await.unwrap().unwrap();
    assert_eq!(
        serde_json::to_value(&view).unwrap(),
        serde_json::json!({
            "txn": first, "order_no": order(1), "item_name": "一部手机", "amount": 699900,
            "currency": "CNY", "state": "open", "pay_deadline": DEADLINE_MS, "lands_at": null,
        })
    );
}

#[tokio::test]
async fn forged_stale_and_foreign_notices_are_refused() {
    let (mut test, dir) = TestSandbox::new();
    let txn = test.opened(1).await;
    test.sandbox.act(&txn, Action::Pay).await.unwrap();
    let (headers, body, genuine) = soon(test.notices.recv()).await.unwrap();
    genuine.unwrap();
    let verify =
        async |headers: &HeaderMap, body: &[u8]| test.sandbox.verify_notice(headers, body).await;

    let dearer = String::from_utf8(body.to_vec()).unwrap().replace("699900", "1");
    assert_eq!(verify(&headers, dearer.as_bytes()).await, Err(NoticeError::BadSignature));
    for missing in [TIMESTAMP_HEADER, SIGNATURE_HEADER] {
        let mut bare = headers.clone();
        bare.remove(missing);
        assert_eq!(verify(&bare, &body).await, Err(NoticeError::BadSignature));
    }
    for forged in ["", "00", "not hex", &"0".repeat(64)] {
        let mut headers = headers.clone();
        headers.insert(SIGNATURE_HEADER, forged.parse().unwrap());
        assert_eq!(verify(&headers, &body).await, Err(NoticeError::BadSignature), "{forged:?}");
    }
    let mut refreshed = headers.clone();
    refreshed.insert(TIMESTAMP_HEADER, (START_MS + 1).into());
    assert_eq!(verify(&refreshed, &body).await, Err(NoticeError::BadSignature));

    test.clock.set(START_MS + WINDOW_MS);
    assert!(verify(&headers, &body).await.is_ok());
    for outside in [START_MS + WINDOW_MS + 1, START_MS - WINDOW_MS - 1] {
        test.clock.set(outside);
        assert_eq!(verify(&headers, &body).await, Err(NoticeError::Stale));
    }

    // Another merchant of the same company, even with the same secret.
    let other = SandboxOptions { merchant: "other shop".into(), ..options() };
    let clock = ManualClock::at(START_MS);
    let other = Sandbox::open(&dir.path().join("other.db"), other, clock.clone()).unwrap();
    assert_eq!(other.verify_notice(&headers, &body).await, Err(NoticeError::OtherMerchant));
    // And one with another secret.
    let secret = SandboxOptions { notify_secret: "some other secret".into(), ..options() };
    let secret = Sandbox::open(&dir.path().join("secret.db"), secret, clock).unwrap();
    assert_eq!(secret.verify_notice(&headers, &body).await, Err(NoticeError::BadSignature));
}

#[tokio::test]
async fn paying_twice_makes_two_charges_and_repeated_notices() {
    let (mut test, _dir) = TestSandbox::new();
    let txn = test.opened(1).await;
    test.sandbox.act(&txn, Action::PayTwice).await.unwrap();
    let mut told: HashMap<String, usize> = HashMap::new();
    for _ in 0..3 {
        let notice = test.notice().await;
        assert_eq!((notice.outcome, notice.amount), (NoticeOutcome::Paid, price()));
        *told.entry(notice.provider_txn).or_default() += 1;
    }
    let bill = test.sandbox.bill().await.unwrap();
    let repeats: Vec<usize> = bill.iter().map(|charge| told[&charge.provider_txn]).collect();
    assert_eq!(repeats, [2, 1], "the first charge is told twice, the second once");
}

#[tokio::test]
async fn a_refund_gives_the_money_back_once() {
    let (mut test, _dir) = TestSandbox::new();
    let txn = test.opened(1).await;
    test.sandbox.act(&txn, Action::Pay).await.unwrap();
    let notice = test.notice().await;

    let part = Notice { amount: Money::new(1, Currency::CNY), ..notice.clone() };
    assert!(matches!(test.refund(&part).await, Err(ProviderError::Refused(_))));
    let foreign = Notice { order_no: order(2), ..notice.clone() };
    assert!(matches!(test.refund(&foreign).await, Err(ProviderError::Refused(_))));

    assert_eq!(test.refund(&notice).await, Ok(RefundOutcome::Done));
    test.clock.advance(5_000);
    assert_eq!(test.refund(&notice).await, Ok(RefundOutcome::Done));
    let bill = test.sandbox.bill().await.unwrap();
    assert_eq!(bill.len(), 1);
    assert_eq!(bill[0].refunded_ms, Some(START_MS), "the first time, and only then");
    let view = test.sandbox.cashier(&txn).await.unwrap().unwrap();
    assert_eq!(view.state, PaymentState::Refunded);
    let query = test.sandbox.query(order(1)).await.unwrap();
    assert!(
        matches!(query, QueryOutcome::Refunded(paid) if paid.provider_txn == notice.provider_txn)
    );
}

#[tokio::test]
async fn a_closed_payment_takes_no_money() {
    let (test, _dir) = TestSandbox::new();
    assert_eq!(test.sandbox.close(order(1)).await, Ok(CloseOutcome::NeverOpened));
    let txn = test.opened(1).await;
    assert_eq!(test.sandbox.close(order(1)).await, Ok(CloseOutcome::Closed));
    assert_eq!(test.sandbox.close(order(1)).await, Ok(CloseOutcome::Closed));
    for action in [Action::Pay, Action::Fail, Action::PayTwice, Action::PayLate] {
        let refused = test.sandbox.act(&txn, action).await;
        assert_eq!(refused, Err(ActError::Refused("this payment is closed")));
    }
    assert!(matches!(test.sandbox.open(&request(1)).await, Err(ProviderError::Refused(_))));
    assert_eq!(test.sandbox.query(order(1)).await, Ok(QueryOutcome::Closed));
    assert_eq!(test.sandbox.bill().await, Ok(vec![]));
}

#[tokio::test]
async fn closing_after_paying_says_so() {
    let (mut test, _dir) = TestSandbox::new();
    let txn = test.opened(1).await;
    test.sandbox.act(&txn, Action::Pay).await.unwrap();
    let notice = test.notice().await;
    let CloseOutcome::AlreadyPaid(paid) = test.sandbox.close(order(1)).await.unwrap() else {
        panic!("it is paid")
    };
    assert_eq!((paid.provider_txn, paid.amount), (notice.provider_txn, notice.amount));
    assert_eq!(paid.paid_ms, START_MS);
}

#[tokio::test]
async fn after_a_failed_try_the_buyer_may_try_again() {
    let (mut test, _dir) = TestSandbox::new();
    let txn = test.opened(1).await;
    let view = test.sandbox.act(&txn, Action::Fail).await.unwrap();
    assert_eq!(view.state, PaymentState::Failed);
    assert_eq!(test.notice().await.outcome, NoticeOutcome::Failed);
    assert_eq!(test.sandbox.query(order(1)).await, Ok(QueryOutcome::Open));
    assert_eq!(test.sandbox.bill().await, Ok(vec![]));
    test.sandbox.act(&txn, Action::Pay).await.unwrap();
    assert_eq!(test.notice().await.outcome, NoticeOutcome::Paid);
    assert_eq!(test.sandbox.bill().await.unwrap().len(), 1);
}

#[tokio::test]
async fn after_the_deadline_nobody_can_start_to_pay() {
    let (test, _dir) = TestSandbox::new();
    let txn = test.opened(1).await;
    test.clock.set(DEADLINE_MS);
    let late = test.sandbox.act(&txn, Action::Pay).await;
    assert_eq!(late, Err(ActError::Refused("the time to pay is over")));
    assert!(matches!(test.sandbox.open(&request(2)).await, Err(ProviderError::Refused(_))));
}

#[tokio::test]
async fn late_money_lands_on_a_closed_payment() {
    let (mut test, _dir) = TestSandbox::new();
    let txn = test.opened(1).await;
    let view = test.sandbox.act(&txn, Action::PayLate).await.unwrap();
    assert_eq!((view.state, view.lands_at), (PaymentState::Open, Some(DEADLINE_MS + 1_000)));
    let again = test.sandbox.act(&txn, Action::Pay).await;
    assert_eq!(again, Err(ActError::Refused("money for this payment is already on its way")));

    test.clock.set(DEADLINE_MS);
    assert_eq!(test.sandbox.close(order(1)).await, Ok(CloseOutcome::Closed));
    test.clock.set(DEADLINE_MS + 999);
    assert_eq!(test.sandbox.bill().await, Ok(vec![]));
    assert_eq!(test.sandbox.query(order(1)).await, Ok(QueryOutcome::Closed));
    // Nothing is heard of it yet: the first notice is of another order, paid a moment before.
    let patient = PayRequest { deadline_ms: DEADLINE_MS + 60_000, ..request(2) };
    let other = test.opened_for(&patient).await;
    test.sandbox.act(&other, Action::Pay).await.unwrap();
    assert_eq!(test.notice().await.order_no, order(2));

    test.clock.set(DEADLINE_MS + 1_000);
    let notice = test.notice().await;
    assert_eq!((notice.outcome, notice.paid_ms), (NoticeOutcome::Paid, DEADLINE_MS + 1_000));
    assert_eq!(test.sandbox.bill().await.unwrap().len(), 2);
    assert!(matches!(test.sandbox.query(order(1)).await, Ok(QueryOutcome::Paid(_))));
    assert_eq!(test.refund(&notice).await, Ok(RefundOutcome::Done));
}

#[tokio::test]
async fn a_notice_is_repeated_until_accepted_with_a_fresh_signature() {
    let (mut test, _dir) = TestSandbox::new();
    test.accepts.store(false, Ordering::SeqCst);
    let txn = test.opened(1).await;
    test.sandbox.act(&txn, Action::Pay).await.unwrap();
    let first = test.notice().await;
    // Each wait is twice the one before. Long after the first, the signature is still in its
    // window, because it is made anew for each delivery.
    for wait_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000, 60_000] {
        test.clock.advance(wait_ms);
        assert_eq!(test.notice().await, first);
    }
    test.accepts.store(true, Ordering::SeqCst);
    test.clock.advance(60_000);
    assert_eq!(test.notice().await, first);
    assert_eq!(test.sandbox.bill().await.unwrap().len(), 1, "told often, charged once");
    test.shut().await;
}

#[tokio::test]
async fn undelivered_notices_survive_a_restart() {
    let (mut test, dir) = TestSandbox::new();
    test.accepts.store(false, Ordering::SeqCst);
    let txn = test.opened(1).await;
    let late = test.opened(2).await;
    test.sandbox.act(&txn, Action::Pay).await.unwrap();
    let first = test.notice().await;
    test.sandbox.act(&late, Action::PayLate).await.unwrap();
    let clock = test.clock.clone();
    test.shut().await;

    let mut test = TestSandbox::open(&dir.path().join("sandbox.db"), clock);
    test.clock.advance(1_000);
    assert_eq!(test.notice().await, first);
    test.clock.set(DEADLINE_MS + 1_000);
    assert_eq!(test.notice().await.order_no, order(2));
    assert_eq!(test.sandbox.bill().await.unwrap().len(), 2);
    test.shut().await;
}

#[tokio::test]
async fn the_answer_tells_the_provider_whether_to_come_again() {
    let (test, _dir) = TestSandbox::new();
    assert_eq!(test.sandbox.answer(NoticeAnswer::Accepted).0, 200);
    assert_eq!(test.sandbox.answer(NoticeAnswer::TryAgain).0, 500);
}
