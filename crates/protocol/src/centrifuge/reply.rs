//! Replies (results and errors of commands), and their encoding as JSON. [`protobuf`](super::protobuf) encodes them as
//! Protobuf.
//!
//! Members with a zero value are omitted, as by the protocol's own encoder. Members that client libraries read without
//! a check (`code`, `message`, `reason`, `client`, `ttl` beside `expires`) are always present.

use std::io::Write as _;
use std::sync::Arc;

use dunlin_hub::{
    ClientInfo, Epoch, History, Patch, PresenceStats, Publication, SessionId, Subscribed, tenant,
};

use super::code::Error;
use crate::json::{Object, write_integer, write_string};
use crate::payload::{write_data, write_text_data};

/// The reply to one command.
#[derive(Clone, Debug)]
pub enum Reply<'a> {
    /// The command failed.
    Error(&'a Error<'a>),
    /// The session is open.
    Connect(&'a ConnectResult<'a>),
    /// The subscription is established.
    Subscribe(&'a SubscribeResult<'a>),
    /// The subscription has ended.
    Unsubscribe,
    /// The publication was accepted.
    Publish,
    /// The clients in the channel.
    Presence(&'a [Arc<ClientInfo>]),
    /// The number of clients in the channel.
    PresenceStats(PresenceStats),
    /// Publications from the history.
    History(&'a History),
    /// The pong to a ping of the client.
    Ping,
    /// The result of a remote procedure.
    Rpc {
        /// Raw JSON on one line.
        data: &'a [u8],
    },
    /// The connection is refreshed.
    Refresh(&'a RefreshResult<'a>),
    /// The subscription is refreshed.
    SubRefresh {
        /// Whole seconds until the subscription expires; 0: never.
        ttl_s: u32,
    },
}

/// The result of a connect.
#[derive(Clone, Debug, Default)]
pub struct ConnectResult<'a> {
    /// The session id; `client` in presence, join and leave.
    pub client: Option<SessionId>,
    /// Name and version of the server.
    pub version: &'a str,
    /// Seconds until the connection expires without a refresh; 0: never.
    pub ttl_s: u32,
    /// Raw JSON on one line, for the application.
    pub data: Option<&'a [u8]>,
    /// Server-side subscriptions.
    pub subs: &'a [(Arc<str>, SubscribeResult<'a>)],
    /// Seconds between pings; 0: no pings.
    pub ping_s: u32,
    /// Whether the server expects pongs.
    pub pong: bool,
    /// Secret that authorises emulation requests for this session; empty without emulation.
    pub session: &'a str,
    /// The session's server; empty without emulation.
    pub node: &'a str,
}

/// An established subscription and its lifetime.
#[derive(Clone, Debug)]
pub struct SubscribeResult<'a> {
    /// The hub's result.
    pub subscribed: &'a Subscribed,
    /// Seconds until the subscription expires without a refresh; 0: never.
    pub ttl_s: u32,
    /// Raw JSON on one line, for the application.
    pub data: Option<&'a [u8]>,
}

impl<'a> From<&'a Subscribed> for SubscribeResult<'a> {
    fn from(subscribed: &'a Subscribed) -> Self {
        SubscribeResult { subscribed, ttl_s: 0, data: None }
    }
}

/// The result of a refresh.
#[derive(Clone, Copy, Debug)]
pub struct RefreshResult<'a> {
    /// The session.
    pub client: SessionId,
    /// Name and version of the server.
    pub version: &'a str,
    /// Seconds until the connection expires; 0: never.
    pub ttl_s: u32,
}

