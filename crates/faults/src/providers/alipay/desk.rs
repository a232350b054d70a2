//! What Alipay does for an application whose signature was believed: trades, refunds, certificates, bills.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{Alipay, Fields};
use crate::providers::{
    Protocol,
    accounts::{RefundRefusal, Standing, Trade},
    bills::{self, yuan},
    calendar,
    http::{Answer, Request, fields},
    locked,
    news::News,
};

/// Why a request is refused: code, sub-code, message.
pub(super) type Refusal = (&'static str, &'static str, String);

impl Alipay {
    pub(super) fn route(&self, method: &str, all: &Fields) -> Result<Value, Refusal> {
        let content = all.get("biz_content").map_or("{}", String::as_str);
        let content: Value = serde_json::from_str(content)
            .map_err(|_| ("40002", "isv.illegal-json", "biz_content is no JSON".to_owned()))?;
        match method {
            "alipay.trade.precreate" => self.open("QR", all, &content),
            "alipay.trade.page.pay" => self.open("FAST_INSTANT_TRADE_PAY", all, &content),
            "alipay.trade.wap.pay" => self.open("QUICK_WAP_WAY", all, &content),
            "alipay.trade.query" => self.query(&content),
            "alipay.trade.close" => self.close(&content),
            "alipay.trade.refund" => self.refund(&content),
            "alipay.trade.fastpay.refund.query" => self.query_refund(&content),
            "alipay.data.dataservice.bill.downloadurl.query" => self.bill(&content),
            "alipay.open.app.alipaycert.download" => self.certificate(
                content["alipay_cert_sn"]
                    .as_str()
                    .or_else(|| all.get("alipay_cert_sn").map(String::as_str)),
            ),
            _ => Err(("40002", "isv.invalid-method", "there is no such method".into())),
        }
    }

