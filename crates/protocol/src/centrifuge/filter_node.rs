//! The filter of a subscription by the tags of publications (`FilterNode` in client.proto).

use std::borrow::Cow;

use dunlin_hub::{NumberOrder, TagCondition, TagFilter};

use crate::json::{self, Object, ObjectOnly, Text, write_string};

/// A node of the filter, as received: a comparison, or the conjunction, disjunction or negation of other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct FilterNode<'a> {
    /// Empty for a comparison. Otherwise `and`, `or` or `not` of `nodes`.
    #[serde(borrow, deserialize_with = "json::text")]
    pub op: Cow<'a, str>,
    /// Name of the tag to compare.
    #[serde(borrow, deserialize_with = "json::text")]
    pub key: Cow<'a, str>,
    /// The comparison: `eq`, `neq`, `in`, `nin`, `ex`, `nex`, `sw`, `ew`, `ct`, `lt`, `lte`, `gt`, `gte`.
    #[serde(borrow, deserialize_with = "json::text")]
    pub cmp: Cow<'a, str>,
    /// The value to compare with.
    #[serde(borrow, deserialize_with = "json::text")]
    pub val: Cow<'a, str>,
    /// The values to compare with, for `in` and `nin`.
    #[serde(borrow, deserialize_with = "texts")]
    pub vals: Vec<Cow<'a, str>>,
    /// The operands of `op`.
    #[serde(borrow, deserialize_with = "nodes")]
    pub nodes: Vec<FilterNode<'a>>,
}

impl FilterNode<'_> {
    /// Maximum nesting of a filter.
    pub const DEPTH_MAX: usize = 16;
    /// Maximum number of nodes and values of a filter.
    pub const PARTS_MAX: usize = 128;
    /// Maximum size of a filter in bytes, for its texts and its structure.
    pub const BYTES_MAX: usize = 16 << 10;

    /// Converts the nodes to a filter.
    ///
    /// # Errors
    ///
    /// Returns a description of the error, for the client.
    pub fn to_filter(&self) -> Result<TagFilter, String> {
        let mut parts = 0;
        let filter = self.node(1, &mut parts)?;
        if filter.bytes() > FilterNode::BYTES_MAX {
            return Err(format!("takes more than {} bytes", FilterNode::BYTES_MAX));
        }
        Ok(filter)
    }

    /// Writes the nodes as JSON that can be parsed again.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut object = Object::begin(out);
        for (key, text) in
            [("op", &self.op), ("key", &self.key), ("cmp", &self.cmp), ("val", &self.val)]
        {
            if !text.is_empty() {
                object.string(key, text);
            }
        }
        if !self.vals.is_empty() {
            let out = object.key("vals");
            for (at, val) in self.vals.iter().enumerate() {
                out.push(if at == 0 { b'[' } else { b',' });
                write_string(out, val);
            }
            out.push(b']');
        }
        if !self.nodes.is_empty() {
            let out = object.key("nodes");
            for (at, node) in self.nodes.iter().enumerate() {
                out.push(if at == 0 { b'[' } else { b',' });
                node.write(out);
            }
            out.push(b']');
        }
        object.end();
    }

    fn node(&self, depth: usize, parts: &mut usize) -> Result<TagFilter, String> {
        *parts += 1 + self.vals.len();
        if depth > FilterNode::DEPTH_MAX {
            return Err(format!("is nested deeper than {} levels", FilterNode::DEPTH_MAX));
        }
        if *parts > FilterNode::PARTS_MAX {
            return Err(format!("has more than {} nodes and values", FilterNode::PARTS_MAX));
        }
        let mut nodes = || -> Result<Box<[TagFilter]>, String> {
            self.nodes.iter().map(|node| node.node(depth + 1, parts)).collect()
        };
        match (&*self.op, self.nodes.len()) {
            ("", _) => self.condition(),
            ("and" | "or", 0) => Err(format!("`{}` without nodes", self.op)),
            ("and", _) => Ok(TagFilter::And(nodes()?)),
            ("or", _) => Ok(TagFilter::Or(nodes()?)),
            ("not", 1) => Ok(TagFilter::Not(Box::new(self.nodes[0].node(depth + 1, parts)?))),
            ("not", _) => Err("`not` has one node".to_owned()),
            _ => Err("`op` is empty, `and`, `or` or `not`".to_owned()),
        }
    }

    fn condition(&self) -> Result<TagFilter, String> {
        let takes = match &*self.cmp {
            "ex" | "nex" => (false, false),
            "in" | "nin" => (false, true),
            _ => (true, false),
        };
        if takes != (!self.val.is_empty(), !self.vals.is_empty()) {
            let takes = match takes {
                (true, _) => "`val` and no `vals`",
                (_, true) => "`vals` and no `val`",
                _ => "neither `val` nor `vals`",
            };
            return Err(format!("a comparison `{}` has {takes}", brief(&self.cmp)));
        }
        let val = || Box::from(&*self.val);
        let vals = || self.vals.iter().map(|val| Box::from(&**val)).collect();
        let is = match &*self.cmp {
            "eq" => TagCondition::Equal(val()),
            "neq" => TagCondition::NotEqual(val()),
            "in" => TagCondition::In(vals()),
            "nin" => TagCondition::NotIn(vals()),
            "ex" => TagCondition::Exists,
            "nex" => TagCondition::Missing,
            "sw" => TagCondition::StartsWith(val()),
            "ew" => TagCondition::EndsWith(val()),
            "ct" => TagCondition::Contains(val()),
            "lt" => TagCondition::Number(NumberOrder::Less, val()),
            "lte" => TagCondition::Number(NumberOrder::LessOrEqual, val()),
            "gt" => TagCondition::Number(NumberOrder::Greater, val()),
            "gte" => TagCondition::Number(NumberOrder::GreaterOrEqual, val()),
            other => return Err(format!("there is no comparison `{}`", brief(other))),
        };
        if self.key.is_empty() && !matches!(is, TagCondition::Exists | TagCondition::Missing) {
            return Err("a comparison without `key`".to_owned());
        }
        Ok(TagFilter::Tag { key: Box::from(&*self.key), is })
    }
}

