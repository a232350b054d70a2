//! Asking Alipay: one address, the question among the parameters of a form.
//!
//! An answer is JSON with two things in it: a node named after the question, and a signature over the very
//! letters of that node. So the letters are kept until the signature has proved them.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use outgoing::{Call, Caller, Reach, Target};
use sale::SharedClock;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{
    settings::AlipaySettings,
    signing::{Keys, Parameters, key_files, of_request},
};
use crate::{ProviderError, beijing, caller_to, key_files::KeyFiles};

/// One question. The engine's own limit is a little longer, so that the reason is ours to tell.
const ANSWER_WITHIN: Duration = Duration::from_secs(9);
const ANSWER_BYTES_MAX: usize = 256 * 1024;
const BILL_WITHIN: Duration = Duration::from_secs(100);
const BILL_BYTES_MAX: usize = 64 << 20;
const DONE: &str = "10000";
/// Alipay does not know itself.
const UNKNOWN: &str = "20000";

pub(super) struct Gateway {
    app_id: String,
    base_url: String,
    caller: Caller,
    clock: SharedClock,
    keys: KeyFiles<Keys>,
}

/// How Alipay says no.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Refusal {
    code: String,
    msg: String,
    pub(super) sub_code: String,
    sub_msg: String,
}

impl Refusal {
    /// Faults of Alipay's own say nothing of what was asked for.
    fn is_unknown(&self) -> bool {
        let fault = self.sub_code.contains("SYSTEM_ERROR") || self.sub_code.starts_with("aop.");
        let unknown = self.sub_code.starts_with("isp.unknow");
        self.code == UNKNOWN || self.code.is_empty() || fault || unknown
    }

    pub(super) fn into_error(self) -> ProviderError {
        let words = self.words();
        if self.is_unknown() {
            ProviderError::Unavailable(words)
        } else {
            ProviderError::Refused(words)
        }
    }

    pub(super) fn words(&self) -> String {
        let Refusal { code, msg, sub_code, sub_msg } = self;
        let words = format!("{code} {msg} {sub_code} {sub_msg}");
        words.chars().filter(|c| !c.is_control()).take(200).collect()
    }
}

impl Gateway {
    /// Every mistake in a sentence, if something cannot be used.
    pub(super) fn open(
        settings: &AlipaySettings,
        clock: SharedClock,
    ) -> Result<Gateway, Vec<String>> {
        let mut problems = Vec::new();
        let mut note = |problem: String| problems.push(problem);
        let caller = caller_to(&settings.ca_file).map_err(&mut note).ok();
        let keys = key_files(settings, clock.clone()).map_err(&mut note).ok();
        if settings.base_url.parse::<Target>().is_err() {
            note("payment.alipay.base_url is no address that can be called".into());
        }
        match (caller, keys) {
            (Some(caller), Some(keys)) if problems.is_empty() => {
                let (app_id, base_url) = (settings.app_id.clone(), settings.base_url.clone());
                Ok(Gateway { app_id, base_url, caller, clock, keys })
            }
            _ => Err(problems),
        }
    }

    pub(super) fn keys(&self) -> std::sync::Arc<Keys> {
        self.keys.now()
    }

    #[cfg(test)]
    pub(super) fn look_again(&self) {
        self.keys.look_again();
    }

    /// A question with its signature.
    pub(super) fn signed(
        &self,
        method: &str,
        more: &[(&str, &str)],
        about: &Value,
    ) -> Result<Parameters, ProviderError> {
        let keys = self.keys();
        let mut parameters = Parameters::new();
        let mut set = |name: &str, value: String| parameters.insert(name.to_owned(), value);
        for (name, value) in [
            ("app_id", self.app_id.as_str()),
            ("method", method),
            ("format", "JSON"),
            ("charset", "utf-8"),
            ("sign_type", "RSA2"),
            ("timestamp", &beijing::plain(self.clock.now_ms())),
            ("version", "1.0"),
            ("biz_content", &about.to_string()),
        ] {
            set(name, value.to_owned());
        }
        if let Some((app, root)) = &keys.serials {
            set("app_cert_sn", app.clone());
            set("alipay_root_cert_sn", root.clone());
        }
        for (name, value) in more.iter().filter(|(_, value)| !value.is_empty()) {
            set(name, (*value).to_owned());
        }
        let signature = keys.own.sign(of_request(&parameters).as_bytes()).map_err(unknown)?;
        parameters.insert("sign".into(), signature);
        Ok(parameters)
    }

