//! A caller of the JSON API, as operators and buyers are: a connection, a bearer token, typed answers.

use std::net::SocketAddr;

use serde::{Serialize, de::DeserializeOwned};

use crate::{Connection, Response};

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{method} {path} answered {status}: {}", in_words(body))]
    Status { method: String, path: String, status: u16, body: String },
    #[error("the answer is not what was expected: {0}")]
    Shape(#[from] serde_json::Error),
}

/// What a problem says to a person; anything else as it came.
fn in_words(body: &str) -> String {
    let problem: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let detail = problem["detail"].as_str().or(problem["title"].as_str());
    detail.unwrap_or(body).to_owned()
}

/// A caller of the JSON API: opens a connection when it has none.
pub struct Api {
    address: SocketAddr,
    bearer: Option<String>,
    connection: Option<Connection>,
}

impl Api {
    pub fn new(address: SocketAddr, bearer: Option<&str>) -> Api {
        let bearer = bearer.map(|token| format!("Bearer {token}"));
        Api { address, bearer, connection: None }
    }

    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Response> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.address).await?,
        };
        let mut all = headers.to_vec();
        if let Some(bearer) = &self.bearer {
            all.push(("authorization", bearer));
        }
        if !body.is_empty() && !headers.iter().any(|(name, _)| *name == "content-type") {
            all.push(("content-type", "application/json"));
        }
        let response = connection.send(method, path, &all, body).await?;
        if response.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(response)
    }

    pub async fn get(&mut self, path: &str) -> std::io::Result<Response> {
        self.send("GET", path, &[], b"").await
    }

    pub async fn post(&mut self, path: &str, body: &impl Serialize) -> std::io::Result<Response> {
        let body = serde_json::to_vec(body)?;
        self.send("POST", path, &[], &body).await
    }

    /// A GET that must succeed.
    pub async fn read<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ApiError> {
        self.get(path).await?.expect("GET", path)
    }

    /// A POST that must succeed.
    pub async fn write<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ApiError> {
        self.post(path, body).await?.expect("POST", path)
    }
}

impl Response {
    /// The body of a success; anything else is an error.
    pub(crate) fn expect<T: DeserializeOwned>(
        self,
        method: &str,
        path: &str,
    ) -> Result<T, ApiError> {
        if !(200..300).contains(&self.status) {
            return Err(ApiError::Status {
                method: method.into(),
                path: path.into(),
                status: self.status,
                body: String::from_utf8_lossy(&self.body).into_owned(),
            });
        }
        Ok(serde_json::from_slice(&self.body)?)
    }
}
