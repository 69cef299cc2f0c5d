//! Formatting of figures, and their median.

use std::fmt::Write as _;

/// Returns the median, or `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Formats a whole number with grouped thousands.
pub fn group(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    if value < 0.0 && digits != "0" {
        out.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        // Writing to a String cannot fail.
        let _ = write!(out, "{digit}");
    }
    out
}

/// Formats a ratio as a percentage.
pub fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!(group(0.4), "0");
        assert_eq!(group(999.6), "1,000");
        assert_eq!(group(-1_234_567.0), "-1,234,567");
        assert_eq!(group(-0.1), "0");
    }
}
