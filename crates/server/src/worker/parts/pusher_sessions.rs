//! Sessions that speak the Pusher protocol.

use std::sync::Arc;

use dunlin_hub::SessionId;
use dunlin_protocol::pusher::{Member, SocketId};

use crate::pusher::App;

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
    /// Its app, as it is or was when what the session has was signed by its secret.
    pub(crate) app: Arc<App>,
    /// Of its socket id.
    serial: u64,
    /// Who has signed in.
    pub(crate) user: Option<Arc<Member>>,
}

// One for each such session.
const _: () = assert!(size_of::<PusherSession>() == 24);

/// Below 2^53, as numbers of JavaScript are.
const SERIALS: u64 = 1 << 48;

impl PusherSessions {
    pub(crate) fn new(seed: u64) -> PusherSessions {
        PusherSessions { of: FastMap::default(), next_serial: seed % SERIALS }
    }

    /// A session of an app begins.
    pub(crate) fn begin(&mut self, session: SessionId, app: &Arc<App>) -> SocketId {
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

    /// Gives each session its app as it is now. Returns those for which `now` has none: their app, or its secret, is gone.
    pub(crate) fn renew_apps(
        &mut self,
        now: impl Fn(SessionId, &App) -> Option<Arc<App>>,
    ) -> Vec<SessionId> {
        let mut ended = Vec::new();
        for (session, of) in &mut self.of {
            match now(*session, &of.app) {
                Some(app) => of.app = app,
                None => ended.push(*session),
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use dunlin_config::{Map, PusherApp, Secret};

    use super::*;
    use crate::pusher::Apps;

    #[test]
    fn a_session_whose_id_comes_again_has_another_socket_id() {
        let mut sessions = PusherSessions::new(SERIALS - 1);
        let session = SessionId::pack(0, 0, 0, 7, 1);
        let app = |name: &str| {
            let config = PusherApp { secret: Some(Secret::new("s")), ..PusherApp::default() };
            let apps: Map<PusherApp> = [(name, config)].into_iter().collect();
            Arc::clone(Apps::of(&apps).by_name(name).unwrap())
        };
        let first = sessions.begin(session, &app("shop"));
        assert_eq!(sessions.socket_id(session), Some(first));
        sessions.end(session);
        assert_eq!(sessions.socket_id(session), None);
        let second = sessions.begin(session, &app("other"));
        assert_eq!(second.session, first.session);
        assert_ne!(second, first);
        let named = |name: &'static str| move |_, of: &App| (*of.name == *name).then(|| app(name));
        assert_eq!(sessions.renew_apps(named("other")), []);
        assert_eq!(sessions.renew_apps(named("shop")), [session]);
    }
}
