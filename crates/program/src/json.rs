//! JSON of programs: text to the values of a machine, and back. Bounded in depth and bytes.

use std::fmt;

use mlua::{Lua, Table, Value};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// The deepest nesting of a value.
const DEPTH_MAX: usize = 64;
/// Integers up to here are exact in a double.
const INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// Parses a JSON text. `array` is the metatable of arrays, which distinguishes an empty one from an empty object.
///
/// # Errors
/// It is no JSON, or the machine has no memory for it.
pub(crate) fn decode(lua: &Lua, array: &Table, text: &[u8]) -> mlua::Result<Value> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    let seed = Seed { lua, array };
    let value = seed.deserialize(&mut parser).and_then(|value| parser.end().map(|()| value));
    value.map_err(|error| mlua::Error::runtime(format!("it is no JSON: {error}")))
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    lua: &'a Lua,
    array: &'a Table,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::NULL)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.lua.create_string(text).map(Value::String).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let table = self.lua.create_table().map_err(A::Error::custom)?;
        let mut at = 0;
        while let Some(item) = items.next_element_seed(self)? {
            at += 1;
            table.raw_set(at, item).map_err(A::Error::custom)?;
        }
        table.set_metatable(Some(self.array.clone())).map_err(A::Error::custom)?;
        Ok(Value::Table(table))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let table = self.lua.create_table().map_err(A::Error::custom)?;
        while let Some(key) = members.next_key_seed(self)? {
            let value = members.next_value_seed(self)?;
            table.raw_set(key, value).map_err(A::Error::custom)?;
        }
        Ok(Value::Table(table))
    }
}

/// Writes a value as JSON, of `bytes_max` bytes at most.
///
/// # Errors
/// The value has no JSON, and why.
pub(crate) fn encode(value: &Value, array: &Table, bytes_max: usize) -> Result<Vec<u8>, String> {
    let mut writer = Writer { out: Vec::new(), array, bytes_max };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: Vec<u8>,
    array: &'a Table,
    bytes_max: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!(
                "it is nested more than {DEPTH_MAX} deep; is a table within itself?"
            ));
        }
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            value if value.is_null() => self.out.extend_from_slice(b"null"),
            Value::Boolean(value) => {
                self.out.extend_from_slice(if *value { b"true" } else { b"false" });
            }
            Value::Integer(value) => self.out.extend_from_slice(value.to_string().as_bytes()),
            Value::Number(value) => self.number(*value)?,
            Value::String(text) => self.text(&text.as_bytes())?,
            Value::Table(table) => self.table(table, depth)?,
            other => {
                return Err(format!("a {} has no JSON", other.type_name()));
            }
        }
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        match self.out.len() <= self.bytes_max {
            true => Ok(()),
            false => Err(format!("it is longer than {} bytes as JSON", self.bytes_max)),
        }
    }

    fn number(&mut self, value: f64) -> Result<(), String> {
        if !value.is_finite() {
            return Err(format!("{value} has no JSON"));
        }
        let text = match value.fract() == 0.0 && value.abs() <= INTEGER_MAX {
            true => (value as i64).to_string(),
            false => value.to_string(),
        };
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn text(&mut self, bytes: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| "a string is no UTF-8, which JSON demands".to_owned())?;
        if bytes.len() > self.bytes_max {
            return Err(format!("it is longer than {} bytes as JSON", self.bytes_max));
        }
        // Writing to a vector does not fail.
        let _ = serde_json::to_writer(&mut self.out, text);
        Ok(())
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        let length = table.raw_len();
        let is_array = length > 0 || table.metatable().is_some_and(|of| of == *self.array);
        let mut count = 0;
        if is_array {
            self.out.push(b'[');
            for at in 1..=length {
                if at > 1 {
                    self.out.push(b',');
                }
                let item: Value = table.raw_get(at).map_err(|error| error.to_string())?;
                self.value(&item, depth + 1)?;
            }
            self.out.push(b']');
            for pair in table.pairs::<Value, Value>() {
                pair.map_err(|error| error.to_string())?;
                count += 1;
            }
            return match count == length {
                true => Ok(()),
                false => {
                    Err("a table has both items and named members; JSON has arrays and objects"
                        .into())
                }
            };
        }
        self.out.push(b'{');
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(|error| error.to_string())?;
            if count > 0 {
                self.out.push(b',');
            }
            count += 1;
            match &key {
                Value::String(key) => self.text(&key.as_bytes())?,
                other => {
                    return Err(format!(
                        "a {} cannot be a name in JSON; use tostring()",
                        other.type_name()
                    ));
                }
            }
            self.out.push(b':');
            self.value(&value, depth + 1)?;
        }
        self.out.push(b'}');
        Ok(())
    }
}
