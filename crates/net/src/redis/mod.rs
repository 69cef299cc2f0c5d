//! Redis on the loop, the asking side: commands out, pipelined; replies in, in their order; what the server says
//! unasked beside them (RESP3, so Redis 6 or later).

mod client;

use std::collections::VecDeque;

use dunlin_wire::resp::{Scanner, encode_command};

pub use client::{Client, ClientConfig, Full, Message};
pub use dunlin_wire::resp::{Error, Limits, Value};

use crate::conn::{ConnId, Phase, Protocol};
use crate::context::Context;
use crate::error::WriteError;
use crate::handler::{Handler, ProtocolError};

/// Commands that are answered by pushes, one a channel, and by a reply only when they are refused.
const ANSWERED_BY_PUSHES: [&str; 6] =
    ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"];

/// What a connection remembers of Redis.
#[derive(Debug)]
pub(crate) struct Talk {
    /// Where it is in a value that is cut.
    scanner: Scanner,
    /// Commands without an answer, oldest first: 0 is one reply, any other number so many pushes.
    expected: VecDeque<u32>,
}

impl<D: Default> Context<D> {
    /// Sends a command on a connection of [`Role::Redis`](crate::Role), which may still be connecting. Commands may
    /// follow each other without waiting; [`on_reply`](Handler::on_reply) is called for each, in their order. Those of the
    /// `SUBSCRIBE` family must name their channels; they are answered by pushes instead, one a channel.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] when it is not such a connection, or for no command at all, or an `UNSUBSCRIBE` that
    /// names no channel; [`WriteError::Full`], [`WriteError::Stale`].
    pub fn command(&mut self, conn: ConnId, arguments: &[&[u8]]) -> Result<(), WriteError> {
        let record = self.slab.get(conn).ok_or(WriteError::Stale)?;
        if record.protocol != Protocol::RedisClient {
            return Err(WriteError::OutOfTurn);
        }
        let (name, channels) = arguments.split_first().ok_or(WriteError::OutOfTurn)?;
        let pushed =
            ANSWERED_BY_PUSHES.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()));
        let pushes = match pushed {
            true if channels.is_empty() => return Err(WriteError::OutOfTurn),
            true => channels.len() as u32,
            false => 0,
        };
        let bytes = arguments.iter().map(|argument| argument.len() + 16).sum();
        self.append(conn, bytes, |out| encode_command(out, arguments))?;
        self.talk(conn).expected.push_back(pushes);
        Ok(())
    }

    /// Commands sent on a connection and not answered.
    pub fn commands_outstanding(&self, conn: ConnId) -> usize {
        let spill = self.slab.get(conn).and_then(|record| record.spill.as_ref());
        spill.and_then(|spill| spill.talk.as_ref()).map_or(0, |talk| talk.expected.len())
    }

    fn talk(&mut self, conn: ConnId) -> &mut Talk {
        let limits = Limits::default();
        let record = self.slab.at_mut(conn.index());
        let spill = record.spill.get_or_insert_with(|| self.pool.borrow());
        spill.talk.get_or_insert_with(|| {
            Box::new(Talk { scanner: Scanner::new(&limits), expected: VecDeque::new() })
        })
    }

    /// Hands out the values in `bytes`. Returns the bytes consumed.
    pub(crate) fn redis_input<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        bytes: &[u8],
    ) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            if self.slab.get(conn).is_none_or(|record| record.phase != Phase::Open) {
                return bytes.len();
            }
            let talk = self.talk(conn);
            let end = match talk.scanner.scan(&bytes[at..]) {
                Ok(None) => return at,
                Ok(Some(length)) => at + length,
                Err(error) => {
                    self.violation(handler, conn, &ProtocolError::Redis(error));
                    return bytes.len();
                }
            };
            let Some(value) = Value::parse(&bytes[at..end]) else {
                self.violation(handler, conn, &ProtocolError::Redis(Error::Malformed));
                return bytes.len();
            };
            at = end;
            if let Value::Push(said) = &value {
                let about = said.first().and_then(Value::text).unwrap_or_default();
                let confirms =
                    ANSWERED_BY_PUSHES.iter().any(|other| about.eq_ignore_ascii_case(other));
                if confirms && let Some(left) = talk.expected.front_mut().filter(|left| **left > 0)
                {
                    *left -= 1;
                    if *left == 0 {
                        talk.expected.pop_front();
                    }
                }
                handler.on_push(self, conn, &value);
                continue;
            }
            match talk.expected.pop_front() {
                Some(0) => handler.on_reply(self, conn, &value),
                // A subscription refused.
                Some(_) => handler.on_push(self, conn, &value),
                None => {
                    // Unasked, and no push: whose it is cannot be known.
                    self.violation(handler, conn, &ProtocolError::Redis(Error::Type));
                    return bytes.len();
                }
            }
        }
        at
    }
}
