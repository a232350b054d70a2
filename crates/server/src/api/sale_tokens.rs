//! Challenges and sale tokens: solved and got before the opening, so that the opening itself carries claims
//! and nothing else.

use axum::{
    extract::{FromRequest, Request, State},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use engine::{CoolReason, GivenSolution, MadeChallenge, NotLetIn, OnShow};
use http::{HeaderValue, header::CACHE_CONTROL};
use sale::{CODE_CHARS, Challenge, ChallengeKind, ItemId, Millis, SOLUTION_CHARS_MAX};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use utoipa::ToSchema;

use super::{App, Shared, schemas};
use crate::{
    access::Buyer,
    extract::{Json, Path},
    problem::{Code, Problem},
};

/// Nothing at all is as good as an empty object.
pub(super) struct OptionalJson<T>(T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(http::header::CONTENT_TYPE).cloned();
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(crate::extract::body_problem)?;
        if bytes.is_empty() {
            return Ok(OptionalJson(T::default()));
        }
        let Json(body) = Json::read(kind.as_ref().map(HeaderValue::as_bytes), &bytes)?;
        Ok(OptionalJson(body))
    }
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChallengeWish {
    /// `pow`: without a picture. Where there would be one the machine works eight times as long instead.
    #[schema(schema_with = schemas::wished_challenge)]
    kind: Option<WishedKind>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WishedKind {
    Pow,
}

/// A challenge as ALTCHA has it, version 2 of its protocol, and what it is about.
#[derive(Serialize, ToSchema)]
#[schema(as = Challenge)]
pub(super) struct ChallengeJson {
    #[schema(schema_with = schemas::challenge_kind)]
    kind: &'static str,
    /// It can be solved until then.
    expires_at: i64,
    /// What to solve. Unknown to whoever uses a library or the widget, which is given this whole answer.
    #[schema(schema_with = schemas::challenge_parameters)]
    parameters: serde_json::Value,
    signature: String,
    /// The picture, where there is one to be read.
    #[serde(rename = "codeChallenge", skip_serializing_if = "Option::is_none")]
    code_challenge: Option<CodeChallenge>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct CodeChallenge {
    /// A PNG as a `data:` address.
    image: String,
    /// How many letters there are.
    length: usize,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SolvedChallenge {
    /// The solution as ALTCHA's solvers give it: the base64 of a JSON object with `challenge` and `solution`.
    #[schema(schema_with = schemas::altcha)]
    altcha: Option<String>,
    /// The letters of the picture, where there is one.
    #[schema(schema_with = schemas::code)]
    code: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SaleToken)]
pub(super) struct SaleTokenJson {
    token: String,
    expires_at: i64,
    /// From when this buyer may claim: earlier than the item's `opens_at` for members who come first.
    opens_at: i64,
}

impl ChallengeJson {
    fn of(made: MadeChallenge) -> ChallengeJson {
        let Challenge { parameters, signature } = made.challenge;
        let image = |picture: Vec<u8>| CodeChallenge {
            image: format!("data:image/png;base64,{}", STANDARD.encode(picture)),
            length: CODE_CHARS,
        };
        ChallengeJson {
            kind: made.kind.as_str(),
            expires_at: made.expires_ms,
            parameters: serde_json::to_value(parameters).unwrap_or_default(),
            signature,
            code_challenge: made.picture.map(image),
        }
    }
}

async fn shown(app: &App, id: i64) -> Result<OnShow, Problem> {
    app.engine.catalogue().item(ItemId(id)).await?.ok_or_else(Problem::not_found)
}

/// A challenge to be solved before a sale token is given, for this buyer and item alone.
///
/// Its answer is what ALTCHA's widget and libraries take as a challenge. Where the sale has none, one is
/// given all the same, and nobody asks for its solution.
#[utoipa::path(post, path = "/items/{id}/challenge", tag = "buyer", security(("buyer" = [])),
    params(("id" = i64, Path, description = "The item")),
    request_body(content = Option<ChallengeWish>),
    responses(
        (status = OK, body = ChallengeJson),
        (status = FORBIDDEN, description = "`ended`, or `not_started`: too early (see `token_from`)"),
        (status = NOT_FOUND, description = "No such item"),
        (status = TOO_MANY_REQUESTS,
            description = "`cooling_down` (see `reason`), with Retry-After")))]
pub(super) async fn challenge(
    State(app): State<Shared>,
    Buyer(user): Buyer,
    Path(id): Path<i64>,
    OptionalJson(wish): OptionalJson<ChallengeWish>,
) -> Result<Response, Problem> {
    let shown = shown(&app, id).await?;
    let (instead, now_ms) = (wish.kind == Some(WishedKind::Pow), app.engine.now_ms());
    let made = app.engine.sale_tokens().challenge(&user, &shown, instead);
    let made = made.map_err(|why| not_let_in(why, &shown, now_ms))?;
    let mut answer = Json(ChallengeJson::of(made)).into_response();
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}

/// A sale token for one item, to be sent with the claim as `X-Sale-Token`.
///
/// Where the sale has a challenge its solution is sent along. It is good once, right or wrong.
#[utoipa::path(post, path = "/items/{id}/token", tag = "buyer", security(("buyer" = [])),
    params(("id" = i64, Path, description = "The item")),
    request_body(content = Option<SolvedChallenge>),
    responses(
        (status = OK, body = SaleTokenJson),
        (status = FORBIDDEN, description = "`ended`, `not_started` (see `token_from`), `bad_challenge` (see \
            `challenge` and `reason`), or `not_eligible` (see `reason`)"),
        (status = NOT_FOUND, description = "No such item"),
        (status = TOO_MANY_REQUESTS,
            description = "`cooling_down` (see `reason`), with Retry-After")))]
