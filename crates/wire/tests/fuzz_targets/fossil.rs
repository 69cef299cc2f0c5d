//! Deltas: what is encoded comes back, and what is no delta is refused in bounded memory.

use dunlin_wire::fossil::{DeltaEncoder, apply};

/// Any source and target; text stays text.
pub fn encode(data: &[u8]) {
    let Some((settings, data)) = super::settings(data) else { return };
    let (source, target) = data.split_at(data.len() * usize::from(settings) / 256);
    let mut delta = Vec::new();
    let mut encoder = DeltaEncoder::default();
    for _ in 0..2 {
        delta.clear();
        encoder.encode(source, target, &mut delta);
        assert_eq!(apply(source, &delta, target.len()).as_deref(), Ok(target));
    }
    assert!(std::str::from_utf8(target).is_err() || std::str::from_utf8(&delta).is_ok());
}

/// Any delta.
pub fn decode(data: &[u8]) {
    let Some((settings, data)) = super::settings(data) else { return };
    let (source, delta) = data.split_at(data.len() * usize::from(settings) / 256);
    if let Ok(target) = apply(source, delta, 4096) {
        assert!(target.len() <= 4096);
    }
}
