//! Negotiation of permessage-deflate (RFC 7692 §5, §7.1).

use std::io::Write;

use super::super::Role;
use crate::http1::Headers;
use crate::token::is_token;

/// The largest window, 32 KiB, which is also the default.
pub const WINDOW_BITS_MAX: u8 = 15;

/// The smallest window that zlib compresses with. The protocol also allows 8 bits, which zlib can
/// only decompress.
const WINDOW_BITS_COMPRESSIBLE_MIN: u8 = 9;

const WINDOW_BITS_MIN: u8 = 8;

const NAME: &str = "permessage-deflate";
const SERVER_NO_CONTEXT_TAKEOVER: &str = "server_no_context_takeover";
const CLIENT_NO_CONTEXT_TAKEOVER: &str = "client_no_context_takeover";
const SERVER_MAX_WINDOW_BITS: &str = "server_max_window_bits";
const CLIENT_MAX_WINDOW_BITS: &str = "client_max_window_bits";

/// The compression parameters that one end accepts.
///
/// Context takeover from message to message compresses better, but each connection then needs its
/// own window on both ends: about 300 KiB to compress and 40 KiB to decompress. Without takeover,
/// one compressor serves all connections of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeflateConfig {
    /// Whether the server may keep its compression context. `false` requires that it does not.
    pub server_context_takeover: bool,
    /// Whether the client may keep its compression context. `false` requires that it does not.
    pub client_context_takeover: bool,
    /// The largest window for what the server sends, 9 to 15 bits.
    pub server_max_window_bits: u8,
    /// The largest window for what the client sends, 9 to 15 bits, if the client supports a limit.
    pub client_max_window_bits: u8,
}

impl Default for DeflateConfig {
    /// No context takeover, full windows.
    fn default() -> DeflateConfig {
        DeflateConfig {
            server_context_takeover: false,
            client_context_takeover: false,
            server_max_window_bits: WINDOW_BITS_MAX,
            client_max_window_bits: WINDOW_BITS_MAX,
        }
    }
}

/// The negotiated parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeflateParams {
    /// The server begins each message with an empty window.
    pub server_no_context_takeover: bool,
    /// The client begins each message with an empty window.
    pub client_no_context_takeover: bool,
    /// The window of what the server sends, 8 to 15 bits.
    pub server_max_window_bits: u8,
    /// The window of what the client sends, 8 to 15 bits.
    pub client_max_window_bits: u8,
}

/// The negotiated parameters of one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Direction {
    /// Whether the context survives between messages; if so, it belongs to the connection.
    pub context_takeover: bool,
    /// The window, 8 to 15 bits.
    pub window_bits: u8,
}

impl Direction {
    /// Returns whether this end can compress in this direction. It cannot with a window of 8 bits;
    /// messages are then sent uncompressed, as RFC 7692 §6.1 allows.
    pub fn can_compress(self) -> bool {
        self.window_bits >= WINDOW_BITS_COMPRESSIBLE_MIN
    }
}

impl DeflateParams {
    /// Returns the parameters of messages that `role` sends.
    pub fn outgoing(&self, role: Role) -> Direction {
        match role {
            Role::Server => Direction {
                context_takeover: !self.server_no_context_takeover,
                window_bits: self.server_max_window_bits,
            },
            Role::Client => Direction {
                context_takeover: !self.client_no_context_takeover,
                window_bits: self.client_max_window_bits,
            },
        }
    }

    /// Returns the parameters of messages that `role` receives.
    pub fn incoming(&self, role: Role) -> Direction {
        self.outgoing(match role {
            Role::Server => Role::Client,
            Role::Client => Role::Server,
        })
    }
}

/// The header violates the syntax of RFC 6455 §9.1, or a response accepts something that was not
/// offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct ExtensionsError;

/// A server's response: the parameters and the header value that declares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Agreement {
    pub(in super::super) params: DeflateParams,
    value: [u8; VALUE_BYTES_MAX],
    value_len: u8,
}

/// The name and all four parameters at their longest.
const VALUE_BYTES_MAX: usize = NAME.len()
    + 2
    + SERVER_NO_CONTEXT_TAKEOVER.len()
    + 2
    + CLIENT_NO_CONTEXT_TAKEOVER.len()
    + 2
    + SERVER_MAX_WINDOW_BITS.len()
    + 3
    + 2
    + CLIENT_MAX_WINDOW_BITS.len()
    + 3;

impl Agreement {
    pub(in super::super) fn header_value(&self) -> &str {
        str::from_utf8(&self.value[..usize::from(self.value_len)]).unwrap_or_default()
    }
}

