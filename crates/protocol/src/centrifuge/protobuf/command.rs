//! `Command` and its requests.

use std::borrow::Cow;

use dunlin_wire::protobuf::{Fields, ProtobufError, Value};

use super::super::command::{
    ChannelRequest, Command, ConnectRequest, HistoryRequest, Position, PublishRequest,
    RefreshRequest, Request, RpcRequest, SendRequest, SubRefreshRequest, SubscribeRequest,
};
use super::super::filter_node::FilterNode;
use crate::json::{PairsBuilder, ProtocolError, Text};
use crate::payload::Payload;

/// Parses one command.
///
/// # Errors
/// [`ProtocolError`] with the path of the field.
pub(crate) fn parse_command(bytes: &[u8]) -> Result<Command<'_>, ProtocolError> {
    let message = MessageReader::of("", bytes);
    let mut id = 0;
    let mut request: Option<Request<'_>> = None;
    let mut unknown = None;
    for field in message.fields() {
        let (number, value) = field?;
        let next = match number {
            1 => {
                id = message.number("id", value.uint32())?;
                continue;
            }
            4 => Request::Connect(connect(&message.nested("connect", value)?)?),
            5 => Request::Subscribe(subscribe(&message.nested("subscribe", value)?)?),
            6 => Request::Unsubscribe(channel(&message.nested("unsubscribe", value)?)?),
            7 => Request::Publish(publish(&message.nested("publish", value)?)?),
            8 => Request::Presence(channel(&message.nested("presence", value)?)?),
            9 => Request::PresenceStats(channel(&message.nested("presence_stats", value)?)?),
            10 => Request::History(history(&message.nested("history", value)?)?),
            11 => {
                for field in message.nested("ping", value)?.fields() {
                    field?;
                }
                Request::Ping
            }
            12 => Request::Send(send(&message.nested("send", value)?)?),
            13 => Request::Rpc(rpc(&message.nested("rpc", value)?)?),
            14 => Request::Refresh(refresh(&message.nested("refresh", value)?)?),
            15 => Request::SubRefresh(sub_refresh(&message.nested("sub_refresh", value)?)?),
            // Later versions of the protocol may add fields beside the request. They are skipped, and matter only if no
            // request is found.
            number => {
                unknown.get_or_insert(number);
                continue;
            }
        };
        if let Some(given) = &request {
            return Err(ProtocolError::new(
                next.method(),
                format!(
                    "a command carries one request, this one carries `{}` and `{}`",
                    given.method(),
                    next.method()
                ),
            ));
        }
        request = Some(next);
    }
    let request = request.unwrap_or_else(|| match unknown {
        Some(number) => Request::Unknown(Cow::Owned(format!("field {number}"))),
        None => Request::Pong,
    });
    Ok(Command { id, request })
}

fn connect<'a>(message: &MessageReader<'_, 'a>) -> Result<ConnectRequest<'a>, ProtocolError> {
    let mut request = ConnectRequest::default();
    let mut subs = PairsBuilder::default();
    let mut headers = PairsBuilder::default();
    for field in message.fields() {
        let (number, value) = field?;
        match number {
            1 => request.token = message.text("token", value)?,
            2 => request.data = message.payload("data", value)?,
            3 => message.entry("subs", value, &mut subs, |value| match value {
                Some(value) => subscribe(&message.nested("subs", value)?),
                None => Ok(SubscribeRequest::default()),
            })?,
            4 => request.name = message.text("name", value)?,
            5 => request.version = message.text("version", value)?,
            6 => message.entry("headers", value, &mut headers, |value| match value {
                Some(value) => Ok(Text(message.text("headers", value)?)),
                None => Ok(Text::default()),
            })?,
            _ => {}
        }
    }
    (request.subs, request.headers) = (subs.build(), headers.build());
    Ok(request)
}

