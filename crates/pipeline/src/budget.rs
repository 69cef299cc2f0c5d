//! The number of requests a server accepts on one connection, learned from its closes.

/// The number of requests a server accepts on one connection (nginx: `keepalive_requests`), learned from its closes.
/// A client that knows it stops at this number, so that no request has to be sent again.
///
/// Two consecutive closes after the same number of answers set the limit. The first close that contradicts it removes
/// the limit.
///
/// ```
/// use dunlin_pipeline::Budget;
///
/// let mut budget = Budget::default();
/// budget.handle_close(100, true);
/// assert_eq!(budget.limit(), None);
/// budget.handle_close(100, true);
/// assert_eq!(budget.limit(), Some(100));
/// budget.handle_outlived(100); // the hundredth answer came, and nothing was closed
/// assert_eq!(budget.limit(), None);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Answers on the previous connection.
    last: u64,
    limit: Option<u64>,
}

impl Budget {
    /// Records that the server closed a connection after `answered` complete answers. `in_use` says whether requests
    /// were outstanding or the last answer announced the close: a close of an idle connection says nothing about the
    /// limit.
    pub fn handle_close(&mut self, answered: u64, in_use: bool) {
        if answered == 0 || (!in_use && self.limit != Some(answered)) {
            return;
        }
        self.limit = (self.last == answered).then_some(answered);
        self.last = answered;
    }

    /// Records that a connection is still open after `answered` answers. Removes a limit that is not greater.
    pub fn handle_outlived(&mut self, answered: u64) {
        if self.limit.is_some_and(|limit| limit <= answered) {
            (self.limit, self.last) = (None, 0);
        }
    }

    /// Returns the number of requests the server accepts on one connection, if it is known.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closes_at_different_numbers_are_no_rule() {
        let mut budget = Budget::default();
        for answered in [7, 9, 7, 8, 31] {
            budget.handle_close(answered, true);
            assert_eq!(budget.limit(), None);
        }
    }

    #[test]
    fn an_idle_connection_that_is_closed_tells_nothing() {
        let mut budget = Budget::default();
        budget.handle_close(3, false);
        budget.handle_close(3, false);
        assert_eq!(budget.limit(), None);
    }

    #[test]
    fn a_close_elsewhere_ends_the_rule() {
        let mut budget = Budget::default();
        budget.handle_close(100, true);
        budget.handle_close(100, true);
        budget.handle_close(100, false);
        assert_eq!(budget.limit(), Some(100));
        budget.handle_close(12, true);
        assert_eq!(budget.limit(), None);
    }
}
