//! Messages of Centrifugo's layout, in streams and in publish/subscribe.
//!
//! A publication is a Protocol Buffers message in the client encoding. When published, it is preceded by its position:
//! `__p1:OFFSET:EPOCH__`, or `__d1:OFFSET:EPOCH:LENGTH:BEFORE:LENGTH:` if it may be sent as a difference from the one before.
//! Without history it has no position. Fields from 1000 on are Dunlin's; other readers skip them.

use std::sync::Arc;

use dunlin_hub::{
    ClientInfo, Epoch, NODES_MAX, NewPublication, PayloadFormat, PublicationParts, SessionId,
    StreamPosition, Tags,
};
use dunlin_wire::protobuf::{Delimited, Field, Fields, ProtobufError, Writer};
use dunlin_wire::resp::Value;

use crate::frame::{FrameError, decode_tag};

/// The format of the payload as Dunlin detected it: 1 for JSON on one line, 2 for anything else. Payloads of Centrifugo nodes
/// are examined.
const FORMAT: u32 = 1000;
/// The session that does not receive it.
const EXCEPT: u32 = 1001;
/// The subject.
const KEY: u32 = 1002;
/// In a join or a leave: 1 if a node of Dunlin sent it.
const OWN: u32 = 1000;

/// A message of publish/subscribe.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// A publication, its position, and the session that does not receive it. Offset 0 and no epoch without history.
    Publication(StreamPosition, Box<PublicationParts>, Option<SessionId>),
    /// A join (true) or a leave of a client at a node of Centrifugo.
    Member(Box<ClientInfo>, bool),
    /// A message to be ignored, for instance one that nodes of Dunlin also send through the cluster.
    Other,
}

/// Appends a publication after its length and a byte for whether it may be sent as a difference.
pub(crate) fn encode(out: &mut Vec<u8>, publication: &NewPublication, time_ms: u64) {
    Writer::delimited(out, |writer| {
        writer.raw(&[u8::from(publication.delta)]);
        writer.bytes(4, &publication.data);
        if let Some(info) = &publication.info {
            writer.message(5, |writer| write_info(writer, info));
        }
        for (name, value) in publication.tags.iter() {
            writer.message(7, |writer| {
                writer.string(1, name);
                writer.string(2, value);
            });
        }
        writer.unsigned(9, time_ms);
        let format = if publication.format == PayloadFormat::Json { 1u32 } else { 2 };
        writer.unsigned(FORMAT, format);
        writer.unsigned(EXCEPT, publication.except.map_or(0, SessionId::to_u64));
        if let Some(key) = &publication.key {
            writer.element(KEY, key.as_bytes());
        }
    });
}

/// Iterates over the output of [`encode`]: whether each may be sent as a difference, and the message.
pub(crate) fn encoded(bytes: &[u8]) -> impl Iterator<Item = (bool, &[u8])> {
    Delimited::of(bytes).filter_map(|message| {
        let (delta, message) = message.ok()?.split_first()?;
        Some((*delta == 1, message))
    })
}

/// Appended to a message without history that may be sent as a difference: field 8 is 1.
pub(crate) const DELTA: &[u8] = &[8 << 3, 1];

fn write_info(writer: &mut Writer<'_>, info: &ClientInfo) {
    writer.string(1, &info.user);
    writer.string(2, &info.client.to_string());
    for (number, json) in [(3, &info.conn_info), (4, &info.chan_info)] {
        if let Some(json) = json {
            writer.element(number, json);
        }
    }
}

/// Encodes a join or a leave of a session of this node.
pub(crate) fn encode_member(info: &ClientInfo, joined: bool) -> Box<[u8]> {
    let mut out = if joined { b"__j__" } else { b"__l__" }.to_vec();
    let mut writer = Writer::new(&mut out);
    write_info(&mut writer, info);
    writer.unsigned(OWN, 1u32);
    out.into()
}

/// Parses a publish/subscribe message.
pub(crate) fn parse(message: &[u8]) -> Result<Message, FrameError> {
    let Some(rest) = message.strip_prefix(b"__") else {
        return publication(message, StreamPosition::default(), false);
    };
    match rest {
        [b'p', b'1', b':', rest @ ..] => {
            let (offset, rest) = until(rest, b":")?;
            let (epoch, rest) = until(rest, b"__")?;
            publication(rest, position(offset, epoch)?, false)
        }
        [b'd', b'1', b':', rest @ ..] => {
            let (offset, rest) = until(rest, b":")?;
            let (epoch, rest) = until(rest, b":")?;
            let (_, rest) = counted(rest)?;
            let (message, _) = counted(rest.strip_prefix(b":").ok_or(FrameError::Head)?)?;
            publication(message, position(offset, epoch)?, true)
        }
        [kind @ (b'j' | b'l'), b'_', b'_', rest @ ..] => {
            let is_own = |field: Field<'_>| field.number == OWN;
            if Fields::of(rest).flatten().any(is_own) {
                return Ok(Message::Other);
            }
            let info = decode_info(rest).map_err(FrameError::Publication)?;
            Ok(info.map_or(Message::Other, |info| Message::Member(Box::new(info), *kind == b'j')))
        }
        _ => Err(FrameError::Version),
    }
}

fn publication(message: &[u8], at: StreamPosition, delta: bool) -> Result<Message, FrameError> {
    let (mut publication, except) = decode(message).map_err(FrameError::Publication)?;
    publication.offset = at.offset;
    publication.delta |= delta;
    Ok(Message::Publication(at, Box::new(publication), except))
}

