//! Alipay's gateway.
//!
//! **Requests** are forms (or, for pages, addresses that a browser opens) with a `sign`: the application's
//! signature over all other fields that are not empty, sorted by name, as `name=value` joined by `&`.
//! **Answers** are JSON with one node for the method and a `sign` over the very text of that node.
//! **Notices** are forms signed likewise, without `sign` and `sign_type`; the shop answers exactly `success`.
//! With certificates the request names its own and the root by their *SN*, and the answer names Alipay's.
//!
//! A trade does not exist before a buyer looks at it: closing it is then answered by "there is no such
//! trade", and yet it can be paid afterwards, until its time is over.

mod desk;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use self::desk::Refusal;
use super::{
    Asked, Company, Forgery, Notice, Paying, Protocol, StandIn, Told,
    bills::yuan,
    calendar,
    http::{Answer, Request, fields, form},
    keys::{Certified, KeyPair, curve_certificate},
    locked,
    news::{News, corrupted},
};

const OWN_SUBJECT: &str =
    "/C=CN/O=Ant Financial/CN=Ant Financial Certification Authority Class 2 R1";

pub struct Alipay {
    company: Company,
    folder: PathBuf,
    pub app_id: String,
    pub seller_id: String,
    /// Roots, of which one is not of RSA and does not count.
    pub root_file: PathBuf,
    root: Certified,
    root_sn: String,
    /// The application's, newest last.
    apps: Mutex<Vec<Named>>,
    /// Alipay's own, newest last; signs.
    own: Mutex<Vec<Named>>,
    stranger: KeyPair,
}

/// A certificate with its SN.
#[derive(Clone)]
struct Named {
    sn: String,
    certified: Arc<Certified>,
}

/// Fields of a request.
type Fields = BTreeMap<String, String>;

impl Alipay {
    /// The application's newest key and certificate.
    pub fn app(&self) -> Arc<Certified> {
        newest(&self.apps).certified
    }

    /// A new key and certificate of the application's. The old ones are good until they are forgotten.
    pub fn rotate_app(&self) -> io::Result<Arc<Certified>> {
        self.add("app", &self.apps, "/C=CN/O=Merchant/CN=2088")?;
        Ok(self.app())
    }

    /// Only the newest key of the application's is believed from now on.
    pub fn forget_old_apps(&self) {
        let mut apps = locked(&self.apps);
        let old = apps.len().saturating_sub(1);
        apps.drain(..old);
    }

    /// The key and certificate by which Alipay signs.
    pub fn own(&self) -> Arc<Certified> {
        newest(&self.own).certified
    }

    /// Alipay signs with another key from now on. The old certificate can still be fetched.
    pub fn rotate_own(&self) -> io::Result<Arc<Certified>> {
        self.add("alipay", &self.own, "/C=CN/O=Alipay/CN=Alipay signs")?;
        Ok(self.own())
    }

    fn add(&self, kind: &str, to: &Mutex<Vec<Named>>, subject: &str) -> io::Result<()> {
        let mut all = locked(to);
        let name = format!("{kind}{}", fastrand::u32(..));
        let made = Certified::make(&self.folder, &name, subject, Some(&self.root))?;
        all.push(Named { sn: made.sn()?, certified: Arc::new(made) });
        Ok(())
    }

    /// The fields, if the application signed them. Answers also whether it named its certificate.
    fn check(&self, request: &Request) -> Result<(Fields, bool), Refusal> {
        let form = String::from_utf8_lossy(&request.body);
        let all: Fields = fields(request.query()).into_iter().chain(fields(&form)).collect();
        let bad = |sub: &'static str, message: &str| ("40002", sub, message.to_owned());
        let field = |name: &str| all.get(name).map_or("", String::as_str);
        if field("app_id") != self.app_id {
            return Err(bad("isv.invalid-app-id", "no such application"));
        }
        if field("sign_type") != "RSA2" {
            return Err(bad("isv.invalid-signature-type", "sign_type is RSA2"));
        }
        if !field("charset").eq_ignore_ascii_case("utf-8") || field("version") != "1.0" {
            return Err(bad("isv.invalid-charset", "charset is utf-8, version is 1.0"));
        }
        if !matches!(field("format"), "" | "JSON" | "json") {
            return Err(bad("isv.invalid-format", "format is JSON"));
        }
        if calendar::from_plain(field("timestamp")).is_none() {
            return Err(bad("isv.invalid-timestamp", "timestamp is a time of China"));
        }
        let message = to_sign(all.iter().filter(|(name, _)| *name != "sign"));
        let believed = |app: &Named| app.certified.key.verify(message.as_bytes(), field("sign"));
        let apps = locked(&self.apps).clone();
        let by_certificate = all.contains_key("app_cert_sn");
        let good = match all.get("app_cert_sn") {
            Some(sn) => {
                if field("alipay_root_cert_sn") != self.root_sn {
                    return Err(bad("isv.invalid-alipay-root-cert-sn", "not that root"));
                }
                apps.iter().any(|app| app.sn == *sn && believed(app))
            }
            None => apps.iter().any(believed),
        };
        if !good {
            return Err(bad("isv.invalid-signature", "the signature is not over these fields"));
        }
        Ok((all, by_certificate))
    }

