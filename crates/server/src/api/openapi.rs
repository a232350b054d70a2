//! The OpenAPI document: gathered from the routes themselves, completed here with what they share.
//!
//! What is served is the file in the repository, which [`pages`] has packed. Builds with debug assertions
//! gather the document, and their tests hold the two together; others need not have the code that describes
//! every field of every answer, which is as large as a tenth of all that sells.
#![cfg_attr(
    not(debug_assertions),
    allow(dead_code, unused_imports, reason = "only the document needs it")
)]

use http::StatusCode;
use ledger::DeadLetterState;
use sale::{ActivityState, DrawOutcome, ItemState, OrderStatus, Reason};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{
    ToSchema,
    openapi::{
        ComponentsBuilder, Content, ContentBuilder, Header, HeaderBuilder, InfoBuilder,
        ObjectBuilder, OneOfBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, Schema, Tag,
        Type,
        extensions::ExtensionsBuilder,
        path::{Operation, ParameterIn},
        request_body::RequestBody,
        schema::SchemaType,
        security::{
            ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
        },
        tag::TagBuilder,
    },
};

use crate::problem::{CONTENT_TYPE_PROBLEM, Code, Lang};
use config::Config;

/// Our schemes know no scopes; roles are the server's affair.
const NO_SCOPES: [&str; 0] = [];

/// What every error looks like.
#[derive(ToSchema)]
#[schema(as = Problem)]
#[expect(dead_code, reason = "it only describes what `problem` writes")]
struct ProblemSchema {
    /// Where the code is explained.
    #[schema(example = "/docs#sold_out")]
    r#type: String,
    /// In the language of `Accept-Language`: Chinese or English.
    title: String,
    status: u16,
    /// A sentence for people.
    detail: String,
    /// For programs; these never change their meaning.
    #[schema(schema_with = problem_code)]
    code: String,
    /// With `invalid`: which part of the request.
    #[schema(nullable = false)]
    field: Option<String>,
    /// With `already_bought`.
    #[schema(nullable = false)]
    order_no: Option<String>,
    /// With `not_started`.
    #[schema(nullable = false)]
    opens_at: Option<i64>,
    /// With `conflict`: what it is instead.
    #[schema(nullable = false)]
    state: Option<String>,
    /// With `conflict`, if somebody else has changed an activity since: its version now.
    #[schema(nullable = false)]
    version: Option<i64>,
    /// With `conflict`, if somebody else has changed an activity since: what it is now.
    #[schema(nullable = false)]
    activity: Option<super::admin::activities::LedgerActivity>,
    /// With `sold_out`: some units are left, but fewer than were asked for.
    #[schema(nullable = false)]
    left: Option<i64>,
    /// With `busy`: `paused` by an operator.
    #[schema(nullable = false)]
    reason: Option<String>,
    /// With `busy`: the number to ask again with, for it may have been done.
    #[schema(nullable = false)]
    adjust_no: Option<String>,
    /// With `conflict`: the activity that has this `external_id` already.
    #[schema(nullable = false)]
    activity_id: Option<i64>,
    /// With `key_reused` of an operator: what was made under the key.
    #[schema(nullable = false)]
    activity_ids: Option<Vec<i64>>,
    /// With `invalid` of an import: the first hundred mistakes.
    #[schema(nullable = false)]
    errors: Option<Vec<ImportMistake>>,
    /// How many there are in all.
    #[schema(nullable = false)]
    errors_total: Option<u64>,
    /// With `amount_mismatch`: what it must be.
    #[schema(nullable = false)]
    amount: Option<i64>,
    #[schema(nullable = false)]
    currency: Option<String>,
    /// When to try again, in milliseconds; the header `Retry-After` says it in seconds.
    #[schema(nullable = false)]
    retry_after_ms: Option<u64>,
    /// Of `/readyz`: `ok` or `down`, as the other parts.
    #[schema(nullable = false)]
    gate: Option<String>,
    #[schema(nullable = false)]
    lanes: Option<String>,
    #[schema(nullable = false)]
    ledger: Option<String>,
    #[schema(nullable = false)]
    workers: Option<String>,
    /// Of `/readyz`: `ok` or `panicking`.
    #[schema(nullable = false)]
    jobs: Option<String>,
}

