//! What is too long for one reading is read in pages that join up: a stock log, and the payments of all
//! orders.

use faults::services::numbers_to;
use ledger::{BOOKS_PAGE_ROWS, OwedPayment, PaymentProblem};
use sale::{ItemId, OrderNo};

use crate::{Shop, check};

const PAGE: i64 = BOOKS_PAGE_ROWS as i64;
/// Two pages and a little.
const MANY: i64 = 2 * PAGE + 7;

/// The number of the order that was written as this one of many, as text of SQL that SQLite and every server
/// read alike.
fn number_in_sql(of: &str) -> String {
    format!("REPLACE('SK000000?', '?', CAST(1000000000000 + {of} AS CHAR))")
}

fn number(of: i64) -> OrderNo {
    format!("SK000000{}", 1_000_000_000_000 + of).parse().unwrap()
}

impl Shop {
    /// An item of which so many units were sold one by one.
    async fn sold_one_by_one(&self) -> ItemId {
        let item = self.sale_of(MANY + 10).await;
        let sql = format!(
            "INSERT INTO tb_stock_log (id, order_no, product_id, product_name, quantity, before_stock,
                 after_stock, type, create_time)
             SELECT seq, {}, {item}, 'thing', 1, {total} + 1 - seq, {total} - seq, 1, 1 FROM {}",
            number_in_sql("seq"),
            numbers_to(MANY as u64),
            item = item.id,
            total = item.total,
        );
        self.back_door.run(&sql).await.unwrap();
        let sold = format!("UPDATE tb_seckill_product SET stock = 10 WHERE id = {}", item.id);
        self.back_door.run(&sold).await.unwrap();
        item.id
    }

    async fn chain(&self, item: ItemId) -> (Vec<i64>, Option<i64>) {
        let books = self.item_books(item, &[]).await.unwrap();
        (books.chain_breaks, books.chain_end)
    }

    /// As if the stock had been another one before and after this change.
    async fn shift(&self, row: i64, by: i64) {
        let sql = format!(
            "UPDATE tb_stock_log SET before_stock = before_stock + {by}, after_stock = after_stock + {by}
             WHERE id = {row}"
        );
        self.back_door.run(&sql).await.unwrap();
    }

    async fn renumber(&self, row: i64, to: i64) {
        let sql = format!("UPDATE tb_stock_log SET id = {to} WHERE id = {row}");
        self.back_door.run(&sql).await.unwrap();
    }
}

#[tokio::test]
async fn a_stock_log_of_many_pages_is_one_chain() {
    check(async |shop| {
        let item = shop.sold_one_by_one().await;
        assert_eq!(shop.chain(item).await, (vec![], Some(10)));
        shop.bought(item, "ann", 2).await;
        assert_eq!(shop.chain(item).await, (vec![], Some(8)));
        // The first and the last row of each page, and some in the middle.
        for row in [1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1, PAGE / 2] {
            shop.shift(row, 1).await;
            assert_eq!(shop.chain(item).await, (vec![row, row + 1], Some(8)));
            shop.shift(row, -1).await;
        }
        assert_eq!(shop.chain(item).await, (vec![], Some(8)));
        let other = shop.sale_of(3).await;
        assert_eq!(shop.chain(other.id).await, (vec![], None), "nothing was sold of this one");
    })
    .await;
}

#[tokio::test]
async fn what_was_walked_of_a_log_is_not_read_again() {
    check(async |shop| {
        let item = shop.sold_one_by_one().await;
        let walk = shop.walk_log(item).await.unwrap();
        shop.bought(item, "ann", 2).await;
        let behind = async || {
            let books = shop.item_books_behind(&walk, item, &[]).await.unwrap();
            (books.chain_breaks, books.chain_end)
        };
        assert_eq!(behind().await, (vec![], Some(8)));
        shop.shift(PAGE / 2, 1).await;
        assert_eq!(behind().await, (vec![], Some(8)), "that row was read before");
        let row = 2 * PAGE + 3;
        shop.shift(row, 1).await;
        assert_eq!(behind().await.0, [row, row + 1]);
        assert_eq!(shop.chain(item).await.0, [PAGE / 2, PAGE / 2 + 1, row, row + 1]);
    })
    .await;
}

