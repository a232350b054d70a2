//! The OpenAPI document: gathered from the routes themselves, completed here with what they share.

use std::sync::LazyLock;

use bytes::Bytes;
use http::StatusCode;
use ledger::DeadLetterState;
use sale::{ActivityState, ItemState, OrderStatus, Reason};
use utoipa::{
    ToSchema,
    openapi::{
        ComponentsBuilder, Content, ContentBuilder, InfoBuilder, ObjectBuilder, OpenApi, Ref,
        RefOr, Response, ResponseBuilder, Schema, Tag, Type,
        path::Operation,
        schema::SchemaType,
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
        tag::TagBuilder,
    },
};

use crate::{
    config::Config,
    problem::{CONTENT_TYPE_PROBLEM, Code, Lang},
};

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
    field: Option<String>,
    /// With `already_bought`.
    order_no: Option<String>,
    /// With `not_started`.
    opens_at: Option<i64>,
    /// With `conflict`: what it is instead.
    state: Option<String>,
    /// With `conflict`, if somebody else has changed an activity since: its version now.
    version: Option<i64>,
    /// With `conflict`, if somebody else has changed an activity since: what it is now.
    activity: Option<super::admin::activities::LedgerActivity>,
    /// When to try again, in milliseconds; the header `Retry-After` says it in seconds.
    retry_after_ms: Option<u64>,
}

/// The document as it is served and kept in the repository.
pub fn document() -> OpenApi {
    let mut document = super::routing_table(&Config::defaults().http).into_openapi();
    document.info = InfoBuilder::new()
        .title("Seckill")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(INTRODUCTION))
        .build();
    document.tags = Some(tags());
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

/// The bytes of the document; written once.
pub(super) fn served() -> Bytes {
    static WRITTEN: LazyLock<Bytes> = LazyLock::new(|| {
        // What utoipa builds always serializes; an empty answer would be seen by the snapshot test.
        Bytes::from(document().to_pretty_json().unwrap_or_default())
    });
    WRITTEN.clone()
}

const INTRODUCTION: &str = "A flash-sale engine. Times are Unix milliseconds, amounts are integers \
of minor units. A request may also give a time as ISO 8601 with an offset. Every error is `application/problem+json` with a stable `code`, in the language of \
`Accept-Language` (zh, en).";

fn tags() -> Vec<Tag> {
    let tag = |name: &str, text: &str| TagBuilder::new().name(name).description(Some(text)).build();
    vec![
        tag("public", "What anybody may see."),
        tag("buyer", "What a buyer does, by the shop's JWT or a sale token."),
        tag("payment", "Payment providers, and the sandbox that stands in for one."),
        tag(
            "admin",
            "What operators do. Roles: viewer reads, operator runs sales, admin does all.",
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
    let found = document.components.take().unwrap_or_default();
    let components = ComponentsBuilder::from(found)
        .schema(ProblemSchema::name(), <ProblemSchema as utoipa::PartialSchema>::schema())
        .security_scheme("buyer", bearer("JWT", "The shop's JWT; its `sub` is the buyer."))
        .security_scheme("sale_token", SecurityScheme::ApiKey(ApiKey::Header(sale_token)))
        .security_scheme("operator", bearer("sk_admin_…", "An admin token with a role."));
    document.components = Some(components.build());
}

/// Every answer has a description, which the format demands; every refusal is a problem, those that
/// a handler does not name among them.
fn explain_answers(operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    for (status, response) in responses.iter_mut() {
        let RefOr::T(response) = response else { continue };
        if response.description.is_empty() {
            let status = status.parse().ok().and_then(|code| StatusCode::from_u16(code).ok());
            response.description = status.and_then(|s| s.canonical_reason()).unwrap_or("").into();
        }
        if status.starts_with('4') || status.starts_with('5') {
            response.content.insert(CONTENT_TYPE_PROBLEM.into(), RefOr::T(problem_content()));
        }
    }
    responses.insert("default".into(), RefOr::T(any_refusal()));
}

fn any_refusal() -> Response {
    ResponseBuilder::new()
        .description("Any other refusal, see `code`")
        .content(CONTENT_TYPE_PROBLEM, problem_content())
        .build()
}

fn problem_content() -> Content {
    let schema = Ref::from_schema_name(ProblemSchema::name());
    ContentBuilder::new().schema(Some(schema)).build()
}

fn one_of(description: &str, values: impl IntoIterator<Item = &'static str>) -> Schema {
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
    let either = SchemaType::Array(vec![Type::String, Type::Null]);
    let text = ObjectBuilder::new()
        .schema_type(either)
        .description(Some("Why it was closed or is void."))
        .enum_values(Some(
            Reason::ALL.map(|reason| Some(reason.as_str())).into_iter().chain([None]),
        ));
    Schema::Object(text.build())
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

pub(super) fn item_state() -> Schema {
    one_of("`ready`: at the gate.", ItemState::ALL.map(ItemState::as_str))
}
