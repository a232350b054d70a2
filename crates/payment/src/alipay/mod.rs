//! Alipay: its page on a desk, its page on a phone, a code that its app scans.
//!
//! The order's number is Alipay's `out_trade_no`. A page makes no trade at Alipay before the buyer has signed
//! in there, and a code none before it was scanned; until then Alipay knows of no order, and what ends it is
//! the time that stands in the signed address (`time_expire`).
//!
//! Two ways to know each other: bare keys, or certificates that lead to Alipay's root, which are then named
//! in every question and answer.

mod bill;
mod gateway;
mod notice;
mod settings;
mod signing;

#[cfg(test)]
mod tests;

use async_trait::async_trait;
use http::HeaderMap;
use sale::{Currency, Millis, Money, OrderNo, SharedClock};
use serde::Deserialize;
use serde_json::{Value, json};

use self::gateway::{Gateway, Refusal, unknown};
pub use self::settings::AlipaySettings;
use crate::{
    BillLine, CloseOutcome, NOTICE_BYTES_MAX, Notice, NoticeAnswer, NoticeError, Opened, Paid,
    PayMethod, PayRequest, Provider, ProviderError, QueryOutcome, RefundOutcome, RefundRequest,
    beijing, text::shortened,
};

const SUBJECT_BYTES_MAX: usize = 256;
const REASON_BYTES_MAX: usize = 256;
/// Alipay takes no order that ends sooner than in a minute.
const OPEN_MS_MIN: Millis = 61_000;
/// The bill of a day is there at ten o'clock of the next one.
const BILL_READY_MS: Millis = beijing::DAY_MS + 10 * beijing::HOUR_MS;

pub struct Alipay {
    gateway: Gateway,
    settings: AlipaySettings,
    notify_url: String,
    clock: SharedClock,
}

/// What Alipay says of a trade.
#[derive(Debug, Deserialize)]
struct Trade {
    out_trade_no: String,
    trade_no: String,
    trade_status: String,
    total_amount: String,
    #[serde(default)]
    send_pay_date: String,
    #[serde(default)]
    trans_currency: String,
}

impl Trade {
    /// Alipay need not say when it was paid; then it was by now.
    fn paid(&self, now_ms: Millis) -> Result<Paid, ProviderError> {
        if !["", "CNY"].contains(&self.trans_currency.as_str()) {
            return Err(unknown(format!("a trade in {}", self.trans_currency)));
        }
        let amount = Money::from_text(&self.total_amount, Currency::CNY).map_err(unknown)?;
        let paid_ms = match self.send_pay_date.as_str() {
            "" => now_ms,
            at => beijing::parse_plain(at).ok_or_else(|| unknown("a payment at no time"))?,
        };
        Ok(Paid { provider_txn: self.trade_no.clone(), amount, paid_ms })
    }
}

impl Alipay {
    pub const NAME: &'static str = "alipay";

    /// `notify_url` is where Alipay tells us of payments. Every mistake is a sentence of the answer.
    pub fn open(
        settings: &AlipaySettings,
        notify_url: String,
        clock: SharedClock,
    ) -> Result<Alipay, Vec<String>> {
        let problems = settings.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let gateway = Gateway::open(settings, clock.clone())?;
        Ok(Alipay { gateway, settings: settings.clone(), notify_url, clock })
    }

    fn order(&self, request: &PayRequest) -> Value {
        let not_before_ms = self.clock.now_ms() + OPEN_MS_MIN;
        json!({
            "out_trade_no": request.order_no.to_string(),
            "total_amount": yuan(request.amount),
            "subject": subject(&request.subject),
            "time_expire": beijing::plain(request.deadline_ms.max(not_before_ms)),
        })
    }

    /// What Alipay says of a trade; none if it never heard of it.
    async fn trade(&self, order_no: OrderNo) -> Result<Option<Trade>, ProviderError> {
        let about = json!({"out_trade_no": order_no.to_string()});
        let trade = match self.gateway.ask("alipay.trade.query", &[], &about).await? {
            Ok(trade) => trade,
            Err(refusal) if is_unknown(&refusal) => return Ok(None),
            Err(refusal) => return Err(refusal.into_error()),
        };
        let trade: Trade = serde_json::from_value(trade).map_err(unknown)?;
        if trade.out_trade_no != order_no.to_string() {
            return Err(unknown("an answer about another order"));
        }
        Ok(Some(trade))
    }

