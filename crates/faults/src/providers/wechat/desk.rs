//! What WeChat Pay does for a merchant whose signature was believed: orders, refunds, certificates, bills.

use ring::digest;
use serde_json::{Value, json};

use super::WeChat;
use crate::providers::{
    Protocol,
    accounts::{Charge, Refund, RefundRefusal, Standing, Stuck, Trade},
    bills, calendar,
    http::{Answer, Request, fields},
    locked,
    news::News,
};

/// Why a request is refused: status, code, message.
pub(super) type Refusal = (u16, &'static str, String);

impl WeChat {
    pub(super) fn route(&self, request: &Request) -> Result<Answer, Refusal> {
        let path: Vec<&str> = request.path().trim_start_matches('/').split('/').collect();
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let done = match (request.method.as_str(), &path[..]) {
            ("POST", ["v3", "pay", "transactions", way]) => self.open(way, &body)?,
            ("GET", ["v3", "pay", "transactions", "out-trade-no", no]) => {
                self.own_query(request)?;
                self.query(no)?
            }
            ("POST", ["v3", "pay", "transactions", "out-trade-no", no, "close"]) => {
                self.own(&body["mchid"], &self.mchid, "mchid")?;
                self.close(no)?;
                return Ok(self.signed(request, 204, &Value::Null));
            }
            ("POST", ["v3", "refund", "domestic", "refunds"]) => self.refund(&body)?,
            ("GET", ["v3", "refund", "domestic", "refunds", number]) => {
                let accounts = self.company.accounts();
                let (charge, refund) = accounts.refund_by_number(number).ok_or_else(|| {
                    (404, "RESOURCE_NOT_EXISTS", "there is no such refund".to_owned())
                })?;
                refund_json(charge, refund)
            }
            ("GET", ["v3", "certificates"]) => self.certificates()?,
            ("GET", ["v3", "bill", "tradebill"]) => self.bill(request)?,
            ("GET", ["v3", "billdownload", "file"]) => return self.download(request),
            _ => return Err(wrong("there is no such interface")),
        };
        Ok(self.signed(request, 200, &done))
    }

    fn own(&self, value: &Value, ours: &str, name: &str) -> Result<(), Refusal> {
        if value == ours { Ok(()) } else { Err(wrong(&format!("{name} is not the merchant's"))) }
    }

    fn own_query(&self, request: &Request) -> Result<(), Refusal> {
        let query = fields(request.query());
        let mchid = query.iter().find(|(name, _)| name == "mchid");
        let mchid = mchid.map(|(_, value)| json!(value)).unwrap_or_default();
        self.own(&mchid, &self.mchid, "mchid")
    }

    fn open(&self, way: &str, body: &Value) -> Result<Value, Refusal> {
        let method = match way {
            "native" => "NATIVE",
            "jsapi" => "JSAPI",
            "h5" => "MWEB",
            _ => return Err(wrong("there is no such way to pay")),
        };
        self.own(&body["mchid"], &self.mchid, "mchid")?;
        self.own(&body["appid"], &self.appid, "appid")?;
        let text = |value: &Value, name: &str, most: usize| match value.as_str() {
            Some(text) if (1..=most).contains(&text.chars().count()) => Ok(text.to_owned()),
            _ => Err(wrong(&format!("{name} must have 1 to {most} characters"))),
        };
        known_letters(body)?;
        let order_no = text(&body["out_trade_no"], "out_trade_no", 32)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-|*".contains(c);
        if order_no.len() < 6 || !order_no.chars().all(plain) {
            return Err(wrong("out_trade_no has 6 to 32 letters and digits"));
        }
        let notify_url = text(&body["notify_url"], "notify_url", 255)?;
        if !notify_url.starts_with("http") || notify_url.contains('?') {
            return Err(wrong("notify_url is an address without a query"));
        }
        let amount = body["amount"]["total"].as_i64().filter(|total| *total > 0);
        let amount = amount.ok_or_else(|| wrong("amount.total is a whole number of fen"))?;
        if body["amount"]["currency"].as_str().is_some_and(|currency| currency != "CNY") {
            return Err(wrong("amount.currency is CNY"));
        }
        let now_ms = calendar::now_ms();
        let expires_ms = match body["time_expire"].as_str() {
            None => None,
            Some(text) => {
                let at_ms = calendar::from_zoned(text).filter(|at_ms| *at_ms > now_ms);
                Some(at_ms.ok_or_else(|| wrong("time_expire is a time to come with its zone"))?)
            }
        };
        match method {
            "JSAPI" => drop(text(&body["payer"]["openid"], "payer.openid", 128)?),
            "MWEB" => {
                let scene = &body["scene_info"];
                text(&scene["payer_client_ip"], "scene_info.payer_client_ip", 45)?;
                text(&scene["h5_info"]["type"], "scene_info.h5_info.type", 32)?;
            }
            _ => {}
        }
        let trade = Trade {
            code: format!("pr-{order_no}"),
            subject: text(&body["description"], "description", 127)?,
            method: method.into(),
            visited: true,
            made_ms: now_ms,
            order_no,
            amount,
            notify_url,
            expires_ms,
            ..Trade::default()
        };
        let mut accounts = self.company.accounts();
        let known = accounts.open(trade.clone()).clone();
        if (known.amount, &known.notify_url) != (trade.amount, &trade.notify_url) {
            return Err((400, "INVALID_REQUEST", "the number stands for another order".into()));
        }
        match accounts.standing(&known, now_ms) {
            Standing::Open => {}
            Standing::Closed => {
                return Err((400, "ORDER_CLOSED", "the order is closed".into()));
            }
            _ => return Err((400, "ORDERPAID", "the order is paid".into())),
        }
        let code = known.code;
        Ok(match method {
            "NATIVE" => json!({"code_url": format!("weixin://wxpay/bizpayurl?pr={code}")}),
            "JSAPI" => json!({"prepay_id": format!("wx{code}")}),
            _ => {
                let page = "https://wx.tenpay.com/cgi-bin/mmpayweb-bin/checkmweb";
                json!({"h5_url": format!("{page}?prepay_id={code}")})
            }
        })
    }

    fn query(&self, no: &str) -> Result<Value, Refusal> {
        let (accounts, now_ms) = (self.company.accounts(), calendar::now_ms());
        let unknown = || (404, "ORDER_NOT_EXIST", "there is no such order".to_owned());
        let trade = accounts.trade(no).ok_or_else(unknown)?;
        let (state, at) = match accounts.standing(trade, now_ms) {
            Standing::Open => ("NOTPAY", None),
            Standing::Closed => ("CLOSED", None),
            Standing::Paid(at) => ("SUCCESS", Some(at)),
            Standing::Refunded(at) => ("REFUND", Some(at)),
        };
        let charge = at.map(|at| accounts.charge(at));
        Ok(self.transaction(trade, charge, state))
    }

    pub(super) fn transaction(&self, trade: &Trade, charge: Option<&Charge>, state: &str) -> Value {
        let mut told = json!({"appid": self.appid, "mchid": self.mchid,
            "out_trade_no": trade.order_no, "trade_state": state, "trade_state_desc": "状态",
            "amount": {"total": trade.amount, "currency": "CNY"}});
        if let Some(charge) = charge {
            told["transaction_id"] = json!(charge.txn);
            told["trade_type"] = json!(trade.method);
            told["bank_type"] = json!("OTHERS");
            told["attach"] = json!("");
            told["success_time"] = json!(calendar::with_zone(charge.at_ms));
            told["payer"] = json!({"openid": "oUpF8uMuAJO_M2pxb1Q9zNjWeS6o"});
            told["amount"] = json!({"total": charge.amount, "payer_total": charge.amount,
                "currency": "CNY", "payer_currency": "CNY"});
        }
        told
    }

    fn close(&self, no: &str) -> Result<(), Refusal> {
        let now_ms = calendar::now_ms();
        let closed = self.company.accounts().close(Self::TXN_PREFIX, no, now_ms);
        let (standing, charge) =
            closed.ok_or_else(|| (404, "ORDER_NOT_EXIST", "there is no such order".to_owned()))?;
        if let Some(charge) = charge {
            let lands_ms = self.company.accounts().charge(charge).at_ms;
            self.company.tell(News::Paid { charge, after_ms: lands_ms - now_ms, doubled: false });
        }
        match standing {
            Standing::Closed | Standing::Open => Ok(()),
            // The documents name this code, and the general one is seen as well.
            _ => {
                let code = ["ORDERPAID", "INVALID_REQUEST"];
                let code = code[self.company.roll(|_, dice| dice.usize(..code.len()))];
                Err((400, code, "the order is paid".into()))
            }
        }
    }

    fn refund(&self, body: &Value) -> Result<Value, Refusal> {
        known_letters(body)?;
        let number =
            body["out_refund_no"].as_str().filter(|number| (1..=64).contains(&number.len()));
        let number = number.ok_or_else(|| wrong("out_refund_no has 1 to 64 characters"))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-|*@".contains(c);
        if !number.chars().all(plain) {
            return Err(wrong("out_refund_no has letters and digits"));
        }
        if body["reason"].as_str().is_some_and(|reason| reason.chars().count() > 80) {
            return Err(wrong("reason has at most 80 characters"));
        }
        let amount = &body["amount"];
        let (sum, total) = (amount["refund"].as_i64(), amount["total"].as_i64());
        let (Some(sum), Some(total)) = (sum, total) else {
            return Err(wrong("amount.refund and amount.total are whole numbers of fen"));
        };
        if amount["currency"] != "CNY" {
            return Err(wrong("amount.currency is CNY"));
        }
        let now_ms = calendar::now_ms();
        let done_ms = now_ms + self.company.roll(|faults, dice| faults.refund_after_ms(dice));
        let mut accounts = self.company.accounts();
        let charge = match (body["transaction_id"].as_str(), body["out_trade_no"].as_str()) {
            (Some(txn), None) => accounts.charge_by_txn(txn),
            (None, Some(no)) => accounts.charge_of(no, now_ms),
            (Some(txn), Some(no)) => {
                let found = accounts.charge_by_txn(txn);
                found.filter(|&at| accounts.charge(at).order_no == no)
            }
            (None, None) => return Err(wrong("transaction_id or out_trade_no is missing")),
        };
        if charge.is_some_and(|at| accounts.charge(at).amount != total) {
            return Err(wrong("amount.total is not what was paid"));
        }
        let asked = accounts.refund("50", charge, (number, sum), (now_ms, done_ms));
        let (refund, is_new) = asked.map_err(|refusal| match refusal {
            RefundRefusal::NoSuchCharge => {
                (404, "RESOURCE_NOT_EXISTS", "there is no such payment".to_owned())
            }
            RefundRefusal::OtherUnderThisNumber => {
                (400, "INVALID_REQUEST", "the number stands for another refund".into())
            }
            RefundRefusal::MoreThanWasPaid => {
                (403, "INVALID_REQUEST", "more than was paid is asked for".into())
            }
        })?;
        let told = charge.map(|at| refund_json(accounts.charge(at), &refund)).unwrap_or_default();
        drop(accounts);
        if is_new && body["notify_url"].is_string() {
            self.company.tell(News::Refunded { number: number.into(), after_ms: done_ms - now_ms });
        }
        Ok(told)
    }

    fn certificates(&self) -> Result<Value, Refusal> {
        let platform = locked(&self.platform);
        let mut data = Vec::new();
        for one in &platform.certificates {
            let pem = one.pem().map_err(|error| (500, "SYSTEM_ERROR", error.to_string()))?;
            data.push(json!({"serial_no": one.serial,
                "effective_time": calendar::with_zone(calendar::now_ms()),
                "expire_time": calendar::with_zone(calendar::now_ms() + 30 * 86_400_000),
                "encrypt_certificate": self.encrypt(&pem, "certificate")}));
        }
        Ok(json!({ "data": data }))
    }

    fn day_of_bill(&self, query: &[(String, String)]) -> Result<String, Refusal> {
        let date = query.iter().find(|(name, _)| name == "bill_date");
        let date = date.map(|(_, date)| date.clone()).unwrap_or_default();
        if calendar::from_plain(&format!("{date} 00:00:00")).is_none() {
            return Err(wrong("bill_date is a day"));
        }
        if date >= calendar::date(calendar::now_ms()) {
            return Err((400, "INVALID_REQUEST", "the bill of that day is not there yet".into()));
        }
        Ok(date)
    }

    fn bytes_of_bill(&self, date: &str, zipped: bool) -> Result<Vec<u8>, Refusal> {
        let accounts = self.company.accounts();
        let text = bills::wechat(accounts.charges(), date, &self.appid, &self.mchid);
        let text =
            text.ok_or_else(|| (400, "NO_STATEMENT_EXIST", "nothing moved that day".to_owned()))?;
        if !zipped {
            return Ok(text.into_bytes());
        }
        bills::gzip(text.as_bytes()).map_err(|error| (500, "SYSTEM_ERROR", error.to_string()))
    }

    fn bill(&self, request: &Request) -> Result<Value, Refusal> {
        let query = fields(request.query());
        let date = self.day_of_bill(&query)?;
        let zipped = query.contains(&("tar_type".into(), "GZIP".into()));
        // The hash is always that of the text.
        let text = self.bytes_of_bill(&date, false)?;
        let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &text);
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let address = self.company.address;
        let token = format!("bill_date={date}&zipped={zipped}");
        let url = format!("http://{address}/v3/billdownload/file?{token}");
        Ok(json!({"hash_type": "SHA1", "hash_value": hash, "download_url": url}))
    }

    /// A file is not signed: its hash was.
    fn download(&self, request: &Request) -> Result<Answer, Refusal> {
        let query = fields(request.query());
        let zipped = query.contains(&("zipped".into(), "true".into()));
        let bytes = self.bytes_of_bill(&self.day_of_bill(&query)?, zipped)?;
        Ok(Answer::new(200, "application/octet-stream", bytes))
    }
}

