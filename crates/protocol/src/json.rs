//! JSON text as bytes: payloads that are passed on unparsed, and functions that write JSON.
//!
//! These functions write output directly instead of building a tree of values: a publication is
//! encoded once per encoding, and its payload is copied unchanged.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// One JSON value as text, **on a single line**.
///
/// Newline-delimited JSON ends a message at `\n`, and server-sent events end a line at `\n` and
/// `\r`. In valid JSON both can only be insignificant whitespace between tokens (RFC 8259 §2 and
/// §7). A payload with line breaks is compacted on input, so that every transport may copy the
/// bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Json<'a>(Cow<'a, [u8]>);

/// Maximum nesting of arrays and objects in a payload.
///
/// Subscribers parse payloads, often recursively: Python's parser fails before 1,000 levels. One
/// client's payload must not break the others.
pub const DEPTH_MAX: usize = 128;

impl<'a> Json<'a> {
    /// Accepts `text` if it is one valid JSON value, and compacts it if it has line breaks.
    ///
    /// # Errors
    /// The parser's error with line and column when `text` is not one valid JSON value in UTF-8 of at most
    /// [`DEPTH_MAX`] levels.
    pub fn parse(text: &'a [u8]) -> Result<Json<'a>, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// Accepts a validated value from a trusted source, such as the claims of a token. Its depth is
    /// not checked.
    pub fn from_raw(raw: &'a RawValue) -> Json<'a> {
        Json(single_line(raw.get().as_bytes()))
    }

    /// Accepts JSON in base64, for a field that only allows JSON.
    ///
    /// # Errors
    /// A description of what is wrong with the base64 or the JSON.
    pub fn from_base64(text: &str) -> Result<Json<'static>, String> {
        let bytes = STANDARD.decode(text).map_err(|error| format!("is not base64: {error}"))?;
        let json = Json::parse(&bytes).map_err(|error| {
            format!("does not hold JSON, which is all that this field carries: {error}")
        })?;
        Ok(Json(Cow::Owned(json.0.into_owned())))
    }

    /// Returns the text, without `\n` and `\r`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the owned text.
    pub fn into_bytes(self) -> Box<[u8]> {
        self.0.into_owned().into_boxed_slice()
    }

    pub(crate) fn into_text(self) -> Cow<'a, [u8]> {
        self.0
    }

    /// Returns the length of the text in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Always returns false: even `null` has four bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?.get().as_bytes();
        if is_deeper(text, DEPTH_MAX) {
            return Err(D::Error::custom(format_args!("is nested deeper than {DEPTH_MAX} levels")));
        }
        Ok(Json(single_line(text)))
    }
}

/// Deserializes to `Some`, even from `null`, which is a valid payload.
///
/// # Errors
/// What `T` refuses.
pub fn payload<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Deserializes a value; `null` means "not given", as Go and JavaScript libraries write it.
///
/// # Errors
/// What `T` refuses.
pub fn nullable<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Deserializes a map; for itself and for each of its values `null` means "not given".
///
/// # Errors
/// What is no object, or has a value that `T` refuses.
pub fn nullable_map<'de, T, D>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    let map = Option::<BTreeMap<String, Option<T>>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(map.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect())
}

/// Returns the members of an object that a type does not read if they are `null`, beside those of `given`, which are required.
///
/// For tests: Go, C#, Jackson and Kotlin write `null` for what is not given, and Centrifugo takes it so.
///
/// # Panics
/// If `given` is no object that the type reads.
pub fn members_without_null<T: Deserialize<'static>>(given: &str) -> Vec<&'static str> {
    let read = |object: &serde_json::Map<String, serde_json::Value>| {
        let text = serde_json::to_string(object).expect("an object has a text");
        serde_json::from_str::<T>(Box::leak(text.into_boxed_str()))
    };
    let given: serde_json::Map<_, _> = serde_json::from_str(given).expect("an object");
    read(&given).unwrap_or_else(|error| panic!("{given:?}: {error}"));
    let mut probe = Probe(&[]);
    let _ = T::deserialize(&mut probe);
    let refuses_null = |member: &&'static str| {
        let mut object = given.clone();
        object.insert((*member).to_owned(), serde_json::Value::Null);
        !given.contains_key(*member) && read(&object).is_err()
    };
    probe.0.iter().copied().filter(refuses_null).collect()
}

