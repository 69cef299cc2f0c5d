//! Messages to users of other servers, and from them.
//!
//! A message to `user@domain` goes over the bus to the federation thread, which has the links; its answer comes back the same way. One
//! from a peer is published in its recipient's personal channel, with the sender's address as the user that has published it.

use std::sync::Arc;

use dunlin_config::ClientSend;
use dunlin_federation::{Address, Format, Message, MessageError, Reason};
use dunlin_hub::{
    ChannelRef, ClientInfo, Error as HubError, Event, NewPublication, PayloadFormat, SessionId,
};
use dunlin_protocol::Payload;
use dunlin_protocol::centrifuge::{self, ErrorCode, RemoteSend, Reply, RpcRequest};

use super::api::Api;
use super::clients::Clients;
use super::parts::{CommandPlace, Pending};
use super::turn::{Core, Turn};
use crate::api::request::SendRequest;
use crate::api::{ApiError, ApiErrorCode, CommandOutcome};
use crate::message::federation::{DeliveryId, FederationMessage, FederationToWorker, MessageId};
use crate::metrics::Metric;
use dunlin_hub::tenant::MARK;

/// The token of what nobody waits for.
const NO_TOKEN: u64 = 0;
/// The id that clients are shown of a publisher that is no session here.
const NO_CLIENT: SessionId = SessionId::pack(0, 0, 0, 0, 0);
/// How long a channel remembers that it has a message, beyond what is stored of its peer: until a killed server is back.
const IDEMPOTENCY_MS: u32 = 900_000;

/// Why a message cannot be sent to a peer.
enum Refusal {
    Malformed(MessageError),
    Overloaded,
}

impl Core<'_> {
    /// Returns the peer and the user of an address, if its domain is one of a peer.
    fn remote<'t>(&self, address: &'t str) -> Option<(Arc<str>, &'t str)> {
        let federation = &self.settings.config.federation;
        if !federation.enabled {
            return None;
        }
        let Address { user, domain } = Address::parse(address)?;
        let (name, _) = federation.peers.get_entry(domain)?;
        Some((Arc::clone(name), user))
    }

    /// Whether an address is one of a user of a peer.
    pub(super) fn is_remote(&self, address: &str) -> bool {
        self.settings.config.federation.enabled && self.remote(address).is_some()
    }

    /// Passes a message to the thread that has the links.
    fn send_to_peer(
        &mut self,
        peer: Arc<str>,
        message: Message,
        token: u64,
    ) -> Result<(), Refusal> {
        message.validate().map_err(Refusal::Malformed)?;
        let message = FederationMessage::Send { token, peer, message: Box::new(message) };
        self.endpoint.send(self.state.bus.federation(), message).map_err(|_| {
            self.count(Metric::BusRefused);
            Refusal::Overloaded
        })
    }
}

impl Api {
    /// Sends a message of a backend to a user of a peer.
    pub(super) fn send_to_remote(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        send: &SendRequest<'_>,
    ) -> Result<(), ApiError> {
        let Some((peer, user)) = turn.core.remote(&send.target.user) else { return Ok(()) };
        let target = &send.target;
        if !(target.client.is_empty() && target.session.is_empty() && send.device.is_empty()) {
            let why = "client, session, device: a user of another server is addressed as a whole";
            return Err(ApiErrorCode::BadRequest.with_reason(why));
        }
        if self.api_calls.tenant(place.call).is_some() {
            let why = "messages to other servers are not of tenants: give the operator's key";
            return Err(ApiErrorCode::PermissionDenied.with_reason(why));
        }
        let message = Message {
            from: send.from.to_string(),
            to: user.to_owned(),
            idempotency_key: send.idempotency_key.to_string(),
            format: format(send.data.format()),
            data: send.data.as_bytes().to_vec(),
        };
        let wait_ms = turn.core.settings.config.federation.answer_timeout_ms;
        let timeout_ms = turn.core.settings.config.limits.bus_request_timeout_ms + wait_ms;
        let token = turn.core.pending.insert(turn.cx.now_ms(), timeout_ms, Pending::Api(place));
        let token = token.map_err(|_| ApiError::from(HubError::Overloaded))?;
        turn.core.send_to_peer(peer, message, token).map_err(|refusal| {
            turn.core.pending.take(token);
            match refusal {
                Refusal::Malformed(error) => ApiErrorCode::BadRequest.with_reason(error),
                Refusal::Overloaded => HubError::Overloaded.into(),
            }
        })
    }
}

