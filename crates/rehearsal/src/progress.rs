//! What the person at the terminal sees while a rehearsal runs. Where there is no terminal, nothing.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const BAR: &str = "{prefix:>16} [{bar:32}] {pos}/{len}\n                 {wide_msg}";
const SPINNER: &str = "{prefix:>16} {spinner}\n                 {wide_msg}";
const TICK: Duration = Duration::from_millis(125);

/// Two lines on stderr that change: what is being done, and how the sale stands.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Hides itself if stderr is not a terminal.
    pub fn on_stderr() -> Progress {
        Progress { bar: ProgressBar::new(0) }
    }

    pub fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden() }
    }

    /// A part of the work that has so many steps.
    pub(crate) fn begin(&self, what: &str, steps: usize) {
        self.change(what, BAR);
        self.bar.set_length(steps as u64);
        self.bar.set_position(0);
    }

    /// A part of the work that takes as long as it takes.
    pub(crate) fn wait(&self, what: &str) {
        self.change(what, SPINNER);
    }

    fn change(&self, what: &str, template: &str) {
        let style = ProgressStyle::with_template(template);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.set_prefix(what.to_owned());
        self.bar.set_message("");
        self.bar.enable_steady_tick(TICK);
    }

    pub(crate) fn one_more(&self) {
        self.bar.inc(1);
    }

    pub(crate) fn at(&self, steps: u64) {
        self.bar.set_position(steps);
    }

    pub(crate) fn say(&self, message: String) {
        self.bar.set_message(message);
    }

    /// Leave the terminal as it was.
    pub fn close(&self) {
        self.bar.finish_and_clear();
    }
}