/// Learns the members of a type, and reads nothing.
struct Probe(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut Probe {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("there is nothing to read"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        members: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0 = members;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq
        tuple tuple_struct map enum identifier ignored_any
    }
}

/// Deserializes an object; `null` gives the default.
///
/// # Errors
/// What is no object, or what `T` refuses.
pub fn object<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Option::<ObjectOnly<T>>::deserialize(deserializer)
        .map(|object| object.map(|ObjectOnly(value)| value).unwrap_or_default())
}

/// Deserializes an object; `null` gives `None`.
///
/// # Errors
/// What is no object, or what `T` refuses.
pub fn optional_object<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::<ObjectOnly<T>>::deserialize(deserializer)
        .map(|object| object.map(|ObjectOnly(value)| value))
}

/// Deserializes a `T` only from an object. (Serde also accepts an array with the fields in order.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectOnly<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ObjectOnly<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Visitor<T> {
            type Value = ObjectOnly<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ObjectOnly<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(ObjectOnly)
            }
        }
        deserializer.deserialize_map(Visitor(PhantomData))
    }
}

/// Deserializes a string, borrowed if it has no escapes; `null` gives the empty string.
///
/// # Errors
/// What is no string.
pub fn text<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'a, str>, D::Error> {
    Option::<Text<'a>>::deserialize(deserializer).map(|text| text.unwrap_or_default().0)
}

/// A `Cow<str>` that borrows when it is deserialized (serde's own always owns).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(v)))
            }

            fn visit_str<E>(self, v: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(v.to_owned())))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// Key and value pairs in the order of a JSON object.
///
/// A list, because the protocol's maps (`subs`, `headers`, `tags`) are small and iterated, and
/// because a repeated key must be an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs<'a, V>(pub Vec<(Cow<'a, str>, V)>);

impl<V> Default for Pairs<'_, V> {
    fn default() -> Self {
        Pairs(Vec::new())
    }
}

impl<'a, V> Pairs<'a, V> {
    /// Returns whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Iterates over the pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &V)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }

    /// Returns the value for `key`.
    pub fn get(&self, key: &str) -> Option<&V> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }
}

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for Pairs<'a, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> serde::de::Visitor<'de> for Visitor<V> {
            type Value = Pairs<'de, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = PairsBuilder::default();
                while let Some((Text(key), value)) = map.next_entry::<Text<'de>, V>()? {
                    pairs.push(key, value).map_err(A::Error::custom)?;
                }
                Ok(pairs.build())
            }
        }
        deserializer.deserialize_map(Visitor(PhantomData))
    }
}

/// Collects pairs, and rejects repeated keys.
#[derive(Debug)]
pub(crate) struct PairsBuilder<'a, V> {
    pairs: Vec<(Cow<'a, str>, V)>,
    seen: HashSet<Cow<'a, str>>,
}

impl<V> Default for PairsBuilder<'_, V> {
    fn default() -> Self {
        PairsBuilder { pairs: Vec::new(), seen: HashSet::new() }
    }
}

impl<'a, V> PairsBuilder<'a, V> {
    /// Adds a pair. Returns an error if the key is repeated.
    pub(crate) fn push(&mut self, key: Cow<'a, str>, value: V) -> Result<(), String> {
        /// Up to this length a linear search is cheaper than hashing.
        const FEW: usize = 16;
        let repeated = if self.pairs.len() < FEW {
            self.pairs.iter().any(|(k, _)| *k == key)
        } else {
            if self.seen.is_empty() {
                self.seen.extend(self.pairs.iter().map(|(k, _)| k.clone()));
            }
            !self.seen.insert(key.clone())
        };
        if repeated {
            return Err(format!("the key `{key}` is repeated"));
        }
        self.pairs.push((key, value));
        Ok(())
    }

