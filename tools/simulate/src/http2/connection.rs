//! The server side of a connection: takes bytes and answers, returns requests and bytes.

use std::collections::VecDeque;

use dunlin_wire::http2::flow::Window;
use dunlin_wire::http2::frame::{self, Frame};
use dunlin_wire::http2::{
    Error, ErrorCode, FRAME_BYTES_DEFAULT, HeaderAssembly, PREFACE, Setting, WINDOW_BYTES_DEFAULT,
    hpack,
};
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::Head;
use super::WindowReturn;
use super::stream::{Closed, ClosedStreams, Stream};

/// The limits we grant the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of open streams.
    pub(crate) streams_max: u32,
    /// Size of the connection's receive window in bytes, at least 65,535 (RFC 9113 §6.9.2).
    pub(crate) connection_window: u32,
    /// Size of a stream's receive window in bytes.
    pub(crate) stream_window: u32,
    /// When received bytes are returned to a window.
    pub(crate) window_return: WindowReturn,
    /// Maximum size of a header section in bytes, counted as in RFC 9113 §6.5.2.
    pub(crate) header_list_bytes_max: u32,
    /// Bytes of a body that are kept; the rest is only counted.
    pub(crate) body_bytes_max: usize,
}

/// A complete request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) stream: u32,
    pub(crate) head: Head,
    /// Truncated to [`Limits::body_bytes_max`].
    pub(crate) body: Vec<u8>,
}

/// Maximum size of a header block assembled from CONTINUATION frames.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Maximum number of frames between two requests that request nothing (PING, SETTINGS, PRIORITY, empty DATA, resets),
/// and of RST_STREAM frames in excess of answers. More is a flood and ends the connection with ENHANCE_YOUR_CALM.
const IDLE_FRAMES_MAX: u32 = 10_000;
/// Request buffers kept for reuse.
const SPARE_MAX: usize = 256;

/// A server connection. Call [`handle_bytes`](Connection::handle_bytes) with received bytes, then
/// [`poll_request`](Connection::poll_request) until it returns `None`; answer each request at any later time, and send
/// the content of [`output`](Connection::output). On an error the output ends with GOAWAY: send it and close.
#[derive(Debug)]
pub(crate) struct Connection {
    limits: Limits,
    /// Bytes of the preface received so far.
    preface: usize,
    settings_seen: bool,
    /// The beginning of an incomplete frame.
    input: Vec<u8>,
    output: Vec<u8>,
    decoder: hpack::Decoder,
    encoder: hpack::Encoder,
    assembly: HeaderAssembly,
    block: Vec<u8>,
    streams: HashMap<u32, Stream, FixedState>,
    closed: ClosedStreams,
    /// The highest stream id the peer has opened.
    last_stream: u32,
    /// A stream that depends on itself, until its header block is complete (§5.3.1).
    self_dependent: u32,
    requests: VecDeque<Request>,
    spare: Vec<(Head, Vec<u8>)>,
    /// Stream limits sent but not acknowledged; the last of them is the one in `limits`. `None`: a SETTINGS frame
    /// without a stream limit.
    unacknowledged: VecDeque<Option<u32>>,
    /// The last stream limit that the peer acknowledged; initially the first one sent.
    streams_max: u32,
    receive_window: i64,
    unreturned: u32,
    send_window: Window,
    stream_send_window: u32,
    peer_frame_bytes_max: u32,
    /// The last stream id of our GOAWAY; later streams are ignored.
    go_away: Option<u32>,
    idle_frames: u32,
    resets: u32,
    ended: bool,
}

