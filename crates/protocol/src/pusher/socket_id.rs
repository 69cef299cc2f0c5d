//! Connection ids, and the texts that a backend signs.

use std::fmt;
use std::str::FromStr;

use dunlin_hub::SessionId;

/// The id of a connection: its session and a serial number. Session ids are reused but serial numbers are not, so a
/// signature becomes invalid when its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketId {
    /// The session.
    pub session: SessionId,
    /// The serial number.
    pub serial: u64,
}

impl fmt::Display for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.serial)
    }
}

impl FromStr for SocketId {
    type Err = ();

    /// Parses two decimal numbers separated by a dot.
    fn from_str(text: &str) -> Result<SocketId, ()> {
        let (session, serial) = text.split_once('.').ok_or(())?;
        let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse::<u64>().map_err(|_| ()),
            false => Err(()),
        };
        let session = SessionId::from_u64(number(session)?).ok_or(())?;
        Ok(SocketId { session, serial: number(serial)? })
    }
}

/// Returns the text to sign for a private channel.
pub fn private_channel_text(socket_id: SocketId, channel: &str) -> String {
    format!("{socket_id}:{channel}")
}

/// Returns the text to sign for a presence channel.
pub fn presence_channel_text(socket_id: SocketId, channel: &str, channel_data: &str) -> String {
    format!("{socket_id}:{channel}:{channel_data}")
}

/// Returns the text to sign for a sign-in.
pub fn sign_in_text(socket_id: SocketId, user_data: &str) -> String {
    format!("{socket_id}::user::{user_data}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_id_leads_back_to_its_session() {
        let session = SessionId::pack(9, 8, 7, 6, 5);
        let id = SocketId { session, serial: 281_474_976_710_655 };
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "1", "1.", ".1", "1.2.3", "+1.2", "1.-2", "9007199254740992.1", "a.b"] {
            assert_eq!(text.parse::<SocketId>(), Err(()), "{text}");
        }
    }

    #[test]
    fn signature_covers_what_pusher_documents() {
        let socket = SocketId { session: SessionId::from_u64(1234).unwrap(), serial: 1234 };
        assert_eq!(private_channel_text(socket, "private-foobar"), "1234.1234:private-foobar");
        let data = r#"{"user_id":10,"user_info":{"name":"Mr. Channels"}}"#;
        assert_eq!(
            presence_channel_text(socket, "presence-foobar", data),
            format!("1234.1234:presence-foobar:{data}")
        );
        assert_eq!(sign_in_text(socket, r#"{"id":"12345"}"#), r#"1234.1234::user::{"id":"12345"}"#);
    }
}
