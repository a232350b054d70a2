//! The ledger in SQL, written once for all engines.
//!
//! Each file holds the statements of one noun, said to a [`session::Session`], and joins them to the
//! trait of those who use them. What is an engine's own (connections, locks, failures, migrations) is in
//! the module of that engine; the few words in which their SQL differs are in [`dialect`].
//!
//! What a decision rests on is locked before it is read, always the order's row before the item's, and
//! several of a kind in the order of their keys. Whoever changes the stock of an item, or writes orders
//! or dead letters of its claims, holds the lock of its row first: changes of one item are made one after
//! the other, and the version, still checked, moves under nobody's feet unless somebody changes the
//! tables without this code.

mod activities;
pub(crate) mod archive;
mod asking;
mod bills;
mod books;
mod books_since;
mod buyers;
mod cashier;
pub(crate) mod chain;
mod closing;
pub(crate) mod columns;
mod console;
mod creating;
mod dead_letters;
mod deliveries;
pub(crate) mod dialect;
mod drafts;
mod draws;
pub(crate) mod failure;
mod leases;
mod nodes;
mod operators;
mod orders;
mod outbox;
mod payment_problems;
mod payments;
pub(crate) mod session;
mod settle;
mod stock;
pub(crate) mod upkeep;
pub(crate) mod volumes;
mod warm_basis;
mod webhooks;

use std::{any::Any, pin::Pin, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use sale::SharedClock;

use self::{
    dialect::Dialect,
    failure::{Failure, Outcome},
    session::Session,
};

/// A handle; clones share the connections. What they are connections to was said when it was opened.
#[derive(Clone)]
pub struct SqlLedger {
    pub(crate) engine: Arc<dyn Engine>,
    /// What order deadlines are reckoned by.
    pub(crate) clock: SharedClock,
    pub(crate) volumes: Arc<volumes::Volumes>,
}

impl SqlLedger {
    pub(crate) fn new(engine: Arc<dyn Engine>, clock: SharedClock) -> SqlLedger {
        SqlLedger { engine, clock, volumes: Arc::default() }
    }
}

/// How a piece of work uses its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// One transaction that writes, begun again by the engine's rules after bad luck.
    Write,
    /// Several statements that read, all of one instant.
    Snapshot,
    /// As `Snapshot`, through all that belongs to an item, or all payments: few at a time.
    LongSnapshot,
    /// As `LongSnapshot`, for as long as somebody takes what is read.
    Walk,
    /// One statement at a time, each for itself.
    Statement,
}

impl Access {
    /// May it take minutes, where others take milliseconds?
    #[cfg(feature = "mysql")]
    pub(crate) fn is_long(self) -> bool {
        matches!(self, Access::LongSnapshot | Access::Walk)
    }
}

/// The right to one long read, of which an engine allows few at a time. What it is, the engine knows.
pub(crate) type LongTurn = Box<dyn Any + Send>;

/// Statements under way.
pub(crate) type Working<'w, T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send + 'w>>;

/// Who has connections and runs work on them.
#[async_trait]
pub(crate) trait Engine: Send + Sync {
    fn dialect(&self) -> Dialect;

    /// Runs the work to its end even if the caller stops waiting, and as often as it must be begun.
    /// A long read without a turn waits for one.
    async fn run(
        &self,
        access: Access,
        turn: Option<LongTurn>,
        work: Arc<dyn PieceOfWork>,
    ) -> Outcome<()>;

    async fn long_turn(&self) -> Outcome<LongTurn>;

    /// Fails if it would have to wait.
    fn long_turn_now(&self) -> Outcome<LongTurn>;

    /// Says at once if nothing can be written now.
    fn check(&self) -> Outcome<()>;
}

/// What an engine runs without knowing what is asked and answered. Were engines generic over that, all
/// they do would be compiled anew for each of a hundred questions.
pub(crate) trait PieceOfWork: Send + Sync {
    fn begin<'w>(&'w self, session: &'w mut dyn Session) -> Working<'w, ()>;
}

struct Question<A, T, W> {
    asked: A,
    work: W,
    /// Of the last time it was begun and came to its end.
    answer: Mutex<Option<T>>,
}

impl<A, T, W> PieceOfWork for Question<A, T, W>
where
    A: Send + Sync,
    T: Send,
    W: for<'w> Fn(&'w mut dyn Session, &'w A) -> Working<'w, T> + Send + Sync,
{
    fn begin<'w>(&'w self, session: &'w mut dyn Session) -> Working<'w, ()> {
        Box::pin(async move {
            let answer = (self.work)(session, &self.asked).await?;
            *self.answer.lock() = Some(answer);
            Ok(())
        })
    }
}

impl SqlLedger {
    pub(crate) async fn run<A, T, X>(
        &self,
        access: Access,
        asked: A,
        work: impl for<'w> Fn(&'w mut dyn Session, &'w A) -> Working<'w, T> + Send + Sync + 'static,
    ) -> Result<T, X>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
        X: From<Failure>,
    {
        self.run_in_turn(access, None, asked, work).await
    }

    pub(crate) async fn run_in_turn<A, T, X>(
        &self,
        access: Access,
        turn: Option<LongTurn>,
        asked: A,
        work: impl for<'w> Fn(&'w mut dyn Session, &'w A) -> Working<'w, T> + Send + Sync + 'static,
    ) -> Result<T, X>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
        X: From<Failure>,
    {
        let question = Arc::new(Question { asked, work, answer: Mutex::new(None) });
        self.engine.run(access, turn, question.clone()).await?;
        let answer = question.answer.lock().take();
        Ok(answer.ok_or_else(|| Failure::Broken("work ended well and without an answer".into()))?)
    }
}
