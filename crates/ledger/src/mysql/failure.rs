//! Whose fault an error of MySQL or MariaDB is, and what its connection is good for afterwards.

use mysql_async::{DriverError, Error as SqlError, IoError, ServerError};

use crate::sql::failure::{Failure, Fault, SqlFailure};

const DUPLICATE: u16 = 1062;
/// Whoever writes a row that collides here has looked for it before, in vain.
const RACED: [&str; 2] = ["PRIMARY", "uk_activity_external"];
/// Waited in vain; or not at all, as was asked for: MariaDB has one number for both, MySQL and TiDB two.
const HELD: [u16; 2] = [1205, 3572];
const DEADLOCK: u16 = 1213;
/// "Record has changed since last read": newer MariaDB and Galera say it where others say deadlock.
const CHANGED_SINCE_READ: u16 = 1020;
/// TiDB: two wrote the same row, or its table was changed meanwhile. The transaction was rolled back.
const ROLLED_BACK: [u16; 5] = [8002, 8005, 8022, 8028, 9007];
/// TiDB: what it keeps its rows in is busy or away.
const STORE_AWAY: [u16; 10] = [8027, 9001, 9002, 9003, 9004, 9005, 9006, 9008, 9010, 9013];
const PACKET_TOO_LARGE: u16 = 1153;
/// Triggers need rights of their own: SUPER where the binary log is on, TRIGGER on the table. To TiDB they
/// are errors of grammar.
const NO_TRIGGERS: [u16; 4] = [1419, 1227, 1142, 1064];
const NO_SUCH_FUNCTION: u16 = 1305;
/// No right to do this to a table, or to one of its columns.
const FORBIDDEN: [u16; 2] = [1142, 1143];
/// No right to make a table, anywhere in the database or of this name.
const NO_TABLES: [u16; 2] = [1044, 1142];
/// A column or an index of that name is there already.
const THERE_ALREADY: [u16; 2] = [1060, 1061];
/// A CHECK constraint: MySQL's number, MariaDB's number.
const CHECK_VIOLATED: [u16; 2] = [3819, 4025];
/// The server closed this connection, or is about to.
const GONE: [u16; 8] = [1053, 1077, 1079, 1080, 1152, 1184, 1927, 4031];
/// The server is there and cannot work: connections, memory, disk or rights have run out, it is
/// read-only or outside its cluster, or it interrupted the statement.
const OUT_OF_ORDER: [u16; 24] = [
    1021, 1030, 1037, 1038, 1040, 1041, 1044, 1045, 1047, 1049, 1114, 1129, 1130, 1180, 1203, 1206,
    1226, 1290, 1317, 1792, 1836, 1969, 3024, 3168,
];
/// The server is there and does not let us in: the user, the password, the host, the database, or a
/// connection without TLS are not to its liking.
const REFUSED: [u16; 7] = [1044, 1045, 1049, 1130, 1251, 1698, 3159];
/// A failure of TLS has no number of its own.
const TLS: i32 = -1;
/// Nor has a way of proving a password that we do not know.
const STRANGE_LOGIN: i32 = -2;
/// SQLSTATE classes that are about the row: a value that does not fit, a constraint, a `SIGNAL`.
const OF_THE_ROW: [&str; 3] = ["22", "23", "45"];

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        let (fault, code) = match &error {
            SqlError::Server(error) => (fault_of_server(error), i32::from(error.code)),
            SqlError::Driver(DriverError::PacketTooLarge) => (Fault::Row, 0),
            error if is_tls(error) => (Fault::Down, TLS),
            error if is_strange_login(error) => (Fault::Down, STRANGE_LOGIN),
            SqlError::Driver(
                DriverError::FromValue { .. }
                | DriverError::FromRow { .. }
                | DriverError::StmtParamsMismatch { .. },
            ) => (Fault::Ours, 0),
            _ => (Fault::Gone, 0),
        };
        Failure::Sql(SqlFailure { fault, code, cause: error.to_string() })
    }
}

