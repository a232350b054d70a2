//! What can go wrong inside, and what each of it means outside.
//!
//! The one question that matters to a caller is whose fault it was. Bad luck (a deadlock, a lock waited
//! for in vain, somebody faster) is tried again in a fresh transaction by the engine. A ledger that is
//! locked, full or out of reach is nobody's fault in the request, which may have been done, and is asked
//! again later. A row that the tables refuse is the request's own fault, and asking again will not help;
//! whatever we do not recognise is never held against a claim, for tries burnt on it would end in a dead
//! letter nobody deserves.

use sale::{BookError, Invalid};

use crate::{LedgerError, VERSION_TRIES_MAX};

#[derive(Debug)]
#[cfg_attr(not(feature = "mysql"), allow(dead_code))]
pub enum Failure {
    /// The database said no.
    Sql(SqlFailure),
    /// Nobody was there to ask, or the answer was lost: it may have been done.
    Unknown(String),
    /// The work took longer than it may: it may have been done.
    CutOff(String),
    NotFound,
    Refused(Invalid),
    /// A claim that can never be written as it stands.
    Rejected(String),
    /// Somebody else was faster; nothing was changed.
    Contended,
    /// Rows that were to be had at once or not at all are in somebody's hands; nothing was changed.
    InUse,
    /// The tables hold what they must not hold, or a statement is wrong.
    Broken(String),
}

/// What a database said, judged by the engine that knows its words.
#[derive(Debug)]
#[cfg_attr(not(feature = "mysql"), allow(dead_code))]
pub struct SqlFailure {
    pub(crate) fault: Fault,
    /// The number under which the engine knows the error.
    pub(crate) code: i32,
    pub(crate) cause: String,
}

/// Whose fault an error of the database is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "mysql"), allow(dead_code))]
pub(crate) enum Fault {
    /// Somebody else wrote the same row first. A fresh transaction finds it.
    Race,
    /// Somebody held a row for longer than we wait for it.
    Held,
    /// Two held what the other wanted, and this one had to give way.
    Deadlock,
    /// The connection is of no more use.
    Gone,
    /// The database is there and cannot work: locked, full, read-only, out of connections.
    Down,
    /// The disk failed: it is not known what of the file is on it.
    Disk,
    /// The row: a constraint, or a value that the column cannot hold.
    Row,
    /// Our own statement, a schema that is not ours, a damaged file.
    Ours,
}

const IN_USE: &str = "somebody else holds one of these rows at the moment";

pub(crate) type Outcome<T> = Result<T, Failure>;

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Failure::Broken(error.to_string())
    }
}

impl Failure {
    pub(crate) fn fault(&self) -> Option<Fault> {
        match self {
            Failure::Sql(said) => Some(said.fault),
            Failure::Contended => Some(Fault::Race),
            _ => None,
        }
    }
}

impl From<Failure> for LedgerError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Sql(SqlFailure { fault, cause, .. }) => match fault {
                Fault::Race => Failure::Contended.into(),
                Fault::Held | Fault::Deadlock | Fault::Gone | Fault::Down | Fault::Disk => {
                    LedgerError::Unavailable(cause)
                }
                Fault::Row | Fault::Ours => LedgerError::Broken(cause),
            },
            Failure::Unknown(why) | Failure::CutOff(why) => LedgerError::Unavailable(why),
            Failure::NotFound => LedgerError::NotFound,
            Failure::Refused(invalid) => LedgerError::Refused(invalid),
            Failure::Rejected(why) | Failure::Broken(why) => LedgerError::Broken(why),
            Failure::Contended => {
                LedgerError::Unavailable(BookError::Contended(VERSION_TRIES_MAX).to_string())
            }
            Failure::InUse => LedgerError::Unavailable(IN_USE.into()),
        }
    }
}

impl From<Failure> for BookError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Sql(SqlFailure { fault, cause, .. }) => match fault {
                Fault::Race => Failure::Contended.into(),
                Fault::Held => BookError::Locked(cause),
                Fault::Row => BookError::Rejected(cause),
                Fault::Deadlock | Fault::Gone | Fault::Down | Fault::Disk | Fault::Ours => {
                    BookError::Unavailable(cause)
                }
            },
            // What the tables hold is no claim's fault.
            Failure::Unknown(why) | Failure::Broken(why) => BookError::Unavailable(why),
            Failure::CutOff(why) => BookError::CutOff(why),
            Failure::NotFound => BookError::Rejected("not found".into()),
            Failure::Refused(invalid) => BookError::Rejected(invalid.to_string()),
            Failure::Rejected(why) => BookError::Rejected(why),
            Failure::Contended => BookError::Contended(VERSION_TRIES_MAX),
            Failure::InUse => BookError::Locked(IN_USE.into()),
        }
    }
}
