//! The HTTP API of the Pusher protocol: authenticates and parses calls.

use std::fmt;

use dunlin_hub::tenant::{NO_CONTROL, has_control};
use dunlin_protocol::json::{self, Json, Text};
use dunlin_protocol::pusher::{
    ChannelKind, EVENT_NAME_BYTES_MAX, SocketId, is_name, is_reserved, payload_of_text,
};
use dunlin_wire::http1::query;
use md5::{Digest, Md5};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::App;

/// Maximum difference between a call's timestamp and the server's clock, in seconds.
const CLOCK_S: u64 = 600;
/// Most counts of channels in one call.
pub(crate) const COUNTED_MAX: usize = 1_000;

/// A validated call. Channel names are those of the protocol, not the hub's.
#[derive(Debug, PartialEq)]
pub enum Call {
    /// `POST /apps/ID/events`
    Publish(TriggeredEvent),
    /// `POST /apps/ID/batch_events`
    Batch(Vec<TriggeredEvent>),
    /// `GET /apps/ID/channels`
    Channels {
        /// The beginning of their names.
        prefix: String,
        /// What the response has of each.
        info: RequestedInfo,
    },
    /// `GET /apps/ID/channels/NAME`
    Channel {
        /// The channel.
        name: String,
        /// What the response has of it.
        info: RequestedInfo,
    },
    /// `GET /apps/ID/channels/NAME/users`
    Users {
        /// The channel.
        name: String,
    },
    /// `POST /apps/ID/users/USER/terminate_connections`
    Terminate {
        /// The user.
        user: String,
    },
}

/// An event that a backend triggers on channels.
#[derive(Debug, PartialEq)]
pub struct TriggeredEvent {
    /// The name of the event.
    pub event: String,
    /// The channels, by the names that clients use.
    pub channels: Vec<String>,
    /// The message as clients get it.
    pub payload: Box<[u8]>,
    /// The session that does not receive it.
    pub except: Option<SocketId>,
    /// What the response has of each channel.
    pub info: RequestedInfo,
}

/// The attributes of channels that a caller asks for (`info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedInfo {
    /// The number of users of a presence channel.
    pub users: bool,
    /// The number of subscriptions.
    pub subscriptions: bool,
    /// The last event of a cache channel.
    pub cache: bool,
}

/// The error of a rejected call: its status, and a sentence that is the response body.
#[derive(Debug, PartialEq, Eq)]
pub struct PusherError {
    /// The HTTP status.
    pub status: u16,
    /// The sentence.
    pub why: String,
}

impl PusherError {
    fn new(status: u16, why: impl fmt::Display) -> PusherError {
        PusherError { status, why: why.to_string() }
    }

    fn bad(why: impl fmt::Display) -> PusherError {
        PusherError::new(400, why)
    }
}

/// Method, path and query of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallHead<'a> {
    /// The HTTP method.
    pub method: &'a str,
    /// Still percent-encoded.
    pub path: &'a str,
    /// Still percent-encoded, without the question mark.
    pub query: &'a str,
}

/// Returns the app id in a path below `/apps/`, and the rest of the path.
pub fn split_path(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix("/apps/")?;
    Some(rest.split_once('/').unwrap_or((rest, "")))
}

