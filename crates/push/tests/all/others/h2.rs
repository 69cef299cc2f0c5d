//! The `h2` crate's server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dunlin_push::apns::{Apns, ProviderToken};
use dunlin_push::{Connect, Connecting, Connections, Io, Stage};

use super::{Other, config};
use crate::stories::harness::delay;

/// The `h2` crate's, over a pipe in memory.
#[derive(Clone)]
pub struct H2 {
    asked: Arc<Mutex<Asked>>,
    rtt: Duration,
    /// Requests under way on a connection.
    pub streams: u32,
}

impl Default for H2 {
    fn default() -> H2 {
        H2 { asked: Arc::default(), rtt: Duration::ZERO, streams: 1_000 }
    }
}

#[derive(Default)]
struct Asked {
    by_path: HashMap<String, usize>,
    first: Option<Vec<u8>>,
}

impl H2 {
    /// How long, and what.
    fn answer(&self, path: &str, authorization: &[u8]) -> (u64, Result<(u16, &str), h2::Reason>) {
        let mut asked = self.asked.lock().unwrap();
        let before = asked.by_path.entry(path.to_owned()).or_default();
        *before += 1;
        let (before, all) = (*before - 1, asked.by_path.len() as u64);
        let is_first = asked.first.get_or_insert_with(|| authorization.to_vec()) == authorization;
        let drawn = (all.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 24);
        match &path["/3/device/".len()..][..2] {
            "aa" => (if all.is_multiple_of(20) { 1 } else { 30 }, Ok((200, ""))),
            // A slow shard: one device in eight.
            "ad" if path.ends_with(['0', '8']) => (2_010, Ok((200, ""))),
            "ad" => (10, Ok((200, ""))),
            "ab" => (5 + (-25.0 * (1.0 - drawn).ln()) as u64, Ok((200, ""))),
            "b1" => (0, Ok((410, r#"{"reason":"Unregistered","timestamp":"1795276142526.25"}"#))),
            "b3" if before == 0 => (0, Ok((503, r#"{"reason":"ServiceUnavailable"}"#))),
            "b4" if before == 0 => (0, Err(h2::Reason::INTERNAL_ERROR)),
            "b4" => (0, Ok((400, r#"{"reason":"BadDeviceToken"}"#))),
            "b5" => (700, Ok((200, ""))),
            "b6" if before < 5 => (0, Err(h2::Reason::REFUSED_STREAM)),
            "c0" => (0, Ok((403, r#"{"reason":"InvalidProviderToken"}"#))),
            "d0" if is_first => (50, Ok((403, r#"{"reason":"ExpiredProviderToken"}"#))),
            _ => (0, Ok((200, ""))),
        }
    }

    async fn serve(self, stream: tokio::io::DuplexStream) {
        let mut connection = h2::server::Builder::new();
        connection.max_concurrent_streams(self.streams);
        let mut connection = connection.handshake::<_, Bytes>(stream).await.unwrap();
        while let Some(Ok((mut request, mut respond))) = connection.accept().await {
            let server = self.clone();
            tokio::spawn(async move {
                while let Some(Ok(piece)) = request.body_mut().data().await {
                    let _ = request.body_mut().flow_control().release_capacity(piece.len());
                }
                let path = request.uri().path();
                let (ms, answer) =
                    server.answer(path, request.headers()["authorization"].as_bytes());
                tokio::time::sleep(Duration::from_millis(ms)).await;
                match answer {
                    Err(reason) => respond.send_reset(reason),
                    Ok((status, body)) => {
                        let mut response = http::Response::builder().status(status);
                        if path.starts_with("/3/device/b2") {
                            response = response.header("x-filler", "x".repeat(32 << 10));
                        }
                        let response = response.body(()).unwrap();
                        // The peer may have given it up.
                        if let Ok(mut stream) = respond.send_response(response, false) {
                            let _ = stream.send_data(Bytes::from(body.to_owned()), true);
                        }
                    }
                }
            });
        }
    }
}

impl Connect for H2 {
    fn connect(&self, _: Stage) -> Connecting<'_> {
        Box::pin(async {
            let (ours, line) = tokio::io::duplex(1 << 20);
            let (far, theirs) = tokio::io::duplex(1 << 20);
            tokio::spawn(delay(line, far, self.rtt / 2));
            tokio::spawn(self.clone().serve(theirs));
            Ok(Box::new(ours) as Io)
        })
    }
}

impl Other for H2 {
    async fn sender(&self, rtt: Duration, token: ProviderToken, connections: Connections) -> Apns {
        let server = H2 { rtt, ..self.clone() };
        Apns::start_with("push.test".to_owned(), Some(token), server, config(connections))
    }
}
