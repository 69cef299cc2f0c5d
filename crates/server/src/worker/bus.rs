//! Handles messages of the bus.

use dunlin_net::Context;

use super::Worker;
use super::link::Link;
use crate::message::cluster::{ClusterToWorker, RemoteMember};
use crate::message::push::PushToWorker;
use crate::message::worker::WorkerMessage;

impl Worker<'_> {
    /// Handles a message of another thread.
    pub(super) fn receive(&mut self, cx: &mut Context<Link>, from: usize, message: WorkerMessage) {
        match message {
            WorkerMessage::Hub(message) => {
                let now = self.now(cx);
                // Only workers send this, and there are at most 127 of them.
                self.hub.handle_message(now, from as u8, message);
                self.drain_events(cx);
            }
            WorkerMessage::Emulation { session, frame } => self.emulate(cx, session, &frame),
            WorkerMessage::FindConnections(search) => self.go_on_searching(cx, search),
            WorkerMessage::LatencyProbe(sent) => {
                self.state.loop_stats[self.index]
                    .hop_times
                    .record(sent.elapsed().as_nanos() as u64);
            }
            // The message has woken this worker, which switched when it woke.
            WorkerMessage::AdoptSettings => self.confirm_adoption(),
            // The message has woken this worker, which requests its slot in each turn.
            WorkerMessage::FanoutGranted => {}
            WorkerMessage::BroadcastCommand { request_id, command } => {
                self.broadcast_command(request_id, &command);
            }
            WorkerMessage::CountAffected { request_id, scope } => {
                self.affected.begin(request_id, scope, cx.connections());
            }
            WorkerMessage::RevokeReply { token, result } => {
                self.handle_revoke_reply(cx, token, result);
            }
            WorkerMessage::Revoked(revocation) => self.handle_revoked(cx, &revocation),
            WorkerMessage::RevokedUnseen => self.handle_revoked_unseen(cx),
            WorkerMessage::Push(PushToWorker::Reply(reply)) => self.push_replied(cx, *reply),
            WorkerMessage::Push(PushToWorker::OnlineQuery(query)) => self.query_online(&query),
            WorkerMessage::KeysFetched => self.keys_fetched(cx),
            WorkerMessage::Cluster(message) => self.receive_from_cluster(cx, message),
            WorkerMessage::Drain => self.begin_drain(cx),
            WorkerMessage::Stop => cx.stop(),
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
        match message {
            ClusterToWorker::Reply { token, reply } => {
                self.handle_cluster_reply(cx, token, *reply);
            }
            ClusterToWorker::Command(command) => self.serve_cluster(cx, &command),
            ClusterToWorker::UserCounted(user) => self.user_counted(cx, &user),
            ClusterToWorker::UserOverLimit(user) => self.end_last_of_user(cx, &user),
            ClusterToWorker::NodeNumber => self.adopt_node_number(),
            ClusterToWorker::ListMembers => self.list_members(),
            ClusterToWorker::RemoteMember(member) => {
                let now = self.now(cx);
                let RemoteMember { channel, info, joined } = *member;
                self.hub.announce_remote(now, &channel, &info, joined);
            }
            ClusterToWorker::OccupancyRefused(changes) => self.emitter.restore_occupancy(changes),
            ClusterToWorker::ListOccupied => self.list_occupied(),
            ClusterToWorker::RefreshMemberLists => self.hub.refresh_member_lists(),
        }
    }
}