impl CallHead<'_> {
    /// Checks that the app's secret signed the call, and the body if it is given.
    ///
    /// # Errors
    /// Returns status 401 with the reason.
    pub fn authorize(
        &self,
        app: &App,
        unix_ms: u64,
        body: Option<&[u8]>,
    ) -> Result<(), PusherError> {
        let no = |why: &str| Err(PusherError::new(401, why));
        let pairs = query::pairs(self.query);
        let mut pairs: Vec<_> = pairs.map(|(name, value)| (name.to_lowercase(), value)).collect();
        pairs.sort();
        let of = |name: &str| {
            let found = pairs.iter().find(|(key, _)| key == name);
            found.map_or("", |(_, value)| &**value)
        };
        if *of("auth_key") != *app.config.key {
            return no("auth_key is not the key of this app");
        }
        if of("auth_version") != "1.0" {
            return no("auth_version is not 1.0");
        }
        let Ok(at_s) = of("auth_timestamp").parse::<u64>() else {
            return no("auth_timestamp is no time in Unix seconds");
        };
        if at_s.abs_diff(unix_ms / 1000) > CLOCK_S {
            return no("auth_timestamp is not within 600 s of the server's time");
        }
        let signed = pairs.iter().filter(|(name, _)| name != "auth_signature");
        let signed: Vec<_> = signed.map(|(name, value)| format!("{name}={value}")).collect();
        let text = format!("{}\n{}\n{}", self.method, self.path, signed.join("&"));
        if !app.has_signed(of("auth_signature"), &text) {
            return no(
                "auth_signature is not that of the app's secret for this method, path and query",
            );
        }
        match body {
            Some(body) if !body.is_empty() || !of("body_md5").is_empty() => {
                let digest = Md5::digest(body);
                let digest =
                    digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
                match of("body_md5").eq_ignore_ascii_case(&digest) {
                    true => Ok(()),
                    false => no("body_md5 is not that of the body"),
                }
            }
            _ => Ok(()),
        }
    }

    /// Parses the call.
    ///
    /// # Errors
    /// Returns the status and the reason.
    pub fn parse(&self, app: &App, body: &[u8]) -> Result<Call, PusherError> {
        let rest = split_path(self.path).map_or("", |(_, rest)| rest);
        let segments: Vec<_> = rest.split('/').map(query::decode_path).collect();
        let segments: Vec<&str> = segments.iter().map(|segment| &**segment).collect();
        let get = || self.expect("GET");
        let post = || self.expect("POST");
        match segments[..] {
            ["events"] => {
                post()?;
                let body: EventBody<'_> = json::from_slice(body).map_err(PusherError::bad)?;
                Ok(Call::Publish(body.publish(app)?))
            }
            ["batch_events"] => {
                post()?;
                let BatchBody { batch } = json::from_slice(body).map_err(PusherError::bad)?;
                let max = app.config.batch_events_max;
                if batch.len() > max {
                    return Err(PusherError::bad(format_args!("a batch has at most {max} events")));
                }
                let events = batch.into_iter().map(|event| event.publish(app));
                let events = events.collect::<Result<Vec<_>, _>>()?;
                // The answer has the attributes of one channel for each event.
                if events.iter().any(|event| event.channels.len() > 1) {
                    return Err(PusherError::bad("an event of a batch is for one `channel`"));
                }
                Ok(Call::Batch(events))
            }
            ["channels"] => {
                get()?;
                let prefix = self.parameter("filter_by_prefix").unwrap_or_default();
                if !prefix.is_empty() && !is_name(&prefix) {
                    return Err(PusherError::bad(
                        "filter_by_prefix is no beginning of a channel's name",
                    ));
                }
                let info = self.info()?;
                if info.users && !prefix.starts_with("presence-") {
                    let why = "user_count is of presence channels: set filter_by_prefix to `presence-` or longer";
                    return Err(PusherError::bad(why));
                }
                if info.cache {
                    return Err(PusherError::bad(
                        "cache is of one channel: ask for it by its name",
                    ));
                }
                Ok(Call::Channels { prefix, info })
            }
            ["channels", name] => {
                get()?;
                let info = self.info()?;
                if info.users && ChannelKind::of(name) != ChannelKind::Presence {
                    return Err(PusherError::bad("user_count is of presence channels"));
                }
                if info.cache && !ChannelKind::is_cache(name) {
                    return Err(PusherError::bad("cache is of cache channels"));
                }
                Ok(Call::Channel { name: countable(name)?, info })
            }
            ["channels", name, "users"] => {
                get()?;
                if ChannelKind::of(name) != ChannelKind::Presence {
                    return Err(PusherError::bad("users are of presence channels"));
                }
                Ok(Call::Users { name: countable(name)? })
            }
            ["users", user, "terminate_connections"] => {
                post()?;
                match user {
                    "" => Err(PusherError::bad("the user is missing")),
                    user if has_control(user) => Err(PusherError::bad(NO_CONTROL)),
                    user => Ok(Call::Terminate { user: user.to_owned() }),
                }
            }
            _ => Err(PusherError::new(404, format_args!("{:?} is not part of the API", self.path))),
        }
    }

    fn expect(&self, method: &str) -> Result<(), PusherError> {
        match self.method == method {
            true => Ok(()),
            false => Err(PusherError::new(405, format_args!("use {method}"))),
        }
    }

    fn parameter(&self, name: &str) -> Option<String> {
        query::pairs(self.query).find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }

    fn info(&self) -> Result<RequestedInfo, PusherError> {
        RequestedInfo::parse(&self.parameter("info").unwrap_or_default())
    }
}

impl RequestedInfo {
    /// None of them.
    pub const NONE: RequestedInfo =
        RequestedInfo { users: false, subscriptions: false, cache: false };

    fn parse(list: &str) -> Result<RequestedInfo, PusherError> {
        let mut info = RequestedInfo::NONE;
        for wanted in list.split(',').map(str::trim).filter(|wanted| !wanted.is_empty()) {
            match wanted {
                "user_count" => info.users = true,
                "subscription_count" => info.subscriptions = true,
                "cache" => info.cache = true,
                other => {
                    return Err(PusherError::bad(format_args!("info: {other:?} is not known")));
                }
            }
        }
        Ok(info)
    }
}

