//! The filter of a subscription by the tags of publications (`FilterNode` in client.proto).

use std::borrow::Cow;

use crate::json::{self, ObjectOnly, Text};

/// A node of the filter, as the client wrote it: a comparison, or the conjunction, disjunction or negation of others.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct FilterNode<'a> {
    /// Empty: a comparison. Else `and`, `or` or `not` of `nodes`.
    #[serde(borrow, deserialize_with = "json::text")]
    pub op: Cow<'a, str>,
    /// Name of the tag that is compared.
    #[serde(borrow, deserialize_with = "json::text")]
    pub key: Cow<'a, str>,
    /// How it is compared: `eq`, `neq`, `in`, `nin`, `ex`, `nex`, `sw`, `ew`, `ct`, `lt`, `lte`, `gt`, `gte`.
    #[serde(borrow, deserialize_with = "json::text")]
    pub cmp: Cow<'a, str>,
    /// With what.
    #[serde(borrow, deserialize_with = "json::text")]
    pub val: Cow<'a, str>,
    /// With which, of `in` and `nin`.
    #[serde(borrow, deserialize_with = "texts")]
    pub vals: Vec<Cow<'a, str>>,
    /// The nodes that `op` joins.
    #[serde(borrow, deserialize_with = "nodes")]
    pub nodes: Vec<FilterNode<'a>>,
}

impl FilterNode<'_> {
    /// Deepest nesting of a filter.
    pub const DEPTH_MAX: usize = 16;
}

fn texts<'de: 'a, 'a, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Cow<'a, str>>, D::Error> {
    let texts: Vec<Text<'a>> = json::nullable(deserializer)?;
    Ok(texts.into_iter().map(|Text(text)| text).collect())
}

fn nodes<'de: 'a, 'a, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<FilterNode<'a>>, D::Error> {
    let nodes: Vec<ObjectOnly<FilterNode<'a>>> = json::nullable(deserializer)?;
    Ok(nodes.into_iter().map(|ObjectOnly(node)| node).collect())
}