impl Clients {
    /// Executes `dunlin.send`: a message of a client to a user of a peer.
    ///
    /// # Errors
    /// It is malformed, or the client may not.
    pub(super) fn send_to_remote(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (session, id): (SessionId, u32),
        request: &RpcRequest<'_>,
    ) -> Result<(), centrifuge::Error<'static>> {
        let federation = &turn.core.settings.config.federation;
        if !federation.enabled || federation.client_send == ClientSend::Nobody {
            let why = "clients may not send to other servers: federation.client_send is nobody";
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        let view = turn.core.hub.session(session);
        let from = view.map(|view| view.user.to_owned()).unwrap_or_default();
        if from.is_empty() || from.starts_with(MARK) {
            let why = "a client without a user, or of a tenant, may not send to other servers";
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        let send = RemoteSend::parse(request)?;
        let Some((peer, user)) = turn.core.remote(&send.to) else {
            let why = "rpc.data of dunlin.send: `to` is no address of a peer: user@domain";
            return Err(ErrorCode::BadRequest.with_reason(why));
        };
        let max = turn.core.settings.config.limits.publication_bytes_max;
        if send.data.as_bytes().len() > max {
            let why = format_args!("the data has more than limits.publication_bytes_max, {max}");
            return Err(ErrorCode::LimitExceeded.with_reason(why));
        }
        let message = Message {
            from,
            to: user.to_owned(),
            idempotency_key: send.idempotency_key.to_string(),
            format: Format::Json,
            data: send.data.as_bytes().to_vec(),
        };
        let Some(token) = self.token(turn, Pending::Command { session, id }) else {
            return Ok(());
        };
        turn.core.send_to_peer(peer, message, token).map_err(|refusal| {
            turn.core.pending.take(token);
            match refusal {
                Refusal::Malformed(error) => ErrorCode::BadRequest.with_reason(error),
                Refusal::Overloaded => ErrorCode::TooManyRequests.into(),
            }
        })
    }

    /// Takes what the federation thread has for this worker.
    pub(super) fn receive_from_peers(
        &mut self,
        turn: &mut Turn<'_, '_>,
        message: FederationToWorker,
    ) {
        match message {
            FederationToWorker::Deliver(id, message) => self.deliver_remote(turn, id, &message),
            FederationToWorker::Answer { token, answer } => match turn.core.pending.take(token) {
                Some(Pending::Command { session, id }) => {
                    turn.core.reply(session, id, &Reply::Rpc { data: &answer.to_json() });
                }
                Some(Pending::Api(place)) => {
                    let answer = CommandOutcome::Json(answer.to_json());
                    turn.core.api_answers.push_back((place, Ok(answer)));
                }
                // It has timed out, and was answered.
                _ => {}
            },
            FederationToWorker::Notice { user, to, id, reason } => {
                self.notify_sender(turn, &user, &to, (id, reason));
            }
        }
        self.drain_events(turn);
    }

    fn deliver_remote(&mut self, turn: &mut Turn<'_, '_>, id: DeliveryId, message: &Message) {
        let config = &turn.core.settings.config;
        let personal = &config.client.subscribe_to_user_personal_channel;
        let channel = personal.of(&message.to).filter(|_| !message.to.starts_with(MARK));
        let options = channel.as_deref().and_then(|of| turn.core.channel_options(of).ok());
        let (Some(channel), Some(options)) = (channel, options) else {
            return turn.core.taken(id, Err(Reason::Unreachable));
        };
        if message.data.len() > config.limits.publication_bytes_max {
            return turn.core.taken(id, Err(Reason::TooLarge));
        }
        let address = match &*message.from {
            "" => id.peer.to_string(),
            user => format!("{user}@{}", id.peer),
        };
        // A message that its sender has numbered is known by that number, whichever link it comes by.
        let key = idempotency_key(&id.peer, (id.stream, id.seq), message);
        let publication = NewPublication {
            // What is no JSON on one line is not written as JSON, whatever the peer calls it.
            format: Payload::of_bytes(&*message.data).format(),
            data: (*message.data).into(),
            info: Some(Arc::new(ClientInfo {
                user: (*address).into(),
                user_is_number: false,
                client: NO_CLIENT,
                foreign_client: Some("".into()),
                conn_info: None,
                chan_info: None,
            })),
            idempotency_key: Some(key.into()),
            idempotency_ttl_ms: Some(IDEMPOTENCY_MS),
            ..NewPublication::default()
        };
        if let Some(token) = self.token(turn, Pending::Remote(Box::new(id))) {
            let now = turn.now();
            turn.core.publication(None, &channel, publication.data.len());
            let channel = ChannelRef::new(&channel, &options);
            turn.core.hub.handle_publish(now, token, channel, publication);
        }
    }

    /// Publishes to a sender what has become of a message that was queued.
    fn notify_sender(
        &mut self,
        turn: &mut Turn<'_, '_>,
        user: &str,
        to: &str,
        (id, reason): (MessageId, Reason),
    ) {
        let personal = &turn.core.settings.config.client.subscribe_to_user_personal_channel;
        let Some(channel) = personal.of(user) else { return };
        let Ok(options) = turn.core.channel_options(&channel) else { return };
        let notice = serde_json::json!({
            "federation": { "id": id.to_string(), "to": to, "status": "failed", "reason": reason.name() },
        });
        let (data, format) = (notice.to_string().into_bytes().into(), PayloadFormat::Json);
        let publication = NewPublication { data, format, ..NewPublication::default() };
        let now = turn.now();
        let channel = ChannelRef::new(&channel, &options);
        turn.core.hub.handle_publish(now, NO_TOKEN, channel, publication);
    }
}

impl Core<'_> {
    /// A message of a peer was published, or could not be.
    pub(super) fn remote_published(&mut self, id: DeliveryId, event: &Event) {
        if let Event::Published { result: Ok(_), .. } = event {
            self.taken(id, Ok(()));
        }
        // Any other result may be another one later: the thread gives the message again.
    }

