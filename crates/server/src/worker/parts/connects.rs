//! Connects in progress. A connect is answered once each of its server-side subscriptions is made or has failed and, where
//! connections of a user are bounded, the other nodes have counted it.

use std::sync::Arc;
use std::time::Instant;

use dunlin_hub::{Error, SessionId, Subscribed};
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::{SubscribeResult, with_cursor};

use super::FastMap;
use crate::metrics::log_gate::LogGate;

/// The connects in progress on one worker.
#[derive(Default)]
pub(crate) struct Connects {
    begun: FastMap<SessionId, Connect>,
    /// By user: connects not yet counted on all nodes, oldest first, each with the end of its wait in milliseconds.
    uncounted: FastMap<Box<str>, Vec<(SessionId, u64)>>,
    namespace_log: LogGate,
}

/// The parameters of a new connect.
pub(crate) struct NewConnect {
    /// The id of the command; `None` on a unidirectional transport.
    pub(crate) id: Option<u32>,
    pub(crate) encoding: Encoding,
    /// The number of server-side subscriptions.
    pub(crate) subscriptions: usize,
    /// The most bytes of recovered publications in the answer.
    pub(crate) bytes_max: usize,
    /// By channel: the token's data for the application, as JSON.
    pub(crate) data: Vec<(Box<str>, Box<[u8]>)>,
    /// The token's data for the application, as JSON.
    pub(crate) own_data: Option<Box<[u8]>>,
    /// When the command came.
    pub(crate) began: Instant,
}

struct Connect {
    id: Option<u32>,
    encoding: Encoding,
    /// Subscriptions not answered yet.
    outstanding: usize,
    established: Vec<Established>,
    /// The bytes left for recovered publications; a channel with more is not recovered.
    bytes_left: usize,
    /// By channel: the token's data for the application, as JSON, until the subscription is answered.
    data: Vec<(Box<str>, Box<[u8]>)>,
    /// The token's data for the application, as JSON.
    own_data: Option<Box<[u8]>>,
    began: Instant,
}

/// A connect that is ready to be answered.
pub(crate) struct Connected {
    /// The connect command; `None` on a unidirectional transport.
    pub(crate) id: Option<u32>,
    pub(crate) encoding: Encoding,
    /// Data for the application, as JSON.
    pub(crate) data: Option<Box<[u8]>>,
    /// When the command came.
    pub(crate) began: Instant,
    established: Vec<Established>,
}

/// An established server-side subscription.
struct Established {
    channel: Arc<str>,
    subscribed: Subscribed,
    data: Option<Box<[u8]>>,
}

impl Connects {
    /// Called when a token names a channel of an unknown namespace. `Some`: this may be logged, with the number of those not
    /// logged before it.
    pub(crate) fn handle_unknown_namespace(&mut self, now_ms: u64) -> Option<u64> {
        self.namespace_log.pass(now_ms)
    }

    /// Begins a connect, whose subscriptions the caller then passes to the hub.
    pub(crate) fn begin(&mut self, session: SessionId, new: NewConnect) {
        let NewConnect { id, encoding, subscriptions, bytes_max, data, own_data, began } = new;
        let connect = Connect {
            id,
            encoding,
            outstanding: subscriptions,
            established: Vec::with_capacity(subscriptions),
            bytes_left: bytes_max,
            data,
            own_data,
            began,
        };
        self.begun.insert(session, connect);
    }

    /// Delays the answer until the connect is counted on all nodes, or until `until_ms`.
    pub(crate) fn await_count(&mut self, session: SessionId, user: &str, until_ms: u64) {
        let Some(connect) = self.begun.get_mut(&session) else { return };
        connect.outstanding += 1;
        self.uncounted.entry(user.into()).or_default().push((session, until_ms));
    }

