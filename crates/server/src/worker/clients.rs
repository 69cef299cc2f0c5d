//! The machine of clients: connects, commands, polls and the ends of sessions.
//!
//! It owns what the modules of this machine keep between events: [`connect`](super::connect), [`command`](super::command),
//! [`subscription`](super::subscription), [`permission`](super::permission), [`poll`](super::poll), [`pusher`](super::pusher),
//! [`stream`](super::stream), [`backlog`](super::backlog), [`deadlines`](super::deadlines), [`completion`](super::completion) and
//! [`flush`](super::flush). It owns two machines and no other knows
//! them: [`sessions`](super::sessions), and [`deciders`](super::deciders), who are asked where rules do not decide.

use dunlin_hub::MemberListError;
use dunlin_net::ConnId;

use super::deciders::Deciders;
use super::parts::{
    Backlogs, Connects, LargeAnswers, Pending, Polls, ProgramConns, PusherSessions, Sweeps,
};
use super::program_conns::ServerCalls;
use super::sessions::Sessions;
use super::turn::{Core, Turn};

/// The clients of one worker.
pub(super) struct Clients {
    pub(super) sessions: Sessions,
    pub(super) backlogs: Backlogs,
    pub(super) large_answers: LargeAnswers,
    pub(super) connects: Connects,
    pub(super) polls: Polls,
    /// Sessions that speak the Pusher protocol.
    pub(super) pusher: PusherSessions,
    /// Clients whose protocol a program speaks.
    pub(super) program_conns: ProgramConns,
    pub(super) server_calls: ServerCalls,
    pub(super) sweeps: Sweeps,
    pub(super) deciders: Deciders,
}

impl Clients {
    pub(super) fn new(incarnation: u32, seed: u64) -> Clients {
        Clients {
            sessions: Sessions::default(),
            backlogs: Backlogs::default(),
            large_answers: LargeAnswers::default(),
            connects: Connects::default(),
            polls: Polls::default(),
            pusher: PusherSessions::new(seed),
            program_conns: ProgramConns::default(),
            server_calls: ServerCalls::default(),
            sweeps: Sweeps::default(),
            deciders: Deciders::new(incarnation),
        }
    }

    /// Applies the settings of proxies.
    pub(super) fn apply_proxies(&mut self, core: &Core<'_>) {
        self.sessions.forwarded.wanted = self.deciders.apply_proxies(core);
    }

    /// Returns a token for a request of `pending` to the hub. `None`: too many requests are pending, and the requester is
    /// answered.
    pub(super) fn token(&mut self, turn: &mut Turn<'_, '_>, pending: Pending) -> Option<u64> {
        let timeout_ms = turn.core.settings.config.limits.bus_request_timeout_ms;
        match turn.core.pending.insert(turn.cx.now_ms(), timeout_ms, pending) {
            Ok(token) => Some(token),
            Err(pending) => {
                self.fail(turn, &pending, dunlin_hub::Error::Overloaded);
                None
            }
        }
    }

    /// Answers a request that did not reach the hub, or that the hub did not answer.
    pub(super) fn fail(
        &mut self,
        turn: &mut Turn<'_, '_>,
        pending: &Pending,
        error: dunlin_hub::Error,
    ) {
        match *pending {
            Pending::Command { session, id } | Pending::ChargedCommand { session, id, .. } => {
                turn.core.reply_refusal(session, (id, ""), &error.into());
            }
            Pending::ProgramStore { conn, id } => {
                let error = dunlin_protocol::centrifuge::Error::from(error);
                let answer = Err((error.code, error.message.into()));
                self.program_answered(ConnId::from_u64(conn), id, answer);
            }
            Pending::Ack(ref ack) => self.acknowledged(turn, ack, Err(error)),
            Pending::DeadLetter(ref letter) => self.dead_letter_failed(turn, letter, error),
            Pending::Pusher { session } => self.pusher_failed(turn.core, session, error),
            Pending::PusherSignIn { session, .. } => self.sign_in_failed(turn, session),
            Pending::MemberList(ref request) => {
                self.member_list_read(turn, request, Err(MemberListError::Unavailable));
            }
            // The callers of `token` handle these, because they hold the needed state.
            Pending::Connect { .. } | Pending::Poll { .. } => {}
            // The federation thread gives it again.
            Pending::Remote(_) => {}
            Pending::Api(place) => turn.core.api_answers.push_back((place, Err(error.into()))),
        }
    }
}
