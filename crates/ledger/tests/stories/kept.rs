//! What stays in the books when all else of the past is archived: the audit, whole and append-only, and the
//! runs of jobs, of which there are never many.

use faults::services::numbers_to;
use ledger::{AuditRow, NewJobRun};
use serde_json::json;

use crate::{
    Shop,
    archive::{CYCLE_MS, archive, live_through},
    audit_entry,
    back_door::BackDoor,
    check,
};

const ENTRIES: u64 = 20_000;
/// OPERATIONS reckons with it.
const ENTRY_BYTES_MAX: i64 = 300;
/// Runs that are remembered of a job, as OPERATIONS says.
const RUNS_MAX: u64 = 1_000;

async fn audit(shop: &Shop) -> Vec<AuditRow> {
    let (mut all, mut before) = (Vec::new(), None);
    loop {
        let page = shop.audit_log(before, 7).await.unwrap();
        let Some(last) = page.last() else { return all };
        before = Some(last.id);
        all.extend(page);
    }
}

/// What the audit takes on the disk.
async fn audit_bytes(shop: &Shop) -> i64 {
    let sql = match shop.back_door {
        BackDoor::Sqlite(_) => {
            "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        }
        BackDoor::Mysql(_) => {
            shop.back_door.run("ANALYZE TABLE tb_admin_audit").await.unwrap();
            "SELECT CAST(data_length AS SIGNED) FROM information_schema.tables
             WHERE table_schema = DATABASE() AND table_name = 'tb_admin_audit'"
        }
    };
    shop.back_door.number(sql).await
}

#[tokio::test]
async fn however_much_is_archived_the_audit_is_whole_and_nobody_may_delete_from_it() {
    check(async |shop| {
        live_through(&shop, 4).await;
        shop.audit(&audit_entry("order.refund"), shop.now() - 3 * CYCLE_MS).await.unwrap();
        let before = audit(&shop).await;
        assert!(before.len() > 10, "{before:?}");
        assert_eq!(archive(&shop, shop.now() - CYCLE_MS).await, 3);
        let after = audit(&shop).await;
        let told = |rows: &[AuditRow]| serde_json::to_value(rows).unwrap();
        assert_eq!(told(&after), told(&before));
        for sql in ["UPDATE tb_admin_audit SET who = 'nobody'", "DELETE FROM tb_admin_audit"] {
            let refused = shop.back_door.run(sql).await.unwrap_err();
            assert!(refused.contains("append-only"), "{refused}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_entry_of_the_audit_takes_little_room() {
    check(async |shop| {
        let before = audit_bytes(&shop).await;
        let entries = format!(
            "INSERT INTO tb_admin_audit (who, action, target, detail, created_at, address, request_id)
             SELECT 'operator-7', 'order.refund',
                 REPLACE('order:SK000000?', '?', CAST(1000000000000 + seq AS CHAR)),
                 '{{\"note\":\"It broke on its way.\"}}', 1800000000000 + seq, '203.0.113.77',
                 REPLACE('0190a3b2-7c44-7d1e-9f2a-?', '?', CAST(100000000000 + seq AS CHAR)) FROM {}",
            numbers_to(ENTRIES)
        );
        shop.back_door.run(&entries).await.unwrap();
        let each = (audit_bytes(&shop).await - before) / ENTRIES as i64;
        println!("{each} bytes for an entry of the audit");
        assert!((50..ENTRY_BYTES_MAX).contains(&each), "{each} bytes");
    })
    .await;
}

#[tokio::test]
async fn of_a_job_only_so_many_runs_are_remembered() {
    check(async |shop| {
        let runs = format!(
            "INSERT INTO tb_job_run (job, started_at, ended_at, ok, report)
             SELECT 'archive', seq, seq, 1, '{{}}' FROM {}",
            numbers_to(2 * RUNS_MAX)
        );
        shop.back_door.run(&runs).await.unwrap();
        let (job, report) = ("archive".into(), json!({"orders": 1}));
        let run = NewJobRun { job, started_ms: 1, ended_ms: 2, ok: true, report };
        let last = shop.record_run(&run).await.unwrap();
        let kept = shop.job_runs("archive", 5 * RUNS_MAX as usize).await.unwrap();
        assert_eq!((kept.len() as u64, kept[0].id), (RUNS_MAX, last));
    })
    .await;
}
