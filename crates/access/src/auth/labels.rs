//! Labels of a connection, as tokens and backends set them, and their limits.

use std::collections::BTreeMap;
use std::fmt;

use dunlin_hub::Tags;
use dunlin_protocol::json::{Object, write_string};

/// Most labels of a connection.
pub(crate) const LABELS_MAX: usize = 32;
/// Most bytes of their names and values together.
pub(crate) const LABELS_BYTES_MAX: usize = 2_048;

/// The labels exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelsError {
    /// There are too many; their number.
    Count(usize),
    /// They are too long; their bytes.
    Bytes(usize),
}

impl fmt::Display for LabelsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabelsError::Count(is) => {
                write!(f, "labels: there are {is}, a connection has at most {LABELS_MAX}")
            }
            LabelsError::Bytes(is) => write!(
                f,
                "labels: names and values have {is} bytes, those of a connection at most {LABELS_BYTES_MAX}"
            ),
        }
    }
}

/// Converts labels to the form of the hub, sorted by name.
///
/// # Errors
/// The labels exceed a limit.
pub fn tags_of(labels: BTreeMap<String, String>) -> Result<Tags, LabelsError> {
    if labels.len() > LABELS_MAX {
        return Err(LabelsError::Count(labels.len()));
    }
    let bytes = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > LABELS_BYTES_MAX {
        return Err(LabelsError::Bytes(bytes));
    }
    Ok(labels.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
}

/// Writes the labels of a connection into its description, if it has any.
pub fn write_labels(object: &mut Object<'_>, labels: &Tags) {
    if labels.is_empty() {
        return;
    }
    let mut members = Object::begin(object.key("labels"));
    for (name, value) in labels.iter() {
        write_string(members.text_key(name), value);
    }
    members.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_and_the_bound_is_named() {
        let many = |count: usize, value: &str| -> BTreeMap<String, String> {
            (0..count).map(|n| (format!("{n:02}"), value.to_owned())).collect()
        };
        assert_eq!(tags_of(many(LABELS_MAX, &"v".repeat(62))).unwrap().len(), LABELS_MAX);
        let bytes = tags_of(many(LABELS_MAX, &"v".repeat(63))).unwrap_err();
        assert_eq!(bytes, LabelsError::Bytes(2_080));
        assert!(bytes.to_string().ends_with("at most 2048"), "{bytes}");
        let count = tags_of(many(10_000, "")).unwrap_err();
        assert_eq!(count.to_string(), "labels: there are 10000, a connection has at most 32");
        let long = tags_of([("name".to_owned(), "v".repeat(1 << 20))].into());
        assert_eq!(long, Err(LabelsError::Bytes((1 << 20) + 4)));
        assert!(tags_of(BTreeMap::new()).unwrap().is_empty());
    }
}
