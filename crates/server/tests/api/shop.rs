//! A whole shop in this process: an engine on a directory of its own, and the router before it.

use std::{sync::Arc, time::Duration};

use auth::token_hash;
use axum::{Router, body::Body, response::Response};
use config::Config;
use engine::{
    Engine, Parts,
    moving_gate::{GateControls, MovingGate},
};
use faults::services::{shared_mariadb, unique_name};
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use ledger::{Role, mysql};
use sale::{ItemId, ManualClock, Millis, SaleToken, SigningKeys, UserId};
use serde_json::{Value, json};
use server::{
    api::{App, service},
    edge::Edge,
};
use tempfile::TempDir;
use tower::ServiceExt;

pub(crate) const SECRET: &[u8] = b"a secret of the tests";
/// When the tests begin, and how long before the opening that is.
pub(crate) const NOW_MS: Millis = 1_800_000_000_000;
pub(crate) const OPENS_MS: Millis = NOW_MS + 1_000;
pub(crate) const CLOSES_MS: Millis = OPENS_MS + 60_000;
pub(crate) const ADMIN: &str = "sk_admin_of_the_tests";

pub(crate) struct Shop {
    pub(crate) app: Arc<App>,
    pub(crate) clock: Arc<ManualClock>,
    service: Edge<Router>,
    _data: TempDir,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
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

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// A refusal with this status, code and field.
    #[track_caller]
    pub(crate) fn is_refused(&self, status: u16, code: &str, field: Option<&str>) -> &Heard {
        let body = self.json();
        assert_eq!((self.status, body["code"].as_str()), (status, Some(code)), "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(body["status"], status);
        assert_eq!(body["field"].as_str(), field, "{}", self.text);
        self
    }

    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }
}

/// A request in the making.
pub(crate) struct Ask<'a> {
    shop: &'a Shop,
    request: http::request::Builder,
    body: Body,
}

impl Ask<'_> {
    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.request = self.request.header(name, value.as_ref());
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    pub(crate) fn json(self, body: Value) -> Self {
        self.raw(body.to_string())
    }

    pub(crate) fn text(mut self, body: &str) -> Self {
        self.body = Body::from(body.to_owned());
        self.header("content-type", "text/csv")
    }

    pub(crate) fn raw(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Body::from(body.into());
        self.header("content-type", "application/json")
    }

    pub(crate) async fn response(self) -> Response {
        let request = self.request.body(self.body).unwrap();
        self.shop.service.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn send(self) -> Heard {
        Heard::of(self.response().await).await
    }
}

impl Shop {
    pub(crate) async fn open() -> Shop {
        Shop::open_with(|_| {}).await
    }

    /// One whose gate can be made to be away.
    pub(crate) async fn open_beside_a_gate() -> (Shop, Arc<GateControls>) {
        let mut controls = None;
        let wrap = |parts: &mut Parts| {
            let gate = MovingGate::new(parts.gate.clone());
            controls = Some(gate.controls.clone());
            parts.gate = Arc::new(gate);
        };
        let shop = Shop::open_of(|_| {}, ManualClock::at(NOW_MS), wrap).await;
        (shop, controls.unwrap())
    }

    /// One whose ledger is on a server, as in a cluster.
    pub(crate) async fn open_on_a_server(change: impl FnOnce(&mut Config)) -> Shop {
        let url = shared_mariadb().create_database(&unique_name("api")).unwrap();
        let clock = ManualClock::at(NOW_MS);
        let ledger = mysql::open(&url, clock.clone(), mysql::Options::default()).await.unwrap();
        Shop::open_of(change, clock, |parts| parts.ledger = Arc::new(ledger)).await
    }

    pub(crate) async fn open_with(change: impl FnOnce(&mut Config)) -> Shop {
        Shop::open_of(change, ManualClock::at(NOW_MS), |_| {}).await
    }

    async fn open_of(
        change: impl FnOnce(&mut Config),
        clock: Arc<ManualClock>,
        replace: impl FnOnce(&mut Parts),
    ) -> Shop {
        let data = tempfile::tempdir().unwrap();
        let mut config = Config::defaults();
        change(&mut config);
        let keys = SigningKeys::from_secret(SECRET).unwrap();
        let settings = config.engine();
        let mut parts = Parts::open(&settings, data.path(), clock.clone()).await.unwrap();
        replace(&mut parts);
        let opened = Engine::open(settings, data.path(), SECRET, keys, clock.clone(), parts).await;
        let engine = opened.unwrap();
        let hash = token_hash(ADMIN);
        engine.parts().ledger.put_admin_token("root", Role::Admin, &hash, NOW_MS).await.unwrap();
        let app = App::new(Arc::new(config), engine, SECRET, None).unwrap();
        Shop { service: service(app.clone()), app, clock, _data: data }
    }

    pub(crate) fn ask(&self, method: Method, path: &str) -> Ask<'_> {
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

    pub(crate) fn get(&self, path: &str) -> Ask<'_> {
        self.ask(Method::GET, path)
    }

    pub(crate) fn post(&self, path: &str) -> Ask<'_> {
        self.ask(Method::POST, path)
    }

    pub(crate) fn admin(&self, method: Method, path: &str) -> Ask<'_> {
        self.ask(method, path).bearer(ADMIN)
    }

    /// A published and warmed activity with one item; its id and the item's.
    pub(crate) async fn stage(&self, stock: i64, limit: u32) -> (i64, i64) {
        let plan = json!({"name": "sale", "opens_at": OPENS_MS, "closes_at": CLOSES_MS,
            "items": [{"name": "iPhone", "price": 699_900, "stock": stock, "limit_per_user": limit}]});
        let made = self.admin(Method::POST, "/admin/activities").json(plan).send().await.is(201);
        let (id, item) = (made["id"].as_i64().unwrap(), made["items"][0]["id"].as_i64().unwrap());
        self.move_to(id, "publish").await.is(200);
        self.move_to(id, "warm").await.is(200);
        (id, item)
    }

    pub(crate) async fn move_to(&self, activity: i64, verb: &str) -> Heard {
        self.admin(Method::POST, &format!("/admin/activities/{activity}/{verb}")).send().await
    }

    pub(crate) fn jwt(&self, user: &str) -> String {
        self.app.buyers.dev_login(&user.parse().unwrap()).unwrap().unwrap().token
    }

    pub(crate) fn sale_token(&self, user: &str, item: i64) -> String {
        let user: UserId = user.parse().unwrap();
        let token =
            SaleToken { user, item: ItemId(item), expires_ms: CLOSES_MS + 60_000, from_ms: None };
        token.sign(self.app.engine.keys())
    }

    pub(crate) fn claim<'a>(&'a self, user: &str, item: i64) -> Ask<'a> {
        let token = self.sale_token(user, item);
        self.post(&format!("/items/{item}/claims")).header("x-sale-token", token)
    }

    /// A claim that must succeed; its order number.
    pub(crate) async fn buy(&self, user: &str, item: i64) -> String {
        let admitted = self.claim(user, item).json(json!({"quantity": 1})).send().await.is(202);
        admitted["order_no"].as_str().unwrap().to_owned()
    }

    /// The order once it is in the ledger.
    pub(crate) async fn settled(&self, user: &str, order_no: &str) -> Value {
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
    pub(crate) fn left(&self, item: i64) -> i64 {
        self.app.engine.parts().gate.left(ItemId(item)).unwrap()
    }
}
