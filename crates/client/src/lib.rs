//! A deployment as it is seen from outside, over HTTP.
//!
//! [`Api`] calls what operators and buyers call; [`NewSale`] creates a sale, [`Login`] and
//! [`sale_tokens`] let buyers in, [`Crowd`] claims for many of them at once. [`Launch`] starts a real
//! server process. [`settled`] and [`observe`] read what the checker compares. The command line uses
//! it to reach a running server; rehearsals, stories and benchmarks are built on it.

mod api;
mod claim;
mod connection;
mod crowd;
mod login;
mod new_sale;
mod observe;
mod reconcile;
mod server_process;

pub use api::{Api, ApiError};
pub use claim::{answer_of, key_of, write_claim};
pub use connection::{ANSWER_WITHIN, Connection, Response, write_request};
pub use crowd::{Crowd, CrowdReport, OPENING_MAX, new_histogram};
pub use login::{Login, SaleTokens, sale_token, sale_tokens, signed_sale_tokens};
pub use new_sale::{CreatedSale, NewSale};
pub use observe::{NotSettled, observe, settled};
pub use reconcile::reconcile;
pub use server_process::{Launch, ServerProcess};
