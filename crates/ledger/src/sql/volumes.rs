//! Volumes: the orders of one stretch of time, each with an index of its buyers.
//!
//! Buyers come in no order. In one index of all buyers there ever were, a batch of a thousand orders
//! rewrites a thousand pages all over the shop's past, and the more so the longer the past is: with SQLite
//! 94,000 orders per second became 17,000 after 1.2 million. So the index begins with the volume that an
//! order was written in. A batch lands in the last volume and nowhere else; whoever looks for a buyer looks
//! into each of them.
//!
//! A volume is full after [`FULL_MIN`] orders, and after more the more volumes there are, so that their
//! number grows like the square root of the orders: 5 million are in 77, 100 million in 765. How full it is
//! every process counts for itself. Two that write to the same one make it larger than meant, and nothing
//! else: which volume an order is in only says where it is found quickly, and a number once given is always
//! looked into. The first is volume 0, which also holds what was written before there were volumes, or is
//! written by a binary that does not know of them.

use parking_lot::Mutex;
use sale::{Millis, OrderNo};

use super::{
    Access, SqlLedger,
    columns::get,
    failure::Outcome,
    session::{Session, Value, values},
};

/// Orders of a small volume: its index is some hundred pages.
const FULL_MIN: u64 = 65_536;
/// After so many volumes they are twice as large, after twice as many three times.
const GROWS_EVERY: u64 = 256;
/// Clocks of those who write orders and of those who number them may differ by this.
const CLOCKS_APART_MS: Millis = 600_000;

/// As a column: where an order is written now.
pub(super) const LAST: &str = "(SELECT MAX(volume) FROM tb_order_volume)";

/// A condition on orders of a buyer, in whichever volume. Without it no index finds them.
pub(super) async fn any(session: &mut dyn Session) -> Outcome<String> {
    listed(session, "SELECT volume FROM tb_order_volume", &[]).await
}

/// The same where only orders numbered from this one on are wanted. An order is written after it is
/// numbered, so not into a volume that was full by then.
pub(super) async fn late(session: &mut dyn Session, oldest: OrderNo) -> Outcome<String> {
    let sql = "SELECT volume FROM tb_order_volume WHERE volume = 0 OR volume >=
         (SELECT MAX(volume) FROM tb_order_volume WHERE began_at <= ?)";
    let since_ms = (oldest.made_ms() - CLOCKS_APART_MS).max(0);
    listed(session, sql, values![since_ms]).await
}

/// Their numbers are written into the statement: a server looks up buyers in a list of volumes, and would
/// read all of each volume that comes out of another table.
async fn listed(session: &mut dyn Session, sql: &str, values: &[Value<'_>]) -> Outcome<String> {
    let volumes = session.rows(sql, values, |row| get::<i64>(row, 0)).await?;
    let volumes: Vec<String> = volumes.iter().map(i64::to_string).collect();
    Ok(format!("volume IN ({})", volumes.join(", ")))
}

fn full_at(volume: i64) -> u64 {
    FULL_MIN * (1 + volume.unsigned_abs() / GROWS_EVERY)
}

/// The last volume and how many orders are in it, as far as this process knows.
#[derive(Clone, Copy, Default)]
struct Filling {
    volume: Option<i64>,
    orders: u64,
}

#[derive(Default)]
pub(crate) struct Volumes(Mutex<Filling>);

impl Volumes {
    /// How many orders are in the volume now; nothing if that is not known.
    fn add(&self, written: Written) -> Option<u64> {
        let mut filling = self.0.lock();
        let known = filling.volume?;
        if known < written.volume {
            // Somebody began it a moment ago.
            *filling = Filling { volume: Some(written.volume), orders: 0 };
        }
        // What arrives late in the one before fills nothing.
        if known <= written.volume {
            filling.orders += written.orders;
        }
        Some(if known > written.volume { 0 } else { filling.orders })
    }

    fn found(&self, volume: i64, orders: u64) -> u64 {
        *self.0.lock() = Filling { volume: Some(volume), orders };
        orders
    }
}

/// Where orders have just been written, and how many.
#[derive(Clone, Copy)]
pub(super) struct Written {
    pub(super) volume: i64,
    pub(super) orders: u64,
}

async fn count(session: &mut dyn Session, volume: i64, most: u64) -> Outcome<u64> {
    let sql = format!(
        "SELECT COUNT(*) FROM (SELECT 1 FROM tb_seckill_order {} WHERE volume = ? LIMIT ?) AS some_of_it",
        session.dialect().by_index("ix_order_user")
    );
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    Ok(session.first(&sql, values![volume, most], |row| get(row, 0)).await?.unwrap_or(0))
}

/// Somebody else may have begun it at the same moment.
async fn begin(tx: &mut dyn Session, volume: i64, now_ms: Millis) -> Outcome<()> {
    let keep = tx.dialect().keep("volume");
    let row = [volume.into(), now_ms.into()];
    tx.insert("tb_order_volume (volume, began_at)", [row].into_iter(), &keep).await
}

impl SqlLedger {
    /// Orders were written; begins the next volume if that made the last one full. What fails here is only
    /// put off to the next batch.
    pub(super) async fn note_written(&self, written: Written) {
        let orders = match self.volumes.add(written) {
            Some(orders) => orders,
            None => match self.count_volume(written.volume).await {
                Ok(orders) => self.volumes.found(written.volume, orders),
                Err(_) => return,
            },
        };
        if orders >= full_at(written.volume) {
            let (next, now_ms) = (written.volume + 1, self.clock.now_ms());
            let begun: crate::Result<()> =
                self.run(Access::Write, (), move |tx, ()| Box::pin(begin(tx, next, now_ms))).await;
            if let Err(error) = begun {
                tracing::warn!(%error, volume = next, "the next volume of orders could not be begun yet");
            }
        }
    }

    /// What a process before this one has left.
    async fn count_volume(&self, volume: i64) -> crate::Result<u64> {
        let most = full_at(volume);
        self.run(Access::Statement, (), move |session, ()| Box::pin(count(session, volume, most)))
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shop_with_many_orders_has_few_volumes() {
        let volumes_of = |orders: u64| {
            let (mut volumes, mut room) = (0, 0);
            while room < orders {
                room += full_at(volumes);
                volumes += 1;
            }
            volumes
        };
        assert_eq!(volumes_of(5_000_000), 77);
        assert_eq!(volumes_of(100_000_000), 765);
    }
}
