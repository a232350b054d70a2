//! Lists of buyers: members, who may buy before others or alone, and those who may not buy; and buyers who
//! have to wait because they let too many orders go unpaid.
//!
//! A list is sent as it is: plain lines, the first column of a table, or JSON. Every id of it is looked at
//! before anything is written, so one bad line changes nothing. Then it is read a second time and written in
//! pieces, so that what it takes is the body itself and one piece; what is longer than one request may be
//! (some million ids) is sent in several, as `seckill list` does with a file of any length.

use axum::extract::{FromRequest, FromRequestParts, Request, State};
use bytes::Bytes;
use engine::{OperateError, actor::Actor};
use http::{StatusCode, header::CONTENT_TYPE, request::Parts};
use ledger::{BuyerList, LISTED_AT_ONCE_MAX, ListKind};
use sale::{ActivityId, UserId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::{
    Shared,
    finish::finish,
    paging,
    roles::{AsOperator, AsViewer},
    schemas,
};
use crate::{
    extract::{Json, Path, Query, body_problem, plain_id},
    problem::Problem,
};

/// The head of a table, if it has one.
const HEAD: &str = "user_id";

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct OfActivity {
    /// The list of this activity; absent: of the whole shop.
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    activity: Option<i64>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct ListPage {
    /// The list of this activity; absent: of the whole shop.
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    activity: Option<i64>,
    /// Only those behind this one.
    #[param(inline, value_type = Option<schemas::StoredUserId>)]
    after: Option<UserId>,
    /// 1 to 500, 50 unless told.
    #[param(inline, value_type = Option<schemas::PageRows>)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct BuyerLists {
    lists: Vec<BuyerListJson>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = BuyerList)]
pub(in super::super) struct BuyerListJson {
    #[schema(schema_with = schemas::list_kind)]
    kind: &'static str,
    /// Null: of the whole shop.
    activity_id: Option<i64>,
    buyers: u64,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct ListedBuyers {
    /// In the order of their ids.
    users: Vec<String>,
    /// The `after` of the next page; null on the last one.
    next: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct GivenBuyers {
    #[schema(schema_with = schemas::listed_users)]
    users: Vec<String>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct ListChanged {
    /// How many were put on the list, or taken off it. The others were there, or not there, before.
    changed: u64,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct CoolDowns {
    /// The longest wait first; 500 at most.
    cool_downs: Vec<CoolDownJson>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = CoolDown)]
pub(in super::super) struct CoolDownJson {
    user_id: String,
    until: i64,
}

/// Ids of buyers, in whichever form they came; each of them is one.
pub(in super::super) enum Users {
    /// The form for long lists: nothing but the body is kept.
    Lines(Bytes),
    Json(Vec<String>),
}

impl<S: Send + Sync> FromRequest<S> for Users {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).cloned();
        let bytes = Bytes::from_request(request, state).await.map_err(body_problem)?;
        let kind = kind.as_ref().map(|kind| kind.as_bytes());
        if !kind.is_some_and(|kind| kind.starts_with(b"text/")) {
            let Json(GivenBuyers { users }) = Json::read(kind, &bytes)?;
            let named = users.iter().enumerate();
            check_all(named.map(|(n, user)| (format!("users[{n}]"), user.as_str())))?;
            return Ok(Users::Json(users));
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| Problem::invalid_in("body", "must be UTF-8", "必须是 UTF-8 编码"))?;
        check_all(lines(text).map(|(n, id)| (format!("line {n}"), id)))?;
        Ok(Users::Lines(bytes))
    }
}

impl Users {
    /// So many of them at a time.
    fn pieces(&self) -> impl Iterator<Item = Vec<UserId>> + Send + '_ {
        let mut named: Box<dyn Iterator<Item = UserId> + Send + '_> = match self {
            Users::Lines(bytes) => {
                let text = std::str::from_utf8(bytes).unwrap_or_default();
                Box::new(lines(text).filter_map(|(_, id)| UserId::new(id).ok()))
            }
            Users::Json(users) => Box::new(users.iter().filter_map(|id| UserId::new(id).ok())),
        };
        std::iter::from_fn(move || {
            let piece: Vec<UserId> = named.by_ref().take(LISTED_AT_ONCE_MAX).collect();
            (!piece.is_empty()).then_some(piece)
        })
    }
}

/// What stands first on each line, with its number, but for empty ones and a table's head.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> + Send {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let ids = text.lines().map(|line| {
        let first = line.split(',').next().unwrap_or_default().trim();
        first.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(first)
    });
    let is_id = |(n, id): &(usize, &str)| !(id.is_empty() || (*n == 1 && *id == HEAD));
    (1..).zip(ids).filter(is_id)
}

/// Are all of them ids, and is there one? Else the first that is none.
fn check_all<'i>(named: impl Iterator<Item = (String, &'i str)>) -> Result<(), Problem> {
    let mut is_empty = true;
    for (place, id) in named {
        let rule = "must be a user id of 1 to 64 visible characters";
        UserId::new(id).map_err(|_| {
            Problem::invalid_in(&*place, rule, "必须是 1 到 64 个可见字符的用户 id")
        })?;
        is_empty = false;
    }
    if is_empty {
        return Err(Problem::invalid_in("users", "must name somebody", "不能为空"));
    }
    Ok(())
}

/// The list that a request is about: its kind in the path, its activity in the query.
pub(in super::super) struct Named(BuyerList);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(kind) = Path::<String>::from_request_parts(parts, state).await?;
        let Query(of) = Query::<OfActivity>::from_request_parts(parts, state).await?;
        list_of(&kind, of.activity).map(Named)
    }
}

