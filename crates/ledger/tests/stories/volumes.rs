//! Buyers are found in every volume of orders, and a full one is followed by the next.

use ledger::OrderFilter;
use sale::{CloseReason, Order, OrderNo};

use crate::{Shop, check};

/// As if so many orders had been written meanwhile.
async fn next_volume(shop: &Shop, volume: i64) {
    let at = shop.now();
    let sql = format!("INSERT INTO tb_order_volume (volume, began_at) VALUES ({volume}, {at})");
    shop.back_door.run(&sql).await.unwrap();
}

/// All of a buyer's orders, page by page.
async fn pages_of(shop: &Shop, user: &str, rows: usize) -> Vec<OrderNo> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let user = Some(user.parse().unwrap());
        let filter = OrderFilter { user, before, limit: rows, ..OrderFilter::default() };
        let page: Vec<Order> = shop.orders(&filter).await.unwrap();
        before = page.last().map(|order| order.order_no);
        found.extend(page.iter().map(|order| order.order_no));
        if page.len() < rows {
            return found;
        }
    }
}

#[tokio::test]
async fn a_buyer_s_orders_are_found_in_every_volume_newest_first() {
    check(async |shop| {
        let item = shop.sale_of(100).await.id;
        let mut made = Vec::new();
        for volume in 2..6 {
            for user in ["ann", "bob"] {
                let order = shop.bought(item, user, 1).await;
                let reason = CloseReason::Cancelled;
                shop.close(&[order.order_no], reason, shop.now()).await.unwrap();
                made.push(order);
            }
            shop.clock.advance(60_000);
            next_volume(&shop, volume).await;
        }
        made.push(shop.bought(item, "ann", 1).await);
        // A binary that knows no volumes wrote this one.
        let sql = "UPDATE tb_seckill_order SET volume = 0 WHERE order_no = ";
        shop.back_door.run(&format!("{sql}'{}'", made[2].order_no)).await.unwrap();
        made.reverse();
        let of_ann: Vec<OrderNo> = made
            .iter()
            .filter(|order| order.user.as_str() == "ann")
            .map(|order| order.order_no)
            .collect();
        assert_eq!(of_ann.len(), 5);
        for rows in [1, 2, 5, 50] {
            assert_eq!(pages_of(&shop, "ann", rows).await, of_ann, "pages of {rows}");
        }
        assert!(pages_of(&shop, "eve", 9).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn those_who_left_orders_unpaid_lately_are_found_in_late_volumes() {
    check(async |shop| {
        let item = shop.sale_of(100).await.id;
        let pay_within_max = sale::PAY_WITHIN_MS_MAX;
        let users = ["ann".parse().unwrap(), "bob".parse().unwrap()];
        let closed = async |user: &str| {
            let order = shop.bought(item, user, 1).await;
            let reason = CloseReason::Cancelled;
            shop.close(&[order.order_no], reason, shop.now()).await.unwrap();
        };
        closed("bob").await;
        shop.clock.advance(pay_within_max * 2);
        for volume in 2..5 {
            next_volume(&shop, volume).await;
            shop.clock.advance(60_000);
            closed("ann").await;
        }
        let since_ms = shop.now() - 3_600_000;
        let counted = shop.unpaid_closes(&users, since_ms).await.unwrap();
        assert_eq!(counted, [(users[0].clone(), 3)]);
        let mut counted = shop.unpaid_closes(&users, 0).await.unwrap();
        counted.sort();
        assert_eq!(counted, [(users[0].clone(), 3), (users[1].clone(), 1)]);
    })
    .await;
}

/// Orders that nobody asks about, numbered before any of ours.
async fn fill(shop: &Shop, volume: i64, orders: usize) {
    let digit = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
         UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7
         UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let columns =
        "order_no, user_id, activity_id, product_id, product_name, price, currency, quantity,
         amount, status, epoch, claimed_at, pay_deadline, created_at, volume";
    let number = "10000 * e.d + 1000 * d.d + 100 * c.d + 10 * b.d + a.d";
    let tables: Vec<String> =
        ["a", "b", "c", "d", "e"].iter().map(|name| format!("{digit} AS {name}")).collect();
    let sql = format!(
        "INSERT INTO tb_seckill_order ({columns})
         SELECT CONCAT('SK00000000000000', 10000 + {number}), 'zoe', 1, 999999, '', 0, 'CNY', 1, 0, 2, 1,
             0, 0, 0, {volume}
         FROM {} WHERE {number} < {orders}",
        tables.join(", ")
    );
    let sql = match shop.back_door {
        crate::back_door::BackDoor::Sqlite(_) => {
            sql.replace("CONCAT(", "(").replace("00', ", "00' || ")
        }
        crate::back_door::BackDoor::Mysql(_) => sql,
    };
    shop.back_door.run(&sql).await.unwrap();
}

#[tokio::test]
async fn a_full_volume_is_followed_by_the_next() {
    check(async |shop| {
        let item = shop.sale_of(100).await.id;
        // Left by the process before: three orders short of a full one.
        fill(&shop, 1, 65_533).await;
        let volume_of = async |order: &Order| {
            let sql = "SELECT volume FROM tb_seckill_order WHERE order_no =";
            shop.back_door.number(&format!("{sql} '{}'", order.order_no)).await
        };
        for (user, volume) in [("a", 1), ("b", 1), ("c", 1), ("d", 2), ("e", 2)] {
            let order = shop.bought(item, user, 1).await;
            assert_eq!(volume_of(&order).await, volume, "{user}");
        }
        assert_eq!(pages_of(&shop, "c", 9).await.len(), 1);
        assert_eq!(pages_of(&shop, "d", 9).await.len(), 1);
    })
    .await;
}
