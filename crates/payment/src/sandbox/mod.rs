//! The sandbox: a payment provider for demonstrations and rehearsals, with the bad habits of real
//! ones.
//!
//! **Parts.** It behaves like a separate company. It has its own books (one SQLite file, never the
//! ledger's), a cashier page where the buyer decides what happens ([`Action`]), and a task that
//! delivers notices ([`Sandbox::deliver`]). It learns nothing of the sale but what is in a
//! [`PayRequest`], and the sale learns of money only through a signed notice or by asking.
//!
//! **The life of one payment.** `open` writes a row and answers `/cashier/{txn}?token=…`. Whoever has
//! that address acts there: the token proves that the payment was opened for them. Paying writes, in
//! one transaction, a *charge* (with its own `provider_txn`; paying twice makes two) and a *notice* to
//! deliver. The task signs the notice at the moment of each delivery (so time stamp and secret are
//! always current), posts it, and repeats with growing waits until it is accepted or
//! `notice_tries_max` is reached.
//!
//! **Late money.** [`Action::PayLate`] is a transfer that is under way at the buyer's bank when the
//! payment's deadline passes. Its charge lands one second after the deadline, whatever happens
//! meanwhile. Until then the sandbox has not seen it: `close` answers `Closed` and `bill` does not
//! list it. Landing needs no job: a charge with a `paid_ms` in the future is simply not seen.
//!
//! **A crash** before the transaction of an action: nothing happened, the buyer presses again.
//! After it: charge and notice are both there, and the task finds the notice after the restart.
//! Between delivery and the note that it was accepted: the notice is delivered again, as real
//! providers do, and the ledger credits it once.

mod book;
mod deliver;
mod options;
mod signature;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use http::HeaderMap;
use parking_lot::Mutex;
use sale::{Currency, Millis, Money, OrderNo, SharedClock};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use deliver::NoticeSink;
pub use options::SandboxOptions;
pub use signature::{SIGNATURE_HEADER, TIMESTAMP_HEADER, WINDOW_MS};

use crate::{
    CloseOutcome, Notice, NoticeAnswer, NoticeError, Opened, PayMethod, PayRequest, Provider,
    ProviderError, QueryOutcome, RefundOutcome, RefundRequest,
};
use book::Book;

/// The name in addresses and in the ledger.
pub const NAME: &str = "sandbox";
/// How long after the deadline late money lands.
pub const LATE_BY_MS: Millis = 1_000;

/// Clones are the same company.
#[derive(Clone)]
pub struct Sandbox(Arc<Company>);

struct Company {
    /// One connection: SQLite has one writer anyway, and the sandbox is no bottleneck worth more.
    /// Locked on blocking threads only. None after a fault: whoever comes next opens them again.
    book: Mutex<Option<Book>>,
    path: PathBuf,
    options: SandboxOptions,
    clock: SharedClock,
    /// A notice may be due now.
    wake: Notify,
}

