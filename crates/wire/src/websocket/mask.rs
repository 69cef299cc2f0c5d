//! Masking (RFC 6455 §5.3).

/// The masking key of a frame.
pub type Mask = [u8; 4];

/// Masks or unmasks `payload` in place; the operation is its own inverse.
///
/// If a payload arrives in pieces, rotate the key by the length of each piece:
/// `mask.rotate_left(length % 4)`.
#[inline]
pub fn apply_mask(payload: &mut [u8], mask: Mask) {
    if mask == [0; 4] {
        return;
    }
    let word = u64::from(u32::from_ne_bytes(mask));
    let word = word | word << 32;
    // Fixed-size blocks compile to vector instructions without an alignment prologue.
    let (blocks, rest) = payload.as_chunks_mut::<32>();
    for block in blocks {
        for lane in block.as_chunks_mut::<8>().0 {
            *lane = (u64::from_ne_bytes(*lane) ^ word).to_ne_bytes();
        }
    }
    let (lanes, rest) = rest.as_chunks_mut::<8>();
    for lane in lanes {
        *lane = (u64::from_ne_bytes(*lane) ^ word).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(word.to_ne_bytes()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_offset_agrees_with_the_definition() {
        let mask = [0x37, 0xfa, 0x21, 0x3d];
        let original: Vec<u8> = (0..200u8).collect();
        for begin in 0..9 {
            for end in begin..original.len() {
                let mut payload = original.clone();
                apply_mask(&mut payload[begin..end], mask);
                for (index, (masked, byte)) in
                    payload[begin..end].iter().zip(&original[begin..]).enumerate()
                {
                    assert_eq!(*masked, byte ^ mask[index % 4]);
                }
                assert_eq!(payload[end..], original[end..]);
            }
        }
    }
}
