//! What is on sale, as anybody may see it: from memory and the gate's last known numbers. Only an item
//! that is not in the list, by far its end or because it is new, costs a look at the ledger, shared with
//! all who ask for such at the same time.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::header::CACHE_CONTROL;
use sale::{
    Activity, ActivityId, ActivityState, Attributes, ChallengeKind, Currency, Item, ItemId, Millis,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Shared, draws::DrawJson, openapi, paging, schemas};
use crate::{
    extract::{Json, Path, Query, ShopId, plain_id},
    problem::Problem,
};
use engine::{OnShow, Place, Records};

/// What a shop's page shows at once.
pub(super) const LISTED_DEFAULT: u32 = 100;
/// Items of one `sku` that are shown at once.
const ITEMS_FOUND_MAX: usize = 500;
/// A crowd that reloads is served by whatever cache stands before us, and is a second behind.
const CACHEABLE: &str = "public, max-age=1";

#[derive(Serialize, ToSchema)]
pub(super) struct Activities {
    /// Those that are open and those to come, in the order of their opening; then those that are over,
    /// the latest first.
    activities: Vec<ActivityView>,
    /// The `cursor` of the next page; null on the last one.
    #[schema(value_type = Option<String>, example = "0_1794355200000_7")]
    next: Option<String>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListPage {
    /// The `next` of the page before.
    cursor: Option<String>,
    /// Only the activity that the shop knows by this id.
    #[param(inline, value_type = Option<schemas::ShopId>)]
    external_id: Option<ShopId>,
    /// 1 to 500, 100 unless told.
    #[param(inline, value_type = Option<schemas::ShownActivities>)]
    limit: Option<u32>,
}

impl ListPage {
    fn after(&self) -> Result<Option<Place>, Problem> {
        let read = |cursor: &String| cursor.parse().map_err(|bad| Problem::invalid("cursor", bad));
        self.cursor.as_ref().map(read).transpose()
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Activity)]
pub(super) struct ActivityView {
    id: i64,
    /// The shop's own id of it.
    external_id: Option<String>,
    name: String,
    opens_at: i64,
    closes_at: i64,
    /// When members may buy; null: with all others.
    members_from: Option<i64>,
    /// Null: claims are served as they come.
    draw: Option<DrawJson>,
    /// Nobody but members may buy.
    members_only: bool,
    #[schema(schema_with = openapi::shown_activity_state)]
    state: &'static str,
    /// While it is paused: when it goes on by itself; null: when the shop resumes it.
    resumes_at: Option<i64>,
    items: Vec<ItemView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Item)]
pub(super) struct ItemView {
    id: i64,
    activity_id: i64,
    /// Of the activity it is sold in. Not in the list of all activities.
    #[serde(skip_serializing_if = "Option::is_none")]
    activity_name: Option<String>,
    /// The shop's own id of the product.
    sku: Option<String>,
    name: String,
    /// Plain text. Not in the list of all activities, so that it stays short.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The first of `images`; empty if there is none.
    image_url: String,
    /// Not in the list of all activities.
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<Vec<String>>,
    /// Whatever else the shop says of it. Not in the list of all activities.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = schemas::shown_attributes)]
    attributes: Option<Attributes>,
    /// In minor units of the currency.
    price: i64,
    origin_price: Option<i64>,
    #[schema(value_type = String, example = "CNY")]
    currency: Currency,
    /// Units there are in all.
    stock: i64,
    /// Units nobody has claimed yet, as last known.
    left: i64,
    limit_per_user: u32,
    state: SaleState,
    /// While its sale is paused: when it goes on by itself; null: when the shop resumes it.
    resumes_at: Option<i64>,
    /// What is to be done for a sale token.
    #[schema(schema_with = schemas::door_challenge)]
    challenge: ChallengeKind,
    /// Null: claims are served as they come.
    draw: Option<DrawJson>,
    /// When members may buy; null: with all others. From when somebody may buy is said with their sale token.
    members_from: Option<i64>,
    /// Nobody but members may buy.
    members_only: bool,
    opens_at: i64,
    closes_at: i64,
}

/// Whether an item can be bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum SaleState {
    /// Not open yet, or not at the gate yet.
    Waiting,
    Open,
    /// Nothing left; an unpaid order may still free a unit.
    SoldOut,
    Paused,
    Ended,
}

