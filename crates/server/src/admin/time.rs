//! Formatting of points in time.

use jiff::Timestamp;

/// Formats a Unix time in milliseconds as RFC 3339, in UTC.
pub(super) fn rfc3339(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    format!("{:.3}", time.unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn days_of_the_calendar_and_times_of_the_day() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_767_225_599_001), "2025-12-31T23:59:59.001Z");
    }
}
