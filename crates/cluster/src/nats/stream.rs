//! The JetStream stream that keeps the last message of each subject of the cluster, and its operations.
//!
//! Each subject is a record. A write succeeds only if the last message of the subject is the expected one
//! (`Nats-Expected-Last-Subject-Sequence`), and a removal names the sequence of the message. So exactly one of several concurrent
//! writers succeeds, and a removed record leaves nothing behind. All records share one sequence: a larger number was written
//! later.
//!
//! With several servers any of them may deliver to a reader, including one that lags behind. Therefore, if the stream has
//! replicas, its leader is asked for the list of records and for each record ([`super::listing`]).

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dunlin_engine::nats::JetStreamError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::condition_of;
use super::link::{NatsLink, NatsReplies, NatsReply};
use crate::condition::Condition;
use crate::ordered::{Record, RecordStream, RecordWrite};
use crate::records::refused;
use crate::store::StoreError;

const NO_MESSAGE: u32 = 10_037;
const SEQUENCE_NOT_FOUND: u32 = 10_043;
const DELETE_FAILED: u32 = 10_057;
/// The most requests in flight: servers drop all pending JetStream requests if there are too many.
const IN_FLIGHT_MAX: usize = 256;
/// Idle time after which the server removes an abandoned consumer.
const READER_IDLE: Duration = Duration::from_secs(30);
/// The number of requests in flight until the size of the responses is known.
const IN_FLIGHT_FIRST: usize = 16;
/// Target for the bytes of responses in flight, for each channel that is read: on this connection they delay the response to a
/// lease renewal.
const ANSWERS_BYTES: u64 = 1 << 20;
/// The most messages in one request, and the number in the first one.
const BATCH_MAX: u64 = 4_096;
const BATCH_FIRST: u64 = 64;
/// How long to wait if fewer messages arrive than were counted, and how often in a row.
const BATCH_EXPIRES: Duration = Duration::from_millis(250);
const SILENT_MAX: u32 = 16;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Response {
    error: Option<JetStreamError>,
    seq: u64,
    name: String,
    num_pending: u64,
    message: Option<StoredMessage>,
    /// The most subjects of a page.
    pub(super) limit: usize,
    pub(super) state: StreamState,
    pub(super) cluster: StreamCluster,
}

/// The state of the stream.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamState {
    pub(super) last_seq: u64,
    /// The subjects that match the filter, with their numbers of messages; one page of them if there are many.
    pub(super) subjects: BTreeMap<String, u64>,
}

/// The servers of the stream.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamCluster {
    /// Empty during an election.
    pub(super) leader: String,
}

#[derive(Deserialize)]
struct StoredMessage {
    subject: Box<str>,
    seq: u64,
    #[serde(default)]
    data: String,
    time: String,
}

fn store_error(error: &JetStreamError) -> StoreError {
    match error.is_stream_not_found() {
        true => stream_gone(),
        false => refused(condition_of(error.reason().name), &error.description),
    }
}

fn stream_gone() -> StoreError {
    refused(Condition::RecordLost, "the stream of the cluster is gone from JetStream")
}

/// The stream, accessed over one connection.
pub(crate) struct NatsStream {
    link: NatsLink,
    name: String,
    /// Its configuration, as JSON.
    config: Value,
    /// Whether it has replicas.
    is_replicated: bool,
    /// The newest sequence that was written over this connection.
    written: AtomicU64,
}

impl NatsStream {
    /// `config` is the configuration with which it is created.
    pub(super) fn new(link: NatsLink, name: String, config: Value, is_replicated: bool) -> Self {
        NatsStream { link, name, config, is_replicated, written: AtomicU64::new(0) }
    }

