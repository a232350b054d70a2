//! `seckill token`: who may operate, and as what.

use clap::Subcommand;
use ledger::Role;
use sale::iso_time;
use serde_json::json;

use super::{AdminApi, Failure, admin_api::in_path, durations::duration_ms};

#[derive(Subcommand)]
pub(super) enum Token {
    /// Make a token and print it, once
    Create {
        /// Whose it is; stands in the audit
        name: String,
        /// viewer reads, operator runs sales, admin does everything, cashier only tells of money
        #[arg(long, default_value = "operator")]
        role: Role,
        /// How long it is good, such as 30d, or never [default: auth.admin_token_ttl_ms, 90 days]
        #[arg(long)]
        expires: Option<String>,
        /// An address or range from which it may be used, such as 10.0.0.0/8; several times for several
        #[arg(long)]
        from: Vec<String>,
    },
    /// Names, roles, when they expire, were last used, and from where they may be
    List,
    /// Make a token useless
    Revoke { name: String },
}

pub(super) async fn run(api: &AdminApi, command: Token) -> Result<(), Failure> {
    match command {
        Token::Create { name, role, expires, from } => {
            let mut new = json!({"name": name, "role": role, "addresses": from});
            if let Some(expires) = expires {
                let ttl_ms =
                    ttl_ms(&expires).map_err(|rule| format!("--expires {expires}: {rule}"))?;
                new["ttl_ms"] = ttl_ms.into();
            }
            let made = api.post("/admin/tokens", &new).await?;
            println!("{}", made["token"].as_str().unwrap_or_default());
        }
        Token::List => {
            let page = api.get("/admin/tokens").await?;
            for token in page["tokens"].as_array().into_iter().flatten() {
                let text = |name: &str| token[name].as_str().unwrap_or_default();
                let day = |name: &str, none: &str| match token[name].as_i64() {
                    Some(at_ms) => iso_time(at_ms),
                    None => none.to_owned(),
                };
                let from = token["addresses"].as_array().into_iter().flatten();
                let from: Vec<&str> = from.filter_map(|range| range.as_str()).collect();
                println!(
                    "{:8}  {}  expires {}, used {}, from {}",
                    text("role"),
                    text("name"),
                    day("expires_at", "never"),
                    day("last_used_at", "never"),
                    if from.is_empty() { "anywhere".into() } else { from.join(" ") }
                );
            }
        }
        Token::Revoke { name } => {
            api.delete(&format!("/admin/tokens/{}", in_path(&name))).await?;
            println!("{name} is revoked");
        }
    }
    Ok(())
}

/// For the API zero is for ever; whoever types no time at all does not mean that.
fn ttl_ms(expires: &str) -> Result<u64, String> {
    if expires == "never" {
        return Ok(0);
    }
    match duration_ms(expires)? {
        0 => {
            Err("must be longer than nothing; a token that is good for ever is one with never"
                .into())
        }
        ttl_ms => Ok(ttl_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_never_makes_a_token_for_ever() {
        assert_eq!((ttl_ms("never"), ttl_ms("1h30m")), (Ok(0), Ok(5_400_000)));
        for bad in ["0s", "0d0h", "", "30", "Never"] {
            assert!(ttl_ms(bad).is_err(), "{bad}");
        }
    }
}
