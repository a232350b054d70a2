//! Where buyers pay: the providers of this deployment, and the built-in one if it is switched on.

use std::{path::Path, sync::Arc};

use payment::{
    Alipay, Provider, WechatPay,
    sandbox::{Sandbox, SandboxOptions},
};
use sale::{SharedClock, SystemClock};
use sha2::{Digest, Sha256};

use crate::{
    OpenError, Providers, Settings,
    checkup::CheckResult,
    data_dir::make_file_private,
    settings::ProviderSettings,
    with_timeout::{PROVIDER_ANSWER_MAX, WithTimeout},
};

pub const SANDBOX_FILE: &str = "sandbox.db";

pub(crate) struct Cashier {
    pub(crate) providers: Providers,
    pub(crate) sandbox: Option<Sandbox>,
}

impl Cashier {
    pub(crate) fn open(
        settings: &Settings,
        data: &Path,
        secret: &[u8],
        clock: &SharedClock,
    ) -> Result<Cashier, OpenError> {
        let sandbox = open_sandbox(settings, data, secret, clock)?;
        let (real, problems) = real_providers(&settings.providers, clock);
        if !problems.is_empty() {
            return Err(OpenError::Providers(problems));
        }
        let demo = sandbox.iter().map(|sandbox| Arc::new(sandbox.clone()) as Arc<dyn Provider>);
        let providers = demo.chain(real).map(|provider| {
            let name = provider.name().to_owned();
            (name, WithTimeout::around(provider, PROVIDER_ANSWER_MAX))
        });
        Ok(Cashier { providers: providers.collect(), sandbox })
    }
}

/// The companies that are switched on, and everything that is wrong with the keys of those that cannot be.
fn real_providers(
    settings: &ProviderSettings,
    clock: &SharedClock,
) -> (Vec<Arc<dyn Provider>>, Vec<String>) {
    let (mut providers, mut problems) = (Vec::<Arc<dyn Provider>>::new(), Vec::new());
    if settings.wechat.is_on() {
        let notify_url = settings.notify_url(WechatPay::NAME);
        match WechatPay::open(&settings.wechat, notify_url, clock.clone()) {
            Ok(wechat) => providers.push(Arc::new(wechat)),
            Err(found) => problems.extend(found),
        }
    }
    if settings.alipay.is_on() {
        let notify_url = settings.notify_url(Alipay::NAME);
        match Alipay::open(&settings.alipay, notify_url, clock.clone()) {
            Ok(alipay) => providers.push(Arc::new(alipay)),
            Err(found) => problems.extend(found),
        }
    }
    for provider in &providers {
        let (name, methods) = (provider.name(), provider.methods());
        tracing::info!(provider = name, ?methods, "a payment provider is on");
    }
    (providers, problems)
}

/// For `seckill doctor`: which providers are on, and whether their keys can be used.
pub fn check_providers(settings: &ProviderSettings) -> Vec<CheckResult> {
    let clock: SharedClock = Arc::new(SystemClock);
    let (providers, problems) = real_providers(settings, &clock);
    let on = providers.iter().map(|provider| {
        let (name, notify_url) = (provider.name(), settings.notify_url(provider.name()));
        CheckResult::Ok(format!("{name} takes payments, and tells of them at {notify_url}"))
    });
    on.chain(problems.into_iter().map(CheckResult::Fail)).collect()
}

fn open_sandbox(
    settings: &Settings,
    data: &Path,
    secret: &[u8],
    clock: &SharedClock,
) -> Result<Option<Sandbox>, OpenError> {
    let Some(sandbox) = &settings.sandbox else { return Ok(None) };
    // Known to both companies, and to be had from our own secret without keeping another file.
    let mut notify_secret = Sha256::new();
    notify_secret.update(b"seckill sandbox notices v1");
    notify_secret.update(secret);
    let notify_secret: String =
        notify_secret.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let options = SandboxOptions {
        merchant: sandbox.merchant.clone(),
        notify_secret,
        ..SandboxOptions::default()
    };
    let file = &sandbox.file;
    let path = if file.as_os_str().is_empty() { data.join(SANDBOX_FILE) } else { file.to_owned() };
    make_file_private(&path).map_err(OpenError::SandboxFile)?;
    let sandbox = Sandbox::open(&path, options, clock.clone());
    sandbox.map(Some).map_err(OpenError::Sandbox)
}