    /// Is the refund done? None if Alipay knows of none.
    async fn refund_of(
        &self,
        request: &RefundRequest,
    ) -> Result<Option<RefundOutcome>, ProviderError> {
        let number = out_request_no(&request.provider_txn);
        let about = json!({"trade_no": request.provider_txn, "out_request_no": number});
        let asked = self.gateway.ask("alipay.trade.fastpay.refund.query", &[], &about).await?;
        let found = match asked {
            Ok(found) => found,
            Err(refusal) if is_unknown(&refusal) => return Ok(None),
            Err(refusal) => return Err(refusal.into_error()),
        };
        // An answer without a refund means that there is none.
        let Some(amount) = found["refund_amount"].as_str() else { return Ok(None) };
        if Money::from_text(amount, Currency::CNY) != Ok(request.amount) {
            return Err(unknown("an answer about another refund"));
        }
        match found["refund_status"].as_str() {
            Some("REFUND_SUCCESS") => Ok(Some(RefundOutcome::Done)),
            _ => Ok(Some(RefundOutcome::Pending)),
        }
    }
}

/// Derived from the charge, so that asking again is the same refund.
fn out_request_no(provider_txn: &str) -> String {
    format!("SKR{provider_txn}")
}

fn is_unknown(refusal: &Refusal) -> bool {
    refusal.sub_code == "ACQ.TRADE_NOT_EXIST"
}

/// Minor units as Alipay writes them: `6999.00`.
fn yuan(amount: Money) -> String {
    let minor = amount.minor.unsigned_abs();
    let sign = if amount.minor < 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", minor / 100, minor % 100)
}

/// Some characters are not taken in a subject.
fn subject(text: &str) -> String {
    let allowed: String = text.chars().filter(|c| !"/=&".contains(*c) && !c.is_control()).collect();
    let short = shortened(allowed.trim(), SUBJECT_BYTES_MAX);
    if short.is_empty() { "-".into() } else { short.to_owned() }
}

