//! `Retry-After` (RFC 9110 §10.2.3): seconds, or a date. And dates (§5.6.7).

use std::time::Duration;

/// Longest wait, a day.
const AFTER_S_MAX: u64 = 86_400;

/// How long to wait from `now_s` (seconds since 1970) on; at most a day.
pub fn parse(text: &str, now_s: u64) -> Option<Duration> {
    let text = text.trim();
    let seconds = match text.parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) => date_s(text)?.saturating_sub(now_s),
    };
    Some(Duration::from_secs(seconds.min(AFTER_S_MAX)))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` in seconds since 1970; the two obsolete forms are not sent by anybody.
pub fn date_s(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, text) = text.strip_suffix(" GMT")?.split_once(", ")?;
    let mut parts = text.split(' ');
    let day: i64 = parts.next()?.parse().ok()?;
    let month = parts.next()?;
    let month = MONTHS.iter().position(|known| *known == month)? as i64 + 1;
    let year: i64 = parts.next()?.parse().ok()?;
    let mut clock = parts.next()?.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if !(1970..=9999).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    // Days from the civil calendar, years beginning in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    u64::try_from(days * 86_400 + hour * 3_600 + minute * 60 + second).ok()
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
