//! What the document says of the names, numbers and limits that occur in many places.
//!
//! Every limit comes from the constant that the server itself checks, so that the document cannot
//! promise what a handler refuses. The stories try that: schemathesis makes requests of all kinds
//! from the document and compares what is answered (`tests/stories/contract.rs`).
//!
//! Long because it is one list, of everything that has a limit.

use ledger::RefundReason;
use payment::PayMethod;
use sale::{
    ATTRIBUTE_NAME_CHARS_MAX, ATTRIBUTE_NUMBER_MAX, ATTRIBUTE_TEXT_CHARS_MAX, ATTRIBUTES_MAX,
    BACK_MARK_CHARS_MAX, CODE_CHARS, ChallengeKind, Currency, DESCRIPTION_CHARS_MAX,
    DIFFICULTY_DEFAULT, DIFFICULTY_MAX, DIFFICULTY_MIN, EVENT_TICKET_CHARS_MAX, IMAGES_MAX,
    ITEMS_PER_ACTIVITY_MAX, LIMIT_PER_USER_MAX, NAME_CHARS_MAX, OrderStatus, PAY_WITHIN_MS_DEFAULT,
    PAY_WITHIN_MS_MAX, PAY_WITHIN_MS_MIN, PRICE_MAX, RECEIPT_CHARS_MAX, SHARDS_MAX,
    SHOP_ID_CHARS_MAX, SHUFFLE_MS_MAX, SOLUTION_CHARS_MAX, STOCK_MAX, TOKEN_BEFORE_MS_MAX,
    URL_CHARS_MAX, USER_ID_CHARS_MAX,
};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ArrayBuilder, KnownFormat, ObjectBuilder, OneOfBuilder, RefOr, Schema, SchemaFormat, Type,
        schema::SchemaType,
    },
};

use super::{
    admin::{
        AUDIT_WORD_CHARS_MAX, LISTED_DEFAULT, PlannedItem, REFUND_NOTE_CHARS_MAX,
        rehearsals::{
            REHEARSED_BUYERS_MAX, REHEARSED_ITEMS_MAX, REHEARSED_OVER_MS_MAX, REHEARSED_STOCK_MAX,
        },
    },
    catalogue,
    claims::IDEMPOTENCY_KEY_CHARS_MAX,
    news::LAST_EVENT_ID_CHARS_MAX,
    openapi::{one_of, one_of_or_null},
    paging::{ROWS_DEFAULT, ROWS_MAX},
    payments::PAYER_CHARS_MAX,
    return_url::RETURN_URL_CHARS_MAX,
};
use engine::{
    IMPORT_ACTIVITIES_MAX, REASON_CHARS_MAX, REFERENCE_CHARS_MAX, TOKEN_NAME_CHARS_MAX,
    TRANSACTION_ID_CHARS_MAX, WATCHED_ITEMS_MAX, WEBHOOK_DESCRIPTION_CHARS_MAX,
    WEBHOOK_URL_CHARS_MAX,
};

/// "SK" and a number. The next digit would not fit into a signed integer of 64 bits.
const ORDER_NO: &str = "^SK[0-8][0-9]{18}$";
/// Letters that are read from a picture, with blanks between them.
pub(super) const CODE_CHARS_MAX: usize = 4 * CODE_CHARS;
/// White space and control characters.
const BLANK: &str = r"\s\u0000-\u001f\u007f-\u009f";
/// What shows nothing or turns others around, as [`sale::is_plain_id`] knows it.
const HIDDEN: &str = concat!(
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e",
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb",
    // Patterns have no escapes for these that everybody reads.
    "\u{1BCA0}-\u{1BCA3}\u{1D173}-\u{1D17A}\u{E0000}-\u{E0FFF}",
);
/// Blanks that a name may have between its words.
const SPACE: &str = r"[ \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]";
/// Choose how the character before them is drawn.
const SELECTOR: &str = r"[\ufe00-\ufe0f]";
const JOINER: &str = r"[\u200c\u200d]";
const CURRENCY: &str = "^[A-Z]{3}$";
const VISIBLE_ASCII: &str = "^[!-~]+$";
const VISIBLE_ASCII_OR_NONE: &str = "^[!-~]*$";
const BASE64URL: &str = "^[A-Za-z0-9_-]+$";
const ONE_LINE: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";
const WEB_ADDRESS: &str = "^https?://[!-~]+$";
const PROVIDER: &str = "^[a-z]{1,32}$";

