//! The cluster, as a worker sees it: what it asks of all nodes, and what it carries out for one.

use dunlin_hub::{ChannelOptions, ChannelSummary, Error, Event};
use dunlin_net::Context;

use super::Worker;
use super::link::Link;
use super::parts::{CallForm, CommandPlace, NewCall, Pending};
use crate::api::{ApiError, CommandOutcome, Request};
use crate::message::bus::BusMessage;
use crate::message::cluster::{
    AboutUser, ClusterCommand, ClusterReply, ClusterRequest, MembersReport, TargetNodes,
};
use crate::metrics::Metric;

impl Worker<'_> {
    /// Whether this node is one of several.
    pub(super) fn is_in_cluster(&self) -> bool {
        self.settings.config.cluster.engine.is_some()
    }

    /// Names sessions by the number of this node's lease, if it has one, from now on.
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

    /// Follows whether there is a cluster, whose nodes want to know the members of channels.
    pub(super) fn apply_cluster(&mut self) {
        self.hub.record_members(self.is_in_cluster());
        // Those there are by now are listed; an earlier incarnation may have had others.
        self.sweeps.set_members_lost(self.is_in_cluster());
    }

    /// Tells the control thread who has come and gone since.
    pub(super) fn report_members(&mut self) {
        let Some(first) = self.hub.poll_member_event() else { return };
        let mut changed = vec![first];
        changed.extend(std::iter::from_fn(|| self.hub.poll_member_event()));
        if !self.send_members(MembersReport::Changed(changed)) {
            self.sweeps.set_members_lost(true);
        }
    }

    /// Lists all members of channels at home here.
    pub(super) fn list_members(&mut self) {
        self.report_members();
        let all = self.hub.members().collect();
        if !self.send_members(MembersReport::All(all)) {
            self.sweeps.set_members_lost(true);
        }
    }

    /// Once a second: has the members listed again, if some were lost on the way.
    pub(super) fn look_at_members(&mut self) {
        if self.sweeps.has_lost_members() && self.is_in_cluster() {
            let is_known = self.send_members(MembersReport::Lost);
            self.sweeps.set_members_lost(!is_known);
        }
    }

    fn send_members(&mut self, report: MembersReport) -> bool {
        let report = BusMessage::Members(Box::new(report));
        self.endpoint.send(self.state.control_endpoint(), report).is_ok()
    }

    /// Requests the members of a channel on all nodes; the answer repeats the token. Returns `false` without a cluster.
    pub(super) fn ask_presence(
        &mut self,
        cx: &mut Context<Link>,
        (channel, options): (&str, &ChannelOptions),
        token: u64,
        bytes_max: Option<usize>,
    ) -> bool {
        // A channel without presence is answered as it is on any node.
        if !self.is_in_cluster() || !options.presence {
            return false;
        }
        self.report_members();
        let channel = channel.into();
        let request = match bytes_max {
            Some(bytes_max) => ClusterRequest::Presence { channel, bytes_max },
            None => ClusterRequest::PresenceStats { channel },
        };
        let message = BusMessage::ClusterRequest { token, request: Box::new(request) };
        if self.endpoint.send(self.state.control_endpoint(), message).is_err() {
            self.count(Metric::BusRefused);
            if let Some(pending) = self.pending.take(token) {
                self.fail(cx, &pending, Error::Overloaded);
            }
        }
        true
    }

    /// Asks all nodes to carry a command out, if it concerns more than this one. False: it is this node's alone.
    /// `Err`: the command is answered already.
    pub(super) fn ask_cluster(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        request: &Request<'_>,
    ) -> Result<bool, ApiError> {
        if !self.is_in_cluster() || self.api_calls.is_of_cluster(place.call) {
            return Ok(false);
        }
        let now = self.now(cx);
        let search = match request {
            Request::Connections(of) if of.client.is_empty() => Some(self.search_of_cluster(of)?),
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
        let token = self.api_token(cx, place)?;
        self.send_to_cluster(token, ClusterRequest::Command { method, request, to, about })?;
        Ok(true)
    }

    fn send_to_cluster(&mut self, token: u64, request: ClusterRequest) -> Result<(), ApiError> {
        let message = BusMessage::ClusterRequest { token, request: Box::new(request) };
        if self.endpoint.send(self.state.control_endpoint(), message).is_err() {
            self.count(Metric::BusRefused);
            self.pending.take(token);
            return Err(Error::Overloaded.into());
        }
        Ok(())
    }

    /// The nodes have answered.
    pub(super) fn handle_cluster_reply(
        &mut self,
        cx: &mut Context<Link>,
        token: u64,
        reply: ClusterReply,
    ) {
        // Whoever asked may have been answered with a timeout.
        let Some(pending) = self.pending.take(token) else { return };
        let place = match pending {
            Pending::Api(place) => place,
            pending => return self.client_answered(cx, pending, token, reply),
        };
        let result = match reply {
            ClusterReply::Command(result) => {
                result.map(|json| match self.api_calls.is_of_pusher(place.call) {
                    true => channels(&json).unwrap_or(CommandOutcome::Json(json)),
                    false => CommandOutcome::Json(json),
                })
            }
            ClusterReply::Presence(result) => result.map(CommandOutcome::Presence),
            ClusterReply::PresenceStats(result) => result.map(CommandOutcome::PresenceStats),
        };
        self.api_answered(cx, place, result);
    }

    /// The answer to a command of a client.
    fn client_answered(
        &mut self,
        cx: &mut Context<Link>,
        pending: Pending,
        token: u64,
        reply: ClusterReply,
    ) {
        let event = match reply {
            ClusterReply::Presence(Ok(present)) => Event::Presence { token, result: Ok(present) },
            ClusterReply::PresenceStats(Ok(stats)) => {
                Event::PresenceStats { token, result: Ok(stats) }
            }
            _ => return self.fail(cx, &pending, Error::Timeout),
        };
        if let Some((pending, event)) = self.large_answers.admit(pending, event) {
            self.answer_pending(cx, pending, event);
        }
    }

    /// Carries a command out for a node of the cluster.
    pub(super) fn serve_cluster(&mut self, cx: &mut Context<Link>, command: &ClusterCommand) {
        let ClusterCommand { request_id, method, request } = command;
        let call =
            NewCall::without_connection(CallForm::Cluster { request_id: *request_id }, *method);
        self.serve_call(cx, call, *method, request);
    }

    /// A command for a node of the cluster is carried out. If the ring is full, that node names this one as silent.
    pub(super) fn respond_to_cluster(&mut self, request_id: u64, response: Vec<u8>) {
        let response = response.into();
        let reply = BusMessage::NodeReply { request_id, response };
        let _ = self.endpoint.send(self.state.control_endpoint(), reply);
    }
}

/// The channels in a result, for whoever does not pass it on as it is.
pub(super) fn channels(result: &[u8]) -> Option<CommandOutcome> {
    let result: serde_json::Value = serde_json::from_slice(result).ok()?;
    let channels = result["channels"].as_object()?.iter().map(|(name, of)| ChannelSummary {
        name: name.as_str().into(),
        clients: of["num_clients"].as_u64().unwrap_or(0),
    });
    Some(CommandOutcome::Channels(channels.collect()))
}
