//! Pages of other origins: who may ask from a browser, and who may show us in a frame.

use client::{Api, NewSale, Response};

use crate::fixtures::{Deployment, Profile};

const SHOP: &str = "https://shop.example";
const OTHER: &str = "https://other.example";

fn open_to_the_shop(profile: Profile) -> Deployment {
    Deployment::new(profile)
        .env("SECKILL_HTTP_ALLOWED_ORIGINS", format!("{SHOP}, http://127.0.0.1:8000"))
        .env("SECKILL_HTTP_ALLOWED_FRAMES", SHOP)
}

/// The page may read it, and caches know that others may not.
#[track_caller]
fn is_for(origin: Option<&str>, answer: &Response) {
    assert_eq!(answer.header("access-control-allow-origin"), origin, "{}", answer.status);
    let exposed = origin.map(|_| "ratelimit, ratelimit-policy, retry-after, x-request-id");
    assert_eq!(answer.header("access-control-expose-headers"), exposed);
    assert_eq!(answer.header("access-control-allow-credentials"), None);
}

async fn a_page_of_an_allowed_origin_buys_and_no_other_may_read(profile: Profile) {
    let sale = open_to_the_shop(profile).open_sale(NewSale::of(1)).await;
    let mut ann = sale.buyer("ann").await;
    let mut bob = sale.buyer("bob").await;
    let claims = format!("/api/v1/items/{}/claims", sale.item);
    let claim = async |api: &mut Api, token: &str, origin: &str, body: &[u8]| {
        let headers = [("origin", origin), ("x-sale-token", token)];
        api.send("POST", &claims, &headers, body).await.unwrap()
    };
    let body = br#"{"quantity":1}"#;
    // Refused and admitted, on the fast path; with a query it goes the long way.
    for (origin, named) in [(SHOP, Some(SHOP)), (OTHER, None), ("null", None)] {
        let refused = claim(&mut ann.api, "x", origin, body).await;
        assert_eq!(refused.code().as_deref(), Some("bad_token"));
        is_for(named, &refused);
        let long = format!("{claims}?x=1");
        let refused = ann.api.send("POST", &long, &[("origin", origin)], body).await.unwrap();
        assert_eq!(refused.code().as_deref(), Some("bad_token"));
        is_for(named, &refused);
    }
    let admitted = claim(&mut ann.api, &ann.sale_token.clone(), SHOP, body).await;
    assert_eq!(admitted.status, 202);
    is_for(Some(SHOP), &admitted);
    assert!(admitted.header("x-request-id").is_some());
    let sold_out = claim(&mut bob.api, &bob.sale_token.clone(), SHOP, body).await;
    assert_eq!(sold_out.code().as_deref(), Some("sold_out"));
    is_for(Some(SHOP), &sold_out);

    let mut api = Api::new(sale.server().address, None);
    let preflight = async |api: &mut Api, path: &str, origin: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "content-type,idempotency-key,x-sale-token"),
        ];
        api.send("OPTIONS", path, &headers, b"").await.unwrap()
    };
    let may = preflight(&mut api, &claims, SHOP).await;
    assert_eq!((may.status, may.body.len()), (204, 0));
    is_for(Some(SHOP), &may);
    assert_eq!(may.header("access-control-max-age"), Some("7200"));
    assert!(may.header("access-control-allow-headers").unwrap().contains("x-sale-token"));
    let may_not = preflight(&mut api, &claims, OTHER).await;
    assert_eq!(may_not.status, 405);
    is_for(None, &may_not);
    let operators = preflight(&mut api, "/api/v1/admin/orders", SHOP).await;
    is_for(None, &operators);

    // What caches keep says that it depends on who asks, also to those who are no pages.
    let list = api.send("GET", "/api/v1/activities", &[], b"").await.unwrap();
    assert_eq!((list.status, list.header("vary")), (200, Some("origin")));
    let frames = api.send("GET", "/", &[], b"").await.unwrap();
    let policy = frames.header("content-security-policy").unwrap();
    assert!(policy.ends_with(&format!("frame-ancestors {SHOP}")), "{policy}");
    assert_eq!(frames.header("x-frame-options"), None);
    ann.order_becomes(admitted.json()["order_no"].as_str().unwrap(), "unpaid").await;
    sale.must_hold().await;
}

async fn unless_told_nobody_elses_page_may_ask_or_frame_us(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let mut api = Api::new(sale.server().address, None);
    let headers = [("origin", SHOP), ("access-control-request-method", "POST")];
    let claims = format!("/api/v1/items/{}/claims", sale.item);
    for (method, path) in [("GET", "/api/v1/activities"), ("POST", &claims), ("OPTIONS", &claims)] {
        let answer = api.send(method, path, &headers, b"{}").await.unwrap();
        is_for(None, &answer);
        assert!(!answer.header("vary").unwrap_or_default().contains("origin"), "{method}");
    }
    let page = api.send("GET", "/", &[], b"").await.unwrap();
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.ends_with("frame-ancestors 'none'"), "{policy}");
    assert_eq!(page.header("x-frame-options"), Some("DENY"));
}

crate::in_every_profile! {
    a_page_of_an_allowed_origin_buys_and_no_other_may_read,
    unless_told_nobody_elses_page_may_ask_or_frame_us,
}
