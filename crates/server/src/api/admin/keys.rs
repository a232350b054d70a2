//! Signing keys: which there are, a new one, and one taken away. Only admins look in here.

use axum::extract::State;
use engine::{KEY_LEAD_MS, KEY_LEAD_MS_MAX, KeyState, KnownKey};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::{Shared, finish::finish, roles::AsAdmin};
use crate::{
    extract::{Json, Path},
    problem::Problem,
};

#[derive(Serialize, ToSchema)]
pub(in super::super) struct SigningKeyList {
    keys: Vec<SigningKeyEntry>,
}

/// A key that signs sale tokens, receipts and tickets. The key itself is never shown.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct SigningKeyEntry {
    /// 0 is the one that is made of the deployment's own secret.
    id: u8,
    state: SigningKeyState,
    /// Absent for the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    created_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    signs_from: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retired_at: Option<i64>,
}

#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum SigningKeyState {
    /// It will sign.
    Next,
    Signing,
    /// What it signed is still good.
    Verifying,
    /// What it signed is void.
    Retired,
}

impl From<KnownKey> for SigningKeyEntry {
    fn from(key: KnownKey) -> Self {
        let state = match key.state {
            KeyState::Next => SigningKeyState::Next,
            KeyState::Signing => SigningKeyState::Signing,
            KeyState::Verifying => SigningKeyState::Verifying,
            KeyState::Retired => SigningKeyState::Retired,
        };
        SigningKeyEntry {
            id: key.id,
            state,
            created_at: key.created_ms,
            signs_from: key.signs_from_ms,
            retired_at: key.retired_ms,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NewSigningKey {
    /// After how long it signs; until then every instance learns of it. Absent: five minutes.
    #[serde(default)]
    #[schema(maximum = 2592000000_u64)]
    after_ms: Option<u64>,
}

/// All signing keys, without the keys themselves. Needs the role admin.
#[utoipa::path(get, path = "/admin/keys", tag = "admin", security(("operator" = [])),
    responses((status = OK, body = SigningKeyList)))]
pub(in super::super) async fn list(
    State(app): State<Shared>,
    _: AsAdmin,
) -> Result<Json<SigningKeyList>, Problem> {
    let found = app.engine.signing_keys().all().await?;
    Ok(Json(SigningKeyList { keys: found.into_iter().map(Into::into).collect() }))
}

/// Make a new signing key. What older ones signed stays good. Needs the role admin.
#[utoipa::path(post, path = "/admin/keys", tag = "admin", security(("operator" = [])),
    request_body = NewSigningKey,
    responses(
        (status = CREATED, body = SigningKeyEntry),
        (status = CONFLICT, description = "There are no more numbers for keys"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`, with the `field`")))]
pub(in super::super) async fn rotate(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Json(new): Json<NewSigningKey>,
) -> Result<(StatusCode, Json<SigningKeyEntry>), Problem> {
    let after_ms = new.after_ms.unwrap_or(KEY_LEAD_MS);
    if after_ms > KEY_LEAD_MS_MAX {
        let rule = format_args!("must be at most {KEY_LEAD_MS_MAX}");
        return Err(Problem::invalid("after_ms", rule));
    }
    let made = finish(async move {
        Ok::<_, Problem>(app.engine.signing_keys().rotate(&who, after_ms).await?)
    });
    Ok((StatusCode::CREATED, Json(made.await?.into())))
}

/// Take a signing key away: what it signed is void, receipts, too. Needs the role admin.
#[utoipa::path(delete, path = "/admin/keys/{id}", tag = "admin", security(("operator" = [])),
    params(("id" = i64, Path, description = "The key's number")),
    responses(
        (status = NO_CONTENT, description = "It is retired"),
        (status = NOT_FOUND, description = "No such key"),
        (status = CONFLICT, description = "It signs now, or was retired before (see `state`)")))]
pub(in super::super) async fn retire(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Path(id): Path<i64>,
) -> Result<StatusCode, Problem> {
    let id = u8::try_from(id).map_err(|_| Problem::not_found())?;
    finish(async move {
        app.engine.signing_keys().retire(&who, id).await?;
        Ok::<_, Problem>(StatusCode::NO_CONTENT)
    })
    .await
}