impl Reply<'_> {
    /// Writes the reply to command `id`.
    pub fn write(&self, id: u32, out: &mut Vec<u8>) {
        let mut reply = Object::begin(out);
        reply.integer("id", id);
        match *self {
            Reply::Error(error) => write_error(reply.key("error"), error),
            Reply::Connect(result) => result.write(reply.key("connect")),
            Reply::Subscribe(result) => result.write(reply.key("subscribe")),
            Reply::Unsubscribe => drop(reply.raw("unsubscribe", b"{}")),
            Reply::Publish => drop(reply.raw("publish", b"{}")),
            Reply::Presence(present) => {
                let mut result = Object::begin(reply.key("presence"));
                write_presence(result.key("presence"), present);
                result.end();
            }
            Reply::PresenceStats(stats) => {
                let mut result = Object::begin(reply.key("presence_stats"));
                result.integer("num_clients", stats.clients).integer("num_users", stats.users);
                result.end();
            }
            Reply::History(history) => {
                let mut result = Object::begin(reply.key("history"));
                write_publications(result.key("publications"), &history.publications);
                write_position(&mut result, history.position.epoch, history.position.offset);
                result.end();
            }
            Reply::Ping => drop(reply.raw("ping", b"{}")),
            Reply::Rpc { data } => {
                let mut result = Object::begin(reply.key("rpc"));
                result.raw("data", data);
                result.end();
            }
            Reply::Refresh(result) => {
                let mut refresh = Object::begin(reply.key("refresh"));
                write_id(refresh.key("client"), result.client);
                if !result.version.is_empty() {
                    refresh.string("version", result.version);
                }
                write_ttl(&mut refresh, result.ttl_s);
                refresh.end();
            }
            Reply::SubRefresh { ttl_s } => {
                let mut refresh = Object::begin(reply.key("sub_refresh"));
                write_ttl(&mut refresh, ttl_s);
                refresh.end();
            }
        }
        reply.end();
    }
}

impl ConnectResult<'_> {
    /// Writes the result, which is also the body of the `connect` push on unidirectional transports.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut result = Object::begin(out);
        if let Some(client) = self.client {
            write_id(result.key("client"), client);
        }
        if !self.version.is_empty() {
            result.string("version", self.version);
        }
        write_ttl(&mut result, self.ttl_s);
        if let Some(data) = self.data {
            result.raw("data", data);
        }
        if !self.subs.is_empty() {
            let mut subs = Object::begin(result.key("subs"));
            for (channel, sub) in self.subs {
                sub.write(subs.text_key(tenant::bare(channel)));
            }
            subs.end();
        }
        if self.ping_s > 0 {
            result.integer("ping", self.ping_s);
        }
        result.flag("pong", self.pong);
        if !self.session.is_empty() {
            result.string("session", self.session);
        }
        if !self.node.is_empty() {
            result.string("node", self.node);
        }
        result.end();
    }
}

impl SubscribeResult<'_> {
    /// Writes the result.
    pub fn write(&self, out: &mut Vec<u8>) {
        let subscribed = self.subscribed;
        let mut result = Object::begin(out);
        write_ttl(&mut result, self.ttl_s);
        result.flag("recoverable", subscribed.recoverable);
        if subscribed.recoverable || subscribed.positioned {
            write_position(&mut result, subscribed.position.epoch, subscribed.position.offset);
        }
        if !subscribed.publications.is_empty() {
            let list = result.key("publications");
            match subscribed.delta {
                false => write_publications(list, &subscribed.publications),
                true => write_list(list, &subscribed.publications, |out, publication| {
                    let mut object = Object::begin(out);
                    write_publication_as_text(&mut object, publication, None);
                    object.end();
                }),
            }
        }
        result.flag("recovered", subscribed.recovered);
        result.flag("positioned", subscribed.positioned || subscribed.recoverable);
        if let Some(data) = self.data {
            result.raw("data", data);
        }
        result.flag("was_recovering", subscribed.was_recovering);
        result.flag("delta", subscribed.delta);
        result.end();
    }
}

/// Writes `{"code":…,"message":…,"temporary":…}`.
pub(crate) fn write_error(out: &mut Vec<u8>, error: &Error<'_>) {
    let mut object = Object::begin(out);
    object.integer("code", error.code).string("message", &error.message);
    object.flag("temporary", error.temporary);
    object.end();
}

/// Writes a publication, without its channel.
pub fn write_publication(out: &mut Vec<u8>, publication: &Publication) {
    let mut object = Object::begin(out);
    write_publication_members(&mut object, publication);
    object.end();
}

/// Writes the members of a publication.
pub(crate) fn write_publication_members(object: &mut Object<'_>, publication: &Publication) {
    write_data(object, publication.data(), publication.format());
    write_publication_rest(object, publication);
}

/// Writes the members of a publication for a subscriber with delta compression.
pub(crate) fn write_publication_as_text(
    object: &mut Object<'_>,
    publication: &Publication,
    patch: Option<Patch<'_>>,
) {
    let patch = patch.filter(|patch| patch.is_text);
    match patch.and_then(|patch| std::str::from_utf8(patch.bytes).ok()) {
        Some(patch) => drop(object.string("data", patch).flag("delta", true)),
        None => write_text_data(object, publication.data(), publication.format()),
    }
    write_publication_rest(object, publication);
}

