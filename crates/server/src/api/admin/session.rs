//! Signing in to the console, and out again; and who one is.
//!
//! Somebody signs in with an admin token, or with a link that was made by somebody who has one
//! (`seckill console`, or whoever is signed in, for the phone beside the desk). Its secret stands behind the
//! `#` of its address, which browsers send nobody, so it is in no log; it is good once, for five minutes.

use auth::{Credential, Operator, console_hash, is_console_secret};
use axum::{
    extract::{FromRequestParts, State},
    response::{IntoResponse, Response},
};
use engine::CONSOLE_LINK_MS;
use http::{
    StatusCode,
    header::{CACHE_CONTROL, SET_COOKIE},
    request::Parts,
};
use ledger::{ConsolePass, Role};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::{
    App, Shared,
    finish::finish,
    roles::{AsViewer, actor},
    schemas,
};
use crate::{
    access::{
        AccessRefusal, bearer, by_token, note,
        session::{check_is_our_page, cookie, no_cookie, session_secret, signed_in},
    },
    extract::Json,
    problem::{Code, Problem},
};
use config::Profile;

/// One of the two.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct SignIn {
    /// An admin token.
    #[schema(nullable = false, max_length = 256)]
    token: Option<String>,
    /// What stands behind the `#` of a link.
    #[schema(nullable = false, max_length = 64)]
    link: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct WhoAmI {
    /// The name of the admin token, as it stands in the audit.
    name: String,
    #[schema(value_type = String, example = "operator")]
    role: Role,
    /// Absent for a program, which asks with its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    session: Option<SessionView>,
    version: &'static str,
    #[schema(schema_with = schemas::profile)]
    profile: Profile,
    /// The process that answers.
    instance: String,
    now_ms: i64,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct SessionView {
    /// When it ends if it is not used before.
    idle_until: i64,
    /// When it ends in any case.
    expires_at: i64,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct MadeLink {
    /// Stands behind the `#` of `/console`; good once.
    link: String,
    expires_at: i64,
}

fn who_am_i(app: &App, operator: &Operator, session: Option<SessionView>) -> WhoAmI {
    let engine = &app.engine;
    WhoAmI {
        name: operator.name.to_string(),
        role: operator.role,
        session,
        version: env!("CARGO_PKG_VERSION"),
        profile: engine.settings().profile,
        instance: engine.instance().to_owned(),
        now_ms: engine.now_ms(),
    }
}

/// The head of a request, for those who must look at more of it than a role.
pub(in super::super) struct Head(pub(in super::super) Parts);

impl FromRequestParts<Shared> for Head {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Problem> {
        Ok(Head(parts.clone()))
    }
}

/// Sign in to the console: the answer sets a cookie, which stands for the admin token from then on.
///
/// For browsers; a program sends its token with every request. The header `X-Seckill-Console: 1` and an
/// `Origin` of the same host are asked for here and with every request by cookie.
#[utoipa::path(post, path = "/admin/session", tag = "public",
    params(("X-Seckill-Console" = Option<String>, Header, description = "`1`; without it 403")),
    request_body = SignIn,
    responses(
        (status = OK, body = WhoAmI),
        (status = UNAUTHORIZED, description = "No such token, or the link was used or is too old"),
        (status = FORBIDDEN, description = "It comes from no page of ours, or the token's role sees nothing"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: neither `token` nor `link`, or both")))]
pub(in super::super) async fn sign_in(
    State(app): State<Shared>,
    Head(parts): Head,
    Json(given): Json<SignIn>,
) -> Result<Response, Problem> {
    check_is_our_page(&parts)?;
    let (operator, credential, by) = match (given.token, given.link) {
        (Some(token), None) => {
            let operator = by_token(&token, &parts, &app.admins).await?;
            (operator, app.admins.credential(&token), "token")
        }
        (None, Some(link)) => {
            let (operator, credential) = by_link(&app, &link, &parts).await?;
            (operator, credential, "link")
        }
        _ => {
            let rule = "must be given, or a link; one of the two";
            return Err(Problem::invalid_in("token", rule, "token 与 link 必须且只能给出一个"));
        }
    };
    if !operator.may(Role::Viewer) {
        let problem = Problem::new(Code::Forbidden).detail(
            "A token of this role tells of money and sees nothing: the console has nothing to show it.",
            "该角色的令牌仅用于通知收款，不能登录控制台。",
        );
        note(AccessRefusal::Role, Some(&operator.name), &parts, &problem);
        return Err(problem);
    }
    let begun = app.sessions.begin(&app.admins, credential).map_err(Problem::internal)?;
    let (secret, pass) = begun;
    let who = actor(&operator, &parts);
    let session = SessionView { idle_until: pass.expires_ms, expires_at: pass.expires_ms };
    let lasts_ms = pass.expires_ms - pass.created_ms;
    let (engine, kept) = (app.engine.clone(), pass);
    finish(async move { engine.console().sign_in(&who, &kept, by).await }).await?;
    let set = (SET_COOKIE, cookie(&secret, lasts_ms, &parts.headers));
    let body = Json(who_am_i(&app, &operator, Some(session)));
    Ok(([set], body).into_response())
}

/// Whose link this is. It is spent, whatever comes of it.
async fn by_link(app: &App, link: &str, parts: &Parts) -> Result<(Operator, Credential), Problem> {
    let used = || {
        let problem = Problem::new(Code::Unauthorized).detail(
            "This link was used before or is older than five minutes. Please make a new one.",
            "该登录链接已被使用或超过五分钟，请重新生成。",
        );
        note(AccessRefusal::AdminToken, None, parts, &problem);
        problem
    };
    if !is_console_secret(link) {
        return Err(used());
    }
    let hash = console_hash(link);
    let engine = app.engine.clone();
    let taken = finish(async move { engine.console().take_link(&hash).await }).await?;
    let pass: ConsolePass = taken.ok_or_else(used)?;
    let from = parts.extensions.get::<listener::Peer>().map(|peer| peer.0);
    let verified = app.admins.verify_behind(&pass, link, from).await;
    let operator = verified.map_err(|error| crate::access::explain(error, parts))?;
    Ok((operator, Credential::of(&pass).ok_or_else(used)?))
}

/// Who I am: the name and role of the admin token, or of the one behind the session.
#[utoipa::path(get, path = "/admin/session", tag = "admin", security(("operator" = [])),
    responses((status = OK, body = WhoAmI)))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    Head(parts): Head,
    AsViewer(who): AsViewer,
) -> Result<Json<WhoAmI>, Problem> {
    let secret = session_secret(&parts.headers).filter(|_| bearer(&parts.headers).is_none());
    if let Some(secret) = secret {
        let found = signed_in(secret, &parts, &app.sessions, &app.admins).await?;
        let (idle_until, expires_at) = (found.idle_until_ms, found.pass.expires_ms);
        let session = Some(SessionView { idle_until, expires_at });
        return Ok(Json(who_am_i(&app, &found.operator, session)));
    }
    let operator = crate::access::operator(&parts, &app.admins, &app.sessions).await?;
    debug_assert_eq!(*operator.name, *who.name);
    Ok(Json(who_am_i(&app, &operator, None)))
}

/// Sign out: the session is over at every instance, wherever its cookie was copied to.
#[utoipa::path(delete, path = "/admin/session", tag = "admin", security(("operator" = [])),
    responses((status = NO_CONTENT, description = "There is no session, now or since before")))]