/// Truncates a client's text to a length that can be quoted in an error.
fn brief(text: &str) -> &str {
    &text[..text.floor_char_boundary(16)]
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

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> Result<TagFilter, String> {
        serde_json::from_str::<FilterNode<'_>>(text).unwrap().to_filter()
    }

    #[test]
    fn a_filter_is_what_its_nodes_say() {
        let tags = [("kind".into(), "goal".into()), ("minute".into(), "45".into())];
        let tags = tags.into_iter().collect();
        let admits = |text: &str| filter(text).unwrap().admits(&tags);
        let goal = r#"{"key":"kind","cmp":"eq","val":"goal"}"#;
        let late = r#"{"key":"minute","cmp":"gte","val":"80"}"#;
        assert!(admits(goal) && !admits(late));
        assert!(admits(&format!(r#"{{"op":"or","nodes":[{late},{goal}]}}"#)));
        assert!(!admits(&format!(r#"{{"op":"and","nodes":[{late},{goal}]}}"#)));
        assert!(admits(&format!(r#"{{"op":"not","nodes":[{late}]}}"#)));
        assert!(admits(r#"{"key":"kind","cmp":"in","vals":["goal","card"]}"#));
        assert!(admits(r#"{"key":"none","cmp":"nex"}"#));
    }

    #[test]
    fn malformed_filter_is_named() {
        let deep = (0..20).fold(r#"{"key":"k","cmp":"ex"}"#.to_owned(), |inner, _| {
            format!(r#"{{"op":"not","nodes":[{inner}]}}"#)
        });
        let many = vec!["\"v\""; 200].join(",");
        let many = format!(r#"{{"key":"k","cmp":"in","vals":[{many}]}}"#);
        let long = format!(r#"{{"key":"k","cmp":"eq","val":"{}"}}"#, "v".repeat(20_000));
        for (text, error) in [
            ("{}", "a comparison `` has `val` and no `vals`"),
            (r#"{"cmp":"eq","val":"v"}"#, "a comparison without `key`"),
            (r#"{"key":"k","cmp":"eq"}"#, "a comparison `eq` has `val` and no `vals`"),
            (r#"{"key":"k","cmp":"in","val":"v"}"#, "a comparison `in` has `vals` and no `val`"),
            (
                r#"{"key":"k","cmp":"ex","val":"v"}"#,
                "a comparison `ex` has neither `val` nor `vals`",
            ),
            (r#"{"key":"k","cmp":"like","val":"v"}"#, "there is no comparison `like`"),
            (r#"{"op":"and"}"#, "`and` without nodes"),
            (r#"{"op":"not","nodes":[]}"#, "`not` has one node"),
            (r#"{"op":"xor","nodes":[{}]}"#, "`op` is empty, `and`, `or` or `not`"),
            (&deep, "is nested deeper than 16 levels"),
            (&many, "has more than 128 nodes and values"),
            (&long, "takes more than 16384 bytes"),
        ] {
            assert_eq!(filter(text).unwrap_err(), error, "{text}");
        }
    }
}
