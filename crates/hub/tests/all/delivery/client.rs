//! What a client on the wire believes, and checks.

use std::collections::BTreeMap;

use dunlin_hub::{Epoch, SessionId, StreamPosition};

use super::simulation::{LIVE, Simulation};

#[derive(Default)]
pub struct Client {
    pub session: Option<SessionId>,
    /// Bytes of a line that has not ended.
    pub partial: Vec<u8>,
    pub channels: BTreeMap<String, State>,
    pub blocked: bool,
    /// The hub asked for an end: read the rest, then close.
    pub ending: bool,
    /// It was held while it subscribed: the first word is the greeting.
    pub ungreeted: bool,
    pub recovered: u64,
    pub gaps: u64,
    pub received: u64,
}

#[derive(Clone, Debug)]
pub enum State {
    /// Not subscribed; where to go on.
    Off(Option<StreamPosition>),
    /// By the subscription request with this token.
    Asked(Option<StreamPosition>, u64),
    On {
        last: StreamPosition,
        /// Publications the server said are missing and that have not shown as a jump yet.
        excused: u64,
        /// In the channel without history: the last publication's token.
        live: Option<u64>,
    },
}

impl State {
    pub fn resume(&self) -> Option<StreamPosition> {
        match self {
            Self::Off(at) | Self::Asked(at, _) => *at,
            Self::On { last, .. } => Some(*last),
        }
    }
}

impl Client {
    /// Not subscribed to anything any more, as far as the server is concerned; what it reads from
    /// here on still counts.
    pub fn pause(&mut self) {
        for state in self.channels.values_mut() {
            if let State::Asked(resume, _) = state {
                *state = State::Off(*resume);
            }
        }
    }

    pub fn lose_connection(&mut self) {
        for state in self.channels.values_mut() {
            *state = State::Off(state.resume());
        }
        self.partial.clear();
        self.blocked = false;
        self.ending = false;
    }
}

/// Reading what a socket took.
impl Simulation {
    pub fn receive(&mut self, at: usize, bytes: &[u8]) {
        self.clients[at].partial.extend_from_slice(bytes);
        let partial = std::mem::take(&mut self.clients[at].partial);
        let end = partial.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        self.clients[at].partial = partial[end..].to_vec();
        let text = String::from_utf8(partial[..end].to_vec()).expect("text");
        for line in text.lines() {
            self.note(format!("client {at} reads {line}"));
            let words: Vec<&str> = line.split(' ').collect();
            if std::mem::take(&mut self.clients[at].ungreeted) {
                assert!(matches!(words[..], ["hello"] | ["bye", _]), "{line} before the greeting");
            }
            match words[..] {
                ["ok", token, channel, offset, epoch, recovered] => {
                    let token = token.parse().expect("a token");
                    let offset = offset.parse().expect("an offset");
                    let position = StreamPosition { offset, epoch: Epoch::parse(epoch) };
                    self.subscribed(at, token, channel, position, recovered);
                }
                ["refused", token, channel] => {
                    let state = self.clients[at].channels.get_mut(channel).expect("asked");
                    if let State::Asked(resume, asked) = state
                        && asked.to_string() == token
                    {
                        *state = State::Off(*resume);
                    }
                }
                ["pub", channel, offset, data] => {
                    self.publication(at, channel, offset.parse().expect("an offset"), data);
                }
                ["missed", channel, count] => {
                    if let Some(State::On { excused, .. }) =
                        self.clients[at].channels.get_mut(channel)
                    {
                        *excused += count.parse::<u64>().expect("a count");
                        self.clients[at].gaps += 1;
                    }
                }
                ["unsub", channel, "2500"] => {
                    let client = &mut self.clients[at];
                    let state = client.channels.get_mut(channel).expect("known");
                    if let State::On { last, .. } = state {
                        *state = State::Off(Some(*last));
                        client.gaps += 1;
                    }
                }
                ["hello"] => {}
                ["bye", "3008"] => self.clients[at].ending = true,
                ["join" | "leave", ..] => assert_eq!(at, 0, "only client 0 asked for this"),
                _ => panic!("{line}"),
            }
        }
    }

    pub fn subscribed(
        &mut self,
        at: usize,
        token: u64,
        channel: &str,
        position: StreamPosition,
        recovered: &str,
    ) {
        let state = self.clients[at].channels.get_mut(channel).expect("asked");
        let State::Asked(resume, asked) = *state else { return };
        if asked != token {
            // It has left and come back meanwhile.
            return;
        }
        let mut publications = recovered.split(',').filter(|part| !part.is_empty()).peekable();
        let mut last = position;
        match recovered {
            "no" => {
                let asked = resume.is_some() && channel != LIVE;
                self.clients[at].gaps += u64::from(asked);
            }
            _ => {
                last = resume.expect("asked to recover");
                assert_eq!(last.epoch, position.epoch);
                self.clients[at].recovered += 1;
                publications.next();
            }
        }
        let client = &mut self.clients[at];
        client.channels.insert(channel.to_owned(), State::On { last, excused: 0, live: None });
        if recovered != "no" {
            for part in publications {
                let (offset, data) = part.split_once('=').expect("offset=data");
                self.publication(at, channel, offset.parse().expect("an offset"), data);
            }
            let State::On { last, .. } = &self.clients[at].channels[channel] else {
                panic!("just subscribed")
            };
            assert_eq!(*last, position, "recovered up to the position");
        }
    }

    pub fn publication(&mut self, at: usize, channel: &str, offset: u64, data: &str) {
        let Some(State::On { last, excused, live }) = self.clients[at].channels.get_mut(channel)
        else {
            // It has left; or received an unsubscribe.
            return;
        };
        if channel == LIVE {
            assert_eq!(offset, 0);
            let token = data.trim_matches(['t', 'x']).parse().expect("a token");
            if let Some(before) = live.replace(token) {
                assert!(token > before, "client {at}: {token} after {before}");
                let skipped = self.live.range(before + 1..token).count() as u64;
                assert!(skipped <= *excused || self.faults.restarts, "client {at}: {skipped}");
                *excused = excused.saturating_sub(skipped);
            }
            self.clients[at].received += 1;
            return;
        }
        assert!(offset > last.offset, "client {at}: {channel} {offset} after {}", last.offset);
        let skipped = offset - last.offset - 1;
        assert!(
            skipped <= *excused,
            "client {at}: {channel} jumps from {} to {offset}, excused {excused}",
            last.offset
        );
        *excused -= skipped;
        last.offset = offset;
        let place = (channel.to_owned(), last.epoch, offset);
        self.clients[at].received += 1;
        self.claim(place, data);
    }

    pub fn claim(&mut self, place: (String, Epoch, u64), data: &str) {
        if let Some(known) = self.truth.get(&place).or_else(|| self.claims.get(&place)) {
            assert_eq!(known, data, "{place:?}");
        } else {
            self.claims.insert(place, data.to_owned());
        }
    }
}