fn write_publication_rest(object: &mut Object<'_>, publication: &Publication) {
    if let Some(info) = publication.info() {
        write_client_info(object.key("info"), info);
    }
    if publication.offset() > 0 {
        object.integer("offset", publication.offset());
    }
    if !publication.tags().is_empty() {
        let mut tags = Object::begin(object.key("tags"));
        for (name, value) in publication.tags().iter() {
            write_string(tags.text_key(name), value);
        }
        tags.end();
    }
    if let Some(key) = publication.key() {
        object.string("key", key);
    }
}

/// Writes an array of publications, in the order given.
pub fn write_publications(out: &mut Vec<u8>, publications: &[Publication]) {
    write_list(out, publications, write_publication);
}

fn write_list(
    out: &mut Vec<u8>,
    publications: &[Publication],
    write: impl Fn(&mut Vec<u8>, &Publication),
) {
    out.push(b'[');
    for (at, publication) in publications.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write(out, publication);
    }
    out.push(b']');
}

/// Writes a client as other clients see it.
pub fn write_client_info(out: &mut Vec<u8>, info: &ClientInfo) {
    let mut object = Object::begin(out);
    object.string("user", tenant::bare(&info.user));
    match &info.foreign_client {
        Some(client) => _ = object.string("client", client),
        None => write_id(object.key("client"), info.client),
    }
    if let Some(conn_info) = &info.conn_info {
        object.raw("conn_info", conn_info);
    }
    if let Some(chan_info) = &info.chan_info {
        object.raw("chan_info", chan_info);
    }
    object.end();
}

/// Writes an object of clients by id.
pub fn write_presence(out: &mut Vec<u8>, present: &[Arc<ClientInfo>]) {
    let mut object = Object::begin(out);
    let mut id = Vec::with_capacity(24);
    for info in present {
        id.clear();
        match &info.foreign_client {
            Some(client) => id.extend_from_slice(client.as_bytes()),
            None => write_integer(&mut id, info.client.to_u64()),
        }
        write_client_info(object.key(std::str::from_utf8(&id).unwrap_or_default()), info);
    }
    object.end();
}

/// Writes a session id: its number as a string, because ids of the protocol are strings.
pub(crate) fn write_id(out: &mut Vec<u8>, id: SessionId) {
    out.push(b'"');
    write_integer(out, id.to_u64());
    out.push(b'"');
}

/// Writes an epoch, which has only letters and digits.
pub fn write_epoch(out: &mut Vec<u8>, epoch: Epoch) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "\"{epoch}\"");
}

fn write_position(object: &mut Object<'_>, epoch: Epoch, offset: u64) {
    write_epoch(object.key("epoch"), epoch);
    object.integer("offset", offset);
}

fn write_ttl(object: &mut Object<'_>, ttl_s: u32) {
    if ttl_s > 0 {
        object.flag("expires", true).integer("ttl", ttl_s);
    }
}

#[cfg(test)]
mod tests {
    use dunlin_hub::{PublicationParts, StreamPosition};
    use serde_json::{Value, json};

    use super::super::code::ErrorCode;
    use super::*;