pub(super) fn refund_json(charge: &Charge, refund: &Refund) -> Value {
    let done = refund.done_ms <= calendar::now_ms();
    let mut told = json!({"refund_id": refund.id, "out_refund_no": refund.number,
        "transaction_id": charge.txn, "out_trade_no": charge.order_no, "channel": "ORIGINAL",
        "user_received_account": "支付用户零钱", "create_time": calendar::with_zone(refund.asked_ms),
        "status": match refund.stuck {
            Some(Stuck::Abnormal) => "ABNORMAL",
            Some(Stuck::Closed) => "CLOSED",
            None if done => "SUCCESS",
            None => "PROCESSING",
        },
        "amount": {"total": charge.amount, "refund": refund.amount, "payer_total": charge.amount,
            "payer_refund": refund.amount, "currency": "CNY"}});
    if done {
        told["success_time"] = json!(calendar::with_zone(refund.done_ms));
    }
    told
}

/// It knows letters of one to three bytes.
fn known_letters(body: &Value) -> Result<(), Refusal> {
    let known = body.to_string().chars().all(|c| c.len_utf8() <= 3);
    if known { Ok(()) } else { Err(wrong("a letter of more than three bytes")) }
}

fn wrong(message: &str) -> Refusal {
    (400, "PARAM_ERROR", message.to_owned())
}
