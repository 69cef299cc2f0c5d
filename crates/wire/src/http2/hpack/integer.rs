//! Integers with a prefix and a variable number of bytes (§5.1).

use super::Error;

/// Appends `value` with a prefix of `prefix_bits`. The higher bits of the first byte are `flags`.
#[inline]
pub(super) fn encode(out: &mut Vec<u8>, flags: u8, prefix_bits: u32, value: usize) {
    let max = (1 << prefix_bits) - 1;
    if value < max {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | max as u8);
    let mut rest = value - max;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Reads an integer from the front of `bytes`, and advances it.
#[inline]
pub(super) fn decode(bytes: &mut &[u8], prefix_bits: u32) -> Result<usize, Error> {
    let (&first, mut rest) = bytes.split_first().ok_or(Error::Integer)?;
    let max = (1u64 << prefix_bits) - 1;
    let mut value = u64::from(first) & max;
    if value == max {
        let mut shift = 0;
        loop {
            let (&byte, behind) = rest.split_first().ok_or(Error::Integer)?;
            rest = behind;
            // Five bytes hold 35 bits. Without this limit, zero bytes could continue for ever.
            if shift > 28 {
                return Err(Error::Integer);
            }
            value += u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *bytes = rest;
    match u32::try_from(value) {
        Ok(value) => Ok(value as usize),
        Err(_) => Err(Error::Integer),
    }
}
