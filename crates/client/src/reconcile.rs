//! Asking a deployment to compare itself, and waiting for the report however long that takes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{Api, ApiError};

/// How often it is asked whether a comparison has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Compares with these options, such as `heal=true`, and answers the report. A shop that is large or busy
/// answers with the number of a run that goes on, which is followed to its end.
pub async fn reconcile(admin: &mut Api, options: &str) -> Result<Value, ApiError> {
    let path = format!("/api/v1/admin/reconcile?{options}");
    let mut answer: Value = admin.write(&path, &json!({})).await?;
    while answer["state"] == "running" {
        tokio::time::sleep(LOOK_AGAIN).await;
        let path = format!("/api/v1/admin/reconcile/runs/{}", answer["run"]);
        answer = admin.read(&path).await?;
    }
    Ok(if answer["state"] == "done" { answer["report"].take() } else { answer })
}
