//! RESP: no cut changes what a value means, and what was read is written again.

use dunlin_wire::resp::{Limits, Scan, Scanner, Value, encode_value};

const LIMITS: Limits = Limits { depth_max: 6, elements_max: 64, value_bytes_max: 1024 };

/// A client reads values.
pub fn values(data: &[u8]) {
    let Some((settings, data)) = super::settings(data) else { return };
    let whole = ends(data, usize::MAX);
    let cut = ends(data, usize::from(settings) % 16 + 1);
    // What is wrong may be seen earlier in one piece than in many.
    assert_eq!(whole.0, cut.0);
    for (begin, end) in whole.0 {
        let value = Value::parse(&data[begin..end]).expect("it has been scanned");
        let mut written = Vec::new();
        encode_value(&mut written, &value);
        let again = Value::parse(&written).expect("what was written can be read");
        let mut twice = Vec::new();
        encode_value(&mut twice, &again);
        assert_eq!(written, twice);
    }
}

/// Where values within the limits stand in `data`, given in pieces, and whether something is wrong with it.
fn ends(data: &[u8], piece: usize) -> (Vec<(usize, usize)>, bool) {
    let mut scanner = Scanner::new(&LIMITS);
    let (mut begin, mut end, mut ends) = (0, 0, Vec::new());
    loop {
        match scanner.scan(&data[begin..end]) {
            Err(_) => return (ends, false),
            Ok(Scan::Value(length)) => {
                assert!((3..=LIMITS.value_bytes_max).contains(&length));
                ends.push((begin, begin + length));
                begin += length;
            }
            Ok(Scan::Drop(length) | Scan::Overlong { bytes: length, .. }) => begin += length,
            Ok(Scan::Incomplete) if end == data.len() => return (ends, true),
            Ok(Scan::Incomplete) => end = end.saturating_add(piece).min(data.len()),
        }
    }
}