/// Offsets are twenty digits at most, epochs a few letters.
const HEAD_BYTES_MAX: usize = 64;

fn until<'a>(bytes: &'a [u8], mark: &[u8]) -> Result<(&'a str, &'a [u8]), FrameError> {
    let end = bytes.windows(mark.len()).take(HEAD_BYTES_MAX).position(|part| part == mark);
    let end = end.ok_or(FrameError::Head)?;
    let text = str::from_utf8(&bytes[..end]).map_err(|_| FrameError::Head)?;
    Ok((text, &bytes[end + mark.len()..]))
}

/// Splits length-prefixed bytes (`LENGTH:`) from the rest.
fn counted(bytes: &[u8]) -> Result<(&[u8], &[u8]), FrameError> {
    let (length, rest) = until(bytes, b":")?;
    let length = length.parse().map_err(|_| FrameError::Head)?;
    rest.split_at_checked(length).ok_or(FrameError::Head)
}

fn position(offset: &str, epoch: &str) -> Result<StreamPosition, FrameError> {
    let offset = offset.parse().map_err(|_| FrameError::Head)?;
    Ok(StreamPosition { offset, epoch: Epoch::parse(epoch) })
}

/// Parses the publications of a stream, as `XRANGE` returns them.
pub(crate) fn entries<'a>(
    entries: &'a [Value<'a>],
) -> impl DoubleEndedIterator<Item = Result<PublicationParts, FrameError>> + 'a {
    entries.iter().map(|entry| {
        let Some([id, fields]) = entry.elements() else { return Err(FrameError::Head) };
        let offset = id.text().and_then(|id| id.split_once('-')?.0.parse().ok());
        let mut pairs = fields.elements().unwrap_or_default().chunks_exact(2);
        let message = pairs.find(|pair| pair[0].bytes() == Some(b"d"));
        let message = message.and_then(|pair| pair[1].bytes()).ok_or(FrameError::Head)?;
        let (mut publication, _) = decode(message).map_err(FrameError::Publication)?;
        publication.offset = offset.ok_or(FrameError::Head)?;
        Ok(publication)
    })
}

fn decode(message: &[u8]) -> Result<(PublicationParts, Option<SessionId>), ProtobufError> {
    let mut publication = PublicationParts::default();
    let (mut except, mut format) = (None, 0);
    let mut tags = Vec::new();
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            4 => publication.data = field.value.bytes()?.into(),
            5 => publication.info = decode_info(field.value.bytes()?)?.map(Arc::new),
            7 => tags.push(decode_tag(field.value.bytes()?)?),
            8 => publication.delta = field.value.bool()?,
            9 => publication.time_ms = field.value.uint64()?,
            FORMAT => format = field.value.uint32()?,
            EXCEPT => except = SessionId::from_u64(field.value.uint64()?),
            KEY => publication.key = Some(field.value.string()?.into()),
            _ => {}
        }
    }
    publication.tags = tags.into_iter().collect::<Tags>();
    publication.format = match format {
        1 => PayloadFormat::Json,
        2 => PayloadFormat::Binary,
        _ => found_format(&mut publication.data),
    };
    Ok((publication, except))
}

/// Returns the format of a foreign payload, and puts JSON on one line.
fn found_format(data: &mut [u8]) -> PayloadFormat {
    if serde_json::from_slice::<serde::de::IgnoredAny>(data).is_err() {
        return PayloadFormat::Binary;
    }
    // In JSON they are whitespace: inside a string they would be escaped.
    for byte in data.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    PayloadFormat::Json
}

/// Parses a client from a message of a Centrifugo node, for instance in its presence; `None` if it is invalid.
pub fn centrifugo_client(message: &[u8]) -> Option<ClientInfo> {
    decode_info(message).ok().flatten()
}

/// Parses a client; `None` if the message names none. Centrifugo's client ids are text: the text is kept, and a number is
/// derived from it, so that a leave matches its join.
fn decode_info(message: &[u8]) -> Result<Option<ClientInfo>, ProtobufError> {
    let (mut user, mut id) = ("", "");
    let (mut conn_info, mut chan_info) = (None, None);
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            1 => user = field.value.string()?,
            2 => id = field.value.string()?,
            3 => conn_info = json(field.value.bytes()?),
            4 => chan_info = json(field.value.bytes()?),
            _ => {}
        }
    }
    let (client, foreign_client) = match id.parse() {
        Ok(client) => (client, None),
        Err(_) if id.is_empty() && user.is_empty() => return Ok(None),
        Err(_) => (number_of(id), Some(id.into())),
    };
    Ok(Some(ClientInfo {
        user: user.into(),
        client,
        user_is_number: false,
        foreign_client,
        conn_info,
        chan_info,
    }))
}

/// Returns raw JSON on one line; `None` for anything else, which cannot be sent to clients.
fn json(bytes: &[u8]) -> Option<Box<[u8]>> {
    let mut json: Box<[u8]> = bytes.into();
    (found_format(&mut json) == PayloadFormat::Json).then_some(json)
}

/// Derives a session id that no session of Dunlin has, except with probability 2^-41 on the node with the highest number.
fn number_of(id: &str) -> SessionId {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let node = NODES_MAX as u16 - 1;
    SessionId::pack(node, (hash >> 35) as u8, (hash >> 28) as u8, (hash >> 8) as u32, hash as u8)
}
