//! Fetches the key sets of tokens on the control thread. Connections whose key is known do not wait for it.

use std::sync::Arc;
use std::time::Duration;

use dunlin_net::{Tls, Url};
use dunlin_pipeline::{ClientConfig, HostConfig, Request, ThreadedClient};
use tokio::sync::mpsc;

use crate::auth::jwks::{Jwks, KeySet, SET_BYTES_MAX};
use crate::clock::unix_ms;
use crate::metrics::KeyMetric;
use crate::state::ServerState;

/// The fetches of key sets in progress.
pub(crate) struct KeyFetcher {
    state: Arc<ServerState>,
    ended: mpsc::UnboundedSender<()>,
    done: mpsc::UnboundedReceiver<()>,
}

impl KeyFetcher {
    pub(crate) fn new(state: &Arc<ServerState>) -> KeyFetcher {
        let (ended, done) = mpsc::unbounded_channel();
        KeyFetcher { state: Arc::clone(state), ended, done }
    }

    /// Begins the fetches that are due. Returns the milliseconds until the next one is due.
    pub(crate) fn fetch_due(&self) -> u64 {
        let settings = self.state.settings.load_full();
        let mut wait_ms = u64::MAX;
        for jwks in settings.key_sets() {
            let now_ms = unix_ms();
            match jwks.due_in_ms(now_ms) {
                Some(0) => {
                    jwks.begin(now_ms);
                    let (state, ended) = (Arc::clone(&self.state), self.ended.clone());
                    tokio::spawn(async move {
                        fetch(&state, &jwks).await;
                        let _ = ended.send(());
                    });
                }
                Some(due_ms) => wait_ms = wait_ms.min(due_ms),
                None => {}
            }
        }
        wait_ms
    }

    /// Returns when a fetch has ended.
    pub(crate) async fn fetched(&mut self) {
        // `self` has a sender, so the channel does not close.
        let _ = self.done.recv().await;
    }
}

async fn fetch(state: &ServerState, jwks: &Jwks) {
    let counters = &state.key_counters;
    counters.count(KeyMetric::Fetched);
    let url = &jwks.endpoint().url;
    match read(jwks).await {
        Ok(keys) => {
            let keys = jwks.fetched(keys, unix_ms());
            counters.set(KeyMetric::FetchedAt, unix_ms() / 1000);
            if keys == 0 {
                tracing::warn!(url, "the key set has no public key to verify tokens with");
            } else {
                tracing::debug!(url, keys, "a key set was fetched");
            }
        }
        Err(error) => {
            jwks.failed(unix_ms());
            counters.count(KeyMetric::Failed);
            tracing::warn!(url, error, "a key set could not be fetched; the keys before it stay");
        }
    }
    let settings = state.settings.load();
    counters.set(KeyMetric::Keys, settings.key_sets().map(|jwks| jwks.len() as u64).sum());
}

/// Fetches a set over a new connection: fetches are too rare to keep one open.
async fn read(jwks: &Jwks) -> Result<KeySet, String> {
    let endpoint = jwks.endpoint();
    let url: Url = endpoint.url.parse().map_err(|error| format!("{error}"))?;
    let tls = match &endpoint.ca {
        Some(ca) => Some(Tls::with_roots(ca.as_bytes()).map_err(|error| error.to_string())?),
        None => None,
    };
    let one_at_a_time = HostConfig::one_at_a_time(endpoint.timeout_ms, SET_BYTES_MAX);
    let config = HostConfig { tls, ..one_at_a_time };
    let client =
        ThreadedClient::start(ClientConfig::default(), 1).map_err(|error| error.to_string())?;
    let host = client.host(&endpoint.url, config).map_err(|error| error.to_string())?;
    let headers = [("Accept", "application/jwk-set+json, application/json")];
    let call = client.call(host, &Request { headers: &headers, ..Request::get(&url.target) });
    let bound = Duration::from_millis(endpoint.timeout_ms);
    let response = tokio::time::timeout(bound, call)
        .await
        .map_err(|_| format!("no answer within {} ms", endpoint.timeout_ms))?
        .map_err(|error| error.to_string())?;
    if response.status != 200 {
        return Err(format!("it answers {}", response.status));
    }
    KeySet::parse(&response.body)
}
