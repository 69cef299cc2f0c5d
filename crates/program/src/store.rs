//! Values that programs keep under names, with expiry and a bound.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// What an entry takes beside its key and its value.
const ENTRY_BYTES: usize = 96;
/// The longest key.
const KEY_BYTES_MAX: usize = 256;

/// Values as JSON, by key. A store that is full takes nothing more until something expires or is removed.
#[derive(Debug)]
pub struct Store {
    of: HashMap<Box<str>, Entry>,
    bytes: usize,
    bytes_max: usize,
    swept_ms: u64,
}

#[derive(Debug)]
struct Entry {
    value: Box<str>,
    expires_ms: u64,
}

#[derive(Deserialize)]
struct Call<'a> {
    op: &'a str,
    key: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    value: Option<&'a RawValue>,
    #[serde(borrow, default)]
    old: Option<&'a RawValue>,
    #[serde(default)]
    seconds: Option<f64>,
}

/// Why a call of a store has failed: a code of the Centrifugal protocol, and the reason.
pub type StoreError = (u32, &'static str);

const BAD: u32 = 107;
const FULL: StoreError = (106, "the store is full; let values expire, or delete some");

impl Store {
    /// Creates a store of so many bytes.
    pub fn new(bytes_max: usize) -> Store {
        Store { of: HashMap::new(), bytes: 0, bytes_max, swept_ms: 0 }
    }

    /// Executes a call: `{"op":"get"|"set"|"incr"|"cas","key":…,"value":…,"old":…,"seconds":…}`. A value of `null` is none.
    /// Returns its result as JSON.
    ///
    /// # Errors
    /// The call is malformed, the value is no number, or the store is full.
    pub fn call(&mut self, call: &[u8], now_ms: u64) -> Result<Vec<u8>, StoreError> {
        let call: Call<'_> = serde_json::from_slice(call)
            .map_err(|_| (BAD, "a key is text, and the seconds are a number"))?;
        if call.key.len() > KEY_BYTES_MAX {
            return Err((BAD, "a key has at most 256 bytes"));
        }
        let seconds = call.seconds.unwrap_or(f64::INFINITY);
        let expires_ms = match seconds.is_finite() {
            true => now_ms.saturating_add((seconds.max(0.0) * 1_000.0) as u64),
            false => u64::MAX,
        };
        let value = call.value.map(RawValue::get);
        match call.op {
            "get" => Ok(self.get(&call.key, now_ms).unwrap_or("null").as_bytes().to_vec()),
            "set" => {
                self.put(&call.key, value, expires_ms, now_ms)?;
                Ok(b"true".to_vec())
            }
            "incr" => {
                let number = |text: &str| text.parse::<f64>().ok();
                let by = value.map_or(Some(1.0), number);
                let held = self.get(&call.key, now_ms).map_or(Some(0.0), number);
                let (Some(by), Some(held)) = (by, held) else {
                    return Err((BAD, "the value is no number"));
                };
                // One that is there keeps its expiry, so that a counter of a minute ends with the minute.
                let expires_ms = self.of.get(&*call.key).map_or(expires_ms, |of| of.expires_ms);
                let sum = (held + by).to_string();
                self.put(&call.key, Some(&sum), expires_ms, now_ms)?;
                Ok(sum.into_bytes())
            }
            "cas" => {
                if self.get(&call.key, now_ms) != call.old.map(RawValue::get) {
                    return Ok(b"false".to_vec());
                }
                self.put(&call.key, value, expires_ms, now_ms)?;
                Ok(b"true".to_vec())
            }
            _ => Err((BAD, "a store has get, set, incr and cas")),
        }
    }

    fn get(&mut self, key: &str, now_ms: u64) -> Option<&str> {
        if self.of.get(key).is_some_and(|of| of.expires_ms <= now_ms) {
            self.remove(key);
        }
        self.of.get(key).map(|of| &*of.value)
    }

    fn put(
        &mut self,
        key: &str,
        value: Option<&str>,
        expires_ms: u64,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let Some(value) = value else {
            self.remove(key);
            return Ok(());
        };
        let held = self.of.get(key).map_or(0, |of| bytes_of(key, &of.value));
        let needed = bytes_of(key, value);
        if self.bytes - held + needed > self.bytes_max {
            self.sweep(now_ms);
        }
        let held = self.of.get(key).map_or(0, |of| bytes_of(key, &of.value));
        if self.bytes - held + needed > self.bytes_max {
            return Err(FULL);
        }
        self.bytes = self.bytes - held + needed;
        self.of.insert(key.into(), Entry { value: value.into(), expires_ms });
        Ok(())
    }

    fn remove(&mut self, key: &str) {
        if let Some(of) = self.of.remove(key) {
            self.bytes -= bytes_of(key, &of.value);
        }
    }

    /// Removes what has expired, at most once a second: a full store must not be walked for each call.
    fn sweep(&mut self, now_ms: u64) {
        if now_ms < self.swept_ms + 1_000 {
            return;
        }
        self.swept_ms = now_ms;
        let bytes = &mut self.bytes;
        self.of.retain(|key, of| {
            let stays = of.expires_ms > now_ms;
            if !stays {
                *bytes -= bytes_of(key, &of.value);
            }
            stays
        });
    }
}

fn bytes_of(key: &str, value: &str) -> usize {
    key.len() + value.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(store: &mut Store, now_ms: u64, call: &str) -> Result<String, u32> {
        let result = store.call(call.as_bytes(), now_ms).map_err(|(code, _)| code)?;
        Ok(String::from_utf8(result).unwrap())
    }

    #[test]
    fn a_value_expires_and_a_counter_keeps_its_expiry() {
        let mut store = Store::new(1 << 16);
        let incr = r#"{"op":"incr","key":"n","seconds":10}"#;
        assert_eq!(call(&mut store, 0, incr), Ok("1".into()));
        assert_eq!(call(&mut store, 9_000, incr), Ok("2".into()));
        assert_eq!(call(&mut store, 10_000, r#"{"op":"get","key":"n"}"#), Ok("null".into()));
        assert_eq!(call(&mut store, 10_000, incr), Ok("1".into()));
    }

    #[test]
    fn a_value_is_replaced_only_by_who_knows_it() {
        let mut store = Store::new(1 << 16);
        let cas = |old: &str, value: &str| {
            format!(r#"{{"op":"cas","key":"k","old":{old},"value":{value}}}"#)
        };
        assert_eq!(call(&mut store, 0, &cas("null", "1")), Ok("true".into()));
        assert_eq!(call(&mut store, 0, &cas("null", "2")), Ok("false".into()));
        assert_eq!(call(&mut store, 0, &cas("1", "null")), Ok("true".into()));
        assert_eq!((store.of.len(), store.bytes), (0, 0));
    }

    #[test]
    fn a_full_store_refuses_until_something_expires() {
        let mut store = Store::new(2 * (ENTRY_BYTES + 2));
        let set = |key: &str| format!(r#"{{"op":"set","key":"{key}","value":1,"seconds":2}}"#);
        assert!(call(&mut store, 1_000, &set("a")).is_ok());
        assert!(call(&mut store, 1_000, &set("b")).is_ok());
        assert!(call(&mut store, 1_000, &set("a")).is_ok(), "one that is there is replaced");
        assert_eq!(call(&mut store, 2_000, &set("c")), Err(106));
        assert!(call(&mut store, 3_000, &set("c")).is_ok());
        assert_eq!(call(&mut store, 3_000, r#"{"op":"pop","key":"c"}"#), Err(BAD));
        assert_eq!(call(&mut store, 3_000, r#"{"op":"incr","key":7}"#), Err(BAD));
    }
}
