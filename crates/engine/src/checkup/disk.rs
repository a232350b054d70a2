//! Is there room for a sale on this disk?

use std::path::Path;

use super::CheckResult;

/// Journal, ledger and their write-ahead logs of a large sale fit into this.
const FREE_BYTES_MIN: u64 = 1 << 30;

pub fn room(directory: &Path) -> CheckResult {
    match rustix::fs::statvfs(directory) {
        Ok(disk) => judge(disk.f_bavail.saturating_mul(disk.f_frsize)),
        Err(error) => {
            CheckResult::Warn(format!("the free space of the disk cannot be read: {error}"))
        }
    }
}

fn judge(free_bytes: u64) -> CheckResult {
    let text = format!("{:.1} GiB of the disk are free", free_bytes as f64 / (1_u64 << 30) as f64);
    if free_bytes < FREE_BYTES_MIN {
        return CheckResult::Warn(format!("{text}: on a full disk nobody is admitted"));
    }
    CheckResult::Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_room_is_said() {
        assert!(matches!(judge(FREE_BYTES_MIN), CheckResult::Ok(_)));
        let CheckResult::Warn(text) = judge(FREE_BYTES_MIN - 1) else { panic!("it is not much") };
        assert!(text.starts_with("1.0 GiB"), "{text}");
        assert!(matches!(room(Path::new("/")), CheckResult::Ok(text) | CheckResult::Warn(text)
            if text.contains("GiB")));
        assert!(matches!(room(Path::new("/no such place")), CheckResult::Warn(_)));
    }
}
