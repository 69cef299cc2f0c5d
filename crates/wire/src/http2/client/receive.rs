//! Handles the peer's frames.

use super::connection::{Connection, Event};
use super::response::Response;
use crate::http2::frame::{self, Frame};
use crate::http2::{Error, ErrorCode, FRAME_BYTES_DEFAULT, Setting, Settings, hpack};

/// Maximum length of the debug data kept of a GOAWAY.
const DEBUG_BYTES_MAX: usize = 1_024;

/// A decoded header block from the peer.
struct ResponseHead {
    status: Option<u16>,
    /// Whether it has an invalid pseudo-header, or two `:status`.
    malformed: bool,
    response: Response,
}

impl<B: AsRef<[u8]>> Connection<B> {
    /// Handles received bytes, in pieces of any size.
    ///
    /// # Errors
    ///
    /// Returns an error if the peer violates the protocol or floods this end. The connection then ends: write the
    /// remaining bytes of [`transmit`](Connection::transmit), which end with a GOAWAY, and close.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let result = if self.input.is_empty() {
            self.handle_frames(bytes).map(|consumed| {
                self.input.extend_from_slice(&bytes[consumed..]);
            })
        } else {
            let mut input = std::mem::take(&mut self.input);
            input.extend_from_slice(bytes);
            self.handle_frames(&input).map(|consumed| {
                input.drain(..consumed);
                self.input = input;
            })
        };
        if let Err(error) = result {
            self.closing = true;
            self.input = Vec::new();
            frame::encode_go_away(&mut self.out, 0, error.code, error.reason.as_bytes());
        }
        result
    }

    fn handle_frames(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let mut consumed = 0;
        while let Some((frame, length)) = frame::decode(&bytes[consumed..], FRAME_BYTES_DEFAULT)? {
            self.handle_frame(&frame)?;
            consumed += length;
        }
        Ok(consumed)
    }

    fn handle_frame(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        // A server that will not serve may say so at once: its last stream is what matters, not its settings.
        if !self.settled && !matches!(frame, Frame::Settings(_) | Frame::GoAway { .. }) {
            return Err(Error::protocol("the server's first frame is not SETTINGS"));
        }
        if let Some(block) = self.headers.handle_frame(frame)? {
            let mut response = Response::default();
            let mut status = None;
            let mut malformed = false;
            let list_bytes_max = self.config.header_list_bytes_max as usize;
            let decoded = self.decoder.decode(block.block, list_bytes_max, |name, value| {
                if name == b":status" {
                    malformed |= status.is_some();
                    status = status_code(value);
                } else {
                    malformed |= name.first() == Some(&b':');
                    response.fields.push(name, value);
                }
            });
            match decoded {
                // The table is synchronised, and the fields needed to interpret the response come first.
                Err(hpack::Error::ListTooLong) => response.truncated = true,
                decoded => decoded?,
            }
            let (stream, end_stream) = (block.stream, block.end_stream);
            let head = ResponseHead { status, malformed, response };
            return self.handle_headers(stream, end_stream, head);
        }
        match *frame {
            Frame::Headers { .. } | Frame::Continuation { .. } => Ok(()),
            Frame::Data { stream, data, flow_bytes, end_stream } => {
                self.handle_data(stream, data, flow_bytes, end_stream)
            }
            Frame::Settings(settings) => self.handle_settings(settings),
            Frame::WindowUpdate { stream, increment } => {
                self.handle_window_update(stream, increment)
            }
            Frame::Reset { stream, code } => {
                self.check_begun(stream)?;
                let Some(removed) = self.remove(stream) else {
                    return self.idle_frame("flood of RST_STREAM");
                };
                self.events.push_back(if code == ErrorCode::REFUSED_STREAM {
                    Event::Refused { stream }
                } else {
                    Event::Reset { stream, code, sent: self.sent(&removed) }
                });
                Ok(())
            }
            Frame::GoAway { last_stream, code, debug } => {
                self.idle_frame("flood of GOAWAY")?;
                self.handle_go_away(last_stream, code, debug);
                Ok(())
            }
            Frame::Ping { ack: true, payload } => {
                self.idle_frame("flood of PING")?;
                self.events.push_back(Event::Pong(payload));
                Ok(())
            }
            Frame::Ping { ack: false, payload } => {
                self.idle_frame("flood of PING")?;
                self.check_transmit()?;
                frame::encode_ping(&mut self.out, payload, true);
                Ok(())
            }
            Frame::PushPromise { .. } => {
                Err(Error::protocol("PUSH_PROMISE, though push is turned off"))
            }
            Frame::SettingsAck => self.idle_frame("flood of SETTINGS"),
            Frame::Priority { .. } | Frame::Unknown { .. } => {
                self.idle_frame("flood of frames that mean nothing")
            }
        }
    }

    fn handle_headers(
        &mut self,
        id: u32,
        end_stream: bool,
        head: ResponseHead,
    ) -> Result<(), Error> {
        let ResponseHead { status, malformed, mut response } = head;
        self.check_begun(id)?;
        let Some(stream) = self.streams.get_mut(&id) else {
            // The stream was cancelled; its block was decoded to keep the table synchronised.
            return self.idle_frame("flood of HEADERS");
        };
        if stream.response.is_some() {
            // Trailers.
            if !end_stream {
                return Err(Error::protocol("a second header block that does not end the stream"));
            }
            self.finish(id);
            return Ok(());
        }
        match status {
            Some(100..200) if !end_stream => self.idle_frame("flood of interim responses"),
            Some(status @ 200..) if !malformed => {
                response.status = status;
                stream.response = Some(response);
                if end_stream {
                    self.finish(id);
                }
                Ok(())
            }
            _ => Err(Error::protocol("a response without a valid :status")),
        }
    }

    fn handle_data(
        &mut self,
        id: u32,
        data: &[u8],
        flow_bytes: u32,
        end_stream: bool,
    ) -> Result<(), Error> {
        self.check_begun(id)?;
        self.received_bytes += flow_bytes;
        let window_bytes = self.config.window_bytes.max(crate::http2::WINDOW_BYTES_DEFAULT);
        if self.received_bytes > window_bytes {
            return Err(Error::flow_control("more DATA than the connection's window"));
        }
        if self.received_bytes >= window_bytes / 2 {
            self.check_transmit()?;
            frame::encode_window_update(&mut self.out, 0, self.received_bytes);
            self.received_bytes = 0;
        }
        if data.is_empty() && !end_stream {
            self.idle_frame("flood of empty DATA")?;
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return self.idle_frame("flood of DATA on closed streams");
        };
        let Some(response) = &mut stream.response else {
            return Err(Error::protocol("DATA before HEADERS"));
        };
        let body_bytes_max = self.config.body_bytes_max as usize;
        if response.body.len() + data.len() > body_bytes_max {
            return Err(Error::flow_control("more DATA than the stream's window"));
        }
        response.body.extend_from_slice(data);
        if end_stream {
            self.finish(id);
        } else if response.body.len() == body_bytes_max {
            // The window is used up and will not be renewed.
            response.truncated = true;
            frame::encode_reset(&mut self.out, id, ErrorCode::CANCEL);
            self.answer(id);
        }
        Ok(())
    }

    /// Completes a response. The unsent rest of the request's body is dropped.
    fn finish(&mut self, id: u32) {
        let unsent =
            self.streams.get(&id).is_some_and(|stream| stream.sent < stream.body.as_ref().len());
        if unsent {
            frame::encode_reset(&mut self.out, id, ErrorCode::CANCEL);
        }
        self.answer(id);
    }

    fn answer(&mut self, id: u32) {
        if let Some(response) = self.remove(id).and_then(|stream| stream.response) {
            // Progress renews the allowance of idle frames.
            self.idle_frames = self.idle_frames.saturating_sub(4);
            self.events.push_back(Event::Response { stream: id, response });
        }
    }

    fn handle_settings(&mut self, settings: Settings<'_>) -> Result<(), Error> {
        self.idle_frame("flood of SETTINGS")?;
        if !self.settled {
            // No limit replaces the previous value, unless the frame sets one (§6.5.2).
            self.settled = true;
            self.streams_max = u32::MAX;
        }
        let mut grown = Vec::new();
        for (setting, value) in settings.iter() {
            match setting {
                Setting::HeaderTableSize => self.encoder.set_table_size(value),
                Setting::MaxConcurrentStreams => self.streams_max = value,
                Setting::MaxFrameSize => self.frame_bytes_max = value,
                Setting::InitialWindowSize => {
                    let change = i64::from(value) - i64::from(self.stream_window_bytes);
                    self.stream_window_bytes = value;
                    for (&id, stream) in &mut self.streams {
                        let closed = stream.window.available() == 0;
                        if stream.window.adjust(change).is_err() {
                            return Err(Error::flow_control("a stream's window beyond 2^31-1"));
                        }
                        if closed && stream.window.available() > 0 {
                            grown.push(id);
                        }
                    }
                }
                Setting::EnablePush if value != 0 => {
                    return Err(Error::protocol("a server must not enable push"));
                }
                Setting::EnablePush | Setting::MaxHeaderListSize | Setting::Unknown(_) => {}
            }
        }
        self.check_transmit()?;
        // Acknowledge first, before anything that the new values allow (§6.5.3).
        frame::encode_settings_ack(&mut self.out);
        grown.sort_unstable();
        grown.dedup();
        for id in grown {
            self.send_body(id);
        }
        self.events.push_back(Event::Settings);
        Ok(())
    }

    fn handle_window_update(&mut self, id: u32, increment: u32) -> Result<(), Error> {
        match self.updates_due.checked_sub(1) {
            Some(due) => self.updates_due = due,
            None => self.idle_frame("flood of WINDOW_UPDATE")?,
        }
        if increment == 0 {
            return Err(Error::protocol("WINDOW_UPDATE of nothing"));
        }
        if id == 0 {
            if self.window.increase(increment).is_err() {
                return Err(Error::flow_control("the connection's window beyond 2^31-1"));
            }
            self.send_waiting();
            return Ok(());
        }
        self.check_begun(id)?;
        if let Some(stream) = self.streams.get_mut(&id) {
            if stream.window.increase(increment).is_err() {
                return Err(Error::flow_control("a stream's window beyond 2^31-1"));
            }
            if !stream.listed && stream.sent < stream.body.as_ref().len() {
                self.send_body(id);
            }
        }
        Ok(())
    }

    fn handle_go_away(&mut self, last_stream: u32, code: ErrorCode, debug: &[u8]) {
        self.closing = true;
        let mut refused: Vec<u32> =
            self.streams.keys().copied().filter(|&id| id > last_stream).collect();
        refused.sort_unstable_by_key(|&id| std::cmp::Reverse(id));
        for stream in refused {
            self.remove(stream);
            self.events.push_back(Event::Refused { stream });
        }
        let debug = debug[..debug.len().min(DEBUG_BYTES_MAX)].to_vec();
        self.events.push_back(Event::GoAway { code, debug });
    }

    /// Rejects a frame on a stream that was never opened (§5.1).
    fn check_begun(&self, stream: u32) -> Result<(), Error> {
        if stream >= self.next_stream || stream.is_multiple_of(2) {
            return Err(Error::protocol("a frame on a stream that was never opened"));
        }
        Ok(())
    }

    /// Rejects a peer that causes replies but does not read them.
    fn check_transmit(&self) -> Result<(), Error> {
        if self.transmit().len() > self.config.transmit_bytes_max {
            return Err(Error::flood("the server does not read what it asks for"));
        }
        Ok(())
    }
}

fn status_code(value: &[u8]) -> Option<u16> {
    match value {
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
        }
        _ => None,
    }
}
