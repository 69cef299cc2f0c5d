//! Handles messages of the bus.

use dunlin_net::Context;

use super::Worker;
use super::link::Link;
use crate::message::bus::BusMessage;
use crate::message::cluster::RemoteMember;

impl Worker<'_> {
    /// Handles a message of another thread.
    pub(super) fn receive(&mut self, cx: &mut Context<Link>, from: usize, message: BusMessage) {
        match message {
            BusMessage::Hub(message) => {
                let now = self.now(cx);
                // Only workers send this, and there are at most 127 of them.
                self.hub.handle_message(now, from as u8, message);
                self.drain_events(cx);
            }
            BusMessage::Emulation { session, frame } => self.emulate(cx, session, &frame),
            BusMessage::FindConnections(search) => self.go_on_searching(cx, search),
            BusMessage::LatencyProbe(sent) => {
                self.state.loop_stats[self.index]
                    .hop_times
                    .record(sent.elapsed().as_nanos() as u64);
            }
            // The message has woken this worker, which switched when it woke.
            BusMessage::AdoptSettings => self.confirm_adoption(),
            // The message has woken this worker, which requests its slot in each turn.
            BusMessage::FanoutGranted => {}
            BusMessage::BroadcastCommand { request_id, command } => {
                self.broadcast_command(request_id, &command);
            }
            BusMessage::CountAffected { request_id, scope } => {
                self.affected.begin(request_id, scope, cx.connections());
            }
            BusMessage::PushReply(reply) => self.push_replied(cx, *reply),
            BusMessage::OnlineQuery { request_id, users } => {
                self.query_online(request_id, &users);
            }
            // Addressed to other threads.
            BusMessage::SettingsAdopted
            | BusMessage::BroadcastReply { .. }
            | BusMessage::AffectedReply { .. }
            | BusMessage::PushRequest(_)
            | BusMessage::PushReplyRead { .. }
            | BusMessage::PushCallerGone { .. }
            | BusMessage::OnlineReply { .. }
            | BusMessage::Revoke { .. }
            | BusMessage::Unblock { .. }
            | BusMessage::WantKeys
            | BusMessage::UsersChanged
            | BusMessage::ClusterRequest { .. }
            | BusMessage::NodeReply { .. }
            | BusMessage::StatusQuery { .. }
            | BusMessage::ClusterStatus(_)
            | BusMessage::SharedChangeRequest(_)
            | BusMessage::SharedChangeEvent(_)
            | BusMessage::Members(_)
            | BusMessage::HookEvent(_) => {}
            #[cfg(test)]
            BusMessage::Stall(stalled, until) => {
                let _ = stalled.send(());
                let _ = until.recv();
            }
            BusMessage::RevokeReply { token, result } => {
                self.handle_revoke_reply(cx, token, result);
            }
            BusMessage::ClusterReply { token, reply } => {
                self.handle_cluster_reply(cx, token, *reply);
            }
            BusMessage::UserCounted(user) => self.user_counted(cx, &user),
            BusMessage::UserOverLimit(user) => self.end_last_of_user(cx, &user),
            BusMessage::ClusterCommand(command) => self.serve_cluster(cx, &command),
            BusMessage::NodeNumber => self.adopt_node_number(),
            BusMessage::ListMembers => self.list_members(),
            BusMessage::RemoteMember(member) => {
                let now = self.now(cx);
                let RemoteMember { channel, info, joined } = *member;
                self.hub.announce_remote(now, &channel, &info, joined);
            }
            // The agent had no room for it.
            BusMessage::Occupancy(changes) => self.emitter.restore_occupancy(changes),
            BusMessage::ListOccupied => self.list_occupied(),
            BusMessage::RefreshMemberLists => self.hub.refresh_member_lists(),
            BusMessage::KeysFetched => self.keys_fetched(cx),
            BusMessage::Revoked(revocation) => self.handle_revoked(cx, &revocation),
            BusMessage::RevokedUnseen => self.handle_revoked_unseen(cx),
            BusMessage::Drain => self.begin_drain(cx),
            BusMessage::Stop => self.stop(cx),
            #[cfg(test)]
            BusMessage::Panic => panic!("asked to, by a test"),
        }
    }
}
