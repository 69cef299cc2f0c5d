//! Reads the fields of a message.

use super::VARINT_BYTES_MAX;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// The bytes end within a field.
    #[error("ends within a field")]
    Truncated,
    /// A varint of more than 64 bits.
    #[error("has a varint of more than 64 bits")]
    Varint,
    /// A length that exceeds the remaining bytes.
    #[error("has a length of {0} bytes, and fewer follow")]
    Length(u64),
    /// A field number that is 0 or above 2²⁹ − 1.
    #[error("has the field number {0}, which does not exist")]
    FieldNumber(u64),
    /// A wire type that does not exist, or a group.
    #[error("has the wire type {0}, which proto3 does not have")]
    WireType(u8),
    /// A field whose wire type differs from the schema.
    #[error("is of another wire type than the protocol says")]
    Mismatch,
    /// A string that is not UTF-8.
    #[error("is not UTF-8")]
    Utf8,
    /// A number that does not fit its type.
    #[error("does not fit its type")]
    Range,
}

/// The value of a field, by its wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// `int32`, `int64`, `uint32`, `uint64`, `sint32`, `sint64`, `bool`, `enum`.
    Varint(u64),
    /// `fixed64`, `sfixed64`, `double`.
    Fixed64(u64),
    /// `string`, `bytes`, a message, a packed list.
    Bytes(&'a [u8]),
    /// `fixed32`, `sfixed32`, `float`.
    Fixed32(u32),
}

impl<'a> Value<'a> {
    /// Returns the value of a `string` field.
    ///
    /// # Errors
    /// [`ProtobufError::Mismatch`], [`ProtobufError::Utf8`].
    pub fn string(self) -> Result<&'a str, ProtobufError> {
        simdutf8::basic::from_utf8(self.bytes()?).map_err(|_| ProtobufError::Utf8)
    }

    /// Returns the value of a `bytes` field, or the bytes of a message.
    ///
    /// # Errors
    /// [`ProtobufError::Mismatch`].
    pub fn bytes(self) -> Result<&'a [u8], ProtobufError> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::Mismatch),
        }
    }

    /// Returns the value of a `bool` field: any number but 0 is true.
    ///
    /// # Errors
    /// [`ProtobufError::Mismatch`].
    pub fn bool(self) -> Result<bool, ProtobufError> {
        Ok(self.uint64()? != 0)
    }

    /// Returns the value of a `uint64` field.
    ///
    /// # Errors
    /// [`ProtobufError::Mismatch`].
    pub fn uint64(self) -> Result<u64, ProtobufError> {
        match self {
            Value::Varint(value) => Ok(value),
            _ => Err(ProtobufError::Mismatch),
        }
    }

    /// Returns the value of a `uint32` field.
    ///
    /// # Errors
    /// [`ProtobufError::Mismatch`], [`ProtobufError::Range`].
    pub fn uint32(self) -> Result<u32, ProtobufError> {
        u32::try_from(self.uint64()?).map_err(|_| ProtobufError::Range)
    }

    /// Returns the value of an `int64` field.
    ///
    /// # Errors
    /// [`ProtobufError::Mismatch`].
    pub fn int64(self) -> Result<i64, ProtobufError> {
        Ok(self.uint64()?.cast_signed())
    }

    /// Returns the value of an `int32` field, which is encoded sign-extended to 64 bits.
    ///
    /// # Errors
    /// [`ProtobufError::Mismatch`], [`ProtobufError::Range`].
    pub fn int32(self) -> Result<i32, ProtobufError> {
        i32::try_from(self.int64()?).map_err(|_| ProtobufError::Range)
    }
}

/// A field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its number in the schema.
    pub number: u32,
    /// Its value.
    pub value: Value<'a>,
}

/// Iterator over the fields of a message, in the order of encoding. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Iterates over the fields of `message`.
    pub fn of(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    fn read(&mut self) -> Result<Field<'a>, ProtobufError> {
        let key = varint(&mut self.rest)?;
        let number = u32::try_from(key >> 3).ok().filter(|&number| number > 0 && number < 1 << 29);
        let number = number.ok_or(ProtobufError::FieldNumber(key >> 3))?;
        let value = match (key & 7) as u8 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => Value::Fixed64(u64::from_le_bytes(fixed(&mut self.rest)?)),
            2 => Value::Bytes(delimited(&mut self.rest)?),
            5 => Value::Fixed32(u32::from_le_bytes(fixed(&mut self.rest)?)),
            other => return Err(ProtobufError::WireType(other)),
        };
        Ok(Field { number, value })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Iterator over consecutive messages, each preceded by its length (a varint). Ends after the first
/// error.
#[derive(Clone, Debug)]
pub struct Delimited<'a> {
    rest: &'a [u8],
}

impl<'a> Delimited<'a> {
    /// Iterates over the messages of `bytes`.
    pub fn of(bytes: &'a [u8]) -> Delimited<'a> {
        Delimited { rest: bytes }
    }

    /// Returns the bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Delimited<'a> {
    type Item = Result<&'a [u8], ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = delimited(&mut self.rest);
        if message.is_err() {
            self.rest = &[];
        }
        Some(message)
    }
}

fn varint(rest: &mut &[u8]) -> Result<u64, ProtobufError> {
    let mut value = 0u64;
    for (at, &byte) in rest.iter().take(VARINT_BYTES_MAX).enumerate() {
        // Only one bit of the tenth byte fits 64 bits.
        if at == VARINT_BYTES_MAX - 1 && byte > 1 {
            return Err(ProtobufError::Varint);
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *rest = &rest[at + 1..];
            return Ok(value);
        }
    }
    Err(ProtobufError::Truncated)
}

fn fixed<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], ProtobufError> {
    let (bytes, behind) = rest.split_first_chunk().ok_or(ProtobufError::Truncated)?;
    *rest = behind;
    Ok(*bytes)
}

fn delimited<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], ProtobufError> {
    let length = varint(rest)?;
    let taken = usize::try_from(length).ok().and_then(|taken| rest.split_at_checked(taken));
    let (bytes, behind) = taken.ok_or(ProtobufError::Length(length))?;
    *rest = behind;
    Ok(bytes)
}
