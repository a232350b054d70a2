//! One MariaDB server, or a MySQL where the tests are told to run on one ([`programs`]).
//!
//! Making a new data directory takes seconds, so one is made per version of the program and kept as
//! a template in the build folder; each server gets a copy. Root has no password and can come from
//! 127.0.0.1 only, which is also the only address the server listens on.

use std::{
    fs,
    io::{self, BufRead, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard},
};

use super::{
    Certificates, NotYet, START_WITHIN,
    keeper::Keeper,
    place::{self, Port, ServiceFolder},
    programs, wait_for,
};

const SERVER_PACKAGE: &str = "mariadb-server-core";
const CLIENT_PACKAGE: &str = "mariadb-client-core";

/// How a MariaDB is set up: small, but as durable as a ledger must be.
#[derive(Clone, Debug)]
pub struct MariaDbOptions {
    pub buffer_pool_mb: u32,
    /// The redo log. A small one makes long bursts of writes wait for the tables' files.
    pub redo_log_mb: u32,
    /// Without it there is TLS for whoever wants it.
    pub tls: bool,
    /// A file of settings, which lose against ours.
    pub defaults_file: Option<PathBuf>,
    /// More settings, as on the command line: `["--log-bin"]`. They win over ours.
    pub extra: Vec<String>,
}

impl Default for MariaDbOptions {
    fn default() -> MariaDbOptions {
        MariaDbOptions {
            buffer_pool_mb: 64,
            redo_log_mb: 32,
            tls: true,
            defaults_file: None,
            extra: Vec::new(),
        }
    }
}

impl MariaDbOptions {
    /// One that speaks TLS as well. To let it speak nothing else, set `require_secure_transport`; then
    /// [`MariaDb::query`] does not get in any more, either.
    pub fn with_tls(certificates: &Certificates) -> MariaDbOptions {
        let setting = |name: &str, path: PathBuf| format!("--ssl-{name}={}", path.display());
        let extra = vec![
            setting("ca", certificates.cert("ca")),
            setting("cert", certificates.cert("server")),
            setting("key", certificates.key("server")),
        ];
        MariaDbOptions { extra, ..MariaDbOptions::default() }
    }
}

/// A MariaDB process with its port and directory, which stay its own while it is down.
#[derive(Debug)]
pub struct MariaDb {
    /// Comes first because it is dropped first: a process that lives would miss its folder.
    keeper: Mutex<Option<Keeper>>,
    program: PathBuf,
    make: Make,
    client: PathBuf,
    options: MariaDbOptions,
    folder: ServiceFolder,
    port: Port,
}

/// Whose the program is. What they share is said once; the rest is where this is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Make {
    MariaDb,
    MySql,
}

/// An open session. Dropping it ends the session, and with it its locks.
#[derive(Debug)]
pub struct Held {
    child: Child,
}

impl Drop for Held {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl MariaDb {
    pub fn start(options: MariaDbOptions) -> io::Result<MariaDb> {
        let program = programs::ledger_server()?;
        let client = programs::find("mariadb", CLIENT_PACKAGE)?;
        let folder = ServiceFolder::new("mariadb")?;
        let (make, version) = version(&program)?;
        copy_folder(&template(&program, make, &version)?, &folder.data())?;
        fs::create_dir(folder.path().join("tmp"))?;
        let (port, keeper) = (Port::reserve()?, Mutex::new(None));
        let mariadb = MariaDb { keeper, program, make, client, options, folder, port };
        mariadb.restart()?;
        Ok(mariadb)
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Does it have the words that only MariaDB has?
    pub fn is_mysql(&self) -> bool {
        self.make == Make::MySql
    }

    pub fn url(&self, database: &str) -> String {
        format!("mysql://root@{}/{database}", self.address())
    }

    /// Make an empty database; answers its URL.
    pub fn create_database(&self, name: &str) -> io::Result<String> {
        self.query(&format!("CREATE DATABASE `{name}` CHARACTER SET utf8mb4"))?;
        Ok(self.url(name))
    }

    /// The `mariadb` program as root. Rows come back as lines, columns by tabs.
    fn client(&self) -> Command {
        let mut client = Command::new(&self.client);
        client
            .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root"])
            .args(["--connect-timeout=10", "--batch", "--skip-column-names", "--unbuffered"])
            .arg(format!("--port={}", self.port.number()));
        client
    }

    /// Run SQL in a session that stays open, with all locks it took, until the answer is dropped.
    pub fn hold(&self, sql: &str) -> io::Result<Held> {
        let mut child = self
            .client()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the client has no input or output"));
        };
        let mut held = Held { child };
        writeln!(input, "{sql}\nSELECT 'held';")?;
        input.flush()?;
        for line in io::BufReader::new(output).lines() {
            if line? == "held" {
                // Without its input the session would end.
                held.child.stdin = Some(input);
                return Ok(held);
            }
        }
        Err(io::Error::other("the session ended before it held anything"))
    }

