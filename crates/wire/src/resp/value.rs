//! Values, borrowed from the input.

use super::scanner::{Header, header};

/// A value of RESP 2 or 3. Strings are borrowed; aggregates own their list.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// `_`, and the null string and null array of RESP2.
    Null,
    /// `+`: a short text.
    Simple(&'a str),
    /// `-` and `!`: an error, its code first.
    Error(&'a str),
    /// `:`
    Integer(i64),
    /// `,`
    Double(f64),
    /// `#`
    Boolean(bool),
    /// `(`: decimal digits, with an optional minus.
    BigNumber(&'a str),
    /// `$`: any bytes.
    Bulk(&'a [u8]),
    /// `=`: a format of three bytes, and the bytes of the string.
    Verbatim(&'a [u8], &'a [u8]),
    /// `*`
    Array(Vec<Value<'a>>),
    /// `~`
    Set(Vec<Value<'a>>),
    /// `>`: an unsolicited value, such as a message of a channel.
    Push(Vec<Value<'a>>),
    /// `%`: keys and values.
    Map(Vec<(Value<'a>, Value<'a>)>),
    /// `|`: attributes of the value that follows.
    Attributed(Vec<(Value<'a>, Value<'a>)>, Box<Value<'a>>),
}

impl<'a> Value<'a> {
    /// Parses a value that a [`Scanner`](super::Scanner) has found complete and within limits. `None` for bytes that the
    /// scanner would refuse.
    pub fn parse(bytes: &'a [u8]) -> Option<Value<'a>> {
        let mut rest = bytes;
        let value = Value::read(&mut rest, super::DEPTH_MAX + 1)?;
        rest.is_empty().then_some(value)
    }

    fn read(rest: &mut &'a [u8], depth: usize) -> Option<Value<'a>> {
        let (header, line) = header(rest, usize::MAX - 3).ok()??;
        let bytes: &'a [u8] = rest;
        *rest = &bytes[line..];
        let value = match header {
            Header::Null => Value::Null,
            Header::Simple(text) => Value::Simple(str::from_utf8(text).ok()?),
            Header::Error(text) => Value::Error(str::from_utf8(text).ok()?),
            Header::Integer(number) => Value::Integer(number),
            Header::Double(number) => Value::Double(number),
            Header::Boolean(yes) => Value::Boolean(yes),
            Header::BigNumber(digits) => Value::BigNumber(str::from_utf8(digits).ok()?),
            Header::Text(kind, length) => {
                let text = rest.get(..length)?;
                *rest = rest.get(length..)?.strip_prefix(b"\r\n")?;
                match kind {
                    b'$' => Value::Bulk(text),
                    // The scanner does not examine strings: an error that is not UTF-8 becomes one without text.
                    b'!' => {
                        Value::Error(str::from_utf8(text).unwrap_or("an error that is no UTF-8"))
                    }
                    _ => Value::Verbatim(text.get(..3)?, text.get(3..)?.strip_prefix(b":")?),
                }
            }
            Header::Aggregate(kind, count) => {
                let depth = depth.checked_sub(1)?;
                // Each takes at least three bytes, whatever count is announced.
                let count = usize::try_from(count).ok().filter(|&count| count <= rest.len() / 3)?;
                let pairs =
                    |rest: &mut &'a [u8], count: usize| -> Option<Vec<(Value<'a>, Value<'a>)>> {
                        (0..count)
                            .map(|_| Some((Value::read(rest, depth)?, Value::read(rest, depth)?)))
                            .collect()
                    };
                match kind {
                    b'%' => Value::Map(pairs(rest, count / 2)?),
                    b'|' => {
                        let about = pairs(rest, count / 2)?;
                        Value::Attributed(about, Box::new(Value::read(rest, depth)?))
                    }
                    _ => {
                        let values =
                            (0..count).map(|_| Value::read(rest, depth)).collect::<Option<_>>()?;
                        match kind {
                            b'~' => Value::Set(values),
                            b'>' => Value::Push(values),
                            _ => Value::Array(values),
                        }
                    }
                }
            }
        };
        Some(value)
    }

    /// Returns the bytes of a string of any kind; `None` for other values.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Value::Bulk(bytes) | Value::Verbatim(_, bytes) => Some(bytes),
            Value::Simple(text) => Some(text.as_bytes()),
            Value::Attributed(_, value) => value.bytes(),
            _ => None,
        }
    }

    /// Returns the text of a string of any kind, if it is UTF-8.
    pub fn text(&self) -> Option<&'a str> {
        self.bytes().and_then(|bytes| str::from_utf8(bytes).ok())
    }

    /// Returns the elements of an array, a set or a push.
    pub fn elements(&self) -> Option<&[Value<'a>]> {
        match self {
            Value::Array(values) | Value::Set(values) | Value::Push(values) => Some(values),
            Value::Attributed(_, value) => value.elements(),
            _ => None,
        }
    }
}