pub(super) async fn issue(
    State(app): State<Shared>,
    Buyer(user): Buyer,
    Path(id): Path<i64>,
    OptionalJson(solved): OptionalJson<SolvedChallenge>,
) -> Result<Json<SaleTokenJson>, Problem> {
    check_length("altcha", solved.altcha.as_deref(), SOLUTION_CHARS_MAX)?;
    check_length("code", solved.code.as_deref(), schemas::CODE_CHARS_MAX)?;
    let engine = &app.engine;
    let shown = shown(&app, id).await?;
    let now_ms = engine.now_ms();
    let ttl_ms = app.config.auth.sale_token_ttl_ms as Millis;
    let solution = solved.altcha.as_deref();
    let solution = solution.map(|altcha| GivenSolution { altcha, code: solved.code.as_deref() });
    let token = engine.sale_tokens().token(&user, &shown, ttl_ms, solution).await;
    let token = token.map_err(|why| not_let_in(why, &shown, now_ms))?;
    Ok(Json(SaleTokenJson {
        token: token.sign(engine.keys()),
        expires_at: token.expires_ms,
        opens_at: token.from_ms.unwrap_or(shown.activity().first_claim_ms()),
    }))
}

fn check_length(field: &str, text: Option<&str>, chars_max: usize) -> Result<(), Problem> {
    match text {
        Some(text) if text.chars().count() > chars_max => {
            Err(Problem::invalid(field, format_args!("must be at most {chars_max} characters")))
        }
        _ => Ok(()),
    }
}

fn not_let_in(why: NotLetIn, shown: &OnShow, now_ms: Millis) -> Problem {
    let kind = shown.activity().door.challenge;
    match why {
        NotLetIn::Ended => Code::Ended.into(),
        NotLetIn::TooEarly { from_ms } => Problem::not_started(shown.activity().opens_ms)
            .detail(
                "It is too early: sale tokens are given a little before the opening.",
                "尚未到领取抢购令牌的时间，请在开抢前再试。",
            )
            .with("token_from", from_ms)
            .retry_after_ms((from_ms - now_ms).max(0) as u64),
        NotLetIn::Unsolved(kind) => bad_challenge(kind, "missing")
            .detail("This sale has a challenge to be solved first.", "该活动需先完成验证。"),
        NotLetIn::BadChallenge(why) => bad_challenge(kind, why.as_str()),
        NotLetIn::CoolingDown { until_ms, reason } => cooling_down(until_ms, reason, now_ms),
        NotLetIn::NotEligible(why) => Problem::new(Code::NotEligible).with("reason", why.as_str()),
        NotLetIn::Unknown(why) => Problem::busy(why),
        NotLetIn::Ledger(error) => error.into(),
    }
}

fn bad_challenge(kind: ChallengeKind, reason: &str) -> Problem {
    Problem::new(Code::BadChallenge).with("challenge", kind.as_str()).with("reason", reason)
}

/// The buyer has to wait: after too many orders that were not paid, or too many wrong answers.
pub(super) fn cooling_down(until_ms: Millis, reason: CoolReason, now_ms: Millis) -> Problem {
    let wait_ms = (until_ms - now_ms).max(1);
    let problem = Problem::new(Code::CoolingDown);
    let problem = match reason {
        CoolReason::UnpaidOrders => problem,
        CoolReason::WrongAnswers => problem.detail(
            "There were too many wrong answers. Please try again later.",
            "验证错误次数过多，请稍后再试。",
        ),
    };
    problem.with("reason", reason.as_str()).retry_after_ms(wait_ms as u64)
}
