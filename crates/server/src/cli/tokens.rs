//! `seckill token`: who may operate, and as what.

use clap::Subcommand;
use ledger::Role;
use serde_json::json;

use super::{AdminApi, Failure, admin_api::in_path};

#[derive(Subcommand)]
pub(super) enum Token {
    /// Make a token and print it, once
    Create {
        /// Whose it is; stands in the audit
        name: String,
        /// viewer reads, operator runs sales, admin does everything
        #[arg(long, default_value = "operator")]
        role: Role,
    },
    /// Names and roles
    List,
    /// Make a token useless
    Revoke { name: String },
}

pub(super) async fn run(api: &AdminApi, command: Token) -> Result<(), Failure> {
    match command {
        Token::Create { name, role } => {
            let made = api.post("/admin/tokens", &json!({"name": name, "role": role})).await?;
            println!("{}", made["token"].as_str().unwrap_or_default());
        }
        Token::List => {
            let page = api.get("/admin/tokens").await?;
            for token in page["tokens"].as_array().into_iter().flatten() {
                let text = |name: &str| token[name].as_str().unwrap_or_default();
                println!("{:8}  {}", text("role"), text("name"));
            }
        }
        Token::Revoke { name } => {
            api.delete(&format!("/admin/tokens/{}", in_path(&name))).await?;
            println!("{name} is revoked");
        }
    }
    Ok(())
}
