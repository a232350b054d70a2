//! How many orders per second this machine's disk and processor can settle.
//!
//! `cargo run --release -p ledger --example settle_rate [orders] [batch] [directory]`

use std::{path::PathBuf, sync::Arc, time::Instant};

use ledger::{Ledger, sqlite::SqliteLedger};
use sale::{
    Claim, Currency, NewActivity, NewItem, OrderBook, OrderNumbers, PAY_WITHIN_MS_DEFAULT,
    SharedClock, SystemClock, UserId,
};

type AnyError = Box<dyn std::error::Error>;

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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let (orders, batch) = (argument(1, 200_000)?, argument(2, 1_000)?.max(1));
    let directory = std::env::args().nth(3).map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(directory)?;
    let clock: SharedClock = Arc::new(SystemClock);
    let ledger = SqliteLedger::open(&directory.path().join("ledger.db"), clock.clone())?;
    let sold = ledger.create_activity(&activity(orders as i64), clock.now_ms()).await?;
    let item = sold.items[0].id;
    let numbers = OrderNumbers::new(0, clock.clone());

    let claims: Vec<Claim> = (0..orders)
        .map(|n| {
            // Buyers come in no order; a multiplication by an odd number scatters them.
            let user =
                UserId::new(&format!("u{:010}", (n as u64).wrapping_mul(0x9E37_79B1) as u32))?;
            let (order_no, claimed_ms) = (numbers.next(), clock.now_ms());
            Ok(Claim { order_no, item, user, quantity: 1, epoch: 1, claimed_ms, key: None })
        })
        .collect::<Result<_, AnyError>>()?;

    let began = Instant::now();
    let mut created = 0;
    for batch in claims.chunks(batch) {
        created += ledger.settle(item, batch).await?.created.len();
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{created} orders in {seconds:.2} s, batches of {batch}: {:.0} orders/s",
        created as f64 / seconds
    );
    Ok(())
}
