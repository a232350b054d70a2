//! Marks on their way from the ledger to the gate: an item may have millions of buyers, of whom only a
//! few pages are in memory at a time.

use std::time::Duration;

use sale::Claim;
use tokio::sync::mpsc;

use crate::{LedgerError, Result, WarmBasis, sql::LongTurn};

/// A part that does not come within this does not come at all.
const PART_WITHIN: Duration = Duration::from_secs(60);

/// The right to read all orders of an item, see [`Stock::walk_turn`](crate::Stock::walk_turn). `None` for
/// an item with so few that reading them is like any other reading.
pub struct WalkTurn(pub(crate) Option<LongTurn>);

/// What is read of an item that is to be loaded, one after the other.
#[derive(Debug)]
pub(crate) enum Part {
    Basis(Box<WarmBasis>),
    Marks(Vec<Claim>),
    End,
}

/// The live orders of an item as the claims they came from, a page at a time, all of the same instant.
/// Dropped, it ends the reading.
#[derive(Debug)]
pub struct MarkPages(pub(crate) mpsc::Receiver<Result<Part>>);

impl MarkPages {
    /// All that there are.
    pub(crate) fn of_one(page: Vec<Claim>) -> MarkPages {
        let (parts, taken) = mpsc::channel(2);
        for part in [Part::Marks(page), Part::End] {
            // There is room for both, and somebody who takes them.
            let _ = parts.try_send(Ok(part));
        }
        MarkPages(taken)
    }

    /// `None` behind the last page. After an error no more will come.
    pub async fn next(&mut self) -> Result<Option<Vec<Claim>>> {
        match self.part().await? {
            Part::Marks(page) => Ok(Some(page)),
            Part::Basis(_) | Part::End => Ok(None),
        }
    }

    pub(crate) async fn part(&mut self) -> Result<Part> {
        let ended = "the reading of an item's orders ended early";
        match tokio::time::timeout(PART_WITHIN, self.0.recv()).await {
            Ok(part) => part.unwrap_or_else(|| Err(LedgerError::Unavailable(ended.into()))),
            Err(_) => {
                let waited_s = PART_WITHIN.as_secs();
                let late =
                    format!("no answer to the reading of an item's orders within {waited_s} s");
                Err(LedgerError::Unavailable(late))
            }
        }
    }
}
