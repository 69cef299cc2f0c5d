//! What the fuzzer does to a whole worker, and what must hold whatever it does: nobody is given what his rights do not give,
//! and nothing of one namespace changes because of another.
//!
//! Clients of several rights connect, subscribe, publish, ask and leave; the backend publishes; the rules of namespaces change;
//! time passes. The rights are written down here a second time ([`Rules`]), in other words than the worker's.

mod client;
mod world;

use self::client::{Push, Reply};
use self::world::{Subscribe, World};

/// A target by the name of its corpus.
type Target = fn(&[u8]);

/// All targets: `fuzz/corpus/NAME` holds the seeds of each.
pub(crate) const TARGETS: &[(&str, Target)] =
    &[("server_worker", worker), ("server_expression", crate::namespace::expression::fuzz)];

/// More would be a longer run, not a different one.
const ACTIONS_MAX: usize = 80;
/// What one action is made of.
const ACTION_BYTES: usize = 4;
pub(super) const NAMESPACES: [&str; 3] = ["a", "b", "c"];
/// Their channels; each belongs to the namespace before the colon.
const CHANNELS: [&str; 5] = ["a:1", "a:2", "b:1", "b:2", "c:1"];
const CLIENTS: usize = 6;
/// Who they are; the empty name is anonymous.
const USERS: [&str; 3] = ["", "ada", "bob"];

/// What a namespace allows, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules(pub(super) u16);

impl Rules {
    pub(super) const SUBSCRIBE: u16 = 0;
    pub(super) const PUBLISH: u16 = 2;
    pub(super) const HISTORY: u16 = 5;
    pub(super) const PRESENCE: u16 = 8;
    pub(super) const RECOVER: u16 = 11;
    pub(super) const JOIN_LEAVE: u16 = 12;

    pub(super) fn has(self, bit: u16) -> bool {
        self.0 & 1 << bit != 0
    }

    /// Whether a user may do something whose bits begin here: users, anonymous ones, and (but for subscribing) subscribers.
    fn allow(self, first: u16, user: &str, subscribed: bool) -> bool {
        let own = self.has(if user.is_empty() { first + 1 } else { first });
        own || first != Rules::SUBSCRIBE && subscribed && self.has(first + 2)
    }
}

/// Somebody connected.
struct Client {
    user: &'static str,
    connection: client::Connection,
    /// Index in [`CHANNELS`] of each subscription, and whether it asked for joins and leaves.
    subscribed: Vec<(usize, bool)>,
}

impl Client {
    fn is_subscribed(&self, channel: usize) -> bool {
        self.subscribed.iter().any(|(of, _)| *of == channel)
    }
}

/// The worker's world, and what must be so in it.
struct Oracle<'w> {
    world: World<'w>,
    rules: [Rules; NAMESPACES.len()],
    clients: [Option<Client>; CLIENTS],
    /// Number of the last message published.
    published: u64,
    /// What each channel's backend would read of it: messages, position, who is present.
    seen: Vec<String>,
}

fn namespace_of(channel: usize) -> usize {
    NAMESPACES.iter().position(|name| CHANNELS[channel].starts_with(name)).expect("one of them")
}

/// A worker, its clients and its backend.
fn worker(data: &[u8]) {
    let Some((&[low, high], actions)) = data.split_first_chunk::<2>() else { return };
    world::with(|world| {
        let bits = u16::from_le_bytes([low, high]);
        // Namespaces that differ from each other.
        let rules = [Rules(bits), Rules(!bits), Rules(bits.rotate_left(5))];
        let mut oracle =
            Oracle { world, rules, clients: Default::default(), published: 0, seen: Vec::new() };
        oracle.world.set_rules(&oracle.rules);
        for action in actions.chunks_exact(ACTION_BYTES).take(ACTIONS_MAX) {
            let &[what, who, channel, how] = action else { continue };
            oracle.act(
                what,
                usize::from(who) % CLIENTS,
                usize::from(channel) % CHANNELS.len(),
                how,
            );
        }
    });
}

