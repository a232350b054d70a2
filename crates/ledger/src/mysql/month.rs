//! A month of the archive as tables beside those of the books: `tb_payment_202611`.
//!
//! A statement is said to it in the names of the books, which are replaced. They are made `LIKE` the tables
//! of the books, and follow them when a later schema has more columns.

use super::session::MysqlSession;
use crate::sql::{
    Working,
    archive::{Month, Purpose, TABLES},
    columns::get,
    dialect::Dialect,
    failure::{Failure, Outcome},
    session::{MonthSession, Row, Rows, Session, Value, values},
};

fn table_of(table: &str, month: Month) -> String {
    format!("{table}_{}", month.code())
}

pub(super) struct MonthTables<'s> {
    session: &'s mut MysqlSession,
    month: Month,
}

impl<'s> MonthTables<'s> {
    pub(super) async fn open(
        session: &'s mut MysqlSession,
        month: Month,
        purpose: Purpose,
    ) -> Outcome<MonthTables<'s>> {
        if purpose == Purpose::Make {
            for table in TABLES {
                let like =
                    format!("CREATE TABLE IF NOT EXISTS {} LIKE {table}", table_of(table, month));
                session.execute(&like, &[]).await?;
            }
        }
        Ok(MonthTables { session, month })
    }

    fn said(&self, sql: &str) -> String {
        TABLES
            .iter()
            .fold(sql.to_owned(), |sql, table| sql.replace(table, &table_of(table, self.month)))
    }
}

/// After a migration: the months have every column that the books have.
pub(super) async fn follow(session: &mut dyn Session) -> Outcome<()> {
    let sql = "SELECT month FROM tb_archive_month ORDER BY month";
    let months = session.rows(sql, &[], |row| get::<i64>(row, 0)).await?;
    for month in months.into_iter().filter_map(Month::from_code) {
        for table in TABLES {
            let to = table_of(table, month);
            for column in missing(session, table, &to).await? {
                session.execute(&format!("ALTER TABLE {to} ADD COLUMN {column}"), &[]).await?;
            }
        }
    }
    Ok(())
}

async fn missing(session: &mut dyn Session, from: &str, to: &str) -> Outcome<Vec<String>> {
    let sql = "SELECT column_name, column_type, is_nullable, column_default
         FROM information_schema.columns AS f
         WHERE table_schema = DATABASE() AND table_name = ? AND NOT EXISTS
             (SELECT 1 FROM information_schema.columns AS t WHERE t.table_schema = DATABASE()
                  AND t.table_name = ? AND t.column_name = f.column_name)
         ORDER BY ordinal_position";
    let read = |row: &dyn Row| {
        let (name, kind): (String, String) = (get(row, 0)?, get(row, 1)?);
        let not_null = if get::<String>(row, 2)? == "NO" { " NOT NULL" } else { "" };
        let default = get::<Option<String>>(row, 3)?.filter(|default| default != "NULL");
        // MariaDB says a text in quotes, MySQL without.
        let is_said = |text: &str| text.starts_with('\'') || text.parse::<f64>().is_ok();
        let default = default.map(|text| if is_said(&text) { text } else { format!("'{text}'") });
        let default = default.map(|text| format!(" DEFAULT {text}")).unwrap_or_default();
        Ok(format!("{name} {kind}{not_null}{default}"))
    };
    session.rows(sql, values![from, to], read).await
}

impl Session for MonthTables<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn each<'w>(
        &'w mut self,
        sql: &'w str,
        values: &'w [Value<'_>],
        take: &'w mut (dyn FnMut(&dyn Row) -> Outcome<()> + Send),
    ) -> Working<'w, ()> {
        let sql = self.said(sql);
        Box::pin(async move { self.session.each(&sql, values, take).await })
    }

    fn execute<'w>(&'w mut self, sql: &'w str, values: &'w [Value<'_>]) -> Working<'w, u64> {
        let sql = self.said(sql);
        Box::pin(async move { self.session.execute(&sql, values).await })
    }

    fn insert_rows(
        &mut self,
        into: &str,
        rows: &mut dyn Rows<'_>,
        or_else: &str,
    ) -> Working<'_, ()> {
        let into = self.said(into);
        self.session.insert_rows(&into, rows, or_else)
    }

    fn inserted_id(&mut self) -> Outcome<i64> {
        self.session.inserted_id()
    }

    fn month(&mut self, month: Month, _: Purpose) -> Working<'_, Box<dyn MonthSession + '_>> {
        Box::pin(async move { Err(Failure::Broken(format!("{month} of a month"))) })
    }
}

/// It is a part of the transaction that opened it.
impl MonthSession for MonthTables<'_> {
    fn keep(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_named_by_its_month() {
        let month = Month::from_code(202_611).unwrap();
        assert_eq!(table_of("tb_payment", month), "tb_payment_202611");
    }
}
