//! Durations as Go writes them.

/// Reads `1h30m`, `300ms`, `0.5s` as milliseconds.
pub(crate) fn milliseconds(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut ms = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(digits);
        let unit = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let scale = match unit {
            "ns" => 1e-6,
            "us" | "µs" => 1e-3,
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 6e4,
            "h" => 3.6e6,
            "d" => 8.64e7,
            _ => return None,
        };
        ms += number.parse::<f64>().ok()? * scale;
        rest = behind;
    }
    // A cast saturates, as intended.
    (!text.is_empty()).then_some(ms as u64)
}
