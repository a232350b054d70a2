//! `seckill console`: a link that signs a browser in, made by the server that runs on this machine.
//!
//! What is secret in it stands behind the `#`, which a browser sends to nobody. The link acts as the command
//! does: as the token that the server left for commands on its machine, with the role admin.

use serde_json::{Value, json};

use super::{AdminApi, Failure};
use crate::serve::Running;
use config::Config;

pub(super) async fn console(config: Config) -> Result<(), Failure> {
    let data = config.data.clone();
    let nobody = || {
        Failure::Cannot(format!(
            "no server runs on {}: start one (`seckill serve`), or sign in at the /console of another \
             with an admin token (`seckill token create NAME`)",
            data.display()
        ))
    };
    // Who has left a note may be dead; whoever answers is not.
    let running = Running::read(&config.data).ok_or_else(nobody)?;
    let page = running.console.ok_or_else(nobody)?;
    let api = AdminApi::open(config).await?;
    if !api.is_at_server() {
        api.close().await;
        return Err(nobody());
    }
    let made: Value = api.post("/admin/session/links", &json!({})).await?;
    let link = made["link"].as_str().unwrap_or_default();
    eprintln!("good once, for five minutes:");
    println!("{page}#{link}");
    Ok(())
}
