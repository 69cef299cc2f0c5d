//! Reads and writes single plain keys of a table, without code for each key.

use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde::ser::{Impossible, SerializeStruct};
use serde::{Serialize, Serializer};
use serde_json::{Error, Value};

/// Keys and their values, in the order of the type.
pub(crate) type Fields = Vec<(&'static str, Value)>;

/// Initial capacity, about the size of the largest table: comparing ten thousand tables should not reallocate.
const KEYS: usize = 24;

/// Returns the keys of a table except those in `except`.
pub(crate) fn of<T: Serialize>(table: &T, except: &[&str]) -> Fields {
    let wanted = FieldSelection::AllBut(except);
    // The serializer refuses only types that are not structs, and every table is one.
    table.serialize(Keys { wanted, fields: Vec::with_capacity(KEYS) }).unwrap_or_default()
}

/// Returns the value of one key of a table.
pub(crate) fn one<T: Serialize>(table: &T, key: &str) -> Option<Value> {
    let fields =
        table.serialize(Keys { wanted: FieldSelection::Only(key), fields: Vec::new() }).ok()?;
    fields.into_iter().next().map(|(_, value)| value)
}

/// Builds a table from these keys; missing ones have their defaults.
pub(crate) fn read<T: DeserializeOwned>(fields: Fields) -> Result<T, Error> {
    T::deserialize(MapDeserializer::new(fields.into_iter()))
}

#[derive(Clone, Copy)]
enum FieldSelection<'a> {
    AllBut(&'a [&'a str]),
    Only(&'a str),
}

struct Keys<'a> {
    wanted: FieldSelection<'a>,
    fields: Fields,
}

impl SerializeStruct for Keys<'_> {
    type Ok = Fields;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        let wanted = match self.wanted {
            FieldSelection::AllBut(except) => !except.contains(&key),
            FieldSelection::Only(one) => one == key,
        };
        if wanted {
            self.fields.push((key, serde_json::to_value(value)?));
        }
        Ok(())
    }

    fn end(self) -> Result<Fields, Error> {
        Ok(self.fields)
    }
}

/// Every type that is not a struct.
macro_rules! refuse {
    ($($name:ident($($argument:ty),*) -> $out:ty;)*) => {
        $(fn $name(self $(, _: $argument)*) -> Result<$out, Error> { Err(no_table()) })*
    };
}

fn no_table() -> Error {
    serde::ser::Error::custom("this is no table")
}

impl<'a> Serializer for Keys<'a> {
    type Ok = Fields;
    type Error = Error;
    type SerializeSeq = Impossible<Fields, Error>;
    type SerializeTuple = Impossible<Fields, Error>;
    type SerializeTupleStruct = Impossible<Fields, Error>;
    type SerializeTupleVariant = Impossible<Fields, Error>;
    type SerializeMap = Impossible<Fields, Error>;
    type SerializeStruct = Keys<'a>;
    type SerializeStructVariant = Impossible<Fields, Error>;

    fn serialize_struct(mut self, _: &'static str, keys: usize) -> Result<Keys<'a>, Error> {
        if let FieldSelection::AllBut(_) = self.wanted {
            self.fields.reserve(keys);
        }
        Ok(self)
    }

    refuse! {
        serialize_bool(bool) -> Fields;
        serialize_i8(i8) -> Fields;
        serialize_i16(i16) -> Fields;
        serialize_i32(i32) -> Fields;
        serialize_i64(i64) -> Fields;
        serialize_u8(u8) -> Fields;
        serialize_u16(u16) -> Fields;
        serialize_u32(u32) -> Fields;
        serialize_u64(u64) -> Fields;
        serialize_f32(f32) -> Fields;
        serialize_f64(f64) -> Fields;
        serialize_char(char) -> Fields;
        serialize_str(&str) -> Fields;
        serialize_bytes(&[u8]) -> Fields;
        serialize_none() -> Fields;
        serialize_unit() -> Fields;
        serialize_unit_struct(&'static str) -> Fields;
        serialize_unit_variant(&'static str, u32, &'static str) -> Fields;
        serialize_seq(Option<usize>) -> Self::SerializeSeq;
        serialize_tuple(usize) -> Self::SerializeTuple;
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant;
        serialize_map(Option<usize>) -> Self::SerializeMap;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant;
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Fields, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Fields, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<Fields, Error> {
        Err(no_table())
    }
}
