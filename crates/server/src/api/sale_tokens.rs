//! Sale tokens: got before the opening, so that the opening itself carries claims and nothing else.

use axum::extract::State;
use sale::{ActivityState, ItemId, Millis, SaleToken};

use super::{Shared, dev_login::Token};
use crate::{
    access::Buyer,
    extract::{Json, Path},
    problem::{Code, Problem},
};

/// A sale token for one item, to be sent with the claim as `X-Sale-Token`.
#[utoipa::path(post, path = "/items/{id}/token", tag = "buyer", security(("buyer" = [])),
    params(("id" = i64, Path, description = "The item")),
    responses(
        (status = OK, body = Token),
        (status = FORBIDDEN, description = "`ended`: the sale is over"),
        (status = NOT_FOUND, description = "No such item")))]
pub(super) async fn issue(
    State(app): State<Shared>,
    Buyer(user): Buyer,
    Path(id): Path<i64>,
) -> Result<Json<Token>, Problem> {
    let engine = &app.engine;
    let now_ms = engine.now_ms();
    let shown = engine.catalogue().item(ItemId(id)).await?.ok_or_else(Problem::not_found)?;
    let (activity, item) = (shown.activity(), shown.item());
    if activity.state == ActivityState::Ended || now_ms >= activity.closes_ms {
        return Err(Code::Ended.into());
    }
    let expires_ms = now_ms + app.config.auth.sale_token_ttl_ms as Millis;
    let token = SaleToken { user, item: item.id, expires_ms };
    Ok(Json(Token { token: token.sign(engine.keys()), expires_at: expires_ms }))
}
