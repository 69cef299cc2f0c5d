//! Connects under way: a connect is answered when the last of its server-side subscriptions is made or has failed, and the other nodes
//! know of it where connections of a user are bounded.

use std::sync::Arc;

use dunlin_hub::{Error, SessionId, Subscribed};
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::SubscribeResult;

use super::FastMap;
use crate::metrics::log_gate::LogGate;

/// The connects of one worker.
#[derive(Default)]
pub(crate) struct Connects {
    begun: FastMap<SessionId, Connect>,
    /// Of each user those that are not counted on all nodes, oldest first, and until when that is waited for, in milliseconds.
    uncounted: FastMap<Box<str>, Vec<(SessionId, u64)>>,
    namespace_log: LogGate,
}

/// A connect that begins.
pub(crate) struct NewConnect {
    /// The command's; `None` on a unidirectional transport.
    pub(crate) id: Option<u32>,
    pub(crate) encoding: Encoding,
    /// How many there are, server-side.
    pub(crate) subscriptions: usize,
    /// Of publications that were missed, in the answer.
    pub(crate) bytes_max: usize,
    /// What the token has for the application in a channel, as JSON.
    pub(crate) data: Vec<(Box<str>, Box<[u8]>)>,
    /// The same of the connection.
    pub(crate) own_data: Option<Box<[u8]>>,
}

struct Connect {
    id: Option<u32>,
    encoding: Encoding,
    /// Subscriptions not answered yet.
    outstanding: usize,
    established: Vec<Established>,
    /// For publications that were missed; what has more is not recovered.
    bytes_left: usize,
    /// What the token has for the application in a channel, as JSON, until the channel's subscription is answered.
    data: Vec<(Box<str>, Box<[u8]>)>,
    /// The same of the connection.
    own_data: Option<Box<[u8]>>,
}

/// A connect to be answered.
pub(crate) struct Connected {
    /// The connect command; `None` on a unidirectional transport.
    pub(crate) id: Option<u32>,
    pub(crate) encoding: Encoding,
    /// What the client is given, as JSON.
    pub(crate) data: Option<Box<[u8]>>,
    established: Vec<Established>,
}

/// A server-side subscription that is made.
struct Established {
    channel: Arc<str>,
    subscribed: Subscribed,
    data: Option<Box<[u8]>>,
}

impl Connects {
    /// A token subscribes to a channel of an unknown namespace. `Some`: that may be logged, and so many before it were not.
    pub(crate) fn handle_unknown_namespace(&mut self, now_ms: u64) -> Option<u64> {
        self.namespace_log.pass(now_ms)
    }

    /// A connect begins, whose subscriptions are given to the hub next.
    pub(crate) fn begin(&mut self, session: SessionId, new: NewConnect) {
        let NewConnect { id, encoding, subscriptions, bytes_max, data, own_data } = new;
        let connect = Connect {
            id,
            encoding,
            outstanding: subscriptions,
            established: Vec::with_capacity(subscriptions),
            bytes_left: bytes_max,
            data,
            own_data,
        };
        self.begun.insert(session, connect);
    }

    /// It is not answered before it is counted, or this is over.
    pub(crate) fn await_count(&mut self, session: SessionId, user: &str, until_ms: u64) {
        let Some(connect) = self.begun.get_mut(&session) else { return };
        connect.outstanding += 1;
        self.uncounted.entry(user.into()).or_default().push((session, until_ms));
    }

    /// One more connection of a user is counted, and may stay.
    pub(crate) fn handle_counted(&mut self, user: &str) -> Option<SessionId> {
        let waiting = self.uncounted.get_mut(user)?;
        let begun = &mut self.begun;
        // Some have ended meanwhile.
        let place = waiting.iter().position(|(session, _)| begun.contains_key(session));
        let counted = place.map(|at| waiting.drain(..=at).next_back());
        if counted.is_none() || waiting.is_empty() {
            self.uncounted.remove(user);
        }
        let (session, _) = counted??;
        self.begun.get_mut(&session)?.outstanding -= 1;
        Some(session)
    }

    /// Those that have waited long enough to be counted.
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

    /// One of the subscriptions is made, or is refused for good: the client does without it.
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
            let data = at.map(|at| connect.data.swap_remove(at).1);
            connect.established.push(Established { channel, subscribed, data });
        }
    }

    /// The connect of a session, once nothing is outstanding.
    pub(crate) fn poll(&mut self, session: SessionId) -> Option<Connected> {
        self.begun.get(&session).filter(|connect| connect.outstanding == 0)?;
        let Connect { id, encoding, established, own_data: data, .. } =
            self.begun.remove(&session)?;
        Some(Connected { id, encoding, data, established })
    }

    /// The session has ended before its connect was answered, or after.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.begun.remove(&session);
    }
}

impl Connected {
    /// The subscriptions that the client begins with.
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
        let (data, own_data) = (vec![], None);
        NewConnect { id: None, encoding, subscriptions, bytes_max: 0, data, own_data }
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

    /// Each channel's recovery was bounded, and a connect has many.
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
