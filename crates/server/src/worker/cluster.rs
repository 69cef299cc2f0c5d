//! The worker's side of the cluster: requests to all nodes, and commands executed for another node.

use std::sync::Arc;

use dunlin_cluster::message::{
    ClusterCommand, ClusterMessage, ClusterReply, ClusterRequest, MembersReport, TargetNodes,
};
use dunlin_hub::{
    ChannelOptions, ChannelSummary, ClientInfo, Error, Event, MemberListError, MemberListRequest,
};
use dunlin_net::Context;

use super::Worker;
use super::api::Api;
use super::clients::Clients;
use super::link::Link;
use super::parts::{CallForm, CommandPlace, NewCall, Pending};
use super::turn::{Core, Turn};
use crate::api::{AboutUser, ApiError, CommandOutcome, Request};
use crate::metrics::Metric;

impl Core<'_> {
    /// Whether this node is one of several.
    pub(super) fn is_in_cluster(&self) -> bool {
        self.settings.config.cluster.engine.is_some()
    }

    /// Uses the number of this node's lease for new session ids, if it has one.
    pub(super) fn adopt_node_number(&mut self) {
        let number = self.state.node_number(&self.settings.config);
        if self.hub.set_node(number).is_err() {
            tracing::warn!(
                worker = self.index,
                number,
                "sessions of eight former numbers are open; those that open now have one of these"
            );
        }
    }

    /// Starts or stops reporting members, depending on whether there is a cluster.
    pub(super) fn apply_cluster(&mut self) {
        self.hub.record_members(self.is_in_cluster());
        // Current members are listed; an earlier incarnation may have had others.
        self.members_lost = self.is_in_cluster();
        self.look_at_members();
    }

    /// Reports joins and leaves to the control thread.
    pub(super) fn report_members(&mut self) {
        let Some(first) = self.hub.poll_member_event() else { return };
        let mut changed = vec![first];
        changed.extend(std::iter::from_fn(|| self.hub.poll_member_event()));
        if !self.send_members(MembersReport::Changed(changed)) {
            self.members_lost = true;
        }
    }

    /// Reports all members of channels whose home is this worker.
    pub(super) fn list_members(&mut self) {
        self.report_members();
        let all = self.hub.members().collect();
        if !self.send_members(MembersReport::All(all)) {
            self.members_lost = true;
        }
    }

    /// Called once a second: reports all members again if a report was lost.
    pub(super) fn look_at_members(&mut self) {
        self.hub.look_at_member_lists(self.clock.now());
        if self.members_lost && self.is_in_cluster() {
            let is_known = self.send_members(MembersReport::Lost);
            self.members_lost = !is_known;
        }
    }

    fn send_members(&mut self, report: MembersReport) -> bool {
        let report = ClusterMessage::Members(Box::new(report));
        self.endpoint.send(self.state.bus.control(), report).is_ok()
    }

    /// Returns the response of an executed command. If the ring is full, the requesting node reports this one as unreachable.
    pub(super) fn respond_to_cluster(&mut self, request_id: u64, response: Vec<u8>) {
        let response = response.into();
        let reply = ClusterMessage::NodeReply { request_id, response };
        let _ = self.endpoint.send(self.state.bus.control(), reply);
    }
}

impl Clients {
    /// Requests the members on other nodes of channels whose subscribers list them.
    pub(super) fn request_member_lists(&mut self, turn: &mut Turn<'_, '_>) {
        while let Some(request) = turn.core.hub.poll_member_list() {
            let (channel, bytes_max) = (Arc::clone(&request.channel), request.bytes_max);
            let Some(token) = self.token(turn, Pending::MemberList(Box::new(request))) else {
                continue;
            };
            let request = ClusterRequest::OtherMembers { channel, bytes_max };
            let message = ClusterMessage::Request { token, request: Box::new(request) };
            if turn.core.endpoint.send(turn.core.state.bus.control(), message).is_err() {
                turn.core.count(Metric::BusRefused);
                if let Some(pending) = turn.core.pending.take(token) {
                    self.fail(turn, &pending, Error::Overloaded);
                }
            }
        }
    }

    /// Passes the members on other nodes to the hub.
    pub(super) fn member_list_read(
        &mut self,
        turn: &mut Turn<'_, '_>,
        request: &MemberListRequest,
        list: Result<Vec<Arc<ClientInfo>>, MemberListError>,
    ) {
        let now = turn.now();
        turn.core.hub.handle_member_list(now, request, list);
        self.drain_events(turn);
    }

    /// Requests the members of a channel on all nodes; the answer repeats the token. Returns `false` without a cluster.
    pub(super) fn ask_presence(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (channel, options): (&str, &ChannelOptions),
        token: u64,
        bytes_max: Option<usize>,
    ) -> bool {
        // A channel without presence is answered locally.
        if !turn.core.is_in_cluster() || !options.presence {
            return false;
        }
        turn.core.report_members();
        let channel = channel.into();
        let request = match bytes_max {
            Some(bytes_max) => ClusterRequest::Presence { channel, bytes_max },
            None => ClusterRequest::PresenceStats { channel },
        };
        let message = ClusterMessage::Request { token, request: Box::new(request) };
        if turn.core.endpoint.send(turn.core.state.bus.control(), message).is_err() {
            turn.core.count(Metric::BusRefused);
            if let Some(pending) = turn.core.pending.take(token) {
                self.fail(turn, &pending, Error::Overloaded);
            }
        }
        true
    }

