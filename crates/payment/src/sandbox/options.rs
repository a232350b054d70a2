//! The settings of the sandbox.

use std::fmt;

use sale::{Invalid, Millis};
use serde::Deserialize;

/// A shorter secret could be guessed.
const SECRET_BYTES_MIN: usize = 16;
const MERCHANT_CHARS_MAX: usize = 64;

#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxOptions {
    /// Who we are at the sandbox. Notices for others are refused.
    pub merchant: String,
    /// Signs notices, known to both companies, and the addresses of cashiers.
    pub notify_secret: String,
    /// Comes before `/cashier/{txn}`. Empty: the page is on our own address.
    pub base_url: String,
    /// How often a notice is delivered before it is given up.
    pub notice_tries_max: u32,
    /// The wait after the first delivery that was not accepted. It doubles with each.
    pub notice_retry_ms_min: Millis,
    /// The longest wait between deliveries.
    pub notice_retry_ms_max: Millis,
    /// How long the other side may take to accept a notice.
    pub notice_answer_ms_max: u64,
    /// Notices on their way at the same time.
    pub notices_in_flight_max: usize,
    /// The longest time without looking for due notices.
    pub notice_poll_ms_max: u64,
}

impl Default for SandboxOptions {
    fn default() -> Self {
        SandboxOptions {
            merchant: "seckill".into(),
            // No default: a secret that everyone knows is none.
            notify_secret: String::new(),
            base_url: String::new(),
            notice_tries_max: 20,
            notice_retry_ms_min: 1_000,
            notice_retry_ms_max: 60_000,
            notice_answer_ms_max: 5_000,
            notices_in_flight_max: 32,
            notice_poll_ms_max: 1_000,
        }
    }
}

impl fmt::Debug for SandboxOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxOptions")
            .field("merchant", &self.merchant)
            .field("notify_secret", &"(redacted)")
            .field("base_url", &self.base_url)
            .field("notice_tries_max", &self.notice_tries_max)
            .field("notice_retry_ms_min", &self.notice_retry_ms_min)
            .field("notice_retry_ms_max", &self.notice_retry_ms_max)
            .field("notice_answer_ms_max", &self.notice_answer_ms_max)
            .field("notices_in_flight_max", &self.notices_in_flight_max)
            .field("notice_poll_ms_max", &self.notice_poll_ms_max)
            .finish()
    }
}

impl SandboxOptions {
    pub fn validate(&self) -> Result<(), Invalid> {
        let refuse = |field: &str, problem: &str| Err(Invalid::new(field, problem));
        if !(1..=MERCHANT_CHARS_MAX).contains(&self.merchant.chars().count()) {
            return refuse("merchant", "must be 1 to 64 characters");
        }
        if self.notify_secret.len() < SECRET_BYTES_MIN {
            return refuse("notify_secret", "must be at least 16 bytes");
        }
        if self.notice_tries_max == 0 {
            return refuse("notice_tries_max", "must be at least 1");
        }
        if !(1..=self.notice_retry_ms_max).contains(&self.notice_retry_ms_min) {
            return refuse("notice_retry_ms_min", "must be from 1 to notice_retry_ms_max");
        }
        if self.notice_answer_ms_max == 0 {
            return refuse("notice_answer_ms_max", "must be at least 1");
        }
        if !(1..=1_000).contains(&self.notices_in_flight_max) {
            return refuse("notices_in_flight_max", "must be from 1 to 1000");
        }
        if self.notice_poll_ms_max == 0 {
            return refuse("notice_poll_ms_max", "must be at least 1");
        }
        Ok(())
    }

    /// The wait after `tries` deliveries that were not accepted; `None` when that is enough.
    pub(super) fn retry_in_ms(&self, tries: u32) -> Option<Millis> {
        assert!(tries > 0, "a notice never delivered is due at once");
        if tries >= self.notice_tries_max {
            return None;
        }
        let doubled = 2_i64.saturating_pow(tries - 1).saturating_mul(self.notice_retry_ms_min);
        Some(doubled.min(self.notice_retry_ms_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_and_end() {
        let options = SandboxOptions { notice_tries_max: 9, ..Default::default() };
        let waits: Vec<_> = (1..=9).map(|tries| options.retry_in_ms(tries)).collect();
        let seconds = [1, 2, 4, 8, 16, 32, 60, 60].map(|s| Some(s * 1_000));
        assert_eq!(waits[..8], seconds);
        assert_eq!(waits[8], None);
        let patient = SandboxOptions { notice_tries_max: u32::MAX, ..options };
        assert_eq!(patient.retry_in_ms(1_000_000), Some(60_000));
    }

    #[test]
    fn the_secret_is_required_and_never_shown() {
        let options = SandboxOptions::default();
        assert_eq!(options.validate().unwrap_err().field, "notify_secret");
        let options = SandboxOptions { notify_secret: "s3cret".repeat(3), ..options };
        options.validate().unwrap();
        assert!(!format!("{options:?}").contains("s3cret"));
    }
}