    /// The newest sequence that was written over this connection; 0: none.
    pub(super) fn newest_written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Whether the stream exists with this configuration. Its own leader answers; the leader of JetStream, which creates streams,
    /// may be unreachable.
    async fn is_as_wanted(&self) -> Result<bool, StoreError> {
        let answer = self.ask("STREAM.INFO", &json!({})).next().await?;
        let info: Value = serde_json::from_slice(&answer.payload).unwrap_or_default();
        let mut wanted = self.config.as_object().into_iter().flatten();
        Ok(answer.status.is_none() && wanted.all(|(key, value)| info["config"][key] == *value))
    }

    pub(super) fn ask(&self, what: &str, body: &Value) -> NatsReplies {
        let subject = format!("$JS.API.{what}.{}", self.name);
        self.link.request(&subject, &[], body.to_string().as_bytes())
    }

    fn begin_put(&self, put: &RecordWrite) -> NatsReplies {
        let after = put.after.to_string();
        let headers = [
            ("Nats-Expected-Stream", self.name.as_str()),
            ("Nats-Expected-Last-Subject-Sequence", after.as_str()),
        ];
        self.link.request(&put.subject, &headers, &put.payload)
    }

    fn written(&self, answer: &NatsReply) -> Result<Option<u64>, StoreError> {
        let response = response(answer)?;
        match &response.error {
            Some(error) if error.is_wrong_last_sequence() => Ok(None),
            Some(error) => Err(store_error(error)),
            None => {
                self.written.fetch_max(response.seq, Ordering::AcqRel);
                Ok(Some(response.seq))
            }
        }
    }

    fn begin_get(&self, subject: &str) -> NatsReplies {
        self.ask("STREAM.MSG.GET", &json!({ "last_by_subj": subject }))
    }

    fn begin_remove(&self, seq: u64) -> NatsReplies {
        self.ask("STREAM.MSG.DELETE", &json!({ "seq": seq, "no_erase": true }))
    }