impl SaleState {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            SaleState::Waiting => "waiting",
            SaleState::Open => "open",
            SaleState::SoldOut => "sold_out",
            SaleState::Paused => "paused",
            SaleState::Ended => "ended",
        }
    }

    /// `left` is absent if the item is not at the gate.
    pub(super) fn of(activity: &Activity, left: Option<i64>, now_ms: Millis) -> SaleState {
        if activity.state == ActivityState::Ended || now_ms >= activity.closes_ms {
            return SaleState::Ended;
        }
        match left {
            _ if now_ms < activity.opens_ms => SaleState::Waiting,
            Some(..=0) => SaleState::SoldOut,
            _ if activity.state == ActivityState::Paused => SaleState::Paused,
            Some(_) => SaleState::Open,
            None => SaleState::Waiting,
        }
    }
}

/// How much of the shop's words is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    Brief,
    Whole,
}

impl ActivityView {
    fn of(activity: &Activity, records: &Records, now_ms: Millis, detail: Detail) -> ActivityView {
        // The job that ends activities comes a moment after the clock does.
        let over = now_ms >= activity.closes_ms;
        let state = if over { ActivityState::Ended } else { activity.state };
        let item = |item| ItemView::of(activity, item, records, now_ms, detail);
        ActivityView {
            id: activity.id.0,
            external_id: activity.external_id.clone(),
            name: activity.name.clone(),
            opens_at: activity.opens_ms,
            closes_at: activity.closes_ms,
            members_from: activity.door.members_from,
            draw: DrawJson::of(activity),
            members_only: activity.door.members_only,
            state: state.as_str(),
            resumes_at: activity.resume_ms,
            items: activity.items.iter().map(item).collect(),
        }
    }
}

impl ItemView {
    fn of(
        activity: &Activity,
        item: &Item,
        records: &Records,
        now_ms: Millis,
        detail: Detail,
    ) -> ItemView {
        let at_gate = records.left(item.id);
        let (words, whole) = (&item.words, detail == Detail::Whole);
        let images = || words.images(&item.image_url).map(str::to_owned).collect();
        ItemView {
            id: item.id.0,
            activity_id: activity.id.0,
            activity_name: whole.then(|| activity.name.clone()),
            sku: words.sku.clone(),
            name: item.name.clone(),
            description: whole.then(|| words.description.clone()),
            image_url: item.image_url.clone(),
            images: whole.then(images),
            attributes: whole.then(|| words.attributes.clone()),
            price: item.price.minor,
            origin_price: item.origin_price,
            currency: item.price.currency,
            stock: item.total,
            left: at_gate.unwrap_or(item.stock),
            limit_per_user: item.limit_per_user,
            state: SaleState::of(activity, at_gate, now_ms),
            resumes_at: activity.resume_ms,
            challenge: activity.door.challenge,
            draw: DrawJson::of(activity),
            members_from: activity.door.members_from,
            members_only: activity.door.members_only,
            opens_at: activity.opens_ms,
            closes_at: activity.closes_ms,
        }
    }
}

fn cacheable<T: Serialize>(body: T) -> Response {
    ([(CACHE_CONTROL, CACHEABLE)], Json(body)).into_response()
}

/// What is on sale, what will be, and what ended in the last day: at most 1000 activities, the open ones
/// first. One that has no room in the list is found by its id like any other.
#[utoipa::path(get, path = "/activities", tag = "public", params(ListPage),
    responses(
        (status = OK, body = Activities),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: no such cursor, or a limit out of range")))]
pub(super) async fn activities(
    State(app): State<Shared>,
    Query(page): Query<ListPage>,
) -> Result<Response, Problem> {
    let engine = &app.engine;
    engine.demo().somebody_looks().await;
    let rows = paging::rows(page.limit.or(Some(LISTED_DEFAULT)))?;
    let (after, now_ms) = (page.after()?, engine.now_ms());
    let view = |activity: &Arc<Activity>| {
        ActivityView::of(activity, engine.records(), now_ms, Detail::Brief)
    };
    if let Some(ShopId(external_id)) = &page.external_id {
        let found = engine.catalogue().activity_by_external_id(external_id).await?;
        let activities = found.iter().map(view).collect();
        return Ok(cacheable(Activities { activities, next: None }));
    }
    let catalogue = engine.catalogue().snapshot();
    let (listed, next) = catalogue.page(after, rows);
    let activities = listed.iter().map(view).collect();
    Ok(cacheable(Activities { activities, next: next.map(|place| place.to_string()) }))
}

/// One activity with its items.
#[utoipa::path(get, path = "/activities/{id}", tag = "public",
    params(("id" = i64, Path, description = "The activity")),
    responses((status = OK, body = ActivityView), (status = NOT_FOUND, description = "No such activity")))]