    pub(crate) fn build(self) -> Pairs<'a, V> {
        Pairs(self.pairs)
    }
}

/// Parses an object into a `T`; the error names the field.
///
/// The fast path records no paths. Only if it fails is the text parsed again with paths recorded,
/// so valid input does not pay for it.
///
/// # Errors
/// [`ProtocolError`] with the path of the field.
pub fn from_slice<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, ProtocolError> {
    match serde_json::from_slice(text) {
        Ok(ObjectOnly(value)) => Ok(value),
        Err(error) => Err(explain::<T>(text, &error)),
    }
}

#[cold]
fn explain<'de, T: Deserialize<'de>>(text: &'de [u8], first: &serde_json::Error) -> ProtocolError {
    if !first.is_data() {
        return ProtocolError { field: String::new(), reason: first.to_string() };
    }
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let (field, reason) =
        match serde_path_to_error::deserialize::<_, ObjectOnly<T>>(&mut deserializer) {
            Ok(_) => (String::new(), first.to_string()),
            Err(error) => {
                let path = error.path().to_string();
                (if path == "." { String::new() } else { path }, error.inner().to_string())
            }
        };
    // The text is one line, so its column is useless; the field's name is clearer.
    let reason = match reason.find(" at line ") {
        Some(end) if !field.is_empty() => reason[..end].to_owned(),
        _ => reason,
    };
    ProtocolError { field, reason }
}

/// A violation of the protocol in a message, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolError {
    /// Path of the field, such as `subscribe.offset`; empty when the text is not JSON.
    pub field: String,
    /// What is wrong with the field.
    pub reason: String,
}

impl ProtocolError {
    /// Creates an error from the field and what is wrong with it.
    pub fn new(field: &str, reason: impl Into<String>) -> ProtocolError {
        ProtocolError { field: field.to_owned(), reason: reason.into() }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.reason)
        } else {
            write!(f, "{}: {}", self.field, self.reason)
        }
    }
}

impl std::error::Error for ProtocolError {}

/// Removes line breaks: returns `text` unchanged if it has none, otherwise without insignificant
/// whitespace.
///
/// `text` must be valid JSON.
pub fn single_line(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'\n', b'\r', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut compact = Vec::with_capacity(text.len());
    let mut in_string = false;
    let mut escaped = false;
    for &byte in text {
        if in_string {
            compact.push(byte);
            if escaped {
                escaped = false;
            } else if byte == b'\\' {
                escaped = true;
            } else if byte == b'"' {
                in_string = false;
            }
        } else if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            compact.push(byte);
            in_string = byte == b'"';
        }
    }
    Cow::Owned(compact)
}

/// Returns whether valid JSON has more than `max` levels.
fn is_deeper(text: &[u8], max: usize) -> bool {
    // A level takes two bytes, so most payloads need no scan.
    if text.len() <= 2 * max {
        return false;
    }
    let mut depth = 0;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > max {
                    return true;
                }
            }
            b']' | b'}' => depth -= 1,
            b'"' => {
                // Skip to the end of the string: a quote that is not escaped.
                while let Some(next) =
                    text.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest))
                {
                    let escape = text[at + next] == b'\\';
                    at += next + 1 + usize::from(escape);
                    if !escape {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    false
}

/// Appends `text` as a JSON string with its quotes (RFC 8259 §7).
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut from = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[from..at]);
        from = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
        }
    }
    out.extend_from_slice(&bytes[from..]);
    out.push(b'"');
}

