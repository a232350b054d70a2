//! What can go wrong inside, and what each of it means outside.
//!
//! Three questions decide everything. Was it *bad luck* (a deadlock, a lock waited for in vain,
//! somebody faster)? Then a fresh transaction tries again, a few times. Was it the *server* (gone,
//! full, read-only)? Then nothing is known and the caller asks again later. Was it the *row*? Only a
//! constraint or a value the column cannot hold says so; whatever we do not recognise is never held
//! against a claim, for retries burnt on it would end in a dead letter nobody deserves.

use mysql_async::{DriverError, Error as SqlError, ServerError};
use sale::{BookError, Invalid};

use crate::{LedgerError, VERSION_TRIES_MAX};

const DUPLICATE: u16 = 1062;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;
/// "Record has changed since last read": newer MariaDB and Galera say it where others say deadlock.
const CHANGED_SINCE_READ: u16 = 1020;
const PACKET_TOO_LARGE: u16 = 1153;
/// Triggers need rights of their own: SUPER where the binary log is on, TRIGGER on the table.
const NO_TRIGGERS: [u16; 3] = [1419, 1227, 1142];
/// A column or an index of that name is there already.
const THERE_ALREADY: [u16; 2] = [1060, 1061];
/// A CHECK constraint: MySQL's number, MariaDB's number.
const CHECK_VIOLATED: [u16; 2] = [3819, 4025];
/// The server closed this connection, or is about to.
const GONE: [u16; 8] = [1053, 1077, 1079, 1080, 1152, 1184, 1927, 4031];
/// The server is there and cannot work: connections, memory, disk or rights have run out, it is
/// read-only or outside its cluster, or it interrupted the statement.
const OUT_OF_ORDER: [u16; 25] = [
    1021, 1030, 1037, 1038, 1040, 1041, 1044, 1045, 1047, 1049, 1114, 1129, 1130, 1180, 1203, 1206,
    1226, 1290, 1317, 1792, 1836, 1969, 3024, 3572, 3168,
];
/// SQLSTATE classes that are about the row: a value that does not fit, a constraint, a `SIGNAL`.
const OF_THE_ROW: [&str; 3] = ["22", "23", "45"];

#[derive(Debug)]
pub(super) enum Failure {
    Sql(SqlError),
    /// The answer to a commit was lost, or nobody was there to ask: it may have been done.
    Unknown(String),
    /// The work took longer than it may: it may have been done.
    CutOff(String),
    NotFound,
    Refused(Invalid),
    /// A claim that can never be written as it stands.
    Rejected(String),
    /// Somebody else was faster; nothing was changed.
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

/// Whose fault an error of the database is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A fresh transaction may well succeed.
    Luck,
    /// The connection is of no more use.
    Gone,
    Server,
    Row,
    /// Our own statement, or a schema that is not ours.
    Ours,
}

fn fault(error: &SqlError) -> Fault {
    match error {
        SqlError::Server(error) => fault_of_server(error),
        SqlError::Driver(DriverError::PacketTooLarge) => Fault::Row,
        SqlError::Driver(DriverError::FromValue { .. } | DriverError::FromRow { .. }) => {
            Fault::Ours
        }
        SqlError::Driver(DriverError::StmtParamsMismatch { .. }) => Fault::Ours,
        _ => Fault::Gone,
    }
}

fn fault_of_server(error: &ServerError) -> Fault {
    let class = error.state.get(..2).unwrap_or_default();
    match error.code {
        DEADLOCK | LOCK_WAIT_TIMEOUT | CHANGED_SINCE_READ => Fault::Luck,
        // Two wrote the same order at once; the loser finds it when it reads again.
        DUPLICATE if violated(error) == Some("PRIMARY") => Fault::Luck,
        PACKET_TOO_LARGE => Fault::Row,
        code if GONE.contains(&code) || class == "08" => Fault::Gone,
        code if OUT_OF_ORDER.contains(&code) => Fault::Server,
        code if CHECK_VIOLATED.contains(&code) || OF_THE_ROW.contains(&class) => Fault::Row,
        _ => Fault::Ours,
    }
}

