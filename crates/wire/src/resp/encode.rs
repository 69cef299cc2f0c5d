//! Encodes values and commands.

use super::Value;

/// Appends a command: an array of strings, the name of the command first.
pub fn encode_command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    line(out, b'*', arguments.len() as i64);
    for argument in arguments {
        text(out, b'$', &[argument]);
    }
}

/// Appends a value as RESP3. Line breaks in texts that cannot hold them become spaces.
pub fn encode_value(out: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Null => out.extend_from_slice(b"_\r\n"),
        Value::Simple(text) => plain(out, b'+', text),
        Value::Error(text) => plain(out, b'-', text),
        Value::BigNumber(digits) => plain(out, b'(', digits),
        Value::Integer(number) => line(out, b':', *number),
        Value::Double(number) => {
            let text = match number {
                number if number.is_nan() => "nan".to_owned(),
                number if number.is_infinite() => {
                    if *number > 0.0 {
                        "inf".to_owned()
                    } else {
                        "-inf".to_owned()
                    }
                }
                number => format!("{number:e}"),
            };
            plain(out, b',', &text);
        }
        Value::Boolean(yes) => out.extend_from_slice(if *yes { b"#t\r\n" } else { b"#f\r\n" }),
        Value::Bulk(bytes) => text(out, b'$', &[bytes]),
        Value::Verbatim(format, bytes) => text(out, b'=', &[format, b":", bytes]),
        Value::Array(values) => all(out, b'*', values),
        Value::Set(values) => all(out, b'~', values),
        Value::Push(values) => all(out, b'>', values),
        Value::Map(pairs) => map(out, b'%', pairs),
        Value::Attributed(about, value) => {
            map(out, b'|', about);
            encode_value(out, value);
        }
    }
}

fn line(out: &mut Vec<u8>, kind: u8, number: i64) {
    plain(out, kind, &number.to_string());
}

fn plain(out: &mut Vec<u8>, kind: u8, text: &str) {
    out.push(kind);
    out.extend(text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

fn text(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    line(out, kind, parts.iter().map(|part| part.len()).sum::<usize>() as i64);
    for part in parts {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

fn all(out: &mut Vec<u8>, kind: u8, values: &[Value<'_>]) {
    line(out, kind, values.len() as i64);
    for value in values {
        encode_value(out, value);
    }
}

fn map(out: &mut Vec<u8>, kind: u8, pairs: &[(Value<'_>, Value<'_>)]) {
    line(out, kind, pairs.len() as i64);
    for (key, value) in pairs {
        encode_value(out, key);
        encode_value(out, value);
    }
}
