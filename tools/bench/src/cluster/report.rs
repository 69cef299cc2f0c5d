//! Results of rounds, and ratios of Dunlin's figures to a peer's.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::store::StoreKind;
use dunlin_load::Error;
use dunlin_load::figures::median;
use dunlin_load::installed::version;

/// The figures of a round.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Round {
    /// Publications a second.
    pub(super) per_s: Option<f64>,
    /// CPU per publication: of the publishing node, of the other node, of the shared server.
    pub(super) node_us: Option<f64>,
    pub(super) other_us: Option<f64>,
    pub(super) server_us: Option<f64>,
    /// From the scheduled time to the arrival.
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// Commands that all nodes send to the server, without those that Redis scripts call; and the share of a core it uses.
    pub(super) commands_per_s: Option<f64>,
    pub(super) server_share: Option<f64>,
    /// Time until all channels received publications again.
    pub(super) heard_again_ms: Option<f64>,
    /// Longest time from a publish during the interruption to its arrival.
    pub(super) late_ms: Option<f64>,
    /// Publications of the interruption that did not arrive before the next publishes.
    pub(super) missed: Option<u64>,
    /// Clients that connected, the time that took for all, and the nodes' memory per client.
    pub(super) connected: Option<u64>,
    pub(super) connect_s: Option<f64>,
    pub(super) bytes_each: Option<f64>,
    /// From the first request to the last arrival.
    pub(super) seconds: Option<f64>,
    /// Cores that nodes and server used together.
    pub(super) cores: Option<f64>,
    /// Clients that were disconnected.
    pub(super) thrown_out: u64,
    /// Messages lost, duplicated or reordered, and clients that could not connect.
    pub(super) lost: u64,
}

/// A figure's name in the report, where `server` stands for the server's name, and its accessor.
type Figure = (&'static str, fn(&Round) -> Option<f64>);

const FIGURES: [Figure; 16] = [
    ("per_s", |round| round.per_s),
    ("node_us", |round| round.node_us),
    ("other_us", |round| round.other_us),
    ("server_us", |round| round.server_us),
    ("p50_us", |round| round.p50_us),
    ("p99_us", |round| round.p99_us),
    ("commands_per_s", |round| round.commands_per_s),
    ("server_share", |round| round.server_share),
    ("heard_again_ms", |round| round.heard_again_ms),
    ("late_ms", |round| round.late_ms),
    ("missed", |round| round.missed.map(|count| count as f64)),
    ("connected", |round| round.connected.map(|count| count as f64)),
    ("connect_s", |round| round.connect_s),
    ("bytes_each", |round| round.bytes_each),
    ("seconds", |round| round.seconds),
    ("cores", |round| round.cores),
];

/// One round of each side.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) ours: Round,
    pub(super) peer: Option<Round>,
}

/// Returns the median of each figure.
pub(super) fn row<'a>(kind: StoreKind, rounds: impl Iterator<Item = &'a Round> + Clone) -> Value {
    let of = |(name, figure): Figure| {
        (
            name.replace("server", kind.name()),
            json!(median(&rounds.clone().filter_map(figure).collect::<Vec<_>>())),
        )
    };
    let mut row: Map<String, Value> = FIGURES.into_iter().map(of).collect();
    row.insert(
        "thrown_out".into(),
        json!(rounds.clone().map(|round| round.thrown_out).sum::<u64>()),
    );
    row.insert("lost".into(), json!(rounds.map(|round| round.lost).sum::<u64>()));
    Value::Object(row)
}

/// Returns for each figure the median ratio of Dunlin to the peer within a round.
fn ratios(turns: &[Turn]) -> Value {
    let of = |(name, figure): Figure| {
        let ratio = |turn: &Turn| {
            let peer = figure(turn.peer.as_ref()?).filter(|figure| *figure > 0.0)?;
            Some(figure(&turn.ours)? / peer)
        };
        // Only Redis has a peer.
        (
            name.replace("server", "redis"),
            json!(median(&turns.iter().filter_map(ratio).collect::<Vec<_>>())),
        )
    };
    Value::Object(FIGURES.into_iter().map(of).collect())
}

/// A peer and its results.
#[derive(Debug, Serialize)]
pub(super) struct Peer {
    name: String,
    version: Option<String>,
    rows: Map<String, Value>,
    /// Dunlin's figures divided by the peer's.
    ratios: Map<String, Value>,
}

impl Peer {
    /// Identifies a peer by its program.
    pub(super) fn find(program: &Path) -> Result<Self, Error> {
        if !program.is_file() {
            return Err(Error::new(format!(
                "there is no peer {}: build tests/interop/centrifuge with Go",
                program.display()
            )));
        }
        Ok(Self {
            name: "centrifuge".into(),
            version: version(program, "-version"),
            rows: Map::new(),
            ratios: Map::new(),
        })
    }

    /// Adds the rounds of a measurement, unless the peer was not part of it.
    pub(super) fn add(&mut self, name: &str, turns: &[Turn]) {
        if turns.iter().all(|turn| turn.peer.is_some()) {
            self.rows.insert(
                name.into(),
                row(StoreKind::Redis, turns.iter().filter_map(|turn| turn.peer.as_ref())),
            );
            self.ratios.insert(name.into(), ratios(turns));
        }
    }

    pub(super) fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(ours: f64, peer: f64) -> Turn {
        let round = |per_s| Round { per_s: Some(per_s), lost: 1, ..Round::default() };
        Turn { ours: round(ours), peer: Some(round(peer)) }
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        let turns = [turn(90.0, 30.0), turn(100.0, 10.0), turn(40.0, 20.0)];
        let mut peer =
            Peer { name: String::new(), version: None, rows: Map::new(), ratios: Map::new() };
        peer.add("publish", &turns);
        assert_eq!(peer.ratios["publish"]["per_s"], 3.0);
        assert_eq!(peer.ratios["publish"]["p50_us"], Value::Null);
        assert_eq!(peer.rows["publish"]["per_s"], 20.0);
        assert_eq!(peer.rows["publish"]["lost"], 3);

        peer.add("burst", &[Turn { ours: Round::default(), peer: None }]);
        assert!(!peer.rows.contains_key("burst"));
    }

    #[test]
    fn a_peer_that_is_not_there_is_said_with_what_to_build() {
        let error = Peer::find(Path::new("/no/such/program")).unwrap_err().to_string();
        assert!(error.contains("tests/interop/centrifuge"), "{error}");
    }
}