/// Appends an integer.
pub fn write_integer(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Writes the members of a JSON object, separated by commas. Keys are not escaped.
#[derive(Debug)]
pub struct Object<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl<'o> Object<'o> {
    /// Opens an object; [`Object::end`] closes it.
    pub fn begin(out: &'o mut Vec<u8>) -> Object<'o> {
        out.push(b'{');
        Object { out, first: true }
    }

    /// Writes `"name":` and returns the buffer for the value.
    pub fn key(&mut self, name: &str) -> &mut Vec<u8> {
        self.out.extend_from_slice(if self.first { b"\"" } else { b",\"" });
        self.first = false;
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    /// Writes `"name":` with the name escaped, and returns the buffer for the value.
    pub fn text_key(&mut self, name: &str) -> &mut Vec<u8> {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
        write_string(self.out, name);
        self.out.push(b':');
        self.out
    }

    /// Writes a string member.
    pub fn string(&mut self, name: &str, value: &str) -> &mut Self {
        write_string(self.key(name), value);
        self
    }

    /// Writes an integer member.
    pub fn integer(&mut self, name: &str, value: impl itoa::Integer) -> &mut Self {
        write_integer(self.key(name), value);
        self
    }

    /// Writes `"name":true` or nothing: a missing member means false.
    pub fn flag(&mut self, name: &str, value: bool) -> &mut Self {
        if value {
            self.key(name).extend_from_slice(b"true");
        }
        self
    }

    /// Writes a member whose value is JSON.
    pub fn raw(&mut self, name: &str, value: &[u8]) -> &mut Self {
        self.key(name).extend_from_slice(value);
        self
    }

    /// Closes the object.
    pub fn end(self) {
        self.out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_repeated_key_is_found_among_few_and_among_many() {
        for count in [1, 2, 15, 16, 17, 40] {
            let members: Vec<_> = (0..count).map(|n| format!("\"k{n}\":{n}")).collect();
            let object = format!("{{{}}}", members.join(","));
            let pairs: Pairs<'_, u32> = serde_json::from_str(&object).unwrap();
            assert_eq!(pairs.len(), count);
            assert_eq!(pairs.get("k0"), Some(&0));
            let object = format!("{{{},\"k0\":1}}", members.join(","));
            let error = serde_json::from_str::<Pairs<'_, u32>>(&object).unwrap_err();
            assert!(error.to_string().starts_with("the key `k0` is repeated"), "{error}");
        }
    }

    #[test]
    fn an_object_is_written_in_order() {
        let mut out = Vec::new();
        let mut object = Object::begin(&mut out);
        object.string("a", "\u{1}\"\\/\t").integer("b", -1).flag("c", true).flag("d", false);
        Object::begin(object.text_key("e\"")).end();
        object.raw("f", b"[]");
        object.end();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            r#"{"a":"\u0001\"\\/\t","b":-1,"c":true,"e\"":{},"f":[]}"#
        );
    }

    proptest! {
        #[test]
        fn any_string_comes_back(text in any::<String>()) {
            let mut out = Vec::new();
            write_string(&mut out, &text);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }

        #[test]
        fn a_single_line_has_the_same_value(text in "[ \\t\r\n\"a\\\\{}\\[\\]:,1]{0,60}") {
            if let Ok(value) = serde_json::from_str::<serde_json::Value>(&text)
                && let Ok(json) = Json::parse(text.as_bytes())
            {
                prop_assert!(memchr::memchr2(b'\n', b'\r', json.as_bytes()).is_none());
                let read: serde_json::Value = serde_json::from_slice(json.as_bytes()).unwrap();
                prop_assert_eq!(read, value);
            }
        }

        #[test]
        fn depth_is_counted_as_a_parser_would(depth in 0usize..200, text in "[\"\\\\\\[{]{0,6}") {
            let text = serde_json::to_string(&text).unwrap();
            let json = format!("{}{text}{}", "[".repeat(depth), "]".repeat(depth));
            prop_assert_eq!(Json::parse(json.as_bytes()).is_ok(), depth <= DEPTH_MAX);
        }
    }
}
