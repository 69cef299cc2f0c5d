//! Handles messages of the bus.

use dunlin_cluster::message::{ClusterToWorker, RemoteMember};
use dunlin_net::Context;
use dunlin_push_service::message::PushToWorker;

use super::Worker;
use super::link::Link;
use super::parts::{CallForm, NewCall};
use crate::message::admin::AdminMessage;
use crate::message::worker::WorkerMessage;

impl Worker<'_> {
    /// Handles a message of another thread.
    pub(super) fn receive(&mut self, cx: &mut Context<Link>, from: usize, message: WorkerMessage) {
        let turn = &mut self.core.turn(cx);
        match message {
            WorkerMessage::Hub(message) => {
                let now = turn.now();
                // Only workers send this, and there are at most 127 of them.
                turn.core.hub.handle_message(now, from as u8, message);
                self.settle(cx);
            }
            WorkerMessage::Emulation { session, frame } => {
                self.clients.emulate(turn, session, &frame);
            }
            WorkerMessage::FindConnections(search) => {
                self.api.go_on_searching(turn, &mut self.clients, search);
            }
            WorkerMessage::FindChannels(search) => {
                self.api.go_on_listing(turn, &mut self.clients, search);
            }
            WorkerMessage::ProgramStore(call) => self.clients.handle_store_call(turn, &call),
            WorkerMessage::ProgramStored(reply) => {
                let (token, answer) = *reply;
                self.clients.handle_store_reply(turn, token, answer);
            }
            WorkerMessage::LatencyProbe(sent) => {
                turn.core.state.loop_stats[turn.core.index]
                    .hop_times
                    .record(sent.elapsed().as_nanos() as u64);
            }
            // The message has woken this worker, which switched when it woke.
            WorkerMessage::AdoptSettings => self.confirm_adoption(),
            // The message has woken this worker, which requests its slot in each turn.
            WorkerMessage::FanoutGranted => {}
            WorkerMessage::ApiCall { request_id, method, params } => {
                let call = NewCall::without_connection(CallForm::Admin { request_id }, method);
                self.api.serve_call(turn, &mut self.clients, call, method, &params);
            }
            WorkerMessage::BroadcastCommand { request_id, command } => {
                self.fanout.broadcast_command(turn.core, request_id, &command);
            }
            WorkerMessage::CountAffected { request_id, scope } => {
                self.affected.begin(request_id, scope, turn.cx.connections());
            }
            WorkerMessage::Explain { request_id, question } => {
                let story = Box::new(self.clients.sessions.explain(turn.core, &question));
                turn.core.send_to_admin(AdminMessage::Explained { request_id, story });
            }
            WorkerMessage::RevokeReply { token, result } => {
                self.api.handle_revoke_reply(turn, &mut self.clients, token, result);
            }
            WorkerMessage::Revoked(revocation) => self.clients.handle_revoked(turn, &revocation),
            WorkerMessage::RevokedUnseen => self.clients.handle_revoked_unseen(turn),
            WorkerMessage::Push(PushToWorker::Reply(reply)) => self.push.push_replied(turn, *reply),
            WorkerMessage::Push(PushToWorker::OnlineQuery(query)) => {
                self.push.query_online(turn.core, &query);
            }
            WorkerMessage::Federation(message) => self.clients.receive_from_peers(turn, *message),
            WorkerMessage::KeysFetched => self.clients.keys_fetched(turn),
            WorkerMessage::Cluster(message) => self.receive_from_cluster(cx, message),
            WorkerMessage::Drain => self.begin_drain(cx),
            WorkerMessage::Stop => self.stop(cx),
            #[cfg(test)]
            WorkerMessage::Stall(stalled, until) => {
                let _ = stalled.send(());
                let _ = until.recv();
            }
            #[cfg(test)]
            WorkerMessage::Panic => panic!("asked to, by a test"),
        }
    }

    fn receive_from_cluster(&mut self, cx: &mut Context<Link>, message: ClusterToWorker) {
        let turn = &mut self.core.turn(cx);
        match message {
            ClusterToWorker::Reply { token, reply } => {
                self.handle_cluster_reply(cx, token, *reply);
            }
            ClusterToWorker::Command(command) => {
                self.api.serve_cluster(turn, &mut self.clients, &command);
            }
            ClusterToWorker::UserCounted(user) => self.clients.user_counted(turn, &user),
            ClusterToWorker::UserOverLimit(user) => self.clients.end_last_of_user(turn, &user),
            ClusterToWorker::NodeNumber => turn.core.adopt_node_number(),
            ClusterToWorker::ListMembers => turn.core.list_members(),
            ClusterToWorker::RemoteMember(member) => {
                let now = turn.now();
                let RemoteMember { channel, info, joined } = *member;
                turn.core.hub.announce_remote(now, &channel, &info, joined);
            }
            ClusterToWorker::OccupancyRefused(changes) => {
                turn.core.emitter.restore_occupancy(changes);
            }
            ClusterToWorker::ListOccupied => turn.core.list_occupied(),
            ClusterToWorker::RefreshMemberLists => turn.core.hub.refresh_member_lists(),
        }
    }
}
