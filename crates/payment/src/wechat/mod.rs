//! WeChat Pay, API v3: a code to scan (Native), inside WeChat (JSAPI), on a phone's browser (H5).
//!
//! The order's number is WeChat's `out_trade_no`, so an order is paid at most once there, and whatever is
//! asked twice is the same order. WeChat keeps to the way that an order was first opened: the same number
//! opened another way is refused.
//!
//! What WeChat does not answer, or answers without its signature, is unknown. A no that it signed is
//! compared with what it says of the order before it is passed on.

mod api;
mod bill;
mod seal;
mod settings;
mod transaction;

#[cfg(test)]
mod tests;

use async_trait::async_trait;
use http::{HeaderMap, Method};
use sale::{Currency, Millis, OrderNo, SharedClock};
use serde_json::{Value, json};

pub use self::settings::WechatSettings;
use self::{
    api::{Api, Refusal, Reply, nonce, unknown},
    transaction::{Posted, Refund, RefundNotice, Transaction},
};
use crate::{
    BillLine, CloseOutcome, NOTICE_BYTES_MAX, Notice, NoticeAnswer, NoticeError, Opened, Paid,
    PayMethod, PayRequest, Provider, ProviderError, QueryOutcome, RefundOutcome, RefundRequest,
    beijing,
    text::{percent_encoded, shortened},
};

/// What the buyer reads at the cashier, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 127;
const REASON_BYTES_MAX: usize = 80;
const LETTER_BYTES_MAX: usize = 3;
/// WeChat takes no order that ends sooner than in a minute.
const OPEN_MS_MIN: Millis = 61_000;
/// The bill of a day is there at ten o'clock of the next one.
const BILL_READY_MS: Millis = beijing::DAY_MS + 10 * beijing::HOUR_MS;

/// Codes of WeChat for an order or a refund that it never heard of.
const UNKNOWN_TO_WECHAT: &[&str] =
    &["ORDER_NOT_EXIST", "ORDERNOTEXIST", "RESOURCE_NOT_EXISTS", "RESOURCE_NOT_EXIST"];
/// Codes that say nothing of what was asked for.
const NOT_NOW: &[&str] =
    &["SYSTEM_ERROR", "SYSTEMERROR", "FREQUENCY_LIMITED", "FREQUENCY_LIMIT_EXCEED", "BANKERROR"];

pub struct WechatPay {
    api: Api,
    settings: WechatSettings,
    notify_url: String,
    clock: SharedClock,
}

impl WechatPay {
    pub const NAME: &'static str = "wechat";

    /// `notify_url` is where WeChat tells us of payments. Every mistake is a sentence of the answer.
    pub fn open(
        settings: &WechatSettings,
        notify_url: String,
        clock: SharedClock,
    ) -> Result<WechatPay, Vec<String>> {
        let problems = settings.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let api = Api::open(settings, clock.clone())?;
        Ok(WechatPay { api, settings: settings.clone(), notify_url, clock })
    }

