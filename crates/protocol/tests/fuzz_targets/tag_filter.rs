//! Filters by tags: read, judged and asked, in both encodings.

use dunlin_hub::{TagCondition, TagFilter, Tags};
use dunlin_protocol::Format;
use dunlin_protocol::centrifuge::{Command, Commands, FilterNode, Request};
use dunlin_protocol::json;
use dunlin_wire::protobuf::Writer;

/// The input is a filter, in either encoding, and behind the last empty line the tags that it is asked about: `NAME=VALUE`, a line each.
///
/// A filter costs no more than its bounds say, admits what its nodes say, and is the same filter in the other encoding.
pub(super) fn tag_filter(input: &[u8]) {
    let end = input.windows(2).rposition(|two| two == b"\n\n");
    let (filter, tags) = end.map_or((input, &b""[..]), |at| (&input[..at], &input[at + 2..]));
    let tags = String::from_utf8_lossy(tags);
    let tags = tags.lines().filter_map(|line| line.split_once('='));
    let tags: Tags = tags.map(|(name, value)| (name.into(), value.into())).collect();
    if let Ok(node) = json::from_slice::<FilterNode<'_>>(filter) {
        judge(&node, &tags);
        in_protobuf(&bytes_of(&node), |same| assert_eq!(same.unwrap_or(&node), &node));
    }
    in_protobuf(filter, |node| {
        let Some(node) = node else { return };
        judge(node, &tags);
        let mut text = Vec::new();
        node.write(&mut text);
        assert_eq!(json::from_slice::<FilterNode<'_>>(&text).as_ref(), Ok(node));
    });
}

fn judge(node: &FilterNode<'_>, tags: &Tags) {
    let filter = match node.to_filter() {
        Ok(filter) => filter,
        Err(why) => return assert!(why.len() < 100, "{why}"),
    };
    let (depth, parts) = size_of(&filter);
    assert!(depth <= FilterNode::DEPTH_MAX && parts <= FilterNode::PARTS_MAX);
    assert!(filter.bytes() <= FilterNode::BYTES_MAX);
    let admits = filter.admits(tags);
    if let Some(says) = says(node, tags) {
        assert_eq!(admits, says, "{node:?} {tags:?}");
    }
    assert_ne!(admits, TagFilter::Not(Box::new(filter)).admits(tags));
}

/// Levels of a filter; its nodes and values, each of which is compared once at most.
fn size_of(filter: &TagFilter) -> (usize, usize) {
    let of_all = |all: &[TagFilter]| {
        let sizes = all.iter().map(size_of);
        sizes.fold((0, 1), |(depth, sum), (of, parts)| (depth.max(of), sum + parts))
    };
    let (depth, parts) = match filter {
        TagFilter::And(all) | TagFilter::Or(all) => of_all(all),
        TagFilter::Not(one) => of_all(std::slice::from_ref(one)),
        TagFilter::Tag { is: TagCondition::In(list) | TagCondition::NotIn(list), .. } => {
            (0, 1 + list.len())
        }
        TagFilter::Tag { .. } => (0, 1),
    };
    (depth + 1, parts)
}

/// What a filter says, read off its nodes; `None` where numbers are compared that are not small integers.
fn says(node: &FilterNode<'_>, tags: &Tags) -> Option<bool> {
    let all: Option<Vec<bool>> = node.nodes.iter().map(|node| says(node, tags)).collect();
    match &*node.op {
        "and" => return Some(!all?.contains(&false)),
        "or" => return Some(all?.contains(&true)),
        "not" => return Some(!all?[0]),
        _ => {}
    }
    let value = tags.iter().find(|(name, _)| **name == *node.key).map(|(_, value)| &**value);
    let (text, val) = (value.unwrap_or_default(), &*node.val);
    Some(match &*node.cmp {
        "eq" => value == Some(val),
        "neq" => value != Some(val),
        "in" => node.vals.iter().any(|of| *of == text),
        "nin" => !node.vals.iter().any(|of| *of == text),
        "ex" => value.is_some(),
        "nex" => value.is_none(),
        "sw" => value.is_some() && text.starts_with(val),
        "ew" => value.is_some() && text.ends_with(val),
        "ct" => value.is_some() && text.contains(val),
        order => {
            let (value, val): (i64, i64) = (text.parse().ok()?, val.parse().ok()?);
            match order {
                "lt" => value < val,
                "lte" => value <= val,
                "gt" => value > val,
                _ => value >= val,
            }
        }
    })
}

fn bytes_of(node: &FilterNode<'_>) -> Vec<u8> {
    fn write(node: &FilterNode<'_>, writer: &mut Writer<'_>) {
        writer.string(1, &node.op);
        writer.string(2, &node.key);
        writer.string(3, &node.cmp);
        writer.string(4, &node.val);
        node.vals.iter().for_each(|val| writer.element(5, val.as_bytes()));
        for nested in &node.nodes {
            writer.element(6, &bytes_of(nested));
        }
    }
    let mut bytes = Vec::new();
    write(node, &mut Writer::new(&mut bytes));
    bytes
}

/// Reads these bytes as the filter of a subscribe command; `None` where they are none, or nested too deep.
fn in_protobuf(bytes: &[u8], check: impl FnOnce(Option<&FilterNode<'_>>)) {
    let mut frame = Vec::new();
    Writer::delimited(&mut frame, |writer| {
        writer.unsigned(1, 1_u32);
        writer.message(5, |writer| {
            writer.string(1, "news");
            writer.element(13, bytes);
        });
    });
    let command = Commands::of(Format::Protobuf, &frame).next();
    match command {
        Some(Ok(Command { request: Request::Subscribe(subscribe), .. })) => {
            check(subscribe.tags_filter.as_deref());
        }
        _ => check(None),
    }
}
