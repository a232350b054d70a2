//! What we are told, by whom, and with which key.

use super::*;
use crate::NoticeOutcome;

#[tokio::test]
async fn a_notice_is_believed_whole_or_not_at_all() {
    let (wechat, provider, server) = pair().await;
    let (headers, body) = notice(&wechat, "TRANSACTION.SUCCESS", &transaction("SUCCESS"));
    let believed = Notice {
        provider_txn: paid().provider_txn,
        order_no: order_no(),
        amount: paid().amount,
        paid_ms: paid().paid_ms,
        outcome: NoticeOutcome::Paid,
    };
    assert_eq!(provider.verify_notice(&headers, &body).await, Ok(believed));
    for at in 0..body.len() {
        for flip in [1, 0x20, 0x80] {
            let mut changed = body.clone();
            changed[at] ^= flip;
            let refused = provider.verify_notice(&headers, &changed).await;
            assert_eq!(refused, Err(NoticeError::BadSignature), "byte {at}");
        }
    }
    for cut in [0, 1, body.len() - 1] {
        assert!(provider.verify_notice(&headers, &body[..cut]).await.is_err());
    }
    let signed =
        ["wechatpay-timestamp", "wechatpay-nonce", "wechatpay-signature", "wechatpay-serial"];
    for name in signed {
        let value = headers[name].to_str().unwrap().to_owned();
        let mut without = headers.clone();
        without.remove(name);
        assert!(provider.verify_notice(&without, &body).await.is_err(), "{name}");
        let mut twice = headers.clone();
        twice.append(name, headers[name].clone());
        assert!(provider.verify_notice(&twice, &body).await.is_err(), "{name} twice");
        for at in 0..value.len() {
            let mut bytes = value.clone().into_bytes();
            bytes[at] = if bytes[at] == b'7' { b'8' } else { b'7' };
            let mut changed = headers.clone();
            changed.insert(name, http::HeaderValue::from_bytes(&bytes).unwrap());
            assert!(provider.verify_notice(&changed, &body).await.is_err(), "{name} at {at}");
        }
    }
    let fetches = server.asked().iter().filter(|asked| asked.path == "/v3/certificates").count();
    assert_eq!(fetches, 1, "names that were made up do not make us ask again and again");
}

#[tokio::test]
async fn old_foreign_and_trial_notices_are_told_apart() {
    let (wechat, provider, _server) = pair().await;
    let clock = ManualClock::at(NOW_MS);
    let url = provider.notify_url.clone();
    let settings = provider.settings.clone();
    let late = WechatPay::open(&settings, url, clock.clone()).unwrap();
    let (headers, body) = notice(&wechat, "TRANSACTION.SUCCESS", &transaction("SUCCESS"));
    for (off_ms, good) in [(300_000, true), (300_001, false), (-300_000, true), (-300_001, false)] {
        clock.set(NOW_MS + off_ms);
        let verified = late.verify_notice(&headers, &body).await;
        assert_eq!(verified.is_ok(), good, "{off_ms} {verified:?}");
    }
    wechat.probes.store(1, Ordering::SeqCst);
    let (headers, body) = notice(&wechat, "TRANSACTION.SUCCESS", &transaction("SUCCESS"));
    assert_eq!(provider.verify_notice(&headers, &body).await, Err(NoticeError::Probe));
    assert_eq!(provider.answer(NoticeAnswer::NotBelieved).0, 400);
    for (key, value) in [("mchid", "1900000001"), ("appid", "wxother")] {
        let mut foreign = transaction("SUCCESS");
        foreign[key] = json!(value);
        let (headers, body) = notice(&wechat, "TRANSACTION.SUCCESS", &foreign);
        let refused = provider.verify_notice(&headers, &body).await;
        assert_eq!(refused, Err(NoticeError::OtherMerchant), "{key}");
    }
    for (status, outcome) in
        [("SUCCESS", NoticeOutcome::Refunded), ("ABNORMAL", NoticeOutcome::RefundFailed)]
    {
        let refund = json!({"mchid": "1900007291", "out_trade_no": ORDER, "refund_status": status,
            "transaction_id": "4200000000202612010000000001", "out_refund_no": "SKR42",
            "success_time": "2026-12-01T19:59:59+08:00", "amount": {"total": 699900, "refund": 699900}});
        let (headers, body) = notice(&wechat, &format!("REFUND.{status}"), &refund);
        let told = provider.verify_notice(&headers, &body).await.unwrap();
        assert_eq!((told.outcome, told.amount.minor), (outcome, 699_900));
    }
}

#[tokio::test]
async fn keys_rotate_and_no_notice_is_lost() {
    let wechat = Wechat::new();
    let server = TestServer::start(wechat.answering()).await;
    // To begin with one platform certificate in a file, and the APIv3 key in another.
    let dir = wechat.dir.path();
    let (platform, api_key) = (dir.join("platform.pem"), dir.join("api_v3_key"));
    std::fs::copy(&wechat.keys[0].certificate_file, &platform).unwrap();
    std::fs::write(&api_key, format!("{API_KEY}\n")).unwrap();
    let provider = opened(&WechatSettings {
        platform_certificates_file: platform.clone(),
        api_v3_key: Secret::default(),
        api_v3_key_file: api_key.clone(),
        public_keys: vec![format!("{PUBLIC_KEY_ID}={}", wechat.public.public_file.display())],
        ..wechat.settings(&server.url)
    });
    let told = |wechat: &Wechat| notice(wechat, "TRANSACTION.SUCCESS", &transaction("SUCCESS"));
    let old = told(&wechat);
    assert!(provider.verify_notice(&old.0, &old.1).await.is_ok());
    assert!(server.asked().is_empty(), "it is in the file");
    // WeChat's next certificate: fetched when it first turns up.
    wechat.signs.store(1, Ordering::SeqCst);
    let new = told(&wechat);
    assert!(provider.verify_notice(&new.0, &new.1).await.is_ok());
    assert_eq!(server.asked().len(), 1);
    // And its public key, beside both.
    wechat.signs.store(2, Ordering::SeqCst);
    let public = told(&wechat);
    for one in [&old, &new, &public] {
        assert!(provider.verify_notice(&one.0, &one.1).await.is_ok());
    }
    assert_eq!(server.asked().len(), 1);
    assert_eq!(server.asked()[0].headers["wechatpay-serial"], PUBLIC_KEY_ID);
    // The file names another certificate now, and the APIv3 key is another: what was on its way counts.
    std::fs::copy(&wechat.keys[1].certificate_file, &platform).unwrap();
    std::fs::write(&api_key, "another key of thirty-two bytes.").unwrap();
    provider.api.look_again();
    assert!(provider.verify_notice(&old.0, &old.1).await.is_ok());
    // A file that cannot be used changes nothing.
    std::fs::write(&platform, "rubbish").unwrap();
    provider.api.look_again();
    assert!(provider.verify_notice(&old.0, &old.1).await.is_ok());
    // Our own key is replaced with its certificate, or not at all.
    let next = TestKey::make(dir, "next", "0x77");
    std::fs::copy(&next.key_file, &wechat.merchant.key_file).unwrap();
    provider.api.look_again();
    let serial = |provider: &WechatPay| {
        provider.api.authorization(["GET", "/", "1", "2", ""]).unwrap().contains("408B07E79B8269FE")
    };
    assert!(serial(&provider), "half a pair is not used");
    std::fs::copy(&next.certificate_file, &wechat.merchant.certificate_file).unwrap();
    provider.api.look_again();
    assert!(!serial(&provider));
}
