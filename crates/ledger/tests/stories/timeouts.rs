//! Orders that were not paid in time, of which somebody holds some at that moment.

use std::time::{Duration, Instant};

use ledger::LedgerError;
use mysql_async::{Conn, prelude::Queryable};
use sale::{CloseReason, OrderNo};

use crate::{
    mysql::{back_door, shop_and_url},
    numbers_of,
};

/// Begins a transaction that holds these orders.
async fn hold(somebody: &mut Conn, orders: &[OrderNo]) {
    somebody.query_drop("BEGIN").await.unwrap();
    for no in orders {
        let held = format!("SELECT * FROM tb_seckill_order WHERE order_no = '{no}' FOR UPDATE");
        somebody.query_drop(held).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_somebody_holds_keep_none_of_a_large_batch_from_timing_out() {
    let (shop, url) = shop_and_url().await;
    let item = shop.sale_of(200).await;
    let claims = shop.crowd(item.id, 200);
    shop.settle(item.id, &claims).await.unwrap();
    let numbers = numbers_of(&claims);
    let (held, due) =
        ([numbers[0], numbers[77], numbers[199]], shop.found(numbers[0]).await.pay_deadline_ms);
    let mut payer = back_door(&url).await;
    hold(&mut payer, &held).await;
    let asked = Instant::now();
    let closed = shop.close(&numbers, CloseReason::Timeout, due).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(2), "nobody waited: {:?}", asked.elapsed());
    assert_eq!(closed.len(), numbers.len() - held.len());
    assert!(held.iter().all(|no| !closed.contains(no)));
    shop.books_add_up(item.id).await;
    payer.query_drop("ROLLBACK").await.unwrap();
    assert_eq!(shop.close(&numbers, CloseReason::Timeout, due).await.unwrap(), held);
    shop.books_add_up(item.id).await;

    // An item that somebody holds is another matter: then there is nothing to pass over.
    let more = shop.bought(item.id, "more", 1).await;
    payer.query_drop("BEGIN").await.unwrap();
    payer.query_drop("SELECT * FROM tb_seckill_product FOR UPDATE").await.unwrap();
    let locked = shop.close(&[more.order_no], CloseReason::Timeout, more.pay_deadline_ms).await;
    assert!(matches!(locked, Err(LedgerError::Unavailable(_))), "{locked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_out_passes_over_an_order_that_is_being_paid() {
    let (shop, url) = shop_and_url().await;
    let item = shop.sale_of(5).await;
    let (ann, bob) = (shop.bought(item.id, "ann", 1).await, shop.bought(item.id, "bob", 1).await);
    let mut payer = back_door(&url).await;
    hold(&mut payer, &[ann.order_no]).await;
    let (due, numbers) = (ann.pay_deadline_ms, [ann.order_no, bob.order_no]);
    let closed = shop.close(&numbers, CloseReason::Timeout, due).await.unwrap();
    assert_eq!(closed, [bob.order_no], "and nobody waited");
    payer.query_drop("ROLLBACK").await.unwrap();
    let closed = shop.close(&numbers, CloseReason::Timeout, due).await.unwrap();
    assert_eq!(closed, [ann.order_no]);
    shop.books_add_up(item.id).await;
}