    fn taken(&mut self, id: DeliveryId, result: Result<(), Reason>) {
        let message = FederationMessage::Taken(Box::new(id), result);
        // One that has no room is given again.
        if self.endpoint.send(self.state.bus.federation(), message).is_err() {
            self.count(Metric::BusRefused);
        }
    }
}

/// Returns what a message is known by. Users and their keys are any text: with its length, no user's key is another user's.
fn idempotency_key(peer: &str, (stream, seq): (u64, u64), message: &Message) -> String {
    let from = &message.from;
    match &*message.idempotency_key {
        "" => format!("{peer}/seq/{stream:x}/{seq}"),
        key => format!("{peer}/key/{}/{from}/{key}", from.len()),
    }
}

fn format(format: PayloadFormat) -> Format {
    match format {
        PayloadFormat::Json => Format::Json,
        PayloadFormat::Binary => Format::Binary,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user could choose a key by which another user's message counted as known, and was not published.
    #[test]
    fn key_of_one_user_is_never_that_of_another_nor_a_number_of_the_link() {
        let known_by = |from: &str, key: &str| {
            let message = Message {
                from: from.into(),
                to: "bob".into(),
                idempotency_key: key.into(),
                format: Format::Json,
                data: Vec::new(),
            };
            idempotency_key("a.example", (0xab, 7), &message)
        };
        assert_ne!(known_by("ann", "x/1"), known_by("ann/x", "1"));
        assert_ne!(known_by("ab", "7"), known_by("ann", ""));
        assert_eq!(known_by("ann", "1"), known_by("ann", "1"));
    }
}
