//! Decodes event streams (WHATWG HTML §9.2.6).

/// Decodes the bytes of an event stream into events. It holds the incomplete event, and allocates nothing once its buffers have
/// grown to the size of the stream's events.
#[derive(Clone, Debug)]
pub struct Decoder {
    event_bytes_max: usize,
    /// An incomplete line.
    line: Vec<u8>,
    /// The last line ended in CR: an LF that follows belongs to it.
    after_cr: bool,
    /// A byte order mark may still precede the first line.
    at_begin: bool,
    event: String,
    data: String,
    /// The id for the event being read and all that follow.
    id: String,
    retry_ms: Option<u64>,
    /// The last call returned the event in the fields.
    dispatched: bool,
}

/// An event as a client receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedEvent<'d> {
    /// The last event id of the stream, of this event or an earlier one; empty if there was none.
    pub id: &'d str,
    /// The type, `message` if none was given.
    pub event: &'d str,
    /// The payload, its lines joined by LF.
    pub data: &'d str,
}

/// An event has more bytes than the decoder's bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is too long")]
pub struct EventTooLong;

impl Decoder {
    /// Creates a decoder at the start of a stream. `event_bytes_max` bounds the data of an event and each line.
    pub fn new(event_bytes_max: usize) -> Decoder {
        Decoder {
            event_bytes_max,
            line: Vec::new(),
            after_cr: false,
            at_begin: true,
            event: String::new(),
            data: String::new(),
            id: String::new(),
            retry_ms: None,
            dispatched: false,
        }
    }

    /// The last reconnection time in the stream.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// Consumes bytes up to the end of the next event, or all of them. An event that is incomplete
    /// at the end of the stream is never yielded.
    ///
    /// # Errors
    ///
    /// Returns [`EventTooLong`]; the stream cannot be read any further.
    pub fn decode(
        &mut self,
        bytes: &[u8],
    ) -> Result<(usize, Option<ReceivedEvent<'_>>), EventTooLong> {
        if self.dispatched {
            self.dispatched = false;
            self.data.clear();
            self.event.clear();
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.after_cr {
                self.after_cr = false;
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
                continue;
            }
            let Some(end) = rest.iter().position(|&byte| matches!(byte, b'\r' | b'\n')) else {
                if self.line.len() + rest.len() > self.event_bytes_max {
                    return Err(EventTooLong);
                }
                self.line.extend_from_slice(rest);
                return Ok((bytes.len(), None));
            };
            let (begin, line_end) = (&rest[..end], rest[end]);
            rest = &rest[end + 1..];
            self.after_cr = line_end == b'\r';
            // An LF that follows directly is part of the event's bytes.
            if self.after_cr && rest.first() == Some(&b'\n') {
                self.after_cr = false;
                rest = &rest[1..];
            }
            if self.line.is_empty() {
                self.take_line(begin)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(begin);
                let result = self.take_line(&line);
                line.clear();
                self.line = line;
                result?;
            }
            if self.dispatched {
                let event = if self.event.is_empty() { "message" } else { &self.event };
                let received = ReceivedEvent { id: &self.id, event, data: &self.data };
                return Ok((bytes.len() - rest.len(), Some(received)));
            }
        }
        Ok((bytes.len(), None))
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), EventTooLong> {
        let line = match std::mem::take(&mut self.at_begin) {
            true => line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line),
            false => line,
        };
        if line.is_empty() {
            self.dispatch();
            return Ok(());
        }
        if self.data.len() + line.len() > self.event_bytes_max {
            return Err(EventTooLong);
        }
        let line = String::from_utf8_lossy(line);
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            "event" => {
                self.event.clear();
                self.event.push_str(value);
            }
            "id" if !value.contains('\0') => {
                self.id.clear();
                self.id.push_str(value);
            }
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry_ms = value.parse().ok().or(self.retry_ms);
            }
            // A comment, or an unknown field.
            _ => {}
        }
        Ok(())
    }

    /// An empty line: the event is complete. One without data is dropped.
    fn dispatch(&mut self) {
        if self.data.pop().is_some() {
            self.dispatched = true;
        } else {
            self.event.clear();
        }
    }
}