    async fn get(&self, path: &str) -> Result<Reply, ProviderError> {
        self.api.ask(Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Reply, ProviderError> {
        self.api.ask(Method::POST, path, Some(body)).await
    }

    fn order(&self, request: &PayRequest) -> Value {
        let not_before_ms = self.clock.now_ms() + OPEN_MS_MIN;
        json!({
            "appid": self.settings.app_id,
            "mchid": self.settings.merchant_id,
            "description": understood(&request.subject, DESCRIPTION_BYTES_MAX),
            "out_trade_no": request.order_no.to_string(),
            "time_expire": beijing::with_offset(request.deadline_ms.max(not_before_ms)),
            "notify_url": self.notify_url,
            "amount": {"total": request.amount.minor, "currency": request.amount.currency},
        })
    }

    /// What WeChat's script inside WeChat is called with.
    fn invoke(&self, prepay_id: &str) -> Result<Value, ProviderError> {
        self.invoke_at(prepay_id, &self.api.now_s().to_string(), &nonce()?)
    }

    fn invoke_at(&self, prepay_id: &str, time: &str, nonce: &str) -> Result<Value, ProviderError> {
        let package = format!("prepay_id={prepay_id}");
        let signature = self.api.sign(&[&self.settings.app_id, time, nonce, &package])?;
        Ok(json!({
            "appId": self.settings.app_id, "timeStamp": time, "nonceStr": nonce,
            "package": package, "signType": "RSA", "paySign": signature,
        }))
    }

    /// What WeChat says of an order; none if it never heard of it.
    async fn transaction(&self, order_no: OrderNo) -> Result<Option<Transaction>, ProviderError> {
        let merchant_id = &self.settings.merchant_id;
        let path = format!("/v3/pay/transactions/out-trade-no/{order_no}?mchid={merchant_id}");
        let found: Transaction = match read(self.get(&path).await?)? {
            Ok(found) => found,
            Err(refusal) if is_unknown(&refusal) => return Ok(None),
            Err(refusal) => return Err(refused(refusal)),
        };
        let ours = found.mchid == *merchant_id
            && found.appid == self.settings.app_id
            && found.out_trade_no == order_no.to_string();
        if ours { Ok(Some(found)) } else { Err(unknown("an answer about another order")) }
    }

    /// The refund of a charge; none if there is none of ours.
    async fn refund_of(&self, provider_txn: &str) -> Result<Option<Refund>, ProviderError> {
        let path = format!("/v3/refund/domestic/refunds/{}", out_refund_no(provider_txn));
        match read(self.get(&path).await?)? {
            Ok(found) => Ok(Some(found)),
            Err(refusal) if is_unknown(&refusal) => Ok(None),
            Err(refusal) => Err(refused(refusal)),
        }
    }

    /// WeChat calls an order *refunded* as soon as a part of it went back, by whatever hand. It is to us
    /// when our own refund, which is always the whole, is on its way; else the money came and the rest is
    /// for the bill to tell.
    async fn refunded(&self, paid: Paid) -> Result<QueryOutcome, ProviderError> {
        let ours = self.refund_of(&paid.provider_txn).await?;
        let gone = ours.is_some_and(|refund| {
            ["SUCCESS", "PROCESSING"].contains(&refund.status.as_str())
                && refund.amount.refund == paid.amount.minor
        });
        Ok(if gone { QueryOutcome::Refunded(paid) } else { QueryOutcome::Paid(paid) })
    }
}

/// Derived from the charge, so that asking again is the same refund.
fn out_refund_no(provider_txn: &str) -> String {
    format!("SKR{provider_txn}")
}

/// WeChat knows letters of up to three bytes only, and refuses a text with an emoji in it, and with the text
/// the order or the refund.
fn understood(text: &str, bytes_max: usize) -> String {
    let known: String = text.chars().filter(|c| c.len_utf8() <= LETTER_BYTES_MAX).collect();
    let short = shortened(known.trim(), bytes_max);
    if short.is_empty() { "-".into() } else { short.to_owned() }
}

fn is_unknown(refusal: &Refusal) -> bool {
    UNKNOWN_TO_WECHAT.contains(&refusal.code.as_str())
}

/// A clear no, unless it says that nothing was decided.
fn refused(refusal: Refusal) -> ProviderError {
    let words = refusal.words();
    if NOT_NOW.contains(&refusal.code.as_str()) {
        ProviderError::Unavailable(words)
    } else {
        ProviderError::Refused(words)
    }
}

/// A yes or a no that WeChat signed. Nonsense is neither.
fn read<T: serde::de::DeserializeOwned>(reply: Reply) -> Result<Result<T, Refusal>, ProviderError> {
    if (200..300).contains(&reply.status) {
        return serde_json::from_slice(&reply.body).map(Ok).map_err(unknown);
    }
    let refusal: Refusal = serde_json::from_slice(&reply.body).map_err(unknown)?;
    Ok(Err(refusal))
}

fn text_of(value: &Value, key: &str) -> Result<String, ProviderError> {
    let text = value[key].as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned).ok_or_else(|| unknown(format!("an answer without {key}")))
}

fn refund_outcome(
    refund: &Refund,
    request: &RefundRequest,
) -> Result<RefundOutcome, ProviderError> {
    let same = refund.transaction_id == request.provider_txn
        && refund.out_refund_no == out_refund_no(&request.provider_txn)
        && refund.amount.refund == request.amount.minor;
    match refund.status.as_str() {
        _ if !same => Err(unknown("an answer about another refund")),
        "SUCCESS" => Ok(RefundOutcome::Done),
        "PROCESSING" => Ok(RefundOutcome::Pending),
        status @ ("CLOSED" | "ABNORMAL") => Err(ProviderError::Refused(format!(
            "the refund is {status}: give the money back at WeChat Pay's merchant platform"
        ))),
        status => Err(unknown(format!("a refund that is {status:?}"))),
    }
}

#[async_trait]
impl Provider for WechatPay {
    fn name(&self) -> &'static str {
        WechatPay::NAME
    }

