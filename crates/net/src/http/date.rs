//! The `Date` header (RFC 9110 §6.6.1), formatted once a second.

use std::time::SystemTime;

/// The current time in HTTP date format, at most one second old.
#[derive(Debug, Default)]
pub(crate) struct Date {
    text: String,
    made_at_ms: Option<u64>,
}

impl Date {
    /// Returns the date. `now_ms` is the loop's clock; the system clock is read once a second.
    pub(crate) fn get(&mut self, now_ms: u64) -> &str {
        if self.made_at_ms.is_none_or(|at| now_ms >= at + 1000) {
            self.made_at_ms = Some(now_ms);
            self.text = httpdate::fmt_http_date(SystemTime::now());
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_kept_for_a_second() {
        let mut date = Date::default();
        let first = date.get(10).as_ptr();
        assert_eq!(date.get(1009).as_ptr(), first);
        assert_eq!(date.made_at_ms, Some(10));
        date.get(1010);
        assert_eq!(date.made_at_ms, Some(1010));
    }
}
