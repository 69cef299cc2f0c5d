//! The connection: its windows, limits, streams and output.

use std::collections::VecDeque;

use super::Response;
use super::stream::{Stream, Streams};
use crate::http2::flow::Window;
use crate::http2::hpack::{Decoder, Encoder, Indexing};
use crate::http2::{
    CONTINUATIONS_MAX, Error, ErrorCode, FRAME_BYTES_DEFAULT, HeaderAssembly, PREFACE, STREAM_MAX,
    Setting, WINDOW_BYTES_DEFAULT, frame,
};

/// Maximum size of a header block. A block beyond our limit must still be read to keep the HPACK table synchronised, up
/// to the maximum number of full frames.
const HEADER_BLOCK_BYTES_MAX: usize = FRAME_BYTES_DEFAULT as usize * CONTINUATIONS_MAX as usize;
/// Far more acknowledgements than a responsive peer can owe.
const UPDATES_DUE_MAX: u32 = 1 << 20;

/// Limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Maximum number of open streams before the peer's settings arrive; at least 1.
    pub streams_before_settings: u32,
    /// Maximum body of a response; a longer one is truncated. It is also the window of a stream, so that no stream needs its
    /// window renewed. At most 2³¹−1.
    pub body_bytes_max: u32,
    /// The window of the connection for responses; at least 65,535.
    pub window_bytes: u32,
    /// Maximum header list of a response; a longer one is truncated.
    pub header_list_bytes_max: u32,
    /// Maximum number of frames without progress (SETTINGS, PING, RST_STREAM of no stream, empty DATA, and so on) that
    /// the peer may send between two calls of [`Connection::handle_second`].
    pub idle_frames_max: u32,
    /// Maximum bytes that wait in [`Connection::transmit`] while the peer causes replies (PING, SETTINGS).
    pub transmit_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            streams_before_settings: 100,
            body_bytes_max: WINDOW_BYTES_DEFAULT,
            window_bytes: 1 << 20,
            header_list_bytes_max: 16 << 10,
            idle_frames_max: 1_000,
            transmit_bytes_max: 4 << 20,
        }
    }
}

/// Events of a connection. Every stream ends in exactly one event with its identifier, or is still open when the
/// connection ends.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer's settings arrived, for the first time or again.
    Settings,
    /// The response to a stream is complete.
    Response {
        /// The stream.
        stream: u32,
        /// Its response.
        response: Response,
    },
    /// The peer did not process a stream at all: REFUSED_STREAM, or above the last stream of its GOAWAY. The request can be
    /// sent again (§8.7). For a GOAWAY the last stream is reported first, so that putting requests back at the front of a queue
    /// one by one keeps their order.
    Refused {
        /// The stream.
        stream: u32,
    },
    /// The peer ended a stream. Whether it processed the request is unknown if the request was sent completely.
    Reset {
        /// The stream.
        stream: u32,
        /// The peer's error code.
        code: ErrorCode,
        /// How much of the request was sent.
        sent: SendProgress,
    },
    /// The peer accepts no more streams. Open streams that it has not refused continue.
    GoAway {
        /// The peer's error code.
        code: ErrorCode,
        /// The peer's debug data, truncated to 1,024 bytes.
        debug: Vec<u8>,
    },
    /// The reply to [`Connection::ping`].
    Pong([u8; 8]),
}

/// How much of a request was sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProgress {
    /// Not its end: no server can have processed it.
    Partly,
    /// All of it, according to [`Connection::handle_transmitted`].
    Wholly,
}

/// Why no stream was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The peer's limit of open streams is reached.
    #[error("as many streams are open as the peer allows; wait for a response")]
    StreamLimit,
    /// The peer sent GOAWAY, or the connection failed.
    #[error("the connection takes no more streams; open another")]
    Closing,
    /// All 2³⁰ identifiers are used up.
    #[error("the connection has used up its streams; open another")]
    Exhausted,
}

/// Free capacity for another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The number of streams that may be opened.
    pub streams: u32,
    /// The connection's window in bytes, minus the waiting bodies.
    pub window_bytes: u32,
}