/// An id: every character shows.
fn plain() -> String {
    format!("^[^{BLANK}{HIDDEN}]+$")
}

/// An id that an earlier version may have let in.
fn visible() -> String {
    format!("^[^{BLANK}]+$")
}

/// Words with spaces between them. Selectors and joiners stand only after what they act on, and a
/// joiner not at the end.
fn words() -> String {
    let shown = format!("[^{BLANK}{HIDDEN}]{SELECTOR}*");
    format!("^{SPACE}*{shown}(?:{JOINER}?{SPACE}*{shown})*(?:{JOINER}?{SPACE}+)?$")
}

/// Lines of words, or nothing. `ends` are the characters that end a line.
fn lines(ends: &str) -> String {
    let shown = format!("[^{BLANK}{HIDDEN}]{SELECTOR}*");
    let space = format!(r"(?:{SPACE}|[\t{ends}])");
    format!("^{space}*(?:{shown}(?:{JOINER}?{space}*{shown})*(?:{JOINER}?{space}+)?)?$")
}

/// Nothing, a path that starts with one slash, or an https address.
fn image_address() -> String {
    let plain_but = |not: &str| format!(r"[^{not}\\{BLANK}{HIDDEN}]");
    let (any, first, host) = (plain_but(""), plain_but("/"), plain_but("/?#:@"));
    format!("^(?:/(?:{first}{any}*)?|https://{host}{any}*)?$")
}

fn of(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(kind)
}

fn or_null(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Array(vec![kind, Type::Null]))
}

fn text(pattern: &str) -> ObjectBuilder {
    of(Type::String).pattern(Some(pattern))
}

fn short_text(pattern: &str, chars_max: usize) -> ObjectBuilder {
    text(pattern).min_length(Some(1)).max_length(Some(chars_max))
}

fn int64(number: ObjectBuilder, from: i64, to: i64) -> ObjectBuilder {
    let format = SchemaFormat::KnownFormat(KnownFormat::Int64);
    number.format(Some(format)).minimum(Some(from)).maximum(Some(to))
}

fn int32(from: u32, to: u32) -> ObjectBuilder {
    let format = SchemaFormat::KnownFormat(KnownFormat::Int32);
    of(Type::Integer).format(Some(format)).minimum(Some(from)).maximum(Some(to))
}

pub(super) fn order_no() -> Schema {
    text(ORDER_NO).examples(["SK0381966054408192001"]).into()
}

pub(super) fn next_order_no() -> Schema {
    let about = "The `before` of the next page; null on the last one.";
    or_null(Type::String).pattern(Some(ORDER_NO)).description(Some(about)).into()
}

fn back_mark() -> Schema {
    short_text("^[A-Za-z0-9.-]+$", BACK_MARK_CHARS_MAX).into()
}

pub(super) fn next_back_mark() -> Schema {
    let about =
        "The `after` of the next page; null at the end. A page may be empty and not the last.";
    or_null(Type::String).description(Some(about)).into()
}

pub(super) fn order_or_adjust_no() -> Schema {
    let about = "The order, or the number of the adjustment.";
    text(ORDER_NO).description(Some(about)).into()
}

pub(super) fn adjust_no() -> Schema {
    let about = "Only to ask again for an adjustment whose answer was `busy` with this number: it \
                 is done once.";
    or_null(Type::String).pattern(Some(ORDER_NO)).description(Some(about)).into()
}

pub(super) fn user_id() -> Schema {
    let about = format!(
        "1 to {USER_ID_CHARS_MAX} visible characters, none that hide others or turn their direction."
    );
    short_text(&plain(), USER_ID_CHARS_MAX).description(Some(about)).examples(["u1002"]).into()
}

pub(super) fn stored_user_id() -> Schema {
    short_text(&visible(), USER_ID_CHARS_MAX).examples(["u1002"]).into()
}

pub(super) fn token_name() -> Schema {
    let about = format!(
        "1 to {TOKEN_NAME_CHARS_MAX} visible characters, none that hide others or turn their \
         direction; the audit shows it. A name is given once and for ever."
    );
    short_text(&plain(), TOKEN_NAME_CHARS_MAX).description(Some(about)).examples(["ann"]).into()
}

