//! Who asks over HTTP: the token is taken from the head, [`auth`] knows whose it is, and those whom it
//! does not know are told to log in.

mod refusals;
pub(crate) mod session;

use std::sync::Arc;

use auth::{AdminError, Admins, Buyers, ConsoleSessions, Operator};
use axum::extract::{FromRef, FromRequestParts};
use http::{HeaderMap, header::AUTHORIZATION, request::Parts};
use limits::Class;
use listener::Peer;
use sale::UserId;

use crate::{
    front_door::FrontDoor,
    problem::{Code, Problem},
};
pub(crate) use refusals::{AccessRefusal, note, tell_kept_back};

/// The token of `Authorization: Bearer …`, if there is exactly one.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The buyer who asks, from the bearer token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buyer(pub UserId);

impl<S: Send + Sync> FromRequestParts<S> for Buyer
where
    Arc<Buyers>: FromRef<S>,
    Arc<FrontDoor>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let (refusal, found) = match bearer(&parts.headers) {
            Some(token) => {
                let found = Arc::<Buyers>::from_ref(state).verify(token);
                (AccessRefusal::BuyerToken, found.map_err(|bad| refused().inside(bad)))
            }
            None => (AccessRefusal::NoToken, Err(refused().inside("no bearer token"))),
        };
        let user = found.inspect_err(|problem| note(refusal, None, parts, problem))?;
        if let Some(class) = parts.extensions.get::<Class>() {
            Arc::<FrontDoor>::from_ref(state).count_user(*class, &user).await?;
        }
        Ok(Buyer(user))
    }
}

/// The operator who asks: from the bearer token, or from the cookie of the console.
pub(crate) async fn operator(
    parts: &Parts,
    admins: &Admins,
    sessions: &ConsoleSessions,
) -> Result<Operator, Problem> {
    // A command that runs the router in its own process says who it is. Nothing that comes over a
    // network can: a request has no extensions but those that we put there.
    if let Some(here) = parts.extensions.get::<Operator>() {
        return Ok(here.clone());
    }
    if let Some(token) = bearer(&parts.headers) {
        return by_token(token, parts, admins).await;
    }
    match session::session_secret(&parts.headers) {
        Some(secret) => {
            let signed_in = session::signed_in(secret, parts, sessions, admins).await?;
            Ok(signed_in.operator)
        }
        None => {
            note(AccessRefusal::NoToken, None, parts, &refused());
            Err(refused())
        }
    }
}

/// Whose admin token this is.
pub(crate) async fn by_token(
    token: &str,
    parts: &Parts,
    admins: &Admins,
) -> Result<Operator, Problem> {
    let from = parts.extensions.get::<Peer>().map(|peer| peer.0);
    admins.verify(token, from).await.map_err(|error| explain(error, parts))
}

/// Why an admin token opens nothing.
pub(crate) fn explain(error: AdminError, parts: &Parts) -> Problem {
    match error {
        AdminError::BadToken => {
            note(AccessRefusal::AdminToken, None, parts, &refused());
            refused()
        }
        // Whoever holds it may hear why: it tells nothing to those who guess.
        AdminError::Expired(name) => {
            let problem = refused().detail("This admin token has expired.", "该管理令牌已过期。");
            note(AccessRefusal::AdminToken, Some(&name), parts, &problem);
            problem
        }
        AdminError::Elsewhere(name) => {
            let problem = Problem::new(Code::Forbidden).detail(
                "This admin token may not be used from your address.",
                "该管理令牌不允许从您的地址使用。",
            );
            note(AccessRefusal::AdminToken, Some(&name), parts, &problem);
            problem
        }
        // A ledger that does not answer refuses nobody.
        AdminError::Ledger(error) => error.into(),
    }
}

fn refused() -> Problem {
    Problem::new(Code::Unauthorized)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_the_only_authorization() {
        let headers = |values: &[&str]| {
            values.iter().map(|v| (AUTHORIZATION, v.parse().unwrap())).collect::<HeaderMap>()
        };
        for (values, token) in [
            (&["Bearer abc"][..], Some("abc")),
            (&["bearer  abc "], Some("abc")),
            (&[], None),
            (&["Bearer"], None),
            (&["Bearer "], None),
            (&["Basic abc"], None),
            (&["abc"], None),
            (&["Bearer abc", "Bearer def"], None),
        ] {
            assert_eq!(bearer(&headers(values)), token, "{values:?}");
        }
    }
}
