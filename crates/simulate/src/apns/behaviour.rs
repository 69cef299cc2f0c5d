//! The fault profile: path, answer times, windows, stream limits, answers that go wrong. All of it can change while
//! connections are open.

use serde::{Deserialize, Serialize};

use super::{AnswerTime, Reason};

/// How the simulator behaves. The default is Apple's provider API without faults, next door.
///
/// "Every N" counts pushes, over all connections unless a field says otherwise; 0 is never. The counts, not chance,
/// decide, so that two runs are alike; only loss on the path and answer times are drawn by lot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// Round trip time of the path in milliseconds, half of it each way. Connecting takes one, a TLS handshake another.
    pub rtt_ms: u64,
    /// How many of the path's 1,460-byte segments are lost, from 0 to 1: what is behind one waits a round trip more.
    /// Throughput is not limited otherwise.
    pub loss: f64,
    /// Streams granted until the first push is accepted. With a client certificate `streams_max` is granted at once.
    pub streams_first: u32,
    /// Streams granted from then on.
    pub streams_max: u32,
    /// Bytes of the connection's receive window, from 65,535. Holds for connections opened afterwards.
    pub connection_window: u32,
    /// Bytes of a stream's receive window. Holds for connections opened afterwards.
    pub stream_window: u32,
    /// When what was received is given back to the window.
    pub window_return: WindowReturn,
    /// What the service takes to answer, beside the path.
    pub answer_time: AnswerTime,
    /// Every N accepted pushes one is not answered.
    pub lose_answer_every: u64,
    /// Every N accepted pushes one is answered by HEADERS alone; the stream never ends.
    pub half_answer_every: u64,
    /// Every N pushes one stream is reset with `reset_code`.
    pub reset_every: u64,
    /// The code of that reset. 7 (REFUSED_STREAM): the push was not processed. Any other: it was accepted, and nobody is
    /// reported.
    pub reset_code: u32,
    /// Bursts of 503.
    pub unavailable: Unavailable,
    /// Connections that get a GOAWAY.
    pub goaway: GoAway,
    /// A stream limit that changes under load.
    pub flip_streams: FlipStreams,
    /// A stream limit that is lowered after a 4xx answer.
    pub slow_down: SlowDown,
    /// Bad device tokens on one connection after which it is closed with GOAWAY; 0: never.
    pub bad_tokens_max: u64,
    /// Which spelling says that a key belongs to the other environment: `BadEnvironmentKeyIdInToken` or
    /// `BadEnvironmentKeyInToken`. Apple's tables have had both.
    pub environment_reason: Reason,
    /// The server's clock against that of this machine, in seconds; below zero it is behind. Provider tokens and client
    /// certificates are judged by it.
    pub clock_ahead_s: i64,
    /// Answers carry `date`. Apple's own do not, but what stands between may add it.
    pub date: bool,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour {
            rtt_ms: 0,
            loss: 0.0,
            streams_first: 1,
            streams_max: 1_000,
            connection_window: 65_535,
            stream_window: 65_535,
            window_return: WindowReturn::Eager,
            answer_time: AnswerTime::default(),
            lose_answer_every: 0,
            half_answer_every: 0,
            reset_every: 0,
            reset_code: 7,
            unavailable: Unavailable::default(),
            goaway: GoAway::default(),
            flip_streams: FlipStreams::default(),
            slow_down: SlowDown::default(),
            bad_tokens_max: 0,
            environment_reason: Reason::BadEnvironmentKeyIdInToken,
            clock_ahead_s: 0,
            date: false,
        }
    }
}

/// When received bytes are given back by WINDOW_UPDATE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowReturn {
    /// With each read, as Go's net/http2 does.
    #[default]
    Eager,
    /// Once half of the window is used, as netty does.
    Half,
    /// Never: the connection dries up.
    Never,
}

impl WindowReturn {
    /// Whether `unreturned` bytes of a window of `size` are to be given back.
    pub(crate) fn is_due(self, unreturned: u32, size: u32) -> bool {
        match self {
            WindowReturn::Eager => true,
            WindowReturn::Half => unreturned >= size / 2,
            WindowReturn::Never => false,
        }
    }
}

/// Of every `every` pushes the last `burst` are answered 503.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Unavailable {
    /// Pushes from burst to burst; 0: never.
    pub every: u64,
    /// Pushes of a burst.
    pub burst: u64,
}

/// A connection's `every`th push is answered by GOAWAY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GoAway {
    /// Pushes on one connection; 0: never.
    pub every: u64,
    /// How many of them, the last, are not processed: GOAWAY names the stream before them.
    pub unprocessed: u64,
    /// Close at once, and with it the answers that are under way; otherwise when all streams have been answered.
    pub close: bool,
}

/// The stream limit goes down to `low` and up again, each time after `every` accepted pushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlipStreams {
    /// Accepted pushes of one connection; 0: never.
    pub every: u64,
    /// The lower limit.
    pub low: u32,
}

/// After a 4xx answer the stream limit is lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlowDown {
    /// The limit; 0: it is not lowered.
    pub streams: u32,
    /// Accepted pushes of the connection until it is raised again.
    pub answers: u64,
}

