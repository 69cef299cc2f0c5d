//! `Retry-After` (RFC 9110 §10.2.3), in seconds or as a date, and HTTP dates (RFC 9110 §5.6.7).

use std::time::{Duration, UNIX_EPOCH};

/// Longest wait, a day.
const AFTER_S_MAX: u64 = 86_400;

/// Returns how long to wait, counted from `now_s` (seconds since 1970); at most a day.
pub fn parse(text: &str, now_s: u64) -> Option<Duration> {
    let text = text.trim();
    let seconds = match text.parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) => date_s(text)?.saturating_sub(now_s),
    };
    Some(Duration::from_secs(seconds.min(AFTER_S_MAX)))
}

/// Parses an HTTP date such as `Sun, 06 Nov 1994 08:49:37 GMT` into seconds since 1970.
pub fn date_s(text: &str) -> Option<u64> {
    let since = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_read_and_bounded() {
        assert_eq!(parse("120", 0), Some(Duration::from_secs(120)));
        assert_eq!(
            parse("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_770),
            Some(Duration::from_secs(7))
        );
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT", 800_000_000), Some(Duration::ZERO));
        assert_eq!(parse("99999999999", 0), Some(Duration::from_secs(86_400)));
        assert_eq!(parse("soon", 0), None);
        assert_eq!(parse("Sun, 06 Nov 1994 GMT", 0), None);
    }
}
