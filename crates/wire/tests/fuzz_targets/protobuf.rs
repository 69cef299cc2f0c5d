//! Protobuf: what was read is written again, and no bytes are read beyond their end.

use dunlin_wire::protobuf::{Delimited, Fields, Value, Writer};

/// Any message.
pub fn fields(data: &[u8]) {
    let fields: Vec<_> = Fields::of(data).map_while(Result::ok).collect();
    let mut written = Vec::new();
    let mut writer = Writer::new(&mut written);
    let mut kept = Vec::new();
    for field in fields {
        match field.value {
            Value::Varint(number) if number > 0 => writer.unsigned(field.number, number),
            Value::Bytes(bytes) => writer.element(field.number, bytes),
            _ => continue,
        }
        kept.push(field);
    }
    assert_eq!(Fields::of(&written).map(Result::unwrap).collect::<Vec<_>>(), kept);
    let bytes: usize = Delimited::of(data).map_while(Result::ok).map(<[u8]>::len).sum();
    assert!(bytes <= data.len());
}
