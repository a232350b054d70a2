//! A disk that forgets what was not synced, as real ones do in a power cut, and that fails on demand.
//!
//! `forgetful_disk.c` is compiled once with the machine's C compiler (which building SQLite needs
//! anyway) and put in front of a process with `LD_PRELOAD`. It watches the databases in one directory,
//! fails the writes and syncs that the test names, and knows at every moment what a power cut would
//! leave. A failed sync loses its pages for good while they can still be read, as in Linux.
//!
//! Processes are mostly the test binary itself, started [again](again) for one test that is ignored
//! otherwise. [`at_every_operation`] tells one story with another operation failing each time.
//!
//! The life of a story: start a process with [`ForgetfulDisk::env`], let something [fail](Fault), see
//! what was promised, end the process, [cut the power](ForgetfulDisk::power_cut), and look at what is
//! left, with or without the disk.

use std::{
    collections::hash_map::DefaultHasher,
    ffi::OsString,
    fs::{self, File},
    hash::{Hash, Hasher},
    io,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use crate::services::build_folder;

const SOURCE: &str = include_str!("forgetful_disk.c");

/// The fields of `struct control`, by their place in the shared page.
const OPERATIONS: u64 = 0;
const FAIL_AT: u64 = 1;
const FAIL_COUNT: u64 = 2;
const FAIL_ERRNO: u64 = 3;
const KINDS: u64 = 4;
const DIE: u64 = 5;
const HITS: u64 = 6;
const BYTES_READ: u64 = 7;
const PREFIX: u64 = 8;
const CONTROL_BYTES: u64 = 4_096;
const PREFIX_BYTES_MAX: usize = 63;

/// What the kernel says, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// EIO: a broken disk.
    Io = 5,
    /// ENOSPC: a full one.
    NoSpace = 28,
}

/// Which operations are counted, and can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    Writes = 1,
    Syncs = 2,
    Both = 3,
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The first operation to fail, counted from 1.
    pub at: u64,
    /// How many fail from there on.
    pub count: u64,
    pub failing: Failing,
    pub of: Operations,
    /// End the process, as `kill -9` would, before its next operation.
    pub then_die: bool,
}

impl Fault {
    pub fn once(at: u64, failing: Failing) -> Fault {
        Fault { at, count: 1, failing, of: Operations::Both, then_die: false }
    }
}

/// The exit code of a process that was told to die.
pub const DIED: i32 = 9;

/// Set in the environment, a sweep leaves nothing out.
const SWEEP_ALL: &str = "SWEEP_ALL";

/// Was it asked for that a sweep leaves nothing out?
pub fn sweeps_everything() -> bool {
    std::env::var_os(SWEEP_ALL).is_some()
}

/// This test binary again, for one of its ignored tests.
pub fn again(test: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    Ok(command)
}

/// Tell a story again and again: a broken disk and a full one, a process that goes on and one that is
/// killed right then, each time failing at a later operation, until `story` says that nothing failed any
/// more. Every `stride`-th operation of each kind, or all of them with `SWEEP_ALL=1`. An odd stride lets a
/// story be another one at every second operation.
pub fn at_every_operation(stride: u64, story: impl Fn(Fault) -> bool + Sync) {
    let stride = if sweeps_everything() { 1 } else { stride };
    let kinds = [
        (Failing::Io, false),
        (Failing::Io, true),
        (Failing::NoSpace, false),
        (Failing::NoSpace, true),
    ];
    std::thread::scope(|threads| {
        for (n, (failing, then_die)) in kinds.into_iter().enumerate() {
            let story = &story;
            threads.spawn(move || {
                // Each kind samples other operations.
                let mut at = 1 + n as u64 * stride / kinds.len() as u64;
                while story(Fault { then_die, ..Fault::once(at, failing) }) {
                    at += stride;
                }
                println!("{failing:?}, killed: {then_die}: the story has {at} operations at most");
                assert!(at > 2 * stride, "nothing was swept");
            });
        }
    });
}

/// The disk under one directory. What it knows is kept in a directory beside, removed when dropped.
#[derive(Debug)]
pub struct ForgetfulDisk {
    data: PathBuf,
    home: PathBuf,
    control: File,
    shim: PathBuf,
}

impl ForgetfulDisk {
    /// Under this directory, which must exist. What is in it is on the disk.
    pub fn under(data: &Path) -> io::Result<ForgetfulDisk> {
        let shim = shim()?;
        let data = data.canonicalize()?;
        let mut home = data.as_os_str().to_owned();
        home.push(".disk");
        let home = PathBuf::from(home);
        for folder in ["synced", "dirty", "held"] {
            fs::create_dir_all(home.join(folder))?;
        }
        let control = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(home.join("control"))?;
        control.set_len(CONTROL_BYTES)?;
        let disk = ForgetfulDisk { data, home, control, shim };
        disk.keep_names()?;
        Ok(disk)
    }