    /// One node and the signature over its text. Slashes are escaped, as the real ones do, which sign now
    /// the text with the escapes and now the one without.
    fn node(&self, method: &str, node: &Value, by_certificate: bool, signed: bool) -> Answer {
        let name = format!("{}_response", method.replace('.', "_"));
        let plain = node.to_string();
        let node = plain.replace('/', "\\/");
        let own = newest(&self.own);
        let over = if self.company.roll(|_, dice| dice.bool()) { &node } else { &plain };
        let mut parts = vec![format!("\"{name}\":{node}")];
        if by_certificate {
            parts.push(format!("\"alipay_cert_sn\":\"{}\"", own.sn));
        }
        if signed {
            let sign = own.certified.key.sign(over.as_bytes());
            parts.push(format!("\"sign\":\"{sign}\""));
        }
        Answer::new(200, "text/html;charset=utf-8", format!("{{{}}}", parts.join(",")))
    }

    /// Everything that is asked comes here, from the shop or from a browser.
    fn ask(&self, request: &Request) -> Result<Answer, (String, bool, Refusal)> {
        let method_of = |all: &Fields| all.get("method").cloned().unwrap_or_default();
        let named: Fields = fields(request.query())
            .into_iter()
            .chain(fields(&String::from_utf8_lossy(&request.body)))
            .collect();
        let method = method_of(&named);
        let failed = |by, refusal| (method.clone(), by, refusal);
        let (all, by_certificate) = self.check(request).map_err(|why| failed(false, why))?;
        let done = self.route(&method, &all).map_err(|why| failed(by_certificate, why))?;
        if method.ends_with("page.pay") || method.ends_with("wap.pay") {
            let content: Value = all
                .get("biz_content")
                .and_then(|content| serde_json::from_str(content).ok())
                .unwrap_or_default();
            let back = all.get("return_url").map_or("", String::as_str);
            return Ok(self.page(content["out_trade_no"].as_str().unwrap_or_default(), back));
        }
        let mut node = json!({"code": "10000", "msg": "Success"});
        if let (Some(node), Some(done)) = (node.as_object_mut(), done.as_object()) {
            node.extend(done.clone());
        }
        Ok(self.node(&method, &node, by_certificate, true))
    }

    /// What a browser sees at the address of a page. From then on there is a trade.
    fn page(&self, order_no: &str, back: &str) -> Answer {
        if let Some(trade) = self.company.accounts().trade_mut(order_no) {
            trade.visited = true;
        }
        let address = form(&[("order".into(), order_no.into()), ("back".into(), back.into())]);
        let page = format!(
            "<!doctype html><meta charset=utf-8><title>Alipay</title><form method=post \
             action=\"/cashier?{address}\"><button id=pay>Pay {order_no}</button></form>"
        );
        Answer::new(200, "text/html;charset=utf-8", page)
    }

    /// The buyer presses the button of the page, and is sent back to the shop.
    fn pay_at_the_page(&self, request: &Request) -> Answer {
        let asked: Fields = fields(request.query()).into_iter().collect();
        let of = |name: &str| asked.get(name).cloned().unwrap_or_default();
        let (order_no, back) = (&of("order"), of("back"));
        match self.company.pay(Self::TXN_PREFIX, order_no, Paying::Now) {
            Ok(()) => {
                let mut answer = Answer::new(303, "text/plain", "");
                answer.headers.push(("location".into(), back));
                answer
            }
            Err(why) => Answer::new(409, "text/plain", why),
        }
    }

