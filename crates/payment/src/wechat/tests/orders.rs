//! What we ask, and what we believe of the answers.

use super::*;
use crate::rsa::VerifyingKey;

#[tokio::test]
async fn orders_are_opened_in_each_way() {
    let (wechat, provider, server) = pair().await;
    wechat.say(|asked| match asked.path.as_str() {
        "/v3/pay/transactions/native" => {
            (200, json!({"code_url": "weixin://wxpay/bizpayurl?pr=x"}))
        }
        "/v3/pay/transactions/jsapi" => (200, json!({"prepay_id": "wx26"})),
        "/v3/pay/transactions/h5" => {
            (200, json!({"h5_url": "https://wx.tenpay.com/h5?prepay_id=1"}))
        }
        _ => (404, json!({"code": "PARAM_ERROR"})),
    });
    let qr = provider.open(&request(PayMethod::Qr)).await.unwrap();
    assert_eq!(qr.qr.as_deref(), Some("weixin://wxpay/bizpayurl?pr=x"));
    let app = provider.open(&request(PayMethod::App)).await.unwrap().app.unwrap();
    assert_eq!((&app["package"], &app["signType"]), (&json!("prepay_id=wx26"), &json!("RSA")));
    let phone = provider.open(&request(PayMethod::Phone)).await.unwrap();
    let back = "https%3A%2F%2Fshop.example%2Forders%2F1%3Fa%3Db";
    let url = format!("https://wx.tenpay.com/h5?prepay_id=1&redirect_url={back}");
    assert_eq!(phone.payment_url, Some(url));
    let asked: Vec<Asked> =
        server.asked().into_iter().filter(|asked| asked.method == "POST").collect();
    for (one, way) in asked.iter().zip(["native", "jsapi", "h5"]) {
        let body: Value = serde_json::from_str(&one.body).unwrap();
        assert_eq!(body["out_trade_no"], ORDER);
        assert_eq!(body["amount"], json!({"total": 699900, "currency": "CNY"}));
        assert_eq!(body["time_expire"], "2026-12-01T20:30:00+08:00");
        assert_eq!(body["notify_url"], "https://shop.example/api/v1/payments/wechat/notify");
        assert!(body["description"].as_str().unwrap().len() <= 127);
        assert_eq!(body["payer"].is_object(), way == "jsapi");
        let ip = (way == "h5").then_some("203.0.113.9");
        assert_eq!(body["scene_info"]["payer_client_ip"].as_str(), ip);
        // The signature is over the very bytes that were sent.
        let signed = &one.headers["authorization"];
        let part = |name: &str| {
            let (_, rest) = signed.split_once(&format!("{name}=\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        assert_eq!(part("serial_no"), "408B07E79B8269FE");
        let (time, nonce) = (part("timestamp"), part("nonce_str"));
        let message = format!("POST\n{}\n{time}\n{nonce}\n{}\n", one.path, one.body);
        let public = read_file(&wechat.merchant.public_file).unwrap();
        let public = VerifyingKey::from_text(&public).unwrap();
        assert!(public.verify(message.as_bytes(), &part("signature")), "{way}");
    }
    // What WeChat needs and is not there.
    let nobody = PayRequest { payer: None, ..request(PayMethod::App) };
    assert!(matches!(provider.open(&nobody).await, Err(ProviderError::Refused(_))));
    let nowhere = PayRequest { client_ip: None, ..request(PayMethod::Phone) };
    assert!(matches!(provider.open(&nowhere).await, Err(ProviderError::Refused(_))));
    // A deadline that is too near for WeChat.
    let soon = PayRequest { deadline_ms: NOW_MS + 5_000, ..request(PayMethod::Qr) };
    provider.open(&soon).await.unwrap();
    assert!(server.asked().last().unwrap().body.contains("2026-12-01T20:01:01+08:00"));
}

#[tokio::test]
async fn an_emoji_in_a_text_loses_no_order_and_no_refund() {
    let (wechat, provider, server) = pair().await;
    wechat.say(|asked| match asked.path.contains("/refunds") {
        true => (500, json!({"code": "SYSTEM_ERROR"})),
        false => (200, json!({"code_url": "weixin://wxpay/x"})),
    });
    for (subject, sent) in [("手机📱 ❤ 5G", "手机 ❤ 5G"), ("📱", "-")] {
        let request = PayRequest { subject: subject.into(), ..request(PayMethod::Qr) };
        provider.open(&request).await.unwrap();
        assert_eq!(last_said(&server)["description"], sent);
    }
    let request = RefundRequest {
        order_no: order_no(),
        provider_txn: paid().provider_txn,
        amount: paid().amount,
        reason: "坏了😢".into(),
    };
    assert!(provider.refund(&request).await.is_err());
    assert_eq!(last_said(&server)["reason"], "坏了");
}

/// The last body that came.
fn last_said(server: &TestServer) -> Value {
    let asked = server.asked();
    let said = asked.iter().rfind(|one| !one.body.is_empty()).unwrap();
    serde_json::from_str(&said.body).unwrap()
}

#[tokio::test]
async fn closing_and_asking_tell_what_is_true() {
    let (wechat, provider, _server) = pair().await;
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::NeverOpened));
    assert_eq!(provider.close(order_no()).await, Ok(CloseOutcome::NeverOpened));
    wechat.say(|asked| match asked.method.as_str() {
        "POST" => (204, Value::Null),
        _ => (200, transaction("NOTPAY")),
    });
    assert_eq!(provider.close(order_no()).await, Ok(CloseOutcome::Closed));
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::Open));
    for (state, closed) in [
        ("SUCCESS", Ok(CloseOutcome::AlreadyPaid(paid()))),
        ("CLOSED", Ok(CloseOutcome::Closed)),
        ("REVOKED", Ok(CloseOutcome::Closed)),
    ] {
        wechat.say(move |asked| match asked.method.as_str() {
            "POST" => (400, json!({"code": "ORDERPAID", "message": "订单已支付"})),
            _ => (200, transaction(state)),
        });
        assert_eq!(provider.close(order_no()).await, closed, "{state}");
    }
    // It cannot be closed, and is not paid: unknown, to be asked again.
    for state in ["USERPAYING", "NOTPAY", "SOMETHING_NEW"] {
        wechat.say(move |asked| match asked.method.as_str() {
            "POST" => (400, json!({"code": "INVALID_REQUEST", "message": "..."})),
            _ => (200, transaction(state)),
        });
        let unknown = provider.close(order_no()).await;
        assert!(matches!(unknown, Err(ProviderError::Unavailable(_))), "{state} {unknown:?}");
    }
    // An answer about somebody else's order.
    for (key, other) in [("mchid", "1"), ("appid", "wx0"), ("out_trade_no", "SK1")] {
        wechat.say(move |_| {
            let mut found = transaction("SUCCESS");
            found[key] = json!(other);
            (200, found)
        });
        let unknown = provider.query(order_no()).await;
        assert!(matches!(unknown, Err(ProviderError::Unavailable(_))), "{key} {unknown:?}");
    }
    // Refunded by us, or in part by another hand.
    for (refund, outcome) in [
        (
            json!({"out_refund_no": "SKR4200000000202612010000000001", "status": "SUCCESS",
            "transaction_id": "4200000000202612010000000001", "amount": {"refund": 699900}}),
            QueryOutcome::Refunded(paid()),
        ),
        (Value::Null, QueryOutcome::Paid(paid())),
    ] {
        wechat.say(move |asked| match (asked.path.contains("/refund/"), &refund) {
            (false, _) => (200, transaction("REFUND")),
            (true, Value::Null) => (404, json!({"code": "RESOURCE_NOT_EXISTS"})),
            (true, refund) => (200, refund.clone()),
        });
        assert_eq!(provider.query(order_no()).await, Ok(outcome));
    }
}

