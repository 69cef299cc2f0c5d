//! Files that settings name.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use dunlin_wire::text::trim_byte_order_mark;
use rustix::fs::OFlags;

/// The largest file of a chain, a key or a login.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a regular file named by a caller. A pipe would block the thread, and a device would never end.
///
/// # Errors
/// It cannot be read, is no regular file, is larger than 1 MiB, or is no UTF-8.
pub fn read_file(path: &str) -> io::Result<String> {
    let mut options = OpenOptions::new();
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let file = options.read(true).custom_flags(nonblocking).open(path)?;
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()));
    if !file.metadata()?.is_file() {
        return refused("it is no regular file");
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return refused("it is larger than 1 MiB");
    }
    Ok(trim_byte_order_mark(&text).to_owned())
}