    /// For the environment of whoever shall use it.
    pub fn env(&self) -> [(&'static str, OsString); 3] {
        [
            ("LD_PRELOAD", self.shim.clone().into()),
            ("FORGETFUL_DATA", self.data.clone().into()),
            ("FORGETFUL_HOME", self.home.clone().into()),
        ]
    }

    /// Count from now on, only files whose names begin so, and let this fail.
    pub fn fail(&self, prefix: &str, fault: Fault) -> io::Result<()> {
        assert!(prefix.len() <= PREFIX_BYTES_MAX);
        self.heal()?;
        let mut name = [0; PREFIX_BYTES_MAX + 1];
        name[..prefix.len()].copy_from_slice(prefix.as_bytes());
        self.control.write_all_at(&name, PREFIX * 8)?;
        self.put(OPERATIONS, 0)?;
        self.put(HITS, 0)?;
        self.put(KINDS, fault.of as u64)?;
        self.put(FAIL_ERRNO, fault.failing as u64)?;
        self.put(FAIL_COUNT, fault.count)?;
        self.put(DIE, u64::from(fault.then_die))?;
        self.put(FAIL_AT, fault.at)
    }

    /// Nothing fails from now on. What was lost stays lost.
    pub fn heal(&self) -> io::Result<()> {
        self.put(FAIL_AT, 0)?;
        self.put(DIE, 0)
    }

    /// How many operations failed since the last [`ForgetfulDisk::fail`].
    pub fn hits(&self) -> io::Result<u64> {
        self.get(HITS)
    }

    /// How many operations were counted since then.
    pub fn operations(&self) -> io::Result<u64> {
        self.get(OPERATIONS)
    }

    /// How much was read of the databases so far.
    pub fn bytes_read(&self) -> io::Result<u64> {
        self.get(BYTES_READ)
    }

    /// The power fails: of the databases there is what was synced, under the names that were. Nobody
    /// may be using them.
    pub fn power_cut(&self) -> io::Result<()> {
        let left = self.kept_names()?;
        for name in self.databases()? {
            fs::remove_file(self.data.join(name))?;
        }
        for (name, inode) in left {
            let file = self.data.join(name);
            fs::copy(self.home.join("synced").join(inode), &file)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        }
        for folder in ["synced", "dirty", "held"] {
            fs::remove_dir_all(self.home.join(folder))?;
            fs::create_dir(self.home.join(folder))?;
        }
        self.keep_names()
    }

    fn kept_names(&self) -> io::Result<Vec<(String, String)>> {
        let names = fs::read_to_string(self.home.join("names"))?;
        let pair = |line: &str| line.split_once(' ').map(|(name, no)| (name.into(), no.into()));
        Ok(names.lines().filter_map(pair).collect())
    }

    fn keep_names(&self) -> io::Result<()> {
        let mut names = String::new();
        for name in self.databases()? {
            let inode = fs::metadata(self.data.join(&name))?.ino();
            names += &format!("{name} {inode}\n");
        }
        fs::write(self.home.join("names"), names)
    }

    fn databases(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.data)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.contains(".db") {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn put(&self, field: u64, value: u64) -> io::Result<()> {
        self.control.write_all_at(&value.to_ne_bytes(), field * 8)
    }

    fn get(&self, field: u64) -> io::Result<u64> {
        let mut value = [0; 8];
        self.control.read_exact_at(&mut value, field * 8)?;
        Ok(u64::from_ne_bytes(value))
    }
}

impl Drop for ForgetfulDisk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// The library, compiled if this source of it was not yet.
fn shim() -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    SOURCE.hash(&mut hasher);
    let folder = build_folder().join("forgetful-disk");
    let library = folder.join(format!("{:016x}.so", hasher.finish()));
    if library.exists() {
        return Ok(library);
    }
    fs::create_dir_all(&folder)?;
    // Several test processes may do this at once; each to its own files, and the last one wins.
    let mine = folder.join(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
    let (source, made) = (mine.with_extension("c"), mine.with_extension("so"));
    fs::write(&source, SOURCE)?;
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
        .args([&made, &source])
        .args(["-ldl", "-lpthread"])
        .output()
        .map_err(|error| io::Error::other(format!("cc could not be started: {error}")))?;
    let _ = fs::remove_file(&source);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("the forgetful disk does not compile: {said}")));
    }
    fs::rename(&made, &library)?;
    Ok(library)
}
