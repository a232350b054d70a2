//! Lists are given in pages; no request can ask for everything at once.

use crate::problem::Problem;

pub(super) const ROWS_DEFAULT: u32 = 50;
pub(super) const ROWS_MAX: u32 = 500;

/// How many rows one answer holds.
pub(super) fn rows(limit: Option<u32>) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(ROWS_DEFAULT);
    if !(1..=ROWS_MAX).contains(&limit) {
        return Err(Problem::invalid("limit", format_args!("must be from 1 to {ROWS_MAX}")));
    }
    Ok(limit as usize)
}

/// Where the next page begins: after the last row of a full page.
pub(super) fn next<R, N>(page: &[R], rows: usize, mark: impl Fn(&R) -> N) -> Option<N> {
    if page.len() < rows { None } else { page.last().map(mark) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_a_size_and_an_end() {
        assert_eq!(rows(None).unwrap(), ROWS_DEFAULT as usize);
        assert!(rows(Some(0)).is_err() && rows(Some(ROWS_MAX + 1)).is_err());
        assert_eq!(next(&[3, 2], 2, |n| *n), Some(2));
        assert_eq!(next(&[3], 2, |n| *n), None);
        assert_eq!(next(&[], 0, |n: &i32| *n), None);
    }
}
