//! The ledger in SQL, written once for all engines.
//!
//! Each file holds the statements of one noun, generic over [`session::Session`], and joins them to the
//! trait of those who use them. What is an engine's own (connections, locks, failures, migrations) is in
//! the module of that engine; the few words in which their SQL differs are in [`dialect`].
//!
//! What a decision rests on is locked before it is read, always the order's row before the item's, and
//! several of a kind in the order of their keys. Whoever changes the stock of an item, or writes orders
//! or dead letters of its claims, holds the lock of its row first: changes of one item are made one after
//! the other, and the version, still checked, moves under nobody's feet unless somebody changes the
//! tables without this code.

mod activities;
mod books;
pub(crate) mod columns;
mod dead_letters;
pub(crate) mod dialect;
mod drafts;
pub(crate) mod failure;
mod leases;
mod operators;
mod orders;
mod outbox;
mod payments;
pub(crate) mod session;
mod settle;
mod stock;
pub(crate) mod upkeep;

use std::pin::Pin;

use sale::SharedClock;

use self::{
    dialect::Dialect,
    failure::{Failure, Outcome},
    session::Session,
};

/// A handle; clones share the connections.
#[derive(Clone)]
pub struct SqlLedger<E> {
    pub(crate) engine: E,
    /// What order deadlines are reckoned by.
    pub(crate) clock: SharedClock,
}

/// How a piece of work uses its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// One transaction that writes, begun again by the engine's rules after bad luck.
    Write,
    /// Several statements that read, all of one instant.
    Snapshot,
    /// One statement that reads.
    Statement,
}

/// The statements of a piece of work, under way.
pub(crate) type Working<'w, T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send + 'w>>;

/// Who has connections and runs work on them.
pub trait Engine: Send + Sync + 'static {
    const DIALECT: Dialect;
    type Session: Session;

    /// Runs `work` with what was `asked`, to its end even if the caller stops waiting, and as often as it
    /// must be begun.
    fn run<A, T>(
        &self,
        access: Access,
        asked: A,
        work: impl for<'w> Fn(&'w mut Self::Session, &'w A) -> Working<'w, T> + Send + Sync + 'static,
    ) -> impl Future<Output = Outcome<T>> + Send
    where
        A: Send + Sync + 'static,
        T: Send + 'static;

    /// Says at once if nothing can be written now.
    fn check(&self) -> Outcome<()>;
}

impl<E: Engine> SqlLedger<E> {
    async fn run<A, T, X>(
        &self,
        access: Access,
        asked: A,
        work: impl for<'w> Fn(&'w mut E::Session, &'w A) -> Working<'w, T> + Send + Sync + 'static,
    ) -> Result<T, X>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
        X: From<Failure>,
    {
        Ok(self.engine.run(access, asked, work).await?)
    }
}
