//! Paying an order, and hearing from the providers that it was paid.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    extract::State,
    response::{IntoResponse, Response},
};
use http::{Extensions, HeaderMap, StatusCode, header::CONTENT_TYPE};
use sale::OrderNo;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Shared, finish::finish, orders::own, qr_code, return_url, schemas};
use crate::{
    access::Buyer,
    extract::{Json, Path},
    logging::Seldom,
    problem::Problem,
};
use engine::{NoticeFailure, OrderView, PayChoice};
use listener::Peer;
use payment::{NoticeAnswer, NoticeError, PayMethod, sandbox};

/// Anybody can post a notice, as fast as the network lets them.
static NOT_ACCEPTED: Seldom = Seldom::once_per(Duration::from_secs(1));

/// No provider's name of a person is longer.
pub(super) const PAYER_CHARS_MAX: usize = 128;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewPayment {
    #[schema(schema_with = schemas::provider)]
    provider: String,
    #[schema(schema_with = schemas::wanted_method, required = false)]
    method: Option<PayMethod>,
    #[schema(schema_with = schemas::payer, required = false)]
    payer: Option<String>,
    #[schema(schema_with = schemas::return_url, required = false)]
    return_url: Option<String>,
}

/// What the buyer needs to pay; at least one of the first three is there.
#[derive(Serialize, ToSchema)]
pub(super) struct Opened {
    /// Where the buyer pays. Null if the provider is paid by a code or inside its app only.
    payment_url: Option<String>,
    /// A code that the provider's app scans.
    qr: Option<ScannedCode>,
    /// What the provider's script inside its own app is called with.
    app: Option<serde_json::Value>,
    /// Until then it can be paid.
    expires_at: Option<i64>,
}

#[derive(Serialize, ToSchema)]
struct ScannedCode {
    text: String,
    /// The code drawn; null if the text is too long for one.
    svg: Option<String>,
}

impl ScannedCode {
    fn of(text: String) -> ScannedCode {
        ScannedCode { svg: qr_code::svg(&text), text }
    }
}

impl NewPayment {
    /// Everything is looked at before anything is opened.
    fn choice(self, app: &Shared, client: Option<IpAddr>) -> Result<PayChoice, Problem> {
        let good = |payer: &String| {
            (1..=PAYER_CHARS_MAX).contains(&payer.len())
                && payer.bytes().all(|b| b.is_ascii_graphic())
        };
        if !self.payer.as_ref().is_none_or(good) {
            let rule = format_args!("must be 1 to {PAYER_CHARS_MAX} visible ASCII characters");
            return Err(Problem::invalid("payer", rule));
        }
        let public_url = app.config.payment.public_url.as_str();
        let checked = |url: &String| return_url::checked(url, public_url, &app.origins);
        let return_url = self.return_url.as_ref().map(checked).transpose()?;
        // Where nobody has said where this site is, only our own cashier knows what a path is of.
        let followed = |url: &String| !url.starts_with('/') || self.provider == sandbox::NAME;
        Ok(PayChoice {
            method: self.method,
            payer: self.payer,
            client_ip: client,
            return_url: return_url.filter(followed),
            provider: self.provider,
        })
    }
}

/// Where this site is, as the buyer's browser sees it: a code is scanned by another device.
fn site(app: &Shared, headers: &HeaderMap) -> String {
    let public_url = app.config.payment.public_url.trim_end_matches('/');
    if !public_url.is_empty() {
        return public_url.to_owned();
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let proxied = app.config.http.proxy_hops > 0;
    let https = proxied && text("x-forwarded-proto") == Some("https");
    let host = text("host").unwrap_or_default();
    format!("{}://{host}", if https { "https" } else { "http" })
}

/// Open a payment for an unpaid order. Asking again gives the same address.
#[utoipa::path(post, path = "/orders/{no}/payments", tag = "buyer", security(("buyer" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    request_body = NewPayment,
    responses(
        (status = OK, body = Opened),
        (status = NOT_FOUND, description = "No such order of this buyer"),
        (status = CONFLICT, description = "It is not unpaid (see `state`), or its time is over"),
        (status = UNPROCESSABLE_ENTITY,
            description = "`invalid`: no such provider or method, or an address that buyers are \
                not sent to")))]
pub(super) async fn open(
    State(app): State<Shared>,
    Buyer(user): Buyer,
    Path(no): Path<OrderNo>,
    extensions: Extensions,
    headers: HeaderMap,
    Json(new): Json<NewPayment>,
) -> Result<Json<Opened>, Problem> {
    let choice = new.choice(&app, extensions.get::<Peer>().map(|peer| peer.0))?;
    let site = site(&app, &headers);
    let opened = finish(async move {
        let view = own(&app.engine, no, &user).await?;
        let opened = app.engine.payments().open(&view, choice).await?;
        let text = |text: String| if text.starts_with('/') { site + &text } else { text };
        let expires_at = match view {
            OrderView::Known(order) => Some(order.pay_deadline_ms),
            _ => None,
        };
        Ok::<_, Problem>(Opened {
            payment_url: opened.payment_url,
            qr: opened.qr.map(text).map(ScannedCode::of),
            app: opened.app,
            expires_at,
        })
    });
    Ok(Json(opened.await?))
}

/// A payment provider's notice. Believed only with the provider's signature over these very bytes.
#[utoipa::path(post, path = "/payments/{provider}/notify", tag = "payment",
    params(("provider" = inline(schemas::Provider), Path, description = "Whose notice it is")),
    request_body(content = String, content_type = "application/octet-stream",
        description = "As the provider signed it"),
    responses(
        (status = OK, description = "Accepted, in the provider's own words",
            content((serde_json::Value = "application/json"), (String = "text/plain"))),
        (status = BAD_REQUEST,
            description = "Not believed, or for no order of ours; in the provider's own words",
            content((serde_json::Value = "application/json"), (String = "text/plain"))),
        (status = NOT_FOUND, description = "No such provider")))]
pub(super) async fn notify(
    State(app): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let engine = app.engine.clone();
    if !engine.payments().has_provider(&name) {
        return Err(Problem::not_found());
    }
    let provider = name.clone();
    let outcome = finish(async move {
        let outcome = app.engine.payments().notice(&name, &headers, &body).await;
        if let Err(failure) = &outcome
            && !matches!(failure, NoticeFailure::NotBelieved(NoticeError::Probe))
            && let Some(notices) = NOT_ACCEPTED.count(Instant::now())
        {
            tracing::warn!(provider = name, %failure, notices, "a notice was not accepted");
        }
        Ok::<_, Problem>(outcome)
    })
    .await?;
    let answer = engine.payments().answer_to_notice(&provider, heard(&outcome));
    let (status, kind, text) = answer.ok_or_else(Problem::not_found)?;
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).map_err(Problem::internal)?;
    Ok(([(CONTENT_TYPE, kind)], response).into_response())
}

/// A notice that is not proved must not look like a fault of ours. One that is, and fits no order yet, may
/// be of an order that is still on its way to the ledger.
fn heard(outcome: &Result<(), NoticeFailure>) -> NoticeAnswer {
    match outcome {
        Ok(()) => NoticeAnswer::Accepted,
        Err(NoticeFailure::NotBelieved(_) | NoticeFailure::UnknownProvider) => {
            NoticeAnswer::NotBelieved
        }
        Err(_) => NoticeAnswer::TryAgain,
    }
}