fn idempotency_key() -> Schema {
    short_text(VISIBLE_ASCII, IDEMPOTENCY_KEY_CHARS_MAX).into()
}

pub(super) fn receipt() -> Schema {
    let about = "As it came with the 202.";
    short_text(BASE64URL, RECEIPT_CHARS_MAX).description(Some(about)).into()
}

pub(super) fn webhook_url() -> Schema {
    let about = "An http or https address without a user, a password and a fragment. It must lead to public \
                 addresses, unless `webhooks.allowed_hosts` names its host.";
    let address = short_text(WEB_ADDRESS, WEBHOOK_URL_CHARS_MAX).description(Some(about));
    address.examples(["https://shop.example/hooks/seckill"]).into()
}

pub(super) fn webhook_description() -> Schema {
    let about = "What it is for, to whoever reads the list.";
    let words = text(r"^[^\u0000-\u001f\u007f-\u009f]*$").description(Some(about));
    words.max_length(Some(WEBHOOK_DESCRIPTION_CHARS_MAX)).default(Some("".into())).into()
}

pub(super) fn webhook_kind() -> Schema {
    let words = engine::WebhookKind::ALL.map(engine::WebhookKind::as_str);
    one_of("A kind of event.", words)
}

pub(super) fn webhook_kinds() -> Schema {
    let list = ArrayBuilder::new().items(RefOr::T(webhook_kind()));
    list.description(Some("Which kinds of events it gets; all of them if none is named.")).into()
}

pub(super) fn edited_webhook_kinds() -> Schema {
    let list = SchemaType::Array(vec![Type::Array, Type::Null]);
    ArrayBuilder::new().items(RefOr::T(webhook_kind())).schema_type(list).into()
}

pub(super) fn transaction_id() -> Schema {
    short_text(&plain(), TRANSACTION_ID_CHARS_MAX).examples(["T-20301111-0042"]).into()
}

/// By which something is found in the books of others.
pub(super) fn reference() -> Schema {
    short_text(&plain(), REFERENCE_CHARS_MAX).examples(["BT-20301111-77"]).into()
}

/// Why an operator does something with money: one line.
pub(super) fn spoken_reason() -> Schema {
    short_text(ONE_LINE, REASON_CHARS_MAX).examples(["paid by bank transfer"]).into()
}

pub(super) fn money() -> Schema {
    int64(of(Type::Integer), 0, i64::MAX).examples([699_900]).into()
}

pub(super) fn told_currency() -> Schema {
    text(CURRENCY).examples(["CNY"]).into()
}

pub(super) fn told_refund_reason() -> Schema {
    let reasons = RefundReason::ALL.map(RefundReason::as_str);
    one_of("`late`: the order was over. `double`: it was paid already.", reasons)
}

pub(super) fn provider() -> Schema {
    text(PROVIDER).examples(["sandbox"]).into()
}

const PAYMENT_STATES: [&str; 2] = ["open", "paid"];
const REFUND_STATES: [&str; 2] = ["pending", "done"];

/// How a buyer comes to a provider.
pub(super) fn pay_method() -> Schema {
    let about = "`page`: on a desk. `phone`: in a phone's browser. `qr`: a code that its app scans. `app`: \
                 inside its own app, by its script.";
    one_of(about, PayMethod::ALL.map(PayMethod::as_str))
}

pub(super) fn pay_methods() -> Schema {
    ArrayBuilder::new().items(RefOr::T(pay_method())).into()
}

pub(super) fn pay_method_or_null() -> Schema {
    let about = "How the buyer came to the provider; null if that is not known.";
    one_of_or_null(about, PayMethod::ALL.map(PayMethod::as_str))
}

pub(super) fn payment_state() -> Schema {
    one_of("`open`: the provider has not told of money. `paid`: it has.", PAYMENT_STATES)
}

pub(super) fn refund_state() -> Schema {
    one_of("`pending` until the provider has done it.", REFUND_STATES)
}

pub(super) fn refund_reason() -> Schema {
    let about = "`late`: the order was closed. `double`: it was paid before. `void`: the claim could not be \
                 kept. `operator`: the shop gives it back. `provider`: it was given back unasked. Null if a \
                 release before this one asked for it.";
    one_of_or_null(about, RefundReason::ALL.map(RefundReason::as_str))
}

