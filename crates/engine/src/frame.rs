//! The encoding of messages, both stored and published.
//!
//! A message is text followed by bytes: `1`, the version; a kind; an epoch; `:`; an offset; `:`; and the rest:
//!
//! | kind | what it says | rest |
//! |---|---|---|
//! | `p` | publications, the last of which has this offset; offset 0 and no epoch if nothing is stored | publications |
//! | `c` | the stream's publications were removed; its top | (nothing) |
//! | `e` | the stream continues in this epoch; earlier positions cannot be continued | (nothing) |
//!
//! Publications are Protocol Buffers messages, each preceded by its length:
//!
//! ```text
//! message Publication { bytes data = 1; uint32 format = 2; bool delta = 3; uint64 time_ms = 4;
//!                       repeated Tag tags = 5; string key = 6; Info info = 7; uint64 except = 8; bytes trace = 9; }
//! message Tag         { string name = 1; string value = 2; }
//! message Info        { string user = 1; uint64 client = 2; optional bytes conn_info = 3; optional bytes chan_info = 4;
//!                       bool user_is_number = 5; }
//! ```
//!
//! A reader skips unknown fields and kinds. A change that an older reader would misread needs another version; a node that
//! receives an unknown version reports it and stops reading the stream.

use std::sync::Arc;

use dunlin_hub::{
    ClientInfo, Epoch, NewPublication, PayloadFormat, PublicationParts, SessionId, StreamPosition,
    Tags, TraceContext,
};
use dunlin_wire::protobuf::{Delimited, Fields, ProtobufError, Writer};

/// A message that this version of Dunlin cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version, or not ours at all.
    #[error("not a message of version 1: a newer Dunlin's, or somebody else's")]
    Version,
    /// Its head is malformed.
    #[error("the head of the message is malformed")]
    Head,
    /// A publication in it is malformed.
    #[error("a publication {0}")]
    Publication(ProtobufError),
}

/// A message, its publications not yet decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: FrameKind,
    /// The position of the last publication.
    pub(crate) position: StreamPosition,
    pub(crate) body: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Publications,
    Cleared,
    EpochChanged,
    /// A kind of a later version; skipped.
    Unknown,
}

impl<'a> Frame<'a> {
    pub(crate) fn parse(message: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let (kind, rest) = match message {
            [b'1', kind, rest @ ..] => (*kind, rest),
            _ => return Err(FrameError::Version),
        };
        let kind = match kind {
            b'p' => FrameKind::Publications,
            b'c' => FrameKind::Cleared,
            b'e' => FrameKind::EpochChanged,
            _ => FrameKind::Unknown,
        };
        let (epoch, rest) = until_colon(rest).ok_or(FrameError::Head)?;
        let (offset, body) = until_colon(rest).ok_or(FrameError::Head)?;
        let offset = offset.parse().map_err(|_| FrameError::Head)?;
        Ok(Frame { kind, position: StreamPosition { offset, epoch: Epoch::parse(epoch) }, body })
    }

    /// Decodes the publications, with their offsets, and the session that does not receive each.
    pub(crate) fn publications(
        &self,
    ) -> Result<Vec<(PublicationParts, Option<SessionId>)>, FrameError> {
        let mut publications = Vec::with_capacity(1);
        for publication in Delimited::of(self.body) {
            let publication = publication.and_then(decode).map_err(FrameError::Publication)?;
            publications.push(publication);
        }
        if self.position.offset > 0 {
            let before = self.position.offset.checked_sub(publications.len() as u64);
            let before = before.ok_or(FrameError::Head)?;
            for ((publication, _), offset) in publications.iter_mut().zip(before + 1..) {
                publication.offset = offset;
            }
        }
        Ok(publications)
    }
}

/// Epochs are eleven characters at most, offsets twenty digits.
fn until_colon(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().take(21).position(|&byte| byte == b':')?;
    Some((str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

/// Encodes the start of a message, before its publications.
pub(crate) fn head(kind: FrameKind, position: StreamPosition) -> String {
    let kind = match kind {
        FrameKind::Cleared => 'c',
        FrameKind::EpochChanged => 'e',
        FrameKind::Publications | FrameKind::Unknown => 'p',
    };
    format!("1{kind}{}:{}:", position.epoch, position.offset)
}

/// Appends a publication.
pub(crate) fn encode(out: &mut Vec<u8>, publication: &NewPublication, time_ms: u64) {
    Writer::delimited(out, |writer| {
        writer.bytes(1, &publication.data);
        writer.unsigned(2, u32::from(publication.format == PayloadFormat::Binary));
        writer.bool(3, publication.delta);
        writer.unsigned(4, time_ms);
        for (name, value) in publication.tags.iter() {
            writer.message(5, |writer| {
                writer.string(1, name);
                writer.string(2, value);
            });
        }
        if let Some(key) = &publication.key {
            writer.element(6, key.as_bytes());
        }
        if let Some(info) = &publication.info {
            writer.message(7, |writer| {
                writer.string(1, &info.user);
                writer.unsigned(2, info.client.to_u64());
                for (number, json) in [(3, &info.conn_info), (4, &info.chan_info)] {
                    if let Some(json) = json {
                        writer.element(number, json);
                    }
                }
                writer.bool(5, info.user_is_number);
            });
        }
        writer.unsigned(8, publication.except.map_or(0, SessionId::to_u64));
        if let Some(trace) = publication.trace {
            writer.element(9, &trace.to_bytes());
        }
    });
}

/// Decodes the first of some publications.
pub(crate) fn decode_first(publications: &[u8]) -> Result<PublicationParts, FrameError> {
    let first = Delimited::of(publications).next().ok_or(FrameError::Head)?;
    first.and_then(decode).map(|(publication, _)| publication).map_err(FrameError::Publication)
}

fn decode(message: &[u8]) -> Result<(PublicationParts, Option<SessionId>), ProtobufError> {
    let mut publication = PublicationParts::default();
    let mut except = None;
    let mut tags = Vec::new();
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            1 => publication.data = field.value.bytes()?.into(),
            2 if field.value.uint32()? == 1 => publication.format = PayloadFormat::Binary,
            3 => publication.delta = field.value.bool()?,
            4 => publication.time_ms = field.value.uint64()?,
            5 => tags.push(decode_tag(field.value.bytes()?)?),
            6 => publication.key = Some(field.value.string()?.into()),
            8 => except = SessionId::from_u64(field.value.uint64()?),
            9 => publication.trace = TraceContext::from_bytes(field.value.bytes()?),
            7 => publication.info = Some(Arc::new(decode_info(field.value.bytes()?)?)),
            _ => {}
        }
    }
    publication.tags = tags.into_iter().collect::<Tags>();
    Ok((publication, except))
}

/// Decodes a tag: its name and its value.
pub(crate) fn decode_tag(message: &[u8]) -> Result<(Box<str>, Box<str>), ProtobufError> {
    let (mut name, mut value) = ("", "");
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            1 => name = field.value.string()?,
            2 => value = field.value.string()?,
            _ => {}
        }
    }
    Ok((name.into(), value.into()))
}

