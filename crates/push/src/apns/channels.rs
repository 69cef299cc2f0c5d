//! Broadcast channels: one push goes to all subscribed devices ("Sending channel management requests to APNs"). Each
//! management call opens its own connection, because calls are rare.

use std::fmt;
use std::time::{Duration, SystemTime};

use dunlin_wire::http2::client::{Config, Connection, Event, Response};
use dunlin_wire::http2::hpack::Indexing;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::push::check_topic;
use super::{Credential, Environment, Reason};
use crate::connect::{Connect, Stage};
use crate::dial::Dialer;
use crate::origin::{Origin, OriginError};
use crate::service::Authorization;

/// Time limit of a call, including the connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Sufficient for a list of 10,000 channels, the limit of an app.
const BODY_BYTES_MAX: u32 = 4 << 20;

/// The broadcast channels of an app.
#[derive(Debug)]
pub struct Channels {
    dial: Dialer,
    authority: String,
    credential: Credential,
    bundle: String,
}

/// What a channel stores for devices that are offline (`message-storage-policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Nothing: for frequent updates; Apple then permits more pushes.
    None,
    /// The most recent message, for at most eight hours.
    MostRecent,
}

/// Why a request to manage channels failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelError {
    /// The bundle identifier or the channel is invalid.
    Invalid(String),
    /// No connection could be opened, or it ended. The request may have been executed.
    Connection(String),
    /// Apple refused it.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The text that Apple uses.
        reason: Reason,
    },
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelError::Invalid(why) | ChannelError::Connection(why) => f.write_str(why),
            ChannelError::Refused { status, reason } => {
                write!(f, "Apple refused it with {status} {reason}")?;
                match reason.advice() {
                    Some(advice) => write!(f, ": {advice}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for ChannelError {}

impl Environment {
    /// Returns the origin for managing its broadcast channels.
    pub fn channels_origin(self) -> Origin {
        match self {
            Environment::Production => Origin::new("api-manage-broadcast.push.apple.com", 2_196),
            Environment::Sandbox => {
                Origin::new("api-manage-broadcast.sandbox.push.apple.com", 2_195)
            }
        }
    }
}

impl Channels {
    /// Creates the interface to the channels of the app with this bundle identifier, managed at an origin like
    /// [`Environment::channels_origin`].
    ///
    /// # Errors
    /// What is wrong with the origin or the certificate.
    pub fn new(
        mut origin: Origin,
        credential: Credential,
        bundle: &str,
    ) -> Result<Channels, OriginError> {
        check_topic(bundle).map_err(|error| OriginError(error.0))?;
        if let Credential::Certificate(certificate) = &credential {
            origin.identity = Some(certificate.identity());
        }
        let authority = origin.host.clone();
        let dial = Dialer::new(origin)?;
        Ok(Channels { dial, authority, credential, bundle: bundle.to_owned() })
    }

    /// Creates a channel and returns its id, with which devices subscribe.
    ///
    /// # Errors
    /// Why it was not created.
    pub async fn create(&self, storage: Storage) -> Result<String, ChannelError> {
        let policy = u8::from(storage == Storage::MostRecent);
        let body = format!(r#"{{"message-storage-policy":{policy},"push-type":"LiveActivity"}}"#);
        let answer = self.ask("POST", "channels", None, body).await?;
        let id = answer.fields.get("apns-channel-id");
        id.map(str::to_owned).ok_or_else(|| unreadable("it names no channel"))
    }

    /// Returns the ids of all channels.
    ///
    /// # Errors
    /// Why they could not be read.
    pub async fn list(&self) -> Result<Vec<String>, ChannelError> {
        #[derive(Deserialize)]
        struct All {
            channels: Vec<String>,
        }
        let answer = self.ask("GET", "all-channels", None, String::new()).await?;
        let all: All = serde_json::from_slice(&answer.body).map_err(unreadable)?;
        Ok(all.channels)
    }

    /// Returns what a channel stores.
    ///
    /// # Errors
    ///
    /// Why it could not be read: [`Reason::ChannelNotRegistered`] if the channel does not exist.
    pub async fn show(&self, channel: &str) -> Result<Storage, ChannelError> {
        #[derive(Deserialize)]
        struct Shown {
            #[serde(rename = "message-storage-policy")]
            policy: u8,
        }
        let answer = self.ask("GET", "channels", Some(channel), String::new()).await?;
        let shown: Shown = serde_json::from_slice(&answer.body).map_err(unreadable)?;
        Ok(if shown.policy == 0 { Storage::None } else { Storage::MostRecent })
    }

    /// Deletes a channel permanently.
    ///
    /// # Errors
    /// Why it was not deleted.
    pub async fn delete(&self, channel: &str) -> Result<(), ChannelError> {
        self.ask("DELETE", "channels", Some(channel), String::new()).await.map(drop)
    }

    async fn ask(
        &self,
        method: &str,
        what: &str,
        channel: Option<&str>,
        body: String,
    ) -> Result<Response, ChannelError> {
        let is_id = |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some(channel) = channel.filter(|channel| !is_id(channel)) {
            return Err(ChannelError::Invalid(format!("channel: {channel:?} is no channel id")));
        }
        let answered = timeout(ANSWER_WITHIN, self.exchange(method, what, channel, body)).await;
        let answer = match answered {
            Ok(answered) => answered.map_err(ChannelError::Connection)?,
            Err(_) => {
                let why = format!("{} does not answer", self.authority);
                return Err(ChannelError::Connection(why));
            }
        };
        if (200..300).contains(&answer.status) {
            return Ok(answer);
        }
        #[derive(Default, Deserialize)]
        struct ErrorBody {
            reason: String,
        }
        let refusal: ErrorBody = serde_json::from_slice(&answer.body).unwrap_or_default();
        Err(ChannelError::Refused { status: answer.status, reason: Reason::new(&refusal.reason) })
    }

    /// Sends one request on its own connection.
    async fn exchange(
        &self,
        method: &str,
        what: &str,
        channel: Option<&str>,
        body: String,
    ) -> Result<Response, String> {
        let mut io = self.dial.connect(Stage::default()).await.map_err(|error| error.why)?;
        let config = Config {
            body_bytes_max: BODY_BYTES_MAX,
            window_bytes: BODY_BYTES_MAX,
            ..Config::default()
        };
        let mut http = Connection::new(config);
        let path = format!("/1/apps/{}/{what}", self.bundle);
        let authorization = self.credential.authorization(SystemTime::now());
        let opened = http.open(body.into_bytes(), |field| {
            field(b":method", method.as_bytes(), Indexing::None);
            field(b":scheme", b"https", Indexing::None);
            field(b":path", path.as_bytes(), Indexing::None);
            field(b":authority", self.authority.as_bytes(), Indexing::None);
            if let Some(Authorization { value, .. }) = &authorization {
                field(b"authorization", value.as_bytes(), Indexing::None);
            }
            if let Some(channel) = channel {
                field(b"apns-channel-id", channel.as_bytes(), Indexing::None);
            }
        });
        opened.map_err(|refusal| format!("no stream can be opened: {refusal:?}"))?;
        let mut buffer = vec![0; 16 << 10];
        loop {
            while !http.transmit().is_empty() {
                let written = io.write(http.transmit()).await.map_err(|error| error.to_string())?;
                http.handle_transmitted(written);
            }
            io.flush().await.map_err(|error| error.to_string())?;
            while let Some(event) = http.poll_event() {
                match event {
                    Event::Response { response, .. } => return Ok(response),
                    Event::Reset { code, .. } => {
                        return Err(format!("the stream was reset: {code}"));
                    }
                    Event::Refused { .. } => return Err("the request was not processed".to_owned()),
                    _ => {}
                }
            }
            let read = io.read(&mut buffer).await.map_err(|error| error.to_string())?;
            if read == 0 {
                return Err(format!("{} ended the connection", self.authority));
            }
            http.handle_bytes(&buffer[..read])
                .map_err(|error| format!("{} broke HTTP/2: {error}", self.authority))?;
        }
    }
}

fn unreadable(why: impl fmt::Display) -> ChannelError {
    ChannelError::Connection(format!("the answer cannot be read: {why}"))
}
