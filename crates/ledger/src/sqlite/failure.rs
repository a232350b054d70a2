//! What can go wrong inside, and what each of it means outside.
//!
//! The one question that matters to a caller is whose fault it was. A ledger that is locked, full or
//! out of reach is nobody's fault in the request and is asked again; a row the tables refuse is the
//! request's own fault and asking again will not help.

use rusqlite::{Error as SqlError, ErrorCode};
use sale::{BookError, Invalid};

use crate::{LedgerError, VERSION_TRIES_MAX};

#[derive(Debug)]
pub(super) enum Failure {
    Sql(SqlError),
    /// The writer or a reader ended without an answer, or the queue was too long.
    NoAnswer(&'static str),
    NotFound,
    Refused(Invalid),
    /// A claim that can never be written as it stands.
    Rejected(String),
    /// The version of an item moved each time we tried.
    Contended,
    Broken(String),
}

pub(super) type Outcome<T> = Result<T, Failure>;

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        Failure::Sql(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Failure::Broken(error.to_string())
    }
}

impl Failure {
    /// Is it unknown what of the file is on the disk?
    pub(super) fn leaves_file_in_doubt(&self) -> bool {
        matches!(self, Failure::Sql(error) if sqlite_file::is_in_doubt(error))
    }
}

/// Is the ledger as a whole out of order, whatever was asked of it?
pub(super) fn is_unavailable(error: &SqlError) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::OutOfMemory
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::PermissionDenied
        )
    )
}

/// A damaged file is no claim's fault either: no retries may be burnt on it.
fn is_damaged(error: &SqlError) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

impl From<Failure> for LedgerError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Sql(error) if is_unavailable(&error) => {
                LedgerError::Unavailable(error.to_string())
            }
            Failure::Sql(error) => LedgerError::Broken(error.to_string()),
            Failure::NoAnswer(why) => LedgerError::Unavailable(why.into()),
            Failure::NotFound => LedgerError::NotFound,
            Failure::Refused(invalid) => LedgerError::Refused(invalid),
            Failure::Rejected(why) | Failure::Broken(why) => LedgerError::Broken(why),
            Failure::Contended => {
                LedgerError::Unavailable(BookError::Contended(VERSION_TRIES_MAX).to_string())
            }
        }
    }
}

impl From<Failure> for BookError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Sql(error) if is_unavailable(&error) || is_damaged(&error) => {
                BookError::Unavailable(error.to_string())
            }
            Failure::Sql(error) => BookError::Rejected(error.to_string()),
            Failure::NoAnswer(why) => BookError::Unavailable(why.into()),
            Failure::NotFound => BookError::Rejected("not found".into()),
            Failure::Refused(invalid) => BookError::Rejected(invalid.to_string()),
            Failure::Rejected(why) | Failure::Broken(why) => BookError::Rejected(why),
            Failure::Contended => BookError::Contended(VERSION_TRIES_MAX),
        }
    }
}
