//! Moves activities that are over for long to the archive, if the shop asked for it.
//!
//! In small steps with pauses, and only while nobody buys: an archive may wait for years, a buyer may not.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ledger::{Archivable, ArchiveStep, LedgerError, NewJobRun, OldActivity};
use sale::{ActivityId, Millis};
use serde::Serialize;
use serde_json::json;

use super::{Job, JobResult, Progress};
use crate::shared::{AnyError, Shared};

/// The name under which its runs are kept.
const ARCHIVE_JOB: &str = "archive";
/// Orders, or rows of the stock log, moved in one step: a few milliseconds of whoever writes.
const STEP_ROWS_MAX: usize = 500;
/// After each step.
const STEP_PAUSE: Duration = Duration::from_millis(50);
/// How often a step is tried, and after which pause.
const TRIES_MAX: u32 = 5;
const TRY_PAUSE: Duration = Duration::from_millis(200);
/// Activities looked for at a time.
const PAGE_ACTIVITIES: usize = 50;
/// Steps of one run. The next one goes on.
const STEPS_MAX: u32 = 10_000;
/// Named in the report of a run.
const HELD_BACK_TOLD_MAX: usize = 20;
/// Activities that cannot be moved in one run. After so many it is the archive itself.
const FAILED_MAX: u64 = 100;

pub(crate) struct Archive {
    pub(super) shared: Arc<Shared>,
}

/// What a run did.
#[derive(Debug, Default, Serialize)]
struct Moved {
    /// That are in the archive as a whole now.
    activities: u64,
    orders: u64,
    log_rows: u64,
    /// What keeps old activities in the books, the first of them with their reasons.
    held_back: u64,
    held_back_because: Vec<String>,
    /// Of those what could not be moved, and why the last of it.
    failed: u64,
    #[serde(skip)]
    failure: Option<String>,
    steps: u32,
}

impl Moved {
    fn hold_back(&mut self, activity: ActivityId, why: &str) {
        self.held_back += 1;
        if self.held_back_because.len() < HELD_BACK_TOLD_MAX {
            self.held_back_because.push(format!("activity {activity}: {why}"));
        }
    }
}