    /// Another way to write the same, such as %3a for %3A, corrupts nothing.
    fn corrupted_form(&self, body: &[u8]) -> Vec<u8> {
        let read = |body: &[u8]| fields(&String::from_utf8_lossy(body));
        loop {
            let other = self.company.roll(|_, dice| corrupted(body.to_vec(), dice));
            if read(&other) != read(body) {
                return other;
            }
        }
    }

    fn event(&self, news: &News, other: bool) -> Option<(String, Fields)> {
        let (accounts, now_ms) = (self.company.accounts(), calendar::now_ms());
        let (charge, refund) = match news {
            News::Paid { charge, .. } => (accounts.charge(*charge), None),
            News::Refunded { number, .. } => {
                let (charge, refund) = accounts.refund_by_number(number)?;
                (charge, Some(refund))
            }
            News::Closed { .. } => return None,
        };
        let trade = accounts.trade(&charge.order_no)?;
        if trade.notify_url.is_empty() {
            return None;
        }
        let app_id = if other { "2021000000000000" } else { &self.app_id };
        let seller_id = if other { "2088000000000000" } else { &self.seller_id };
        let mut said: Vec<(&str, String)> = vec![
            ("notify_time", calendar::plain(now_ms)),
            ("notify_type", "trade_status_sync".into()),
            ("notify_id", format!("{:032x}", fastrand::u128(..))),
            ("app_id", app_id.into()),
            ("auth_app_id", app_id.into()),
            ("charset", "utf-8".into()),
            ("version", "1.0".into()),
            ("trade_no", charge.txn.clone()),
            ("out_trade_no", charge.order_no.clone()),
            ("buyer_id", "2088101117955611".into()),
            ("seller_id", seller_id.into()),
            ("total_amount", yuan(charge.amount)),
            ("receipt_amount", yuan(charge.amount)),
            ("invoice_amount", yuan(charge.amount)),
            ("buyer_pay_amount", yuan(charge.amount)),
            ("point_amount", "0.00".into()),
            ("subject", trade.subject.clone()),
            ("gmt_create", calendar::plain(trade.made_ms)),
            ("gmt_payment", calendar::plain(charge.at_ms)),
            ("fund_bill_list", "[{\"amount\":\"0.01\",\"fundChannel\":\"PCREDIT\"}]".into()),
        ];
        match refund {
            None => said.push(("trade_status", "TRADE_SUCCESS".into())),
            Some(refund) => {
                let done = charge.refunds.iter().filter(|one| one.done_ms <= now_ms);
                let sum: i64 = done.map(|one| one.amount).sum();
                let whole = sum == charge.amount;
                let status = if whole { "TRADE_CLOSED" } else { "TRADE_SUCCESS" };
                said.push(("trade_status", status.into()));
                said.push(("refund_fee", yuan(sum)));
                said.push(("gmt_refund", format!("{}.000", calendar::plain(refund.done_ms))));
                said.push(("out_biz_no", refund.number.clone()));
            }
        }
        let fields = said.into_iter().map(|(name, value)| (name.to_owned(), value));
        Some((trade.notify_url.clone(), fields.collect()))
    }
}

impl StandIn<Alipay> {
    /// A buyer's browser opens the address of a page: the same as a request of the shop's. Answers the order.
    pub fn visit(&self, url: &str) -> Result<String, String> {
        let target = url.strip_prefix(&self.url()).ok_or(format!("{url} is not Alipay's"))?;
        let request = Request { method: "GET".into(), target: target.into(), ..Request::default() };
        let failed = |(_, _, (_, sub, message)): (String, bool, Refusal)| {
            self.company.complain(format!("GET {target}: {sub} {message}"));
            format!("{sub} {message}")
        };
        self.ask(&request).map_err(failed)?;
        let content = fields(request.query()).into_iter().find(|(name, _)| name == "biz_content");
        let content: Value =
            content.and_then(|(_, text)| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok(content["out_trade_no"].as_str().unwrap_or_default().to_owned())
    }
}

fn newest(all: &Mutex<Vec<Named>>) -> Named {
    locked(all).last().cloned().expect("there is always one")
}

/// Sorted by name, without what is empty.
fn to_sign<'a>(fields: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let pairs: Vec<String> = fields
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    pairs.join("&")
}