impl Connection {
    /// Returns a connection with our SETTINGS in the output.
    pub(crate) fn new(limits: Limits) -> Connection {
        let mut output = Vec::new();
        let settings = [
            (Setting::MaxConcurrentStreams, limits.streams_max),
            (Setting::InitialWindowSize, limits.stream_window),
            (Setting::MaxHeaderListSize, limits.header_list_bytes_max),
        ];
        frame::encode_settings(&mut output, &settings);
        let beyond = limits.connection_window.saturating_sub(WINDOW_BYTES_DEFAULT);
        if beyond > 0 {
            frame::encode_window_update(&mut output, 0, beyond);
        }
        Connection {
            preface: 0,
            settings_seen: false,
            input: Vec::new(),
            output,
            decoder: hpack::Decoder::new(4_096),
            encoder: hpack::Encoder::new(),
            assembly: HeaderAssembly::new(BLOCK_BYTES_MAX),
            block: Vec::new(),
            streams: HashMap::default(),
            closed: ClosedStreams::new(),
            last_stream: 0,
            self_dependent: 0,
            requests: VecDeque::new(),
            spare: Vec::new(),
            unacknowledged: VecDeque::from([Some(limits.streams_max)]),
            streams_max: limits.streams_max,
            receive_window: i64::from(WINDOW_BYTES_DEFAULT + beyond),
            unreturned: 0,
            send_window: Window::new(WINDOW_BYTES_DEFAULT),
            stream_send_window: WINDOW_BYTES_DEFAULT,
            peer_frame_bytes_max: FRAME_BYTES_DEFAULT,
            go_away: None,
            idle_frames: 0,
            resets: 0,
            ended: false,
            limits,
        }
    }

