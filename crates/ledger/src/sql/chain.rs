//! The chain of an item's stock log, read page by page.
//!
//! Each row begins with the stock with which the row before it ended. A log may have millions of rows; read
//! in one statement, it would keep a connection for minutes, and everybody who needs one waiting. So a long
//! log is *walked*: in pages, each a short reading of its own. What was read stays true, for rows are only
//! written behind the last one; what came meanwhile, less than a page, is read with the other books in one
//! instant. Where a page ends the next one begins, so a break between the two is a break like any other.
//!
//! The archive may take the beginning of a log away while it is walked. It says where what it took ends,
//! and with which stock: the walk goes on there.
//!
//! **In whatever order.** Not every engine numbers rows in the order in which they are written. Changes are
//! one way from the initial stock to some end if as many lead to each stock as lead away from it, but for
//! the end, to which one more leads; the initial stock counts as led to. So a walk adds up which stocks are
//! *open*. A page whose rows follow each other leads from its first stock to its last, and only of the
//! others the rows are counted.

use std::collections::HashMap;

use sale::ItemId;

use super::{
    Access, SqlLedger, archive,
    books::{CHAIN_BREAKS_MAX, pair},
    columns::get,
    failure::{Failure, Outcome},
    session::{Session, values},
};
use crate::{BOOKS_PAGE_ROWS, Result};

/// Stocks that are open at a time; a chain in more pieces is broken for all that anybody needs to know.
const OPEN_STOCKS_MAX: usize = 1_000_000;
/// Behind all rows.
const END: i64 = i64::MAX;

/// Where a walk goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Behind this row.
    after: i64,
    /// With this stock.
    stock: i64,
    /// The last row that was archived, as far as is known here.
    archived: i64,
}

/// As far as a log was walked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    at: Option<Place>,
    breaks: Vec<i64>,
    /// By stock: how many more changes lead to it than away from it.
    open: HashMap<i64, i64>,
    /// A row is wrong in itself, or too many stocks are open.
    is_wrong: bool,
}

/// What a page came to.
pub(super) struct Page {
    end: Place,
    breaks: Vec<i64>,
    open: Vec<(i64, i64)>,
    is_wrong: bool,
}

impl Walk {
    fn add(&mut self, page: Page) {
        self.at = Some(page.end);
        let room = CHAIN_BREAKS_MAX - self.breaks.len();
        self.breaks.extend(page.breaks.into_iter().take(room));
        self.is_wrong |= page.is_wrong;
        for (stock, more) in page.open {
            let known = self.open.remove(&stock).unwrap_or(0);
            if known + more != 0 {
                self.open.insert(stock, known + more);
            }
        }
        if self.open.len() > OPEN_STOCKS_MAX {
            self.is_wrong = true;
            self.open.clear();
        }
    }

    /// Rows that do not follow, and the end of the chain if it is whole in another order than that of its
    /// rows: then there are none.
    pub(super) fn ends(self) -> (Vec<i64>, Option<i64>) {
        if self.breaks.is_empty() {
            return (Vec::new(), None);
        }
        let mut open = self.open.into_iter();
        match (self.is_wrong, open.next(), open.next()) {
            (false, Some((end, 1)), None) => (Vec::new(), Some(end)),
            _ => (self.breaks, None),
        }
    }
}

/// Walks a long log until less than a page is left.
pub(super) async fn walk(ledger: &SqlLedger, item: ItemId) -> Result<Walk> {
    let is_long: Result<Option<(i64, i64)>> = ledger
        .run(Access::Statement, (), move |session, ()| Box::pin(full_page_end(session, item, 0)))
        .await;
    match is_long? {
        Some(_) => walk_on(ledger, item, Walk::default()).await,
        None => Ok(Walk::default()),
    }
}

/// Walks on until less than a page is left.
pub(super) async fn walk_on(ledger: &SqlLedger, item: ItemId, mut walk: Walk) -> Result<Walk> {
    loop {
        let page: Result<Option<Page>> = ledger
            .run(Access::Snapshot, walk.at, move |session, at| {
                Box::pin(full_page(session, item, *at))
            })
            .await;
        match page? {
            Some(page) => walk.add(page),
            None => return Ok(walk),
        }
    }
}