    fn open(&self, way: &str, all: &Fields, content: &Value) -> Result<Value, Refusal> {
        let text = |name: &str, most: usize| match content[name].as_str() {
            Some(text) if (1..=most).contains(&text.chars().count()) => Ok(text.to_owned()),
            _ => Err(wrong(&format!("{name} must have 1 to {most} characters"))),
        };
        let order_no = text("out_trade_no", 64)?;
        if !order_no.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(wrong("out_trade_no has letters, digits and underscores"));
        }
        let subject = text("subject", 256)?;
        if subject.contains(['/', '=', '&']) {
            return Err(wrong("subject must not contain / = &"));
        }
        let product = content["product_code"].as_str();
        if way != "QR" && product != Some(way) {
            return Err(wrong(&format!("product_code is {way}")));
        }
        let amount = minor(content["total_amount"].as_str().unwrap_or_default());
        let amount = amount.ok_or_else(|| wrong("total_amount is yuan with two digits"))?;
        let now_ms = calendar::now_ms();
        let expires_ms = match content["time_expire"].as_str() {
            None => None,
            Some(text) => Some(
                calendar::from_plain(text)
                    .ok_or_else(|| wrong("time_expire is a time of China"))?,
            ),
        };
        if expires_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            let sub = "ACQ.NOW_TIME_AFTER_EXPIRE_TIME_ERROR";
            return Err(("40004", sub, "the time is over".into()));
        }
        let notify_url = all.get("notify_url").cloned().unwrap_or_default();
        let code = format!("https://qr.alipay.com/bax0{order_no}");
        let trade = Trade {
            order_no: order_no.clone(),
            method: way.into(),
            made_ms: now_ms,
            amount,
            subject,
            notify_url,
            expires_ms,
            code: code.clone(),
            ..Trade::default()
        };
        let mut accounts = self.company.accounts();
        let known = accounts.open(trade).clone();
        if known.amount != amount {
            return Err(("40004", "ACQ.CONTEXT_INCONSISTENT", "another order".into()));
        }
        match accounts.standing(&known, now_ms) {
            Standing::Open => Ok(json!({"out_trade_no": order_no, "qr_code": code})),
            Standing::Closed => Err(("40004", "ACQ.TRADE_HAS_CLOSE", "it is closed".into())),
            _ => Err(("40004", "ACQ.TRADE_HAS_SUCCESS", "it is paid".into())),
        }
    }

    /// The order that a request is about, if a buyer ever looked at it.
    fn order_no(&self, content: &Value) -> Result<String, Refusal> {
        let accounts = self.company.accounts();
        let by_txn = content["trade_no"].as_str().and_then(|txn| accounts.charge_by_txn(txn));
        let order_no = match by_txn {
            Some(at) => accounts.charge(at).order_no.clone(),
            None => content["out_trade_no"].as_str().unwrap_or_default().to_owned(),
        };
        match accounts.trade(&order_no) {
            Some(trade) if trade.visited => Ok(order_no),
            _ => Err(("40004", "ACQ.TRADE_NOT_EXIST", "there is no such trade".into())),
        }
    }

    fn query(&self, content: &Value) -> Result<Value, Refusal> {
        let order_no = self.order_no(content)?;
        let (accounts, now_ms) = (self.company.accounts(), calendar::now_ms());
        let trade = accounts.trade(&order_no).ok_or_else(unknown)?;
        let (status, at) = match accounts.standing(trade, now_ms) {
            Standing::Open => ("WAIT_BUYER_PAY", None),
            Standing::Closed => ("TRADE_CLOSED", None),
            Standing::Paid(at) => ("TRADE_SUCCESS", Some(at)),
            // All of it went back: closed, and yet it was paid.
            Standing::Refunded(at) => ("TRADE_CLOSED", Some(at)),
        };
        let mut told = json!({"out_trade_no": order_no, "trade_status": status,
            "total_amount": yuan(trade.amount), "buyer_logon_id": "tea***@example.com",
            "buyer_user_id": "2088101117955611", "receipt_amount": "0.00",
            "trade_no": format!("{}{order_no}", Self::TXN_PREFIX)});
        if let Some(at) = at {
            let charge = accounts.charge(at);
            told["trade_no"] = json!(charge.txn);
            told["send_pay_date"] = json!(calendar::plain(charge.at_ms));
            told["receipt_amount"] = json!(yuan(charge.amount));
            told["buyer_pay_amount"] = json!(yuan(charge.amount));
        }
        Ok(told)
    }

    fn close(&self, content: &Value) -> Result<Value, Refusal> {
        let order_no = self.order_no(content)?;
        let now_ms = calendar::now_ms();
        let before = {
            let accounts = self.company.accounts();
            let trade = accounts.trade(&order_no).ok_or_else(unknown)?;
            accounts.standing(trade, now_ms)
        };
        let closed = self.company.accounts().close(Self::TXN_PREFIX, &order_no, now_ms);
        let (after, charge) = closed.ok_or_else(unknown)?;
        if let Some(charge) = charge {
            let lands_ms = self.company.accounts().charge(charge).at_ms;
            self.company.tell(News::Paid { charge, after_ms: lands_ms - now_ms, doubled: false });
        }
        if before == Standing::Open && after == Standing::Closed {
            return Ok(json!({"out_trade_no": order_no, "trade_no": order_no}));
        }
        let subs = ["ACQ.TRADE_STATUS_ERROR", "ACQ.REASON_TRADE_STATUS_INVALID"];
        let sub = subs[self.company.roll(|_, dice| dice.usize(..subs.len()))];
        Err(("40004", sub, "only what waits for its buyer can be closed".into()))
    }

    fn refund(&self, content: &Value) -> Result<Value, Refusal> {
        let order_no = self.order_no(content)?;
        let sum = minor(content["refund_amount"].as_str().unwrap_or_default());
        let sum = sum.ok_or_else(|| wrong("refund_amount is yuan with two digits"))?;
        let now_ms = calendar::now_ms();
        let done_ms = now_ms + self.company.roll(|faults, dice| faults.refund_after_ms(dice));
        let mut accounts = self.company.accounts();
        let charge = match content["trade_no"].as_str() {
            Some(txn) => accounts.charge_by_txn(txn),
            None => accounts.charge_of(&order_no, now_ms),
        };
        let number = match content["out_request_no"].as_str() {
            Some(number) if (1..=64).contains(&number.len()) => number.to_owned(),
            // Without a number of its own it is the whole, once.
            None => order_no.clone(),
            _ => return Err(wrong("out_request_no has 1 to 64 characters")),
        };
        let asked = accounts.refund("A", charge, (&number, sum), (now_ms, done_ms));
        let (refund, is_new) = asked.map_err(|refusal| match refusal {
            RefundRefusal::NoSuchCharge => {
                ("40004", "ACQ.TRADE_STATUS_ERROR", "it is not paid".to_owned())
            }
            RefundRefusal::OtherUnderThisNumber => {
                ("40004", "ACQ.DISCORDANT_REPEAT_REQUEST", "another refund has it".into())
            }
            RefundRefusal::MoreThanWasPaid => {
                ("40004", "ACQ.REASON_TRADE_REFUND_FEE_ERR", "more than was paid".into())
            }
        })?;
        let moved = is_new && refund.done_ms <= now_ms;
        let told = charge.map(|at| {
            let charge = accounts.charge(at);
            json!({"trade_no": charge.txn, "out_trade_no": order_no,
                "buyer_logon_id": "tea***@example.com", "fund_change": if moved { "Y" } else { "N" },
                "refund_fee": yuan(refund.amount), "gmt_refund_pay": calendar::plain(refund.done_ms)})
        });
        drop(accounts);
        if is_new {
            self.company.tell(News::Refunded { number, after_ms: done_ms - now_ms });
        }
        Ok(told.unwrap_or_default())
    }

    fn query_refund(&self, content: &Value) -> Result<Value, Refusal> {
        self.order_no(content)?;
        let accounts = self.company.accounts();
        let number = content["out_request_no"].as_str().unwrap_or_default();
        // One that is not known or not done is answered without its state.
        Ok(match accounts.refund_by_number(number) {
            Some((charge, refund)) if refund.done_ms <= calendar::now_ms() => {
                json!({"trade_no": charge.txn, "out_trade_no": charge.order_no,
                    "out_request_no": refund.number, "total_amount": yuan(charge.amount),
                    "refund_amount": yuan(refund.amount), "refund_status": "REFUND_SUCCESS"})
            }
            _ => json!({}),
        })
    }

    fn bill(&self, content: &Value) -> Result<Value, Refusal> {
        if content["bill_type"] != "trade" {
            return Err(wrong("bill_type is trade"));
        }
        let date = content["bill_date"].as_str().unwrap_or_default();
        if calendar::from_plain(&format!("{date} 00:00:00")).is_none() {
            return Err(wrong("bill_date is a day"));
        }
        if date >= calendar::date(calendar::now_ms()).as_str() {
            return Err(("40004", "BILL_NOT_EXIST", "not there yet".into()));
        }
        if bills::alipay(self.company.accounts().charges(), date, &self.seller_id).is_none() {
            return Err(("40004", "NO_BILL_DATA", "nothing moved that day".into()));
        }
        let address = self.company.address;
        let url =
            format!("http://{address}/downloadBillFile.resource?bizDates={date}&fileType=csv");
        Ok(json!({ "bill_download_url": url }))
    }

    pub(super) fn download(&self, request: &Request) -> Answer {
        let query = fields(request.query());
        let date = query.iter().find(|(name, _)| name == "bizDates");
        let date = date.map_or("", |(_, date)| date.as_str());
        match bills::alipay(self.company.accounts().charges(), date, &self.seller_id) {
            Some(Ok(zip)) => Answer::new(200, "application/octet-stream", zip),
            _ => Answer::new(404, "text/html", "not found"),
        }
    }

    fn certificate(&self, sn: Option<&str>) -> Result<Value, Refusal> {
        let own = locked(&self.own).clone();
        let named = own.iter().find(|named| Some(named.sn.as_str()) == sn);
        let pem = named.and_then(|named| named.certified.pem().ok());
        let pem =
            pem.ok_or_else(|| ("40004", "CERT_NOT_FOUND", "no such certificate".to_owned()))?;
        Ok(json!({"alipay_cert_content": STANDARD.encode(pem)}))
    }
}

fn unknown() -> Refusal {
    ("40004", "ACQ.TRADE_NOT_EXIST", "there is no such trade".to_owned())
}

fn wrong(message: &str) -> Refusal {
    ("40004", "ACQ.INVALID_PARAMETER", message.to_owned())
}

/// Yuan with two digits in minor units, from one fen to a hundred million yuan.
fn minor(text: &str) -> Option<i64> {
    let (yuan, fen) = text.split_once('.')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = !yuan.is_empty() && fen.len() == 2 && digits(yuan) && digits(fen);
    let minor =
        plain.then(|| Some(yuan.parse::<i64>().ok()? * 100 + fen.parse::<i64>().ok()?))??;
    (1..=10_000_000_000).contains(&minor).then_some(minor)
}
