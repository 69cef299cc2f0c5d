//! JSON from callers: bounded, and without duplicate keys.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;

/// Maximum size of a text. A hundred thousand members and ten thousand namespaces with every key written out take a
/// third of it.
pub const BYTES_MAX: usize = 64 << 20;
/// Maximum nesting; the schema needs seven levels.
pub const DEPTH_MAX: usize = 32;
/// Maximum number of values. Each takes some tens of bytes in memory, so this bounds the memory that a short text can
/// cause.
pub const VALUES_MAX: usize = 4_000_000;

/// Parses a text of at most `bytes_max` bytes, and never more than [`BYTES_MAX`].
///
/// # Errors
/// A syntax error with line and column; every duplicate key and every value nested too deep, with its pointer.
pub fn parse(text: &[u8], bytes_max: usize) -> Result<Value, ConfigErrors> {
    let bytes_max = bytes_max.min(BYTES_MAX);
    if text.len() > bytes_max {
        return Err(whole(format!("the text has {} bytes", text.len()))
            .with_fix(format!("send at most {bytes_max}, in several changes"))
            .into());
    }
    let reading = RefCell::new(JsonReading::default());
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let read = Strict { reading: &reading }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    let mut errors = reading.into_inner().errors;
    match read {
        Ok(value) => errors.or(value),
        Err(error) => {
            // If our visitor stopped the parser, its own errors explain why.
            if errors.is_empty() || error.classify() != serde_json::error::Category::Data {
                errors.push(whole(format!("this is not JSON: {error}")));
            }
            Err(errors)
        }
    }
}

fn whole(message: String) -> ConfigError {
    ConfigError::new(Path::root(), message)
}

#[derive(Default)]
struct JsonReading {
    steps: Vec<String>,
    values: usize,
    errors: ConfigErrors,
}

#[derive(Clone, Copy)]
struct Strict<'r> {
    reading: &'r RefCell<JsonReading>,
}

impl Strict<'_> {
    fn enter<E: serde::de::Error>(self) -> Result<(), E> {
        let mut reading = self.reading.borrow_mut();
        reading.values += 1;
        let error = if reading.steps.len() > DEPTH_MAX {
            format!("it is nested deeper than {DEPTH_MAX}")
        } else if reading.values > VALUES_MAX {
            format!("there are more than {VALUES_MAX} values")
        } else {
            return Ok(());
        };
        let path = Path::from_steps(reading.steps.clone());
        reading.errors.push(ConfigError::new(path, error.clone()));
        Err(E::custom(error))
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.enter()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, is: bool) -> Result<Value, E> {
        Ok(Value::Bool(is))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        let number = Number::from_f64(number).ok_or_else(|| E::custom("no finite number"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        loop {
            self.reading.borrow_mut().steps.push(elements.len().to_string());
            let element = access.next_element_seed(self)?;
            self.reading.borrow_mut().steps.pop();
            match element {
                Some(element) => elements.push(element),
                None => return Ok(Value::Array(elements)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            self.reading.borrow_mut().steps.push(key.clone());
            let value = access.next_value_seed(self)?;
            let mut reading = self.reading.borrow_mut();
            if object.insert(key, value).is_some() {
                let path = Path::from_steps(reading.steps.clone());
                reading.errors.add(path, "this key is given twice", "leave one of them out");
                if reading.errors.len() > ERRORS_ENOUGH {
                    return Err(A::Error::custom("too many keys are given twice"));
                }
            }
            reading.steps.pop();
        }
        Ok(Value::Object(object))
    }
}

/// Number of duplicate keys after which parsing stops.
const ERRORS_ENOUGH: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(text: &str) -> Vec<String> {
        let errors = parse(text.as_bytes(), BYTES_MAX).expect_err("an error");
        errors.iter().map(|error| format!("{} {}", error.path.pointer(), error.message)).collect()
    }

    #[test]
    fn json_value_is_read_as_it_stands() {
        let text = r#"{"b": [1, -2, 2.5, "x\n", true, null], "a": {"c": {}}}"#;
        let value = parse(text.as_bytes(), 1_000).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn every_key_given_twice_is_named_by_its_pointer() {
        assert_eq!(
            reported(r#"{"a": {"x/y": 1, "x/y": 2}, "b": [{"c": 1, "c": 1}], "a": 3}"#),
            [
                "/a/x~1y this key is given twice",
                "/b/0/c this key is given twice",
                "/a this key is given twice"
            ]
        );
    }

    #[test]
    fn ten_thousand_levels_are_refused_at_the_thirty_third() {
        let arrays = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let reported = reported(&arrays);
        assert_eq!(reported.len(), 1);
        assert!(reported[0].ends_with(" it is nested deeper than 32"), "{reported:?}");
        let objects = "{\"a\":".repeat(10_000);
        assert!(self::reported(&objects)[0].starts_with("/a/a/a/a/"));
    }

    #[test]
    fn malformed_or_long_json_is_reported() {
        assert!(reported("{\"a\": 1,}")[0].contains("this is not JSON: "));
        assert!(reported("{} {}")[0].contains("trailing characters"));
        assert!(reported("")[0].contains("EOF"));
        let errors = parse(b"[1, 2, 3]", 4).unwrap_err();
        assert_eq!(errors.to_string(), "the text has 9 bytes; send at most 4, in several changes");
    }
}