pub(super) fn refund_note() -> Schema {
    let about = "Why, in the shop's words: the buyer reads it.";
    let words = format!("^[^{BLANK}{HIDDEN}]+(?: [^{BLANK}{HIDDEN}]+)*$");
    let note = or_null(Type::String).pattern(Some(words)).min_length(Some(1));
    note.max_length(Some(REFUND_NOTE_CHARS_MAX)).description(Some(about)).into()
}

/// One of the provider's ways, or nothing.
pub(super) fn wanted_method() -> Schema {
    let about =
        "One of the provider's methods in the order's `pay_with`; the first of them unless told.";
    one_of_or_null(about, PayMethod::ALL.map(PayMethod::as_str))
}

fn visible_or_null(chars_max: usize) -> ObjectBuilder {
    or_null(Type::String)
        .pattern(Some(VISIBLE_ASCII))
        .min_length(Some(1))
        .max_length(Some(chars_max))
}

/// Who pays, as the provider knows them.
pub(super) fn payer() -> Schema {
    let about =
        "Who pays, as the provider knows them (WeChat's `openid`). The method `app` needs it.";
    visible_or_null(PAYER_CHARS_MAX).description(Some(about)).into()
}

pub(super) fn return_url() -> Schema {
    let about = "Where the provider sends the buyer's browser when it is done: a path of this site, or an \
                 address at an origin of `http.allowed_origins`.";
    visible_or_null(RETURN_URL_CHARS_MAX).description(Some(about)).into()
}

/// Of a row in the ledger.
fn id() -> Schema {
    int64(of(Type::Integer), 0, i64::MAX).into()
}

fn rows(unless_told: u32) -> Schema {
    int32(1, ROWS_MAX).default(Some(unless_told.into())).into()
}

/// How many rows one page holds.
fn page_rows() -> Schema {
    rows(ROWS_DEFAULT)
}

fn listed_activities() -> Schema {
    rows(LISTED_DEFAULT)
}

fn shown_activities() -> Schema {
    rows(catalogue::LISTED_DEFAULT)
}

pub(super) fn challenge_kind() -> Schema {
    let about =
        "`pow`: the machine works. `captcha`: it works, and the letters of a picture are read.";
    one_of(about, [ChallengeKind::Pow.as_str(), ChallengeKind::Captcha.as_str()])
}

pub(super) fn wished_challenge() -> Schema {
    one_of_or_null("Without a picture.", [ChallengeKind::Pow.as_str()])
}

pub(super) fn door_challenge() -> Schema {
    let about = "What buyers do for a sale token.";
    one_of(about, ChallengeKind::ALL.map(ChallengeKind::as_str))
}

pub(super) fn edited_challenge() -> Schema {
    one_of_or_null(
        "What buyers do for a sale token.",
        ChallengeKind::ALL.map(ChallengeKind::as_str),
    )
}

pub(super) fn edited_difficulty() -> Schema {
    let about = format!(
        "How long a machine works on a challenge: two to this power of hashes on average, \
         {DIFFICULTY_DEFAULT} unless told. One more is twice as long."
    );
    let number = or_null(Type::Integer).minimum(Some(DIFFICULTY_MIN));
    number.maximum(Some(DIFFICULTY_MAX)).description(Some(about)).into()
}

pub(super) fn token_before_ms() -> Schema {
    int64(or_null(Type::Integer), 0, TOKEN_BEFORE_MS_MAX).into()
}

pub(super) fn challenge_parameters() -> Schema {
    let about = "As the ALTCHA protocol has them: `algorithm`, `cost`, `expiresAt`, `keyLength`, \
                 `keyPrefix`, `nonce`, `salt`, and `data` of ours.";
    of(Type::Object).description(Some(about)).into()
}

pub(super) fn altcha() -> Schema {
    or_null(Type::String).max_length(Some(SOLUTION_CHARS_MAX)).into()
}

pub(super) fn code() -> Schema {
    or_null(Type::String).max_length(Some(CODE_CHARS_MAX)).into()
}

pub(super) fn list_kind() -> Schema {
    let about = "`members` may buy before others, or alone; `blocked` may not buy.";
    one_of(about, ledger::ListKind::ALL.map(ledger::ListKind::as_str))
}