    /// Handles received bytes.
    ///
    /// # Errors
    /// A protocol violation that ends the connection; GOAWAY is in the output.
    pub(crate) fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.ended {
            // Nothing follows GOAWAY.
            return Ok(());
        }
        let outcome = self.take_bytes(bytes);
        if let Err(error) = &outcome {
            self.ended = true;
            let (last, reason) = (self.last_stream, error.reason.as_bytes());
            frame::encode_go_away(&mut self.output, last, error.code, reason);
        } else {
            self.return_connection_window();
        }
        outcome
    }

    /// Returns the next complete request.
    pub(crate) fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Returns a request's buffers for reuse.
    pub(crate) fn recycle(&mut self, request: Request) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push((request.head, request.body));
        }
    }

    /// Returns the bytes to be sent; the caller removes them.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Returns the number of open streams.
    pub(crate) fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the highest stream id the peer has opened.
    pub(crate) fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// Answers a stream if it is still open. The body is sent as the windows allow.
    pub(crate) fn respond(
        &mut self,
        stream: u32,
        status: u16,
        fields: &[(&[u8], &[u8])],
        body: &[u8],
    ) {
        if !self.streams.contains_key(&stream) {
            return;
        }
        self.send_head(stream, status, fields, body.is_empty());
        self.resets = self.resets.saturating_sub(1);
        if body.is_empty() {
            self.close(stream, Closed::Done);
        } else if let Some(open) = self.streams.get_mut(&stream) {
            open.answer.extend_from_slice(body);
            self.send_answer(stream);
        }
    }

    /// Sends the head of an answer that never ends.
    pub(crate) fn respond_half(&mut self, stream: u32, status: u16, fields: &[(&[u8], &[u8])]) {
        if self.streams.contains_key(&stream) {
            self.send_head(stream, status, fields, false);
        }
    }

    /// Resets a stream if it is still open.
    pub(crate) fn reset(&mut self, stream: u32, code: ErrorCode) {
        if self.streams.contains_key(&stream) {
            frame::encode_reset(&mut self.output, stream, code);
            self.close(stream, Closed::Reset);
        }
    }

    /// Sends GOAWAY and drops open streams above `last`.
    pub(crate) fn go_away(&mut self, last: u32, code: ErrorCode) {
        frame::encode_go_away(&mut self.output, last, code, b"");
        let last = self.go_away.map_or(last, |before| before.min(last));
        self.go_away = Some(last);
        self.streams.retain(|&stream, _| stream <= last);
        self.requests.retain(|request| request.stream <= last);
    }

    /// Changes the stream limit. A lower one is enforced once the peer has acknowledged it.
    pub(crate) fn set_streams_max(&mut self, streams_max: u32) {
        if streams_max == self.limits.streams_max {
            return;
        }
        self.limits.streams_max = streams_max;
        self.unacknowledged.push_back(Some(streams_max));
        frame::encode_settings(&mut self.output, &[(Setting::MaxConcurrentStreams, streams_max)]);
    }

    /// Changes when windows are returned.
    pub(crate) fn set_window_return(&mut self, window_return: WindowReturn) {
        self.limits.window_return = window_return;
        self.return_connection_window();
    }

    /// Sends a SETTINGS frame that changes nothing.
    pub(crate) fn send_settings(&mut self) {
        self.unacknowledged.push_back(None);
        frame::encode_settings(&mut self.output, &[]);
    }

    fn take_bytes(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if self.preface < PREFACE.len() {
            let wanted = &PREFACE[self.preface..];
            let here = wanted.len().min(bytes.len());
            if bytes[..here] != wanted[..here] {
                return Err(violation("the connection does not begin with the preface"));
            }
            self.preface += here;
            bytes = &bytes[here..];
        }
        if self.input.is_empty() {
            let taken = self.take_frames(bytes)?;
            self.input.extend_from_slice(&bytes[taken..]);
        } else {
            let mut input = std::mem::take(&mut self.input);
            input.extend_from_slice(bytes);
            let taken = self.take_frames(&input)?;
            input.drain(..taken);
            self.input = input;
        }
        Ok(())
    }

    fn take_frames(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let mut taken = 0;
        while let Some((frame, length)) = frame::decode(&bytes[taken..], FRAME_BYTES_DEFAULT)? {
            self.handle_frame(&frame)?;
            taken += length;
        }
        Ok(taken)
    }

    fn handle_frame(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        if !self.settings_seen && !matches!(frame, Frame::Settings(_)) {
            return Err(violation("the first frame is not SETTINGS"));
        }
        if let Frame::Headers { stream, depends_on: Some(on), .. } = *frame
            && on == stream
        {
            self.self_dependent = stream;
        }
        if let Some(block) = self.assembly.handle_frame(frame)? {
            let (stream, end_stream) = (block.stream, block.end_stream);
            let (mut head, body) = self.spare.pop().unwrap_or_default();
            head.clear();
            let list_bytes_max = self.limits.header_list_bytes_max as usize;
            let push = |name: &[u8], value: &[u8]| head.push(name, value);
            match self.decoder.decode(block.block, list_bytes_max, push) {
                Err(hpack::Error::ListTooLong) => head.truncated = true,
                decoded => decoded?,
            }
            return self.handle_headers(stream, end_stream, head, body);
        }
        match *frame {
            Frame::Headers { .. } | Frame::Continuation { .. } | Frame::Unknown { .. } => Ok(()),
            Frame::Data { stream, data, flow_bytes, end_stream } => {
                self.handle_data(stream, data, flow_bytes, end_stream)
            }
            Frame::Priority { stream, depends_on } => {
                self.count_idle_frame()?;
                if depends_on == stream {
                    self.stream_error(stream, ErrorCode::PROTOCOL_ERROR);
                }
                Ok(())
            }
            Frame::Reset { stream, .. } => self.handle_reset(stream),
            Frame::Settings(settings) => {
                self.settings_seen = true;
                for (setting, value) in settings.iter() {
                    self.handle_setting(setting, value)?;
                }
                // Acknowledge before using the new values (RFC 9113 §6.5.3).
                frame::encode_settings_ack(&mut self.output);
                self.send_answers();
                self.count_idle_frame()
            }
            Frame::SettingsAck => {
                if let Some(Some(streams_max)) = self.unacknowledged.pop_front() {
                    self.streams_max = streams_max;
                }
                self.count_idle_frame()
            }
            Frame::PushPromise { .. } => Err(violation("a client pushes nothing")),
            Frame::Ping { ack: true, .. } => Ok(()),
            Frame::Ping { payload, .. } => {
                frame::encode_ping(&mut self.output, payload, true);
                self.count_idle_frame()
            }
            Frame::GoAway { .. } => Ok(()),
            Frame::WindowUpdate { stream, increment } => {
                self.handle_window_update(stream, increment)
            }
        }
    }

    fn handle_headers(
        &mut self,
        stream: u32,
        end_stream: bool,
        head: Head,
        body: Vec<u8>,
    ) -> Result<(), Error> {
        let truncated = head.truncated;
        if stream.is_multiple_of(2) {
            return Err(violation("a client's streams are odd"));
        }
        if let Some(open) = self.streams.get(&stream) {
            if open.complete {
                self.stream_error(stream, ErrorCode::STREAM_CLOSED);
            } else if !end_stream || head.trailer_fault().is_some() {
                self.stream_error(stream, ErrorCode::PROTOCOL_ERROR);
            } else {
                self.complete(stream);
            }
            return Ok(());
        }
        if self.go_away.is_some_and(|last| stream > last) {
            self.last_stream = self.last_stream.max(stream);
            return Ok(());
        }
        if stream <= self.last_stream {
            return match self.closed.find(stream) {
                Some(Closed::Reset) => Ok(()),
                Some(Closed::Done) => {
                    let reason = "HEADERS on a stream that is closed";
                    Err(Error { code: ErrorCode::STREAM_CLOSED, reason })
                }
                None => Err(violation("streams are opened in ascending order")),
            };
        }
        self.last_stream = stream;
        let limit = self.streams_max.max(self.limits.streams_max) as usize;
        let fault = if self.self_dependent == stream || head.fault().is_some() && !truncated {
            Some(ErrorCode::PROTOCOL_ERROR)
        } else if self.streams.len() >= limit {
            Some(ErrorCode::REFUSED_STREAM)
        } else {
            None
        };
        if let Some(code) = fault {
            frame::encode_reset(&mut self.output, stream, code);
            self.closed.push(stream, Closed::Reset);
            return self.count_idle_frame();
        }
        let mut body = body;
        body.clear();
        let window = self.limits.stream_window;
        let open = Stream {
            head,
            body,
            body_bytes: 0,
            complete: false,
            receive_window: i64::from(window),
            unreturned: 0,
            send_window: Window::new(self.stream_send_window),
            answer: Vec::new(),
        };
        self.streams.insert(stream, open);
        if truncated {
            // RFC 6585 §5: the head exceeds the limit announced in SETTINGS.
            self.respond(stream, 431, &[], b"");
        } else if end_stream {
            self.complete(stream);
        }
        Ok(())
    }

    fn handle_data(
        &mut self,
        stream: u32,
        data: &[u8],
        flow_bytes: u32,
        end_stream: bool,
    ) -> Result<(), Error> {
        self.receive_window -= i64::from(flow_bytes);
        if self.receive_window < 0 {
            let reason = "more than the connection's window";
            return Err(Error { code: ErrorCode::FLOW_CONTROL_ERROR, reason });
        }
        self.unreturned += flow_bytes;
        if data.is_empty() && !end_stream {
            self.count_idle_frame()?;
        }
        let Some(open) = self.streams.get_mut(&stream) else {
            if self.go_away.is_some_and(|last| stream > last) {
                return Ok(());
            }
            if stream > self.last_stream || stream.is_multiple_of(2) {
                return Err(violation("DATA on a stream that is idle"));
            }
            if self.closed.find(stream) != Some(Closed::Reset) {
                frame::encode_reset(&mut self.output, stream, ErrorCode::STREAM_CLOSED);
                return self.count_idle_frame();
            }
            return Ok(());
        };
        if open.complete {
            self.stream_error(stream, ErrorCode::STREAM_CLOSED);
            return Ok(());
        }
        open.receive_window -= i64::from(flow_bytes);
        if open.receive_window < 0 {
            self.stream_error(stream, ErrorCode::FLOW_CONTROL_ERROR);
            return Ok(());
        }
        let room = self.limits.body_bytes_max.saturating_sub(open.body.len());
        open.body.extend_from_slice(&data[..data.len().min(room)]);
        open.body_bytes += data.len() as u64;
        if end_stream {
            self.complete(stream);
            return Ok(());
        }
        open.unreturned += flow_bytes;
        if self.limits.window_return.is_due(open.unreturned, self.limits.stream_window) {
            open.receive_window += i64::from(open.unreturned);
            frame::encode_window_update(&mut self.output, stream, open.unreturned);
            open.unreturned = 0;
        }
        Ok(())
    }

    fn handle_reset(&mut self, stream: u32) -> Result<(), Error> {
        if stream > self.last_stream {
            return Err(violation("RST_STREAM on a stream that is idle"));
        }
        if self.streams.contains_key(&stream) {
            self.requests.retain(|request| request.stream != stream);
            self.close(stream, Closed::Done);
        }
        self.resets += 1;
        if self.resets > IDLE_FRAMES_MAX {
            return Err(flood("streams are opened only to be reset"));
        }
        self.count_idle_frame()
    }

    fn handle_setting(&mut self, setting: Setting, value: u32) -> Result<(), Error> {
        match setting {
            Setting::HeaderTableSize => self.encoder.set_table_size(value),
            Setting::MaxFrameSize => self.peer_frame_bytes_max = value,
            Setting::InitialWindowSize => {
                let change = i64::from(value) - i64::from(self.stream_send_window);
                self.stream_send_window = value;
                for stream in self.streams.values_mut() {
                    stream.send_window.adjust(change).map_err(|_| overflow())?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_window_update(&mut self, stream: u32, increment: u32) -> Result<(), Error> {
        if stream == 0 {
            if increment == 0 {
                return Err(violation("WINDOW_UPDATE of nothing"));
            }
            self.send_window.increase(increment).map_err(|_| overflow())?;
            self.send_answers();
            return Ok(());
        }
        if stream > self.last_stream {
            return Err(violation("WINDOW_UPDATE on a stream that is idle"));
        }
        let Some(open) = self.streams.get_mut(&stream) else { return self.count_idle_frame() };
        if increment == 0 {
            self.stream_error(stream, ErrorCode::PROTOCOL_ERROR);
        } else if open.send_window.increase(increment).is_err() {
            self.stream_error(stream, ErrorCode::FLOW_CONTROL_ERROR);
        } else {
            self.send_answer(stream);
        }
        Ok(())
    }

    /// Queues a complete request, or resets its stream if the body does not match `content-length` (§8.1.1).
    fn complete(&mut self, stream: u32) {
        let Some(open) = self.streams.get_mut(&stream) else { return };
        open.complete = true;
        if open.head.content_length().is_some_and(|length| length != open.body_bytes) {
            self.stream_error(stream, ErrorCode::PROTOCOL_ERROR);
            return;
        }
        self.idle_frames = 0;
        let (head, body) = (std::mem::take(&mut open.head), std::mem::take(&mut open.body));
        self.requests.push_back(Request { stream, head, body });
    }

    /// Resets a stream in any state for an error of the peer (§5.4.2).
    fn stream_error(&mut self, stream: u32, code: ErrorCode) {
        frame::encode_reset(&mut self.output, stream, code);
        self.requests.retain(|request| request.stream != stream);
        self.close(stream, Closed::Reset);
    }

    fn close(&mut self, stream: u32, how: Closed) {
        self.streams.remove(&stream);
        self.closed.push(stream, how);
    }

    fn send_head(&mut self, stream: u32, status: u16, fields: &[(&[u8], &[u8])], end: bool) {
        self.block.clear();
        let digits = [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
        self.encoder.encode(&mut self.block, b":status", &digits, hpack::Indexing::None);
        for (name, value) in fields {
            self.encoder.encode(&mut self.block, name, value, hpack::Indexing::None);
        }
        let max = self.peer_frame_bytes_max;
        frame::encode_headers(&mut self.output, stream, &self.block, end, max);
    }

    /// Sends as much of an answer as the windows allow.
    fn send_answer(&mut self, stream: u32) {
        let Some(open) = self.streams.get_mut(&stream) else { return };
        while !open.answer.is_empty() {
            let window = self.send_window.available().min(open.send_window.available());
            let room = window.min(self.peer_frame_bytes_max) as usize;
            let now = room.min(open.answer.len());
            if now == 0 {
                return;
            }
            self.send_window.consume(now as u32);
            open.send_window.consume(now as u32);
            let end = now == open.answer.len();
            frame::encode_data(&mut self.output, stream, &open.answer[..now], end);
            open.answer.drain(..now);
            if end {
                self.close(stream, Closed::Done);
                return;
            }
        }
    }

    fn send_answers(&mut self) {
        let waiting: Vec<u32> = self
            .streams
            .iter()
            .filter(|(_, open)| !open.answer.is_empty())
            .map(|(&stream, _)| stream)
            .collect();
        for stream in waiting {
            self.send_answer(stream);
        }
    }

    fn return_connection_window(&mut self) {
        let size = self.limits.connection_window.max(WINDOW_BYTES_DEFAULT);
        if self.unreturned > 0 && self.limits.window_return.is_due(self.unreturned, size) {
            self.receive_window += i64::from(self.unreturned);
            frame::encode_window_update(&mut self.output, 0, self.unreturned);
            self.unreturned = 0;
        }
    }

    fn count_idle_frame(&mut self) -> Result<(), Error> {
        self.idle_frames += 1;
        if self.idle_frames > IDLE_FRAMES_MAX {
            return Err(flood("frames that ask for nothing"));
        }
        Ok(())
    }
}

fn violation(reason: &'static str) -> Error {
    Error { code: ErrorCode::PROTOCOL_ERROR, reason }
}

fn flood(reason: &'static str) -> Error {
    Error { code: ErrorCode::ENHANCE_YOUR_CALM, reason }
}

fn overflow() -> Error {
    Error { code: ErrorCode::FLOW_CONTROL_ERROR, reason: "a window beyond 2^31-1" }
}
