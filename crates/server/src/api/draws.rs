//! Draws of a fair start, for whoever wants to check them.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use engine::OnShow;
use http::{HeaderValue, header::CACHE_CONTROL};
use sale::{Activity, DrawOutcome, DrawPlace, Drawn, ItemId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{App, Shared, openapi, paging, schemas};
use crate::{
    access::Buyer,
    extract::{Json, Path, Query},
    problem::Problem,
};

/// A record is read in order to be checked, so pages are large.
const LISTED_DEFAULT: u32 = 500;

/// That those who come first are drawn.
#[derive(Serialize, ToSchema)]
#[schema(as = Draw)]
pub(super) struct DrawJson {
    /// For so long from `opens_at` on claims are gathered, and answered when the draw was held.
    shuffle_ms: i64,
    /// When they are not gathered any more.
    ends_at: i64,
    /// SHA-256 of the seed that decides the draw, in hexadecimal: published before anybody claims.
    commitment: String,
}

impl DrawJson {
    pub(super) fn of(activity: &Activity) -> Option<DrawJson> {
        let draw = activity.draw.as_ref()?;
        let (shuffle_ms, commitment) = (draw.shuffle_ms, draw.commitment.clone());
        Some(DrawJson { shuffle_ms, ends_at: activity.gate_opens_ms(), commitment })
    }
}

/// A draw and a page of its record.
#[derive(Serialize, ToSchema)]
pub(super) struct DrawRecord {
    item_id: i64,
    opens_at: i64,
    shuffle_ms: i64,
    ends_at: i64,
    commitment: String,
    /// What decided the draw, in hexadecimal; null until ten seconds after it.
    seed: Option<String>,
    /// Those who took part, in the order in which they were served; empty until then.
    places: Vec<PlaceJson>,
    /// The `after` of the next page; null on the last one.
    next: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = DrawPlace)]
pub(super) struct PlaceJson {
    /// The first 32 digits of HMAC-SHA256 with the seed over `<item>/<ticket>`. The smallest was served
    /// first.
    place: String,
    quantity: u32,
    #[schema(schema_with = openapi::draw_outcome)]
    outcome: DrawOutcome,
}

impl From<&Drawn> for PlaceJson {
    fn from(drawn: &Drawn) -> PlaceJson {
        let Drawn { place, quantity, outcome } = *drawn;
        PlaceJson { place: place.to_string(), quantity, outcome }
    }
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RecordPage {
    /// The `next` of the page before.
    #[param(inline, value_type = Option<schemas::DrawPlaceText>)]
    after: Option<String>,
    /// 1 to 500, 500 unless told.
    #[param(inline, value_type = Option<schemas::ListedActivities>)]
    limit: Option<u32>,
}

/// What a buyer recognises themselves by in the record of a draw.
#[derive(Serialize, ToSchema)]
pub(super) struct DrawTicket {
    /// Nobody else is told it. It is the same before the draw and after it.
    ticket: String,
    /// Where this ticket stands; null until ten seconds after the draw.
    place: Option<String>,
    /// Null until then, and for whoever did not take part.
    #[schema(value_type = Option<String>)]
    outcome: Option<DrawOutcome>,
}

async fn shown(app: &App, id: i64) -> Result<OnShow, Problem> {
    app.engine.catalogue().item(ItemId(id)).await?.ok_or_else(Problem::not_found)
}

/// How the first buyers of an item are drawn, or were.
///
/// Before the draw: the commitment. Ten seconds after it: the seed, and the record, to be checked as
/// docs/FAIRNESS.md shows.
#[utoipa::path(get, path = "/items/{id}/draw", tag = "public",
    params(("id" = i64, Path, description = "The item"), RecordPage),
    responses(
        (status = OK, body = DrawRecord),
        (status = NOT_FOUND, description = "No such item, or nobody is drawn"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: no such place, or a limit out of range")))]
pub(super) async fn show(
    State(app): State<Shared>,
    Path(id): Path<i64>,
    Query(page): Query<RecordPage>,
) -> Result<Json<DrawRecord>, Problem> {
    let rows = paging::rows(page.limit.or(Some(LISTED_DEFAULT)))?;
    let after = page.after.as_deref().map(str::parse::<DrawPlace>).transpose();
    let after = after.map_err(|bad| Problem::invalid("after", bad))?;
    let shown = shown(&app, id).await?;
    let (activity, draws) = (shown.activity(), app.engine.fair_start());
    let DrawJson { shuffle_ms, ends_at, commitment } =
        DrawJson::of(activity).ok_or_else(Problem::not_found)?;
    let seed = draws.seed(activity).await?;
    let drawn = draws.record(activity, ItemId(id), after, rows).await?;
    let next = paging::next(&drawn, rows, |drawn| drawn.place.to_string());
    let places = drawn.iter().map(PlaceJson::from).collect();
    Ok(Json(DrawRecord {
        item_id: id,
        opens_at: activity.opens_ms,
        shuffle_ms,
        ends_at,
        commitment,
        seed,
        places,
        next,
    }))
}

/// What this buyer recognises themselves by in the draw of an item.
#[utoipa::path(get, path = "/items/{id}/ticket", tag = "buyer", security(("buyer" = [])),
    params(("id" = i64, Path, description = "The item")),
    responses(
        (status = OK, body = DrawTicket),
        (status = NOT_FOUND, description = "No such item, or nobody is drawn")))]
pub(super) async fn ticket(
    State(app): State<Shared>,
    Buyer(user): Buyer,
    Path(id): Path<i64>,
) -> Result<Response, Problem> {
    let shown = shown(&app, id).await?;
    let found = app.engine.fair_start().ticket(shown.activity(), ItemId(id), &user).await?;
    let found = found.ok_or_else(Problem::not_found)?;
    let ticket = DrawTicket {
        ticket: found.ticket,
        place: found.place.map(|place| place.to_string()),
        outcome: found.outcome,
    };
    let mut answer = Json(ticket).into_response();
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}
