//! What a shop tells us of its merchant account at WeChat Pay.

use std::path::PathBuf;

use sale::Secret;
use serde::{Deserialize, Serialize};

use crate::PayMethod;

/// How many bytes the key has that WeChat seals its notices with.
pub(super) const API_KEY_BYTES: usize = 32;
pub(super) const PUBLIC_KEY_PREFIX: &str = "PUB_KEY_ID_";

/// The section `[payment.wechat]`; `default.toml` says what each key is. Off while `merchant_id` is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WechatSettings {
    pub merchant_id: String,
    pub app_id: String,
    pub methods: Vec<PayMethod>,
    pub private_key_file: PathBuf,
    pub certificate_file: PathBuf,
    pub certificate_serial: String,
    pub api_v3_key: Secret,
    pub api_v3_key_file: PathBuf,
    pub public_keys: Vec<String>,
    pub platform_certificates_file: PathBuf,
    pub base_url: String,
    pub ca_file: PathBuf,
}

impl Default for WechatSettings {
    fn default() -> Self {
        WechatSettings {
            merchant_id: String::new(),
            app_id: String::new(),
            methods: vec![PayMethod::Qr],
            private_key_file: PathBuf::new(),
            certificate_file: PathBuf::new(),
            certificate_serial: String::new(),
            api_v3_key: Secret::default(),
            api_v3_key_file: PathBuf::new(),
            public_keys: Vec::new(),
            platform_certificates_file: PathBuf::new(),
            base_url: "https://api.mch.weixin.qq.com".into(),
            ca_file: PathBuf::new(),
        }
    }
}

impl WechatSettings {
    pub fn is_on(&self) -> bool {
        !self.merchant_id.is_empty()
    }

    /// What is missing or contradicts itself, one sentence each. Files are not looked at.
    pub fn problems(&self) -> Vec<String> {
        let set = |path: &PathBuf| !path.as_os_str().is_empty();
        if !self.is_on() {
            let stray = *self != (WechatSettings { merchant_id: String::new(), ..Self::default() });
            let why = "payment.wechat.merchant_id is empty, and other keys of the section are set";
            return stray.then(|| why.to_owned()).into_iter().collect();
        }
        let mut problems = Vec::new();
        let mut must = |holds: bool, problem: &str| {
            if !holds {
                problems.push(format!("payment.wechat.{problem}"));
            }
        };
        let digits = self.merchant_id.bytes().all(|byte| byte.is_ascii_digit());
        must(digits, "merchant_id must be the number of the merchant (mchid)");
        must(
            !self.app_id.is_empty(),
            "app_id is empty: name the app that the merchant is bound to",
        );
        must(!self.methods.is_empty(), "methods is empty: name some of qr, phone, app");
        let known = |method: &PayMethod| *method != PayMethod::Page;
        must(self.methods.iter().all(known), "methods: WeChat Pay has qr, phone and app");
        must(set(&self.private_key_file), "private_key_file is empty: name apiclient_key.pem");
        must(
            set(&self.certificate_file) == self.certificate_serial.is_empty(),
            "certificate_file (apiclient_cert.pem) or certificate_serial: set one of the two",
        );
        must(
            self.api_v3_key.is_empty() == set(&self.api_v3_key_file),
            "api_v3_key or api_v3_key_file: set one of the two",
        );
        let key = self.api_v3_key.expose();
        must(key.is_empty() || key.len() == API_KEY_BYTES, "api_v3_key must have 32 bytes");
        for named in &self.public_keys {
            must(
                public_key(named).is_some(),
                "public_keys: write each as PUB_KEY_ID_…=path/of/pub_key.pem",
            );
        }
        problems
    }
}

/// A name and a file, of `PUB_KEY_ID_0114…=pub_key.pem`.
pub(super) fn public_key(named: &str) -> Option<(&str, PathBuf)> {
    let (id, file) = named.split_once('=')?;
    let good = id.starts_with(PUBLIC_KEY_PREFIX) && !file.trim().is_empty();
    good.then(|| (id.trim(), PathBuf::from(file.trim())))
}
