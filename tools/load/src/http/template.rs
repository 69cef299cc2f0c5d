//! Text with placeholders: a counter and random values, each a function of the request's number alone.
//!
//! So a request in flight needs no stored copy: to send it again, its bytes are rendered again, exactly the same.

use std::io::Write;

use dunlin_wire::random;

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    pieces: Vec<Piece>,
    /// Differs between templates, so that two placeholders have different values.
    salt: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    /// The number of the request, from 0.
    Number,
    /// The remainder of the request's number.
    Remainder(u64),
    /// A random number in this inclusive range.
    Random(u64, u64),
    /// A random UUID, version 4 (RFC 9562 §5.4).
    Uuid,
    /// This many random letters and digits.
    Letters(usize),
}

/// The placeholders there are. Text in braces that looks like one must be one; JSON's own braces do not look like one.
const PLACES: &str = "{n}, {n%K}, {random}, {random:A-B}, {letters:N} and {uuid}";
const LETTERS_MAX: usize = 1 << 20;

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// An unknown placeholder; the message lists those there are.
    pub(crate) fn parse(text: &str, salt: u64) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            literal.extend_from_slice(&rest.as_bytes()[..open]);
            rest = &rest[open..];
            let name = rest[1..].split_once('}').map(|(name, _)| name);
            match name.filter(|name| looks_like_a_place(name)) {
                Some(name) => {
                    if !literal.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut literal)));
                    }
                    pieces.push(Piece::of_name(name).ok_or_else(|| {
                        format!("`{{{name}}}` is not known; there are {PLACES}. --no-templates takes everything as it stands")
                    })?);
                    rest = &rest[name.len() + 2..];
                }
                None => {
                    literal.push(b'{');
                    rest = &rest[1..];
                }
            }
        }
        literal.extend_from_slice(rest.as_bytes());
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Self { pieces, salt })
    }

    pub(crate) fn literal(text: impl Into<Vec<u8>>) -> Self {
        Self { pieces: vec![Piece::Text(text.into())], salt: 0 }
    }

    /// Returns whether the text is the same for every request.
    pub(crate) fn is_constant(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece, Piece::Text(_)))
    }

    /// Appends the text for request `number`.
    pub(crate) fn render(&self, number: u64, out: &mut Vec<u8>) {
        for (index, piece) in self.pieces.iter().enumerate() {
            let random = || mix(number ^ mix(self.salt.wrapping_add(index as u64)));
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Number => decimal(number, out),
                Piece::Remainder(divisor) => decimal(number % divisor, out),
                Piece::Random(low, high) => {
                    let span = high - low;
                    let offset = if span == u64::MAX { random() } else { random() % (span + 1) };
                    decimal(low + offset, out);
                }
                Piece::Uuid => uuid(random(), out),
                Piece::Letters(count) => letters(random(), *count, out),
            }
        }
    }
}

impl Piece {
    fn of_name(name: &str) -> Option<Self> {
        let (word, detail) = match name.find([':', '%']) {
            Some(at) => (&name[..at], Some(&name[at..])),
            None => (name, None),
        };
        Some(match (word, detail) {
            ("n", None) => Self::Number,
            ("n", Some(detail)) => {
                Self::Remainder(detail.strip_prefix('%')?.parse().ok().filter(|k| *k > 0)?)
            }
            ("random", None) => Self::Random(0, u64::from(u32::MAX)),
            ("random", Some(detail)) => {
                let (low, high) = detail.strip_prefix(':')?.split_once('-')?;
                let (low, high) = (low.parse().ok()?, high.parse().ok()?);
                (low <= high).then_some(Self::Random(low, high))?
            }
            ("letters", Some(detail)) => {
                let count = detail.strip_prefix(':')?.parse().ok()?;
                (count <= LETTERS_MAX).then_some(Self::Letters(count))?
            }
            ("uuid", None) => Self::Uuid,
            _ => return None,
        })
    }
}

fn looks_like_a_place(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "%:-_".contains(c);
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(plain)
}

/// Mixes the bits of a number.
fn mix(mut number: u64) -> u64 {
    random::next(&mut number)
}

pub(crate) fn decimal(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn uuid(random: u64, out: &mut Vec<u8>) {
    let (high, low) = (random, mix(random));
    let version = (high & 0x0fff) | 0x4000;
    let variant = ((low >> 48) & 0x3fff) | 0x8000;
    // Writing to a Vec cannot fail.
    let _ = write!(
        out,
        "{:08x}-{:04x}-{version:04x}-{variant:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        low & 0xffff_ffff_ffff
    );
}

fn letters(mut random: u64, count: usize, out: &mut Vec<u8>) {
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    for index in 0..count {
        if index % 12 == 0 {
            random = mix(random);
        }
        out.push(ALPHABET[(random & 31) as usize]);
        random >>= 5;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str, number: u64) -> String {
        let mut out = Vec::new();
        Template::parse(text, 7).unwrap().render(number, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn places_are_filled_and_a_request_written_again_is_the_same() {
        assert_eq!(render("/a/{n}/{n%4}", 10), "/a/10/2");
        for text in ["{random:5-9}", "{uuid}", "{letters:40}", "{random}"] {
            assert_eq!(render(text, 3), render(text, 3));
            assert_ne!(render("{uuid}", 3), render("{uuid}", 4));
        }
        for number in 0..100 {
            let random: u64 = render("{random:5-9}", number).parse().unwrap();
            assert!((5..=9).contains(&random));
        }
        assert_ne!(
            render("{random} {random}", 1).split(' ').next(),
            render("{random} {random}", 1).split(' ').nth(1)
        );
        assert_eq!(render("{letters:40}", 1).len(), 40);
        assert_eq!(&render("{uuid}", 1)[14..15], "4");
    }

    #[test]
    fn json_is_left_alone_and_a_place_that_is_none_is_reported() {
        let json = r#"{"a":{"b":[{}]},"n":{n},"t":"{x y}"}"#;
        assert_eq!(render(json, 5), json.replace("{n}", "5"));
        for wrong in ["{counter}", "{n%0}", "{random:9-5}", "{letters}", "{uuid:4}"] {
            let error = Template::parse(wrong, 0).unwrap_err();
            assert!(error.contains(wrong) && error.contains("{random:A-B}"), "{error}");
        }
        assert!(Template::parse("{}", 0).unwrap().is_constant());
        assert!(!Template::parse("{n}", 0).unwrap().is_constant());
    }
}