fn subscribe<'a>(message: &MessageReader<'_, 'a>) -> Result<SubscribeRequest<'a>, ProtocolError> {
    let mut request = SubscribeRequest::default();
    for field in message.fields() {
        let (number, value) = field?;
        match number {
            1 => request.channel = message.text("channel", value)?,
            2 => request.token = message.text("token", value)?,
            3 => request.recover = message.number("recover", value.bool())?,
            6 => request.epoch = message.text("epoch", value)?,
            7 => request.offset = message.number("offset", value.uint64())?,
            8 => request.data = message.payload("data", value)?,
            9 => request.positioned = message.number("positioned", value.bool())?,
            10 => request.recoverable = message.number("recoverable", value.bool())?,
            11 => request.join_leave = message.number("join_leave", value.bool())?,
            12 => request.delta = message.text("delta", value)?,
            13 => {
                let filter = filter_node(&message.nested("tf", value)?, 1)?;
                request.tags_filter = Some(Box::new(filter));
            }
            14 => request.flag = message.number("flag", value.int64())?,
            15 => request.kind = message.number("type", value.int32())?,
            _ => {}
        }
    }
    Ok(request)
}

fn filter_node<'a>(
    message: &MessageReader<'_, 'a>,
    depth: usize,
) -> Result<FilterNode<'a>, ProtocolError> {
    if depth > FilterNode::DEPTH_MAX {
        let deep = format!("is nested deeper than {} levels", FilterNode::DEPTH_MAX);
        return Err(message.protocol_error("", deep));
    }
    let mut node = FilterNode::default();
    for field in message.fields() {
        let (number, value) = field?;
        match number {
            1 => node.op = message.text("op", value)?,
            2 => node.key = message.text("key", value)?,
            3 => node.cmp = message.text("cmp", value)?,
            4 => node.val = message.text("val", value)?,
            5 => node.vals.push(message.text("vals", value)?),
            6 => {
                // Nested nodes keep the path of the filter: a path for each level would cost an allocation each.
                let bytes = message.bytes("nodes", value)?;
                let nested = MessageReader { path: message.path, parent: message.parent, bytes };
                node.nodes.push(filter_node(&nested, depth + 1)?);
            }
            _ => {}
        }
    }
    Ok(node)
}

fn channel<'a>(message: &MessageReader<'_, 'a>) -> Result<ChannelRequest<'a>, ProtocolError> {
    let mut request = ChannelRequest::default();
    for field in message.fields() {
        if let (1, value) = field? {
            request.channel = message.text("channel", value)?;
        }
    }
    Ok(request)
}

fn publish<'a>(message: &MessageReader<'_, 'a>) -> Result<PublishRequest<'a>, ProtocolError> {
    let mut request = PublishRequest::default();
    for field in message.fields() {
        let (number, value) = field?;
        match number {
            1 => request.channel = message.text("channel", value)?,
            2 => request.data = message.payload("data", value)?,
            3 => request.kind = message.number("type", value.int32())?,
            _ => {}
        }
    }
    Ok(request)
}

fn history<'a>(message: &MessageReader<'_, 'a>) -> Result<HistoryRequest<'a>, ProtocolError> {
    let mut request = HistoryRequest::default();
    for field in message.fields() {
        let (number, value) = field?;
        match number {
            1 => request.channel = message.text("channel", value)?,
            7 => request.limit = message.number("limit", value.int32())?,
            8 => request.since = Some(position(&message.nested("since", value)?)?),
            9 => request.reverse = message.number("reverse", value.bool())?,
            _ => {}
        }
    }
    Ok(request)
}

fn position<'a>(message: &MessageReader<'_, 'a>) -> Result<Position<'a>, ProtocolError> {
    let mut position = Position::default();
    for field in message.fields() {
        let (number, value) = field?;
        match number {
            1 => position.offset = message.number("offset", value.uint64())?,
            2 => position.epoch = message.text("epoch", value)?,
            _ => {}
        }
    }
    Ok(position)
}

fn send<'a>(message: &MessageReader<'_, 'a>) -> Result<SendRequest<'a>, ProtocolError> {
    let mut request = SendRequest::default();
    for field in message.fields() {
        if let (1, value) = field? {
            request.data = message.payload("data", value)?;
        }
    }
    Ok(request)
}

fn rpc<'a>(message: &MessageReader<'_, 'a>) -> Result<RpcRequest<'a>, ProtocolError> {
    let mut request = RpcRequest::default();
    for field in message.fields() {
        let (number, value) = field?;
        match number {
            1 => request.data = message.payload("data", value)?,
            2 => request.method = message.text("method", value)?,
            _ => {}
        }
    }
    Ok(request)
}

