//! What is due, to the last page.
//!
//! Whoever works through activities asks for them by what they are ([`ActivityFilter`]) and goes from
//! page to page until there are none left, so that nothing on sale is forgotten because a thousand
//! others were planned after it, and no run holds more than a page of them in memory.

use ledger::{ActivityFilter, ActivityKey, Ledger, LedgerError};
use sale::{Activity, ActivityState};

/// Activities of one page, each with its items.
pub(crate) const PAGE_ACTIVITIES: usize = 100;

/// Those that are published and not ended, whether they sell at this moment or not.
pub(crate) fn published() -> [ActivityFilter; 2] {
    [ActivityState::Published, ActivityState::Paused].map(ActivityFilter::all)
}

/// All activities of some filters, page by page.
pub(crate) struct Pages<'l> {
    ledger: &'l dyn Ledger,
    /// Those that are not read to their end; the last one comes first.
    filters: Vec<ActivityFilter>,
    after: Option<ActivityKey>,
}

impl<'l> Pages<'l> {
    /// Without the long words of items.
    pub(crate) fn briefly(
        ledger: &'l dyn Ledger,
        filters: impl IntoIterator<Item = ActivityFilter>,
    ) -> Pages<'l> {
        Pages { ledger, filters: filters.into_iter().collect(), after: None }
    }

    /// `None` when all have been seen.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Activity>>, LedgerError> {
        while let Some(filter) = self.filters.last().copied() {
            let page = self.ledger.activities_briefly(&filter, self.after, PAGE_ACTIVITIES).await?;
            self.after = page.last().map(|last| filter.order.key_of(last));
            if page.len() < PAGE_ACTIVITIES {
                self.filters.pop();
                self.after = None;
            }
            if !page.is_empty() {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }
}
