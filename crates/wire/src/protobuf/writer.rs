//! Writes the fields of a message.

/// Appends fields to a buffer, or counts the bytes they would take.
///
/// A nested message begins with its length, so its fields are counted first and then written. A closure that writes a
/// message is therefore called more than once and must do the same each time. Fields with a zero value are omitted, as
/// in proto3, except by [`Writer::message`] and [`Writer::element`].
#[derive(Debug)]
pub struct Writer<'o> {
    out: Option<&'o mut Vec<u8>>,
    bytes: usize,
}

impl<'o> Writer<'o> {
    /// Writes to the end of `out`.
    pub fn new(out: &'o mut Vec<u8>) -> Writer<'o> {
        Writer { out: Some(out), bytes: 0 }
    }

    /// Returns the number of bytes that `write` writes.
    pub fn count(write: impl Fn(&mut Writer<'_>)) -> usize {
        let mut counter = Writer { out: None, bytes: 0 };
        write(&mut counter);
        counter.bytes
    }

    /// Appends a message preceded by its length, as in a stream of messages.
    pub fn delimited(out: &mut Vec<u8>, write: impl Fn(&mut Writer<'_>)) {
        let length = Writer::count(&write);
        out.reserve(length + super::VARINT_BYTES_MAX);
        let mut writer = Writer::new(out);
        writer.varint(length as u64);
        write(&mut writer);
    }

    /// Writes a `bytes` field, unless it is empty.
    pub fn bytes(&mut self, number: u32, value: &[u8]) {
        if !value.is_empty() {
            self.element(number, value);
        }
    }

    /// Writes a `bytes` or `string` field, even if it is empty: an element of a repeated field.
    pub fn element(&mut self, number: u32, value: &[u8]) {
        self.key(number, 2);
        self.varint(value.len() as u64);
        self.raw(value);
    }

    /// Writes a `string` field, unless it is empty.
    pub fn string(&mut self, number: u32, value: &str) {
        self.bytes(number, value.as_bytes());
    }

    /// Writes a `uint32` or `uint64` field, unless it is 0.
    pub fn unsigned(&mut self, number: u32, value: impl Into<u64>) {
        let value = value.into();
        if value > 0 {
            self.key(number, 0);
            self.varint(value);
        }
    }

    /// Writes a `bool` field, unless it is false.
    pub fn bool(&mut self, number: u32, value: bool) {
        self.unsigned(number, u8::from(value));
    }

    /// Writes a nested message, even if it is empty.
    pub fn message(&mut self, number: u32, write: impl Fn(&mut Writer<'_>)) {
        let length = Writer::count(&write);
        self.key(number, 2);
        self.varint(length as u64);
        if self.out.is_some() {
            write(self);
        } else {
            self.bytes += length;
        }
    }

    fn key(&mut self, number: u32, wire_type: u8) {
        self.varint(u64::from(number) << 3 | u64::from(wire_type));
    }

    fn varint(&mut self, mut value: u64) {
        let mut bytes = [0; super::VARINT_BYTES_MAX];
        let mut length = 0;
        loop {
            bytes[length] = value as u8 & 0x7f | if value > 0x7f { 0x80 } else { 0 };
            length += 1;
            value >>= 7;
            if value == 0 {
                break;
            }
        }
        self.raw(&bytes[..length]);
    }

    /// Writes fields that are already encoded.
    pub fn raw(&mut self, bytes: &[u8]) {
        match &mut self.out {
            Some(out) => out.extend_from_slice(bytes),
            None => self.bytes += bytes.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Delimited, Field, Fields, ProtobufError, Value};
    use super::*;

    fn written(write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out));
        assert_eq!(out.len(), Writer::count(write));
        out
    }

    #[test]
    fn the_examples_of_the_specification() {
        assert_eq!(written(|w| w.unsigned(1, 150u32)), [0x08, 0x96, 0x01]);
        assert_eq!(written(|w| w.string(2, "testing")), b"\x12\x07testing");
        assert_eq!(written(|w| w.message(3, |w| w.unsigned(1, 150u32))), b"\x1a\x03\x08\x96\x01");
        assert_eq!(written(|w| w.message(3, |_| ())), b"\x1a\x00");
        let zero = written(|w| {
            w.string(1, "");
            w.bytes(2, b"");
            w.unsigned(3, 0u64);
            w.bool(4, false);
        });
        assert!(zero.is_empty());
    }

    #[test]
    fn malformed_message_is_named() {
        fn fields(bytes: &[u8]) -> Result<Vec<Field<'_>>, ProtobufError> {
            Fields::of(bytes).collect()
        }
        for (bytes, error) in [
            (&b"\x08"[..], ProtobufError::Truncated),
            (b"\x08\x80", ProtobufError::Truncated),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", ProtobufError::Varint),
            (b"\x12\xff\xff\xff\xff\x0fab", ProtobufError::Length(u64::from(u32::MAX))),
            (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", ProtobufError::Length(u64::MAX)),
            (b"\x00\x01", ProtobufError::FieldNumber(0)),
            (b"\x0b\x0c", ProtobufError::WireType(3)),
            (b"\x0e", ProtobufError::WireType(6)),
            (b"\x0d\x01\x02\x03", ProtobufError::Truncated),
            (b"\x09\x01", ProtobufError::Truncated),
        ] {
            assert_eq!(fields(bytes), Err(error), "{bytes:x?}");
        }
        assert_eq!(Value::Varint(1).bytes(), Err(ProtobufError::Mismatch));
        assert_eq!(Value::Bytes(b"\xff").string(), Err(ProtobufError::Utf8));
        assert_eq!(Value::Varint(1 << 32).uint32(), Err(ProtobufError::Range));
        assert_eq!(Value::Varint(u64::MAX).int32(), Ok(-1));
        assert_eq!(Value::Varint(1 << 31).int32(), Err(ProtobufError::Range));
    }

    proptest! {
        #[test]
        fn fields_come_back_in_their_order(
            list in prop::collection::vec((1u32..1 << 29, any::<u64>(), any::<Vec<u8>>()), 0..8)
        ) {
            let message = written(|w| {
                for (number, value, bytes) in &list {
                    w.unsigned(*number, *value);
                    w.message(*number, |w| w.element(1, bytes));
                }
            });
            let mut fields = Fields::of(&message).map(Result::unwrap);
            for (number, value, bytes) in &list {
                if *value > 0 {
                    let value = Value::Varint(*value);
                    prop_assert_eq!(fields.next(), Some(Field { number: *number, value }));
                }
                let nested = fields.next().unwrap().value.bytes().unwrap();
                let inner = Fields::of(nested).next().unwrap().unwrap();
                prop_assert_eq!(inner.value, Value::Bytes(bytes));
            }
            prop_assert_eq!(fields.next(), None);
        }

        #[test]
        fn messages_of_a_stream_come_back(list: Vec<Vec<u8>>) {
            let mut out = Vec::new();
            for bytes in &list {
                Writer::delimited(&mut out, |w| w.bytes(1, bytes));
            }
            let back: Vec<_> = Delimited::of(&out)
                .map(|message| match Fields::of(message.unwrap()).next() {
                    Some(field) => field.unwrap().value.bytes().unwrap().to_vec(),
                    None => Vec::new(),
                })
                .collect();
            prop_assert_eq!(back, list);
        }

        #[test]
        fn any_bytes_at_all_end(bytes: Vec<u8>) {
            prop_assert!(Fields::of(&bytes).count() <= bytes.len());
            prop_assert!(Delimited::of(&bytes).count() <= bytes.len());
        }
    }
}