    fn methods(&self) -> &[PayMethod] {
        &self.settings.methods
    }

    fn takes(&self, currency: Currency) -> bool {
        currency == Currency::CNY
    }

    async fn open(&self, request: &PayRequest) -> Result<Opened, ProviderError> {
        let needs = |what: &str| ProviderError::Refused(format!("WeChat Pay needs {what}"));
        let method = request.method.unwrap_or(self.settings.methods[0]);
        let mut order = self.order(request);
        let way = match method {
            PayMethod::Qr => "native",
            PayMethod::App => {
                let payer = request.payer.as_ref().filter(|payer| !payer.is_empty());
                order["payer"] =
                    json!({"openid": payer.ok_or_else(|| needs("the buyer's openid"))?});
                "jsapi"
            }
            PayMethod::Phone => {
                let client_ip = request.client_ip.ok_or_else(|| needs("the buyer's address"))?;
                order["scene_info"] =
                    json!({"payer_client_ip": client_ip, "h5_info": {"type": "Wap"}});
                "h5"
            }
            PayMethod::Page => return Err(needs("a way of its own: qr, phone or app")),
        };
        let path = format!("/v3/pay/transactions/{way}");
        let opened: Value = read(self.post(&path, &order).await?)?.map_err(refused)?;
        Ok(match method {
            PayMethod::App => {
                let app = Some(self.invoke(&text_of(&opened, "prepay_id")?)?);
                Opened { app, ..Opened::default() }
            }
            PayMethod::Phone => {
                let mut url = text_of(&opened, "h5_url")?;
                if let Some(return_url) = &request.return_url {
                    url += &format!("&redirect_url={}", percent_encoded(return_url));
                }
                Opened::at(url)
            }
            _ => Opened { qr: Some(text_of(&opened, "code_url")?), ..Opened::default() },
        })
    }

    async fn close(&self, order_no: OrderNo) -> Result<CloseOutcome, ProviderError> {
        let path = format!("/v3/pay/transactions/out-trade-no/{order_no}/close");
        let reply = self.post(&path, &json!({"mchid": self.settings.merchant_id})).await?;
        if (200..300).contains(&reply.status) {
            return Ok(CloseOutcome::Closed);
        }
        let refusal: Refusal = serde_json::from_slice(&reply.body).map_err(unknown)?;
        if is_unknown(&refusal) {
            return Ok(CloseOutcome::NeverOpened);
        }
        self.query(order_no).await?.after_refused_close(refusal.words())
    }

