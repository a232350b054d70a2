//! The formats: WeChat's own samples, `openssl`'s opinion, the bill, the settings.

use std::path::Path;

use super::*;
use crate::{
    rsa::{SigningKey, VerifyingKey, certificates},
    test_keys::openssl,
};

const DOCUMENT_KEY: &str = include_str!("../../testdata/wechat_document_key.pem");

/// A provider with the key of WeChat's own documents.
fn of_the_documents(dir: &Path) -> WechatPay {
    let key = dir.join("apiclient_test_key.pem");
    std::fs::write(&key, DOCUMENT_KEY).unwrap();
    opened(&WechatSettings {
        merchant_id: "1900007291".into(),
        app_id: "wx2421b1c4370ec43b".into(),
        private_key_file: key,
        certificate_serial: "408B07E79B8269FEC3D5D3E6AB8ED163A6A380DB".into(),
        api_v3_key: Secret::new(API_KEY),
        ..WechatSettings::default()
    })
}

fn samples() -> Value {
    serde_json::from_str(include_str!("../../testdata/wechat_document_samples.json")).unwrap()
}

#[test]
fn the_samples_of_the_documents_are_signed_as_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let (provider, samples) = (of_the_documents(dir.path()), samples());
    let sample = |name: &str| samples[name].as_str().unwrap();
    let (time, nonce) = (sample("time"), sample("nonce"));
    let parts = ["POST", "/v3/pay/transactions/jsapi", time, nonce, sample("post_body")];
    assert_eq!(
        provider.api.authorization(parts).unwrap(),
        format!(
            "WECHATPAY2-SHA256-RSA2048 mchid=\"1900007291\",nonce_str=\"{nonce}\",signature=\"{}\",\
             timestamp=\"{time}\",serial_no=\"408B07E79B8269FEC3D5D3E6AB8ED163A6A380DB\"",
            sample("post_signature")
        )
    );
    let invoked = provider.invoke_at(sample("prepay_id"), time, nonce).unwrap();
    assert_eq!(invoked["paySign"], samples["pay_sign"]);
    assert_eq!(invoked["package"], "prepay_id=wx201410272009395522657a690389285100");
}

#[test]
fn the_signed_answer_of_the_documents_is_believed_and_no_other() {
    let key = include_str!("../../testdata/wechat_document_public_key.pem");
    let (key, samples) = (VerifyingKey::from_text(key).unwrap(), samples());
    let sample = |name: &str| samples[name].as_str().unwrap();
    let (time, nonce) = (sample("answer_time"), sample("answer_nonce"));
    let message = format!("{time}\n{nonce}\n{}\n", sample("answer_body"));
    assert!(key.verify(message.as_bytes(), sample("answer_signature")));
    assert!(!key.verify(&message.as_bytes()[1..], sample("answer_signature")));
}

#[test]
fn openssl_takes_our_signatures_and_reads_the_same_serials() {
    let dir = tempfile::tempdir().unwrap();
    let made = TestKey::make(dir.path(), "merchant", "0x0408B07E79B8269FEC3D5D3E6AB8ED163A6A380DB");
    let signature = STANDARD.decode(made.key.sign(b"five lines\n").unwrap()).unwrap();
    let file = dir.path().join("signature");
    std::fs::write(&file, signature).unwrap();
    let public = made.public_file.to_str().unwrap();
    let verify = ["dgst", "-sha256", "-verify", public, "-signature", file.to_str().unwrap()];
    assert_eq!(openssl(&verify, b"five lines\n"), b"Verified OK\n");
    let certificate = &certificates(&read_file(&made.certificate_file).unwrap()).unwrap()[0];
    let path = made.certificate_file.to_str().unwrap();
    let theirs = openssl(&["x509", "-in", path, "-noout", "-serial"], b"");
    let ours = format!("serial={}\n", certificate.serial_hex());
    assert_eq!(String::from_utf8(theirs).unwrap(), ours);
    assert!(VerifyingKey::of(certificate).unwrap().is_of(&made.key));
    // The same key as PKCS#1 and as PKCS#8.
    let pkcs1 = openssl(&["rsa", "-in", made.key_file.to_str().unwrap(), "-traditional"], b"");
    let pkcs1 = SigningKey::from_text(std::str::from_utf8(&pkcs1).unwrap()).unwrap();
    assert_eq!(pkcs1.public_key(), made.key.public_key());
}

