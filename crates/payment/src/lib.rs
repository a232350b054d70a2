//! Payment providers, behind one trait.
//!
//! A provider is another company. It may be down, answer late, say things twice, in the wrong order
//! or after the fact, and anyone may pretend to be it. [`Provider`] is shaped by that:
//!
//! - **Opening, closing and refunding are idempotent** by a number of ours or theirs, because a
//!   time-out means *unknown* and unknown is asked again.
//! - **Closing answers what is true**: closed, or paid already. Only a payment closed at the
//!   provider can safely be closed in the ledger, and even then money may come late.
//! - **A notice is believed only when verified**: signature over the raw bytes, fresh time stamp,
//!   our merchant. What it says about order and amount is then compared with the ledger, by the
//!   ledger.
//!
//! **Architecture invariant.** This crate knows neither ledger nor web framework. It gets headers
//! and bytes and gives a [`Notice`]; whoever joins the two carries it to the ledger.

mod alipay;
mod beijing;
mod certificate;
mod key_files;
mod provider;
mod rsa;
pub mod sandbox;
#[cfg(test)]
mod test_keys;
#[cfg(test)]
mod test_server;
mod text;
mod wechat;

use std::path::Path;

use outgoing::Caller;

pub use alipay::{Alipay, AlipaySettings};
pub use provider::{
    BillLine, CloseOutcome, NOTICE_BYTES_MAX, Notice, NoticeAnswer, NoticeError, NoticeOutcome,
    Opened, Paid, PayMethod, PayRequest, Provider, ProviderError, QueryOutcome, RefundOutcome,
    RefundRequest, Title,
};
pub use wechat::{WechatPay, WechatSettings};

/// Whoever calls a provider trusts the public authorities, or those of this file instead.
fn caller_to(ca_file: &Path) -> Result<Caller, String> {
    if ca_file.as_os_str().is_empty() {
        return Ok(Caller::default());
    }
    Caller::trusting_file(ca_file).map_err(|bad| bad.to_string())
}
