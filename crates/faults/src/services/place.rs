//! Where a service lives: a private directory and a port nobody else takes.
//!
//! Both are held by file locks, which the kernel releases however a process ends. So a directory
//! whose lock can be taken has no owner any more, and the next process to come sweeps it away.

use std::{
    fs::{self, File, TryLockError},
    hash::{BuildHasher, RandomState},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// Ports are taken from here. Linux gives outgoing connections ports from 32768 on: above that, a
/// client could sit on the address of a service that is down, or even connect to itself.
const PORTS: std::ops::Range<u16> = 10_000..32_000;
const PORT_TRIES_MAX: usize = 1_000;

/// The folder of all services, in the build folder of this workspace.
pub(super) fn services() -> PathBuf {
    target().join("services")
}

/// Cargo marks its build folder; a test binary lies somewhere inside it.
pub(crate) fn target() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    exe.ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file())
        .map(Path::to_path_buf)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"))
}

pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(path)
}

/// A private directory, removed when dropped.
#[derive(Debug)]
pub(crate) struct ServiceFolder {
    path: PathBuf,
}

impl ServiceFolder {
    pub(crate) fn new(name: &str) -> io::Result<ServiceFolder> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = process_folder()?.join(format!("{n}-{name}"));
        fs::create_dir(&path)?;
        Ok(ServiceFolder { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The engine's own files.
    pub(super) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// Everything the engine printed, over all its starts.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join("log")
    }
}

impl Drop for ServiceFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The folder of all services of this process.
fn process_folder() -> io::Result<PathBuf> {
    // The lock must live as long as the process.
    static FOLDER: Mutex<Option<(PathBuf, File)>> = Mutex::new(None);
    let mut known = FOLDER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some((path, _)) = &*known {
        return Ok(path.clone());
    }
    let services = services();
    fs::create_dir_all(&services)?;
    // Nobody sweeps while a new folder is there without its lock.
    let sweeping = open_lock(&services.join("lock"))?;
    sweeping.lock()?;
    sweep(&services)?;
    let path = services.join(format!("run-{}", std::process::id()));
    fs::create_dir(&path)?;
    let lock = open_lock(&path.join("lock"))?;
    lock.lock()?;
    *known = Some((path.clone(), lock));
    Ok(path)
}

fn sweep(services: &Path) -> io::Result<()> {
    for entry in fs::read_dir(services)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("run-") {
            continue;
        }
        let path = entry.path();
        let owner_is_gone = match open_lock(&path.join("lock")) {
            Ok(lock) => lock.try_lock().is_ok(),
            Err(_) => false,
        };
        if owner_is_gone {
            // An engine that is just being killed may still write; then the next one sweeps it.
            let _ = fs::remove_dir_all(&path);
        }
    }
    Ok(())
}

/// A loopback port of our own until dropped, whether or not anything listens on it.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    pub(crate) fn reserve() -> io::Result<Port> {
        Port::first_of(Port::take)
    }

    /// Two ports, for a program that opens a second one so far below the one it was told.
    pub(super) fn reserve_with_one_below(far: u16) -> io::Result<(Port, Port)> {
        Port::first_of(|number| Ok(Port::take(number)?.zip(Port::take(number - far)?)))
    }

    fn first_of<T>(mut take: impl FnMut(u16) -> io::Result<Option<T>>) -> io::Result<T> {
        let random = RandomState::new();
        for n in 0..PORT_TRIES_MAX {
            let span = u64::from(PORTS.end - PORTS.start);
            let number = PORTS.start + (random.hash_one(n) % span) as u16;
            if let Some(taken) = take(number)? {
                return Ok(taken);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free loopback port was found"))
    }

    /// This one, unless somebody has it.
    fn take(number: u16) -> io::Result<Option<Port>> {
        let folder = services().join("ports");
        fs::create_dir_all(&folder)?;
        let lock = open_lock(&folder.join(number.to_string()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok();
        Ok(free.then_some(Port { number, _lock: lock }))
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}
