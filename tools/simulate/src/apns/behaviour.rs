//! The fault profile: path, answer times, windows, stream limits, and faulty answers. Every setting can change while
//! connections are open.

use serde::{Deserialize, Serialize};

use super::{AnswerTime, Reason};
use crate::http2::WindowReturn;

/// The simulator's behaviour. The default is a fault-free provider API without path delay.
///
/// "Every N" counts pushes over all connections unless a field says otherwise; 0 means never. Faults follow counters
/// rather than chance, so that two runs behave alike; only packet loss and answer times are random.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// Round-trip time of the path in milliseconds; each direction takes half. TCP connect and TLS handshake take one
    /// round trip each.
    pub rtt_ms: u64,
    /// Loss rate of the path's 1,460-byte segments, from 0 to 1. Everything behind a lost segment waits one more round
    /// trip. Throughput is not limited otherwise.
    pub loss: f64,
    /// Stream limit until the first push is accepted. With a client certificate `streams_max` applies at once.
    pub streams_first: u32,
    /// Stream limit after the first accepted push.
    pub streams_max: u32,
    /// Size of the connection's receive window in bytes, at least 65,535. Applies to new connections.
    pub connection_window: u32,
    /// Size of a stream's receive window in bytes. Applies to new connections.
    pub stream_window: u32,
    /// When received bytes are returned to the window.
    pub window_return: WindowReturn,
    /// Time the service takes to answer, in addition to the path delay.
    pub answer_time: AnswerTime,
    /// Every Nth accepted push gets no answer.
    pub lose_answer_every: u64,
    /// Every Nth accepted push gets HEADERS only; the stream never ends.
    pub half_answer_every: u64,
    /// The stream of every Nth push is reset with `reset_code`.
    pub reset_every: u64,
    /// Error code of that reset. With 7 (REFUSED_STREAM) the push is not processed. With any other code the push is
    /// processed first, and its stream is reset only if it is accepted: the sender does not learn that it was.
    pub reset_code: u32,
    /// Bursts of 503.
    pub unavailable: Unavailable,
    /// GOAWAY after a number of pushes.
    pub goaway: GoAway,
    /// A stream limit that alternates under load.
    pub flip_streams: FlipStreams,
    /// A stream limit that drops after a 4xx answer.
    pub slow_down: SlowDown,
    /// Number of rejected device tokens after which a connection is closed with GOAWAY; 0: never.
    pub bad_tokens_max: u64,
    /// The reason for a key of the other environment: `BadEnvironmentKeyIdInToken` or `BadEnvironmentKeyInToken`.
    /// Apple's tables have listed both spellings.
    pub environment_reason: Reason,
    /// Offset of the server's clock from this machine's in seconds; negative: behind. Provider tokens and client
    /// certificates are checked against it.
    pub clock_ahead_s: i64,
    /// Whether answers carry `date`. Apple's do not, but a proxy may add it.
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

/// Bursts of 503: the last `burst` of every `every` pushes are answered 503.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Unavailable {
    /// Pushes from one burst to the next; 0: never.
    pub every: u64,
    /// Pushes in a burst.
    pub burst: u64,
}

/// The `every`th push of a connection triggers GOAWAY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GoAway {
    /// Pushes on one connection until GOAWAY; 0: never.
    pub every: u64,
    /// How many of those pushes, the last ones, are not processed: GOAWAY's last stream id is the one before them.
    pub unprocessed: u64,
    /// Closes at once and drops pending answers; otherwise closes after all streams have been answered.
    pub close: bool,
}

/// The stream limit alternates between `streams_max` and `low`, switching after every `every` accepted pushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlipStreams {
    /// Accepted pushes of one connection between two switches; 0: never.
    pub every: u64,
    /// The lower limit.
    pub low: u32,
}

/// A lower stream limit after a 4xx answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlowDown {
    /// The lower limit; 0: the limit is not changed.
    pub streams: u32,
    /// Accepted pushes of the connection until the limit is raised again.
    pub answers: u64,
}

/// An action that every open connection carries out at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Send GOAWAY with any last stream id; `None`: the id of the last stream opened, which is the correct one.
    GoAway {
        /// Last stream id in the frame.
        #[serde(default)]
        last: Option<u32>,
        /// Error code; 0 is NO_ERROR.
        #[serde(default)]
        code: u32,
        /// Close at once.
        #[serde(default)]
        close: bool,
    },
    /// Close in an orderly way, without GOAWAY.
    Close,
    /// Close with a TCP reset.
    Abort,
    /// Read nothing for a time.
    Stall {
        /// Duration in milliseconds.
        ms: u64,
    },
    /// Send bytes that are not HTTP/2 frames.
    Garbage,
    /// Send a header block without end, until the peer closes or 64 MiB have been sent.
    EndlessHeaders,
    /// Send SETTINGS frames, each of which requires an acknowledgement.
    FloodSettings {
        /// Number of frames, at most 10,000,000.
        n: u32,
    },
    /// Send PING frames, each of which requires an answer.
    FloodPing {
        /// Number of frames, at most 10,000,000.
        n: u32,
    },
    /// Send RST_STREAM for the last stream opened, repeatedly.
    FloodReset {
        /// Number of frames, at most 10,000,000.
        n: u32,
    },
    /// Send WINDOW_UPDATE frames of one byte for the connection.
    FloodWindowUpdate {
        /// Number of frames, at most 10,000,000.
        n: u32,
    },
    /// Send empty DATA frames on the last stream opened.
    FloodData {
        /// Number of frames, at most 10,000,000.
        n: u32,
    },
    /// Send empty CONTINUATION frames of a header block that never ends.
    FloodContinuation {
        /// Number of frames, at most 10,000,000.
        n: u32,
    },
    /// Send GOAWAY frames that name the last stream opened, repeatedly.
    FloodGoAway {
        /// Number of frames, at most 10,000,000.
        n: u32,
    },
    /// Send frames of an unknown type, which a peer must ignore (RFC 9113 §4.1).
    FloodUnknown {
        /// Number of frames, at most 10,000,000.
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
    /// Checks the values, alone and against each other.
    ///
    /// # Errors
    /// Names the invalid field and the values it accepts.
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

    /// Returns this behaviour with the fields of `json` replaced, validated.
    ///
    /// # Errors
    /// Names the field that is unknown or invalid.
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