    /// Sends a request for each item, several at a time, and returns the responses in order. After an error it waits for the
    /// requests in flight, so that none is executed after this returns.
    async fn all<A, T>(
        &self,
        asked: &[A],
        begin: impl Fn(&A) -> NatsReplies,
        read: impl Fn(&NatsReply) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut answers = Vec::with_capacity(asked.len());
        let (mut rest, mut in_flight_max) = (asked, IN_FLIGHT_FIRST);
        while !rest.is_empty() {
            let (step, others) = rest.split_at(in_flight_max.min(rest.len()));
            rest = others;
            let begun: Vec<NatsReplies> = step.iter().map(&begin).collect();
            let (mut failed, mut bytes) = (None, 1);
            for mut of in begun {
                let answer = of.next().await?;
                bytes += answer.payload.len() as u64;
                match read(&answer) {
                    Ok(answer) => answers.push(answer),
                    Err(error) => _ = failed.get_or_insert(error),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            let fit = step.len() as u64 * ANSWERS_BYTES / bytes;
            in_flight_max = (fit as usize).clamp(1, IN_FLIGHT_MAX);
        }
        Ok(answers)
    }

    async fn read_by_reader(&self, filter: &str) -> Result<Vec<Record>, StoreError> {
        let config = json!({
            "stream_name": self.name,
            "config": {
                "deliver_policy": "last_per_subject",
                "ack_policy": "none",
                "replay_policy": "instant",
                "filter_subject": filter,
                "inactive_threshold": READER_IDLE.as_nanos() as u64,
                "mem_storage": true,
                "num_replicas": 1,
            },
        });
        let answer = self.ask("CONSUMER.CREATE", &config).next().await?;
        let created = expected(&answer)?;
        if created.num_pending == 0 {
            self.drop_reader(&created.name);
            return Ok(Vec::new());
        }
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.name, created.name);
        let mut records = Vec::new();
        let (mut pending, mut silent) = (created.num_pending, 0);
        // Not `max_bytes`: servers of version 2.9 drop the message that does not fit.
        let mut batch_max = BATCH_FIRST;
        while pending > 0 {
            let batch = pending.min(batch_max);
            let (mut count, mut bytes) = (0, 1);
            let body = json!({ "batch": batch, "expires": BATCH_EXPIRES.as_nanos() as u64 });
            let mut messages = self.link.request_messages(&next, body.to_string().as_bytes());
            for _ in 0..batch {
                let answer = messages.next().await?;
                match (answer.status, answer.reply.as_deref().and_then(delivered)) {
                    (None, Some((seq, time_ms, left))) => {
                        let (subject, payload) = (answer.subject, answer.payload);
                        (count, bytes) = (count + 1, bytes + payload.len() as u64);
                        records.push(Record { seq, time_ms, subject, payload });
                        (pending, silent) = (left, 0);
                        if left == 0 {
                            break;
                        }
                    }
                    (Some(503), _) => return Err(stream_gone()),
                    // A counted message no longer exists: it was replaced or removed in the meantime.
                    _ => {
                        pending = self.pending(&created.name).await?;
                        silent += 1;
                        break;
                    }
                }
            }
            batch_max = (count * ANSWERS_BYTES / bytes).clamp(1, BATCH_MAX);
            if silent > SILENT_MAX {
                return Err(StoreError::Closed("the stream delivers nothing".into()));
            }
        }
        self.drop_reader(&created.name);
        Ok(records)
    }

    /// The number of messages that a consumer has not been delivered yet.
    async fn pending(&self, reader: &str) -> Result<u64, StoreError> {
        let subject = format!("$JS.API.CONSUMER.INFO.{}.{reader}", self.name);
        let answer = self.link.request(&subject, &[], b"").next().await?;
        Ok(expected(&answer)?.num_pending)
    }

    /// Deletes a consumer. The result is ignored, because the server removes it later by itself.
    fn drop_reader(&self, name: &str) {
        let subject = format!("$JS.API.CONSUMER.DELETE.{}.{name}", self.name);
        drop(self.link.request(&subject, &[], b""));
    }
}

impl RecordStream for NatsStream {
    async fn create(&self) -> Result<(), StoreError> {
        // A stream that was lost begins at 0 again.
        self.written.store(0, Ordering::Release);
        if self.is_as_wanted().await? {
            return Ok(());
        }
        let config = self.config.to_string();
        for verb in ["CREATE", "UPDATE"] {
            let subject = format!("$JS.API.STREAM.{verb}.{}", self.name);
            let mut asked = self.link.request(&subject, &[], config.as_bytes());
            let answer = asked.next().await?;
            if answer.status == Some(503) {
                let why = "nobody answers for JetStream";
                return Err(refused(Condition::NoJetstream, why));
            }
            match response(&answer)?.error {
                None => return Ok(()),
                Some(error) if verb == "CREATE" && error.is_stream_name_in_use() => {}
                Some(error) => return Err(store_error(&error)),
            }
        }
        Ok(())
    }

    async fn put_all(&self, puts: &[RecordWrite]) -> Result<Vec<Option<u64>>, StoreError> {
        self.all(puts, |put| self.begin_put(put), |answer| self.written(answer)).await
    }

    async fn get_all(&self, subjects: &[String]) -> Result<Vec<Option<Record>>, StoreError> {
        self.all(subjects, |subject| self.begin_get(subject), record).await
    }

    async fn remove_all(&self, seqs: &[u64]) -> Result<Vec<bool>, StoreError> {
        self.all(seqs, |seq| self.begin_remove(*seq), removed).await
    }

    async fn read(&self, filter: &str) -> Result<Vec<Record>, StoreError> {
        let mut records = match self.is_replicated {
            true => self.read_at_leader(filter).await?,
            false => self.read_by_reader(filter).await?,
        };
        records.sort_unstable_by_key(|record| std::cmp::Reverse(record.seq));
        // A record that is written during the read may be delivered again.
        let mut subjects = HashSet::new();
        records.retain(|record| subjects.insert(record.subject.clone()));
        records.reverse();
        Ok(records)
    }