/// Walks to the end, with what else is read in this instant. Nothing if more than a page is left, and
/// `however_long` is not asked for.
pub(super) async fn to_the_end(
    session: &mut dyn Session,
    item: ItemId,
    walk: &Walk,
    however_long: bool,
) -> Outcome<Option<Walk>> {
    let (from, moved) = place(session, item, walk.at).await?;
    if !however_long && full_page_end(session, item, from.after).await?.is_some() {
        return Ok(None);
    }
    let sql = "SELECT id, after_stock FROM tb_stock_log WHERE product_id = ? AND id > ?
         ORDER BY id DESC LIMIT 1";
    let last: Option<(i64, i64)> = session.first(sql, values![item, from.after], pair).await?;
    let end = last.map_or(from, |(after, stock)| Place { after, stock, ..from });
    let mut walk = walk.clone();
    walk.add(page(session, item, (from, end, END), moved).await?);
    Ok(Some(walk))
}

async fn full_page(
    session: &mut dyn Session,
    item: ItemId,
    at: Option<Place>,
) -> Outcome<Option<Page>> {
    let (from, moved) = place(session, item, at).await?;
    let Some((after, stock)) = full_page_end(session, item, from.after).await? else {
        return Ok(None);
    };
    let end = Place { after, stock, ..from };
    Ok(Some(page(session, item, (from, end, after), moved).await?))
}

/// Where a page begins, and what is open for that: at the beginning the first stock, and later what the
/// archive took away meanwhile.
async fn place(
    session: &mut dyn Session,
    item: ItemId,
    at: Option<Place>,
) -> Outcome<(Place, Vec<(i64, i64)>)> {
    let archived = archive::archived_end(session, item).await?;
    Ok(match (at, archived) {
        (None, Some((archived, stock))) => (Place { after: 0, stock, archived }, vec![(stock, 1)]),
        (None, None) => {
            let stock = initial_stock(session, item).await?;
            (Place { after: 0, stock, archived: 0 }, vec![(stock, 1)])
        }
        (Some(at), Some((id, stock))) if id > at.after.max(at.archived) => {
            let moved = vec![(at.stock, -1), (stock, 1)];
            (Place { after: id, stock, archived: id }, moved)
        }
        (Some(at), _) => (at, Vec::new()),
    })
}

/// Today's total without what operators added since.
async fn initial_stock(session: &mut dyn Session, item: ItemId) -> Outcome<i64> {
    let sql = "SELECT total - (SELECT CAST(COALESCE(SUM(quantity), 0) AS SIGNED)
             FROM tb_stock_log WHERE product_id = ? AND type = 3)
         FROM tb_seckill_product WHERE id = ?";
    session.first(sql, values![item, item], |row| get(row, 0)).await?.ok_or(Failure::NotFound)
}

/// The last row of a page behind this row, and the stock with which it ends; none if less than a page is
/// there.
async fn full_page_end(
    session: &mut dyn Session,
    item: ItemId,
    after: i64,
) -> Outcome<Option<(i64, i64)>> {
    let sql = format!(
        "SELECT id, after_stock FROM tb_stock_log {}
         WHERE product_id = ? AND id > ? ORDER BY id LIMIT 1 OFFSET ?",
        session.dialect().by_index("ix_stock_log_product")
    );
    session.first(&sql, values![item, after, BOOKS_PAGE_ROWS - 1], pair).await
}

/// The rows from one place to another, up to the row with this id.
async fn page(
    session: &mut dyn Session,
    item: ItemId,
    (from, end, to): (Place, Place, i64),
    mut open: Vec<(i64, i64)>,
) -> Outcome<Page> {
    let rows = (from.after, to);
    let breaks = breaks(session, item, rows, from.stock).await?;
    if breaks.is_empty() {
        open.extend([(from.stock, -1), (end.stock, 1)]);
        return Ok(Page { end, breaks, open, is_wrong: false });
    }
    let is_wrong = is_wrong(session, item, rows).await?;
    if !is_wrong {
        open.extend(open_stocks(session, item, rows).await?);
    }
    Ok(Page { end, breaks, open, is_wrong })
}

