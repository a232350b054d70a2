//! The demo's sign-in. A shop brings its own JWTs and switches it off.

use axum::extract::State;
use sale::UserId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Shared, schemas};
use crate::{extract::Json, problem::Problem};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Login {
    #[schema(schema_with = schemas::user_id)]
    user_id: UserId,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Token {
    pub(super) token: String,
    pub(super) expires_at: i64,
}

/// A buyer's token for anybody. Not found unless `auth.dev_login` is on.
#[utoipa::path(post, path = "/dev/login", tag = "public", request_body = Login,
    responses((status = OK, body = Token), (status = NOT_FOUND, description = "It is off")))]
pub(super) async fn dev_login(
    State(app): State<Shared>,
    Json(login): Json<Login>,
) -> Result<Json<Token>, Problem> {
    let user = UserId::new(login.user_id.as_str())
        .map_err(|rule| Problem::invalid("user_id", format_args!("cannot be used: {rule}")))?;
    let token = app.buyers.dev_login(&user).map_err(Problem::internal)?;
    let token = token.ok_or_else(Problem::not_found)?;
    Ok(Json(Token { token: token.token, expires_at: token.expires_ms }))
}
