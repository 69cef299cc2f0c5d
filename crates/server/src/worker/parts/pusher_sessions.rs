//! Sessions that speak the Pusher protocol.

use std::sync::Arc;

use dunlin_hub::SessionId;
use dunlin_protocol::pusher::{Member, SocketId};

use super::FastMap;

/// The sessions of one worker that speak the Pusher protocol.
#[derive(Debug)]
pub(crate) struct PusherSessions {
    of: FastMap<SessionId, PusherSession>,
    /// Of the next session. They begin at a random number, so that those of another run of the process are others.
    next_serial: u64,
}

/// What is kept of such a session.
#[derive(Debug)]
pub(crate) struct PusherSession {
    /// The name of its app.
    pub(crate) app: Arc<str>,
    /// Of its socket id.
    serial: u64,
    /// Who has signed in.
    pub(crate) user: Option<Arc<Member>>,
}

// One for each such session.
const _: () = assert!(size_of::<PusherSession>() == 32);

/// Below 2^53, as numbers of JavaScript are.
const SERIALS: u64 = 1 << 48;

impl PusherSessions {
    pub(crate) fn new(seed: u64) -> PusherSessions {
        PusherSessions { of: FastMap::default(), next_serial: seed % SERIALS }
    }

    /// A session of an app begins.
    pub(crate) fn begin(&mut self, session: SessionId, app: &Arc<str>) -> SocketId {
        let serial = self.next_serial;
        self.next_serial = (serial + 1) % SERIALS;
        let app = Arc::clone(app);
        self.of.insert(session, PusherSession { app, serial, user: None });
        SocketId { session, serial }
    }

    /// It has ended.
    pub(crate) fn end(&mut self, session: SessionId) {
        if !self.of.is_empty() {
            self.of.remove(&session);
        }
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<&PusherSession> {
        if self.of.is_empty() { None } else { self.of.get(&session) }
    }

    pub(crate) fn get_mut(&mut self, session: SessionId) -> Option<&mut PusherSession> {
        self.of.get_mut(&session)
    }

    /// The id of its connection.
    pub(crate) fn socket_id(&self, session: SessionId) -> Option<SocketId> {
        self.get(session).map(|of| SocketId { session, serial: of.serial })
    }

    /// Sessions that `keeps`, by their id and the name of their app, does not keep.
    pub(crate) fn without_app(&self, keeps: impl Fn(SessionId, &str) -> bool) -> Vec<SessionId> {
        let ended = self.of.iter().filter(|(session, of)| !keeps(**session, &of.app));
        ended.map(|(session, _)| *session).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_whose_id_comes_again_has_another_socket_id() {
        let mut sessions = PusherSessions::new(SERIALS - 1);
        let session = SessionId::pack(0, 0, 0, 7, 1);
        let first = sessions.begin(session, &"shop".into());
        assert_eq!(sessions.socket_id(session), Some(first));
        sessions.end(session);
        assert_eq!(sessions.socket_id(session), None);
        let second = sessions.begin(session, &"other".into());
        assert_eq!(second.session, first.session);
        assert_ne!(second, first);
        assert_eq!(sessions.without_app(|_, app| app == "other"), []);
        assert_eq!(sessions.without_app(|_, app| app == "shop"), [session]);
    }
}