/// Rows behind one and up to another that do not begin where the row before ended, or whose arithmetic is
/// wrong. The first of them must begin with this stock.
pub(super) async fn breaks(
    session: &mut dyn Session,
    item: ItemId,
    (after, to): (i64, i64),
    starts_at: i64,
) -> Outcome<Vec<i64>> {
    let sql = format!(
        "SELECT id FROM (
             SELECT id, quantity, before_stock, after_stock, type,
                 LAG(after_stock) OVER (ORDER BY id) AS ended
             FROM tb_stock_log {} WHERE product_id = ? AND id > ? AND id <= ?) AS chain
         WHERE before_stock <> COALESCE(ended, ?)
             OR after_stock <> before_stock + CASE type WHEN 1 THEN -quantity ELSE quantity END
         ORDER BY id LIMIT ?",
        session.dialect().by_index("ix_stock_log_product")
    );
    let asked = values![item, after, to, starts_at, CHAIN_BREAKS_MAX];
    session.rows(&sql, asked, |row| get(row, 0)).await
}

/// Is the arithmetic of one of these rows wrong?
async fn is_wrong(
    session: &mut dyn Session,
    item: ItemId,
    (after, to): (i64, i64),
) -> Outcome<bool> {
    let sql = format!(
        "SELECT id FROM tb_stock_log {} WHERE product_id = ? AND id > ? AND id <= ?
             AND after_stock <> before_stock + CASE type WHEN 1 THEN -quantity ELSE quantity END LIMIT 1",
        session.dialect().by_index("ix_stock_log_product")
    );
    let wrong = session.first(&sql, values![item, after, to], |row| get::<i64>(row, 0)).await?;
    Ok(wrong.is_some())
}

/// The stocks to which not as many of these rows lead as lead away from them.
async fn open_stocks(
    session: &mut dyn Session,
    item: ItemId,
    (after, to): (i64, i64),
) -> Outcome<Vec<(i64, i64)>> {
    let index = session.dialect().by_index("ix_stock_log_product");
    // MySQL makes decimals of a sum.
    let sql = format!(
        "SELECT CAST(stock AS SIGNED), CAST(SUM(leads_to) AS SIGNED) FROM (
             SELECT after_stock AS stock, 1 AS leads_to FROM tb_stock_log {index}
                 WHERE product_id = ? AND id > ? AND id <= ?
             UNION ALL SELECT before_stock, -1 FROM tb_stock_log {index}
                 WHERE product_id = ? AND id > ? AND id <= ?) AS changes
         GROUP BY stock HAVING SUM(leads_to) <> 0"
    );
    session.rows(&sql, values![item, after, to, item, after, to], pair).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(open: &[(i64, i64)], breaks: &[i64]) -> Page {
        let end = Place { after: 1, stock: 1, archived: 0 };
        Page { end, breaks: breaks.to_vec(), open: open.to_vec(), is_wrong: false }
    }

    #[test]
    fn pages_in_any_order_are_one_way_from_the_first_stock_to_the_last() {
        let mut walk = Walk::default();
        // It begins with 10; the first page has the changes from 8 to 6, the second those from 10 to 8.
        walk.add(page_of(&[(10, 1), (8, -1), (6, 1)], &[1]));
        assert_eq!(walk.clone().ends(), (vec![1], None), "nothing leads from 10 to 8");
        walk.add(page_of(&[(10, -1), (8, 1)], &[2]));
        assert_eq!(walk.ends(), (vec![], Some(6)));
    }

    #[test]
    fn breaks_are_told_up_to_a_number() {
        let mut walk = Walk::default();
        let many: Vec<i64> = (0..60).collect();
        walk.add(page_of(&[], &many));
        walk.add(page_of(&[], &many));
        assert_eq!(walk.ends().0.len(), CHAIN_BREAKS_MAX);
    }
}
