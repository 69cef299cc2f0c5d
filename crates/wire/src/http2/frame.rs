//! Frames (§4, §6): a header of nine bytes and a payload.

use super::{Error, ErrorCode, FRAME_BYTES_MAX, STREAM_MAX, Setting, Settings};

/// Length of a frame's header in bytes.
pub const HEADER_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITIZED: u8 = 0x20;

/// A frame; its payload borrows the bytes it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Part of a body (§6.1).
    Data {
        /// The stream, never 0.
        stream: u32,
        /// The data without padding.
        data: &'a [u8],
        /// Bytes that count for flow control: data and padding.
        flow_bytes: u32,
        /// Whether this is the sender's last frame on the stream.
        end_stream: bool,
    },
    /// The start of a header block (§6.2).
    Headers {
        /// The stream, never 0.
        stream: u32,
        /// The block, or its first part.
        fragment: &'a [u8],
        /// Whether only the rest of the block follows on the stream.
        end_stream: bool,
        /// Whether the block is complete.
        end_headers: bool,
        /// The stream dependency, which is deprecated (§5.3.1).
        depends_on: Option<u32>,
    },
    /// Deprecated; to be ignored (§6.3).
    Priority {
        /// The stream, never 0.
        stream: u32,
        /// The stream dependency.
        depends_on: u32,
    },
    /// The immediate end of a stream (§6.4).
    Reset {
        /// The stream, never 0.
        stream: u32,
        /// The reason.
        code: ErrorCode,
    },
    /// The sender's settings, which must be acknowledged (§6.5).
    Settings(Settings<'a>),
    /// The peer has applied our settings.
    SettingsAck,
    /// Announces a stream that the server will open (§6.6).
    PushPromise {
        /// The associated stream, never 0.
        stream: u32,
        /// The announced stream.
        promised: u32,
        /// The block, or its first part.
        fragment: &'a [u8],
        /// Whether the block is complete.
        end_headers: bool,
    },
    /// A ping, or the response to one, which has the same payload (§6.7).
    Ping {
        /// Whether it is a response.
        ack: bool,
        /// Opaque.
        payload: [u8; 8],
    },
    /// No stream above `last_stream` was or will be processed (§6.8).
    GoAway {
        /// The highest stream that may have been processed.
        last_stream: u32,
        /// The reason.
        code: ErrorCode,
        /// Text for people.
        debug: &'a [u8],
    },
    /// Increases a window (§6.9). An increment of 0 is a stream error, or a connection error on
    /// stream 0; the caller checks it.
    WindowUpdate {
        /// The stream, or 0 for the connection.
        stream: u32,
        /// Number of bytes.
        increment: u32,
    },
    /// A further part of a header block (§6.10).
    Continuation {
        /// The stream, never 0.
        stream: u32,
        /// The part.
        fragment: &'a [u8],
        /// Whether the block is complete.
        end_headers: bool,
    },
    /// A type that this codec does not know; to be ignored (§4.1).
    Unknown {
        /// The type.
        kind: u8,
        /// The stream.
        stream: u32,
    },
}

/// Decodes the frame at the start of `bytes` and returns it with its length in bytes; `None` when
/// it is incomplete. `frame_bytes_max` is the MAX_FRAME_SIZE that this side announced, 16,384 by
/// default.
///
/// # Errors
///
/// Errors of a single frame: a payload longer than allowed (detected at its header), a wrong length
/// for the type, an invalid stream for the type, padding longer than the payload, a setting out of
/// range.
#[inline]
pub fn decode(bytes: &[u8], frame_bytes_max: u32) -> Result<Option<(Frame<'_>, usize)>, Error> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    if length > frame_bytes_max {
        return Err(Error::frame_size("frame is longer than MAX_FRAME_SIZE"));
    }
    let Some(payload) = rest.get(..length as usize) else { return Ok(None) };
    let (kind, flags) = (header[3], header[4]);
    let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]) & STREAM_MAX;
    let frame = payload_of(kind, flags, stream, payload)?;
    Ok(Some((frame, HEADER_BYTES + payload.len())))
}

