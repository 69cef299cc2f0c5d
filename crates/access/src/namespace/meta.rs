//! The `meta` of a connection, as its expressions see it.

use std::cell::OnceCell;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::to_value;
use serde_json::value::RawValue;

/// The largest `meta` that is evaluated, in bytes.
pub(super) const META_BYTES_MAX: usize = 16 * 1024;
/// The most memory of one connection's parsed `meta`. A larger one is parsed for each command, and its client is charged for it.
const PARSED_BYTES_MAX: usize = 256 * 1024;
/// The most memory of all of them in the process.
const ALL_PARSED_BYTES_MAX: usize = 64 << 20;
/// Memory of a value in a parsed `meta`, without the bytes of its text.
const VALUE_BYTES: usize = 96;

static ALL_PARSED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The `meta` of a connection: raw JSON, and its value once an expression has looked at it.
pub struct Meta {
    raw: Box<[u8]>,
    parsed: OnceCell<Option<Parsed>>,
}

/// A parsed `meta`, whose memory is counted.
pub(super) struct Parsed {
    value: Box<dyn Val>,
    bytes: usize,
}

impl Drop for Parsed {
    fn drop(&mut self) {
        ALL_PARSED_BYTES.fetch_sub(self.bytes, Relaxed);
    }
}

impl From<&RawValue> for Meta {
    fn from(raw: &RawValue) -> Meta {
        Box::<[u8]>::from(raw.get().as_bytes()).into()
    }
}

impl From<Box<[u8]>> for Meta {
    fn from(raw: Box<[u8]>) -> Meta {
        Meta { raw, parsed: OnceCell::new() }
    }
}

impl Clone for Meta {
    fn clone(&self) -> Meta {
        self.raw.clone().into()
    }
}

impl PartialEq for Meta {
    fn eq(&self, other: &Meta) -> bool {
        self.raw == other.raw
    }
}

impl Eq for Meta {}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.raw))
    }
}

impl Meta {
    /// Returns the raw JSON.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Returns the value; `None` if the JSON is malformed or too long. It is parsed once, and kept if there is room for it.
    pub(super) fn value(&self) -> Option<MetaValue<'_>> {
        if let Some(parsed) = self.parsed.get() {
            return parsed.as_ref().map(|parsed| MetaValue::Kept(&*parsed.value));
        }
        let Some((value, bytes)) = parse(&self.raw) else {
            // What is wrong stays so.
            let _ = self.parsed.set(None);
            return None;
        };
        if bytes > PARSED_BYTES_MAX {
            return Some(MetaValue::Once(value));
        }
        let parsed = Parsed { value, bytes };
        if ALL_PARSED_BYTES.fetch_add(bytes, Relaxed) + bytes > ALL_PARSED_BYTES_MAX {
            return Some(MetaValue::Counted(parsed));
        }
        let kept = self.parsed.get_or_init(|| Some(parsed));
        kept.as_ref().map(|parsed| MetaValue::Kept(&*parsed.value))
    }
}

/// The value of a `meta`, kept by it or parsed for one evaluation.
pub(super) enum MetaValue<'m> {
    Kept(&'m dyn Val),
    Once(Box<dyn Val>),
    Counted(Parsed),
}

impl MetaValue<'_> {
    pub(super) fn as_val(&self) -> &dyn Val {
        match self {
            MetaValue::Kept(value) => *value,
            MetaValue::Once(value) | MetaValue::Counted(Parsed { value, .. }) => &**value,
        }
    }
}

/// Resolves the variable `meta`, without a copy.
pub(super) struct MetaResolver<'m>(pub(super) &'m dyn Val);

impl VariableResolver for MetaResolver<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        (variable == "meta").then_some(CowVal::Borrowed(self.0))
    }
}

fn parse(raw: &[u8]) -> Option<(Box<dyn Val>, usize)> {
    if raw.len() > META_BYTES_MAX {
        return None;
    }
    let json = serde_json::from_slice::<serde_json::Value>(raw).ok()?;
    let bytes = raw.len() + values(&json) * VALUE_BYTES;
    Some((to_value(json).ok()?.try_into().ok()?, bytes))
}

/// Counts the values of a JSON value, itself included.
fn values(json: &serde_json::Value) -> usize {
    1 + match json {
        serde_json::Value::Array(all) => all.iter().map(values).sum::<usize>(),
        serde_json::Value::Object(all) => all.values().map(|value| 1 + values(value)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(text: &str) -> Meta {
        Box::<[u8]>::from(text.as_bytes()).into()
    }

    #[test]
    fn meta_is_parsed_for_the_first_expression_and_not_for_later_ones() {
        let of_roles = meta(r#"{"roles":["user","admin"]}"#);
        assert!(of_roles.parsed.get().is_none(), "who has no expressions pays nothing");
        assert!(matches!(of_roles.value(), Some(MetaValue::Kept(_))));
        let kept =
            of_roles.parsed.get().and_then(Option::as_ref).map(|parsed| &raw const *parsed.value);
        of_roles.value().unwrap();
        let again =
            of_roles.parsed.get().and_then(Option::as_ref).map(|parsed| &raw const *parsed.value);
        assert!(kept.is_some_and(|kept| std::ptr::addr_eq(kept, again.unwrap())));
        let malformed = meta("[1");
        assert!(malformed.value().is_none() && malformed.value().is_none());
        assert!(malformed.parsed.get().is_some(), "nor is what is malformed parsed again");
    }

    #[test]
    fn meta_of_many_values_is_not_kept() {
        let many = meta(&format!("[{}7]", "7,".repeat(META_BYTES_MAX / 2 - 2)));
        assert!(matches!(many.value(), Some(MetaValue::Once(_))));
        assert!(many.parsed.get().is_none());
        let long = meta(&format!("[{}7]", "7,".repeat(META_BYTES_MAX / 2)));
        assert!(long.value().is_none());
    }
}