/// One thing that is wrong with what was to be imported.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what `refusals` writes")]
struct ImportMistake {
    #[schema(example = "activities[0].items[2].price")]
    field: String,
    /// Continues a sentence that begins with the field.
    problem: String,
    /// The same in Chinese, where somebody wrote it.
    problem_zh: String,
}

/// What a code means, for people in both languages and for programs. The page of the API has a table of it.
#[derive(Serialize)]
struct ExplainedCode {
    code: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    en: Sentences,
    zh: Sentences,
}

#[derive(Serialize)]
struct Sentences {
    title: &'static str,
    detail: &'static str,
}

fn codes() -> Value {
    let explained = |code: &Code| {
        let say = |lang| Sentences { title: code.title(lang), detail: code.detail(lang) };
        let (status, retry_after_ms) = (code.status().as_u16(), code.retry_after_ms());
        let (en, zh) = (say(Lang::En), say(Lang::Zh));
        ExplainedCode { code: code.as_str(), status, retry_after_ms, en, zh }
    };
    json!(Code::ALL.iter().map(explained).collect::<Vec<_>>())
}

/// The document as it is kept in the repository and served.
#[cfg(debug_assertions)]
pub fn document() -> OpenApi {
    let mut document = super::routing_table(&Config::defaults().http).into_openapi();
    document.info = InfoBuilder::new()
        .title("Seckill")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(INTRODUCTION))
        .build();
    document.tags = Some(tags());
    document.extensions = Some(ExtensionsBuilder::new().add("x-codes", codes()).build());
    add_components(&mut document);
    for (path, item) in &mut document.paths.paths {
        let operations = [
            ("get", &mut item.get),
            ("post", &mut item.post),
            ("put", &mut item.put),
            ("patch", &mut item.patch),
            ("delete", &mut item.delete),
        ];
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            operation.operation_id = Some(operation_id(method, path));
            explain_answers(operation);
            if let Some(RefOr::T(body)) = &mut operation.request_body {
                leave_out_null(body);
            }
        }
    }
    document
}

/// By method and path: handlers are named for the noun they live in, so their names repeat.
fn operation_id(method: &str, path: &str) -> String {
    let path = path.strip_prefix(super::BASE).unwrap_or(path);
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(method.to_owned(), |id, word| format!("{id}_{word}"))
}

const INTRODUCTION: &str = "A flash-sale engine. Times are Unix milliseconds, amounts are integers \
of minor units. A request may also give a time as ISO 8601 with an offset. Every error is \
`application/problem+json` with a stable `code`, in the language of `Accept-Language` (zh, en).";

fn tags() -> Vec<Tag> {
    let tag = |name: &str, text: &str| TagBuilder::new().name(name).description(Some(text)).build();
    vec![
        tag("public", "What anybody may see."),
        tag("buyer", "What a buyer does, by the shop's JWT or a sale token."),
        tag("payment", "Payment providers, and the sandbox that stands in for one."),
        tag(
            "shop",
            "What the shop's backend tells of money at its own cashier: signed as Standard Webhooks says, or \
             by a token of the role cashier.",
        ),
        tag(
            "admin",
            "What operators do. Roles: viewer reads, operator runs sales, admin does all. The role \
             cashier does none of this.",
        ),
        tag("machine", "For load balancers, monitors and tools."),
    ]
}