    /// Handles the count of one more connection of a user. Returns its session.
    pub(crate) fn handle_counted(&mut self, user: &str) -> Option<SessionId> {
        let waiting = self.uncounted.get_mut(user)?;
        let begun = &mut self.begun;
        // Sessions that have ended meanwhile are skipped.
        let place = waiting.iter().position(|(session, _)| begun.contains_key(session));
        let counted = place.map(|at| waiting.drain(..=at).next_back());
        if counted.is_none() || waiting.is_empty() {
            self.uncounted.remove(user);
        }
        let (session, _) = counted??;
        self.begun.get_mut(&session)?.outstanding -= 1;
        Some(session)
    }

    /// Ends the wait of connects whose time is over. Returns their sessions.
    pub(crate) fn expire_counts(&mut self, now_ms: u64) -> Vec<SessionId> {
        let mut expired = Vec::new();
        self.uncounted.retain(|_, waiting| {
            let due = waiting.iter().take_while(|(_, until_ms)| *until_ms <= now_ms).count();
            expired.extend(waiting.drain(..due).map(|(session, _)| session));
            !waiting.is_empty()
        });
        for session in &expired {
            if let Some(connect) = self.begun.get_mut(session) {
                connect.outstanding -= 1;
            }
        }
        expired
    }

    /// Handles the answer to a subscription. The connect succeeds even if the subscription was refused.
    pub(crate) fn handle_subscribed(
        &mut self,
        session: SessionId,
        channel: Arc<str>,
        result: Result<Subscribed, Error>,
    ) {
        let Some(connect) = self.begun.get_mut(&session) else { return };
        connect.outstanding -= 1;
        if let Ok(mut subscribed) = result {
            let bytes: usize = subscribed.publications.iter().map(|of| of.cost()).sum();
            match connect.bytes_left.checked_sub(bytes) {
                Some(left) => connect.bytes_left = left,
                None => {
                    subscribed.recovered = false;
                    subscribed.publications = Vec::new();
                }
            }
            let at = connect.data.iter().position(|(name, _)| **name == *channel);
            let mut data = at.map(|at| connect.data.swap_remove(at).1);
            if let Some(state) = &subscribed.cursor {
                data = Some(with_cursor(data.as_deref(), state));
            }
            connect.established.push(Established { channel, subscribed, data });
        }
    }

    /// Removes and returns the connect of a session, if nothing is outstanding.
    pub(crate) fn poll(&mut self, session: SessionId) -> Option<Connected> {
        self.begun.get(&session).filter(|connect| connect.outstanding == 0)?;
        let Connect { id, encoding, established, own_data: data, began, .. } =
            self.begun.remove(&session)?;
        Some(Connected { id, encoding, data, began, established })
    }

    /// Drops the connect of a session that has ended.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.begun.remove(&session);
    }
}

