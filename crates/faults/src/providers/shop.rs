//! A shop that takes money at a cashier of its own.
//!
//! It hears our webhooks, signed as Standard Webhooks says, and tells us in the other direction with the same
//! kind of signature: `/paid`, `/refunded`, `/payment-closed`. Nobody opens a payment here: a buyer comes
//! ([`StandIn::visit`]) from the address that the shop's page was given.

use std::{io, path::Path, sync::Mutex};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::hmac;
use serde_json::{Value, json};

use super::{
    Asked, Company, Forgery, Notice, Protocol, StandIn, Told,
    accounts::Standing,
    agreed, calendar,
    http::{Answer, Request},
    locked,
    news::{News, corrupted},
};

/// A webhook is good for this long.
const WINDOW_S: i64 = 300;

pub struct Shop {
    company: Company,
    /// Signs what we send to the shop.
    pub webhook_secret: String,
    /// Signs what the shop sends to us.
    pub cashier_secret: String,
    /// Where we are: what comes before `/api/v1`.
    base: Mutex<String>,
}

impl Shop {
    /// Where the shop's webhooks go.
    pub fn webhook_path(&self) -> &'static str {
        "/hooks/money"
    }

    fn check(&self, request: &Request) -> Result<Value, String> {
        let header = |name: &str| request.header(name).ok_or(format!("there is no {name}"));
        let (id, time) = (header("webhook-id")?, header("webhook-timestamp")?);
        let at_s: i64 = time.parse().map_err(|_| "the timestamp is no number")?;
        if (calendar::now_ms() / 1_000 - at_s).abs() > WINDOW_S {
            return Err("the timestamp is not of now".into());
        }
        let message = [format!("{id}.{time}.").as_bytes(), &request.body].concat();
        let signatures = header("webhook-signature")?;
        let good = signatures.split(' ').any(|one| {
            let code = one.strip_prefix("v1,").and_then(|code| STANDARD.decode(code).ok());
            code.is_some_and(|code| {
                hmac::verify(&key(&self.webhook_secret), &message, &code).is_ok()
            })
        });
        if !good {
            return Err("no signature is over this body".into());
        }
        serde_json::from_slice(&request.body).map_err(|error| error.to_string())
    }

    /// Nobody can pay any more, unless somebody just did.
    fn close(&self, data: &Value) {
        let no = data["order_no"].as_str().unwrap_or_default();
        let now_ms = calendar::now_ms();
        let mut accounts = self.company.accounts();
        accounts.open(agreed(no, data["amount"].as_i64().unwrap_or_default(), ""));
        let closed = accounts.close(Self::TXN_PREFIX, no, now_ms);
        let Some((standing, charge)) = closed else { return };
        let lands = charge.map(|charge| (charge, accounts.charge(charge).at_ms - now_ms));
        let paid = accounts.charge_of(no, now_ms);
        drop(accounts);
        if let Some((charge, after_ms)) = lands {
            self.company.tell(News::Paid { charge, after_ms, doubled: false });
        }
        match (standing, paid) {
            (Standing::Paid(_) | Standing::Refunded(_), Some(charge)) => {
                self.company.tell(News::Paid { charge, after_ms: 0, doubled: false });
            }
            _ => self.company.tell(News::Closed { order_no: no.into() }),
        }
    }

    fn refund(&self, data: &Value) {
        let txn = data["transaction_id"].as_str().unwrap_or_default();
        let amount = data["amount"].as_i64().unwrap_or_default();
        let now_ms = calendar::now_ms();
        let after_ms = self.company.roll(|faults, dice| faults.refund_after_ms(dice));
        let mut accounts = self.company.accounts();
        let charge = accounts.charge_by_txn(txn);
        // One refund for each charge, whoever asks how often.
        let times = (now_ms, now_ms + after_ms);
        let asked = accounts.refund("R", charge, (txn, amount), times);
        drop(accounts);
        match asked {
            Ok(_) => self.company.tell(News::Refunded { number: txn.into(), after_ms }),
            Err(refusal) => self.company.complain(format!("refund of {txn}: {refusal:?}")),
        }
    }
}

impl StandIn<Shop> {
    /// Where we are from now on, such as `http://127.0.0.1:8080`.
    pub fn tells(&self, base: &str) {
        *locked(&self.base) = base.to_owned();
    }

    /// A buyer comes to the shop's cashier.
    pub fn visit(&self, order_no: &str, amount: i64) {
        self.agree(order_no, amount, "");
    }
}

fn key(secret: &str) -> hmac::Key {
    let secret = STANDARD.decode(secret.trim_start_matches("whsec_"));
    hmac::Key::new(hmac::HMAC_SHA256, &secret.expect("a secret is base64"))
}

fn secret() -> String {
    let bytes: Vec<u8> = (0..32).map(|_| fastrand::u8(..)).collect();
    format!("whsec_{}", STANDARD.encode(bytes))
}

impl Protocol for Shop {
    const TXN_PREFIX: &'static str = "T-";

    fn make(_folder: &Path, company: Company) -> io::Result<Shop> {
        let (webhook_secret, cashier_secret) = (secret(), secret());
        Ok(Shop { company, webhook_secret, cashier_secret, base: Mutex::default() })
    }

    fn company(&self) -> &Company {
        &self.company
    }

    fn serve(&self, asked: &Asked) -> Told {
        match self.check(&asked.0) {
            Err(why) => {
                self.company.complain(format!("a webhook: {why}"));
                return Told(Answer::new(401, "text/plain", why));
            }
            Ok(event) => match event["type"].as_str() {
                Some("payment.close_requested") => self.close(&event["data"]),
                Some("payment.refund_requested") => self.refund(&event["data"]),
                _ => {}
            },
        }
        Told(Answer::new(204, "text/plain", ""))
    }