pub(super) fn listed_users() -> Schema {
    ArrayBuilder::new().items(RefOr::T(user_id())).min_items(Some(1)).into()
}

pub(super) fn quantity() -> Schema {
    let about = "At least 1, at most the item's `limit_per_user`.";
    int32(1, LIMIT_PER_USER_MAX).description(Some(about)).examples([1]).into()
}

pub(super) fn name() -> Schema {
    short_text(&words(), NAME_CHARS_MAX).into()
}

pub(super) fn image_url() -> Schema {
    let about = "An https address, or a path that starts with one `/`.";
    let address = or_null(Type::String).pattern(Some(image_address()));
    address.max_length(Some(URL_CHARS_MAX)).description(Some(about)).into()
}

/// One of several: not empty.
fn image() -> ObjectBuilder {
    text(&image_address()).min_length(Some(1)).max_length(Some(URL_CHARS_MAX))
}

pub(super) fn images() -> Schema {
    let about =
        "The pictures, the first one first; each as `image_url`, which need not be given then.";
    let list = ArrayBuilder::new().items(image()).max_items(Some(IMAGES_MAX));
    let kinds = SchemaType::Array(vec![Type::Array, Type::Null]);
    list.schema_type(kinds).description(Some(about)).into()
}

/// The shop's own id of something, to look for.
fn shop_id() -> Schema {
    short_text(&plain(), SHOP_ID_CHARS_MAX).examples(["A-1001"]).into()
}

/// The same, to be given; null or absent: it has none.
pub(super) fn given_shop_id() -> Schema {
    let about = format!("1 to {SHOP_ID_CHARS_MAX} visible characters without spaces.");
    let id = or_null(Type::String).pattern(Some(plain())).min_length(Some(1));
    id.max_length(Some(SHOP_ID_CHARS_MAX)).description(Some(about)).into()
}

pub(super) fn description() -> Schema {
    let about = "Plain text, several lines if need be. Pages show it as it is, never as HTML.";
    let text = or_null(Type::String).pattern(Some(lines(r"\r\n")));
    text.max_length(Some(DESCRIPTION_CHARS_MAX)).description(Some(about)).into()
}

/// Names and what they stand for, as they may be given.
pub(super) fn attributes() -> Schema {
    let about = "Whatever else the shop wants to keep beside the item: names, and for each a text, a \
                 number, true or false.";
    let text = text(&lines(r"\n")).max_length(Some(ATTRIBUTE_TEXT_CHARS_MAX));
    let number = of(Type::Number);
    let number = number.minimum(Some(-ATTRIBUTE_NUMBER_MAX)).maximum(Some(ATTRIBUTE_NUMBER_MAX));
    let value = OneOfBuilder::new().item(text).item(number).item(of(Type::Boolean));
    let names = short_text(&words(), ATTRIBUTE_NAME_CHARS_MAX);
    or_null(Type::Object)
        .property_names(Some(names))
        .additional_properties(Some(Schema::from(value)))
        .max_properties(Some(ATTRIBUTES_MAX))
        .description(Some(about))
        .into()
}

/// The same in an answer.
pub(super) fn shown_attributes() -> Schema {
    let value = OneOfBuilder::new();
    let value = value.item(of(Type::String)).item(of(Type::Number)).item(of(Type::Boolean));
    of(Type::Object)
        .additional_properties(Some(Schema::from(value)))
        .description(Some("Names, and for each a text, a number, true or false."))
        .into()
}

pub(super) fn imported_activities() -> Schema {
    let list = ArrayBuilder::new().items(utoipa::openapi::Ref::from_schema_name("Plan"));
    let list =
        list.description(Some("Each as in `POST /admin/activities`; 10000 items in all at most."));
    list.min_items(Some(1)).max_items(Some(IMPORT_ACTIVITIES_MAX)).into()
}

pub(super) fn pay_within_ms() -> Schema {
    let about = "How long a buyer may take to pay.";
    let time = int64(of(Type::Integer), PAY_WITHIN_MS_MIN, PAY_WITHIN_MS_MAX);
    time.description(Some(about)).default(Some(PAY_WITHIN_MS_DEFAULT.into())).into()
}

/// Of what decides who is drawn first.
const DRAW_PLACE: &str = "^[0-9a-f]{32}$";

