//! Acknowledgements: commands of clients, calls of the server API, and what reaches the other devices of a user.

use dunlin_cluster::message::{ClusterMessage, ClusterRequest, TargetNodes};
use dunlin_hub::{
    ChannelRef, CursorOwner, CursorState, Epoch, Error as HubError, PayloadFormat, SendToUser,
    SessionId, StreamPosition, tenant,
};
use dunlin_protocol::Json;
use dunlin_protocol::centrifuge::{self, AckRequest, Error, Reply, RpcRequest, write_cursor};
use dunlin_protocol::json::Object;

use super::api::Api;
use super::clients::Clients;
use super::parts::{AckBy, CommandPlace, Pending, PendingAck};
use super::turn::{Core, Turn};
use crate::api::request::{SendRequest, Target};
use crate::api::{AboutUser, ApiError, CommandOutcome, Request};
use crate::metrics::Metric;

/// The token of what nobody waits for.
const NO_TOKEN: u64 = 0;

impl Clients {
    /// Executes a command of a client about its own cursor.
    ///
    /// # Errors
    /// It is malformed, or the client is not subscribed to the channel.
    pub(super) fn acknowledge(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (session, id): (SessionId, u32),
        request: &RpcRequest<'_>,
    ) -> Result<(), Error<'static>> {
        let AckRequest { mut channel, acked } = AckRequest::parse(request)?;
        let view = turn.core.hub.session(session);
        let user = view.map(|view| view.user.to_owned()).unwrap_or_default();
        turn.core.qualify(&user, &mut channel)?;
        let (options, owner) = self.sessions.own_cursor(turn.core, session, &channel)?;
        let by_user = options.ack.as_ref().is_some_and(|ack| ack.by_user);
        let by = AckBy::Command { session, id };
        let pending = PendingAck { by, user: user.into(), channel: (&*channel).into(), by_user };
        if let Some(token) = self.token(turn, Pending::Ack(Box::new(pending))) {
            let (now, channel) = (turn.now(), ChannelRef::new(&channel, &options));
            turn.core.hub.handle_cursor(now, token, channel, owner, acked);
        }
        Ok(())
    }

    /// A cursor has moved or was read, or it could not be.
    pub(super) fn acknowledged(
        &mut self,
        turn: &mut Turn<'_, '_>,
        pending: &PendingAck,
        result: Result<CursorState, HubError>,
    ) {
        if let Ok(state) = &result
            && state.advanced
            && pending.by_user
        {
            turn.core.notify_devices(&pending.user, &pending.channel, state);
        }
        match (pending.by, result) {
            (AckBy::Command { session, id }, Ok(state)) => {
                let mut data = Vec::new();
                write_cursor(&mut data, None, &state);
                turn.core.reply(session, id, &Reply::Rpc { data: &data });
            }
            (AckBy::Command { session, id }, Err(error)) => {
                turn.core.reply_refusal(session, (id, "rpc"), &error.into());
            }
            (AckBy::Api(place), result) => {
                let answer = result.map(CommandOutcome::Cursor).map_err(ApiError::from);
                turn.core.api_answers.push_back((place, answer));
            }
            (AckBy::Poll { session }, Err(error)) => self.poll_failed(turn, session, error),
            (AckBy::Poll { .. }, Ok(_)) | (AckBy::Nobody, _) => {}
        }
    }
}

impl Api {
    /// Acknowledges for a user, or reads the user's cursor if `acked` is `None`.
    pub(super) fn api_cursor(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        (channel, user, device): (&str, &str, &str),
        acked: Option<(u64, &str)>,
    ) -> Result<(), ApiError> {
        let options = turn.core.channel_options(channel)?;
        let by_user = options.ack.as_ref().is_some_and(|ack| ack.by_user);
        let by = AckBy::Api(place);
        let pending = PendingAck { by, user: user.into(), channel: channel.into(), by_user };
        let timeout_ms = turn.core.settings.config.limits.bus_request_timeout_ms;
        let pending = Pending::Ack(Box::new(pending));
        let token = turn.core.pending.insert(turn.cx.now_ms(), timeout_ms, pending);
        let token = token.map_err(|_| ApiError::from(HubError::Overloaded))?;
        let owner = CursorOwner { user: user.into(), device: device.into() };
        let acked =
            acked.map(|(offset, epoch)| StreamPosition { offset, epoch: Epoch::parse(epoch) });
        let (now, channel) = (turn.now(), ChannelRef::new(channel, &options));
        turn.core.hub.handle_cursor(now, token, channel, owner, acked);
        Ok(())
    }
}

impl Core<'_> {
    /// Tells every session of a user, on all nodes, that one has acknowledged for all.
    fn notify_devices(&mut self, user: &str, channel: &str, state: &CursorState) {
        let mut data = Vec::new();
        let mut message = Object::begin(&mut data);
        write_cursor(message.key("ack"), Some(tenant::bare(channel)), state);
        message.end();
        let now = self.clock.now();
        if !self.is_in_cluster() {
            let (data, format) = (data.into(), PayloadFormat::Json);
            let message = SendToUser { client: None, device: "".into(), data, format };
            return self.hub.handle_send_to_user(now, NO_TOKEN, user, message);
        }
        let Ok(data) = Json::parse(&data) else { return };
        let target = Target::user(user.to_owned());
        let send = SendRequest {
            target,
            device: "".into(),
            data: data.into(),
            from: "".into(),
            idempotency_key: "".into(),
        };
        let send = Request::Send(send);
        let Some((body, _)) = send.for_cluster(now.unix_ms / 1000) else { return };
        let about = Some(AboutUser { user: user.to_owned().into(), bars: false });
        let (method, request, to) = (send.method(), body.into(), TargetNodes::All);
        let request = Box::new(ClusterRequest::Command { method, request, to, about });
        let message = ClusterMessage::Request { token: NO_TOKEN, request };
        if self.endpoint.send(self.state.bus.control(), message).is_err() {
            self.count(Metric::BusRefused);
        }
    }
}

/// Returns the data of a subscription for the client, with where its cursor stands.
pub(super) fn with_cursor(
    data: Option<Box<[u8]>>,
    subscribed: &dunlin_hub::Subscribed,
) -> Option<Box<[u8]>> {
    match &subscribed.cursor {
        Some(state) => Some(centrifuge::with_cursor(data.as_deref(), state)),
        None => data,
    }
}