/// Validates the name of a channel whose subscribers are queried.
fn countable(name: &str) -> Result<String, PusherError> {
    match is_name(name) && !name.starts_with('#') {
        true => Ok(name.to_owned()),
        false => Err(PusherError::bad("this is no name of a channel")),
    }
}

#[derive(Deserialize)]
struct EventBody<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "json::text")]
    channel: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    channels: Option<Vec<Text<'a>>>,
    #[serde(borrow, default, deserialize_with = "json::text")]
    socket_id: std::borrow::Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "json::text")]
    info: std::borrow::Cow<'a, str>,
}

#[derive(Deserialize)]
struct BatchBody<'a> {
    #[serde(borrow)]
    batch: Vec<EventBody<'a>>,
}

impl EventBody<'_> {
    fn publish(self, app: &App) -> Result<TriggeredEvent, PusherError> {
        let config = &app.config;
        let event = self.name.0.into_owned();
        if !(1..=EVENT_NAME_BYTES_MAX).contains(&event.len()) {
            let why = format_args!("name: an event's name has 1 to {EVENT_NAME_BYTES_MAX} bytes");
            return Err(PusherError::bad(why));
        }
        if is_reserved(&event) {
            let why =
                "name: events that begin with `pusher:` or `pusher_internal:` are the server's own";
            return Err(PusherError::bad(why));
        }
        let own = (!self.channel.is_empty()).then_some(Text(self.channel));
        let channels = self.channels.unwrap_or_default().into_iter().chain(own);
        let channels: Vec<String> = channels.map(|channel| channel.0.into_owned()).collect();
        let max = config.channels_per_event_max;
        if !(1..=max).contains(&channels.len()) {
            return Err(PusherError::bad(format_args!("an event is for 1 to {max} channels")));
        }
        if let Some(name) = channels.iter().find(|name| !is_name(name)) {
            let name = &name[..name.floor_char_boundary(200)];
            return Err(PusherError::bad(format_args!("{name:?} is no name of a channel")));
        }
        if channels.len() > 1 && channels.iter().any(|name| ChannelKind::is_encrypted(name)) {
            return Err(PusherError::bad("an event for an encrypted channel is for no other"));
        }
        let text = self.data.get();
        let payload = if text.starts_with('"') {
            let text: String = serde_json::from_str(text).map_err(PusherError::bad)?;
            check_bytes(text.len(), config.event_bytes_max)?;
            payload_of_text(&text)
        } else {
            check_bytes(text.len(), config.event_bytes_max)?;
            let json = Json::parse(text.as_bytes());
            json.map_err(|error| PusherError::bad(format_args!("data {error}")))?.into_bytes()
        };
        let except = match &*self.socket_id {
            "" => None,
            id => Some(id.parse().map_err(|()| PusherError::bad("socket_id is malformed"))?),
        };
        Ok(TriggeredEvent {
            event,
            channels,
            payload,
            except,
            info: RequestedInfo::parse(&self.info)?,
        })
    }
}

fn check_bytes(bytes: usize, max: usize) -> Result<(), PusherError> {
    match bytes <= max {
        true => Ok(()),
        false => {
            Err(PusherError::new(413, format_args!("the data of an event has at most {max} bytes")))
        }
    }
}

#[cfg(test)]
mod tests {
    use dunlin_config::{Map, PusherApp, Secret};

    use super::super::Apps;
    use super::*;

    fn app() -> std::sync::Arc<App> {
        let config = PusherApp {
            id: "3".into(),
            key: "278d425bdf160c739803".into(),
            secret: Some(Secret::new("7ad3773142a6692b25b8")),
            ..PusherApp::default()
        };
        let apps: Map<PusherApp> = [("shop", config)].into_iter().collect();
        std::sync::Arc::clone(Apps::of(&apps).by_id("3").unwrap())
    }

    const BODY: &[u8] = br#"{"name":"foo","channels":["project-3"],"data":"{\"some\":\"data\"}"}"#;
    const QUERY: &str = "auth_key=278d425bdf160c739803&auth_timestamp=1353088179&auth_version=1.0\
        &body_md5=ec365a775a4cd0599faeb73354201b6f\
        &auth_signature=da454824c97ba181a32ccc17a72625ba02771f50b50e1e7430e47a1f3f457e6c";
    const AT_MS: u64 = 1_353_088_179_000;