pub(super) fn draw_place() -> Schema {
    text(DRAW_PLACE).into()
}

pub(super) fn shuffle_ms() -> Schema {
    let about = "For so long from the opening on claims are gathered and then served in random order, so \
                 that coming first gains nothing. 0: as they come.";
    let time = int64(of(Type::Integer), 0, SHUFFLE_MS_MAX);
    time.description(Some(about)).into()
}

pub(super) fn edited_shuffle_ms() -> Schema {
    let about = "As when planned. Only while it is a draft: what was committed to holds.";
    int64(or_null(Type::Integer), 0, SHUFFLE_MS_MAX).description(Some(about)).into()
}

pub(super) fn planned_items() -> Schema {
    let list = ArrayBuilder::new().items(PlannedItem::schema()).description(Some("At least one."));
    list.min_items(Some(1)).max_items(Some(ITEMS_PER_ACTIVITY_MAX)).into()
}

pub(super) fn price() -> Schema {
    let about = "In minor units of the currency.";
    let price = int64(of(Type::Integer), 0, PRICE_MAX);
    price.description(Some(about)).examples([699_900]).into()
}

pub(super) fn origin_price() -> Schema {
    int64(or_null(Type::Integer), 0, PRICE_MAX).into()
}

const ABOUT_CURRENCY: &str =
    "Of ISO 4217. It says how many decimals amounts have: CNY two, JPY none, KWD three.";

pub(super) fn currency() -> Schema {
    let codes = of(Type::String).enum_values(Some(Currency::iso_4217()));
    codes.description(Some(ABOUT_CURRENCY)).default(Some(Currency::CNY.as_str().into())).into()
}

pub(super) fn edited_currency() -> Schema {
    one_of_or_null(ABOUT_CURRENCY, Currency::iso_4217())
}

pub(super) fn stock() -> Schema {
    int64(of(Type::Integer), 1, STOCK_MAX).examples([1_000]).into()
}

pub(super) fn limit_per_user() -> Schema {
    int32(1, LIMIT_PER_USER_MAX).default(Some(1.into())).into()
}

pub(super) fn shards() -> Schema {
    let about = "Over how many partitions of the gate the stock is spread; in a cluster at most \
                 `redis.partitions`.";
    int32(1, SHARDS_MAX).description(Some(about)).default(Some(1.into())).into()
}

/// Not zero.
pub(super) fn delta() -> Schema {
    let about = "Units to add (positive) or to take away (negative).";
    OneOfBuilder::new()
        .item(int64(of(Type::Integer), 1, STOCK_MAX))
        .item(int64(of(Type::Integer), -STOCK_MAX, -1))
        .description(Some(about))
        .examples([100])
        .into()
}

fn searched_status() -> Schema {
    one_of("`queued` needs `user_id`.", OrderStatus::ALL.map(OrderStatus::as_str))
}

/// A field that may be left as it is: null, or absent.
fn edited(schema: Schema) -> Schema {
    let Schema::Object(mut object) = schema else { return schema };
    if let SchemaType::Type(kind) = object.schema_type {
        object.schema_type = SchemaType::Array(vec![kind, Type::Null]);
    }
    object.default = None;
    Schema::Object(object)
}

macro_rules! edited {
    ($($name:ident = $schema:ident),* $(,)?) => {
        $(pub(super) fn $name() -> Schema {
            edited($schema())
        })*
    };
}

edited! {
    edited_name = name,
    edited_pay_within_ms = pay_within_ms,
    edited_price = price,
    edited_stock = stock,
    edited_limit_per_user = limit_per_user,
    edited_shards = shards,
    edited_webhook_url = webhook_url,
    edited_webhook_description = webhook_description,
}

pub(super) fn profile() -> Schema {
    one_of("How it is deployed.", ["solo", "cluster"])
}

pub(super) fn sandbox_state() -> Schema {
    one_of("As the sandbox's bank sees it.", ["open", "paid", "failed", "closed", "refunded"])
}

pub(super) fn stock_log_type() -> Schema {
    one_of("An order made, units given back, or an operator.", ["deduct", "return", "adjust"])
}

pub(super) fn payment_kind() -> Schema {
    one_of("Asked for, money received, or money given back.", ["open", "pay", "refund"])
}

