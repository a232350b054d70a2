//! Admin tokens: who may operate, and as what. Only admins look in here.

use auth::{generate_admin_token, token_hash};
use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header::CACHE_CONTROL};
use ledger::{AdminToken, Role, TokenBounds};
use limits::Network;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::{Shared, finish::finish, refusals::conflict, roles::AsAdmin, schemas};
use crate::{
    extract::{Json, Path},
    problem::{Code, Problem},
};
use engine::OperateError;

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Tokens {
    tokens: Vec<TokenEntry>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct TokenEntry {
    name: String,
    role: TokenRole,
    created_at: i64,
    /// Absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at: Option<i64>,
    /// Within a minute or so. Absent: it was not used yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_used_at: Option<i64>,
    /// From where it may be used; none is from anywhere.
    addresses: Vec<String>,
}

/// Ranges of addresses that one token may be bound to.
const ADDRESSES_MAX: usize = 32;
/// A token that lives longer than ten years is one for ever.
const TTL_MS_MAX: u64 = 10 * 366 * 24 * 60 * 60 * 1_000;

/// What a token may do. An operator may do all that a viewer may, and an admin everything.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum TokenRole {
    /// Read.
    Viewer,
    /// Run sales.
    Operator,
    /// Everything.
    Admin,
    /// Tell of money that the shop's own cashier took or gave back, and nothing else.
    Cashier,
}

impl From<TokenRole> for Role {
    fn from(role: TokenRole) -> Self {
        match role {
            TokenRole::Viewer => Role::Viewer,
            TokenRole::Operator => Role::Operator,
            TokenRole::Admin => Role::Admin,
            TokenRole::Cashier => Role::Cashier,
        }
    }
}

impl From<AdminToken> for TokenEntry {
    fn from(token: AdminToken) -> Self {
        let role = match token.role {
            Role::Viewer => TokenRole::Viewer,
            Role::Operator => TokenRole::Operator,
            Role::Admin => TokenRole::Admin,
            Role::Cashier => TokenRole::Cashier,
        };
        TokenEntry {
            name: token.name,
            role,
            created_at: token.created_ms,
            expires_at: token.bounds.expires_ms,
            last_used_at: token.last_used_ms,
            addresses: token.bounds.addresses,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NewToken {
    #[schema(schema_with = schemas::token_name)]
    name: String,
    role: TokenRole,
    /// How long it is good; 0 is for ever. Absent: `auth.admin_token_ttl_ms` of the settings.
    #[serde(default)]
    #[schema(maximum = 316224000000_u64)]
    ttl_ms: Option<u64>,
    /// Addresses and ranges it may be used from, such as `10.0.0.0/8` or `2001:db8::7`. None: anywhere.
    #[serde(default)]
    #[schema(max_items = 32)]
    addresses: Vec<String>,
}

impl NewToken {
    fn bounds(&self, default_ttl_ms: u64, now_ms: i64) -> Result<TokenBounds, Problem> {
        let ttl_ms = self.ttl_ms.unwrap_or(default_ttl_ms);
        if ttl_ms > TTL_MS_MAX {
            let rule = format_args!("must be at most {TTL_MS_MAX}; 0 is for ever");
            return Err(Problem::invalid("ttl_ms", rule));
        }
        if self.addresses.len() > ADDRESSES_MAX {
            let rule = format_args!("must be at most {ADDRESSES_MAX} ranges");
            return Err(Problem::invalid("addresses", rule));
        }
        let read = |range: &String| match range.parse::<Network>() {
            Ok(network) => Ok(network.to_string()),
            Err(cause) => {
                Err(Problem::invalid("addresses", format_args!("must be ranges: {cause}")))
            }
        };
        let addresses = self.addresses.iter().map(read).collect::<Result<_, _>>()?;
        let expires_ms = (ttl_ms > 0).then(|| now_ms.saturating_add_unsigned(ttl_ms));
        Ok(TokenBounds { expires_ms, addresses })
    }
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct MadeToken {
    name: String,
    role: TokenRole,
    /// Absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at: Option<i64>,
    /// Shown this once; only its hash is kept.
    token: String,
}

/// All tokens that were not revoked, without the tokens themselves. Needs the role admin.
#[utoipa::path(get, path = "/admin/tokens", tag = "admin", security(("operator" = [])),
    responses((status = OK, body = Tokens)))]
pub(in super::super) async fn list(
    State(app): State<Shared>,
    _: AsAdmin,
) -> Result<Json<Tokens>, Problem> {
    let found = app.engine.tokens().all().await?;
    Ok(Json(Tokens { tokens: found.into_iter().map(Into::into).collect() }))
}

/// Make a token. It is in this answer and nowhere else. Needs the role admin.
#[utoipa::path(post, path = "/admin/tokens", tag = "admin", security(("operator" = [])),
    request_body = NewToken,
    responses(
        (status = CREATED, body = MadeToken),
        (status = CONFLICT, description = "A token has that name, or had it and is revoked (see `state`)"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`, with the `field`")))]
pub(in super::super) async fn create(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Json(new): Json<NewToken>,
) -> Result<Response, Problem> {
    let bounds = new.bounds(app.config.auth.admin_token_ttl_ms, app.engine.now_ms())?;
    let token = generate_admin_token().map_err(Problem::internal)?;
    let made = finish(async move {
        let engine = &app.engine;
        let role = Role::from(new.role);
        let made = engine.tokens().make(&who, &new.name, role, &token_hash(&token), &bounds).await;
        made.map_err(name_taken)?;
        app.admins.forget();
        let expires_at = bounds.expires_ms;
        Ok::<_, Problem>(MadeToken { name: new.name, role: new.role, expires_at, token })
    });
    let made = made.await?;
    Ok((StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], Json(made)).into_response())
}

fn name_taken(error: OperateError) -> Problem {
    let OperateError::Conflict(state) = error else { return error.into() };
    conflict(state).detail(
        format!("A token of that name is {state}. Names are given once: choose another."),
        format!("该名称的令牌已存在（{state}）。名称不可重复使用，请另选一个。"),
    )
}

/// Revoke a token. Other processes believe it for a second longer; its name is not given again. Needs
/// the role admin.
#[utoipa::path(delete, path = "/admin/tokens/{name}", tag = "admin", security(("operator" = [])),
    params(("name" = inline(schemas::TokenName), Path, description = "The token's name")),
    responses(
        (status = NO_CONTENT, description = "It is revoked"),
        (status = NOT_FOUND, description = "No such token"),
        (status = CONFLICT, description = "It is the token you are using")))]
pub(in super::super) async fn revoke(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    // Whoever could revoke their own could lock everybody out.
    if name == *who {
        let own = ("You cannot revoke the token you are using.", "不能吊销正在使用的令牌。");
        return Err(Problem::new(Code::Conflict).detail(own.0, own.1));
    }
    finish(async move {
        app.engine.tokens().revoke(&who, &name).await?;
        app.admins.forget();
        Ok::<_, Problem>(StatusCode::NO_CONTENT)
    })
    .await
}
