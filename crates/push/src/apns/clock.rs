//! Detects whether the clock of this machine is the reason why Apple refuses a provider token.
//!
//! Apple accepts a token for an hour after it was issued, by its own clock. Its responses have no time, but a proxy
//! may add `date` (RFC 9110 §6.6.1), which gives the difference. Without it, a young token that is called expired
//! indicates a wrong clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_wire::http1::retry_after::date_s;

use super::Reason;

/// Smaller differences are ignored, because they have no effect.
const OFF_MIN: Duration = Duration::from_secs(120);
const TOKEN_AGE_MAX: Duration = Duration::from_secs(3_600);

/// Estimates the error of our clock from a refusal. `age` is the token's age by our clock.
pub(super) fn clock_error(
    reason: &Reason,
    date: Option<&str>,
    age: Option<Duration>,
    now: SystemTime,
) -> Option<String> {
    if !matches!(reason, Reason::ExpiredProviderToken | Reason::InvalidProviderToken) {
        return None;
    }
    if let Some(theirs) = date.and_then(date_s).map(|s| UNIX_EPOCH + Duration::from_secs(s)) {
        let (off, side) = match theirs.duration_since(now) {
            Ok(behind) => (behind, "behind"),
            Err(ahead) => (ahead.duration(), "ahead"),
        };
        return (off >= OFF_MIN).then(|| {
            let off = text(off);
            format!("the clock of this machine is off by {off}: it is {side}; set it, by NTP for example")
        });
    }
    let young = age.filter(|age| *age + OFF_MIN < TOKEN_AGE_MAX)?;
    (*reason == Reason::ExpiredProviderToken).then(|| {
        format!(
            "the clock of this machine is off by {} or more: Apple calls a token expired that is {} old by it; set \
             it, by NTP for example",
            text(TOKEN_AGE_MAX - young),
            text(young)
        )
    })
}

/// Formats a duration, rounded to a minute, which is the precision of the estimate.
fn text(time: Duration) -> String {
    let minutes = (time.as_secs() + 30) / 60;
    match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes} min"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn noon() -> SystemTime {
        // Sun, 06 Nov 1994 08:49:37 GMT.
        UNIX_EPOCH + Duration::from_secs(784_111_777)
    }

    const DATE: Option<&str> = Some("Sun, 06 Nov 1994 08:49:37 GMT");

    #[test]
    fn a_date_says_by_how_much_and_on_which_side() {
        let found = |reason, now| clock_error(&reason, DATE, Some(MINUTE), now).unwrap_or_default();
        let ahead = found(Reason::InvalidProviderToken, noon() + 120 * MINUTE);
        assert!(ahead.contains("off by 2 h 0 min: it is ahead"), "{ahead}");
        let behind = found(Reason::ExpiredProviderToken, noon() - 125 * MINUTE);
        assert!(behind.contains("off by 2 h 5 min: it is behind"), "{behind}");
        assert_eq!(found(Reason::InvalidProviderToken, noon() + MINUTE), "", "it is right");
        assert_eq!(found(Reason::BadCertificate, noon() + 120 * MINUTE), "", "no matter of time");
    }

    #[test]
    fn without_a_date_a_young_token_that_is_called_expired_says_how_much_at_least() {
        let found = |reason, age| clock_error(&reason, None, Some(age), noon());
        let least = found(Reason::ExpiredProviderToken, 5 * MINUTE).unwrap_or_default();
        assert!(least.contains("off by 55 min or more"), "{least}");
        assert!(least.contains("5 min old by it"), "{least}");
        assert_eq!(found(Reason::ExpiredProviderToken, 60 * MINUTE), None, "it is old");
        assert_eq!(found(Reason::InvalidProviderToken, 5 * MINUTE), None, "the key, more likely");
    }
}
