//! The `Date` header (RFC 9110 §6.6.1), made once a second.

use std::time::{SystemTime, UNIX_EPOCH};

/// The present time as HTTP writes it, as fresh as a second ago.
#[derive(Debug, Default)]
pub(crate) struct Date {
    text: String,
    made_at_ms: Option<u64>,
}

impl Date {
    /// `now_ms` is the loop's clock; the system's is asked once a second.
    pub(crate) fn get(&mut self, now_ms: u64) -> &str {
        if self.made_at_ms.is_none_or(|at| now_ms >= at + 1000) {
            self.made_at_ms = Some(now_ms);
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.text = imf_fixdate(since.as_secs());
        }
        &self.text
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, of seconds since 1970.
fn imf_fixdate(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let weekday = DAYS[(days % 7) as usize];
    // Years begin in March here, so that the leap day is a year's last; eras are 400 years from 1 March 0.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    format!(
        "{weekday}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        MONTHS[month as usize],
        second / 3600,
        second / 60 % 60,
        second % 60,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_known_by_heart() {
        for (seconds, date) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_767_225_599, "Wed, 31 Dec 2025 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(imf_fixdate(seconds), date);
        }
    }

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
