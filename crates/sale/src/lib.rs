//! The words and rules of a flash sale.
//!
//! Everything here is a value or a pure rule: what an activity is, which moves an order may make,
//! how an order number is built, what a receipt proves. Nothing here does I/O, so every other crate
//! may depend on this one and this one depends on none of them.
//!
//! Two traits live here although others implement them: [`ClaimLog`] (the gate writes it) and
//! [`OrderBook`] (the ledger keeps it). The workers join the two, and this is the only place all
//! three can see without knowing one another.

mod activity;
mod book;
mod challenge;
mod claim;
mod clock;
mod door;
mod draw;
mod edit;
mod event_ticket;
mod ids;
mod log;
mod look_back;
mod money;
mod order;
mod order_no;
mod receipt;
mod sale_token;
mod secret;
mod signing_keys;
mod switch;
mod text;
mod time;
mod words;

pub use activity::{
    Activity, ActivityMove, ActivityState, ITEMS_PER_ACTIVITY_MAX, Invalid, Item, ItemState,
    LIMIT_PER_USER_MAX, NAME_CHARS_MAX, NewActivity, NewItem, PAY_WITHIN_MS_DEFAULT,
    PAY_WITHIN_MS_MAX, PAY_WITHIN_MS_MIN, PRICE_MAX, SHARDS_MAX, STOCK_MAX, URL_CHARS_MAX,
    check_not_over, check_resume, check_window,
};
pub use book::{BookError, FailedClaim, OrderBook, Settled};
pub use challenge::{
    CODE_CHARS, CODE_LETTERS, Challenge, ChallengeFault, ChallengeParameters, NewChallenge,
    OpenedChallenge, SOLUTION_CHARS_MAX, solve_challenge,
};
pub use claim::{Claim, KeyHash};
pub use clock::{Clock, ManualClock, SharedClock, SystemClock};
pub use door::{
    ChallengeKind, DIFFICULTY_DEFAULT, DIFFICULTY_MAX, DIFFICULTY_MIN, Door, DoorEdit,
    MEMBERS_FIRST_MS_MAX, TOKEN_BEFORE_MS_MAX,
};
pub use draw::{
    Draw, DrawOrder, DrawOutcome, DrawPlace, DrawSecrets, Drawn, InvalidPlace, SEED_BYTES,
    SEED_SHOWN_AFTER_MS, SHUFFLE_MS_MAX, check_shuffle,
};
pub use edit::{ActivityEdit, DraftPlan, ItemEdit};
pub use event_ticket::{EVENT_TICKET_CHARS_MAX, EventTicket};
pub use ids::{ActivityId, InvalidUserId, ItemId, USER_ID_CHARS_MAX, UserId};
pub use log::{ClaimLog, EntryId, LogEntry, LogError, RelaySource};
pub use look_back::{
    BACK_MARK_CHARS_MAX, BackMark, BackPage, InvalidBackMark, LoggedClaim, LookBack, LookBackError,
};
pub use money::{Currency, InvalidAmount, InvalidCurrency, Money};
pub use order::{CloseReason, IllegalMove, Order, OrderStatus, Reason, VoidReason};
pub use order_no::{InvalidOrderNo, NODES_MAX, OrderNo, OrderNoText, OrderNumbers};
pub use receipt::{RECEIPT_CHARS_MAX, Receipt};
pub use sale_token::SaleToken;
pub use secret::{REDACTED, Secret};
pub use signing_keys::{FIRST_KEY, MAC_BYTES, Purpose, SigningKeys};
pub use switch::Switch;
pub use text::is_plain_id;
pub use time::{
    InvalidTime, TIME_MS_MAX, TIME_MS_MIN, check_time, iso_time, parse_iso_time, parse_time,
};

pub use words::{
    ATTRIBUTE_NAME_CHARS_MAX, ATTRIBUTE_NUMBER_MAX, ATTRIBUTE_TEXT_CHARS_MAX, ATTRIBUTES_MAX,
    Attributes, DESCRIPTION_CHARS_MAX, GivenImages, IMAGES_MAX, ItemWords, SHOP_ID_CHARS_MAX,
    given_images, with_plain_lines,
};

/// Unix time in milliseconds. Every instant in this project is one of these.
pub type Millis = i64;

/// The generation of an item at the gate. Each warm that loads units starts a new one, so that a
/// message of an earlier epoch can be told from one of this epoch.
pub type Epoch = u64;
