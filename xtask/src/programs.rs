//! Programs that tests need beside Rust, from the distribution's packages.

use std::process::Command;

/// Make sure each program can be run; install its Debian package if it is missing and we may.
pub(crate) fn ensure(programs: &[(&str, &str)]) -> Result<(), String> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let by_hand = format!("apt-get update && apt-get install {}", missing.join(" "));
    if !is_there("apt-get") || !is_root() {
        return Err(format!("programs are missing; as root: {by_hand}"));
    }
    println!("installing {}", missing.join(" "));
    apt_get(&["update", "-q"])?;
    let mut install = vec!["install", "-q", "-y", "--no-install-recommends"];
    install.extend(&missing);
    apt_get(&install)?;
    match programs.iter().find(|(program, _)| !is_there(program)) {
        None => Ok(()),
        Some((program, _)) => Err(format!("{program} is still missing after: {by_hand}")),
    }
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
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
