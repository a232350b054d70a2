//! The admin API, wherever it is: at the server that runs on the data directory, or in this process.
//!
//! Without a server the engine is opened here, and the same router is called that a server would have
//! behind its port. So every command is written once, against one API, and is refused in the same words.

use std::{path::Path, time::Duration};

use auth::Operator;
use axum::{Router, body::Body, response::Response};
use client::Api;
use http::{Request, header};
use http_body_util::BodyExt;
use ledger::Role;
use serde_json::Value;
use tokio::sync::Mutex;
use tower::ServiceExt;

use super::Failure;
use crate::{
    api::{self, App},
    edge::Edge,
    serve::{self, CannotStart, Opened, Running},
};
use config::{Config, Profile};
use engine::{
    LEDGER_FILE,
    actor::CLI,
    data_dir::{DataDir, DataDirError},
};

const BASE: &str = "/api/v1";
/// Nobody waits behind a command that works on the directory itself; a large comparison may take its time.
const HERE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct AdminApi {
    at: At,
    /// Who is asked, for the person who asked.
    place: String,
}

enum At {
    /// A server owns the directory.
    Server(Box<Mutex<Api>>),
    /// Nobody does; the engine runs here, without jobs and without a listener.
    Here {
        opened: Box<Opened>,
        service: Box<Edge<Router>>,
        /// The directory of a command that has none of its own; gone with the command.
        _temporary: Option<tempfile::TempDir>,
    },
}

type Result<T = ()> = std::result::Result<T, Failure>;

/// A command that was pointed at the wrong place says at which, and what to type.
pub(super) fn no_data_in(directory: &Path) -> Failure {
    Failure::Cannot(format!(
        "there is no data of Seckill in {}: give --data DIR or SECKILL_DATA (the first `seckill serve` makes \
         the directory)",
        directory.display()
    ))
}

impl AdminApi {
    /// Never makes a directory: a command that was pointed at the wrong place must not find an empty
    /// shop there and call it fine.
    pub(super) async fn open(config: Config) -> Result<AdminApi> {
        let directory = config.data.clone();
        let shown = directory.canonicalize().unwrap_or_else(|_| directory.clone());
        if config.profile == Profile::Solo && !directory.join(LEDGER_FILE).is_file() {
            return Err(no_data_in(&shown));
        }
        match take(&config) {
            Ok((data, temporary)) => {
                let place = match config.profile {
                    Profile::Solo => {
                        format!("the data directory {}; no server runs on it", shown.display())
                    }
                    Profile::Cluster => format!(
                        "the cluster of {} and {}",
                        without_password(config.redis.url.expose()),
                        without_password(config.ledger.url.expose())
                    ),
                };
                let opened = serve::open_in(config, data).await?;
                let app = App::new(
                    opened.config.clone(),
                    opened.engine.clone(),
                    opened.secret_bytes(),
                    None,
                )?;
                let service = Box::new(Edge::new(api::router(app), HERE_MAX));
                let opened = Box::new(opened);
                Ok(AdminApi { at: At::Here { opened, service, _temporary: temporary }, place })
            }
            Err(in_use @ DataDirError::InUse(..)) => {
                let running = Running::read(&directory);
                let running = running.ok_or_else(|| CannotStart::because(in_use))?;
                let (address, shown) = (running.address, shown.display());
                let place = format!("the server at {address}, data in {shown}");
                let api = Api::new(address, Some(&running.token));
                Ok(AdminApi { at: At::Server(Box::new(Mutex::new(api))), place })
            }
            Err(other) => Err(CannotStart::because(other).into()),
        }
    }

    /// The server, the directory or the cluster that is asked.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Does a server answer, and not this process?
    pub(super) fn is_at_server(&self) -> bool {
        matches!(self.at, At::Server(_))
    }

    pub(super) async fn close(self) {
        if let At::Here { opened, .. } = self.at {
            opened.engine.stop().await;
        }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value> {
        self.ask("GET", path, None).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.ask("POST", path, Some(body)).await
    }

    pub(super) async fn patch(&self, path: &str, body: &Value) -> Result<Value> {
        self.ask("PATCH", path, Some(body)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Result {
        self.ask("DELETE", path, None).await.map(drop)
    }

    /// With these headers; the problem as it is if it is refused.
    pub(super) async fn try_post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<std::result::Result<Value, Value>> {
        let (status, answer) = self.send("POST", path, headers, body.to_string()).await?;
        if (200..300).contains(&status) {
            return Ok(Ok(serde_json::from_slice(&answer)?));
        }
        let problem = serde_json::from_slice(&answer);
        Ok(Err(problem.unwrap_or_else(|_| Value::from(in_words(status, &answer)))))
    }

    async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let (status, answer) = self.send(method, path, &[], body).await?;
        if !(200..300).contains(&status) {
            return Err(Failure::Cannot(in_words(status, &answer)));
        }
        if answer.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_slice(&answer)?) }
    }

