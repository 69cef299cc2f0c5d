//! `EmulationRequest`.

use std::borrow::Cow;

use super::command::MessageReader;
use crate::emulation::EmulationRequest;
use crate::json::ProtocolError;

/// Parses the body of an emulation request.
///
/// # Errors
/// [`ProtocolError`] with the name of the field.
pub(crate) fn parse_emulation(body: &[u8]) -> Result<EmulationRequest<'_>, ProtocolError> {
    let message = MessageReader::of("", body);
    let mut request = EmulationRequest::default();
    for field in message.fields() {
        let (number, value) = field?;
        match number {
            1 => request.node = message.text("node", value)?,
            2 => request.session = message.text("session", value)?,
            3 => request.data = Cow::Borrowed(message.bytes("data", value)?),
            _ => {}
        }
    }
    Ok(request)
}