pub(in super::super) async fn sign_out(
    State(app): State<Shared>,
    Head(parts): Head,
    AsViewer(who): AsViewer,
) -> Result<Response, Problem> {
    let cleared = [(SET_COOKIE, no_cookie(&parts.headers))];
    if let Some(secret) = session_secret(&parts.headers) {
        let (app, hash) = (app.clone(), console_hash(secret));
        finish(async move {
            app.engine.console().sign_out(&who, &hash).await?;
            app.sessions.forget();
            Ok::<_, Problem>(())
        })
        .await?;
    }
    Ok((StatusCode::NO_CONTENT, cleared).into_response())
}

/// Make a link that signs a browser in to the console once, as whoever asks for it.
#[utoipa::path(post, path = "/admin/session/links", tag = "admin", security(("operator" = [])),
    responses(
        (status = CREATED, body = MadeLink),
        (status = CONFLICT, description = "Whoever asks has no token that the link could stand for")))]
pub(in super::super) async fn link(
    State(app): State<Shared>,
    Head(parts): Head,
    AsViewer(who): AsViewer,
) -> Result<Response, Problem> {
    let credential = match (bearer(&parts.headers), session_secret(&parts.headers)) {
        (Some(token), _) => Some(app.admins.credential(token)),
        (None, Some(secret)) => {
            let found = signed_in(secret, &parts, &app.sessions, &app.admins).await?;
            Credential::of(&found.pass)
        }
        (None, None) => None,
    };
    // A command without a server: there is nobody to sign in to.
    let credential = credential.ok_or_else(|| {
        Problem::new(Code::Conflict).detail("No server runs here.", "此处没有运行中的服务。")
    })?;
    let made = app.sessions.pass(&app.admins, credential, CONSOLE_LINK_MS);
    let (secret, pass) = made.map_err(Problem::internal)?;
    let expires_at = pass.expires_ms;
    finish(async move { app.engine.console().add_link(&who, &pass).await }).await?;
    let body = Json(MadeLink { link: secret, expires_at });
    Ok((StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], body).into_response())
}
