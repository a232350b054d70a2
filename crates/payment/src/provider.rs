//! What every payment provider can do for us.

use std::net::IpAddr;

use async_trait::async_trait;
use sale::{Currency, Millis, Money, OrderNo, UserId};
use serde::{Deserialize, Serialize};

/// No provider's notice is near this long; longer bodies are refused unread.
pub const NOTICE_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// Unknown: it may have been done or not. Ask again; every call here may be repeated.
    #[error("the payment provider does not answer: {0}")]
    Unavailable(String),
    /// A clear no. Asking again will not help.
    #[error("the payment provider refuses: {0}")]
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayRequest {
    pub order_no: OrderNo,
    pub amount: Money,
    /// What the buyer reads at the cashier: the item's name.
    pub subject: String,
    /// After this the provider takes no money for it any more.
    pub deadline_ms: Millis,
    pub user: UserId,
    /// The buyer's choice among the provider's [`Provider::methods`]; none takes the first of them.
    pub method: Option<PayMethod>,
    /// Who pays, in the provider's own words (WeChat's `openid`). Only [`PayMethod::App`] asks for it.
    pub payer: Option<String>,
    /// The buyer's address, which providers ask for on phones.
    pub client_ip: Option<IpAddr>,
    /// Where the provider sends the buyer's browser when it is done.
    pub return_url: Option<String>,
}

/// How a buyer comes to the provider: by what they hold in their hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PayMethod {
    /// A page of the provider's, on a desk.
    Page,
    /// A page of the provider's, on a phone.
    Phone,
    /// A code that the provider's app scans.
    Qr,
    /// Inside the provider's own app, by its script.
    App,
}

impl PayMethod {
    pub const ALL: [PayMethod; 4] =
        [PayMethod::Page, PayMethod::Phone, PayMethod::Qr, PayMethod::App];

    /// As it is said in JSON and in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            PayMethod::Page => "page",
            PayMethod::Phone => "phone",
            PayMethod::Qr => "qr",
            PayMethod::App => "app",
        }
    }
}

/// What people call a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Title {
    pub en: String,
    pub zh: String,
}

impl Title {
    /// Of the providers that people know; others are called by their name.
    pub fn of(provider: &str) -> Title {
        let (en, zh) = match provider {
            "wechat" => ("WeChat Pay", "微信支付"),
            "alipay" => ("Alipay", "支付宝"),
            "external" => ("The shop's cashier", "商城收银台"),
            "sandbox" => ("Sandbox", "沙盒收银台"),
            "manual" => ("By hand", "人工登记"),
            name => (name, name),
        };
        Title { en: en.into(), zh: zh.into() }
    }
}

/// What the buyer needs to pay. At least one of the three is there, unless the shop brings its buyers to its
/// own cashier by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Where the buyer pays.
    pub payment_url: Option<String>,
    /// What the code says that the provider's app scans.
    pub qr: Option<String>,
    /// What the provider's script inside its app is called with.
    pub app: Option<serde_json::Value>,
}

impl Opened {
    pub fn at(payment_url: impl Into<String>) -> Opened {
        Opened { payment_url: Some(payment_url.into()), ..Opened::default() }
    }
}

