//! A whole shop in this process: an engine on a directory of its own, and the router before it.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body, response::Response};
use gate::Gate;
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use ledger::Role;
use sale::{ItemId, ManualClock, Millis, SaleToken, SigningKeys, UserId};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

use crate::{
    api::{App, service},
    auth::token_hash,
    config::Config,
    edge::Edge,
};
use engine::{
    Engine, Parts,
    moving_gate::{MovingGate, Told},
};

pub(super) const SECRET: &[u8] = b"a secret of the tests";
/// When the tests begin, and how long before the opening that is.
pub(super) const NOW_MS: Millis = 1_800_000_000_000;
pub(super) const OPENS_MS: Millis = NOW_MS + 1_000;
pub(super) const CLOSES_MS: Millis = OPENS_MS + 60_000;
pub(super) const ADMIN: &str = "sk_admin_of_the_tests";

pub(super) struct Shop {
    pub(super) app: Arc<App>,
    pub(super) clock: Arc<ManualClock>,
    service: Edge<Router>,
    _data: TempDir,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Heard {
    async fn of(response: Response) -> Heard {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Heard {
            status: parts.status.as_u16(),
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// A refusal with this status, code and field.
    #[track_caller]
    pub(super) fn is_refused(&self, status: u16, code: &str, field: Option<&str>) -> &Heard {
        let body = self.json();
        assert_eq!((self.status, body["code"].as_str()), (status, Some(code)), "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(body["status"], status);
        assert_eq!(body["field"].as_str(), field, "{}", self.text);
        self
    }

    #[track_caller]
    pub(super) fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }
}

/// A request in the making.
pub(super) struct Ask<'a> {
    shop: &'a Shop,
    request: http::request::Builder,
    body: Body,
}

impl Ask<'_> {
    pub(super) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.request = self.request.header(name, value.as_ref());
        self
    }

    pub(super) fn bearer(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    pub(super) fn json(self, body: Value) -> Self {
        self.raw(body.to_string())
    }

    pub(super) fn raw(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Body::from(body.into());
        self.header("content-type", "application/json")
    }

    pub(super) async fn response(self) -> Response {
        let request = self.request.body(self.body).unwrap();
        self.shop.service.clone().oneshot(request).await.unwrap()
    }

    pub(super) async fn send(self) -> Heard {
        Heard::of(self.response().await).await
    }
}

impl Shop {
    pub(super) async fn open() -> Shop {
        Shop::open_with(|_| {}).await
    }

    /// One whose gate can be made to be away.
    pub(super) async fn open_beside_a_gate() -> (Shop, Arc<Told>) {
        let mut told = None;
        let shop = Shop::open_through(
            |_| {},
            |gate| {
                let (gate, _) = MovingGate::new(gate, 0);
                told = Some(gate.told.clone());
                Arc::new(gate)
            },
        );
        (shop.await, told.unwrap())
    }

    pub(super) async fn open_with(change: impl FnOnce(&mut Config)) -> Shop {
        Shop::open_through(change, |gate| gate).await
    }

    async fn open_through(
        change: impl FnOnce(&mut Config),
        wrap: impl FnOnce(Arc<dyn Gate>) -> Arc<dyn Gate>,
    ) -> Shop {
        let data = tempfile::tempdir().unwrap();
        let clock = ManualClock::at(NOW_MS);
        let mut config = Config::defaults();
        change(&mut config);
        let keys = SigningKeys::from_secret(SECRET).unwrap();
        let settings = config.engine();
        let mut parts = Parts::open(&settings, data.path(), clock.clone()).await.unwrap();
        parts.gate = wrap(parts.gate);
        let opened = Engine::open(settings, data.path(), SECRET, keys, clock.clone(), parts).await;
        let engine = opened.unwrap();
        let hash = token_hash(ADMIN);
        engine.ledger.put_admin_token("root", Role::Admin, &hash, NOW_MS).await.unwrap();
        let app = App::new(Arc::new(config), engine, SECRET, None).unwrap();
        Shop { service: service(app.clone()), app, clock, _data: data }
    }

    pub(super) fn ask(&self, method: Method, path: &str) -> Ask<'_> {
        let path = if path.starts_with("/items")
            || path.starts_with("/orders")
            || path.starts_with("/admin")
        {
            format!("/api/v1{path}")
        } else {
            path.to_owned()
        };
        let request = Request::builder().method(method).uri(path);
        Ask { shop: self, request, body: Body::empty() }
    }

    pub(super) fn get(&self, path: &str) -> Ask<'_> {
        self.ask(Method::GET, path)
    }

    pub(super) fn post(&self, path: &str) -> Ask<'_> {
        self.ask(Method::POST, path)
    }

    pub(super) fn admin(&self, method: Method, path: &str) -> Ask<'_> {
        self.ask(method, path).bearer(ADMIN)
    }

    /// A published and warmed activity with one item; its id and the item's.
    pub(super) async fn stage(&self, stock: i64, limit: u32) -> (i64, i64) {
        let plan = json!({"name": "sale", "opens_at": OPENS_MS, "closes_at": CLOSES_MS,
            "items": [{"name": "iPhone", "price": 699_900, "stock": stock, "limit_per_user": limit}]});
        let made = self.admin(Method::POST, "/admin/activities").json(plan).send().await.is(201);
        let (id, item) = (made["id"].as_i64().unwrap(), made["items"][0]["id"].as_i64().unwrap());
        self.move_to(id, "publish").await.is(200);
        self.move_to(id, "warm").await.is(200);
        (id, item)
    }

    pub(super) async fn move_to(&self, activity: i64, verb: &str) -> Heard {
        self.admin(Method::POST, &format!("/admin/activities/{activity}/{verb}")).send().await
    }

    pub(super) fn jwt(&self, user: &str) -> String {
        self.app.buyers.dev_login(&user.parse().unwrap()).unwrap().token
    }

    pub(super) fn sale_token(&self, user: &str, item: i64) -> String {
        let user: UserId = user.parse().unwrap();
        let token = SaleToken { user, item: ItemId(item), expires_ms: CLOSES_MS + 60_000 };
        token.sign(&self.app.engine.keys)
    }

    pub(super) fn claim<'a>(&'a self, user: &str, item: i64) -> Ask<'a> {
        let token = self.sale_token(user, item);
        self.post(&format!("/items/{item}/claims")).header("x-sale-token", token)
    }

    /// A claim that must succeed; its order number.
    pub(super) async fn buy(&self, user: &str, item: i64) -> String {
        let admitted = self.claim(user, item).json(json!({"quantity": 1})).send().await.is(202);
        admitted["order_no"].as_str().unwrap().to_owned()
    }

    /// The order once it is in the ledger.
    pub(super) async fn settled(&self, user: &str, order_no: &str) -> Value {
        for _ in 0..1_000 {
            let asked = self.get(&format!("/orders/{order_no}")).bearer(&self.jwt(user));
            let order = asked.send().await.is(200);
            if order["status"] != "queued" {
                return order;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{order_no} is still queued");
    }

    /// Units left at the gate.
    pub(super) fn left(&self, item: i64) -> i64 {
        self.app.engine.gate.left(ItemId(item)).unwrap()
    }
}
