//! The deployment that is rehearsed on, and what is asked of it beside what buyers ask.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use client::{Api, ApiError, Login, NotSettled, settled};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::RehearseError;

/// All claims are orders and all time-outs are done after this, or something is wrong.
pub(crate) const REST_WITHIN: Duration = Duration::from_secs(120);
const UNPAID_AGAIN: Duration = Duration::from_millis(250);
/// How often a comparison of a large shop is asked whether it is done.
const COMPARING_POLL: Duration = Duration::from_secs(1);

/// The deployment to rehearse on.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its instances; the first is asked what operators ask.
    pub addresses: Vec<SocketAddr>,
    pub admin_token: String,
    /// How buyers sign in; with the dev login if not given.
    pub login: Option<Login>,
    /// Started for this rehearsal.
    pub own: bool,
}

impl Site {
    pub(crate) fn admin(&self) -> Api {
        Api::new(self.addresses[0], Some(&self.admin_token))
    }
}

/// Wait until claims are orders, unpaid orders have timed out, and what follows from that is done.
pub(crate) async fn come_to_rest(
    admin: &mut Api,
    activity: i64,
    pay_within: Duration,
) -> Result<(), NotSettled> {
    settled(admin, REST_WITHIN).await?;
    let deadline = Instant::now() + pay_within + REST_WITHIN;
    while any_unpaid(admin, activity).await? {
        if Instant::now() > deadline {
            return Err(NotSettled::Busy("unpaid orders do not time out".into()));
        }
        sleep(UNPAID_AGAIN).await;
    }
    settled(admin, REST_WITHIN).await
}

/// The dev login, if the deployment has one.
pub(crate) async fn dev_login(site: &Site) -> Result<Login, RehearseError> {
    let mut api = Api::new(site.addresses[0], None);
    match Login::Dev.token(&mut api, "rehearsal-probe").await {
        Ok(_) => Ok(Login::Dev),
        Err(ApiError::Status { status: 404, .. }) => Err(RehearseError::NoLogin),
        Err(other) => Err(other.into()),
    }
}

/// The deployment's time, and our instant that is the same.
pub(crate) async fn server_clock(admin: &mut Api) -> Result<(i64, Instant), ApiError> {
    const ASKS: usize = 5;
    let mut best: Option<(Duration, i64, Instant)> = None;
    for _ in 0..ASKS {
        let asked = Instant::now();
        let time: Value = admin.read("/api/v1/time").await?;
        let trip = asked.elapsed();
        if best.is_none_or(|(shortest, ..)| trip < shortest) {
            best = Some((trip, time["now_ms"].as_i64().unwrap_or_default(), asked + trip / 2));
        }
    }
    best.map(|(_, now_ms, at)| (now_ms, at)).ok_or_else(|| std::io::Error::other("no time").into())
}

async fn any_unpaid(admin: &mut Api, activity: i64) -> Result<bool, ApiError> {
    let path = format!("/api/v1/admin/orders?activity_id={activity}&status=unpaid&limit=1");
    let page: Value = admin.read(&path).await?;
    Ok(page["orders"].as_array().is_some_and(|orders| !orders.is_empty()))
}

/// Asks the deployment to compare itself, and to change nothing.
pub(crate) async fn differences(admin: &mut Api) -> Result<u64, RehearseError> {
    match admin.write::<Value>("/api/v1/admin/reconcile?heal=false", &json!({})).await {
        Ok(mut answer) => {
            // A large shop answers with the number of a run that goes on.
            while answer["state"] == "running" {
                sleep(COMPARING_POLL).await;
                let path = format!("/api/v1/admin/reconcile/runs/{}", answer["run"]);
                answer = admin.read(&path).await?;
            }
            let report = if answer["state"] == "done" { &answer["report"] } else { &answer };
            let differences = report["differences"].as_u64();
            Ok(differences.ok_or_else(|| std::io::Error::other("the comparison failed"))?)
        }
        Err(ApiError::Status { status: 401 | 403, .. }) => Err(RehearseError::AdminToken),
        Err(other) => Err(other.into()),
    }
}