/// Money that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paid {
    /// The provider's number of this one charge.
    pub provider_txn: String,
    pub amount: Money,
    pub paid_ms: Millis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseOutcome {
    /// Nobody can start paying any more (also if it was closed before). Money already under way
    /// may still land.
    Closed,
    /// Too late: the order is paid.
    AlreadyPaid(Paid),
    NeverOpened,
    /// It was asked to, and answers later.
    Asked,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryOutcome {
    NeverOpened,
    /// Not paid yet. A failed try counts as this: the buyer may try again.
    Open,
    Closed,
    Paid(Paid),
    /// Paid once, and all of it given back.
    Refunded(Paid),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundRequest {
    pub order_no: OrderNo,
    /// The charge to give back, whole.
    pub provider_txn: String,
    pub amount: Money,
    /// Why, as the buyer reads it in the provider's app.
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundOutcome {
    /// The money is on its way back to the buyer (now, or since an earlier call).
    Done,
    /// Accepted and not finished. Ask again later.
    Pending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeOutcome {
    Paid,
    /// The buyer's try failed and the payment stays open, or it is over and nobody paid. Nothing to do.
    Failed,
    /// The money of `provider_txn` went back to the buyer.
    Refunded,
    /// The money could not be given back the way it came; a person has to see to it at the provider.
    RefundFailed,
}

impl QueryOutcome {
    /// What became of closing an order that a provider would not close: it is paid, it was closed before, or
    /// it cannot be closed now, and the order itself says which.
    pub(crate) fn after_refused_close(
        self,
        refusal: impl Into<String>,
    ) -> Result<CloseOutcome, ProviderError> {
        match self {
            QueryOutcome::Paid(paid) => Ok(CloseOutcome::AlreadyPaid(paid)),
            QueryOutcome::Closed | QueryOutcome::Refunded(_) => Ok(CloseOutcome::Closed),
            QueryOutcome::NeverOpened => Ok(CloseOutcome::NeverOpened),
            QueryOutcome::Open => Err(ProviderError::Unavailable(refusal.into())),
        }
    }
}

/// How we answer a provider's notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeAnswer {
    /// Taken, and on record. It need not be sent again.
    Accepted,
    /// Believed, but not to be taken now (the order is not visible yet, the ledger is away): send it again.
    TryAgain,
    /// Not proved to be the provider's, or not for us. Nobody need be woken: probes look like this.
    NotBelieved,
}

impl NoticeAnswer {
    /// The status that says it to every provider: what is not a success is sent again.
    pub(crate) fn status(self) -> u16 {
        match self {
            NoticeAnswer::Accepted => 200,
            NoticeAnswer::TryAgain => 500,
            NoticeAnswer::NotBelieved => 400,
        }
    }
}

/// A line of a provider's bill: a charge, or money given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillLine {
    /// The charge. A refund names the charge that it gives back.
    pub provider_txn: String,
    /// As the provider wrote it; none of ours can be a line of another system of the same merchant.
    pub order_no: String,
    pub amount: Money,
    pub at_ms: Millis,
    pub refund: bool,
}

/// What a provider told us, proved to come from it. Not yet compared with the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub provider_txn: String,
    pub order_no: OrderNo,
    pub amount: Money,
    pub paid_ms: Millis,
    pub outcome: NoticeOutcome,
}

/// Why a notice is not believed. None of these is worth more than a warning: anyone can post one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoticeError {
    /// The provider signs wrongly now and then, on purpose, to see whether we look.
    #[error("the signature is wrong on purpose, as a trial")]
    Probe,
    #[error("the signature is missing or wrong")]
    BadSignature,
    #[error("the time stamp is outside the window")]
    Stale,
    #[error("the notice is for another merchant")]
    OtherMerchant,
    #[error("the notice cannot be read: {0}")]
    Malformed(String),
}

#[async_trait]
pub trait Provider: Send + Sync {
    /// As it appears in addresses and in the ledger, e.g. `sandbox`.
    fn name(&self) -> &'static str;

    /// What buyers call it.
    fn title(&self) -> Title {
        Title::of(self.name())
    }

    /// The ways a buyer can come to it, the usual one first. Never empty.
    fn methods(&self) -> &[PayMethod] {
        &[PayMethod::Page]
    }

    /// Does it take this currency?
    fn takes(&self, _currency: Currency) -> bool {
        true
    }

    /// Let the buyer pay. Idempotent by `order_no`: the same request gets the same address.
    async fn open(&self, request: &PayRequest) -> Result<Opened, ProviderError>;

    /// Let nobody pay any more. Idempotent.
    async fn close(&self, order_no: OrderNo) -> Result<CloseOutcome, ProviderError>;

    async fn query(&self, order_no: OrderNo) -> Result<QueryOutcome, ProviderError>;

    /// Does asking it tell anything? One that only ever tells by itself is not asked on a schedule.
    fn can_be_asked(&self) -> bool {
        true
    }

    /// Give a charge back. Idempotent by `provider_txn`: money goes back once.
    async fn refund(&self, request: &RefundRequest) -> Result<RefundOutcome, ProviderError>;

    /// Is this notice from the provider, fresh, and for us? `body` must be the bytes as they came. A
    /// provider may have to be asked for the key that it is signed with.
    async fn verify_notice(
        &self,
        headers: &http::HeaderMap,
        body: &[u8],
    ) -> Result<Notice, NoticeError>;

    /// What the provider wants to hear: status, content type, body. Anything but `Accepted` means
    /// that it will tell us again later.
    fn answer(&self, answer: NoticeAnswer) -> (u16, &'static str, String);

    /// How far its calendar is ahead of UTC, for the midnights at which its bills begin.
    fn calendar_ahead_ms(&self) -> Millis {
        8 * 60 * 60 * 1_000
    }

    /// What the provider says moved in these 24 hours, which begin at a midnight of its own calendar.
    /// `None` if it keeps no bill that we can ask for, or has not made it yet.
    async fn bill(&self, _day_from_ms: Millis) -> Result<Option<Vec<BillLine>>, ProviderError> {
        Ok(None)
    }
}
