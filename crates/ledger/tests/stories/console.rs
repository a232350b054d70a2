//! Signing in to the console: links that are good once, sessions that end.

use ledger::{AuditEntry, CONSOLE_SESSIONS_MAX, ConsolePass, Origin, PassKind};
use serde_json::json;

use crate::{NOON_MS, check};

fn pass(name: &str, used_ms: i64) -> ConsolePass {
    ConsolePass {
        secret_hash: format!("{name:0>64}"),
        token: format!("{:0>64}", "7"),
        configured: false,
        created_ms: used_ms,
        used_ms,
        expires_ms: NOON_MS + 100_000,
    }
}

fn entry(action: &str) -> AuditEntry {
    AuditEntry {
        who: "ann".into(),
        action: action.into(),
        target: "console".into(),
        detail: json!({}),
        origin: Origin::default(),
    }
}

#[tokio::test]
async fn a_link_is_good_once_and_a_session_until_it_ends() {
    check(async |shop| {
        let (link, session) = (pass("a", NOON_MS), pass("b", NOON_MS));
        shop.add_console_pass(PassKind::Link, &link, &entry("console.link")).await.unwrap();
        shop.add_console_pass(PassKind::Session, &session, &entry("console.in")).await.unwrap();
        let hash = |pass: &ConsolePass| pass.secret_hash.clone();
        assert_eq!(shop.console_session(&hash(&link), NOON_MS).await.unwrap(), None);
        assert_eq!(shop.take_console_link(&hash(&session), NOON_MS).await.unwrap(), None);
        assert_eq!(
            shop.take_console_link(&hash(&link), NOON_MS).await.unwrap(),
            Some(link.clone())
        );
        assert_eq!(shop.take_console_link(&hash(&link), NOON_MS).await.unwrap(), None);

        shop.note_console_uses(&[(hash(&session), NOON_MS + 9), (hash(&session), NOON_MS + 5)])
            .await
            .unwrap();
        let found = shop.console_session(&hash(&session), NOON_MS).await.unwrap().unwrap();
        assert_eq!(found.used_ms, NOON_MS + 9);
        assert_eq!(shop.console_session(&hash(&session), NOON_MS + 100_000).await.unwrap(), None);
        assert!(
            shop.end_console_session(&hash(&session), &entry("console.out"), NOON_MS)
                .await
                .unwrap()
        );
        assert!(
            !shop
                .end_console_session(&hash(&session), &entry("console.out"), NOON_MS)
                .await
                .unwrap()
        );
        assert_eq!(shop.console_session(&hash(&session), NOON_MS).await.unwrap(), None);
        let log = shop.audit_log(None, 10).await.unwrap();
        let actions: Vec<_> = log.iter().map(|row| row.action.as_str()).collect();
        assert_eq!(actions, ["console.out", "console.in", "console.link"]);
    })
    .await;
}

#[tokio::test]
async fn a_link_that_is_over_opens_nothing() {
    check(async |shop| {
        let link = pass("a", NOON_MS);
        shop.add_console_pass(PassKind::Link, &link, &entry("console.link")).await.unwrap();
        let late = NOON_MS + 100_000;
        assert_eq!(shop.take_console_link(&link.secret_hash, late).await.unwrap(), None);
        assert_eq!(shop.take_console_link(&link.secret_hash, NOON_MS).await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn of_too_many_sessions_the_one_used_longest_ago_ends() {
    check(async |shop| {
        let name = |n: usize| format!("{n:x}");
        for n in 0..CONSOLE_SESSIONS_MAX + 2 {
            // All in the same minute but the first, which is used again and again.
            let used_ms = NOON_MS + n as i64;
            let new = pass(&name(n), used_ms);
            shop.add_console_pass(PassKind::Session, &new, &entry("console.in")).await.unwrap();
            if n == CONSOLE_SESSIONS_MAX - 1 {
                let first = pass(&name(0), 0).secret_hash;
                shop.note_console_uses(&[(first, NOON_MS + 50_000)]).await.unwrap();
            }
        }
        for (n, there) in [(0, true), (1, false), (2, false), (3, true)] {
            let hash = pass(&name(n), 0).secret_hash;
            let found = shop.console_session(&hash, NOON_MS).await.unwrap();
            assert_eq!(found.is_some(), there, "{n}");
        }
    })
    .await;
}