fn refresh<'a>(message: &MessageReader<'_, 'a>) -> Result<RefreshRequest<'a>, ProtocolError> {
    let mut request = RefreshRequest::default();
    for field in message.fields() {
        if let (1, value) = field? {
            request.token = message.text("token", value)?;
        }
    }
    Ok(request)
}

fn sub_refresh<'a>(
    message: &MessageReader<'_, 'a>,
) -> Result<SubRefreshRequest<'a>, ProtocolError> {
    let mut request = SubRefreshRequest::default();
    for field in message.fields() {
        let (number, value) = field?;
        match number {
            1 => request.channel = message.text("channel", value)?,
            2 => request.token = message.text("token", value)?,
            3 => request.kind = message.number("type", value.int32())?,
            _ => {}
        }
    }
    Ok(request)
}

/// A message and its path in the command, for errors.
pub(crate) struct MessageReader<'p, 'a> {
    path: &'p str,
    parent: Option<&'p MessageReader<'p, 'a>>,
    bytes: &'a [u8],
}

impl<'p, 'a> MessageReader<'p, 'a> {
    pub(crate) fn of(path: &'p str, bytes: &'a [u8]) -> Self {
        MessageReader { path, parent: None, bytes }
    }

    /// Iterates over all fields.
    pub(crate) fn fields(&self) -> impl Iterator<Item = Result<(u32, Value<'a>), ProtocolError>> {
        Fields::of(self.bytes).map(|field| match field {
            Ok(field) => Ok((field.number, field.value)),
            Err(error) => Err(self.error("", error)),
        })
    }

    fn nested<'m>(
        &'m self,
        name: &'m str,
        value: Value<'a>,
    ) -> Result<MessageReader<'m, 'a>, ProtocolError> {
        Ok(MessageReader { path: name, parent: Some(self), bytes: self.bytes(name, value)? })
    }

    pub(crate) fn bytes(&self, name: &str, value: Value<'a>) -> Result<&'a [u8], ProtocolError> {
        value.bytes().map_err(|error| self.error(name, error))
    }

    pub(crate) fn text(&self, name: &str, value: Value<'a>) -> Result<Cow<'a, str>, ProtocolError> {
        value.string().map(Cow::Borrowed).map_err(|error| self.error(name, error))
    }

    /// Returns a payload; `None` when it is empty, which Protobuf does not distinguish from missing.
    fn payload(&self, name: &str, value: Value<'a>) -> Result<Option<Payload<'a>>, ProtocolError> {
        let bytes = self.bytes(name, value)?;
        Ok((!bytes.is_empty()).then(|| Payload::of_bytes(bytes)))
    }

    fn number<T>(&self, name: &str, number: Result<T, ProtobufError>) -> Result<T, ProtocolError> {
        number.map_err(|error| self.error(name, error))
    }

    /// Reads an entry of a map with string keys. `read` receives `None` if the value is missing.
    fn entry<V>(
        &self,
        name: &str,
        value: Value<'a>,
        pairs: &mut PairsBuilder<'a, V>,
        read: impl Fn(Option<Value<'a>>) -> Result<V, ProtocolError>,
    ) -> Result<(), ProtocolError> {
        let entry = self.nested(name, value)?;
        let (mut key, mut value) = (Cow::Borrowed(""), None);
        for field in entry.fields() {
            match field? {
                (1, text) => key = entry.text("key", text)?,
                (2, of) => value = Some(of),
                _ => {}
            }
        }
        pairs.push(key, read(value)?).map_err(|repeated| entry.protocol_error("", repeated))
    }

    fn error(&self, name: &str, error: ProtobufError) -> ProtocolError {
        self.protocol_error(name, error.to_string())
    }

    #[cold]
    fn protocol_error(&self, name: &str, reason: String) -> ProtocolError {
        let mut path = Vec::from_iter((!name.is_empty()).then_some(name));
        let mut at = Some(self);
        while let Some(message) = at {
            path.extend((!message.path.is_empty()).then_some(message.path));
            at = message.parent;
        }
        path.reverse();
        let field = path.join(".");
        let reason = if field.is_empty() { format!("the command {reason}") } else { reason };
        ProtocolError { field, reason }
    }
}
