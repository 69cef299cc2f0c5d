//! The Huffman code of header strings (§5.2, appendix B).
//!
//! The code is canonical: among codes of one length, lower symbols have lower codes. The lengths
//! thus define it, and the tables are computed from them at compile time.

use super::Error;

/// Length in bits of the code of each octet, and of the end of string (EOS) last.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5,
    6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23,
    23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22,
    22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26,
    27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25,
    25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const END: usize = 256;

static CODES: [(u32, u8); 257] = codes();
static STEPS: [[Step; 16]; 256] = steps();

const fn codes() -> [(u32, u8); 257] {
    let mut codes = [(0, 0); 257];
    let mut code = 0;
    let mut length = 5;
    while length <= 30 {
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] == length {
                codes[symbol] = (code, length);
                code += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        length += 1;
    }
    codes
}

/// Transition by four bits from an inner node of the code tree.
#[derive(Clone, Copy)]
struct Step {
    node: u8,
    /// The octet completed by the transition, if [`EMITS`]; at most one, as the shortest code has
    /// five bits.
    octet: u8,
    flags: u8,
}

const EMITS: u8 = 1;
/// The string may end here: the bits of an incomplete code are valid padding, less than a byte of
/// ones.
const ENDS: u8 = 2;
/// The transition contains EOS, which is an error.
const FAILS: u8 = 4;

const fn steps() -> [[Step; 16]; 256] {
    // Children of each inner node: an inner node below 0x8000, a symbol above, 0 if none.
    let mut children = [[0u16; 2]; 256];
    let mut padding = [false; 256];
    padding[0] = true;
    let codes = codes();
    let mut nodes = 1;
    let mut symbol = 0;
    while symbol < 257 {
        let (code, length) = codes[symbol];
        let mut node = 0;
        let mut bit = length;
        let mut ones = true;
        while bit > 0 {
            bit -= 1;
            let side = (code >> bit & 1) as usize;
            ones = ones && side == 1;
            if bit == 0 {
                children[node][side] = 0x8000 | symbol as u16;
            } else {
                if children[node][side] == 0 {
                    children[node][side] = nodes;
                    padding[nodes as usize] = ones && length - bit < 8;
                    nodes += 1;
                }
                node = children[node][side] as usize;
            }
        }
        symbol += 1;
    }
    let mut steps = [[Step { node: 0, octet: 0, flags: 0 }; 16]; 256];
    let mut from = 0;
    while from < 256 {
        let mut bits = 0;
        while bits < 16 {
            let mut step = Step { node: 0, octet: 0, flags: 0 };
            let mut node = from;
            let mut bit = 4;
            while bit > 0 {
                bit -= 1;
                let child = children[node][bits >> bit & 1];
                if child & 0x8000 == 0 {
                    node = child as usize;
                } else if child == 0x8000 | END as u16 {
                    step.flags |= FAILS;
                    node = 0;
                } else {
                    step.octet = child as u8;
                    step.flags |= EMITS;
                    node = 0;
                }
            }
            step.node = node as u8;
            if padding[node] {
                step.flags |= ENDS;
            }
            steps[from][bits] = step;
            bits += 1;
        }
        from += 1;
    }
    steps
}

/// Returns the number of bytes that [`encode`] would append.
#[inline]
pub(super) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&octet| usize::from(CODES[usize::from(octet)].1)).sum();
    bits.div_ceil(8)
}

/// Appends the Huffman code of `text`.
#[inline]
pub fn encode(out: &mut Vec<u8>, text: &[u8]) {
    let (mut pending, mut bits) = (0u64, 0u32);
    for &octet in text {
        let (code, length) = CODES[usize::from(octet)];
        pending = pending << length | u64::from(code);
        bits += u32::from(length);
        if bits >= 32 {
            bits -= 32;
            out.extend_from_slice(&((pending >> bits) as u32).to_be_bytes());
        }
    }
    while bits >= 8 {
        bits -= 8;
        out.push((pending >> bits) as u8);
    }
    if bits > 0 {
        // Pad with the most significant bits of EOS, which is all ones.
        out.push((pending << (8 - bits)) as u8 | 0xff >> bits);
    }
}

/// Appends the text of a Huffman-coded string.
///
/// # Errors
///
/// [`Error::Huffman`]: the string contains EOS, or its padding exceeds seven bits or is not all
/// ones.
#[inline]
pub fn decode(out: &mut Vec<u8>, code: &[u8]) -> Result<(), Error> {
    // The shortest code has five bits.
    out.reserve(code.len() * 8 / 5);
    let mut step = Step { node: 0, octet: 0, flags: ENDS };
    for &byte in code {
        for bits in [byte >> 4, byte & 0xf] {
            step = STEPS[usize::from(step.node)][usize::from(bits)];
            if step.flags & FAILS != 0 {
                return Err(Error::Huffman);
            }
            if step.flags & EMITS != 0 {
                out.push(step.octet);
            }
        }
    }
    if step.flags & ENDS == 0 { Err(Error::Huffman) } else { Ok(()) }
}