    /// Where a buyer's browser goes with a question.
    pub(super) fn address(&self, parameters: &Parameters) -> String {
        format!("{}?{}", self.base_url, form(parameters))
    }

    /// Ask, and believe the answer only with Alipay's signature over its letters.
    pub(super) async fn ask(
        &self,
        method: &str,
        more: &[(&str, &str)],
        about: &Value,
    ) -> Result<Result<Value, Refusal>, ProviderError> {
        let body = form(&self.signed(method, more, about)?);
        // How the form is to be read stands before it.
        let target = self.target(&format!("{}?charset=utf-8", self.base_url))?;
        let mut headers = HeaderMap::new();
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded;charset=utf-8");
        headers.insert(header::CONTENT_TYPE, kind);
        let call = Call {
            method: Method::POST,
            target: &target,
            reach: Reach::Anywhere,
            headers,
            body: Bytes::from(body),
            within: ANSWER_WITHIN,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        let answer = self.caller.call(&call).await.map_err(unknown)?;
        let body = answer.body.ok_or_else(|| unknown("the answer is too long"))?;
        if answer.status != 200 {
            return Err(unknown(format!("status {}", answer.status)));
        }
        let text = std::str::from_utf8(&body).map_err(unknown)?;
        let node = self.believed(&method.replace('.', "_"), text)?;
        let outcome: Refusal = serde_json::from_str(node).map_err(unknown)?;
        if outcome.code == DONE {
            return serde_json::from_str(node).map(Ok).map_err(unknown);
        }
        if outcome.is_unknown() {
            return Err(unknown(outcome.words()));
        }
        Ok(Err(outcome))
    }

    /// The letters of the node, if Alipay signed them.
    fn believed<'t>(&self, method: &str, text: &'t str) -> Result<&'t str, ProviderError> {
        let parts: HashMap<String, &RawValue> = serde_json::from_str(text).map_err(unknown)?;
        let node = parts.get(&format!("{method}_response"));
        let node = node.or_else(|| parts.get("error_response")).map(|node| node.get());
        let node = node.ok_or_else(|| unknown("an answer without what was asked for"))?;
        let word = |name: &str| {
            let raw = parts.get(name)?;
            serde_json::from_str::<String>(raw.get()).ok()
        };
        let keys = self.keys();
        let named = word("alipay_cert_sn");
        let signature = word("sign").unwrap_or_default();
        // With certificates Alipay names the one it signs with.
        let nameless = keys.serials.is_some() && named.is_none();
        let now_ms = self.clock.now_ms();
        let good = |text: &str| keys.verify(text, &signature, named.as_deref(), now_ms);
        // Of some answers Alipay signs the text before it escapes the slashes in it, as its own libraries
        // know. The letters mean the same either way.
        if nameless || !(good(node) || good(&node.replace("\\/", "/"))) {
            let said: Refusal = serde_json::from_str(node).unwrap_or_default();
            let with = named.map(|name| format!(" (certificate {name})")).unwrap_or_default();
            let why = format!("an answer without Alipay's signature{with}: {}", said.words());
            return Err(unknown(why));
        }
        Ok(node)
    }

    /// A file that Alipay has named in an answer.
    pub(super) async fn download(&self, url: &str) -> Result<Bytes, ProviderError> {
        // Alipay still writes some addresses without TLS; the same machines speak it.
        let secured = url.strip_prefix("http://").filter(|rest| {
            let host = rest.split(['/', ':', '?']).next().unwrap_or_default();
            host.ends_with(".alipay.com")
        });
        let target = match secured {
            Some(rest) => self.target(&format!("https://{rest}"))?,
            None => self.target(url)?,
        };
        let call = Call {
            method: Method::GET,
            target: &target,
            reach: Reach::Anywhere,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            within: BILL_WITHIN,
            answer_bytes_max: BILL_BYTES_MAX,
        };
        let answer = self.caller.call(&call).await.map_err(unknown)?;
        match (answer.status, answer.body) {
            (200, Some(body)) => Ok(body),
            (200, None) => Err(unknown("the file is too long, or broken off")),
            (status, _) => Err(unknown(format!("status {status}"))),
        }
    }

    fn target(&self, url: &str) -> Result<Target, ProviderError> {
        url.parse().map_err(|_| unknown("an address that cannot be called"))
    }
}

pub(super) fn form(parameters: &Parameters) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish()
}

pub(super) fn unknown(why: impl std::fmt::Display) -> ProviderError {
    ProviderError::Unavailable(why.to_string())
}