    fn written(reply: &Reply<'_>) -> String {
        let mut out = Vec::new();
        reply.write(7, &mut out);
        let _: Value = serde_json::from_slice(&out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn position(offset: u64) -> StreamPosition {
        StreamPosition { offset, epoch: Epoch::from_u64(10) }
    }

    fn publication(offset: u64) -> Publication {
        let data = b"{\"n\":1}".as_slice().into();
        PublicationParts { offset, data, ..PublicationParts::default() }.into()
    }

    #[test]
    fn a_subscription_that_recovered() {
        let subscribed = Subscribed {
            position: position(3),
            was_recovering: true,
            recovered: true,
            publications: vec![publication(2), publication(3)],
            positioned: true,
            recoverable: true,
            ..Subscribed::default()
        };
        assert_eq!(
            written(&Reply::Subscribe(&SubscribeResult::from(&subscribed))),
            concat!(
                r#"{"id":7,"subscribe":{"recoverable":true,"epoch":"A","offset":3,"#,
                r#""publications":[{"data":{"n":1},"offset":2},{"data":{"n":1},"offset":3}],"#,
                r#""recovered":true,"positioned":true,"was_recovering":true}}"#
            )
        );
    }

    #[test]
    fn a_failed_recovery_is_reported_with_the_position_of_the_stream() {
        let subscribed = Subscribed {
            position: position(9),
            was_recovering: true,
            positioned: true,
            recoverable: true,
            ..Subscribed::default()
        };
        assert_eq!(
            written(&Reply::Subscribe(&SubscribeResult::from(&subscribed))),
            r#"{"id":7,"subscribe":{"recoverable":true,"epoch":"A","offset":9,"positioned":true,"was_recovering":true}}"#
        );
    }

    #[test]
    fn a_subscription_without_a_stream_has_no_position() {
        let subscribed = Subscribed { position: position(9), ..Subscribed::default() };
        let result = SubscribeResult { ttl_s: 60, data: Some(b"1"), ..(&subscribed).into() };
        assert_eq!(
            written(&Reply::Subscribe(&result)),
            r#"{"id":7,"subscribe":{"expires":true,"ttl":60,"data":1}}"#
        );
    }

    #[test]
    fn a_connect_with_everything_and_with_nothing() {
        let subscribed = Subscribed::default();
        let subs = [(Arc::from("a\"b"), SubscribeResult::from(&subscribed))];
        let result = ConnectResult {
            client: SessionId::from_u64(5),
            version: "dunlin",
            ttl_s: 600,
            data: Some(b"{}"),
            subs: &subs,
            ping_s: 25,
            pong: true,
            session: "s",
            node: "n",
        };
        assert_eq!(
            written(&Reply::Connect(&result)),
            concat!(
                r#"{"id":7,"connect":{"client":"5","version":"dunlin","expires":true,"ttl":600,"data":{},"#,
                r#""subs":{"a\"b":{}},"ping":25,"pong":true,"session":"s","node":"n"}}"#
            )
        );
        assert_eq!(written(&Reply::Connect(&ConnectResult::default())), r#"{"id":7,"connect":{}}"#);
    }

    #[test]
    fn presence_history_and_the_small_ones() {
        let info = Arc::new(ClientInfo {
            user_is_number: false,
            foreign_client: None,
            user: "42".into(),
            client: SessionId::from_u64(5).unwrap(),
            conn_info: Some(b"[1]".as_slice().into()),
            chan_info: None,
        });
        assert_eq!(
            written(&Reply::Presence(&[Arc::clone(&info)])),
            r#"{"id":7,"presence":{"presence":{"5":{"user":"42","client":"5","conn_info":[1]}}}}"#
        );
        assert_eq!(
            written(&Reply::PresenceStats(PresenceStats { clients: 2, users: 1 })),
            r#"{"id":7,"presence_stats":{"num_clients":2,"num_users":1}}"#
        );
        let by_client = PublicationParts {
            offset: 4,
            data: b"{\"n\":1}".as_slice().into(),
            info: Some(info),
            tags: [("k".into(), "v".into())].into_iter().collect(),
            key: Some("x".into()),
            ..PublicationParts::default()
        };
        let history = History { publications: vec![by_client.into()], position: position(4) };
        assert_eq!(
            serde_json::from_str::<Value>(&written(&Reply::History(&history))).unwrap(),
            json!({"id": 7, "history": {
                "publications": [{
                    "data": {"n": 1}, "offset": 4, "tags": {"k": "v"}, "key": "x",
                    "info": {"user": "42", "client": "5", "conn_info": [1]},
                }],
                "epoch": "A", "offset": 4,
            }})
        );
        assert_eq!(written(&Reply::Publish), r#"{"id":7,"publish":{}}"#);
        assert_eq!(written(&Reply::Unsubscribe), r#"{"id":7,"unsubscribe":{}}"#);
        assert_eq!(written(&Reply::Ping), r#"{"id":7,"ping":{}}"#);
        assert_eq!(written(&Reply::Rpc { data: b"[]" }), r#"{"id":7,"rpc":{"data":[]}}"#);
        let refresh =
            RefreshResult { client: SessionId::from_u64(5).unwrap(), version: "", ttl_s: 60 };
        assert_eq!(
            written(&Reply::Refresh(&refresh)),
            r#"{"id":7,"refresh":{"client":"5","expires":true,"ttl":60}}"#
        );
        assert_eq!(
            written(&Reply::SubRefresh { ttl_s: 60 }),
            r#"{"id":7,"sub_refresh":{"expires":true,"ttl":60}}"#
        );
        let error = ErrorCode::BadRequest.with_reason("say \"please\"\n");
        assert_eq!(
            written(&Reply::Error(&error)),
            r#"{"id":7,"error":{"code":107,"message":"bad request: say \"please\"\n"}}"#
        );
    }
}