/// Chooses one of a client's offers, in the client's order of preference. An offer that limits the
/// server to a window of 8 bits is chosen last: it is acceptable, but the server could not
/// compress.
pub(in super::super) fn negotiate(
    headers: Headers<'_>,
    config: &DeflateConfig,
) -> Result<Option<Agreement>, ExtensionsError> {
    let mut chosen: Option<Agreement> = None;
    for_each_extension(headers, |name, params| {
        if !name.eq_ignore_ascii_case(NAME) {
            return Ok(());
        }
        // RFC 7692 §7.1: an offer with a parameter that is unknown, repeated or malformed is declined.
        let Some(offer) = Parameters::read(params, true)? else { return Ok(()) };
        let agreement = offer.accept(config);
        let better = chosen.as_ref().is_none_or(|chosen| {
            !chosen.params.outgoing(Role::Server).can_compress()
                && agreement.params.outgoing(Role::Server).can_compress()
        });
        if better {
            chosen = Some(agreement);
        }
        Ok(())
    })?;
    Ok(chosen)
}

/// Returns a client's offer as a header value.
pub(in super::super) fn offer(config: &DeflateConfig) -> String {
    let mut value = NAME.to_owned();
    if !config.server_context_takeover {
        value.push_str("; server_no_context_takeover");
    }
    if !config.client_context_takeover {
        value.push_str("; client_no_context_takeover");
    }
    if config.server_max_window_bits < WINDOW_BITS_MAX {
        value.push_str(&format!("; {SERVER_MAX_WINDOW_BITS}={}", config.server_max_window_bits));
    }
    if config.client_max_window_bits < WINDOW_BITS_MAX {
        value.push_str(&format!("; {CLIENT_MAX_WINDOW_BITS}={}", config.client_max_window_bits));
    } else {
        value.push_str("; client_max_window_bits");
    }
    value
}

/// Checks a server's response against what [`offer`] offered.
pub(in super::super) fn confirm(
    headers: Headers<'_>,
    offered: Option<&DeflateConfig>,
) -> Result<Option<DeflateParams>, ExtensionsError> {
    let mut agreed = None;
    for_each_extension(headers, |name, params| {
        let config = offered.filter(|_| name.eq_ignore_ascii_case(NAME)).ok_or(ExtensionsError)?;
        let response = Parameters::read(params, false)?.ok_or(ExtensionsError)?;
        let server_bits = response.server_max_window_bits.unwrap_or(WINDOW_BITS_MAX);
        let client_bits = response.client_max_window_bits.flatten().unwrap_or(WINDOW_BITS_MAX);
        if (!config.server_context_takeover && !response.server_no_context_takeover)
            || server_bits > config.server_max_window_bits
            || agreed.is_some()
        {
            return Err(ExtensionsError);
        }
        agreed = Some(DeflateParams {
            server_no_context_takeover: response.server_no_context_takeover,
            // The client's offer to do without takeover binds it even if the server does not repeat
            // it.
            client_no_context_takeover: response.client_no_context_takeover
                || !config.client_context_takeover,
            server_max_window_bits: server_bits,
            client_max_window_bits: client_bits.min(config.client_max_window_bits),
        });
        Ok(())
    })?;
    Ok(agreed)
}

/// The parameters of one offer or response.
#[derive(Debug, Default)]
struct Parameters {
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    server_max_window_bits: Option<u8>,
    /// Present with or without a value. Only an offer may omit the value.
    client_max_window_bits: Option<Option<u8>>,
}

impl Parameters {
    /// Returns `Ok(None)` when a parameter is unknown, repeated or has an invalid value.
    fn read(params: &[u8], offer: bool) -> Result<Option<Parameters>, ExtensionsError> {
        let mut this = Parameters::default();
        let mut valid = true;
        for_each_parameter(params, |name, value| {
            let bits = value.map(window_bits);
            match (name, bits) {
                (SERVER_NO_CONTEXT_TAKEOVER, None) if !this.server_no_context_takeover => {
                    this.server_no_context_takeover = true;
                }
                (CLIENT_NO_CONTEXT_TAKEOVER, None) if !this.client_no_context_takeover => {
                    this.client_no_context_takeover = true;
                }
                (SERVER_MAX_WINDOW_BITS, Some(Some(bits)))
                    if this.server_max_window_bits.is_none() =>
                {
                    this.server_max_window_bits = Some(bits);
                }
                (CLIENT_MAX_WINDOW_BITS, Some(Some(bits)))
                    if this.client_max_window_bits.is_none() =>
                {
                    this.client_max_window_bits = Some(Some(bits));
                }
                (CLIENT_MAX_WINDOW_BITS, None)
                    if offer && this.client_max_window_bits.is_none() =>
                {
                    this.client_max_window_bits = Some(None);
                }
                _ => valid = false,
            }
        })?;
        Ok(valid.then_some(this))
    }

