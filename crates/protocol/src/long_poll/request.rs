//! The request, which is a query string.

use std::borrow::Cow;

use dunlin_wire::http1::query;

use super::cursor::{Cursor, CursorError};
use crate::json::ProtocolError;

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct PollLimits {
    /// Maximum number of channels in a request.
    pub channels_max: usize,
    /// Maximum length of a channel's name in bytes.
    pub channel_bytes_max: usize,
    /// Default timeout in milliseconds.
    pub timeout_ms_default: u32,
    /// Maximum timeout in milliseconds.
    pub timeout_ms_max: u32,
}

impl Default for PollLimits {
    fn default() -> Self {
        PollLimits {
            channels_max: 128,
            channel_bytes_max: 255,
            timeout_ms_default: 25_000,
            timeout_ms_max: 60_000,
        }
    }
}

/// A long-poll request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollRequest<'a> {
    /// The channels: at least one, without duplicates.
    pub channels: Vec<Cow<'a, str>>,
    /// Where to continue; `None`: from now on.
    pub cursor: Option<Cursor>,
    /// Timeout in milliseconds.
    pub timeout_ms: u32,
    /// Connection token (JWT), for clients that cannot set the Authorization header.
    pub token: Cow<'a, str>,
    /// Everything up to here is acknowledged: the cursor of an earlier response.
    pub ack: Option<Cursor>,
    /// The client's device, in channels with acknowledgements.
    pub device: Cow<'a, str>,
}

impl<'a> PollRequest<'a> {
    /// Parses the query string, without its question mark.
    ///
    /// # Errors
    /// [`ProtocolError`] (response: 400) with the name of the parameter.
    pub fn parse(query: &'a str, limits: &PollLimits) -> Result<PollRequest<'a>, ProtocolError> {
        let mut request = PollRequest {
            channels: Vec::new(),
            cursor: None,
            timeout_ms: limits.timeout_ms_default.min(limits.timeout_ms_max),
            token: Cow::Borrowed(""),
            ack: None,
            device: Cow::Borrowed(""),
        };
        for (name, value) in query::pairs(query) {
            match &*name {
                "channel" => {
                    if value.is_empty() {
                        return Err(ProtocolError::new("channel", "is empty"));
                    }
                    if value.len() > limits.channel_bytes_max {
                        return Err(ProtocolError::new(
                            "channel",
                            format!(
                                "is {} bytes long, {} are allowed",
                                value.len(),
                                limits.channel_bytes_max
                            ),
                        ));
                    }
                    if request.channels.contains(&value) {
                        continue;
                    }
                    if request.channels.len() == limits.channels_max {
                        return Err(ProtocolError::new(
                            "channel",
                            format!("at most {} channels a request", limits.channels_max),
                        ));
                    }
                    request.channels.push(value);
                }
                "cursor" if value.is_empty() => request.cursor = None,
                "cursor" => {
                    let cursor = Cursor::parse(&value, limits.channels_max);
                    request.cursor = Some(
                        cursor
                            .map_err(|reason| ProtocolError::new("cursor", reason.to_string()))?,
                    );
                }
                "timeout" => {
                    let timeout_ms = parse_timeout_ms(&value).ok_or_else(|| {
                        ProtocolError::new(
                            "timeout",
                            "is not a time; write seconds (`25`, `2.5`) or milliseconds (`500ms`)",
                        )
                    })?;
                    request.timeout_ms = timeout_ms.min(limits.timeout_ms_max);
                }
                "token" => request.token = value,
                "ack" if value.is_empty() => request.ack = None,
                "ack" => {
                    let cursor = Cursor::parse(&value, limits.channels_max);
                    let refused =
                        |reason: CursorError| ProtocolError::new("ack", reason.to_string());
                    request.ack = Some(cursor.map_err(refused)?);
                }
                "device" => request.device = value,
                // Added by libraries to bypass caches.
                "_" => {}
                _ => {
                    return Err(ProtocolError::new(
                        &name,
                        "is not a parameter; there are ack, channel, cursor, device, timeout and token",
                    ));
                }
            }
        }
        if request.channels.is_empty() {
            return Err(ProtocolError::new("channel", "is missing; name at least one channel"));
        }
        Ok(request)
    }
}

/// Parses `25`, `2.5`, `25s` or `500ms` to milliseconds; saturates.
fn parse_timeout_ms(text: &str) -> Option<u32> {
    let (number, scale) = match text.strip_suffix("ms") {
        Some(number) => (number, 1.0),
        None => (text.strip_suffix('s').unwrap_or(text), 1000.0),
    };
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    // A cast from float to integer saturates.
    Some((number.parse::<f64>().ok()? * scale).round() as u32)
}

#[cfg(test)]
mod tests {
    use dunlin_hub::{Epoch, StreamPosition};
    use proptest::prelude::*;

    use super::*;

    fn parse(query: &str) -> Result<PollRequest<'_>, String> {
        PollRequest::parse(query, &PollLimits::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_as_the_documentation_has_it() {
        let position = StreamPosition { offset: 3, epoch: Epoch::from_u64(7) };
        let cursor = Cursor::new([("a", position)]);
        let query = format!("channel=a&channel=b%20c&cursor={cursor}&timeout=10&channel=a&_=1");
        let request = parse(&query).unwrap();
        assert_eq!(request.channels, ["a", "b c"]);
        assert_eq!(request.cursor, Some(cursor));
        assert_eq!(request.timeout_ms, 10_000);
    }

    #[test]
    fn timeouts_are_read_and_cut() {
        let timeout =
            |text: &str| parse(&format!("channel=a&timeout={text}")).map(|r| r.timeout_ms);
        assert_eq!(timeout("0"), Ok(0));
        assert_eq!(timeout("2.5"), Ok(2500));
        assert_eq!(timeout("30s"), Ok(30_000));
        assert_eq!(timeout("1500ms"), Ok(1500));
        assert_eq!(timeout("99999999999999999999"), Ok(60_000));
        for bad in ["", "-1", "1e3", "soon", "ms", ".", "1.2.3", "inf", "NaN"] {
            assert!(timeout(bad).unwrap_err().starts_with("timeout: is not a time"), "{bad}");
        }
    }

    #[test]
    fn bad_requests_name_the_parameter() {
        assert_eq!(parse(""), Err("channel: is missing; name at least one channel".into()));
        assert_eq!(parse("channel="), Err("channel: is empty".into()));
        assert_eq!(
            parse("chanel=a"),
            Err("chanel: is not a parameter; there are ack, channel, cursor, device, timeout and token"
                .into())
        );
        assert!(parse("channel=a&ack=xyz").unwrap_err().starts_with("ack: is not a cursor"));
        assert!(parse("channel=a&cursor=xyz").unwrap_err().starts_with("cursor: is not a cursor"));
        assert_eq!(
            parse(&format!("channel={}", "x".repeat(256))),
            Err("channel: is 256 bytes long, 255 are allowed".into())
        );
        let many: String = (0..129).map(|n| format!("channel={n}&")).collect();
        assert_eq!(parse(&many), Err("channel: at most 128 channels a request".into()));
    }

    proptest! {
        #[test]
        fn anything_at_all_parses_or_is_refused(query in ".{0,200}") {
            if let Ok(request) = parse(&query) {
                prop_assert!(!request.channels.is_empty());
                prop_assert!(request.timeout_ms <= PollLimits::default().timeout_ms_max);
            }
        }
    }
}