/// Which channels an action may change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Nothing,
    Namespace(usize),
    Everything,
}

impl Oracle<'_> {
    fn act(&mut self, what: u8, who: usize, channel: usize, how: u8) {
        let namespace = namespace_of(channel);
        let reach = match what % 12 {
            0 | 1 => self.connect(who, channel, how),
            2 => self.leave(who),
            3 | 4 => self.subscribe(who, channel, how),
            5 => self.unsubscribe(who, channel),
            6 => self.publish_as_client(who, channel),
            7 => self.publish(channel),
            8 => self.read(who, channel, how),
            9 => self.change_rules(namespace, u16::from_le_bytes([who as u8 ^ how, how])),
            10 => self.poll(who, channel),
            _ => self.pass_time(how),
        };
        // What the action has sent to whom is known by now; nobody is sent anything else.
        let pushes = self.pushes();
        assert!(pushes.is_empty(), "sent by nobody's right after {what}: {pushes:?}");
        self.check_reach(reach);
    }

    /// Somebody connects, half of them with a subscription that comes with the connect.
    fn connect(&mut self, who: usize, channel: usize, how: u8) -> Reach {
        if self.clients[who].is_some() {
            return Reach::Nothing;
        }
        let user = USERS[usize::from(how) % USERS.len()];
        let unidirectional = how & 0x80 != 0;
        let recover = how & 0x40 != 0;
        let subscribe = unidirectional.then_some((CHANNELS[channel], recover));
        let rules = self.rules[namespace_of(channel)];
        let may = rules.allow(Rules::SUBSCRIBE, user, false);
        let opened = self.world.connect(user, subscribe);
        assert_eq!(opened.is_some(), !unidirectional || may, "{user:?} to {}", CHANNELS[channel]);
        let Some((connection, subscribed)) = opened else { return Reach::Nothing };
        let mut client = Client { user, connection, subscribed: Vec::new() };
        if let Some(reply) = subscribed {
            client.subscribed.push((channel, false));
            check_recovered(rules, user, channel, &reply);
        }
        self.clients[who] = Some(client);
        if unidirectional {
            self.expect_joins(channel);
        }
        if unidirectional { Reach::Namespace(namespace_of(channel)) } else { Reach::Nothing }
    }

    fn leave(&mut self, who: usize) -> Reach {
        let Some(client) = self.clients[who].take() else { return Reach::Nothing };
        drop(client.connection);
        self.world.turn_until_gone();
        // Others may be sent that he left, of each channel that he was in.
        for push in self.pushes() {
            let was_in =
                client.subscribed.iter().any(|(channel, _)| push.channel == CHANNELS[*channel]);
            assert!(was_in && self.may_see_joins(&push), "{push:?}");
        }
        Reach::Everything
    }

    fn subscribe(&mut self, who: usize, channel: usize, how: u8) -> Reach {
        let (recover, join_leave) = (how & 1 != 0, how & 2 != 0);
        let subscribe = Subscribe { recover, join_leave };
        let rules = self.rules[namespace_of(channel)];
        let Some(client) = &mut self.clients[who] else { return Reach::Nothing };
        let Some(reply) =
            self.world.subscribe(&mut client.connection, CHANNELS[channel], subscribe)
        else {
            return Reach::Nothing;
        };
        let may = rules.allow(Rules::SUBSCRIBE, client.user, false);
        let expected = may && !client.is_subscribed(channel);
        assert_eq!(
            reply.is_ok(),
            expected,
            "{:?} to {}: {reply:?}",
            client.user,
            CHANNELS[channel]
        );
        if reply.is_ok() {
            client.subscribed.push((channel, join_leave));
            check_recovered(rules, client.user, channel, &reply);
            self.expect_joins(channel);
        }
        Reach::Namespace(namespace_of(channel))
    }

    fn unsubscribe(&mut self, who: usize, channel: usize) -> Reach {
        let Some(client) = &mut self.clients[who] else { return Reach::Nothing };
        if self.world.unsubscribe(&mut client.connection, CHANNELS[channel]).is_some() {
            client.subscribed.retain(|(of, _)| *of != channel);
            self.expect_joins(channel);
        }
        Reach::Namespace(namespace_of(channel))
    }

    fn publish_as_client(&mut self, who: usize, channel: usize) -> Reach {
        let rules = self.rules[namespace_of(channel)];
        self.published += 1;
        let Some(client) = &mut self.clients[who] else { return Reach::Nothing };
        let number = self.published;
        let Some(reply) = self.world.publish_as(&mut client.connection, CHANNELS[channel], number)
        else {
            return Reach::Nothing;
        };
        let may = rules.allow(Rules::PUBLISH, client.user, client.is_subscribed(channel));
        assert_eq!(reply.is_ok(), may, "{:?} to {}: {reply:?}", client.user, CHANNELS[channel]);
        if !may {
            return Reach::Nothing;
        }
        self.expect_publication(channel);
        Reach::Namespace(namespace_of(channel))
    }

    fn publish(&mut self, channel: usize) -> Reach {
        self.published += 1;
        self.world.publish(CHANNELS[channel], self.published);
        self.expect_publication(channel);
        Reach::Namespace(namespace_of(channel))
    }

    /// Asks for the history, or for who is present.
    fn read(&mut self, who: usize, channel: usize, how: u8) -> Reach {
        let rules = self.rules[namespace_of(channel)];
        let Some(client) = &mut self.clients[who] else { return Reach::Nothing };
        let (right, method) =
            if how & 1 == 0 { (Rules::HISTORY, "history") } else { (Rules::PRESENCE, "presence") };
        let Some(reply) = self.world.ask(&mut client.connection, method, CHANNELS[channel]) else {
            return Reach::Nothing;
        };
        let may = rules.allow(right, client.user, client.is_subscribed(channel));
        assert_eq!(
            reply.is_ok(),
            may,
            "{:?}, {method} of {}: {reply:?}",
            client.user,
            CHANNELS[channel]
        );
        reply.check_channel(CHANNELS[channel]);
        Reach::Nothing
    }

    /// A subscription ends with the right that it rests on.
    fn change_rules(&mut self, namespace: usize, bits: u16) -> Reach {
        self.rules[namespace] = Rules(bits);
        self.world.set_rules(&self.rules);
        let mut ended = Vec::new();
        for client in self.clients.iter_mut().flatten() {
            let may = self.rules[namespace].allow(Rules::SUBSCRIBE, client.user, false);
            client.subscribed.retain(|(channel, _)| {
                let stays = may || namespace_of(*channel) != namespace;
                if !stays {
                    ended.push((*channel, client.user));
                }
                stays
            });
        }
        let pushes = self.pushes();
        let unsubscribed = pushes.iter().filter(|push| push.is_unsubscribe()).count();
        assert_eq!(unsubscribed, ended.len(), "each of {ended:?} is notified: {pushes:?}");
        for push in pushes {
            let leaves = ended.iter().any(|(channel, _)| push.channel == CHANNELS[*channel]);
            assert!(leaves && !push.is_publication(), "{push:?}");
            assert!(push.is_unsubscribe() || self.may_see_joins(&push), "{push:?}");
        }
        Reach::Namespace(namespace)
    }

    /// A long-poll from the beginning, of whoever the number stands for.
    fn poll(&mut self, who: usize, channel: usize) -> Reach {
        let (user, rules) = (USERS[who % USERS.len()], self.rules[namespace_of(channel)]);
        let answer = self.world.poll(user, CHANNELS[channel]);
        let may = rules.allow(Rules::SUBSCRIBE, user, false);
        assert_eq!(answer.is_some(), may, "{user:?} polls {}: {answer:?}", CHANNELS[channel]);
        if let Some(answer) = answer {
            let recovers = rules.has(Rules::RECOVER) || rules.allow(Rules::HISTORY, user, true);
            assert!(recovers || !answer.contains("\"data\""), "{user:?}: {answer}");
            self.expect_joins(channel);
        }
        Reach::Namespace(namespace_of(channel))
    }

    fn pass_time(&mut self, how: u8) -> Reach {
        // The longest is longer than anything is kept.
        self.world.pass_time(if how > 240 { 7_200_000 } else { u64::from(how) * 64 });
        Reach::Everything
    }

    /// What was sent since, and not looked at yet.
    fn pushes(&mut self) -> Vec<Push> {
        self.world.settle(self.clients.iter_mut().flatten().map(|client| &mut client.connection));
        let mut pushes = Vec::new();
        for (at, client) in self.clients.iter_mut().enumerate() {
            let Some(some) = client else { continue };
            for push in some.connection.take_pushes() {
                pushes.push(Push { to: at, ..push });
            }
            assert!(!some.connection.is_closed(), "{:?} was disconnected", some.user);
        }
        pushes
    }

    /// The last message has reached who is subscribed, once, and nobody else.
    fn expect_publication(&mut self, channel: usize) {
        let pushes = self.pushes();
        for push in &pushes {
            let is_it = push.channel == CHANNELS[channel] && push.number == Some(self.published);
            assert!(push.is_publication() && is_it, "{push:?}");
        }
        for (at, client) in self.clients.iter().enumerate() {
            let Some(client) = client else { continue };
            let times = pushes.iter().filter(|push| push.to == at).count();
            let may = self.rules[namespace_of(channel)].allow(Rules::SUBSCRIBE, client.user, false);
            assert!(
                may || times == 0,
                "{:?} may not subscribe to {}",
                client.user,
                CHANNELS[channel]
            );
            assert_eq!(times, usize::from(client.is_subscribed(channel)), "{:?}", client.user);
        }
    }

    /// Joins and leaves of a channel are sent to subscribers who asked for them and may ask who is present.
    fn expect_joins(&mut self, channel: usize) {
        for push in self.pushes() {
            assert!(push.channel == CHANNELS[channel], "{push:?}");
            assert!(self.may_see_joins(&push), "{push:?}");
        }
    }

    fn may_see_joins(&self, push: &Push) -> bool {
        let channel = CHANNELS.iter().position(|name| *name == push.channel).expect("a channel");
        let client = self.clients[push.to].as_ref().expect("a client");
        let rules = self.rules[namespace_of(channel)];
        push.is_join_or_leave()
            && client.subscribed.iter().any(|(of, joins)| *of == channel && *joins)
            && rules.allow(Rules::PRESENCE, client.user, true)
    }

    /// Nothing of a namespace has changed because of another.
    fn check_reach(&mut self, reach: Reach) {
        let now: Vec<String> = CHANNELS.iter().map(|name| self.world.look_at(name)).collect();
        for (channel, (before, now)) in self.seen.iter().zip(&now).enumerate() {
            let may_change = match reach {
                Reach::Nothing => false,
                Reach::Namespace(namespace) => namespace == namespace_of(channel),
                Reach::Everything => true,
            };
            assert!(may_change || before == now, "{}: {before} became {now}", CHANNELS[channel]);
        }
        self.seen = now;
    }
}

/// What a subscription brings that is older than it: of its channel, and for who may recover or read the history.
fn check_recovered(rules: Rules, user: &str, channel: usize, reply: &Reply) {
    let recovers = rules.has(Rules::RECOVER) || rules.allow(Rules::HISTORY, user, true);
    assert!(
        recovers || reply.publications() == 0,
        "{user:?} recovers {}: {reply:?}",
        CHANNELS[channel]
    );
    reply.check_channel(CHANNELS[channel]);
}

#[cfg(test)]
mod tests {
    use super::super::replay;

    replay::tests!(super::TARGETS, 12);

    /// Other actions in each run of the tests' programs would be other tests: these are the same ones.
    #[test]
    fn random_actions_give_nobody_what_his_rights_do_not() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .take(2 + 240)
            .collect();
            super::worker(&bytes);
        }
    }
}