/// Something to happen now, on every open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// GOAWAY with any last stream; `None`: the last one opened, which is the truth.
    GoAway {
        /// The last stream that is served.
        #[serde(default)]
        last: Option<u32>,
        /// The error code; 0 is NO_ERROR.
        #[serde(default)]
        code: u32,
        /// Close at once.
        #[serde(default)]
        close: bool,
    },
    /// Close in order, without GOAWAY.
    Close,
    /// Close with a TCP reset.
    Abort,
    /// Read nothing for so long.
    Stall {
        /// Milliseconds.
        ms: u64,
    },
    /// Send bytes that are no frames.
    Garbage,
    /// Send a header block that does not end, until the peer has had enough or 64 MiB have gone.
    EndlessHeaders,
    /// Send SETTINGS, all to be acknowledged.
    FloodSettings {
        /// How many, at most 10,000,000.
        n: u32,
    },
    /// Send PING, all to be answered.
    FloodPing {
        /// How many, likewise.
        n: u32,
    },
    /// Send RST_STREAM for the stream opened last, again and again.
    FloodReset {
        /// How many, likewise.
        n: u32,
    },
    /// Send WINDOW_UPDATE of one byte each.
    FloodWindowUpdate {
        /// How many, likewise.
        n: u32,
    },
    /// Send empty DATA on the stream opened last.
    FloodData {
        /// How many, likewise.
        n: u32,
    },
    /// Send empty CONTINUATION of a header block that does not end.
    FloodContinuation {
        /// How many, likewise.
        n: u32,
    },
    /// Send GOAWAY that names the last stream, again and again.
    FloodGoAway {
        /// How many, likewise.
        n: u32,
    },
    /// Send frames of a type that nobody knows, which a peer has to ignore (RFC 9113 §4.1).
    FloodUnknown {
        /// How many, likewise.
        n: u32,
    },
}

/// Why a behaviour is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BehaviourError(String);

impl BehaviourError {
    pub(super) fn new(text: impl Into<String>) -> BehaviourError {
        BehaviourError(text.into())
    }
}

impl Behaviour {
    /// Judges the values against each other.
    ///
    /// # Errors
    /// Names the field and what it may be.
    pub fn validate(&self) -> Result<(), BehaviourError> {
        let wrong = |text: &str| Err(BehaviourError(text.to_owned()));
        if !(0.0..=1.0).contains(&self.loss) {
            return wrong("loss: write a share from 0 to 1, as in 0.01");
        }
        if self.clock_ahead_s.unsigned_abs() > 100 * 366 * 86_400 {
            return wrong("clock_ahead_s: a century is the most");
        }
        if self.rtt_ms > 60_000 {
            return wrong("rtt_ms: a minute is the most");
        }
        self.answer_time.validate()?;
        if self.connection_window < 65_535 {
            return wrong(
                "connection_window: HTTP/2 begins with 65,535 and cannot go below (RFC 9113 §6.9.2)",
            );
        }
        if self.connection_window >> 31 != 0 || self.stream_window >> 31 != 0 {
            return wrong("connection_window, stream_window: 2,147,483,647 is the most");
        }
        if self.unavailable.burst > self.unavailable.every {
            return wrong("unavailable: the burst is part of `every`, and not larger");
        }
        if self.goaway.every > 0 && self.goaway.unprocessed >= self.goaway.every {
            return wrong("goaway: `unprocessed` is part of `every`, and smaller");
        }
        let spellings = [Reason::BadEnvironmentKeyIdInToken, Reason::BadEnvironmentKeyInToken];
        if !spellings.contains(&self.environment_reason) {
            return wrong(
                "environment_reason: BadEnvironmentKeyIdInToken or BadEnvironmentKeyInToken",
            );
        }
        Ok(())
    }

    /// This behaviour with the fields that `json` has, validated.
    ///
    /// # Errors
    /// Names the field that is unknown or wrong.
    pub fn patched(&self, json: &str) -> Result<Behaviour, BehaviourError> {
        let fault = |error: serde_json::Error| BehaviourError(error.to_string());
        let patch: serde_json::Value = serde_json::from_str(json).map_err(fault)?;
        let serde_json::Value::Object(patch) = patch else {
            return Err(BehaviourError("write an object, as in {\"rtt_ms\": 250}".to_owned()));
        };
        let mut whole = serde_json::to_value(self).map_err(fault)?;
        for (name, value) in patch {
            whole[name] = value;
        }
        let behaviour: Behaviour = serde_json::from_value(whole).map_err(fault)?;
        behaviour.validate()?;
        Ok(behaviour)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_changes_what_it_names_and_nothing_else() {
        let patched = Behaviour::default()
            .patched(r#"{"rtt_ms": 50, "goaway": {"every": 100, "unprocessed": 10}}"#)
            .unwrap();
        let goaway = GoAway { every: 100, unprocessed: 10, close: false };
        assert_eq!(patched, Behaviour { rtt_ms: 50, goaway, ..Behaviour::default() });
    }

    #[test]
    fn a_wrong_patch_names_the_field() {
        for (json, named) in [
            (r#"{"rtt": 50}"#, "rtt"),
            (r#"{"loss": 2}"#, "loss"),
            (r#"{"connection_window": 100}"#, "65,535"),
            (r#"{"goaway": {"every": 1, "unprocessed": 1}}"#, "unprocessed"),
            (r#"{"environment_reason": "BadTopic"}"#, "environment_reason"),
            ("[]", "object"),
        ] {
            let fault = Behaviour::default().patched(json).unwrap_err().to_string();
            assert!(fault.contains(named), "{json}: {fault}");
        }
    }

    #[test]
    fn an_order_is_written_as_the_control_port_takes_it() {
        let order: Order = serde_json::from_str(r#"{"do": "go_away", "last": 5}"#).unwrap();
        assert_eq!(order, Order::GoAway { last: Some(5), code: 0, close: false });
    }
}