fn add_components(document: &mut OpenApi) {
    let bearer = |format: &str, text: &str| {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format(format);
        SecurityScheme::Http(scheme.description(Some(text)).build())
    };
    let sale_token = ApiKeyValue::with_description(
        "X-Sale-Token",
        "From `POST /api/v1/items/{id}/token`. It names the buyer and the item.",
    );
    let shop = ApiKeyValue::with_description(
        "webhook-signature",
        "Of the shop's backend, as Standard Webhooks says, beside `webhook-id` and `webhook-timestamp`: \
         HMAC-SHA256 over `id.timestamp.body` with a secret of `payment.external.secrets`.",
    );
    let found = document.components.take().unwrap_or_default();
    let components = ComponentsBuilder::from(found)
        .schema(ProblemSchema::name(), <ProblemSchema as utoipa::PartialSchema>::schema())
        .schema(ImportMistake::name(), <ImportMistake as utoipa::PartialSchema>::schema())
        .security_scheme("buyer", bearer("JWT", "The shop's JWT; its `sub` is the buyer."))
        .security_scheme("sale_token", SecurityScheme::ApiKey(ApiKey::Header(sale_token)))
        .security_scheme("shop", SecurityScheme::ApiKey(ApiKey::Header(shop)))
        .security_scheme("operator", bearer("sk_admin_…", "An admin token with a role."));
    document.components = Some(components.build());
}

/// A body that may be left out is left out, and never null: some makers of clients make nonsense of both.
fn leave_out_null(body: &mut RequestBody) {
    for content in body.content.values_mut() {
        if let RefOr::T(content) = content
            && let Some(RefOr::T(Schema::OneOf(either))) = &content.schema
            && let [thing @ RefOr::Ref(_), RefOr::T(_)] | [RefOr::T(_), thing @ RefOr::Ref(_)] =
                &either.items[..]
        {
            content.schema = Some(thing.clone());
        }
    }
}

/// Every answer has a description, which the format demands; every refusal is a problem, those that
/// a handler does not name among them.
fn explain_answers(operation: &mut Operation) {
    let usual = usual_refusals(operation);
    let responses = &mut operation.responses.responses;
    for (status, description) in usual {
        let answer = || RefOr::T(refusal(description));
        responses.entry(status.as_str().to_owned()).or_insert_with(answer);
    }
    for (status, response) in responses.iter_mut() {
        let RefOr::T(response) = response else { continue };
        if response.description.is_empty() {
            let status = status.parse().ok().and_then(|code| StatusCode::from_u16(code).ok());
            response.description = status.and_then(|s| s.canonical_reason()).unwrap_or("").into();
        }
        if status.starts_with('4') || status.starts_with('5') {
            response.content.insert(CONTENT_TYPE_PROBLEM.into(), RefOr::T(problem_content()));
        }
        if let Some((name, header)) = headers_of(status) {
            response.headers.insert(name.into(), RefOr::T(header));
        }
    }
}

/// The refusals that an operation has because of what it takes, and that no handler names. There is
/// no `default`: a status that is not listed is a fault, and the stories look for it.
fn usual_refusals(operation: &Operation) -> Vec<(StatusCode, &'static str)> {
    let takes = |place: ParameterIn| {
        let mut parameters = operation.parameters.iter().flatten();
        parameters.any(|one| matches!(one, RefOr::T(one) if one.parameter_in == place))
    };
    let body = operation.request_body.as_ref();
    let is_json = |body: &RequestBody| body.content.contains_key("application/json");
    let json = body.is_some_and(|body| matches!(body, RefOr::T(body) if is_json(body)));
    let fields = json || takes(ParameterIn::Query) || takes(ParameterIn::Header);
    let needs = |scheme: &str| {
        let scheme = SecurityRequirement::new(scheme, NO_SCOPES);
        operation.security.iter().flatten().any(|needed| *needed == scheme)
    };
    [
        (true, StatusCode::BAD_REQUEST, "`bad_request`: it is not HTTP as we know it"),
        (needs("buyer"), StatusCode::UNAUTHORIZED, "`unauthorized`: no token, or not a good one"),
        (
            needs("operator"),
            StatusCode::UNAUTHORIZED,
            "`unauthorized`: no token, or not a good one",
        ),
        (needs("operator"), StatusCode::FORBIDDEN, "`forbidden`: the role of this token may not"),
        (takes(ParameterIn::Path), StatusCode::NOT_FOUND, "`not_found`"),
        (
            body.is_some(),
            StatusCode::REQUEST_TIMEOUT,
            "`request_timeout`: the body came too slowly",
        ),
        (body.is_some(), StatusCode::PAYLOAD_TOO_LARGE, "`too_large`"),
        (json, StatusCode::UNSUPPORTED_MEDIA_TYPE, "`unsupported_media_type`: it is not JSON"),
        (fields, StatusCode::UNPROCESSABLE_ENTITY, "`invalid`, with the `field`"),
        (true, StatusCode::INTERNAL_SERVER_ERROR, "`internal`: a fault of ours"),
        (true, StatusCode::SERVICE_UNAVAILABLE, "`busy`: nothing was decided, with Retry-After"),
        (true, StatusCode::GATEWAY_TIMEOUT, "`unknown`: it may have been done; ask again"),
    ]
    .into_iter()
    .filter_map(|(may, status, description)| may.then_some((status, description)))
    .collect()
}