#[tokio::test]
async fn a_refund_is_the_same_however_often_it_is_asked_for() {
    let (wechat, provider, server) = pair().await;
    let asked_for = RefundRequest {
        order_no: order_no(),
        provider_txn: paid().provider_txn,
        amount: paid().amount,
        reason: "没有".repeat(50),
    };
    let answer = |status: &'static str| {
        json!({"out_refund_no": "SKR4200000000202612010000000001", "status": status,
            "transaction_id": "4200000000202612010000000001", "amount": {"refund": 699900}})
    };
    for (status, outcome) in
        [("PROCESSING", RefundOutcome::Pending), ("SUCCESS", RefundOutcome::Done)]
    {
        wechat.say(move |_| (200, answer(status)));
        assert_eq!(provider.refund(&asked_for).await, Ok(outcome));
    }
    let bodies: Vec<String> = server
        .asked()
        .into_iter()
        .filter(|asked| asked.path == "/v3/refund/domestic/refunds")
        .map(|asked| asked.body)
        .collect();
    assert!(bodies.len() == 2 && bodies[0] == bodies[1], "{bodies:?}");
    assert!(bodies[0].contains(r#""refund":699900"#) && bodies[0].contains(r#""total":699900"#));
    // It says no because it is done.
    wechat.say(move |asked| match asked.method.as_str() {
        "POST" => (400, json!({"code": "INVALID_REQUEST", "message": "订单已全额退款"})),
        _ => (200, answer("SUCCESS")),
    });
    assert_eq!(provider.refund(&asked_for).await, Ok(RefundOutcome::Done));
    wechat.say(move |asked| match asked.method.as_str() {
        "POST" => (403, json!({"code": "NOT_ENOUGH", "message": "基本账户余额不足"})),
        _ => (404, json!({"code": "RESOURCE_NOT_EXISTS"})),
    });
    let refused = provider.refund(&asked_for).await.unwrap_err();
    assert!(matches!(&refused, ProviderError::Refused(why) if why.contains("NOT_ENOUGH")));
    wechat.say(move |_| (200, answer("ABNORMAL")));
    assert!(matches!(provider.refund(&asked_for).await, Err(ProviderError::Refused(_))));
    wechat.say(move |_| (500, json!({"code": "SYSTEM_ERROR"})));
    assert!(matches!(provider.refund(&asked_for).await, Err(ProviderError::Unavailable(_))));
}

#[tokio::test]
async fn no_answer_without_a_good_signature_is_believed() {
    let (wechat, provider, _server) = pair().await;
    wechat.say(|_| (200, transaction("SUCCESS")));
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::Paid(paid())));
    let meddles: [Meddle; 7] = [
        |_, body| body[0] = b' ',
        |_, body| body.push(b' '),
        |headers, _| drop(headers.insert("wechatpay-nonce", "other".parse().unwrap())),
        |headers, _| drop(headers.insert("wechatpay-timestamp", (NOW_S + 1).into())),
        |headers, _| drop(headers.insert("wechatpay-serial", "00".parse().unwrap())),
        |headers, _| drop(headers.remove("wechatpay-signature")),
        |headers, _| drop(headers.insert("wechatpay-signature", "AAAA".parse().unwrap())),
    ];
    for (n, meddle) in meddles.into_iter().enumerate() {
        *wechat.on_the_way.lock() = Some(meddle);
        let unknown = provider.query(order_no()).await;
        assert!(matches!(unknown, Err(ProviderError::Unavailable(_))), "{n}: {unknown:?}");
    }
    *wechat.on_the_way.lock() = None;
    // A trial is asked again at once; a second one is unknown.
    wechat.probes.store(1, Ordering::SeqCst);
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::Paid(paid())));
    wechat.probes.store(2, Ordering::SeqCst);
    assert!(matches!(provider.query(order_no()).await, Err(ProviderError::Unavailable(_))));
}
