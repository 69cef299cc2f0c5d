//! The delta format of Fossil ("Fossil Delta Format", fossil-scm.org): a text as copies of parts of another text and the new
//! bytes between them.
//!
//! ```text
//! LENGTH LF  { COUNT @ OFFSET ,  |  COUNT : BYTES }  CHECKSUM ;
//! ```
//!
//! Numbers are in base 64 with the format's own digits. The checksum is that of the resulting text.

use std::ops::Range;

/// Bytes by which a copy is searched: a shorter copy saves next to nothing.
const BLOCK_BYTES: usize = 16;
/// Maximum places of the source tried for one place of the target, which bounds the time for adversarial texts.
const TRIES_MAX: usize = 8;
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz~";
const NONE: u32 = u32::MAX;

/// Creates deltas. It keeps its tables between calls, so that it allocates only while texts grow.
#[derive(Debug, Default)]
pub struct DeltaEncoder {
    /// The last block of the source with each hash.
    heads: Vec<u32>,
    /// The previous block with the same hash, by block.
    previous: Vec<u32>,
}

impl DeltaEncoder {
    /// Appends the delta that turns `source` into `target`. If `target` is UTF-8, so is the delta: no copy begins or ends
    /// within a character.
    ///
    /// Texts of 4 GiB and more are sent in full, without copies.
    pub fn encode(&mut self, source: &[u8], target: &[u8], out: &mut Vec<u8>) {
        write_number(out, target.len() as u64);
        out.push(b'\n');
        // The common prefix and suffix are found without a table: most changes are in one place.
        let begin = source.iter().zip(target).take_while(|(a, b)| a == b).count();
        let begin = boundary_before(target, begin);
        let (middle, rest) = (&source[begin..], &target[begin..]);
        let end = middle.iter().rev().zip(rest.iter().rev()).take_while(|(a, b)| a == b).count();
        let end = target.len() - boundary_after(target, target.len() - end);
        if begin > 0 {
            copy(out, begin, 0);
        }
        self.encode_middle(source, target, begin..target.len() - end, out);
        if end > 0 {
            copy(out, end, source.len() - end);
        }
        write_number(out, u64::from(checksum(target)));
        out.push(b';');
    }

    /// Encodes a part of the target with copies from the whole source.
    fn encode_middle(
        &mut self,
        source: &[u8],
        target: &[u8],
        part: Range<usize>,
        out: &mut Vec<u8>,
    ) {
        let is_small = u32::try_from(source.len()).is_ok();
        if part.len() >= BLOCK_BYTES && source.len() >= BLOCK_BYTES && is_small {
            self.index(source);
        } else {
            return insert(out, &target[part]);
        }
        let mut inserted = part.start;
        let mut at = part.start;
        let mut hash = RollingHash::of(&target[at..at + BLOCK_BYTES]);
        loop {
            let found = self.longest(source, target, at, inserted..part.end, hash);
            if let Some(Match { from, begin, end }) = found {
                insert(out, &target[inserted..begin]);
                copy(out, end - begin, from);
                inserted = end;
                at = end;
                if at + BLOCK_BYTES > part.end {
                    break;
                }
                hash = RollingHash::of(&target[at..at + BLOCK_BYTES]);
            } else {
                if at + BLOCK_BYTES >= part.end {
                    break;
                }
                hash.roll(target[at], target[at + BLOCK_BYTES]);
                at += 1;
            }
        }
        insert(out, &target[inserted..part.end]);
    }

    fn index(&mut self, source: &[u8]) {
        let blocks = source.len() / BLOCK_BYTES;
        let buckets = blocks.next_power_of_two();
        self.heads.clear();
        self.heads.resize(buckets, NONE);
        self.previous.clear();
        for (block, bytes) in source.chunks_exact(BLOCK_BYTES).enumerate() {
            let head = &mut self.heads[RollingHash::of(bytes).bucket(buckets)];
            self.previous.push(std::mem::replace(head, block as u32));
        }
    }

    /// Returns the longest copy that covers the target's block at `at` and stays `within`, if it saves bytes.
    fn longest(
        &self,
        source: &[u8],
        target: &[u8],
        at: usize,
        within: Range<usize>,
        hash: RollingHash,
    ) -> Option<Match> {
        let mut best: Option<Match> = None;
        let mut block = self.heads[hash.bucket(self.heads.len())];
        for _ in 0..TRIES_MAX {
            if block == NONE {
                break;
            }
            let from = block as usize * BLOCK_BYTES;
            block = self.previous[block as usize];
            let forward = source[from..].iter().zip(&target[at..within.end]);
            let forward = forward.take_while(|(a, b)| a == b).count();
            if forward < BLOCK_BYTES {
                continue;
            }
            let backward = source[..from].iter().rev().zip(target[within.start..at].iter().rev());
            let backward = backward.take_while(|(a, b)| a == b).count();
            let begin = boundary_after(target, at - backward);
            let end = boundary_before(target, at + forward);
            // From its first byte to its last the copy lies as the match does.
            let from = from + begin - at;
            let longer = best.as_ref().is_none_or(|best| end - begin > best.end - best.begin);
            if end >= begin + BLOCK_BYTES / 2 && longer {
                best = Some(Match { from, begin, end });
            }
        }
        best
    }
}