    fn out_of_order(&self, _asked: &Asked) -> Told {
        Told(Answer::new(503, "text/html", "<html>deploying</html>"))
    }

    fn forged(&self, told: Told) -> Told {
        told
    }

    fn notice(&self, news: &News, forgery: Option<Forgery>) -> Option<Notice> {
        let accounts = self.company.accounts();
        let money =
            |txn: &str, sum: i64| json!({"transaction_id": txn, "amount": sum, "currency": "CNY"});
        let (no, verb, mut body) = match news {
            News::Paid { charge, .. } => {
                let charge = accounts.charge(*charge);
                let mut body = money(&charge.txn, charge.amount);
                body["paid_at"] = json!(charge.at_ms);
                (charge.order_no.clone(), "paid", body)
            }
            News::Refunded { number, .. } => {
                let (charge, refund) = accounts.refund_by_number(number)?;
                let mut body = money(&charge.txn, refund.amount);
                body["refunded_at"] = json!(refund.done_ms);
                (charge.order_no.clone(), "refunded", body)
            }
            News::Closed { order_no } => {
                (order_no.clone(), "payment-closed", json!({"closed_at": calendar::now_ms()}))
            }
        };
        drop(accounts);
        // A signature does not cover the address: the order stands in the body as well.
        let named = match forgery {
            Some(Forgery::OtherMerchant) => "SK1".to_owned(),
            _ => no.clone(),
        };
        body["order_no"] = json!(named);
        let url = format!("{}/api/v1/orders/{no}/{verb}", locked(&self.base));
        let body = body.to_string().into_bytes();
        let age_s = if forgery == Some(Forgery::Stale) { 3_600 } else { 0 };
        let at_s = calendar::now_ms() / 1_000 - age_s;
        let id = format!("msg_{:016x}", fastrand::u64(..));
        let message = [format!("{id}.{at_s}.").as_bytes(), &body].concat();
        let secret = match forgery {
            Some(Forgery::Stranger | Forgery::Probe) => secret(),
            _ => self.cashier_secret.clone(),
        };
        let code = STANDARD.encode(hmac::sign(&key(&secret), &message));
        let body = match forgery {
            Some(Forgery::Corrupted) => self.company.roll(|_, dice| corrupted(body, dice)),
            _ => body,
        };
        let headers = [
            ("webhook-id", id),
            ("webhook-timestamp", at_s.to_string()),
            ("webhook-signature", format!("v1,{code}")),
            ("content-type", "application/json".into()),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
        Some(Notice { url, headers, body })
    }

    fn is_taken(&self, status: u16, _body: &[u8]) -> bool {
        status == 200
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Paying;

    /// HMAC-SHA256 by openssl, over the same bytes.
    fn code_by_openssl(secret: &str, message: &[u8]) -> String {
        use std::{io::Write, process::*};
        let hex: String = STANDARD
            .decode(secret.trim_start_matches("whsec_"))
            .unwrap()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let mut running = Command::new("openssl")
            .args([
                "dgst",
                "-sha256",
                "-mac",
                "HMAC",
                "-macopt",
                &format!("hexkey:{hex}"),
                "-binary",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        running.stdin.take().unwrap().write_all(message).unwrap();
        STANDARD.encode(running.wait_with_output().unwrap().stdout)
    }

    fn header(notice: &Notice, name: &str) -> String {
        notice.headers.iter().find(|(header, _)| header == name).unwrap().1.clone()
    }

    #[test]
    fn what_the_shop_says_is_signed_over_its_very_bytes() {
        let shop = StandIn::<Shop>::start(1).unwrap();
        shop.tells("http://127.0.0.1:1");
        shop.visit("SK1", 500);
        shop.pay("SK1", Paying::Now).unwrap();
        let notice = shop.notice_of("SK1", None).unwrap();
        assert_eq!(notice.url, "http://127.0.0.1:1/api/v1/orders/SK1/paid");
        let (id, time) = (header(&notice, "webhook-id"), header(&notice, "webhook-timestamp"));
        let message = [format!("{id}.{time}.").as_bytes(), &notice.body].concat();
        let code = code_by_openssl(&shop.cashier_secret, &message);
        assert_eq!(header(&notice, "webhook-signature"), format!("v1,{code}"));
        let stranger = shop.notice_of("SK1", Some(Forgery::Stranger)).unwrap();
        assert_ne!(header(&stranger, "webhook-signature"), header(&notice, "webhook-signature"));
    }

    #[test]
    fn a_webhook_is_believed_with_its_signature_and_closes_once() {
        let shop = StandIn::<Shop>::start(1).unwrap();
        let body =
            json!({"type": "payment.close_requested", "data": {"order_no": "SK1", "amount": 5}});
        let body = body.to_string().into_bytes();
        let time = (calendar::now_ms() / 1_000).to_string();
        let code = code_by_openssl(
            &shop.webhook_secret,
            &[format!("evt_1.{time}.").as_bytes(), &body].concat(),
        );
        let asked = |code: &str| {
            let headers = [
                ("webhook-id", "evt_1"),
                ("webhook-timestamp", time.as_str()),
                ("webhook-signature", code),
            ];
            let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let request =
                Request { headers: headers.into(), body: body.clone(), ..Request::default() };
            shop.serve(&Asked(request)).0.status
        };
        assert_eq!(asked("v1,AAAA"), 401);
        assert!(!shop.knows("SK1"));
        assert_eq!(asked(&format!("v1,AAAA v1,{code}")), 204, "one of several fits");
        assert!(shop.pay("SK1", Paying::Now).is_err(), "it is closed");
    }
}