/// The name of the unique key a row collided with. MySQL puts the table before it, MariaDB does not.
fn violated(error: &ServerError) -> Option<&str> {
    let (_, key) = error.message.rsplit_once("for key '")?;
    let key = key.strip_suffix('\'').unwrap_or(key);
    Some(key.rsplit_once('.').map_or(key, |(_, name)| name))
}

impl Failure {
    fn fault(&self) -> Option<Fault> {
        match self {
            Failure::Sql(error) => Some(fault(error)),
            _ => None,
        }
    }

    /// The connection was found closed.
    pub(super) fn is_gone(&self) -> bool {
        self.fault() == Some(Fault::Gone)
    }

    /// The connection is of no more use, and what was asked on it may or may not have been done.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Failure::Unknown(_) | Failure::CutOff(_)) || self.is_gone()
    }

    /// The transaction is rolled back for certain, and a fresh one may well succeed.
    pub(super) fn is_luck(&self) -> bool {
        matches!(self, Failure::Contended) || self.fault() == Some(Fault::Luck)
    }

    /// Somebody else changed the same rows first, as opposed to holding them.
    pub(super) fn is_race(&self) -> bool {
        match self {
            Failure::Contended => true,
            Failure::Sql(SqlError::Server(error)) => {
                error.code == DUPLICATE && fault_of_server(error) == Fault::Luck
            }
            _ => false,
        }
    }

    /// Somebody held a row for longer than we wait for it.
    pub(super) fn is_lock_wait(&self) -> bool {
        match self {
            Failure::Sql(SqlError::Server(error)) => error.code == LOCK_WAIT_TIMEOUT,
            _ => false,
        }
    }

    /// The server works, but not for a user with these rights.
    pub(super) fn may_not_make_triggers(&self) -> bool {
        match self {
            Failure::Sql(SqlError::Server(error)) => NO_TRIGGERS.contains(&error.code),
            _ => false,
        }
    }

    /// A column or an index of this name is there.
    pub(super) fn is_there_already(&self) -> bool {
        match self {
            Failure::Sql(SqlError::Server(error)) => THERE_ALREADY.contains(&error.code),
            _ => false,
        }
    }

    /// Did a row collide on this unique key?
    pub(super) fn collided_on(&self, key: &str) -> bool {
        match self {
            Failure::Sql(SqlError::Server(error)) => {
                error.code == DUPLICATE && violated(error) == Some(key)
            }
            _ => false,
        }
    }

    /// An error on COMMIT. The server says no only to a deadlock (Galera finds them this late);
    /// everything else leaves open whether the commit was done.
    pub(super) fn of_commit(error: SqlError) -> Failure {
        match &error {
            SqlError::Server(said) if matches!(said.code, DEADLOCK | CHANGED_SINCE_READ) => {
                Failure::Sql(error)
            }
            _ => Failure::Unknown(format!("no answer to a commit: {error}")),
        }
    }
}

impl From<Failure> for LedgerError {
    fn from(failure: Failure) -> Self {
        if failure.is_race() {
            return LedgerError::Unavailable(BookError::Contended(VERSION_TRIES_MAX).to_string());
        }
        match failure {
            Failure::Sql(error) => match fault(&error) {
                Fault::Luck | Fault::Gone | Fault::Server => {
                    LedgerError::Unavailable(error.to_string())
                }
                Fault::Row | Fault::Ours => LedgerError::Broken(error.to_string()),
            },
            Failure::Unknown(why) | Failure::CutOff(why) => LedgerError::Unavailable(why),
            Failure::NotFound => LedgerError::NotFound,
            Failure::Refused(invalid) => LedgerError::Refused(invalid),
            Failure::Rejected(why) | Failure::Broken(why) => LedgerError::Broken(why),
            Failure::Contended => LedgerError::Unavailable("somebody else was faster".into()),
        }
    }
}

