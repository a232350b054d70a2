//! Whose fault an error of SQLite is.

use rusqlite::{Error as SqlError, ErrorCode, ffi};

use crate::sql::failure::{Failure, Fault, SqlFailure};

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        let code = error.sqlite_error().map_or(0, |error| error.extended_code);
        Failure::Sql(SqlFailure { fault: fault(&error), code, cause: error.to_string() })
    }
}

fn fault(error: &SqlError) -> Fault {
    match error.sqlite_error_code() {
        // Perhaps the work took for granted that the row is not there; begun again, it reads first.
        Some(ErrorCode::ConstraintViolation) if is_collision(error) => Fault::Race,
        _ if sqlite_file::is_in_doubt(error) => Fault::Disk,
        _ if is_unavailable(error) => Fault::Down,
        // A damaged file is no claim's fault: no tries may be burnt on it.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Fault::Ours,
        _ => Fault::Row,
    }
}

/// Did a row collide with another on a unique key?
fn is_collision(error: &SqlError) -> bool {
    let keys = [ffi::SQLITE_CONSTRAINT_PRIMARYKEY, ffi::SQLITE_CONSTRAINT_UNIQUE];
    error.sqlite_error().is_some_and(|error| keys.contains(&error.extended_code))
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