fn list_of(kind: &str, activity: Option<i64>) -> Result<BuyerList, Problem> {
    let kind = ListKind::ALL.into_iter().find(|known| known.as_str() == kind);
    let kind = kind.ok_or_else(Problem::not_found)?;
    Ok(BuyerList { kind, activity: activity.map(ActivityId) })
}

/// The lists that hold anybody.
#[utoipa::path(get, path = "/admin/lists", tag = "admin", security(("operator" = [])),
    responses((status = OK, body = BuyerLists)))]
pub(in super::super) async fn all(
    State(app): State<Shared>,
    _: AsViewer,
) -> Result<Json<BuyerLists>, Problem> {
    let lists = app.engine.lists().all().await?.into_iter().map(|(list, buyers)| BuyerListJson {
        kind: list.kind.as_str(),
        activity_id: list.activity.map(|id| id.0),
        buyers,
    });
    Ok(Json(BuyerLists { lists: lists.collect() }))
}

/// Who is on a list, page by page.
#[utoipa::path(get, path = "/admin/lists/{kind}", tag = "admin", security(("operator" = [])),
    params(("kind" = inline(schemas::ListKindName), Path, description = "Which list"), ListPage),
    responses((status = OK, body = ListedBuyers), (status = NOT_FOUND, description = "No such list")))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    _: AsViewer,
    Path(kind): Path<String>,
    Query(page): Query<ListPage>,
) -> Result<Json<ListedBuyers>, Problem> {
    let list = list_of(&kind, page.activity)?;
    let rows = paging::rows(page.limit)?;
    let users = app.engine.lists().listed(list, page.after.as_ref(), rows).await?;
    let next = paging::next(&users, rows, |user| user.as_str().to_owned());
    let users = users.iter().map(|user| user.as_str().to_owned()).collect();
    Ok(Json(ListedBuyers { users, next }))
}

/// Put buyers on a list: a JSON object with `users`, or text with one id on each line (of a table, the first
/// column). All of them, or none if one is no id. Asking again is safe.
#[utoipa::path(post, path = "/admin/lists/{kind}", tag = "admin", security(("operator" = [])),
    params(("kind" = inline(schemas::ListKindName), Path, description = "Which list"), OfActivity),
    request_body = GivenBuyers,
    responses(
        (status = OK, body = ListChanged),
        (status = NOT_FOUND, description = "No such list"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`, with the `field`, such as `line 7`")))]
pub(in super::super) async fn add(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Named(list): Named,
    users: Users,
) -> Result<Json<ListChanged>, Problem> {
    change(app, who, list, users, true).await
}

/// Take buyers off a list; told as when they are put on it.
#[utoipa::path(post, path = "/admin/lists/{kind}/remove", tag = "admin", security(("operator" = [])),
    params(("kind" = inline(schemas::ListKindName), Path, description = "Which list"), OfActivity),
    request_body = GivenBuyers,
    responses(
        (status = OK, body = ListChanged),
        (status = NOT_FOUND, description = "No such list"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`, with the `field`, such as `line 7`")))]
pub(in super::super) async fn remove(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Named(list): Named,
    users: Users,
) -> Result<Json<ListChanged>, Problem> {
    change(app, who, list, users, false).await
}

async fn change(
    app: Shared,
    who: Actor,
    list: BuyerList,
    users: Users,
    on: bool,
) -> Result<Json<ListChanged>, Problem> {
    let changed = finish(async move {
        let (lists, mut changed) = (app.engine.lists(), 0);
        for piece in users.pieces() {
            changed += match on {
                true => lists.add(&who, list, &piece).await?,
                false => lists.remove(&who, list, &piece).await?,
            };
        }
        Ok::<_, OperateError>(changed)
    });
    Ok(Json(ListChanged { changed: changed.await? }))
}

/// Take everybody off a list.
#[utoipa::path(delete, path = "/admin/lists/{kind}", tag = "admin", security(("operator" = [])),
    params(("kind" = inline(schemas::ListKindName), Path, description = "Which list"), OfActivity),
    responses((status = OK, body = ListChanged), (status = NOT_FOUND, description = "No such list")))]
pub(in super::super) async fn clear(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Named(list): Named,
) -> Result<Json<ListChanged>, Problem> {
    let changed = finish(async move { app.engine.lists().clear(&who, list).await }).await?;
    Ok(Json(ListChanged { changed }))
}

/// Buyers who have to wait, because they let too many orders go unpaid.
#[utoipa::path(get, path = "/admin/cool-downs", tag = "admin", security(("operator" = [])),
    responses((status = OK, body = CoolDowns)))]
pub(in super::super) async fn cool_downs(
    State(app): State<Shared>,
    _: AsViewer,
) -> Result<Json<CoolDowns>, Problem> {
    let waiting = app.engine.lists().cooling_down(paging::ROWS_MAX as usize).await?;
    let shown = waiting.into_iter().map(|waiting| CoolDownJson {
        user_id: waiting.user.as_str().to_owned(),
        until: waiting.until_ms,
    });
    Ok(Json(CoolDowns { cool_downs: shown.collect() }))
}

/// Let a buyer buy again who has to wait.
#[utoipa::path(delete, path = "/admin/cool-downs/{user}", tag = "admin", security(("operator" = [])),
    params(("user" = inline(schemas::StoredUserId), Path, description = "The buyer")),
    responses(
        (status = NO_CONTENT, description = "They need not wait any more"),
        (status = NOT_FOUND, description = "They did not have to")))]
pub(in super::super) async fn let_go(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(user): Path<UserId>,
) -> Result<StatusCode, Problem> {
    let ended = finish(async move { app.engine.lists().let_go(&who, &user).await });
    if ended.await? { Ok(StatusCode::NO_CONTENT) } else { Err(Problem::not_found()) }
}