#[inline]
fn payload_of(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<Frame<'_>, Error> {
    let on_stream = match kind {
        DATA | HEADERS | PRIORITY | RST_STREAM | PUSH_PROMISE | CONTINUATION => Some(true),
        SETTINGS | PING | GOAWAY => Some(false),
        _ => None,
    };
    if on_stream.is_some_and(|on_stream| on_stream != (stream != 0)) {
        return Err(Error::protocol("frame on a stream that its type cannot be on"));
    }
    let end_headers = flags & END_HEADERS != 0;
    let end_stream = flags & END_STREAM != 0;
    Ok(match kind {
        DATA => {
            let data = unpadded(flags, payload)?;
            Frame::Data { stream, data, flow_bytes: payload.len() as u32, end_stream }
        }
        HEADERS => {
            let mut fragment = unpadded(flags, payload)?;
            let mut depends_on = None;
            if flags & PRIORITIZED != 0 {
                let Some((first, rest)) = fragment.split_first_chunk::<5>() else {
                    return Err(Error::frame_size("HEADERS is too short for its priority"));
                };
                depends_on = Some(stream_of(first));
                fragment = rest;
            }
            Frame::Headers { stream, fragment, end_stream, end_headers, depends_on }
        }
        PRIORITY => match <&[u8; 5]>::try_from(payload) {
            Ok(payload) => Frame::Priority { stream, depends_on: stream_of(payload) },
            Err(_) => return Err(Error::frame_size("PRIORITY is not five bytes")),
        },
        RST_STREAM => match <[u8; 4]>::try_from(payload) {
            Ok(code) => Frame::Reset { stream, code: ErrorCode(u32::from_be_bytes(code)) },
            Err(_) => return Err(Error::frame_size("RST_STREAM is not four bytes")),
        },
        SETTINGS if flags & ACK != 0 => {
            if !payload.is_empty() {
                return Err(Error::frame_size("acknowledged SETTINGS with a payload"));
            }
            Frame::SettingsAck
        }
        SETTINGS => Frame::Settings(Settings::parse(payload)?),
        PUSH_PROMISE => {
            let Some((first, fragment)) = unpadded(flags, payload)?.split_first_chunk::<4>() else {
                return Err(Error::frame_size("PUSH_PROMISE is too short"));
            };
            let promised = u32::from_be_bytes(*first) & STREAM_MAX;
            Frame::PushPromise { stream, promised, fragment, end_headers }
        }
        PING => match <[u8; 8]>::try_from(payload) {
            Ok(payload) => Frame::Ping { ack: flags & ACK != 0, payload },
            Err(_) => return Err(Error::frame_size("PING is not eight bytes")),
        },
        GOAWAY => {
            let Some((first, debug)) = payload.split_first_chunk::<8>() else {
                return Err(Error::frame_size("GOAWAY is too short"));
            };
            let code = u32::from_be_bytes([first[4], first[5], first[6], first[7]]);
            Frame::GoAway { last_stream: stream_of(first), code: ErrorCode(code), debug }
        }
        WINDOW_UPDATE => match <[u8; 4]>::try_from(payload) {
            Ok(increment) => {
                let increment = u32::from_be_bytes(increment) & STREAM_MAX;
                Frame::WindowUpdate { stream, increment }
            }
            Err(_) => return Err(Error::frame_size("WINDOW_UPDATE is not four bytes")),
        },
        CONTINUATION => Frame::Continuation { stream, fragment: payload, end_headers },
        kind => Frame::Unknown { kind, stream },
    })
}

fn stream_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & STREAM_MAX
}

fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], Error> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let Some((&padding, rest)) = payload.split_first() else {
        return Err(Error::frame_size("padded frame without a payload"));
    };
    match rest.len().checked_sub(usize::from(padding)) {
        Some(length) => Ok(&rest[..length]),
        None => Err(Error::protocol("padding is longer than the frame")),
    }
}

#[inline]
fn encode_header(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    debug_assert!(length <= FRAME_BYTES_MAX as usize && stream <= STREAM_MAX);
    let length = (length as u32).to_be_bytes();
    let stream = stream.to_be_bytes();
    out.extend_from_slice(&[
        length[1], length[2], length[3], kind, flags, stream[0], stream[1], stream[2], stream[3],
    ]);
}

/// Appends a DATA frame. `data` must fit the peer's MAX_FRAME_SIZE and the windows.
#[inline]
pub fn encode_data(out: &mut Vec<u8>, stream: u32, data: &[u8], end_stream: bool) {
    encode_data_header(out, stream, data.len(), end_stream);
    out.extend_from_slice(data);
}

/// Appends the header of a DATA frame; the caller appends its `length` bytes.
#[inline]
pub(crate) fn encode_data_header(out: &mut Vec<u8>, stream: u32, length: usize, end_stream: bool) {
    encode_header(out, length, DATA, if end_stream { END_STREAM } else { 0 }, stream);
}

/// Appends a header block: HEADERS, and CONTINUATION frames as required by the peer's
/// MAX_FRAME_SIZE.
#[inline]
pub fn encode_headers(
    out: &mut Vec<u8>,
    stream: u32,
    block: &[u8],
    end_stream: bool,
    frame_bytes_max: u32,
) {
    let ends = if end_stream { END_STREAM } else { 0 };
    let (mut part, mut rest) = block.split_at(block.len().min(frame_bytes_max as usize));
    let (mut kind, mut flags) = (HEADERS, ends);
    loop {
        flags |= if rest.is_empty() { END_HEADERS } else { 0 };
        encode_header(out, part.len(), kind, flags, stream);
        out.extend_from_slice(part);
        if rest.is_empty() {
            return;
        }
        (part, rest) = rest.split_at(rest.len().min(frame_bytes_max as usize));
        (kind, flags) = (CONTINUATION, 0);
    }
}

/// Appends RST_STREAM.
pub fn encode_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    encode_header(out, 4, RST_STREAM, 0, stream);
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Appends SETTINGS.
pub fn encode_settings(out: &mut Vec<u8>, settings: &[(Setting, u32)]) {
    encode_header(out, 6 * settings.len(), SETTINGS, 0, 0);
    for (setting, value) in settings {
        out.extend_from_slice(&setting.id().to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of the peer's SETTINGS.
pub fn encode_settings_ack(out: &mut Vec<u8>) {
    encode_header(out, 0, SETTINGS, ACK, 0);
}

/// Appends PING, or the response to one.
pub fn encode_ping(out: &mut Vec<u8>, payload: [u8; 8], ack: bool) {
    encode_header(out, 8, PING, if ack { ACK } else { 0 }, 0);
    out.extend_from_slice(&payload);
}

/// Appends GOAWAY. `debug` is truncated to 256 bytes.
pub fn encode_go_away(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, debug: &[u8]) {
    let debug = &debug[..debug.len().min(256)];
    encode_header(out, 8 + debug.len(), GOAWAY, 0, 0);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
    out.extend_from_slice(debug);
}

/// Appends WINDOW_UPDATE for a stream, or for the connection if `stream` is 0.
pub fn encode_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    debug_assert!(increment > 0 && increment <= STREAM_MAX);
    encode_header(out, 4, WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}