    /// Run SQL as root.
    pub fn query(&self, sql: &str) -> io::Result<String> {
        let output = self.client().args(["--execute", sql]).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    /// The process id, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.keeper().as_ref().map(Keeper::pid)
    }

    pub fn is_running(&self) -> bool {
        self.keeper().as_mut().is_some_and(|keeper| keeper.still_runs().is_ok())
    }

    /// `kill -9`. Nothing happens if it is down already.
    pub fn kill(&self) -> io::Result<()> {
        match self.keeper().take() {
            Some(mut keeper) => keeper.kill(),
            None => Ok(()),
        }
    }

    /// A polite stop.
    pub fn stop(&self) -> io::Result<()> {
        match self.keeper().take() {
            Some(mut keeper) => keeper.stop().map(drop),
            None => Ok(()),
        }
    }

    /// Start again with the same port and directory; stopped first if it still runs. Returns when
    /// it answers a query.
    pub fn restart(&self) -> io::Result<()> {
        self.stop()?;
        let keeper = Keeper::start(&self.program, &self.args(), &self.folder.log())?;
        *self.keeper() = Some(keeper);
        wait_for(&format!("the start of MariaDB at {}", self.address()), START_WITHIN, || {
            if let Some(keeper) = self.keeper().as_mut() {
                keeper.still_runs().map_err(NotYet::Never)?;
            }
            // Cheaper than the client program while nobody listens.
            TcpStream::connect(self.address())?;
            self.query("SELECT 1")?;
            Ok(())
        })
    }

    /// SIGSTOP: connections stay open and nothing is answered.
    pub fn pause(&self) -> io::Result<()> {
        self.signal("STOP")
    }

    pub fn resume(&self) -> io::Result<()> {
        self.signal("CONT")
    }

    fn signal(&self, signal: &str) -> io::Result<()> {
        match self.keeper().as_mut() {
            Some(keeper) => keeper.signal(signal),
            None => Err(io::Error::new(io::ErrorKind::NotConnected, "this MariaDB is down")),
        }
    }

