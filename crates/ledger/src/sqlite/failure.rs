//! Whose fault an error of SQLite is.

use rusqlite::{Error as SqlError, ErrorCode};

use crate::sql::failure::{Failure, Fault, SqlFailure};

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        let code = error.sqlite_error().map_or(0, |error| error.extended_code);
        Failure::Sql(SqlFailure { fault: fault(&error), code, cause: error.to_string() })
    }
}

fn fault(error: &SqlError) -> Fault {
    match error.sqlite_error_code() {
        _ if sqlite_file::is_in_doubt(error) => Fault::Disk,
        _ if is_unavailable(error) => Fault::Down,
        // A damaged file is no claim's fault: no tries may be burnt on it.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Fault::Ours,
        _ => Fault::Row,
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
