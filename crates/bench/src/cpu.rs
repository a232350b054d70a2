//! What a process has worked so far.

use std::fs;

use crate::Failure;

/// Microseconds on a processor, of all its threads. The kernel counts them in nanoseconds there;
/// the better known `stat` only knows hundredths of a second.
pub(crate) fn cpu_us(pid: u32) -> Result<f64, Failure> {
    let mut ns = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between listing and reading it.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        ns += text.split_whitespace().next().unwrap_or_default().parse::<u64>().unwrap_or(0);
    }
    Ok(ns as f64 / 1_000.0)
}
