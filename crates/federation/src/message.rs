//! A message from a user of one domain to a user of another, as a link carries it. It names no domain.

use std::fmt;

use crate::frame::Fields;

/// The longest name of a user in bytes.
pub const USER_BYTES_MAX: usize = 1_024;
/// The longest idempotency key in bytes.
const KEY_BYTES_MAX: usize = 256;
/// The most bytes of an encoded message.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

const VERSION: u8 = 1;

/// The format of a message's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// JSON.
    #[default]
    Json,
    /// Any bytes.
    Binary,
}

/// A message to a user of the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The sender, a user of the domain that sends; empty: its backend.
    pub from: String,
    /// The recipient, a user of the domain that receives.
    pub to: String,
    /// A second message with this key and from the same sender is not delivered; empty: each is.
    pub idempotency_key: String,
    /// The format of `data`.
    pub format: Format,
    /// What is sent.
    pub data: Vec<u8>,
}

/// A message that cannot be sent or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// A name or key is too long, or the recipient is empty.
    Name,
    /// It is larger than [`MESSAGE_BYTES_MAX`].
    TooLarge(usize),
    /// It does not have the form of a message.
    Malformed,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::Name => write!(
                f,
                "a user has 1 to {USER_BYTES_MAX} bytes, an idempotency key at most {KEY_BYTES_MAX}"
            ),
            MessageError::TooLarge(bytes) => {
                write!(f, "{bytes} bytes where a message has at most {MESSAGE_BYTES_MAX}")
            }
            MessageError::Malformed => f.write_str("it does not have the form of a message"),
        }
    }
}

impl std::error::Error for MessageError {}

impl Message {
    /// Checks that it can be sent.
    ///
    /// # Errors
    /// What is too long, or missing.
    pub fn validate(&self) -> Result<(), MessageError> {
        let names = self.from.len() <= USER_BYTES_MAX
            && (1..=USER_BYTES_MAX).contains(&self.to.len())
            && self.idempotency_key.len() <= KEY_BYTES_MAX;
        if !names {
            return Err(MessageError::Name);
        }
        let bytes = self.encoded_bytes();
        if bytes > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLarge(bytes));
        }
        Ok(())
    }

    fn encoded_bytes(&self) -> usize {
        8 + self.from.len() + self.to.len() + self.idempotency_key.len() + self.data.len()
    }

    /// Encodes a message that is [valid](Message::validate).
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = Vec::with_capacity(self.encoded_bytes());
        out.extend_from_slice(&[VERSION, matches!(self.format, Format::Binary).into()]);
        for text in [&self.from, &self.to, &self.idempotency_key] {
            out.extend_from_slice(&(text.len() as u16).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(&self.data);
        out.into()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// It is malformed, of another version, or a name is too long.
    pub fn decode(bytes: &[u8]) -> Result<Message, MessageError> {
        let message = parse(bytes).ok_or(MessageError::Malformed)?;
        message.validate()?;
        Ok(message)
    }
}

fn parse(bytes: &[u8]) -> Option<Message> {
    let mut fields = Fields(bytes);
    let [VERSION, format] = fields.array()? else { return None };
    Some(Message {
        format: match format {
            0 => Format::Json,
            1 => Format::Binary,
            _ => return None,
        },
        from: fields.text(USER_BYTES_MAX)?.to_owned(),
        to: fields.text(USER_BYTES_MAX)?.to_owned(),
        idempotency_key: fields.text(KEY_BYTES_MAX)?.to_owned(),
        data: fields.0.to_vec(),
    })
}
