//! One version-checked transaction per order, by one consumer or several.
//!
//! The steps of the documents: read stock and version, take the unit if the version is still the
//! same, write order, stock log and user record, commit. A lost race is tried again in a new
//! transaction (in the old one the reading would not change), at most three times; then the message
//! goes back to the queue. No outbox and no check for duplicates beyond the unique keys, so it does
//! less than a batch of one.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mysql_async::{Conn, OptsBuilder, Statement, TxOpts, prelude::Queryable};
use sale::{Claim, Clock, Item, PAY_WITHIN_MS_DEFAULT, SystemClock};
use tokio::{sync::Mutex, task::JoinSet};

use crate::Failure;

const RETRIES_MAX: u32 = 3;

pub(crate) struct OrderRate {
    pub(crate) per_s: f64,
    pub(crate) conflicts: u64,
}

/// What the consumers share.
struct Shared {
    item: Item,
    queue: Mutex<VecDeque<Claim>>,
    ends: Instant,
    made: AtomicU64,
    conflicts: AtomicU64,
}

struct Consumer {
    conn: Conn,
    read: Statement,
    take: Statement,
    order: Statement,
    log: Statement,
    user: Statement,
}

/// Orders per second over this long.
pub(crate) async fn run(
    url: &str,
    item: Item,
    claims: Vec<Claim>,
    consumers: usize,
    how_long: Duration,
) -> Result<OrderRate, Failure> {
    let mut ready = Vec::new();
    for _ in 0..consumers {
        ready.push(Consumer::connect(url).await?);
    }
    let began = Instant::now();
    let shared = Arc::new(Shared {
        item,
        queue: Mutex::new(claims.into()),
        ends: began + how_long,
        made: AtomicU64::new(0),
        conflicts: AtomicU64::new(0),
    });
    let mut running = JoinSet::new();
    for consumer in ready {
        running.spawn(consumer.work(shared.clone()));
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    let made = shared.made.load(Ordering::Relaxed);
    let per_s = made as f64 / began.elapsed().as_secs_f64();
    Ok(OrderRate { per_s, conflicts: shared.conflicts.load(Ordering::Relaxed) })
}

impl Consumer {
    async fn connect(url: &str) -> Result<Consumer, Failure> {
        let opts = mysql_async::Opts::from_url(url)?;
        let mut conn = Conn::new(OptsBuilder::from_opts(opts).prefer_socket(false)).await?;
        let read = conn.prep("SELECT stock, version FROM tb_seckill_product WHERE id = ?").await?;
        let take = conn
            .prep(
                "UPDATE tb_seckill_product SET stock = stock - 1, version = version + 1
                 WHERE id = ? AND version = ? AND stock >= 1",
            )
            .await?;
        let order = conn
            .prep(
                "INSERT INTO tb_seckill_order (order_no, user_id, activity_id, product_id,
                     product_name, price, currency, quantity, amount, status, epoch, claimed_at,
                     pay_deadline, created_at)
                 VALUES (?, ?, ?, ?, ?, ?, 'CNY', 1, ?, 0, 1, ?, ?, ?)",
            )
            .await?;
        let log = conn
            .prep(
                "INSERT INTO tb_stock_log (order_no, product_id, product_name, quantity,
                     before_stock, after_stock, type, create_time) VALUES (?, ?, ?, 1, ?, ?, 1, ?)",
            )
            .await?;
        let user = conn
            .prep(
                "INSERT INTO tb_user_seckill (user_id, product_id, order_no, quantity, create_time)
                 VALUES (?, ?, ?, 1, ?)",
            )
            .await?;
        Ok(Consumer { conn, read, take, order, log, user })
    }

    async fn work(mut self, shared: Arc<Shared>) -> Result<(), Failure> {
        while Instant::now() < shared.ends {
            let Some(claim) = shared.queue.lock().await.pop_front() else {
                return Err("the queue ran empty before the time was over".into());
            };
            let mut made = false;
            for _ in 0..=RETRIES_MAX {
                made = self.make(&shared.item, &claim).await?;
                if made {
                    shared.made.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                shared.conflicts.fetch_add(1, Ordering::Relaxed);
            }
            if !made {
                shared.queue.lock().await.push_back(claim);
            }
        }
        self.conn.disconnect().await?;
        Ok(())
    }

    /// False if somebody else changed the item meanwhile.
    async fn make(&mut self, item: &Item, claim: &Claim) -> Result<bool, Failure> {
        let (no, now) = (claim.order_no.to_string(), SystemClock.now_ms());
        let user = claim.user.as_str();
        let mut tx = self.conn.start_transaction(TxOpts::default()).await?;
        let found: Option<(i64, i64)> = tx.exec_first(&self.read, (item.id.0,)).await?;
        let (stock, version) = found.ok_or("the item is gone")?;
        tx.exec_drop(&self.take, (item.id.0, version)).await?;
        if tx.affected_rows() != 1 {
            tx.rollback().await?;
            return Ok(false);
        }
        let price = item.price.minor;
        let deadline = now + PAY_WITHIN_MS_DEFAULT;
        let (activity, name) = (item.activity.0, &item.name);
        let row =
            (&no, user, activity, item.id.0, name, price, price, claim.claimed_ms, deadline, now);
        tx.exec_drop(&self.order, row).await?;
        tx.exec_drop(&self.log, (&no, item.id.0, name, stock, stock - 1, now)).await?;
        tx.exec_drop(&self.user, (user, item.id.0, &no, now)).await?;
        tx.commit().await?;
        Ok(true)
    }
}