#[tokio::test]
async fn a_bill_is_read_and_its_digest_is_checked() {
    let (wechat, provider, server) = pair().await;
    let day = NOW_MS - 44 * beijing::HOUR_MS; // 2026-11-30T00:00:00+08:00
    let head = "交易时间,公众账号ID,商户号,特约商户号,设备号,微信订单号,商户订单号,用户标识,交易类型,交易状态,\
        付款银行,货币种类,应结订单金额,代金券金额,微信退款单号,商户退款单号,退款金额,充值券退款金额,退款类型,\
        退款状态,商品名称,商户数据包,手续费,费率,订单金额,申请退款金额,费率备注";
    let row = |state: &str, refund: &str, refund_state: &str| {
        format!(
            "`2026-11-30 20:00:01,`wx2421b1c4370ec43b,`1900007291,`0,`,`4200001,`{ORDER},`oid,`NATIVE,\
             `{state},`OTHERS,`CNY,`6999.00,`0.00,`5030,\
             `SKR4200001,`{refund},`0.00,`ORIGINAL,`{refund_state},\
             `手机, 大,`,`0.00,`0.60%,`6999.00,`{refund},`"
        )
    };
    let bill = [
        format!("\u{feff}{head}"),
        row("SUCCESS", "0.00", ""),
        row("REFUND", "6999.00", "SUCCESS"),
        row("REFUND", "6999.00", "FAIL"),
        "总交易单数,应结订单总金额,退款总金额,充值券退款总金额,手续费总金额,订单总金额,申请退款总金额".into(),
        "`3,`6999.00,`6999.00,`0.00,`0.00,`6999.00,`6999.00".into(),
    ]
    .join("\r\n");
    let digest = String::from_utf8(openssl(&["dgst", "-sha1"], bill.as_bytes())).unwrap();
    let digest = digest.rsplit(' ').next().unwrap().trim().to_owned();
    let url = format!("{}/v3/billdownload/file?token=x", server.url);
    let says = move |bill: String| {
        let (digest, url) = (digest.clone(), url.clone());
        move |asked: &Asked| match asked.path.starts_with("/v3/bill/tradebill") {
            true => (200, json!({"hash_type": "SHA1", "hash_value": digest, "download_url": url})),
            false => (200, Value::String(bill.clone())),
        }
    };
    wechat.say(says(bill.clone()));
    let line = |refund: bool| BillLine {
        provider_txn: "4200001".into(),
        order_no: ORDER.into(),
        amount: paid().amount,
        at_ms: day + 20 * beijing::HOUR_MS + 1_000,
        refund,
    };
    let lines = provider.bill(day).await.unwrap().unwrap();
    assert_eq!(lines, [line(false), line(true)]);
    let asked = server.asked();
    assert!(asked.iter().any(|one| one.path.contains("bill_date=2026-11-30&bill_type=ALL")));
    let download = asked.last().unwrap();
    assert!(download.path == "/v3/billdownload/file?token=x");
    assert!(download.headers.contains_key("authorization"));
    wechat.say(says(bill.replace("6999.00", "0.01")));
    assert!(matches!(provider.bill(day).await, Err(ProviderError::Unavailable(_))));
    wechat.say(|_| (400, json!({"code": "NO_STATEMENT_EXIST"})));
    assert_eq!(provider.bill(day).await, Ok(Some(Vec::new())));
    assert_eq!(provider.bill(day + beijing::DAY_MS).await, Ok(None), "it is not ten o'clock yet");
}

#[test]
fn every_mistake_of_the_settings_is_named() {
    let nothing = WechatSettings { merchant_id: "abc".into(), ..WechatSettings::default() };
    let open = |settings: &WechatSettings| {
        WechatPay::open(settings, String::new(), ManualClock::at(NOW_MS)).err().unwrap()
    };
    let problems = open(&nothing).join("\n");
    for key in ["merchant_id", "app_id", "private_key_file", "certificate_file", "api_v3_key"] {
        assert!(problems.contains(&format!("payment.wechat.{key}")), "{key}: {problems}");
    }
    let wechat = Wechat::new();
    let missing = WechatSettings {
        private_key_file: wechat.public.public_file.clone(),
        public_keys: vec!["PUB_KEY_ID_1=/nowhere".into()],
        ca_file: wechat.merchant.key_file.clone(),
        ..wechat.settings("http://127.0.0.1:1")
    };
    let problems = open(&missing);
    assert_eq!(problems.len(), 3, "{problems:?}");
    let other = WechatSettings {
        certificate_file: wechat.keys[0].certificate_file.clone(),
        ..wechat.settings("http://127.0.0.1:1")
    };
    assert!(open(&other)[0].contains("is not the certificate of the key"));
}