    fn keeper(&self) -> MutexGuard<'_, Option<Keeper>> {
        self.keeper.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn args(&self) -> Vec<String> {
        let defaults = match &self.options.defaults_file {
            Some(file) => format!("--defaults-file={}", file.display()),
            None => "--no-defaults".into(),
        };
        let mut args = vec![
            // It must come first.
            defaults,
            format!("--datadir={}", self.folder.data().display()),
            format!("--tmpdir={}", self.folder.path().join("tmp").display()),
            format!("--port={}", self.port.number()),
            "--bind-address=127.0.0.1".into(),
            "--skip-name-resolve".into(),
            // Relative to the data directory: the full path may be longer than a socket's can be.
            "--socket=mariadb.sock".into(),
            "--pid-file=mariadb.pid".into(),
            "--character-set-server=utf8mb4".into(),
            "--innodb-flush-log-at-trx-commit=1".into(),
            format!("--innodb-buffer-pool-size={}M", self.options.buffer_pool_mb),
            redo_log(self.make, self.options.redo_log_mb),
            // Two instances with their workers, and many tests at once.
            "--max-connections=400".into(),
            // The readiness check and fault tests break connections; that must not lock us out.
            "--max-connect-errors=1000000".into(),
        ];
        if !self.options.tls {
            args.push(match self.make {
                Make::MariaDb => "--skip-ssl".into(),
                Make::MySql => "--tls-version=".into(),
            });
        }
        if self.make == Make::MySql {
            // A second port, for a protocol that nobody here speaks, and a folder of the distribution's.
            args.extend(["--mysqlx=OFF", "--secure-file-priv="].map(str::to_owned));
        }
        args.extend(as_root());
        args.extend(self.options.extra.iter().cloned());
        args
    }
}

fn redo_log(make: Make, redo_log_mb: u32) -> String {
    match make {
        Make::MariaDb => format!("--innodb-log-file-size={redo_log_mb}M"),
        Make::MySql => format!("--innodb-redo-log-capacity={redo_log_mb}M"),
    }
}

/// MariaDB refuses to run as root unless told so by name; anybody else runs it as himself.
fn as_root() -> Option<String> {
    let id = Command::new("id").arg("-u").output().ok()?;
    (id.stdout.trim_ascii() == b"0").then(|| "--user=root".into())
}

fn version(program: &Path) -> io::Result<(Make, String)> {
    let output = Command::new(program).args(["--no-defaults", "--version"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = said.split_whitespace().skip_while(|word| *word != "Ver").nth(1);
    let strange = || io::Error::other(format!("{} has no version: {said}", program.display()));
    let version = version.ok_or_else(strange)?.replace(['/', ':'], "-");
    let make = if version.contains("MariaDB") { Make::MariaDb } else { Make::MySql };
    Ok((make, version))
}

/// A fresh data directory of this version of the program.
fn template(program: &Path, make: Make, version: &str) -> io::Result<PathBuf> {
    let folder = place::services();
    fs::create_dir_all(&folder)?;
    let ready = folder.join(format!("template-{version}"));
    // Test processes may come together; one of them makes it.
    let lock = place::open_lock(&folder.join(format!("template-{version}.lock")))?;
    lock.lock()?;
    if !ready.is_dir() {
        let new = folder.join(format!("template-{version}.new"));
        if new.is_dir() {
            fs::remove_dir_all(&new)?;
        }
        match make {
            Make::MariaDb => install(&new)?,
            Make::MySql => initialize(program, &new)?,
        }
        fs::rename(&new, &ready)?;
    }
    Ok(ready)
}

fn install(folder: &Path) -> io::Result<()> {
    let defaults = MariaDbOptions::default();
    let output = Command::new(programs::find("mariadb-install-db", SERVER_PACKAGE)?)
        .arg("--no-defaults")
        .arg(format!("--datadir={}", folder.display()))
        .args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"])
        .arg(format!("--innodb-log-file-size={}M", defaults.redo_log_mb))
        .args(as_root())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let words = [output.stdout, output.stderr].concat();
    let words = String::from_utf8_lossy(&words).into_owned();
    Err(io::Error::other(format!("mariadb-install-db failed:\n{words}")))
}

/// MySQL makes its folder itself, with a root who may come by socket only.
fn initialize(program: &Path, folder: &Path) -> io::Result<()> {
    let users = folder.with_extension("sql");
    let root = "root@'127.0.0.1'";
    let sql = format!("CREATE USER {root};\nGRANT ALL ON *.* TO {root} WITH GRANT OPTION;\n");
    fs::write(&users, sql)?;
    let output = Command::new(program)
        .args(["--no-defaults", "--initialize-insecure", "--secure-file-priv="])
        .arg(format!("--datadir={}", folder.display()))
        .arg(format!("--init-file={}", users.display()))
        .arg(redo_log(Make::MySql, MariaDbOptions::default().redo_log_mb))
        .args(as_root())
        .output()?;
    fs::remove_file(&users)?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("{} --initialize-insecure failed:\n{words}", program.display())))
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