impl Connected {
    /// Returns the initial subscriptions of the client.
    pub(crate) fn subscriptions(&self) -> Vec<(Arc<str>, SubscribeResult<'_>)> {
        let each = self.established.iter().map(|Established { channel, subscribed, data }| {
            let result = SubscribeResult { subscribed, ttl_s: 0, data: data.as_deref() };
            (Arc::clone(channel), result)
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use dunlin_hub::PublicationParts;

    use super::*;

    fn session(slot: u32) -> SessionId {
        SessionId::pack(0, 0, 0, slot, 0)
    }

    fn data(channel: &str) -> (Box<str>, Box<[u8]>) {
        (channel.into(), format!("{{\"of\":\"{channel}\"}}").into_bytes().into())
    }

    fn new_connect(encoding: Encoding, subscriptions: usize) -> NewConnect {
        let (data, own_data, began) = (vec![], None, Instant::now());
        NewConnect { id: None, encoding, subscriptions, bytes_max: 0, data, own_data, began }
    }

    #[test]
    fn a_connect_without_subscriptions_is_answered_at_once() {
        let mut connects = Connects::default();
        let connect = NewConnect { id: Some(7), ..new_connect(Encoding::WsJson, 0) };
        connects.begin(session(1), connect);
        let connected = connects.poll(session(1)).unwrap();
        assert_eq!((connected.id, connected.subscriptions().len()), (Some(7), 0));
        assert!(connects.poll(session(1)).is_none(), "once");
    }

    #[test]
    fn a_connect_whose_subscription_fails_is_answered_without_it() {
        let mut connects = Connects::default();
        let of_token = vec![data("news"), data("closed")];
        connects
            .begin(session(1), NewConnect { data: of_token, ..new_connect(Encoding::WsJson, 3) });
        let subscribed = || Ok(Subscribed::default());
        connects.handle_subscribed(session(1), "chat".into(), subscribed());
        connects.handle_subscribed(session(1), "closed".into(), Err(Error::LimitExceeded));
        assert!(connects.poll(session(1)).is_none(), "one subscription is outstanding");
        connects.handle_subscribed(session(1), "news".into(), subscribed());
        let connected = connects.poll(session(1)).unwrap();
        let subscriptions = connected.subscriptions();
        let names: Vec<&str> = subscriptions.iter().map(|(channel, _)| &**channel).collect();
        assert_eq!(names, ["chat", "news"], "in the order in which they were made");
        assert_eq!(subscriptions[0].1.data, None);
        assert_eq!(subscriptions[1].1.data, Some(&br#"{"of":"news"}"#[..]));
    }

    #[test]
    fn a_connect_waits_for_its_count_and_not_for_ever() {
        let mut connects = Connects::default();
        for at in 1..=4 {
            connects.begin(session(at), new_connect(Encoding::WsJson, 0));
            connects.await_count(session(at), "ann", u64::from(at) * 1_000);
            assert!(connects.poll(session(at)).is_none());
        }
        connects.forget(session(1));
        assert_eq!(connects.handle_counted("ann"), Some(session(2)), "the oldest that is there");
        assert!(connects.poll(session(2)).is_some());
        assert_eq!(connects.handle_counted("bob"), None);
        assert_eq!(connects.expire_counts(3_000), [session(3)]);
        assert!(connects.poll(session(3)).is_some() && connects.poll(session(4)).is_none());
        connects.forget(session(4));
        assert_eq!(connects.handle_counted("ann"), None);
        assert!(connects.uncounted.is_empty());
    }

    #[test]
    fn a_client_that_leaves_meanwhile_is_not_answered() {
        let mut connects = Connects::default();
        connects.begin(session(1), new_connect(Encoding::UniSse, 1));
        connects.forget(session(1));
        connects.handle_subscribed(session(1), "news".into(), Ok(Subscribed::default()));
        assert!(connects.poll(session(1)).is_none());
    }

    /// Regression test: recovery was bounded per channel only, and a connect has many channels.
    #[test]
    fn all_recoveries_of_a_connect_have_one_bound() {
        let mut connects = Connects::default();
        let missed = |bytes: usize| {
            let data = vec![b'1'; bytes].into();
            let publications = vec![PublicationParts { data, ..Default::default() }.into()];
            let was_recovering = true;
            Ok(Subscribed {
                was_recovering,
                recovered: true,
                publications,
                ..Subscribed::default()
            })
        };
        let connect = NewConnect { bytes_max: 10_000, ..new_connect(Encoding::WsJson, 4) };
        connects.begin(session(1), connect);
        for (channel, bytes) in [("a", 6_000), ("b", 6_000), ("c", 3_000), ("d", 0)] {
            connects.handle_subscribed(session(1), channel.into(), missed(bytes));
        }
        let connected = connects.poll(session(1)).unwrap();
        let given: Vec<_> = connected
            .subscriptions()
            .iter()
            .map(|(_, of)| (of.subscribed.recovered, of.subscribed.publications.len()))
            .collect();
        assert_eq!(given, [(true, 1), (false, 0), (true, 1), (true, 1)]);
        assert!(connected.subscriptions()[1].1.subscribed.was_recovering);
    }
}
