//! An archived order comes back into the books, because something happens to it after all: money that comes
//! years too late, or a refund of an old order.
//!
//! With it come its payments. Its rows of the stock log stay in the archive: the chain in the books goes on
//! behind them. The copy in the month stays, too, and is passed over; the next run of the job moves the
//! order again when it is over, and writes over it.

use sale::{ActivityId, ItemId, OrderNo, OrderStatus, UserId};

use super::{
    super::{
        columns::{coded, get, parsed},
        failure::Outcome,
        session::{Row, Session, Value, values},
    },
    Month, Purpose,
    moving::add_to_sums,
    reading::is_made,
    rows::{Copied, columns},
};

struct Archived {
    activity: ActivityId,
    item: ItemId,
    user: UserId,
    status: OrderStatus,
    quantity: i64,
    amount: i64,
    created_ms: i64,
}

fn read(row: &dyn Row) -> Outcome<Archived> {
    Ok(Archived {
        activity: ActivityId(get(row, 0)?),
        item: ItemId(get(row, 1)?),
        user: parsed(row, 2)?,
        status: coded(row, 3, OrderStatus::from_code)?,
        quantity: get(row, 4)?,
        amount: get(row, 5)?,
        created_ms: get(row, 6)?,
    })
}

/// False if no such order is in the archive. The caller has found it missing in the books.
pub(in super::super) async fn recall(tx: &mut dyn Session, no: OrderNo) -> Outcome<bool> {
    let month = Month::of(no);
    if !is_made(tx, month).await? {
        return Ok(false);
    }
    let key = [Value::from(no)];
    let key = ("order_no", &key[..]);
    let of_orders = columns(tx, "tb_seckill_order").await?;
    let of_payments = columns(tx, "tb_payment").await?;
    let mut kept = tx.month(month, Purpose::Read).await?;
    let sql = "SELECT activity_id, product_id, user_id, status, quantity, amount, created_at
         FROM tb_seckill_order WHERE order_no = ?";
    let from: &mut dyn Session = &mut *kept;
    let Some(order) = from.first(sql, values![no], read).await? else { return Ok(false) };
    let rows = Copied::read(from, ("tb_seckill_order", of_orders), key).await?;
    let payments = Copied::read(from, ("tb_payment", of_payments), key).await?;
    drop(kept);
    rows.write(tx).await?;
    payments.write(tx).await?;
    let keep = tx.dialect().keep("order_no");
    tx.insert("tb_archive_recalled (order_no)", [[no.into()]].into_iter(), &keep).await?;
    let less = (-1, -order.quantity, -order.amount);
    add_to_sums(tx, (order.item, month, order.status.code()), less).await?;
    if order.status == OrderStatus::Paid {
        let record = [
            (&order.user).into(),
            order.item.into(),
            no.into(),
            order.quantity.into(),
            order.created_ms.into(),
        ];
        let into = "tb_user_seckill (user_id, product_id, order_no, quantity, create_time)";
        tx.insert(into, [record].into_iter(), "").await?;
    }
    let sql = "UPDATE tb_seckill_activity SET archived_at = NULL WHERE id = ?";
    tx.execute(sql, values![order.activity]).await?;
    tracing::info!(%no, %month, "an order came back from the archive");
    Ok(true)
}