/// A part of the target that occurs in the source.
struct Match {
    from: usize,
    begin: usize,
    end: usize,
}

/// A rolling hash of a block.
#[derive(Clone, Copy)]
struct RollingHash {
    sum: u16,
    weighted: u16,
}

impl RollingHash {
    fn of(block: &[u8]) -> Self {
        let (mut sum, mut weighted) = (0u16, 0u16);
        for (at, &byte) in block.iter().enumerate() {
            sum = sum.wrapping_add(u16::from(byte));
            weighted = weighted.wrapping_add((BLOCK_BYTES - at) as u16 * u16::from(byte));
        }
        Self { sum, weighted }
    }

    fn roll(&mut self, out: u8, into: u8) {
        self.sum = self.sum.wrapping_sub(u16::from(out)).wrapping_add(u16::from(into));
        let gone = BLOCK_BYTES as u16 * u16::from(out);
        self.weighted = self.weighted.wrapping_sub(gone).wrapping_add(self.sum);
    }

    /// `buckets` is a power of two.
    fn bucket(self, buckets: usize) -> usize {
        let hash = u32::from(self.sum) | u32::from(self.weighted) << 16;
        (hash.wrapping_mul(0x9e37_79b1) >> 7) as usize & (buckets - 1)
    }
}

/// Returns the last UTF-8 character boundary up to `at`. In other bytes it is near `at`, or not before it.
fn boundary_before(text: &[u8], at: usize) -> usize {
    let back = (0..4.min(at + 1)).find(|back| is_boundary(text, at - back));
    at - back.unwrap_or(0)
}

/// Returns the first UTF-8 character boundary from `at` on.
fn boundary_after(text: &[u8], at: usize) -> usize {
    let on = (0..4.min(text.len() - at + 1)).find(|on| is_boundary(text, at + on));
    at + on.unwrap_or(0)
}

fn is_boundary(text: &[u8], at: usize) -> bool {
    text.get(at).is_none_or(|&byte| byte & 0xc0 != 0x80)
}

fn insert(out: &mut Vec<u8>, bytes: &[u8]) {
    if !bytes.is_empty() {
        write_number(out, bytes.len() as u64);
        out.push(b':');
        out.extend_from_slice(bytes);
    }
}

fn copy(out: &mut Vec<u8>, count: usize, from: usize) {
    write_number(out, count as u64);
    out.push(b'@');
    write_number(out, from as u64);
    out.push(b',');
}

fn write_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 11];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = DIGITS[(number & 63) as usize];
        number >>= 6;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Returns the sum of the text's big-endian 32-bit words, the last one padded with zeros.
fn checksum(text: &[u8]) -> u32 {
    let mut words = text.chunks_exact(4);
    let sum = words.by_ref().fold(0u32, |sum, word| {
        sum.wrapping_add(u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
    });
    let mut last = [0; 4];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    sum.wrapping_add(u32::from_be_bytes(last))
}

/// Why a delta cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// The delta is truncated, or malformed where a number or a mark should be.
    #[error("is no delta")]
    Malformed,
    /// It copies beyond the source, or its result is longer than announced.
    #[error("goes beyond its source or its length")]
    Bounds,
    /// The checksum differs: the delta belongs to another source.
    #[error("is of another source")]
    Checksum,
}

/// Applies a delta to `source`.
///
/// # Errors
/// [`DeltaError`]; also for a target of more than `bytes_max` bytes.
pub fn apply(source: &[u8], delta: &[u8], bytes_max: usize) -> Result<Vec<u8>, DeltaError> {
    let mut rest = delta;
    let length = read_number(&mut rest)?;
    if length > bytes_max as u64 {
        return Err(DeltaError::Bounds);
    }
    let length = length as usize;
    expect(&mut rest, b'\n')?;
    let mut target = Vec::new();
    loop {
        let number = read_number(&mut rest)?;
        let (&mark, behind) = rest.split_first().ok_or(DeltaError::Malformed)?;
        rest = behind;
        let room = (length - target.len()) as u64;
        match mark {
            b'@' => {
                let from = read_number(&mut rest)?;
                expect(&mut rest, b',')?;
                let end = from.checked_add(number).filter(|&end| end <= source.len() as u64);
                let end = end.filter(|_| number <= room).ok_or(DeltaError::Bounds)?;
                target.extend_from_slice(&source[from as usize..end as usize]);
            }
            b':' => {
                if number > room {
                    return Err(DeltaError::Bounds);
                }
                let taken = rest.split_at_checked(number as usize);
                let (bytes, behind) = taken.ok_or(DeltaError::Malformed)?;
                target.extend_from_slice(bytes);
                rest = behind;
            }
            b';' if room > 0 => return Err(DeltaError::Bounds),
            b';' if number != u64::from(checksum(&target)) => return Err(DeltaError::Checksum),
            b';' => return Ok(target),
            _ => return Err(DeltaError::Malformed),
        }
    }
}

