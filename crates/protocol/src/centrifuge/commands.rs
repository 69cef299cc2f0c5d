//! The commands of a frame, in JSON and Protobuf.

use dunlin_wire::protobuf::Delimited;

use super::command::Command;
use super::protobuf;
use crate::encoding::Format;
use crate::json::ProtocolError;

/// Iterator over the commands of a frame: one per line in JSON, length-delimited in Protobuf.
///
/// Blank lines are skipped, so a frame may end with a newline. Ends after the first malformed command.
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    format: Format,
    rest: &'a [u8],
}

impl<'a> Commands<'a> {
    /// Iterates over the commands of `frame`: a WebSocket message, the body of a POST, or the `data` of an emulation
    /// request.
    pub fn of(format: Format, frame: &'a [u8]) -> Commands<'a> {
        Commands { format, rest: frame }
    }

    /// Returns the bytes of the remaining commands.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns whether no command remains. A frame without commands is a bad request.
    pub fn is_empty(&self) -> bool {
        match self.format {
            Format::Json => self.rest.trim_ascii().is_empty(),
            Format::Protobuf => self.rest.is_empty(),
        }
    }

    fn next_message(&mut self) -> Option<Result<Command<'a>, ProtocolError>> {
        let mut messages = Delimited::of(self.rest);
        let message = messages.next()?;
        self.rest = messages.rest();
        Some(match message {
            Ok(message) => protobuf::parse_command(message),
            Err(error) => Err(ProtocolError::new("", format!("the frame {error}"))),
        })
    }

    fn next_line(&mut self) -> Option<Result<Command<'a>, ProtocolError>> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let end = memchr::memchr(b'\n', self.rest);
            let (line, rest) = match end {
                Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
                None => (self.rest, &[][..]),
            };
            self.rest = rest;
            let line = line.trim_ascii();
            if !line.is_empty() {
                return Some(Command::parse(line));
            }
        }
    }
}

impl<'a> Iterator for Commands<'a> {
    type Item = Result<Command<'a>, ProtocolError>;

    fn next(&mut self) -> Option<Self::Item> {
        let command = match self.format {
            Format::Json => self.next_line(),
            Format::Protobuf => self.next_message(),
        };
        if let Some(Err(_)) = command {
            self.rest = &[];
        }
        command
    }
}
