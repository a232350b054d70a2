//! The archive: what is over for long, moved out of the tables that selling works with.
//!
//! Whole activities are moved, whose end is longer ago than the shop wants to keep them at hand and in
//! which nothing is open any more: no unpaid order, no money under way or moved in the last days, no dead
//! letter, nothing for the gate. Their orders, payments and stock log go to the *months* of the archive:
//! each row to the month in which its order was numbered, so a number alone says where to look. A month is
//! a file beside the ledger (SQLite) or a set of tables (MySQL), with the columns and indexes of the tables
//! they came from.
//!
//! **One step** moves some rows of one item. It copies them into the month and has them synced there, then
//! deletes them from the books and writes down what it moved, in one transaction of the books. For MySQL
//! all of it is one transaction. For SQLite it is two, for two files are not committed together when the
//! power fails: after a kill between the two the rows are in both, are read once, and the next run copies
//! them again over themselves. Nothing is deleted that is not on the disk elsewhere.
//!
//! **Reading** begins with the books and goes on to the months, newest first, as far as it must. A row that
//! moves meanwhile is seen in one of the two, or in both and told once. `tb_archived_buyer` says which
//! months have orders of a buyer and `tb_archived_payment` which one has a payment.
//!
//! **The books still add up.** `tb_archived_orders` has the orders, units and amounts that were moved, by
//! item, month and status; `tb_archived_item` has where the chain of the stock log goes on. The log is
//! moved before the orders and from its beginning, so what is left of it begins where the moved part ends,
//! at every step.
//!
//! **Money that comes late** finds its order: whoever locks an order that is not in the books
//! [recalls](recall) it with its payments. Its copy in the month stays and is passed over
//! (`tb_archive_recalled`) until it is moved again.

mod month;
mod moving;
mod reading;
mod recall;
mod rows;

pub(crate) use month::Month;
pub(super) use reading::{
    archived_books, archived_counts, archived_end, find_log, find_order, has_payment, last_no,
    log_of, log_page, months_of_payment, orders_in, orders_page, owners_in_months, payments_by_txn,
    payments_of,
};
pub(super) use recall::recall;
pub(crate) use rows::{Purpose, TABLES};
