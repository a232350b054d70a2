//! Paying an order, and hearing from the providers that it was paid.

use std::time::{Duration, Instant};

use axum::{
    body::{Body, Bytes},
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use sale::OrderNo;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Shared, finish::finish, orders::own, schemas};
use crate::{
    access::Buyer,
    extract::{Json, Path},
    logging::Seldom,
    problem::Problem,
};
use engine::{NoticeFailure, PayChoice};
use payment::{NoticeAnswer, NoticeError};

/// Anybody can post a notice, as fast as the network lets them.
static NOT_ACCEPTED: Seldom = Seldom::once_per(Duration::from_secs(1));

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewPayment {
    #[schema(schema_with = schemas::provider)]
    provider: String,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Opened {
    /// Where the buyer pays. Null if the provider is paid by a code or inside its app only.
    payment_url: Option<String>,
}

/// Open a payment for an unpaid order. Asking again gives the same address.
#[utoipa::path(post, path = "/orders/{no}/payments", tag = "buyer", security(("buyer" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    request_body = NewPayment,
    responses(
        (status = OK, body = Opened),
        (status = NOT_FOUND, description = "No such order of this buyer"),
        (status = CONFLICT, description = "It is not unpaid (see `state`), or its time is over"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: no such provider")))]
pub(super) async fn open(
    State(app): State<Shared>,
    Buyer(user): Buyer,
    Path(no): Path<OrderNo>,
    Json(new): Json<NewPayment>,
) -> Result<Json<Opened>, Problem> {
    let opened = finish(async move {
        let view = own(&app.engine, no, &user).await?;
        let choice = PayChoice::at(new.provider);
        let opened = app.engine.payments().open(&view, choice).await?;
        Ok::<_, Problem>(Opened { payment_url: opened.payment_url })
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