/// A client's end of a connection. `B` is the body of a request.
#[derive(Debug)]
pub struct Connection<B> {
    pub(super) config: Config,
    /// An incomplete frame.
    pub(super) input: Vec<u8>,
    pub(super) out: Vec<u8>,
    pub(super) out_begin: usize,
    pub(super) streams: Streams<B>,
    pub(super) next_stream: u32,
    /// Bodies that wait for the connection's window, in the order of their requests. Those that wait only for their stream's
    /// window are not included.
    pub(super) waiting: VecDeque<u32>,
    /// Unsent body bytes of all open streams.
    pub(super) unsent_bytes: u64,
    /// The peer's window, for what we send.
    pub(super) window: Window,
    /// Bytes received since our last WINDOW_UPDATE for the connection.
    pub(super) received_bytes: u32,
    pub(super) streams_max: u32,
    pub(super) settled: bool,
    pub(super) stream_window_bytes: u32,
    pub(super) frame_bytes_max: u32,
    pub(super) encoder: Encoder,
    pub(super) decoder: Decoder,
    pub(super) headers: HeaderAssembly,
    pub(super) events: VecDeque<Event>,
    pub(super) closing: bool,
    pub(super) idle_frames: u32,
    /// WINDOW_UPDATE frames to expect for the DATA sent: an eager peer sends two for each DATA frame.
    pub(super) updates_due: u32,
    /// Bytes sent since the connection began.
    transmitted: u64,
    block: Vec<u8>,
}

