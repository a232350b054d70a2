//! Signing in: a bearer token of the shop for a buyer, and a sale token for the item it wants.

use std::net::SocketAddr;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sale::{Clock, ItemId, SaleToken, SigningKeys, SystemClock};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::{Api, ApiError};

/// Buyers, each with a sale token.
pub type SaleTokens = Vec<(String, String)>;

/// How buyers sign in.
#[derive(Clone, Debug)]
pub enum Login {
    /// With the demo login of a solo server.
    Dev,
    /// With a JWT of the shop, signed here with its HS256 secret.
    Shop { secret: String },
}

impl Login {
    /// A bearer token for this buyer.
    pub async fn token(&self, api: &mut Api, user: &str) -> Result<String, ApiError> {
        match self {
            Login::Dev => {
                let body = json!({"user_id": user});
                let answer: Value = api.write("/api/v1/dev/login", &body).await?;
                Ok(answer["token"].as_str().unwrap_or_default().to_owned())
            }
            Login::Shop { secret } => Ok(jwt(secret, user)),
        }
    }
}

/// A JWT that is good for an hour.
fn jwt(secret: &str, user: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let expires = SystemClock.now_ms() / 1_000 + 3_600;
    let head = part(&json!({"alg": "HS256", "typ": "JWT"}));
    let signed = format!("{head}.{}", part(&json!({"sub": user, "exp": expires})));
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

/// Fetch the sale token of a buyer who has signed in: `bearer` is the header's value.
pub async fn sale_token(api: &mut Api, bearer: &str, item: i64) -> Result<String, ApiError> {
    let path = format!("/api/v1/items/{item}/token");
    let response = api.send("POST", &path, &[("authorization", bearer)], b"").await?;
    let answer: Value = response.expect("POST", &path)?;
    Ok(answer["token"].as_str().unwrap_or_default().to_owned())
}

/// Sign everybody in and fetch their sale tokens, over a few connections.
pub async fn sale_tokens(
    address: SocketAddr,
    login: &Login,
    item: i64,
    users: Vec<String>,
) -> Result<SaleTokens, ApiError> {
    const CONNECTIONS: usize = 16;
    let share = users.len().div_ceil(CONNECTIONS).max(1);
    let tokens_of = |users: Vec<String>, login: Login| async move {
        let mut api = Api::new(address, None);
        let mut tokens = Vec::with_capacity(users.len());
        for user in users {
            let bearer = format!("Bearer {}", login.token(&mut api, &user).await?);
            let token = sale_token(&mut api, &bearer, item).await?;
            tokens.push((user, token));
        }
        Ok::<_, ApiError>(tokens)
    };
    let runs: Vec<_> = users
        .chunks(share)
        .map(|users| tokio::spawn(tokens_of(users.to_vec(), login.clone())))
        .collect();
    let mut tokens = Vec::new();
    for run in runs {
        tokens.extend(run.await.map_err(std::io::Error::other)??);
    }
    Ok(tokens)
}

/// Sale tokens signed here, with the deployment's own secret: where fetching them would take longer
/// than what is measured.
pub fn signed_sale_tokens(secret: &str, item: i64, name: &str, count: usize) -> SaleTokens {
    let keys = SigningKeys::from_secret(secret.as_bytes()).expect("the secret is long enough");
    let expires_ms = SystemClock.now_ms() + 600_000;
    let signed = |n: usize| {
        let name = format!("{name}{n}");
        let user = name.parse().expect("the name is visible");
        let token = SaleToken { user, item: ItemId(item), expires_ms, from_ms: None }.sign(&keys);
        (name, token)
    };
    (0..count).map(signed).collect()
}