    /// `path` is what follows `/api/v1`.
    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Result<(u16, Vec<u8>)> {
        let path = format!("{BASE}{path}");
        Ok(match &self.at {
            At::Server(api) => {
                let asked = api.lock().await.send(method, &path, headers, body.as_bytes()).await;
                let answer = asked.map_err(|error| {
                    format!("{} does not answer, so it may have been done: {error}", self.place)
                })?;
                (answer.status, answer.body)
            }
            At::Here { service, .. } => {
                let request = request(method, &path, headers, body)?;
                let asked = service.as_ref().clone().oneshot(request);
                let response: Response = asked.await.unwrap_or_else(|never| match never {});
                let status = response.status().as_u16();
                (status, response.into_body().collect().await?.to_bytes().to_vec())
            }
        })
    }
}

/// The directory of this process. Commands on a cluster need none of their own: where there is none, they
/// get one for as long as they run.
fn take(
    config: &Config,
) -> std::result::Result<(DataDir, Option<tempfile::TempDir>), DataDirError> {
    if config.data.exists() || config.profile == Profile::Solo {
        return Ok((DataDir::open(&config.data)?, None));
    }
    let failed = |cause| DataDirError::Unusable(std::env::temp_dir(), cause);
    let temporary =
        tempfile::Builder::new().prefix("seckill-command-").tempdir().map_err(failed)?;
    Ok((DataDir::open(temporary.path())?, Some(temporary)))
}

/// A request of the operator who sits at this machine.
fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Result<Request<Body>> {
    let request = headers
        .iter()
        .fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
    let mut request = request
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))?;
    request.extensions_mut().insert(Operator { name: CLI.into(), role: Role::Admin });
    Ok(request)
}

/// The same of a problem that was read.
pub(super) fn told(problem: &Value) -> String {
    match problem.as_str() {
        Some(words) => words.to_owned(),
        None => in_words(0, problem.to_string().as_bytes()),
    }
}

/// What a problem says to a person: its sentence, and the field if the sentence does not name it.
fn in_words(status: u16, problem: &[u8]) -> String {
    let problem: Value = serde_json::from_slice(problem).unwrap_or_default();
    let text = |name: &str| problem[name].as_str().filter(|text| !text.is_empty());
    let Some(mut words) = text("detail").or(text("title")).map(str::to_owned) else {
        return format!("the answer was {status}, without a word");
    };
    if let Some(field) = text("field").filter(|field| !words.starts_with(*field)) {
        words = format!("{field}: {words}");
    }
    if let Some(state) = text("state").filter(|state| !words.contains(*state)) {
        words = format!("{words} (it is {state})");
    }
    match text("adjust_no") {
        Some(no) => format!("{words} It may have been done: ask again with --again {no}"),
        None => words,
    }
}

/// An address of a server, without who logs in there.
fn without_password(urls: &str) -> String {
    let one = |url: &str| match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!("{}{}", &url[..scheme + 3], &url[at + 1..])
        }
        _ => url.to_owned(),
    };
    urls.split(',').map(|url| one(url.trim())).collect::<Vec<_>>().join(",")
}

/// A name as a part of a path: whatever is not plain is written as its bytes.
pub(super) fn in_path(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_problem_is_told_in_its_words() {
        let told = |problem: Value| in_words(422, problem.to_string().as_bytes());
        let detail = "items[0].stock must be from 1 to 100000000";
        let problem = json!({"title": "Invalid", "detail": detail, "field": "items[0].stock"});
        assert_eq!(told(problem), detail);
        let problem = json!({"title": "Invalid", "detail": "must be a name", "field": "name"});
        assert_eq!(told(problem), "name: must be a name");
        assert_eq!(told(json!({"title": "Not found", "detail": ""})), "Not found");
        let problem = json!({"detail": "Not in this state.", "state": "ended"});
        assert_eq!(told(problem), "Not in this state. (it is ended)");
        assert_eq!(in_words(502, b"<html>"), "the answer was 502, without a word");
    }

    #[test]
    fn no_password_is_shown() {
        let urls = "redis://:hunter2@r1:6379, redis://u:p@ss@r2:6379";
        assert_eq!(without_password(urls), "redis://r1:6379,redis://r2:6379");
        assert_eq!(without_password("mysql://db/seckill"), "mysql://db/seckill");
    }

    #[tokio::test]
    async fn a_place_without_data_is_refused_and_stays_as_it_was() {
        let home = tempfile::tempdir().unwrap();
        for data in [home.path().join("nothing"), home.path().to_owned()] {
            let config = Config { data: data.clone(), ..Config::defaults() };
            let Err(Failure::Cannot(refused)) = AdminApi::open(config).await else {
                panic!("there is nothing to ask")
            };
            assert!(refused.contains("--data DIR or SECKILL_DATA"), "{refused}");
            assert!(refused.contains(&data.display().to_string()), "{refused}");
        }
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
