//! What Alipay posts when something happened to a trade: a form, signed over its fields as they read.

use sale::{Currency, Millis, Money, OrderNo};

use super::{
    settings::AlipaySettings,
    signing::{Keys, Parameters, of_notice},
};
use crate::{Notice, NoticeError, NoticeOutcome, beijing};

/// More fields than any notice has.
const FIELDS_MAX: usize = 200;

pub(super) fn read(
    settings: &AlipaySettings,
    keys: &Keys,
    body: &[u8],
    now_ms: Millis,
) -> Result<Notice, NoticeError> {
    let fields = fields(body)?;
    let field = |name: &str| fields.get(name).map(String::as_str).filter(|text| !text.is_empty());
    let signature = field("sign").ok_or(NoticeError::BadSignature)?;
    if field("sign_type") != Some("RSA2") {
        return Err(NoticeError::BadSignature);
    }
    let named = field("alipay_cert_sn");
    let is_over = |message: String| keys.verify(&message, signature, named, now_ms);
    if !is_over(of_notice(&fields)) && !is_over(of_notice(&filled(&fields))) {
        return Err(NoticeError::BadSignature);
    }
    let ours = field("app_id") == Some(settings.app_id.as_str())
        && field("seller_id") == Some(settings.seller_id.as_str());
    if !ours {
        return Err(NoticeError::OtherMerchant);
    }
    let malformed = |what: &str| NoticeError::Malformed(format!("{what} is missing or wrong"));
    let time = |name: &str| field(name).and_then(beijing::parse_plain);
    let yuan = |name: &str| {
        let amount = field(name).and_then(|text| Money::from_text(text, Currency::CNY).ok());
        amount.ok_or_else(|| malformed(name))
    };
    let order_no: Option<OrderNo> = field("out_trade_no").and_then(|text| text.parse().ok());
    let provider_txn = field("trade_no").ok_or_else(|| malformed("trade_no"))?.to_owned();
    let order_no = order_no.ok_or_else(|| malformed("out_trade_no"))?;
    let status = field("trade_status").ok_or_else(|| malformed("trade_status"))?;
    let given_back = field("refund_fee").is_some() || field("gmt_refund").is_some();
    let (outcome, amount, paid_ms) = match status {
        _ if given_back => {
            (NoticeOutcome::Refunded, yuan("refund_fee")?, time("gmt_refund").unwrap_or(0))
        }
        "TRADE_SUCCESS" | "TRADE_FINISHED" => {
            let paid_ms = time("gmt_payment").ok_or_else(|| malformed("gmt_payment"))?;
            (NoticeOutcome::Paid, yuan("total_amount")?, paid_ms)
        }
        "WAIT_BUYER_PAY" | "TRADE_CLOSED" => (NoticeOutcome::Failed, yuan("total_amount")?, 0),
        _ => return Err(malformed("trade_status")),
    };
    Ok(Notice { provider_txn, order_no, amount, paid_ms, outcome })
}

/// By the documents every field is signed; half of Alipay's own libraries leave the empty ones out. Either
/// proves all that we read, for an empty field is to us as if it were not there.
fn filled(fields: &Parameters) -> Parameters {
    let filled = fields.iter().filter(|(_, value)| !value.is_empty());
    filled.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Each name once: a second value would be one that nobody signed for alone.
fn fields(body: &[u8]) -> Result<Parameters, NoticeError> {
    let mut fields = Parameters::new();
    for (name, value) in form_urlencoded::parse(body) {
        let twice = fields.insert(name.into_owned(), value.into_owned()).is_some();
        if twice || fields.len() > FIELDS_MAX {
            return Err(NoticeError::Malformed("a field twice, or too many of them".into()));
        }
    }
    Ok(fields)
}