    fn head<'a>(method: &'a str, path: &'a str, query: &'a str) -> CallHead<'a> {
        CallHead { method, path, query }
    }

    #[test]
    fn the_call_of_pushers_documentation_is_signed() {
        let call = head("POST", "/apps/3/events", QUERY);
        assert_eq!(call.authorize(&app(), AT_MS, Some(BODY)), Ok(()));
        assert_eq!(call.authorize(&app(), AT_MS + 600_000, None), Ok(()));
        let parsed = call.parse(&app(), BODY).unwrap();
        let Call::Publish(publish) = parsed else { panic!("{parsed:?}") };
        assert_eq!(
            (&*publish.event, &publish.channels[..]),
            ("foo", &["project-3".to_owned()][..])
        );
        assert_eq!(&*publish.payload, br#"{"some":"data"}"#);
    }

    #[test]
    fn a_call_that_differs_from_what_was_signed_is_refused() {
        let app = app();
        let refused = |method, path, query: &str, at_ms, body: &[u8]| {
            let refusal = head(method, path, query).authorize(&app, at_ms, Some(body)).unwrap_err();
            assert_eq!(refusal.status, 401);
        };
        let path = "/apps/3/events";
        refused("GET", path, QUERY, AT_MS, BODY);
        refused("POST", "/apps/4/events", QUERY, AT_MS, BODY);
        refused("POST", path, &format!("{QUERY}&info=user_count"), AT_MS, BODY);
        refused("POST", path, QUERY, AT_MS + 601_000, BODY);
        refused("POST", path, QUERY, AT_MS - 601_000, BODY);
        refused("POST", path, QUERY, AT_MS, b"{}");
        refused("POST", path, QUERY, AT_MS, b"");
        refused("POST", path, "", AT_MS, BODY);
        refused("POST", path, &QUERY.replace("278d425bdf160c739803", "other"), AT_MS, BODY);
        refused(
            "POST",
            path,
            &QUERY.replace("&body_md5=ec365a775a4cd0599faeb73354201b6f", ""),
            AT_MS,
            BODY,
        );
    }

    #[test]
    fn forbidden_field_of_a_call_is_named() {
        let app = app();
        let refused = |method, path, query: &str, body: &str| {
            let refusal = head(method, path, query).parse(&app, body.as_bytes()).unwrap_err();
            refusal.status
        };
        let event = |event: &str| refused("POST", "/apps/3/events", "", event);
        assert_eq!(event("{}"), 400);
        assert_eq!(event(r#"{"name":"a","data":"","channels":[]}"#), 400);
        assert_eq!(event(r#"{"name":"","data":"","channel":"a"}"#), 400);
        assert_eq!(event(r#"{"name":"a","data":"","channel":"a b"}"#), 400);
        // Regression test: they were published, and arrived under another name.
        assert_eq!(event(r#"{"name":"pusher:error","data":"","channel":"a"}"#), 400);
        assert_eq!(
            event(r#"{"name":"pusher_internal:member_added","data":"","channel":"a"}"#),
            400
        );
        assert_eq!(event(r#"{"name":"a","data":"","channel":"a","socket_id":"x"}"#), 400);
        assert_eq!(event(r#"{"name":"a","data":"","channels":["private-encrypted-a","b"]}"#), 400);
        let long = "x".repeat(10_241);
        assert_eq!(event(&format!(r#"{{"name":"a","data":"{long}","channel":"a"}}"#)), 413);
        let many = vec!["\"a\""; 101].join(",");
        assert_eq!(event(&format!(r#"{{"name":"a","data":"","channels":[{many}]}}"#)), 400);
        let one = r#"{"name":"a","data":"","channel":"a"}"#;
        let batch = format!(r#"{{"batch":[{}]}}"#, [one; 11].join(","));
        assert_eq!(refused("POST", "/apps/3/batch_events", "", &batch), 400);
        let reserved = r#"{"batch":[{"name":"pusher:a","data":"","channel":"a"}]}"#;
        assert_eq!(refused("POST", "/apps/3/batch_events", "", reserved), 400);
        let for_two = r#"{"batch":[{"name":"a","data":"","channels":["a","b"]}]}"#;
        assert_eq!(refused("POST", "/apps/3/batch_events", "", for_two), 400);
        assert_eq!(refused("GET", "/apps/3/channels/a", "info=cache", ""), 400);
        assert_eq!(refused("GET", "/apps/3/channels", "info=cache", ""), 400);
        assert_eq!(refused("GET", "/apps/3/events", "", ""), 405);
        assert_eq!(refused("GET", "/apps/3/nothing", "", ""), 404);
        assert_eq!(refused("GET", "/apps/3", "", ""), 404);
        assert_eq!(refused("GET", "/apps/3/channels", "info=user_count", ""), 400);
        assert_eq!(refused("GET", "/apps/3/channels", "filter_by_prefix=a*", ""), 400);
        assert_eq!(refused("GET", "/apps/3/channels/%23server-to-user-1", "", ""), 400);
        assert_eq!(refused("GET", "/apps/3/channels/private-a/users", "", ""), 400);
        let ended = head("POST", "/apps/3/users/a%2Fb/terminate_connections", "").parse(&app, b"");
        assert_eq!(ended, Ok(Call::Terminate { user: "a/b".into() }));
    }
}