impl<B: AsRef<[u8]>> Connection<B> {
    /// Creates a connection, whose preface and settings are the first bytes to transmit.
    pub fn new(config: Config) -> Connection<B> {
        let mut out = PREFACE.to_vec();
        frame::encode_settings(
            &mut out,
            &[
                (Setting::EnablePush, 0),
                (Setting::InitialWindowSize, config.body_bytes_max),
                (Setting::MaxHeaderListSize, config.header_list_bytes_max),
            ],
        );
        let grown = config.window_bytes.saturating_sub(WINDOW_BYTES_DEFAULT);
        if grown > 0 {
            frame::encode_window_update(&mut out, 0, grown);
        }
        Connection {
            config,
            input: Vec::new(),
            out,
            out_begin: 0,
            streams: Streams::default(),
            next_stream: 1,
            waiting: VecDeque::new(),
            unsent_bytes: 0,
            window: Window::default(),
            received_bytes: 0,
            streams_max: config.streams_before_settings.max(1),
            settled: false,
            stream_window_bytes: WINDOW_BYTES_DEFAULT,
            frame_bytes_max: FRAME_BYTES_DEFAULT,
            encoder: Encoder::new(),
            decoder: Decoder::new(crate::http2::hpack::TABLE_BYTES_DEFAULT),
            headers: HeaderAssembly::new(HEADER_BLOCK_BYTES_MAX),
            events: VecDeque::new(),
            closing: false,
            idle_frames: 0,
            updates_due: 0,
            transmitted: 0,
            block: Vec::new(),
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the free streams and the free window.
    #[inline]
    pub fn capacity(&self) -> Capacity {
        let streams =
            if self.closing { 0 } else { self.streams_max.saturating_sub(self.streams_open()) };
        let window = u64::from(self.window.available()).saturating_sub(self.unsent_bytes);
        Capacity { streams, window_bytes: window as u32 }
    }

    /// Returns the number of open streams.
    #[inline]
    pub fn streams_open(&self) -> u32 {
        self.streams.len() as u32
    }

    /// Returns the peer's limit of concurrent streams; `u32::MAX` if it set none.
    pub fn streams_max(&self) -> u32 {
        self.streams_max
    }

    /// Returns the connection's send window.
    pub fn window_bytes(&self) -> u32 {
        self.window.available()
    }

    /// Returns the body bytes of open requests that no window has allowed to be sent yet.
    pub fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
    }

    /// Returns whether no more streams can be opened: the peer sent GOAWAY, the identifiers are used up, or the connection
    /// failed.
    pub fn is_closing(&self) -> bool {
        self.closing || self.next_stream > STREAM_MAX
    }

    /// Iterates over the open streams, in no order, and how much of each request was sent.
    pub fn open_streams(&self) -> impl Iterator<Item = (u32, SendProgress)> {
        self.streams.iter().map(|(&id, stream)| (id, self.sent(stream)))
    }

    pub(super) fn sent(&self, stream: &Stream<B>) -> SendProgress {
        match stream.end_at {
            Some(end_at) if end_at <= self.transmitted => SendProgress::Wholly,
            _ => SendProgress::Partly,
        }
    }

    /// Returns the position in the connection's output at which the encoded bytes end.
    fn end_at(&self) -> u64 {
        self.transmitted + (self.out.len() - self.out_begin) as u64
    }

    /// Opens a stream with a request: `fields` writes the header list, pseudo-headers first (§8.3.1). The part of the body that
    /// the windows do not allow yet is sent later.
    ///
    /// # Errors
    ///
    /// Returns an error if no stream can be opened; nothing was sent then.
    #[inline]
    pub fn open(
        &mut self,
        body: B,
        fields: impl FnOnce(&mut dyn FnMut(&[u8], &[u8], Indexing)),
    ) -> Result<u32, OpenError> {
        if self.closing {
            return Err(OpenError::Closing);
        }
        if self.next_stream > STREAM_MAX {
            return Err(OpenError::Exhausted);
        }
        if self.streams_open() >= self.streams_max {
            return Err(OpenError::StreamLimit);
        }
        let id = self.next_stream;
        self.next_stream += 2;
        self.block.clear();
        let (encoder, block) = (&mut self.encoder, &mut self.block);
        fields(&mut |name, value, indexing| encoder.encode(block, name, value, indexing));
        let bytes = body.as_ref().len();
        frame::encode_headers(&mut self.out, id, &self.block, bytes == 0, self.frame_bytes_max);
        self.unsent_bytes += bytes as u64;
        let window = Window::new(self.stream_window_bytes);
        let end_at = (bytes == 0).then(|| self.end_at());
        let stream = Stream { window, body, sent: 0, end_at, listed: false, response: None };
        self.streams.insert(id, stream);
        if bytes > 0 {
            // Keeps the order: bodies that already wait use the window first.
            if self.waiting.is_empty() {
                self.send_body(id);
            } else {
                self.list(id);
            }
        }
        Ok(id)
    }

    /// Cancels a stream; it has no further events. Returns how much of its request was sent, if it
    /// was open.
    pub fn cancel(&mut self, stream: u32) -> Option<SendProgress> {
        let removed = self.remove(stream)?;
        frame::encode_reset(&mut self.out, stream, ErrorCode::CANCEL);
        Some(self.sent(&removed))
    }

    /// Sends a PING; its reply is [`Event::Pong`].
    pub fn ping(&mut self, payload: [u8; 8]) {
        frame::encode_ping(&mut self.out, payload, false);
    }

    /// Closes the connection: the last bytes to transmit are a GOAWAY, and no stream can be opened.
    pub fn close(&mut self) {
        if !self.closing {
            self.closing = true;
            frame::encode_go_away(&mut self.out, 0, ErrorCode::NO_ERROR, b"");
        }
    }

    /// Returns all bytes to be written now.
    #[inline]
    pub fn transmit(&self) -> &[u8] {
        &self.out[self.out_begin..]
    }

    /// Records that this many bytes of [`transmit`](Connection::transmit) were written.
    pub fn handle_transmitted(&mut self, bytes: usize) {
        self.out_begin += bytes;
        self.transmitted += bytes as u64;
        debug_assert!(self.out_begin <= self.out.len());
        if self.out_begin == self.out.len() {
            self.out.clear();
            self.out_begin = 0;
        } else if self.out_begin > 64 << 10 {
            self.out.drain(..self.out_begin);
            self.out_begin = 0;
        }
    }

    /// Renews the allowance of frames without progress. Call it about once a second.
    pub fn handle_second(&mut self) {
        self.idle_frames = 0;
    }

    /// Sends as much of a body as the windows allow.
    pub(super) fn send_body(&mut self, id: u32) {
        let begin_at = self.end_at() - self.out.len() as u64;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let body = stream.body.as_ref();
        loop {
            let rest = body.len() - stream.sent;
            let room = stream.window.available().min(self.window.available());
            let piece = rest.min(room as usize).min(self.frame_bytes_max as usize);
            if rest == 0 {
                stream.end_at.get_or_insert(begin_at + self.out.len() as u64);
                return;
            }
            if piece == 0 {
                break;
            }
            let data = &body[stream.sent..stream.sent + piece];
            frame::encode_data(&mut self.out, id, data, piece == rest);
            stream.sent += piece;
            stream.window.consume(piece as u32);
            self.window.consume(piece as u32);
            self.unsent_bytes -= piece as u64;
            self.updates_due = (self.updates_due + 4).min(UPDATES_DUE_MAX);
        }
        if stream.window.available() > 0 {
            self.list(id);
        }
    }

    fn list(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.listed
        {
            stream.listed = true;
            self.waiting.push_back(id);
        }
    }

    /// Continues bodies that wait for the connection's window.
    pub(super) fn send_waiting(&mut self) {
        while self.window.available() > 0 {
            let Some(&id) = self.waiting.front() else { return };
            self.waiting.pop_front();
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.listed = false;
                self.send_body(id);
                // Still limited by the connection's window: keep its place in the queue.
                if self.waiting.back() == Some(&id) {
                    self.waiting.rotate_right(1);
                    return;
                }
            }
        }
    }

    /// Removes a stream.
    pub(super) fn remove(&mut self, id: u32) -> Option<Stream<B>> {
        let stream = self.streams.remove(&id)?;
        self.unsent_bytes -= (stream.body.as_ref().len() - stream.sent) as u64;
        if stream.listed {
            self.waiting.retain(|&waiting| waiting != id);
        }
        Some(stream)
    }

    /// Counts a frame without progress.
    pub(super) fn idle_frame(&mut self, reason: &'static str) -> Result<(), Error> {
        self.idle_frames += 1;
        if self.idle_frames > self.config.idle_frames_max {
            return Err(Error::flood(reason));
        }
        Ok(())
    }
}
