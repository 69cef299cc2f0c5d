//! Payloads from clients and the server API, and how they are written.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dunlin_hub::PayloadFormat;
use serde::de::{Deserialize, Deserializer};

use crate::json::{Json, Object};

/// A received payload: JSON from JSON clients, any bytes from Protobuf clients.
#[derive(Clone)]
pub struct Payload<'a> {
    bytes: Cow<'a, [u8]>,
    /// Whether the bytes are known to be JSON on one line.
    is_json: bool,
}

impl<'a> Payload<'a> {
    /// Creates a payload from any bytes, JSON or not.
    pub fn of_bytes(bytes: impl Into<Cow<'a, [u8]>>) -> Payload<'a> {
        Payload { bytes: bytes.into(), is_json: false }
    }

    /// Creates a payload from base64, in which publishers send binary data.
    ///
    /// # Errors
    /// A description of what is wrong with the base64.
    pub fn from_base64(text: &str) -> Result<Payload<'static>, String> {
        let bytes = STANDARD.decode(text).map_err(|error| format!("is not base64: {error}"))?;
        Ok(Payload::of_bytes(bytes))
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the owned bytes.
    pub fn into_bytes(self) -> Box<[u8]> {
        self.bytes.into_owned().into_boxed_slice()
    }

    /// Returns the format of the bytes. Unless they are known to be JSON, they are parsed.
    pub fn format(&self) -> PayloadFormat {
        let one_line = || memchr::memchr2(b'\n', b'\r', &self.bytes).is_none();
        match self.is_json || one_line() && Json::parse(&self.bytes).is_ok() {
            true => PayloadFormat::Json,
            false => PayloadFormat::Binary,
        }
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload<'_> {}

impl<'a> From<Json<'a>> for Payload<'a> {
    fn from(json: Json<'a>) -> Self {
        Payload { bytes: json.into_text(), is_json: true }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Payload<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Json::deserialize(deserializer).map(Payload::from)
    }
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.bytes))
    }
}

/// Writes a payload as the member `data` of a JSON object. For a payload that is not JSON, `data` is `null` and
/// `b64data` has the bytes in base64.
pub(crate) fn write_data(object: &mut Object<'_>, data: &[u8], format: PayloadFormat) {
    match format {
        PayloadFormat::Json => drop(object.raw("data", data)),
        PayloadFormat::Binary => write_binary(object, data),
    }
}

/// As [`write_data`], for a subscriber with delta compression: JSON is written as a string, because deltas are strings.
pub(crate) fn write_text_data(object: &mut Object<'_>, data: &[u8], format: PayloadFormat) {
    if let (PayloadFormat::Json, Ok(text)) = (format, std::str::from_utf8(data)) {
        object.string("data", text);
    } else if let Ok(json) = Json::parse(data) {
        object.string("data", &String::from_utf8_lossy(json.as_bytes()));
    } else {
        object.string("data", "null").string("b64data", &STANDARD.encode(data));
    }
}

#[cold]
fn write_binary(object: &mut Object<'_>, data: &[u8]) {
    // JSON on several lines, kept unchanged for Protobuf subscribers.
    if let Ok(json) = Json::parse(data) {
        object.raw("data", json.as_bytes());
    } else {
        object.raw("data", b"null").string("b64data", &STANDARD.encode(data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(payload: &Payload<'_>) -> String {
        let mut out = Vec::new();
        let mut object = Object::begin(&mut out);
        write_data(&mut object, payload.as_bytes(), payload.format());
        object.end();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn bytes_that_are_json_are_json_to_everybody() {
        let payload = Payload::of_bytes(&b"{\"a\":1}"[..]);
        assert_eq!(payload.format(), PayloadFormat::Json);
        assert_eq!(written(&payload), r#"{"data":{"a":1}}"#);
    }

    #[test]
    fn json_over_several_lines_stays_as_it_came_and_breaks_no_line_of_others() {
        let payload = Payload::of_bytes(&b"{\n \"a\": 1\r\n}"[..]);
        assert_eq!(payload.format(), PayloadFormat::Binary);
        assert_eq!(payload.as_bytes(), b"{\n \"a\": 1\r\n}");
        assert_eq!(written(&payload), r#"{"data":{"a":1}}"#);
    }

    #[test]
    fn bytes_that_are_not_json_are_in_base64_beside_null() {
        let deep = "[".repeat(100_000);
        for bytes in [&b"\x00\x01\x02"[..], b"{", b"", b"\xff\n", deep.as_bytes()] {
            let payload = Payload::of_bytes(bytes);
            assert_eq!(payload.format(), PayloadFormat::Binary);
            let back: serde_json::Value = serde_json::from_str(&written(&payload)).unwrap();
            assert!(back["data"].is_null());
            let back = Payload::from_base64(back["b64data"].as_str().unwrap()).unwrap();
            assert_eq!(back.as_bytes(), bytes);
        }
        assert!(Payload::from_base64("%").unwrap_err().starts_with("is not base64"));
    }
}
