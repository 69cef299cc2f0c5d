//! PROXY headers: no cut changes what they say, and what is refused stays refused.

use dunlin_wire::proxy::{Decoded, HEADER_BYTES_MAX, decode};

/// A proxy, or somebody who would be one, begins a connection.
pub fn header(data: &[u8]) {
    let whole = decode(data);
    if let Ok(Decoded::Header { length, .. }) = whole {
        assert!(length > 0 && length <= data.len().min(HEADER_BYTES_MAX));
        assert_eq!(decode(&data[..length]), whole, "what follows is not looked at");
    }
    for cut in 0..data.len().min(HEADER_BYTES_MAX) {
        let part = decode(&data[..cut]);
        assert!(part == Ok(Decoded::NeedMore) || part == whole, "{part:?} and then {whole:?}");
    }
    if data.len() >= HEADER_BYTES_MAX {
        assert_ne!(whole, Ok(Decoded::NeedMore));
    }
}
