//! Signing in: everybody of the crowd gets a bearer token of the shop and a sale token for its item.
//!
//! This happens before the opening, as it does in a real sale, and is not part of what is measured.

use std::net::SocketAddr;

use client::{Api, ApiError, Login, sale_token};
use serde_json::Value;

use crate::progress::Progress;

/// Connections over which people sign in.
const CONNECTIONS: usize = 32;

/// Somebody who may claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct Person {
    pub(crate) user: String,
    /// The value of the header `Authorization`.
    pub(crate) bearer: String,
    pub(crate) item: i64,
    pub(crate) sale_token: String,
}

/// What everybody asks for.
#[derive(Clone, Debug)]
pub(crate) enum AskFor {
    Bearer(Login),
    /// For the item the person wants.
    SaleToken,
    /// Nothing but the time: this is how fast the deployment answers.
    Time,
}

/// Everybody asks, over a few connections. The order of the people is kept.
pub(crate) async fn everybody_asks(
    addresses: &[SocketAddr],
    wanted: AskFor,
    mut people: Vec<Person>,
    progress: &Progress,
) -> Result<Vec<Person>, ApiError> {
    let share = people.len().div_ceil(CONNECTIONS).max(1);
    let mut runs = Vec::new();
    for address in addresses.iter().cycle() {
        if people.is_empty() {
            break;
        }
        let rest = people.split_off(share.min(people.len()));
        let some = std::mem::replace(&mut people, rest);
        runs.push(tokio::spawn(ask_in_turn(*address, wanted.clone(), some, progress.clone())));
    }
    let mut asked = Vec::new();
    for run in runs {
        asked.extend(run.await.map_err(std::io::Error::other)??);
    }
    Ok(asked)
}

async fn ask_in_turn(
    address: SocketAddr,
    wanted: AskFor,
    mut people: Vec<Person>,
    progress: Progress,
) -> Result<Vec<Person>, ApiError> {
    let mut api = Api::new(address, None);
    for person in &mut people {
        match &wanted {
            AskFor::Bearer(login) => {
                let token = login.token(&mut api, &person.user).await?;
                person.bearer = format!("Bearer {token}");
            }
            AskFor::SaleToken => {
                person.sale_token = sale_token(&mut api, &person.bearer, person.item).await?
            }
            AskFor::Time => {
                let _: Value = api.read("/api/v1/time").await?;
            }
        }
        progress.one_more();
    }
    Ok(people)
}
