//! Connections and channels as an operator sees them: filters, search and results.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use dunlin_hub::{ChannelPattern, ChannelSummary, SessionId, TagFilter, Tags, tenant};
use dunlin_protocol::json::Object;
use serde_json::{Map, Value};

use dunlin_access::auth::labels::write_labels;

/// A filter of connections: all set conditions must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionFilter {
    /// The tenant; `None`: outside of tenants.
    pub tenant: Option<Arc<str>>,
    /// Empty: any.
    pub user: Box<str>,
    /// `None`: any.
    pub client: Option<SessionId>,
    /// `None`: any.
    pub address: Option<IpAddr>,
    /// A channel that it is subscribed to; empty: any.
    pub channel: Box<str>,
    /// Members that the connection's info must have.
    pub info: Map<String, Value>,
    /// The name of its transport; empty: any.
    pub transport: Box<str>,
    /// Least seconds since it connected.
    pub age_min_s: u64,
    /// Least bytes that wait for it.
    pub outbox_bytes_min: u64,
    /// A filter of the connection's labels.
    pub labels: Option<TagFilter>,
}

/// A search in progress, which goes from worker to worker.
#[derive(Debug)]
pub struct ConnectionSearch {
    /// What is searched for.
    pub filter: ConnectionFilter,
    /// The worker that asked, and under what.
    pub origin: usize,
    /// The token of the call at that worker.
    pub token: u64,
    /// The next position; `None`: the search is complete.
    pub next: Option<ConnectionCursor>,
    /// Connections and bytes that still fit, and places that may still be looked at.
    pub room: u32,
    /// Bytes that still fit.
    pub bytes: usize,
    /// Places that may still be looked at.
    pub places: u32,
    /// What was found.
    pub page: ConnectionPage,
}

/// A search for channels in progress: it goes from worker to worker, finds the channels at home there, and then once more to
/// each, to count their subscribers.
#[derive(Debug)]
pub struct ChannelSearch {
    /// Which names.
    pub pattern: ChannelPattern,
    /// Also channels without subscribers.
    pub idle: bool,
    /// The worker that asked.
    pub origin: usize,
    /// The token of the call at that worker.
    pub token: u64,
    /// The next position; `None`: the page is complete.
    pub next: Option<ConnectionCursor>,
    /// The next worker that counts subscribers.
    pub counting: usize,
    /// Channels that still fit.
    pub room: u32,
    /// Bytes that still fit.
    pub bytes: usize,
    /// Places that may still be looked at.
    pub places: u32,
    /// What was found.
    pub page: ChannelPage,
}

/// The result of a search for channels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChannelPage {
    /// The channels found, with their subscribers.
    pub channels: Vec<ChannelSummary>,
    /// Where the next page begins.
    pub next: Option<ConnectionCursor>,
    /// It is this node's part of a page of the cluster.
    pub node: Option<u16>,
}

/// The position of a search: `WORKER.PLACE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCursor {
    /// The worker.
    pub worker: usize,
    /// The place among its sessions.
    pub place: u32,
}

impl FromStr for ConnectionCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<ConnectionCursor, ()> {
        let (worker, place) = text.split_once('.').ok_or(())?;
        let worker = worker.parse::<u8>().map_err(|_| ())?.into();
        Ok(ConnectionCursor { worker, place: place.parse().map_err(|_| ())? })
    }
}

impl fmt::Display for ConnectionCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.worker, self.place)
    }
}

/// The position of a search in a cluster: `NODE:WORKER.PLACE` of each node whose search is not complete, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterCursor(Vec<(u16, ConnectionCursor)>);

impl ClusterCursor {
    /// Creates the position at the start of each of these nodes.
    pub fn of_nodes(nodes: impl IntoIterator<Item = u16>) -> ClusterCursor {
        ClusterCursor(nodes.into_iter().map(|node| (node, ConnectionCursor::default())).collect())
    }

    /// Returns the nodes whose search is not complete.
    pub fn nodes(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().map(|(node, _)| *node)
    }

    /// Where a node goes on, and its parts of so many connections and bytes, which the nodes share.
    pub fn part_of(
        &self,
        node: u16,
        (connections, bytes): (u32, usize),
    ) -> Option<(ConnectionCursor, u32, usize)> {
        let at = self.nodes().position(|of| of == node)?;
        let nodes = self.0.len();
        let (each, rest) = (connections as usize / nodes, connections as usize % nodes);
        Some((self.0[at].1, (each + usize::from(at < rest)) as u32, bytes / nodes))
    }
}

impl FromStr for ClusterCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<ClusterCursor, ()> {
        let mut parts = Vec::new();
        for part in text.split(',') {
            let (node, at) = part.split_once(':').ok_or(())?;
            let node = node.parse().map_err(|_| ())?;
            if parts.iter().any(|(of, _)| *of == node) {
                return Err(());
            }
            parts.push((node, at.parse()?));
        }
        Ok(ClusterCursor(parts))
    }
}