pub(super) async fn activity(
    State(app): State<Shared>,
    Path(id): Path<i64>,
) -> Result<Response, Problem> {
    let engine = &app.engine;
    let activity =
        engine.catalogue().activity(ActivityId(id)).await?.ok_or_else(Problem::not_found)?;
    let (records, now_ms) = (engine.records(), engine.now_ms());
    Ok(cacheable(ActivityView::of(&activity, records, now_ms, Detail::Whole)))
}

/// One item.
#[utoipa::path(get, path = "/items/{id}", tag = "public",
    params(("id" = i64, Path, description = "The item")),
    responses((status = OK, body = ItemView), (status = NOT_FOUND, description = "No such item")))]
pub(super) async fn item(
    State(app): State<Shared>,
    Path(id): Path<i64>,
) -> Result<Response, Problem> {
    let engine = &app.engine;
    let shown = engine.catalogue().item(ItemId(id)).await?.ok_or_else(Problem::not_found)?;
    Ok(cacheable(whole_item(&app, &shown)))
}

fn whole_item(app: &Shared, shown: &OnShow) -> ItemView {
    let (records, now_ms) = (app.engine.records(), app.engine.now_ms());
    ItemView::of(shown.activity(), shown.item(), records, now_ms, Detail::Whole)
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ItemSearch {
    /// The shop's own id of the product.
    #[param(inline, value_type = schemas::ShopId)]
    sku: ShopId,
    /// Only of this activity.
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    activity_id: Option<i64>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Items {
    items: Vec<ItemView>,
}

/// The items that the shop knows by this id: of one activity, or of the first 500 that the list of
/// activities has.
#[utoipa::path(get, path = "/items", tag = "public", params(ItemSearch),
    responses((status = OK, body = Items)))]
pub(super) async fn items(
    State(app): State<Shared>,
    Query(search): Query<ItemSearch>,
) -> Result<Response, Problem> {
    let catalogue = app.engine.catalogue();
    let shown: Vec<OnShow> = match search.activity_id {
        Some(id) => {
            let activity = catalogue.activity(ActivityId(id)).await?;
            activity.and_then(|found| OnShow::by_sku(found, &search.sku.0)).into_iter().collect()
        }
        None => catalogue.snapshot().items_by_sku(&search.sku.0).take(ITEMS_FOUND_MAX).collect(),
    };
    let items = shown.iter().map(|shown| whole_item(&app, shown)).collect();
    Ok(cacheable(Items { items }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(state: ActivityState, left: Option<i64>, now_ms: Millis, expected: SaleState) {
        let activity = Activity {
            id: ActivityId(1),
            external_id: None,
            name: "sale".into(),
            opens_ms: 1_000,
            closes_ms: 2_000,
            pay_within_ms: 1_000,
            state,
            publish_ms: None,
            resume_ms: None,
            given_up: false,
            door: Default::default(),
            draw: None,
            version: 0,
            items: Vec::new(),
        };
        let found = SaleState::of(&activity, left, now_ms);
        assert_eq!(found, expected, "{state:?} {left:?} at {now_ms}");
    }

    #[test]
    fn clock_gate_and_operator_decide_together() {
        use ActivityState::{Ended, Paused, Published};
        check(Published, Some(5), 999, SaleState::Waiting);
        check(Published, Some(5), 1_000, SaleState::Open);
        check(Published, Some(5), 1_999, SaleState::Open);
        check(Published, Some(5), 2_000, SaleState::Ended);
        check(Published, Some(0), 1_500, SaleState::SoldOut);
        check(Published, None, 1_500, SaleState::Waiting);
        check(Paused, Some(5), 999, SaleState::Waiting);
        check(Paused, Some(5), 1_500, SaleState::Paused);
        check(Paused, Some(0), 1_500, SaleState::SoldOut);
        check(Paused, None, 1_500, SaleState::Paused);
        check(Ended, Some(5), 1_500, SaleState::Ended);
        check(Ended, Some(5), 500, SaleState::Ended);
    }
}