    async fn purge(&self, filter: &str) -> Result<(), StoreError> {
        expected(&self.ask("STREAM.PURGE", &json!({ "filter": filter })).next().await?).map(drop)
    }

    fn is_replicated(&self) -> bool {
        self.is_replicated
    }

    async fn wait_for_leader(&self) -> Result<(), StoreError> {
        self.at_leader("-", 0).await.map(drop)
    }

    fn publish(&self, subject: &str, payload: &[u8]) -> Result<(), StoreError> {
        self.link.publish(subject, payload)
    }

    fn payload_bytes_max(&self) -> usize {
        self.link.message_bytes_max()
    }
}

fn response(answer: &NatsReply) -> Result<Response, StoreError> {
    match answer.status {
        Some(_) => Err(stream_gone()),
        None => serde_json::from_slice(&answer.payload)
            .map_err(|_| refused(Condition::ForeignKey, "what JetStream answers is no answer")),
    }
}

/// Returns the response unless it is an error.
pub(super) fn expected(answer: &NatsReply) -> Result<Response, StoreError> {
    let response = response(answer)?;
    match &response.error {
        Some(error) => Err(store_error(error)),
        None => Ok(response),
    }
}

fn record(answer: &NatsReply) -> Result<Option<Record>, StoreError> {
    let response = response(answer)?;
    match (response.error, response.message) {
        (Some(JetStreamError { err_code: NO_MESSAGE, .. }), _) | (None, None) => Ok(None),
        (Some(error), _) => Err(store_error(&error)),
        (None, Some(StoredMessage { subject, seq, data, time })) => {
            let time = time.parse::<jiff::Timestamp>().map_or(0, |time| time.as_millisecond());
            let payload = BASE64_STANDARD.decode(data).unwrap_or_default().into();
            Ok(Some(Record { seq, time_ms: time, subject, payload }))
        }
    }
}

fn removed(answer: &NatsReply) -> Result<bool, StoreError> {
    let Some(error) = response(answer)?.error else { return Ok(true) };
    let is_gone = match error.err_code {
        SEQUENCE_NOT_FOUND | NO_MESSAGE => true,
        DELETE_FAILED => {
            ["not found", "no message", "deleted"].iter().any(|of| error.description.contains(of))
        }
        _ => false,
    };
    if is_gone { Ok(false) } else { Err(store_error(&error)) }
}

/// Parses the reply subject of a delivered message: sequence, time in milliseconds, number of pending messages. A server with
/// domains has two more tokens before the stream's name.
fn delivered(reply: &str) -> Option<(u64, i64, u64)> {
    let words: Vec<&str> = reply.split('.').collect();
    let at = if words.len() > 10 { 7 } else { 5 };
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let time_ms = i64::try_from(number(at + 2)? / 1_000_000).ok()?;
    Some((number(at)?, time_ms, number(at + 3)?))
}

#[cfg(test)]
impl NatsStream {
    /// Deletes the stream with all its records.
    pub(crate) async fn delete(&self) {
        self.ask("STREAM.DELETE", &json!({})).next().await.expect("an answer");
    }

    /// The replicas of the stream, as its leader reports them.
    pub(crate) async fn replicas(&self) -> Value {
        let answer = self.ask("STREAM.INFO", &json!({})).next().await.expect("an answer");
        serde_json::from_slice::<Value>(&answer.payload).expect("JSON")["cluster"].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivered_message_has_its_position() {
        let reply = "$JS.ACK.dunlin-cluster.abc.1.7.2.1700000000123456789.3";
        assert_eq!(delivered(reply), Some((7, 1_700_000_000_123, 3)));
        let reply = "$JS.ACK.hub.ACC.dunlin-cluster.abc.1.7.2.1700000000123456789.3.r";
        assert_eq!(delivered(reply), Some((7, 1_700_000_000_123, 3)));
        assert_eq!(delivered("_INBOX.1"), None);
    }
}