fn read_number(rest: &mut &[u8]) -> Result<u64, DeltaError> {
    let mut number = 0u64;
    let mut digits = 0;
    while let Some((byte, behind)) = rest.split_first()
        && let Some(digit) = DIGITS.iter().position(|digit| digit == byte)
    {
        if number >> 58 > 0 {
            return Err(DeltaError::Bounds);
        }
        number = number << 6 | digit as u64;
        digits += 1;
        *rest = behind;
    }
    if digits > 0 { Ok(number) } else { Err(DeltaError::Malformed) }
}

fn expect(rest: &mut &[u8], mark: u8) -> Result<(), DeltaError> {
    *rest = rest.strip_prefix(&[mark]).ok_or(DeltaError::Malformed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn delta(source: &[u8], target: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        DeltaEncoder::default().encode(source, target, &mut out);
        out
    }

    #[test]
    fn the_format_is_that_of_the_documentation() {
        // The checksum of four zero bytes and one is 2^24 · 1: the remainder is filled up with zeros.
        assert_eq!(checksum(b"\0\0\0\x02\x01"), 0x0100_0002);
        assert_eq!(delta(b"", b""), b"0\n0;");
        let mut out = Vec::new();
        write_number(&mut out, 64 * 64 + 63);
        assert_eq!(out, b"10~");
        let text = "a text that is long enough to be copied from here to there";
        let changed = text.replace("long enough", "very long");
        let delta = delta(text.as_bytes(), changed.as_bytes());
        let said = String::from_utf8_lossy(&delta);
        assert!(said.starts_with("t\nF@0,9:very longW@Q,"), "{said}");
        assert_eq!(apply(text.as_bytes(), &delta, 1000).unwrap(), changed.as_bytes());
        assert_eq!(apply(b"another text", &delta, 1000), Err(DeltaError::Bounds));
    }

    #[test]
    fn a_small_change_of_a_document_is_a_small_delta() {
        let document = |seed: u32| -> String {
            (0..40)
                .map(|n| format!("\"field{n}\":{},", n * 7 + if n % 20 == 3 { seed } else { 0 }))
                .collect()
        };
        let (before, after) = (document(1), document(99));
        let delta = delta(before.as_bytes(), after.as_bytes());
        assert!(delta.len() * 5 < after.len(), "{} of {}", delta.len(), after.len());
        assert_eq!(apply(before.as_bytes(), &delta, 10_000).unwrap(), after.as_bytes());
    }

    #[test]
    fn malformed_delta_is_refused() {
        for (delta, error) in [
            (&b""[..], DeltaError::Malformed),
            (b"5\n", DeltaError::Malformed),
            (b"5\n5:ab", DeltaError::Malformed),
            (b"5\n5@0,0;", DeltaError::Bounds),
            (b"1\n2:ab0;", DeltaError::Bounds),
            (b"2\n1:a0;", DeltaError::Bounds),
            (b"~~~~~\n0;", DeltaError::Bounds),
            (b"~~~~~~~~~~~~\n0;", DeltaError::Bounds),
            (b"1\n1:a0;", DeltaError::Checksum),
            (b"1\n1?0;", DeltaError::Malformed),
        ] {
            assert_eq!(apply(b"abc", delta, 100), Err(error), "{}", String::from_utf8_lossy(delta));
        }
    }

    proptest! {
        #[test]
        fn the_target_comes_back(
            pieces in prop::collection::vec("\\PC{0,30}", 1..6), order in prop::collection::vec(0usize..6, 0..9),
            new in prop::collection::vec("\\PC{0,9}", 0..9),
        ) {
            let source = pieces.concat();
            let mut target = String::new();
            for (at, piece) in order.iter().enumerate() {
                target.push_str(&pieces[piece % pieces.len()]);
                target.push_str(new.get(at).map_or("", |new| new));
            }
            let delta = delta(source.as_bytes(), target.as_bytes());
            prop_assert!(std::str::from_utf8(&delta).is_ok(), "a delta of text is text");
            prop_assert_eq!(apply(source.as_bytes(), &delta, target.len()).unwrap(), target.as_bytes());
        }

        #[test]
        fn bytes_come_back_too(source: Vec<u8>, change: Vec<u8>, at: prop::sample::Index) {
            let at = at.index(source.len() + 1);
            let target = [&source[..at], &change, &source[at..]].concat();
            prop_assert_eq!(apply(&source, &delta(&source, &target), target.len()).unwrap(), target);
        }

        #[test]
        fn any_bytes_at_all_are_applied_or_refused(source: Vec<u8>, delta: Vec<u8>) {
            if let Ok(target) = apply(&source, &delta, 1000) {
                prop_assert!(target.len() <= 1000);
            }
        }
    }
}
