//! What a shop tells us of its app and its account at Alipay.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::PayMethod;

/// The section `[payment.alipay]`; `default.toml` says what each key is. Off while `app_id` is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlipaySettings {
    pub app_id: String,
    pub seller_id: String,
    pub methods: Vec<PayMethod>,
    pub private_key_file: PathBuf,
    pub public_key_file: PathBuf,
    pub app_certificate_file: PathBuf,
    pub alipay_certificate_file: PathBuf,
    pub root_certificate_file: PathBuf,
    pub base_url: String,
    pub ca_file: PathBuf,
}

impl Default for AlipaySettings {
    fn default() -> Self {
        AlipaySettings {
            app_id: String::new(),
            seller_id: String::new(),
            methods: vec![PayMethod::Page, PayMethod::Phone],
            private_key_file: PathBuf::new(),
            public_key_file: PathBuf::new(),
            app_certificate_file: PathBuf::new(),
            alipay_certificate_file: PathBuf::new(),
            root_certificate_file: PathBuf::new(),
            base_url: "https://openapi.alipay.com/gateway.do".into(),
            ca_file: PathBuf::new(),
        }
    }
}

fn set(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}

impl AlipaySettings {
    pub fn is_on(&self) -> bool {
        !self.app_id.is_empty()
    }

    /// The certificates of the app, of Alipay and of its root.
    pub(super) fn certificate_files(&self) -> [&Path; 3] {
        [&self.app_certificate_file, &self.alipay_certificate_file, &self.root_certificate_file]
    }

    /// Certificates instead of a bare public key?
    pub(super) fn by_certificates(&self) -> bool {
        self.certificate_files().into_iter().any(set)
    }

    /// What is missing or contradicts itself, one sentence each. Files are not looked at.
    pub fn problems(&self) -> Vec<String> {
        if !self.is_on() {
            let why = "payment.alipay.app_id is empty, and other keys of the section are set";
            return (*self != Self::default()).then(|| why.to_owned()).into_iter().collect();
        }
        let mut problems = Vec::new();
        let mut must = |holds: bool, problem: &str| {
            if !holds {
                problems.push(format!("payment.alipay.{problem}"));
            }
        };
        let number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        must(number(&self.app_id), "app_id must be the number of the app");
        must(number(&self.seller_id), "seller_id must be the number of the account (2088…)");
        must(!self.methods.is_empty(), "methods is empty: name some of page, phone, qr");
        let known = |method: &PayMethod| *method != PayMethod::App;
        must(self.methods.iter().all(known), "methods: Alipay has page, phone and qr");
        must(set(&self.private_key_file), "private_key_file is empty: name the app's private key");
        must(
            self.by_certificates() != set(&self.public_key_file),
            "public_key_file, or the three certificates: set one or the other",
        );
        must(
            !self.by_certificates() || self.certificate_files().into_iter().all(set),
            "app_certificate_file, alipay_certificate_file and root_certificate_file go together",
        );
        problems
    }
}