fn refusal(description: &str) -> Response {
    ResponseBuilder::new().description(description).build()
}

/// The headers that go with this status.
fn headers_of(status: &str) -> Option<(&'static str, Header)> {
    let header = |kind: Type, description: &str| {
        let schema = ObjectBuilder::new().schema_type(kind);
        HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
    };
    match status {
        "401" => Some(("WWW-Authenticate", header(Type::String, "`Bearer`"))),
        "429" | "503" | "504" => Some(("Retry-After", header(Type::Integer, "Seconds"))),
        _ => None,
    }
}

fn problem_content() -> Content {
    let schema = Ref::from_schema_name(ProblemSchema::name());
    ContentBuilder::new().schema(Some(schema)).build()
}

pub(super) fn one_of(description: &str, values: impl IntoIterator<Item = &'static str>) -> Schema {
    let text = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
    Schema::Object(text.description(Some(description)).enum_values(Some(values)).build())
}

fn problem_code() -> Schema {
    let line = |code: &Code| {
        format!("- `{}` ({}): {}", code.as_str(), code.status().as_u16(), code.detail(Lang::En))
    };
    let lines: Vec<String> = Code::ALL.iter().map(line).collect();
    let description = format!("For programs; they never change.\n\n{}", lines.join("\n"));
    one_of(&description, Code::ALL.iter().map(|code| code.as_str()))
}

pub(super) fn order_status() -> Schema {
    let description = "`queued`: admitted, on its way to the ledger.";
    one_of(description, OrderStatus::ALL.map(OrderStatus::as_str))
}

pub(super) fn reason() -> Schema {
    one_of_or_null("Why it was closed or is void.", Reason::ALL.map(Reason::as_str))
}

/// One of these words, or nothing. As two kinds, because those who make clients from the document make an
/// enumeration of the one; of words with a null among them they make nonsense.
pub(super) fn one_of_or_null(
    description: &str,
    values: impl IntoIterator<Item = &'static str>,
) -> Schema {
    let words = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
    let nothing = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Null));
    let either = OneOfBuilder::new().item(words.enum_values(Some(values))).item(nothing);
    Schema::OneOf(either.description(Some(description)).build())
}

pub(super) fn failed_state() -> Schema {
    let states = [DeadLetterState::Retrying, DeadLetterState::Dead];
    one_of("Why it is no order yet.", states.map(DeadLetterState::as_str))
}

/// Buyers see no drafts.
pub(super) fn shown_activity_state() -> Schema {
    let states = [ActivityState::Published, ActivityState::Paused, ActivityState::Ended];
    one_of("By operator and clock.", states.map(ActivityState::as_str))
}

pub(super) fn activity_state() -> Schema {
    one_of("As the ledger knows it.", ActivityState::ALL.map(ActivityState::as_str))
}

pub(super) fn draw_outcome() -> Schema {
    let about = "`refused`: for another reason than the stock. `left`: the client had gone before the draw.";
    one_of(about, DrawOutcome::ALL.map(DrawOutcome::as_str))
}

pub(super) fn item_state() -> Schema {
    one_of("`ready`: at the gate.", ItemState::ALL.map(ItemState::as_str))
}
