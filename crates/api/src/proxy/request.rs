//! The body of a request: the client and the operation.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dunlin_hub::{PayloadFormat, SessionId, Tags};
use dunlin_protocol::centrifuge::{ConnectRequest, PublishRequest, RpcRequest, SubscribeRequest};
use dunlin_protocol::json::{Object, write_string};
use dunlin_protocol::{Encoding, Format, Payload};

use dunlin_access::auth::labels::write_labels;

/// The client whose operation the backend decides.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    /// Its session.
    pub client: SessionId,
    /// The encoding of its commands.
    pub encoding: Encoding,
    /// Empty for an anonymous client, and before the connect.
    pub user: &'a str,
    /// Raw JSON; `None` unless the proxy includes it.
    pub meta: Option<&'a [u8]>,
    /// Its labels.
    pub labels: &'a Tags,
    /// Its address, if it is known.
    pub address: Option<IpAddr>,
    /// Headers of its HTTP request; `emulated`: those in its connect command.
    pub headers: &'a [(String, String)],
    /// Headers in its connect command.
    pub emulated: &'a [(String, String)],
}

/// The operation that the backend decides.
#[derive(Clone, Copy, Debug)]
pub enum Question<'a> {
    /// It connects.
    Connect(&'a ConnectRequest<'a>),
    /// It subscribes.
    Subscribe(&'a SubscribeRequest<'a>),
    /// It publishes.
    Publish(&'a PublishRequest<'a>),
    /// It calls a procedure.
    Rpc(&'a RpcRequest<'a>),
    /// Its connection expires.
    Refresh,
    /// Its subscription to the channel expires.
    SubRefresh {
        /// The channel.
        channel: &'a str,
    },
}

impl Question<'_> {
    /// Returns the body. Empty members are omitted, except those of the client itself.
    pub fn body(&self, requester: &Requester<'_>) -> Vec<u8> {
        let data = match self {
            Question::Connect(connect) => &connect.data,
            Question::Subscribe(subscribe) => &subscribe.data,
            Question::Publish(publish) => &publish.data,
            Question::Rpc(rpc) => &rpc.data,
            Question::Refresh | Question::SubRefresh { .. } => &None,
        };
        let data = data.as_ref().map(|data| (data, data.format()));
        let is_binary = matches!(data, Some((_, PayloadFormat::Binary)));
        let mut out = Vec::with_capacity(256 + data.map_or(0, |(data, _)| data.as_bytes().len()));
        let mut body = Object::begin(&mut out);
        body.string("client", &requester.client.to_string());
        body.string("transport", requester.encoding.transport());
        body.string(
            "protocol",
            match requester.encoding.format() {
                Format::Json => "json",
                Format::Protobuf => "protobuf",
            },
        );
        body.string("encoding", if is_binary { "binary" } else { "json" });
        if !matches!(self, Question::Connect(_)) {
            body.string("user", requester.user);
        }
        match self {
            Question::Connect(connect) => {
                for (name, value) in [("name", &connect.name), ("version", &connect.version)] {
                    if !value.is_empty() {
                        body.string(name, value);
                    }
                }
                if !connect.subs.is_empty() {
                    let out = body.key("channels");
                    for (at, (channel, _)) in connect.subs.iter().enumerate() {
                        out.push(if at == 0 { b'[' } else { b',' });
                        write_string(out, channel);
                    }
                    out.push(b']');
                }
            }
            Question::Subscribe(SubscribeRequest { channel, .. })
            | Question::Publish(PublishRequest { channel, .. }) => {
                body.string("channel", channel);
            }
            Question::Rpc(rpc) if !rpc.method.is_empty() => {
                body.string("method", &rpc.method);
            }
            Question::SubRefresh { channel } => drop(body.string("channel", channel)),
            Question::Rpc(_) | Question::Refresh => {}
        }
        if let Some((data, format)) = data {
            write_payload(&mut body, data, format);
        }
        if let Some(meta) = requester.meta {
            body.raw("meta", meta);
        }
        write_labels(&mut body, requester.labels);
        body.end();
        out
    }
}

fn write_payload(body: &mut Object<'_>, data: &Payload<'_>, format: PayloadFormat) {
    match format {
        PayloadFormat::Json => drop(body.raw("data", data.as_bytes())),
        PayloadFormat::Binary => drop(body.string("b64data", &STANDARD.encode(data.as_bytes()))),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use serde_json::{Value, json};

    use super::*;

    fn asked(question: &Question<'_>) -> Value {
        let client = SessionId::from_u64(7).unwrap();
        let labels = [("tier".into(), "pro".into())].into_iter().collect();
        let requester = Requester {
            client,
            encoding: Encoding::WsJson,
            user: "ada",
            meta: Some(b"[1]"),
            labels: &labels,
            address: None,
            headers: &[],
            emulated: &[],
        };
        serde_json::from_slice(&question.body(&requester)).unwrap()
    }

    #[test]
    fn requests_have_the_fields_of_centrifugo() {
        let connect = ConnectRequest::parse(
            br#"{"data":{"a":1},"name":"js","version":"5","subs":{"b\"":{},"c":{}}}"#,
        )
        .unwrap();
        let requester = json!({"client": "7", "transport": "websocket", "protocol": "json", "encoding": "json", "meta": [1], "labels": {"tier": "pro"}});
        let with = |more: Value| {
            let mut all = requester.clone();
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        assert_eq!(
            asked(&Question::Connect(&connect)),
            with(json!({"data": {"a": 1}, "name": "js", "version": "5", "channels": ["b\"", "c"]}))
        );
        assert_eq!(asked(&Question::Connect(&ConnectRequest::default())), requester);
        let subscribe = SubscribeRequest { channel: Cow::Borrowed("chat:1"), ..Default::default() };
        assert_eq!(
            asked(&Question::Subscribe(&subscribe)),
            with(json!({"user": "ada", "channel": "chat:1"}))
        );
        assert_eq!(asked(&Question::Refresh), with(json!({"user": "ada"})));
        let question = Question::SubRefresh { channel: "chat:1" };
        assert_eq!(asked(&question), with(json!({"user": "ada", "channel": "chat:1"})));
        let rpc = RpcRequest { method: "sum".into(), data: Some(Payload::of_bytes(&b"\xff"[..])) };
        assert_eq!(
            asked(&Question::Rpc(&rpc)),
            with(json!({"user": "ada", "method": "sum", "b64data": "/w==", "encoding": "binary"}))
        );
    }
}
