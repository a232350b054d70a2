//! Where buyers pay: the providers of this deployment, and the built-in one if it is switched on.

use std::{path::Path, sync::Arc};

use payment::{
    Provider,
    sandbox::{Sandbox, SandboxOptions},
};
use sale::SharedClock;
use sha2::{Digest, Sha256};

use crate::{
    OpenError, Providers, Settings,
    data_dir::make_file_private,
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
        Ok(Cashier { providers: providers(&sandbox), sandbox })
    }
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

fn providers(sandbox: &Option<Sandbox>) -> Providers {
    let mut providers = Providers::new();
    if let Some(sandbox) = sandbox {
        let provider = WithTimeout::around(Arc::new(sandbox.clone()), PROVIDER_ANSWER_MAX);
        providers.insert(sandbox.name().into(), provider);
    }
    providers
}