impl Archive {
    /// False if nothing more should be moved now. What is wrong with one activity, or with its month, keeps
    /// no other in the books.
    async fn activity(&self, id: ActivityId, moved: &mut Moved) -> Result<bool, AnyError> {
        let ledger = &self.shared.ledger;
        if let Archivable::HeldBack(why) = ledger.archivable(id).await? {
            moved.hold_back(id, &why);
            return Ok(true);
        }
        loop {
            // An archive may wait for as long as somebody buys.
            if moved.steps >= STEPS_MAX || self.shared.gate.backlog() > 0 {
                return Ok(false);
            }
            moved.steps += 1;
            match self.step(id).await {
                Ok(ArchiveStep::Moved { orders, log_rows }) => {
                    moved.orders += orders;
                    moved.log_rows += log_rows;
                    tokio::time::sleep(STEP_PAUSE).await;
                }
                Ok(ArchiveStep::HeldBack(why)) => {
                    moved.hold_back(id, &why);
                    return Ok(true);
                }
                Ok(ArchiveStep::Done) => {
                    moved.activities += 1;
                    return Ok(true);
                }
                Err(error) if moved.failed < FAILED_MAX => {
                    moved.failed += 1;
                    moved.failure = Some(format!("activity {id}: {error}"));
                    moved.hold_back(id, &error.to_string());
                    return Ok(true);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A month that somebody reads at this moment, or a ledger that is busy, has a moment to be free.
    async fn step(&self, id: ActivityId) -> Result<ArchiveStep, LedgerError> {
        for _ in 1..TRIES_MAX {
            let now_ms = self.shared.now_ms();
            match self.shared.ledger.archive_step(id, STEP_ROWS_MAX, now_ms).await {
                Err(LedgerError::Unavailable(_)) => tokio::time::sleep(TRY_PAUSE).await,
                outcome => return outcome,
            }
        }
        self.shared.ledger.archive_step(id, STEP_ROWS_MAX, self.shared.now_ms()).await
    }

    /// Goes through all that are old. False if it should go on soon.
    async fn all(&self, closed_before_ms: Millis, moved: &mut Moved) -> Result<bool, AnyError> {
        let mut after = OldActivity::FIRST;
        loop {
            let ledger = &self.shared.ledger;
            let old = ledger.old_activities(closed_before_ms, after, PAGE_ACTIVITIES).await?;
            let Some(last) = old.last() else { return Ok(true) };
            after = *last;
            for activity in old {
                if !self.activity(activity.id, moved).await? {
                    return Ok(false);
                }
            }
        }
    }

    async fn record(&self, started_ms: Millis, ok: bool, moved: &Moved) -> Result<(), AnyError> {
        if moved.orders + moved.log_rows + moved.activities == 0 {
            return Ok(());
        }
        let Moved { activities, orders, held_back, .. } = moved;
        tracing::info!(activities, orders, held_back, "moved to the archive");
        let (ended_ms, report) = (self.shared.now_ms(), json!(moved));
        let run = NewJobRun { job: ARCHIVE_JOB.into(), started_ms, ended_ms, ok, report };
        self.shared.ledger.record_run(&run).await?;
        Ok(())
    }
}

#[async_trait]
impl Job for Archive {
    async fn run(&self) -> JobResult {
        let after_ms = self.shared.settings.jobs.archive_after_ms;
        if after_ms == 0 {
            return Ok(Progress::CaughtUp);
        }
        let started_ms = self.shared.now_ms();
        let closed_before_ms = started_ms.saturating_sub_unsigned(after_ms);
        let mut moved = Moved::default();
        let all = self.all(closed_before_ms, &mut moved).await;
        self.record(started_ms, all.is_ok() && moved.failed == 0, &moved).await?;
        let caught_up = all?;
        if let Some(failure) = moved.failure {
            let failed = moved.failed;
            return Err(format!("{failed} activities could not be moved, such as {failure}").into());
        }
        Ok(if caught_up { Progress::CaughtUp } else { Progress::AgainSoon })
    }
}

#[cfg(test)]
mod tests {
    use sale::{Activity, Clock, OrderNo};

    use super::*;
    use crate::test_engine::TestEngine;

    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

    async fn run_all(shop: &TestEngine) {
        let jobs = &shop.engine.jobs;
        jobs.timeout.run().await.unwrap();
        jobs.lifecycle.run().await.unwrap();
        while jobs.release.run().await.unwrap() == Progress::MoreToDo {}
    }

    /// Someone buys and does not pay, and half a year later somebody else does the same.
    async fn half_a_year(archive_after_ms: u64) -> (TestEngine, OrderNo) {
        let (shop, activity) =
            TestEngine::with_a_sale(|settings| settings.jobs.archive_after_ms = archive_after_ms)
                .await;
        let no = shop.buy(activity.items[0].id, "ann").await;
        let_it_pass(&shop).await;
        (shop, no)
    }

    async fn let_it_pass(shop: &TestEngine) {
        shop.clock.advance(2 * 3_600_000);
        run_all(shop).await;
        shop.clock.advance(180 * DAY_MS as i64);
        sell_one(shop).await;
        run_all(shop).await;
    }

    /// In a sale of its own, which begins now.
    async fn sell_one(shop: &TestEngine) -> Activity {
        let window = (shop.clock.now_ms() - 1, shop.clock.now_ms() + 3_600_000);
        let sale = shop.another_sale("pen", window, 60_000).await;
        shop.engine.operations.warm_activity("ann", sale.id, false).await.unwrap();
        shop.buy(sale.items[0].id, "ann").await;
        sale
    }

    fn orders_in(shop: &TestEngine) -> i64 {
        let books = rusqlite::Connection::open(shop.data.path().join("ledger.db")).unwrap();
        let sql = "SELECT COUNT(*) FROM tb_seckill_order";
        books.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    #[tokio::test]
    async fn a_shop_that_set_nothing_keeps_its_books_together() {
        let (shop, _) = half_a_year(0).await;
        assert_eq!(shop.engine.jobs.archive.run().await.unwrap(), Progress::CaughtUp);
        assert_eq!(orders_in(&shop), 2);
        let runs = shop.engine.shared.ledger.job_runs(ARCHIVE_JOB, 9).await.unwrap();
        assert!(runs.is_empty());
    }

    #[tokio::test]
    async fn an_activity_that_cannot_be_moved_keeps_no_other_in_the_books() {
        let shop = TestEngine::without_a_sale(|settings| {
            settings.jobs.archive_after_ms = 90 * DAY_MS;
        });
        let shop = shop.await;
        let stuck = sell_one(&shop).await;
        sell_one(&shop).await;
        let_it_pass(&shop).await;
        shop.change_ledger(&format!(
            "CREATE TRIGGER trip BEFORE DELETE ON tb_seckill_order WHEN OLD.activity_id = {}
             BEGIN SELECT RAISE(ABORT, 'it is stuck'); END",
            stuck.id
        ));
        let failed = shop.engine.jobs.archive.run().await.unwrap_err().to_string();
        assert!(failed.contains("it is stuck"), "{failed}");
        assert_eq!(orders_in(&shop), 2, "the other one is moved");
        let runs = shop.engine.shared.ledger.job_runs(ARCHIVE_JOB, 9).await.unwrap();
        assert_eq!((runs[0].ok, &runs[0].report["failed"]), (false, &json!(1)));
        shop.change_ledger("DROP TRIGGER trip");
        assert_eq!(shop.engine.jobs.archive.run().await.unwrap(), Progress::CaughtUp);
        assert_eq!(orders_in(&shop), 1);
    }

    #[tokio::test]
    async fn what_is_over_for_so_long_is_moved_and_found_by_its_buyer() {
        let (shop, no) = half_a_year(90 * DAY_MS).await;
        assert_eq!(shop.engine.jobs.archive.run().await.unwrap(), Progress::CaughtUp);
        assert_eq!(orders_in(&shop), 1);
        let ledger = &shop.engine.shared.ledger;
        let runs = ledger.job_runs(ARCHIVE_JOB, 9).await.unwrap();
        assert_eq!((runs.len(), &runs[0].report["orders"]), (1, &json!(1)));
        assert_eq!(runs[0].report["activities"], 1);
        let ann = "ann".parse().unwrap();
        let orders = shop.engine.orders.of_buyer(&ann, None, 9).await.unwrap();
        assert_eq!(orders.last().unwrap().order_no(), no);
        let found = shop.engine.orders.order(no, Some(&ann)).await.unwrap().unwrap();
        assert_eq!(found.user(), &ann);
        shop.engine.jobs.archive.run().await.unwrap();
        let runs = ledger.job_runs(ARCHIVE_JOB, 9).await.unwrap();
        assert_eq!(runs.len(), 1, "a run that moved nothing says nothing");
        // The process ends, and the next one finds it as well.
        let shop = shop.reopen().await;
        assert!(shop.engine.orders.order(no, Some(&ann)).await.unwrap().is_some());
    }
}