/// Why the gate admits nobody.
pub(super) fn shut() -> Schema {
    let about = "Why it admits nobody; null if it admits, or has not the item.";
    one_of_or_null(about, ["paused", "frozen", "ended"])
}

/// One event of the stream. Its data is JSON.
pub(super) struct ServerSentEvent;

impl PartialSchema for ServerSentEvent {
    fn schema() -> RefOr<Schema> {
        let names = ["order", "sold_out", "back_in_stock", "look_again"];
        let data = of(Type::String).content_media_type("application/json");
        let about = "Of `order`: the order as it is now, an `Order`. Of `sold_out` and `back_in_stock`: an \
                     object with `item_id`.";
        of(Type::Object)
            .property("id", of(Type::String).description(Some("To come back with.")))
            .property("event", one_of("What it is about.", names))
            .property("data", data.description(Some(about)))
            .required("event")
            .required("data")
            .into()
    }
}

impl ToSchema for ServerSentEvent {}

fn ticket() -> Schema {
    short_text(BASE64URL, EVENT_TICKET_CHARS_MAX).into()
}

fn watched_items() -> Schema {
    let ids = ArrayBuilder::new().items(int64(of(Type::Integer), 0, i64::MAX));
    ids.min_items(Some(1)).max_items(Some(WATCHED_ITEMS_MAX)).into()
}

fn last_event_id() -> Schema {
    let about = "As it came with the event.";
    let id = text(VISIBLE_ASCII_OR_NONE).max_length(Some(LAST_EVENT_ID_CHARS_MAX));
    id.description(Some(about)).into()
}

/// One event of the live board's stream. Its data is JSON.
pub(super) struct LiveEvent;

impl PartialSchema for LiveEvent {
    fn schema() -> RefOr<Schema> {
        let data = of(Type::String).content_media_type("application/json");
        of(Type::Object)
            .property("event", one_of("What it is about.", ["sample", "state"]))
            .property("data", data)
            .required("event")
            .required("data")
            .into()
    }
}

impl ToSchema for LiveEvent {}

fn audit_word() -> Schema {
    short_text(&plain(), AUDIT_WORD_CHARS_MAX).into()
}

fn provider_txn() -> Schema {
    short_text(&plain(), TRANSACTION_ID_CHARS_MAX).into()
}

/// Whatever the action has to say for itself.
pub(super) fn audit_detail() -> Schema {
    or_null(Type::Object).description(Some("What there is to say of it.")).into()
}

fn rehearsed(most: u32, least: u32) -> Schema {
    let number = of(Type::Integer).minimum(Some(least)).maximum(Some(most));
    number.format(Some(SchemaFormat::KnownFormat(KnownFormat::Int32))).into()
}

pub(super) fn rehearsed_buyers() -> Schema {
    rehearsed(REHEARSED_BUYERS_MAX, 1)
}

pub(super) fn rehearsed_items() -> Schema {
    rehearsed(REHEARSED_ITEMS_MAX, 1)
}

pub(super) fn rehearsed_stock() -> Schema {
    rehearsed(REHEARSED_STOCK_MAX, 1)
}

pub(super) fn rehearsed_over_ms() -> Schema {
    rehearsed(REHEARSED_OVER_MS_MAX, 0)
}

/// The report of a rehearsal.
pub(super) fn rehearsal_report() -> Schema {
    or_null(Type::Object).description(Some("As `seckill rehearse --json` writes it.")).into()
}

/// Parameters name a type, and keep their own description then; these stand for what they are
/// written as.
macro_rules! written_as {
    ($($name:ident = $schema:ident),* $(,)?) => {
        $(pub(super) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema().into()
            }
        }

        impl ToSchema for $name {})*
    };
}

written_as! {
    OrderNumber = order_no,
    TokenName = token_name,
    Provider = provider,
    IdempotencyKey = idempotency_key,
    StoredUserId = stored_user_id,
    RowId = id,
    PageRows = page_rows,
    ListedActivities = listed_activities,
    SearchedStatus = searched_status,
    ShownActivities = shown_activities,
    ShopId = shop_id,
    DrawPlaceText = draw_place,
    Ticket = ticket,
    WatchedItems = watched_items,
    LastEventId = last_event_id,
    ListKindName = list_kind,
    AuditWord = audit_word,
    ProviderTxn = provider_txn,
    BackMark = back_mark,
}