/// What the buyer does at the cashier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// One charge, one notice.
    Pay,
    /// The bank says no. One notice of it; the buyer may try again.
    Fail,
    /// Two charges for one order, and the notice of the first is sent twice.
    PayTwice,
    /// A charge that lands [`LATE_BY_MS`] after the deadline.
    PayLate,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActError {
    #[error("there is no such payment")]
    Unknown,
    #[error("{0}")]
    Refused(&'static str),
    #[error("the sandbox does not answer: {0}")]
    Unavailable(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentState {
    Open,
    Paid,
    Failed,
    Closed,
    Refunded,
}

/// What the cashier page shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CashierView {
    pub txn: String,
    pub order_no: OrderNo,
    pub item_name: String,
    pub amount: i64,
    pub currency: Currency,
    pub state: PaymentState,
    pub pay_deadline: Millis,
    /// Money is under way and will land then.
    pub lands_at: Option<Millis>,
}

/// A line of the bill: what was taken from a buyer, and given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Charge {
    pub provider_txn: String,
    pub order_no: OrderNo,
    pub amount: Money,
    pub paid_ms: Millis,
    pub refunded_ms: Option<Millis>,
}

impl Sandbox {
    /// Open the company's books, or start them. Blocks for as long as the disk does.
    pub fn open(
        path: &Path,
        options: SandboxOptions,
        clock: SharedClock,
    ) -> Result<Sandbox, ProviderError> {
        options.validate().map_err(|invalid| ProviderError::Refused(invalid.to_string()))?;
        let book = Mutex::new(Some(Book::open(path)?));
        let path = path.to_owned();
        Ok(Sandbox(Arc::new(Company { book, path, options, clock, wake: Notify::new() })))
    }

    /// Does this token stand in the address of this payment's cashier?
    pub fn proves(&self, txn: &str, token: &str) -> bool {
        signature::is_cashier_token(&self.0.options.notify_secret, txn, token)
    }

    /// The payment as the buyer sees it; `None` if there is none.
    pub async fn cashier(&self, txn: &str) -> Result<Option<CashierView>, ProviderError> {
        let (txn, now_ms) = (txn.to_owned(), self.0.clock.now_ms());
        self.with_book(move |book| Ok(book.payment_by_txn(&txn)?.map(|found| found.view(now_ms))))
            .await
    }

    pub async fn act(&self, txn: &str, action: Action) -> Result<CashierView, ActError> {
        let (txn, now_ms) = (txn.to_owned(), self.0.clock.now_ms());
        let merchant = self.0.options.merchant.clone();
        let view = self.with_book(move |book| book.act(&merchant, &txn, action, now_ms)).await?;
        self.0.wake.notify_one();
        Ok(view)
    }

    /// Everything the bank charged so far, and what it gave back. Oldest first.
    pub async fn bill(&self) -> Result<Vec<Charge>, ProviderError> {
        let now_ms = self.0.clock.now_ms();
        self.with_book(move |book| Ok(book.bill(now_ms)?)).await
    }

    /// Work on the books on a thread that may block.
    async fn with_book<T, E>(
        &self,
        work: impl FnOnce(&mut Book) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ProviderError> + Fault + Send + 'static,
    {
        let company = self.0.clone();
        tokio::task::spawn_blocking(move || company.work(work))
            .await
            .unwrap_or_else(|died| Err(ProviderError::Unavailable(died.to_string()).into()))
    }
}

impl Company {
    fn work<T, E: From<ProviderError> + Fault>(
        &self,
        work: impl FnOnce(&mut Book) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut open = self.book.lock();
        let mut book = match open.take() {
            Some(book) => book,
            None => Book::open(&self.path)?,
        };
        let done = work(&mut book);
        let fault = done.as_ref().is_err_and(Fault::is_fault);
        // Whatever it was, nothing is written to the file as it is now: the disk may have failed.
        if fault || book.checkpoint().is_err() {
            book.close_untouched();
        } else {
            *open = Some(book);
        }
        done
    }
}

/// Tells a fault of the books from a "no".
trait Fault {
    fn is_fault(&self) -> bool;
}

impl Fault for ProviderError {
    fn is_fault(&self) -> bool {
        matches!(self, ProviderError::Unavailable(_))
    }
}

impl Fault for ActError {
    fn is_fault(&self) -> bool {
        matches!(self, ActError::Unavailable(_))
    }
}

/// As a value in the query of an address.
fn in_query(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let written = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(written).collect()
}

#[async_trait]
impl Provider for Sandbox {
    fn name(&self) -> &'static str {
        NAME
    }

    /// As real ones, so that whoever builds a page for buyers can try each of them.
    fn methods(&self) -> &[PayMethod] {
        &[PayMethod::Page, PayMethod::Phone, PayMethod::Qr]
    }

    async fn open(&self, request: &PayRequest) -> Result<Opened, ProviderError> {
        let (method, return_url) = (request.method, request.return_url.clone());
        let (request, now_ms) = (request.clone(), self.0.clock.now_ms());
        let txn = self.with_book(move |book| book.open_payment(&request, now_ms)).await?;
        let options = &self.0.options;
        let base = options.base_url.trim_end_matches('/');
        let token = signature::cashier_token(&options.notify_secret, &txn);
        let address = format!("{base}/cashier/{txn}?token={token}");
        if method == Some(PayMethod::Qr) {
            // Whoever scans it stands before another screen than the one that is to be gone back to.
            return Ok(Opened { qr: Some(address), ..Opened::default() });
        }
        Ok(Opened::at(match return_url {
            Some(back) => format!("{address}&return_url={}", in_query(&back)),
            None => address,
        }))
    }

    async fn close(&self, order_no: OrderNo) -> Result<CloseOutcome, ProviderError> {
        let now_ms = self.0.clock.now_ms();
        self.with_book(move |book| Ok(book.close(order_no, now_ms)?)).await
    }

    async fn query(&self, order_no: OrderNo) -> Result<QueryOutcome, ProviderError> {
        let now_ms = self.0.clock.now_ms();
        self.with_book(move |book| {
            let found = book.payment_by_order(order_no)?;
            Ok(found.map_or(QueryOutcome::NeverOpened, |found| found.query(now_ms)))
        })
        .await
    }

    async fn refund(&self, request: &RefundRequest) -> Result<RefundOutcome, ProviderError> {
        let (request, now_ms) = (request.clone(), self.0.clock.now_ms());
        self.with_book(move |book| book.refund(&request, now_ms)).await
    }

    async fn verify_notice(&self, headers: &HeaderMap, body: &[u8]) -> Result<Notice, NoticeError> {
        signature::verify(&self.0.options, headers, body, self.0.clock.now_ms())
    }

    fn answer(&self, answer: NoticeAnswer) -> (u16, &'static str, String) {
        let code = if answer == NoticeAnswer::Accepted { "SUCCESS" } else { "FAIL" };
        (answer.status(), "application/json", format!(r#"{{"code":"{code}"}}"#))
    }
}

impl From<ProviderError> for ActError {
    fn from(fault: ProviderError) -> Self {
        match fault {
            ProviderError::Unavailable(cause) | ProviderError::Refused(cause) => {
                ActError::Unavailable(cause)
            }
        }
    }
}

/// Whatever goes wrong in the books, nothing was decided: the transaction rolled back, or its
/// outcome is unknown.
impl From<rusqlite::Error> for ProviderError {
    fn from(fault: rusqlite::Error) -> Self {
        ProviderError::Unavailable(fault.to_string())
    }
}

impl From<rusqlite::Error> for ActError {
    fn from(fault: rusqlite::Error) -> Self {
        ActError::Unavailable(fault.to_string())
    }
}