    /// Answers a command of a client.
    pub(super) fn client_answered(
        &mut self,
        turn: &mut Turn<'_, '_>,
        pending: Pending,
        token: u64,
        reply: ClusterReply,
    ) {
        if let (Pending::MemberList(request), ClusterReply::OtherMembers(list)) = (&pending, &reply)
        {
            return self.member_list_read(turn, request, list.clone());
        }
        let event = match reply {
            ClusterReply::Presence(Ok(present)) => Event::Presence { token, result: Ok(present) },
            ClusterReply::PresenceStats(Ok(stats)) => {
                Event::PresenceStats { token, result: Ok(stats) }
            }
            _ => return self.fail(turn, &pending, Error::Timeout),
        };
        if let Some((pending, event)) = self.large_answers.admit(pending, event) {
            self.answer_pending(turn, pending, event);
        }
    }
}

impl Api {
    /// Answers a command of the server API.
    pub(super) fn cluster_answered(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        place: CommandPlace,
        reply: ClusterReply,
    ) {
        let result = match reply {
            ClusterReply::Command(result) => {
                result.map(|json| match self.api_calls.is_of_pusher(place.call) {
                    true => channels(&json).unwrap_or(CommandOutcome::Json(json)),
                    false => CommandOutcome::Json(json),
                })
            }
            ClusterReply::Presence(result) => result.map(CommandOutcome::Presence),
            // No command asks for them.
            ClusterReply::OtherMembers(_) => return,
            ClusterReply::PresenceStats(result) => result.map(CommandOutcome::PresenceStats),
        };
        self.api_answered(turn, clients, place, result);
    }

    /// Sends a command to all nodes if it concerns more than this one. Returns `false` if it concerns only this node. `Err`: the
    /// command is answered already.
    pub(super) fn ask_cluster(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        request: &Request<'_>,
    ) -> Result<bool, ApiError> {
        if !turn.core.is_in_cluster() || self.api_calls.is_of_cluster(place.call) {
            return Ok(false);
        }
        let now = turn.now();
        let search = match request {
            Request::Connections(of) if of.client.is_empty() => {
                Some(self.search_of_cluster(turn.core, of)?)
            }
            Request::Channels(of) if of.limit > 0 => Some(self.channels_of_cluster(turn.core, of)?),
            _ => None,
        };
        let request = search.as_ref().map_or(request, |(request, _)| request);
        let Some((body, node)) = request.for_cluster(now.unix_ms / 1000) else { return Ok(false) };
        let about = request.user().map(|AboutUser { user, bars }| {
            let user = user.into_owned().into();
            AboutUser { user, bars }
        });
        let (method, request) = (request.method(), body.into());
        let to = match (search, node) {
            (Some((_, nodes)), _) => TargetNodes::Nodes(nodes),
            (None, node) => node.map_or(TargetNodes::All, TargetNodes::Holder),
        };
        let token = self.api_token(turn, place)?;
        self.send_to_cluster(
            turn.core,
            token,
            ClusterRequest::Command { method, request, to, about },
        )?;
        Ok(true)
    }

    fn send_to_cluster(
        &mut self,
        core: &mut Core<'_>,
        token: u64,
        request: ClusterRequest,
    ) -> Result<(), ApiError> {
        let message = ClusterMessage::Request { token, request: Box::new(request) };
        if core.endpoint.send(core.state.bus.control(), message).is_err() {
            core.count(Metric::BusRefused);
            core.pending.take(token);
            return Err(Error::Overloaded.into());
        }
        Ok(())
    }

    /// Executes a command for a node of the cluster.
    pub(super) fn serve_cluster(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        command: &ClusterCommand,
    ) {
        let ClusterCommand { request_id, method, request } = command;
        let call =
            NewCall::without_connection(CallForm::Cluster { request_id: *request_id }, *method);
        self.serve_call(turn, clients, call, *method, request);
    }
}

impl Worker<'_> {
    /// Handles the combined response of the nodes.
    pub(super) fn handle_cluster_reply(
        &mut self,
        cx: &mut Context<Link>,
        token: u64,
        reply: ClusterReply,
    ) {
        match self.core.pending.take(token) {
            // The requester was answered with a timeout.
            None => {}
            Some(Pending::Api(place)) => {
                self.api.cluster_answered(&mut self.core.turn(cx), &mut self.clients, place, reply);
            }
            Some(pending) => {
                self.clients.client_answered(&mut self.core.turn(cx), pending, token, reply);
            }
        }
    }
}

/// Parses the channels of a result, for requesters that do not forward it unchanged.
pub(super) fn channels(result: &[u8]) -> Option<CommandOutcome> {
    let result: serde_json::Value = serde_json::from_slice(result).ok()?;
    let channels = result["channels"].as_object()?.iter().map(|(name, of)| ChannelSummary {
        name: name.as_str().into(),
        clients: of["num_clients"].as_u64().unwrap_or(0),
    });
    Some(CommandOutcome::Channels(channels.collect()))
}
