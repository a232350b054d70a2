//! How many orders per second this machine's disk and processor can settle.
//!
//! `cargo run --release -p ledger --example settle_rate [orders] [batch] [directory]`, on SQLite.
//! With `mysql://user@host:port/database` in the place of the directory it measures that server, and
//! beside it what the same server does with one version-checked transaction per order.

use std::{path::PathBuf, sync::Arc, time::Instant};

use ledger::{
    Ledger,
    mysql::{MysqlLedger, Options},
    sqlite::SqliteLedger,
};
use mysql_async::{Conn, OptsBuilder, TxOpts, prelude::Queryable};
use sale::{
    Claim, Clock, Currency, Item, NewActivity, NewItem, OrderNumbers, PAY_WITHIN_MS_DEFAULT,
    SharedClock, SystemClock, UserId,
};

type AnyError = Box<dyn std::error::Error>;

/// Orders made one by one, to compare with.
const SINGLES: usize = 3_000;

fn activity(stock: i64) -> NewActivity {
    let item = NewItem {
        name: "iPhone 15 Pro 256GB".into(),
        image_url: String::new(),
        price: 699_900,
        origin_price: Some(799_900),
        currency: Currency::CNY,
        stock,
        limit_per_user: 1,
        shards: 1,
    };
    NewActivity {
        name: "settle rate".into(),
        opens_ms: 1,
        closes_ms: i64::MAX,
        pay_within_ms: PAY_WITHIN_MS_DEFAULT,
        items: vec![item],
    }
}

/// The n-th argument, or the usual value.
fn argument(n: usize, usual: usize) -> Result<usize, AnyError> {
    Ok(std::env::args().nth(n).map(|text| text.parse()).transpose()?.unwrap_or(usual))
}

/// A new item of this much stock, and as many claims of it.
async fn crowd(ledger: &dyn Ledger, buyers: usize) -> Result<(Item, Vec<Claim>), AnyError> {
    let clock: SharedClock = Arc::new(SystemClock);
    let mut sold = ledger.create_activity(&activity(buyers as i64), clock.now_ms()).await?;
    let item = sold.items.remove(0);
    let numbers = OrderNumbers::new(0, clock.clone());
    if let Some(last) = ledger.last_order_no().await? {
        numbers.start_after(last);
    }
    let claim = |n: usize| {
        // Buyers come in no order; a multiplication by an odd number scatters them.
        let user = UserId::new(&format!("u{:010}", (n as u64).wrapping_mul(0x9E37_79B1) as u32))?;
        let (order_no, claimed_ms) = (numbers.next(), clock.now_ms());
        Ok(Claim { order_no, item: item.id, user, quantity: 1, epoch: 1, claimed_ms, key: None })
    };
    let claims = (0..buyers).map(claim).collect::<Result<_, AnyError>>()?;
    Ok((item, claims))
}

/// Orders per second in batches of this size.
async fn batches(ledger: &dyn Ledger, orders: usize, batch: usize) -> Result<f64, AnyError> {
    let (item, claims) = crowd(ledger, orders).await?;
    let began = Instant::now();
    let mut created = 0;
    for batch in claims.chunks(batch) {
        created += ledger.settle(item.id, batch).await?.created.len();
    }
    let seconds = began.elapsed().as_secs_f64();
    let rate = created as f64 / seconds;
    println!("{created} orders in {seconds:.2} s, batches of {batch}: {rate:.0} orders/s");
    Ok(rate)
}

/// Orders per second with a transaction for each: read the version, take the unit if it is still so,
/// write order, stock log and user record, commit. No outbox and no second look at duplicates, which
/// makes it faster than a batch of one.
async fn one_by_one(ledger: &dyn Ledger, url: &str) -> Result<f64, AnyError> {
    let (item, claims) = crowd(ledger, SINGLES).await?;
    let opts = mysql_async::Opts::from_url(url)?;
    let mut conn = Conn::new(OptsBuilder::from_opts(opts).prefer_socket(false)).await?;
    let began = Instant::now();
    for claim in &claims {
        let mut tx = conn.start_transaction(TxOpts::default()).await?;
        let (no, now) = (claim.order_no.to_string(), SystemClock.now_ms());
        let read = "SELECT stock, version FROM tb_seckill_product WHERE id = ?";
        let found: Option<(i64, i64)> = tx.exec_first(read, (item.id.0,)).await?;
        let (stock, version) = found.ok_or("the item is gone")?;
        tx.exec_drop(
            "UPDATE tb_seckill_product SET stock = stock - 1, version = version + 1
             WHERE id = ? AND version = ? AND stock >= 1",
            (item.id.0, version),
        )
        .await?;
        if tx.affected_rows() != 1 {
            return Err("somebody else sells here".into());
        }
        let user = claim.user.as_str();
        tx.exec_drop(
            "INSERT INTO tb_seckill_order (order_no, user_id, activity_id, product_id,
                 product_name, price, currency, quantity, amount, status, epoch, claimed_at,
                 pay_deadline, created_at)
             VALUES (?, ?, ?, ?, ?, ?, 'CNY', 1, ?, 0, 1, ?, ?, ?)",
            (
                &no,
                user,
                item.activity.0,
                item.id.0,
                &item.name,
                item.price.minor,
                item.price.minor,
                claim.claimed_ms,
                now + PAY_WITHIN_MS_DEFAULT,
                now,
            ),
        )
        .await?;
        tx.exec_drop(
            "INSERT INTO tb_stock_log (order_no, product_id, product_name, quantity, before_stock,
                 after_stock, type, create_time) VALUES (?, ?, ?, 1, ?, ?, 1, ?)",
            (&no, item.id.0, &item.name, stock, stock - 1, now),
        )
        .await?;
        tx.exec_drop(
            "INSERT INTO tb_user_seckill (user_id, product_id, order_no, quantity, create_time)
             VALUES (?, ?, ?, 1, ?)",
            (user, item.id.0, &no, now),
        )
        .await?;
        tx.commit().await?;
    }
    let (seconds, made) = (began.elapsed().as_secs_f64(), claims.len());
    let rate = made as f64 / seconds;
    println!("{made} orders in {seconds:.2} s, a transaction for each: {rate:.0} orders/s");
    conn.disconnect().await?;
    Ok(rate)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let (orders, batch) = (argument(1, 200_000)?, argument(2, 1_000)?.max(1));
    let clock: SharedClock = Arc::new(SystemClock);
    let place = std::env::args().nth(3);
    if let Some(url) = place.as_deref().filter(|place| place.starts_with("mysql://")) {
        let ledger = MysqlLedger::open(url, clock, Options::default()).await?;
        let single = one_by_one(&ledger, url).await?;
        let batched = batches(&ledger, orders, batch).await?;
        println!("in batches {:.1} times as many", batched / single);
        return Ok(());
    }
    let directory = place.map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(directory)?;
    let ledger = SqliteLedger::open(&directory.path().join("ledger.db"), clock)?;
    batches(&ledger, orders, batch).await?;
    Ok(())
}
