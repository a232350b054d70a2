//! Programs that tests need beside Rust, from the distribution's packages.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// A program, and the Debian package it is in.
pub(crate) type Needed = (&'static str, &'static str);

pub(crate) const BROWSER: &[Needed] = &[
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("node", "nodejs"),
    ("npm", "npm"),
    // Without one, Chinese is shown as boxes, and measured as such.
    ("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc", "fonts-noto-cjk"),
];

/// What the cluster profile runs on. Of MariaDB only the programs: the package `mariadb-server`
/// around them would set up a system service that nobody here wants.
pub(crate) const ENGINES: &[Needed] = &[
    ("redis-server", "redis-server"),
    ("mariadbd", "mariadb-server-core"),
    ("mariadb", "mariadb-client-core"),
    // What operators make backups with.
    ("mariadb-dump", "mariadb-client"),
];

/// What reads the files in `deploy/`, as a machine that is deployed to would.
pub(crate) const DEPLOYMENT: &[Needed] = &[
    ("nginx", "nginx"),
    ("curl", "curl"),
    ("openssl", "openssl"),
    ("keepalived", "keepalived"),
    // The guide for a shop's engineer is typed with it.
    ("jq", "jq"),
    ("systemd-analyze", "systemd"),
    ("promtool", "prometheus"),
    ("/usr/lib/python3/dist-packages/yaml/__init__.py", "python3-yaml"),
];

/// Debian asks this program before it starts or restarts a service of a package.
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// "Forbidden", in its language.
const NO_SERVICES: &str =
    "#!/bin/sh\n# written by cargo xtask for the time of one installation\nexit 101\n";
/// Servers are often outside the PATH of an ordinary user.
const FOLDERS_OF_SERVERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/sbin"];

/// Make sure each program can be run; install its Debian package if it is missing and we may.
pub(crate) fn ensure(programs: &[Needed]) -> Result<(), String> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    install(&missing)?;
    match programs.iter().find(|(program, _)| !is_there(program)) {
        None => Ok(()),
        Some((program, package)) => Err(format!("{program} is missing, with {package} installed")),
    }
}

/// Install these packages if we may, or say how.
pub(crate) fn install(missing: &[&str]) -> Result<(), String> {
    let by_hand = format!("apt-get update && apt-get install {}", missing.join(" "));
    if !is_there("apt-get") || !is_root() {
        return Err(format!("programs are missing; as root: {by_hand}"));
    }
    println!("installing {}", missing.join(" "));
    apt_get(&["update", "-q"])?;
    let mut install = vec!["install", "-q", "-y", "--no-install-recommends"];
    install.extend(missing);
    without_services(Path::new(POLICY), || apt_get(&install))
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(FOLDERS_OF_SERVERS.map(PathBuf::from))
        .any(|folder| folder.join(program).is_file())
}

/// Packages of servers start them when they are installed; tests start their own. A policy that
/// the machine has already is left alone: it is the owner's word.
fn without_services(
    policy: &Path,
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    if policy.exists() {
        return install();
    }
    let forbid = || -> io::Result<()> {
        fs::write(policy, NO_SERVICES)?;
        fs::set_permissions(policy, fs::Permissions::from_mode(0o755))
    };
    forbid().map_err(|e| format!("{} could not be written: {e}", policy.display()))?;
    let installed = install();
    let removed = fs::remove_file(policy);
    installed.and(removed.map_err(|e| format!("{} could not be removed: {e}", policy.display())))
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn apt_get(args: &[&str]) -> Result<(), String> {
    let status = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .map_err(|e| format!("apt-get could not be started: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("apt-get {} failed", args.join(" "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_forbidden_during_an_installation_only_and_a_policy_of_the_owner_stays() {
        let policy = std::env::temp_dir().join(format!("policy-rc.d-{}", std::process::id()));
        let failed = without_services(&policy, || {
            let asked = Command::new(&policy).args(["redis-server", "start"]).status().unwrap();
            assert_eq!(asked.code(), Some(101));
            Err("no network".into())
        });
        assert_eq!(failed, Err("no network".into()));
        assert!(!policy.exists());

        fs::write(&policy, "the owner's").unwrap();
        without_services(&policy, || Ok(())).unwrap();
        assert_eq!(fs::read_to_string(&policy).unwrap(), "the owner's");
        fs::remove_file(&policy).unwrap();
    }

    #[test]
    fn a_program_may_be_named_by_its_full_path() {
        assert!(is_there("sh") && is_there("/bin/sh"));
        assert!(!is_there("/bin/no-such-program") && !is_there("no-such-program"));
    }
}