impl fmt::Display for ClusterCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (node, cursor)) in self.0.iter().enumerate() {
            write!(f, "{}{node}:{cursor}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionPage {
    /// The connections found.
    pub connections: Vec<ConnectionView>,
    /// Where the next page begins.
    pub next: Option<ConnectionCursor>,
    /// It is this node's part of a page of the cluster, and begins there.
    pub part: Option<(u16, ConnectionCursor)>,
}

/// A connection.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionView {
    /// Its session.
    pub client: SessionId,
    /// The user; empty for an anonymous client.
    pub user: Box<str>,
    /// The peer, if it is known.
    pub address: Option<IpAddr>,
    /// The name of its transport.
    pub transport: &'static str,
    /// The name of its protocol.
    pub protocol: &'static str,
    /// Seconds since it connected.
    pub age_s: u64,
    /// Raw JSON.
    pub info: Option<Box<[u8]>>,
    /// Its labels.
    pub labels: Tags,
    /// What it is subscribed to.
    pub channels: Vec<Box<str>>,
    /// Bytes that wait for it.
    pub outbox_bytes: u32,
    /// Bytes of memory that it takes.
    pub memory_bytes: usize,
}

impl ConnectionView {
    /// Returns the approximate bytes of the connection in the answer.
    pub fn bytes(&self) -> usize {
        let channels: usize = self.channels.iter().map(|channel| channel.len() + 8).sum();
        let labels: usize = self.labels.iter().map(|(name, of)| name.len() + of.len() + 8).sum();
        256 + self.user.len() + self.info.as_ref().map_or(0, |info| info.len()) + labels + channels
    }
}

impl ConnectionPage {
    /// Writes the result as JSON.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut result = Object::begin(out);
        let mut all = Object::begin(result.key("connections"));
        for of in &self.connections {
            let mut connection = Object::begin(all.text_key(&of.client.to_string()));
            connection.string("user", tenant::bare(&of.user));
            if let Some(address) = of.address {
                connection.string("address", &address.to_string());
            }
            connection.string("transport", of.transport).string("protocol", of.protocol);
            connection.integer("age", of.age_s);
            if let Some(info) = &of.info {
                connection.raw("info", info);
            }
            write_labels(&mut connection, &of.labels);
            let mut channels = Object::begin(connection.key("channels"));
            for channel in &of.channels {
                Object::begin(channels.text_key(tenant::bare(channel))).end();
            }
            channels.end();
            connection.integer("outbox_bytes", of.outbox_bytes);
            connection.integer("memory_bytes", of.memory_bytes as u64);
            connection.end();
        }
        all.end();
        let of_node = self.part.map_or_else(String::new, |(node, _)| format!("{node}:"));
        if let Some((_, begin)) = self.part {
            result.string("begin", &format!("{of_node}{begin}"));
        }
        if let Some(next) = self.next {
            result.string("cursor", &format!("{of_node}{next}"));
        }
        result.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written_and_nothing_else_is_one() {
        assert_eq!("3.70000".parse(), Ok(ConnectionCursor { worker: 3, place: 70_000 }));
        for text in ["", ".", "1", "1.", ".1", "-1.2", "256.1", "1.4294967296", "1.2.3", "a.b"] {
            assert_eq!(text.parse::<ConnectionCursor>(), Err(()), "{text}");
        }
        let both: ClusterCursor = "412:0.7,3:1.0".parse().unwrap();
        assert_eq!(both.to_string(), "412:0.7,3:1.0");
        assert_eq!(ClusterCursor::of_nodes([3, 412]).to_string(), "3:0.0,412:0.0");
        for text in ["", "0.0", "3:", "3:0.0,", "3:0.0,3:1.0", "65536:0.0", "3:0.0;4:0.0"] {
            assert_eq!(text.parse::<ClusterCursor>(), Err(()), "{text}");
        }
    }

    #[test]
    fn the_nodes_of_a_cursor_share_what_a_page_holds_and_no_more() {
        let cursor: ClusterCursor = "5:0.0,3:1.9,4:0.0".parse().unwrap();
        let part = |node| cursor.part_of(node, (8, 3_000));
        assert_eq!(part(5), Some((ConnectionCursor::default(), 3, 1_000)));
        assert_eq!(part(3), Some((ConnectionCursor { worker: 1, place: 9 }, 3, 1_000)));
        assert_eq!(part(4).map(|(_, connections, _)| connections), Some(2));
        assert_eq!(part(6), None, "it has been searched");
        let fewer = cursor.nodes().filter_map(|node| cursor.part_of(node, (1, 9)));
        assert_eq!(fewer.map(|(_, connections, _)| connections).sum::<u32>(), 1);
    }
}