    fn accept(&self, config: &DeflateConfig) -> Agreement {
        let server_bits = self
            .server_max_window_bits
            .unwrap_or(WINDOW_BITS_MAX)
            .min(config.server_max_window_bits.max(WINDOW_BITS_COMPRESSIBLE_MIN));
        // RFC 7692 §7.1.2.2: a server may limit the client's window only if the client offered
        // that.
        let client_bits = match self.client_max_window_bits {
            None => WINDOW_BITS_MAX,
            Some(bits) => bits
                .unwrap_or(WINDOW_BITS_MAX)
                .min(config.client_max_window_bits.max(WINDOW_BITS_COMPRESSIBLE_MIN)),
        };
        let params = DeflateParams {
            server_no_context_takeover: self.server_no_context_takeover
                || !config.server_context_takeover,
            client_no_context_takeover: self.client_no_context_takeover
                || !config.client_context_takeover,
            server_max_window_bits: server_bits,
            client_max_window_bits: client_bits,
        };
        let mut value = [0; VALUE_BYTES_MAX];
        let mut rest = &mut value[..];
        // Writing to a slice that is large enough cannot fail.
        let _ = rest.write_all(NAME.as_bytes());
        if params.server_no_context_takeover {
            let _ = write!(rest, "; {SERVER_NO_CONTEXT_TAKEOVER}");
        }
        if params.client_no_context_takeover {
            let _ = write!(rest, "; {CLIENT_NO_CONTEXT_TAKEOVER}");
        }
        if self.server_max_window_bits.is_some() || server_bits < WINDOW_BITS_MAX {
            let _ = write!(rest, "; {SERVER_MAX_WINDOW_BITS}={server_bits}");
        }
        if self.client_max_window_bits.is_some() && client_bits < WINDOW_BITS_MAX {
            let _ = write!(rest, "; {CLIENT_MAX_WINDOW_BITS}={client_bits}");
        }
        let value_len = (VALUE_BYTES_MAX - rest.len()) as u8;
        Agreement { params, value, value_len }
    }
}

/// Parses `8` to `15`, without sign or leading zero.
fn window_bits(value: &str) -> Option<u8> {
    match value.as_bytes() {
        [b'8' | b'9'] | [b'1', b'0'..=b'5'] => {}
        _ => return None,
    }
    value.parse().ok().filter(|bits| (WINDOW_BITS_MIN..=WINDOW_BITS_MAX).contains(bits))
}

/// Calls `each` with the name and the raw parameters of every extension in all
/// `Sec-WebSocket-Extensions` fields.
fn for_each_extension(
    headers: Headers<'_>,
    mut each: impl FnMut(&str, &[u8]) -> Result<(), ExtensionsError>,
) -> Result<(), ExtensionsError> {
    for value in headers.get_all("sec-websocket-extensions") {
        let mut rest = value;
        while let Some(extension) = split_unquoted(&mut rest, b',')? {
            if extension.is_empty() {
                continue;
            }
            let end = extension.iter().position(|&byte| byte == b';').unwrap_or(extension.len());
            let (name, params) = extension.split_at(end);
            each(token(name)?, params.get(1..).unwrap_or_default())?;
        }
    }
    Ok(())
}

/// Calls `each` with name and value of every parameter: `token [ "=" ( token | quoted-string ) ]`.
/// A quoted value must be a token too (RFC 6455 §9.1).
fn for_each_parameter(
    params: &[u8],
    mut each: impl FnMut(&str, Option<&str>),
) -> Result<(), ExtensionsError> {
    let mut rest = params;
    while let Some(param) = split_unquoted(&mut rest, b';')? {
        let Some(equals) = param.iter().position(|&byte| byte == b'=') else {
            each(token(param)?, None);
            continue;
        };
        let value = param[equals + 1..].trim_ascii();
        let value = match value {
            [b'"', quoted @ .., b'"'] => quoted,
            value => value,
        };
        each(token(&param[..equals])?, Some(token(value)?));
    }
    Ok(())
}

/// Returns the next part of a list, trimmed; separators in quotes are ignored. `None` at the end.
fn split_unquoted<'a>(
    rest: &mut &'a [u8],
    separator: u8,
) -> Result<Option<&'a [u8]>, ExtensionsError> {
    if rest.is_empty() {
        return Ok(None);
    }
    let mut quoted = false;
    let end = rest.iter().position(|&byte| {
        quoted ^= byte == b'"';
        byte == separator && !quoted
    });
    if end.is_none() && quoted {
        return Err(ExtensionsError);
    }
    let part = &rest[..end.unwrap_or(rest.len())];
    *rest = &rest[(part.len() + 1).min(rest.len())..];
    Ok(Some(part.trim_ascii()))
}

fn token(bytes: &[u8]) -> Result<&str, ExtensionsError> {
    let bytes = bytes.trim_ascii();
    if !is_token(bytes) {
        return Err(ExtensionsError);
    }
    str::from_utf8(bytes).map_err(|_| ExtensionsError)
}