impl Protocol for Alipay {
    const TXN_PREFIX: &'static str = "2026";

    fn make(folder: &Path, company: Company) -> io::Result<Alipay> {
        let root = Certified::make(folder, "root", OWN_SUBJECT, None)?;
        let root_file = folder.join("roots.pem");
        fs::write(&root_file, format!("{}\n{}", curve_certificate(folder)?, root.pem()?))?;
        let alipay = Alipay {
            company,
            folder: folder.to_owned(),
            app_id: format!("2021{:012}", fastrand::u64(..1_000_000_000_000)),
            seller_id: format!("2088{:012}", fastrand::u64(..1_000_000_000_000)),
            root_sn: root.sn()?,
            root,
            root_file,
            apps: Mutex::default(),
            own: Mutex::default(),
            stranger: KeyPair::make(folder, "stranger")?,
        };
        alipay.rotate_app()?;
        alipay.rotate_own()?;
        Ok(alipay)
    }

    fn company(&self) -> &Company {
        &self.company
    }

    fn serve(&self, asked: &Asked) -> Told {
        let request = &asked.0;
        match request.path() {
            "/gateway.do" => {}
            "/downloadBillFile.resource" => return Told(self.download(request)),
            "/cashier" => return Told(self.pay_at_the_page(request)),
            _ => return Told(Answer::new(404, "text/html", "not found")),
        }
        Told(self.ask(request).unwrap_or_else(|(method, by_certificate, refusal)| {
            let (code, sub_code, message) = refusal;
            let ours = code == "40002" || sub_code == "ACQ.INVALID_PARAMETER";
            if ours {
                self.company.complain(format!("{method}: {sub_code} {message}"));
            }
            let node =
                json!({"code": code, "msg": "Failed", "sub_code": sub_code, "sub_msg": message});
            // What is refused at the door is not signed.
            self.node(&method, &node, by_certificate, code != "40002")
        }))
    }

    fn out_of_order(&self, asked: &Asked) -> Told {
        let all: Fields = fields(&String::from_utf8_lossy(&asked.0.body)).into_iter().collect();
        let method = all.get("method").cloned().unwrap_or_default();
        let (code, sub_code) = match self.company.roll(|_, dice| dice.u8(..4)) {
            0 => ("40005", "isv.app-call-limited"),
            1 => return Told(Answer::new(502, "text/html", "<html>502 Bad Gateway</html>")),
            2 => ("40004", "ACQ.SYSTEM_ERROR"),
            _ => ("20000", "isp.unknow-error"),
        };
        let node = json!({"code": code, "msg": "Later", "sub_code": sub_code, "sub_msg": "later"});
        Told(self.node(&method, &node, all.contains_key("app_cert_sn"), true))
    }

    fn forged(&self, mut told: Told) -> Told {
        let text = String::from_utf8_lossy(&told.0.body).into_owned();
        if let Some(at) = text.find("\"sign\":\"") {
            let sign = self.stranger.sign(b"something else");
            told.0.body = format!("{}\"sign\":\"{sign}\"}}", &text[..at]).into_bytes();
        }
        told
    }

    fn notice(&self, news: &News, forgery: Option<Forgery>) -> Option<Notice> {
        let (url, mut said) = self.event(news, forgery == Some(Forgery::OtherMerchant))?;
        let message = to_sign(said.iter());
        let sign = match forgery {
            // Notices have no window: an old one is as good as a new one. So it is a stranger's instead.
            Some(Forgery::Stranger | Forgery::Stale) => self.stranger.sign(message.as_bytes()),
            Some(Forgery::Probe) => STANDARD.encode([7; 256]),
            _ => newest(&self.own).certified.key.sign(message.as_bytes()),
        };
        said.insert("sign".into(), sign);
        said.insert("sign_type".into(), "RSA2".into());
        let body = form(&said.into_iter().collect::<Vec<_>>()).into_bytes();
        let body = match forgery {
            Some(Forgery::Corrupted) => self.corrupted_form(&body),
            _ => body,
        };
        let kind = "application/x-www-form-urlencoded; text/html; charset=utf-8";
        let headers = vec![("Content-Type".into(), kind.into())];
        Some(Notice { url, headers, body })
    }

    /// The word and nothing else.
    fn is_taken(&self, status: u16, body: &[u8]) -> bool {
        status == 200 && body == b"success"
    }
}