impl From<Failure> for BookError {
    fn from(failure: Failure) -> Self {
        if failure.is_race() {
            return BookError::Contended(VERSION_TRIES_MAX);
        }
        let held = failure.is_lock_wait();
        match failure {
            Failure::Sql(error) if held => BookError::Locked(error.to_string()),
            Failure::Sql(error) if fault(&error) == Fault::Row => {
                BookError::Rejected(error.to_string())
            }
            Failure::Sql(error) => BookError::Unavailable(error.to_string()),
            Failure::Unknown(why) => BookError::Unavailable(why),
            Failure::CutOff(why) => BookError::CutOff(why),
            Failure::NotFound => BookError::Rejected("not found".into()),
            Failure::Refused(invalid) => BookError::Rejected(invalid.to_string()),
            Failure::Rejected(why) => BookError::Rejected(why),
            // What the tables hold is no claim's fault.
            Failure::Broken(why) => BookError::Unavailable(why),
            Failure::Contended => BookError::Contended(VERSION_TRIES_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: u16, state: &str, message: &str) -> SqlError {
        SqlError::Server(ServerError { code, message: message.into(), state: state.into() })
    }

    #[test]
    fn both_engines_name_a_violated_key_alike() {
        for message in [
            "Duplicate entry 'SK1' for key 'PRIMARY'",
            "Duplicate entry 'SK1' for key 'tb_seckill_order.PRIMARY'",
        ] {
            let failure = Failure::from(server(DUPLICATE, "23000", message));
            assert!(failure.is_luck() && failure.is_race() && failure.collided_on("PRIMARY"));
        }
        let message = "Duplicate entry 'x' for key 'uk_payment'";
        let failure = Failure::from(server(DUPLICATE, "23000", message));
        assert!(!failure.is_luck() && failure.collided_on("uk_payment"));
        assert!(matches!(BookError::from(failure), BookError::Rejected(_)));
    }

    #[test]
    fn only_the_row_is_ever_held_against_a_claim() {
        let rejected = |code, state, message| {
            let failure = Failure::from(server(code, state, message));
            matches!(BookError::from(failure), BookError::Rejected(_))
        };
        assert!(rejected(4025, "23000", "CONSTRAINT `ck_order_quantity` failed"));
        assert!(rejected(3819, "HY000", "Check constraint 'ck_order_quantity' is violated."));
        assert!(rejected(1406, "22001", "Data too long for column 'user_id'"));
        assert!(rejected(1644, "45000", "this row is refused"));
        for (code, state) in [
            (1213, "40001"),
            (1205, "HY000"),
            (1146, "42S02"),
            (1064, "42000"),
            (1290, "HY000"),
            (1927, "70100"),
            (1040, "08004"),
            (1114, "HY000"),
            (9999, "HY000"),
        ] {
            assert!(!rejected(code, state, ""), "{code}");
        }
    }

    #[test]
    fn a_row_that_somebody_holds_is_the_items_matter_and_not_the_ledgers() {
        let held = || Failure::from(server(LOCK_WAIT_TIMEOUT, "HY000", "Lock wait timeout"));
        assert!(held().is_luck() && held().is_lock_wait());
        assert!(matches!(BookError::from(held()), BookError::Locked(_)));
        assert!(matches!(LedgerError::from(held()), LedgerError::Unavailable(_)));
        let deadlock = Failure::from(server(DEADLOCK, "40001", ""));
        assert!(matches!(BookError::from(deadlock), BookError::Unavailable(_)));
    }

    #[test]
    fn a_commit_without_a_clear_no_is_unknown() {
        let lost = Failure::of_commit(server(1053, "08S01", "Server shutdown in progress"));
        assert!(lost.is_lost() && !lost.is_luck());
        let full = Failure::of_commit(server(1180, "HY000", "Got error 28 during COMMIT"));
        assert!(matches!(LedgerError::from(full), LedgerError::Unavailable(_)));
        assert!(Failure::of_commit(server(DEADLOCK, "40001", "")).is_luck());
    }
}