fn decode_info(message: &[u8]) -> Result<ClientInfo, ProtobufError> {
    let mut user = "";
    let mut client = 0;
    let (mut conn_info, mut chan_info) = (None, None);
    let mut user_is_number = false;
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            1 => user = field.value.string()?,
            2 => client = field.value.uint64()?,
            3 => conn_info = Some(field.value.bytes()?.into()),
            4 => chan_info = Some(field.value.bytes()?.into()),
            5 => user_is_number = field.value.bool()?,
            _ => {}
        }
    }
    let client = SessionId::from_u64(client).ok_or(ProtobufError::Range)?;
    Ok(ClientInfo {
        user: user.into(),
        user_is_number,
        client,
        foreign_client: None,
        conn_info,
        chan_info,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn publication() -> impl Strategy<Value = NewPublication> {
        let text = || any::<String>().prop_map(String::into_boxed_str);
        let bytes = || prop::collection::vec(any::<u8>(), 0..50).prop_map(Vec::into_boxed_slice);
        let info = (text(), 0..1u64 << 53, prop::option::of(bytes()), prop::option::of(bytes()));
        let info = info.prop_map(|(user, client, conn_info, chan_info)| {
            let client = SessionId::from_u64(client).expect("fits");
            Arc::new(ClientInfo {
                user: user.into(),
                client,
                user_is_number: false,
                foreign_client: None,
                conn_info,
                chan_info,
            })
        });
        let tags = prop::collection::vec((text(), text()), 0..3);
        let key = prop::option::of(text());
        let except =
            prop::option::of((1..1u64 << 53).prop_map(|id| SessionId::from_u64(id).expect("fits")));
        let trace = (1..u128::MAX, 1..u64::MAX);
        let trace = prop::option::of(trace.prop_map(|(trace, span)| TraceContext { trace, span }));
        let flags = (any::<bool>(), any::<bool>());
        (bytes(), flags, tags, key, prop::option::of(info), except, trace).prop_map(
            |(data, (binary, delta), tags, key, info, except, trace)| NewPublication {
                trace,
                except,
                data,
                format: if binary { PayloadFormat::Binary } else { PayloadFormat::Json },
                delta,
                tags: tags.into_iter().collect(),
                key,
                info,
                ..NewPublication::default()
            },
        )
    }

    proptest! {
        #[test]
        fn publications_come_out_as_they_went_in(
            publications in prop::collection::vec(publication(), 1..4),
            time_ms in any::<u64>(),
        ) {
            let mut message = b"1pAb:9:".to_vec();
            for publication in &publications {
                encode(&mut message, publication, time_ms);
            }
            let frame = Frame::parse(&message).expect("well-formed");
            prop_assert_eq!(frame.position, StreamPosition { offset: 9, epoch: Epoch::parse("Ab") });
            let decoded = frame.publications().expect("well-formed");
            prop_assert_eq!(decoded.len(), publications.len());
            for (index, ((out, except), put)) in decoded.iter().zip(&publications).enumerate() {
                prop_assert_eq!(out.offset, (10 - publications.len() + index) as u64);
                prop_assert_eq!((&out.data, out.format, out.delta), (&put.data, put.format, put.delta));
                prop_assert_eq!((&out.tags, &out.key, &out.info), (&put.tags, &put.key, &put.info));
                prop_assert_eq!((out.time_ms, *except), (time_ms, put.except));
                prop_assert_eq!(out.trace, put.trace);
            }
        }

        #[test]
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let message = [b"1p:1:", &bytes[..]].concat();
            for message in [&bytes[..], &message] {
                if let Ok(frame) = Frame::parse(message) {
                    let _ = frame.publications();
                }
            }
        }
    }

    #[test]
    fn another_version_is_refused_and_another_kind_is_skipped() {
        assert_eq!(Frame::parse(b"2pa:1:"), Err(FrameError::Version));
        assert_eq!(Frame::parse(b""), Err(FrameError::Version));
        assert_eq!(Frame::parse(b"1pa:1"), Err(FrameError::Head));
        assert_eq!(Frame::parse(b"1pa:-1:"), Err(FrameError::Head));
        assert_eq!(Frame::parse(b"1za:1:rest").map(|frame| frame.kind), Ok(FrameKind::Unknown));
    }
}