/// The certificates do not fit together, or the server does not offer TLS.
fn is_tls(error: &SqlError) -> bool {
    match error {
        SqlError::Driver(DriverError::NoClientSslFlagFromServer)
        | SqlError::Io(IoError::Tls(_)) => true,
        SqlError::Io(IoError::Io(error)) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// MySQL asks a user it does not know for one of several proofs, so that nobody learns that there is none.
fn is_strange_login(error: &SqlError) -> bool {
    matches!(
        error,
        SqlError::Driver(
            DriverError::UnknownAuthPlugin { .. }
                | DriverError::CleartextPluginDisabled
                | DriverError::MysqlOldPasswordDisabled
        )
    )
}

fn fault_of_server(error: &ServerError) -> Fault {
    let class = error.state.get(..2).unwrap_or_default();
    match error.code {
        DEADLOCK | CHANGED_SINCE_READ => Fault::Deadlock,
        code if ROLLED_BACK.contains(&code) => Fault::Deadlock,
        code if HELD.contains(&code) => Fault::Held,
        // Two wrote the same order at once; the loser finds it when it reads again.
        DUPLICATE if violated(error).is_some_and(|key| RACED.contains(&key)) => Fault::Race,
        PACKET_TOO_LARGE => Fault::Row,
        code if GONE.contains(&code) || class == "08" => Fault::Gone,
        code if OUT_OF_ORDER.contains(&code) || STORE_AWAY.contains(&code) => Fault::Down,
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
    /// The connection was found closed.
    pub(super) fn is_gone(&self) -> bool {
        self.fault() == Some(Fault::Gone)
    }

    /// The connection is of no more use, and what was asked on it may or may not have been done.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Failure::Unknown(_) | Failure::CutOff(_)) || self.is_gone()
    }

    fn has_code(&self, codes: &[u16]) -> bool {
        matches!(self, Failure::Sql(said) if codes.iter().any(|code| i32::from(*code) == said.code))
    }

    /// The server does not let us in, and waiting will not change that.
    pub(super) fn is_refused(&self) -> bool {
        let strange = |said: &SqlFailure| said.code == STRANGE_LOGIN;
        self.has_code(&REFUSED) || matches!(self, Failure::Sql(said) if strange(said))
    }

    pub(super) fn is_tls(&self) -> bool {
        matches!(self, Failure::Sql(said) if said.code == TLS)
    }

    /// The server works, but not for a user with these rights.
    pub(super) fn may_not_make_triggers(&self) -> bool {
        self.has_code(&NO_TRIGGERS)
    }

    pub(super) fn is_unknown_function(&self) -> bool {
        self.has_code(&[NO_SUCH_FUNCTION])
    }

    /// The user has no right to do this to the table.
    pub(super) fn is_forbidden(&self) -> bool {
        self.has_code(&FORBIDDEN)
    }

    pub(super) fn may_not_make_tables(&self) -> bool {
        self.has_code(&NO_TABLES)
    }

    /// A column or an index of this name is there.
    pub(super) fn is_there_already(&self) -> bool {
        self.has_code(&THERE_ALREADY)
    }

    /// An error on COMMIT. The server says no only to a deadlock or to what it counts as one (Galera and TiDB
    /// find them this late); everything else leaves open whether the commit was done.
    pub(super) fn of_commit(error: SqlError) -> Failure {
        let unknown = format!("no answer to a commit: {error}");
        match Failure::from(error) {
            failure if failure.fault() == Some(Fault::Deadlock) => failure,
            _ => Failure::Unknown(unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use sale::BookError;

    use super::*;
    use crate::LedgerError;

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
            assert_eq!(failure.fault(), Some(Fault::Race));
        }
        let message = "Duplicate entry 'x' for key 'uk_payment'";
        let failure = Failure::from(server(DUPLICATE, "23000", message));
        assert_eq!(failure.fault(), Some(Fault::Row));
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
        for code in HELD {
            let held = || Failure::from(server(code, "HY000", "Lock wait timeout"));
            assert_eq!(held().fault(), Some(Fault::Held));
            assert!(matches!(BookError::from(held()), BookError::Locked(_)));
            assert!(matches!(LedgerError::from(held()), LedgerError::Unavailable(_)));
        }
        let deadlock = Failure::from(server(DEADLOCK, "40001", ""));
        assert!(matches!(BookError::from(deadlock), BookError::Unavailable(_)));
    }

    #[test]
    fn a_commit_without_a_clear_no_is_unknown() {
        let lost = Failure::of_commit(server(1053, "08S01", "Server shutdown in progress"));
        assert!(lost.is_lost() && lost.fault().is_none());
        let full = Failure::of_commit(server(1180, "HY000", "Got error 28 during COMMIT"));
        assert!(matches!(LedgerError::from(full), LedgerError::Unavailable(_)));
        let deadlock = Failure::of_commit(server(DEADLOCK, "40001", ""));
        assert_eq!(deadlock.fault(), Some(Fault::Deadlock));
    }

    #[test]
    fn whoever_is_asked_for_a_proof_that_nobody_can_give_is_refused() {
        let name = "sha256_password".into();
        let decoy = SqlError::Driver(DriverError::UnknownAuthPlugin { name });
        assert!(Failure::from(decoy).is_refused());
        let denied = server(1045, "28000", "Access denied for user");
        assert!(Failure::from(denied).is_refused());
        assert!(!Failure::from(SqlError::Driver(DriverError::ConnectionClosed)).is_refused());
    }

    #[test]
    fn what_tidb_says_of_its_own_is_understood() {
        for code in ROLLED_BACK {
            let conflict = Failure::of_commit(server(code, "HY000", "Write conflict"));
            assert_eq!(conflict.fault(), Some(Fault::Deadlock), "{code} was not committed");
        }
        // "Execution result undetermined".
        let open = Failure::of_commit(server(8501, "HY000", "undetermined"));
        assert!(open.is_lost(), "it may have been committed");
        for code in STORE_AWAY {
            let away = Failure::from(server(code, "HY000", "TiKV server timeout"));
            assert_eq!(away.fault(), Some(Fault::Down));
        }
    }
}