#[tokio::test]
async fn a_long_chain_is_whole_in_whatever_order_its_rows_are_numbered() {
    check(async |shop| {
        let item = shop.sold_one_by_one().await;
        // Two changes of different pages, and the last one of all.
        let far = 100 * MANY;
        for (one, another) in [(PAGE / 2, 2 * PAGE + 3), (MANY, PAGE + 1)] {
            shop.renumber(one, far).await;
            shop.renumber(another, one).await;
            shop.renumber(far, another).await;
        }
        assert_eq!(shop.chain(item).await, (vec![], Some(10)));
        shop.back_door.run(&format!("DELETE FROM tb_stock_log WHERE id = {PAGE}")).await.unwrap();
        let (breaks, _) = shop.chain(item).await;
        assert!(breaks.contains(&(PAGE + 1)), "{breaks:?}");
    })
    .await;
}

#[tokio::test]
async fn the_payments_of_all_orders_are_checked_whichever_page_they_are_in() {
    check(async |shop| {
        let item = shop.sale_of(1).await;
        let sql = format!(
            "INSERT INTO tb_seckill_order (order_no, user_id, activity_id, product_id, product_name,
                 price, currency, quantity, amount, status, epoch, claimed_at, pay_deadline, created_at)
             SELECT {}, REPLACE('u?', '?', CAST(seq AS CHAR)), {}, {}, 'thing', 100, 'CNY', 1, 100, 2, 1, 1,
                 1, 1 FROM {}",
            number_in_sql("seq"),
            item.activity,
            item.id,
            numbers_to(MANY as u64)
        );
        shop.back_door.run(&sql).await.unwrap();
        assert_eq!(shop.payment_problems(10).await.unwrap(), [], "all are closed");
        let paid = [1, 2 * PAGE, 2 * PAGE + 1];
        for of in paid {
            let no = number(of);
            let sql = format!("UPDATE tb_seckill_order SET status = 1 WHERE order_no = '{no}'");
            shop.back_door.run(&sql).await.unwrap();
        }
        let money = async |of: i64, txn: &str, kind: i64| {
            let no = number(of);
            let sql = format!(
                "INSERT INTO tb_payment (provider, provider_txn, order_no, kind, amount, currency, created_at)
                 VALUES ('wechat', '{txn}', '{no}', {kind}, 100, 'CNY', 1)"
            );
            shop.back_door.run(&sql).await.unwrap();
        };
        // Money of closed orders, the last of a page and the last of all, and money that nobody had paid.
        money(PAGE, "a", 1).await;
        money(MANY, "b", 1).await;
        money(PAGE + 1, "c", 2).await;

        let without_money = |of| PaymentProblem::PaidWithoutMoney { order_no: number(of) };
        let owed = |of, txn: &str| PaymentProblem::RefundNotQueued {
            order_no: number(of),
            provider: "wechat".into(),
            provider_txn: txn.into(),
        };
        let too_much = PaymentProblem::RefundedTooMuch { order_no: number(PAGE + 1) };
        let mut expected = paid.map(without_money).to_vec();
        expected.extend([too_much.clone(), owed(PAGE, "a"), owed(MANY, "b")]);
        let checked = shop.check_payments(None, 10).await.unwrap();
        assert_eq!(checked.problems, expected);
        let told = |txn: &str| OwedPayment { provider: "wechat".into(), provider_txn: txn.into() };
        assert_eq!(checked.owed, ["a", "b"].map(told));
        let few = shop.payment_problems(1).await.unwrap();
        assert_eq!(few, [without_money(1), too_much, owed(PAGE, "a")], "one kind hides no other");
    })
    .await;
}