    async fn query(&self, order_no: OrderNo) -> Result<QueryOutcome, ProviderError> {
        let Some(found) = self.transaction(order_no).await? else {
            return Ok(QueryOutcome::NeverOpened);
        };
        match found.trade_state.as_str() {
            "SUCCESS" => found.paid().map(QueryOutcome::Paid).map_err(unknown),
            "REFUND" => self.refunded(found.paid().map_err(unknown)?).await,
            "NOTPAY" | "USERPAYING" | "PAYERROR" | "ACCEPT" => Ok(QueryOutcome::Open),
            "CLOSED" | "REVOKED" => Ok(QueryOutcome::Closed),
            state => Err(unknown(format!("an order that is {state:?}"))),
        }
    }

    async fn refund(&self, request: &RefundRequest) -> Result<RefundOutcome, ProviderError> {
        let minor = request.amount.minor;
        let body = json!({
            "transaction_id": request.provider_txn,
            "out_refund_no": out_refund_no(&request.provider_txn),
            "reason": understood(&request.reason, REASON_BYTES_MAX),
            "notify_url": self.notify_url,
            "amount": {"refund": minor, "total": minor, "currency": request.amount.currency},
        });
        match read::<Refund>(self.post("/v3/refund/domestic/refunds", &body).await?)? {
            Ok(refund) => refund_outcome(&refund, request),
            // It may refuse because it is done.
            Err(refusal) => match self.refund_of(&request.provider_txn).await? {
                Some(refund) => refund_outcome(&refund, request),
                None => Err(refused(refusal)),
            },
        }
    }

    async fn verify_notice(&self, headers: &HeaderMap, body: &[u8]) -> Result<Notice, NoticeError> {
        if body.len() > NOTICE_BYTES_MAX {
            return Err(NoticeError::Malformed("it is too long".into()));
        }
        self.api.verify(headers, body).await?;
        let malformed = |error: serde_json::Error| NoticeError::Malformed(error.to_string());
        let posted: Posted = serde_json::from_slice(body).map_err(malformed)?;
        let opened = self.api.unseal(&posted.resource);
        let opened = opened.ok_or_else(|| {
            NoticeError::Malformed("the APIv3 key does not open its resource".into())
        })?;
        let WechatSettings { merchant_id, app_id, .. } = &self.settings;
        if posted.event_type.starts_with("REFUND.") {
            let refund: RefundNotice = serde_json::from_slice(&opened).map_err(malformed)?;
            return refund.notice(merchant_id);
        }
        let transaction: Transaction = serde_json::from_slice(&opened).map_err(malformed)?;
        transaction.notice(merchant_id, app_id)
    }

    fn answer(&self, answer: NoticeAnswer) -> (u16, &'static str, String) {
        let (code, message) = match answer {
            NoticeAnswer::Accepted => ("SUCCESS", "OK"),
            NoticeAnswer::TryAgain => ("FAIL", "not now"),
            NoticeAnswer::NotBelieved => ("FAIL", "not believed"),
        };
        let said = json!({"code": code, "message": message}).to_string();
        (answer.status(), "application/json", said)
    }

    async fn bill(&self, day_from_ms: Millis) -> Result<Option<Vec<BillLine>>, ProviderError> {
        if self.clock.now_ms() < day_from_ms + BILL_READY_MS {
            return Ok(None);
        }
        let day = beijing::date(day_from_ms);
        let path = format!("/v3/bill/tradebill?bill_date={day}&bill_type=ALL");
        let at: Value = match read(self.get(&path).await?)? {
            Ok(at) => at,
            // Nothing moved on that day.
            Err(refusal) if refusal.code == "NO_STATEMENT_EXIST" => return Ok(Some(Vec::new())),
            Err(refusal) if refusal.code == "STATEMENT_CREATING" => return Ok(None),
            Err(refusal) => return Err(refused(refusal)),
        };
        let file = self.api.download(&text_of(&at, "download_url")?).await?;
        if !bill::has_digest(&file, &text_of(&at, "hash_value")?) {
            return Err(unknown("the bill is not the one that was announced"));
        }
        bill::lines(&file).map(Some).map_err(unknown)
    }
}