#[async_trait]
impl Provider for Alipay {
    fn name(&self) -> &'static str {
        Alipay::NAME
    }

    fn methods(&self) -> &[PayMethod] {
        &self.settings.methods
    }

    fn takes(&self, currency: Currency) -> bool {
        currency == Currency::CNY
    }

    async fn open(&self, request: &PayRequest) -> Result<Opened, ProviderError> {
        let mut order = self.order(request);
        let return_url = request.return_url.as_deref().unwrap_or_default();
        let more = [("notify_url", self.notify_url.as_str()), ("return_url", return_url)];
        let (method, product) = match request.method.unwrap_or(self.settings.methods[0]) {
            PayMethod::Page => ("alipay.trade.page.pay", "FAST_INSTANT_TRADE_PAY"),
            PayMethod::Phone => ("alipay.trade.wap.pay", "QUICK_WAP_WAY"),
            PayMethod::Qr => {
                let asked = self.gateway.ask("alipay.trade.precreate", &more[..1], &order).await?;
                let opened = asked.map_err(Refusal::into_error)?;
                let same = opened["out_trade_no"].as_str() == order["out_trade_no"].as_str();
                let code = opened["qr_code"].as_str().filter(|code| same && !code.is_empty());
                let qr = code.ok_or_else(|| unknown("an answer without a code"))?.to_owned();
                return Ok(Opened { qr: Some(qr), ..Opened::default() });
            }
            PayMethod::App => {
                let why = "Alipay has page, phone and qr";
                return Err(ProviderError::Refused(why.into()));
            }
        };
        order["product_code"] = json!(product);
        let parameters = self.gateway.signed(method, &more, &order)?;
        Ok(Opened::at(self.gateway.address(&parameters)))
    }

    async fn close(&self, order_no: OrderNo) -> Result<CloseOutcome, ProviderError> {
        let about = json!({"out_trade_no": order_no.to_string()});
        let refusal = match self.gateway.ask("alipay.trade.close", &[], &about).await? {
            Ok(_) => return Ok(CloseOutcome::Closed),
            Err(refusal) => refusal,
        };
        if is_unknown(&refusal) {
            return Ok(CloseOutcome::NeverOpened);
        }
        self.query(order_no).await?.after_refused_close(refusal.words())
    }

    async fn query(&self, order_no: OrderNo) -> Result<QueryOutcome, ProviderError> {
        let Some(trade) = self.trade(order_no).await? else {
            return Ok(QueryOutcome::NeverOpened);
        };
        let now_ms = self.clock.now_ms();
        match trade.trade_status.as_str() {
            "WAIT_BUYER_PAY" => Ok(QueryOutcome::Open),
            "TRADE_SUCCESS" | "TRADE_FINISHED" => trade.paid(now_ms).map(QueryOutcome::Paid),
            // Never paid, or all of it given back: then it tells when it was paid.
            "TRADE_CLOSED" if trade.send_pay_date.is_empty() => Ok(QueryOutcome::Closed),
            "TRADE_CLOSED" => trade.paid(now_ms).map(QueryOutcome::Refunded),
            status => Err(unknown(format!("a trade that is {status:?}"))),
        }
    }

    async fn refund(&self, request: &RefundRequest) -> Result<RefundOutcome, ProviderError> {
        let about = json!({
            "trade_no": request.provider_txn,
            "refund_amount": yuan(request.amount),
            "refund_reason": shortened(&request.reason, REASON_BYTES_MAX),
            "out_request_no": out_request_no(&request.provider_txn),
        });
        let refusal = match self.gateway.ask("alipay.trade.refund", &[], &about).await? {
            Ok(done) if done["trade_no"].as_str() != Some(request.provider_txn.as_str()) => {
                return Err(unknown("an answer about another refund"));
            }
            Ok(done) if done["fund_change"] == "Y" => return Ok(RefundOutcome::Done),
            // Done before, or not done yet.
            Ok(_) => return Ok(self.refund_of(request).await?.unwrap_or(RefundOutcome::Pending)),
            Err(refusal) => refusal,
        };
        // It may refuse because it is done.
        match self.refund_of(request).await? {
            Some(outcome) => Ok(outcome),
            None => Err(refusal.into_error()),
        }
    }

    async fn verify_notice(&self, _: &HeaderMap, body: &[u8]) -> Result<Notice, NoticeError> {
        if body.len() > NOTICE_BYTES_MAX {
            return Err(NoticeError::Malformed("it is too long".into()));
        }
        notice::read(&self.settings, &self.gateway.keys(), body, self.clock.now_ms())
    }

    fn answer(&self, answer: NoticeAnswer) -> (u16, &'static str, String) {
        // This very word and nothing else; any other makes Alipay tell again.
        let word = if answer == NoticeAnswer::Accepted { "success" } else { "fail" };
        (answer.status(), "text/plain", word.into())
    }

    async fn bill(&self, day_from_ms: Millis) -> Result<Option<Vec<BillLine>>, ProviderError> {
        if self.clock.now_ms() < day_from_ms + BILL_READY_MS {
            return Ok(None);
        }
        let about = json!({"bill_type": "trade", "bill_date": beijing::date(day_from_ms)});
        let method = "alipay.data.dataservice.bill.downloadurl.query";
        let at = match self.gateway.ask(method, &[], &about).await? {
            Ok(at) => at,
            Err(refusal) => {
                let code = refusal.sub_code.to_ascii_uppercase();
                if code.contains("EMPTY_DATA") {
                    return Ok(Some(Vec::new()));
                }
                // Nothing moved on that day, or Alipay is late with it; it does not say which.
                if code.contains("BILL_NOT_EXIST") {
                    return Ok(None);
                }
                return Err(refusal.into_error());
            }
        };
        let url = at["bill_download_url"].as_str().filter(|url| !url.is_empty());
        let url = url.ok_or_else(|| unknown("an answer without an address"))?;
        bill::lines(&self.gateway.download(url).await?).map(Some).map_err(unknown)
    }
}
