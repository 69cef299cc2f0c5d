//! Health checks of the members of upstreams over sockets, each a single request on its own connection.

use std::num::NonZeroU64;
use std::sync::Arc;

use dunlin_config as config;
use dunlin_config::Map;
use dunlin_hub::Now;
use dunlin_net::Tls;
use dunlin_pipeline::{Caller, Client, Depth, HostConfig, HostId, Request, Requests};
use dunlin_webhooks::{Check, HealthChecker, Unhealthy};
use hashbrown::HashMap;

/// The tag bit that distinguishes checks from all other requests.
pub(super) const CHECK: u64 = 1 << 63;

/// The roots trusted for the members of an upstream, or the error in them.
type Trust = Result<Option<Tls>, Arc<str>>;

/// The health checker and its requests in flight.
pub(super) struct Checks {
    checker: HealthChecker,
    in_flight: HashMap<u64, (Check, HostId)>,
    /// By upstream, with the `ca` text that was parsed, since parsing is expensive.
    trust: HashMap<Arc<str>, (Option<Arc<str>>, Trust)>,
    /// Checks that could not be sent.
    failed: Vec<(u64, Arc<str>)>,
    /// Whether the set of unhealthy members changed since [`Checks::handle_results`] last reported it.
    changed: bool,
}

impl Checks {
    pub(super) fn new(checker: HealthChecker) -> Checks {
        Checks {
            checker,
            in_flight: HashMap::new(),
            trust: HashMap::new(),
            failed: Vec::new(),
            changed: false,
        }
    }

    pub(super) fn handle_settings(&mut self, now: Now, upstreams: &Map<config::Upstream>) {
        self.checker.handle_settings(now, upstreams);
        self.trust.retain(|name, _| upstreams.contains_key(name));
        self.changed = true;
    }

    pub(super) fn unhealthy(&self) -> &Unhealthy {
        self.checker.unhealthy()
    }

    /// Returns the time of the next check, in milliseconds.
    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.checker.poll_timeout()
    }

    /// Sends the checks that are due and returns their number.
    pub(super) fn send<C: Caller>(&mut self, now: Now, client: &mut Client<C>) -> usize {
        let mut sent = 0;
        while let Some(check) = self.checker.poll_check(now) {
            sent += 1;
            let tag = check.tag;
            if let Err(why) = self.send_one(check, &mut client.requests()) {
                self.failed.push((tag, why));
            }
        }
        sent
    }

    fn send_one(&mut self, check: Check, requests: &mut Requests<'_>) -> Result<(), Arc<str>> {
        let (upstream, of) = (&check.upstream, &check.upstream.health_check);
        let config = HostConfig {
            connections: 1,
            depth: Depth::Fixed(1),
            answer_timeout_ms: NonZeroU64::new(of.timeout_ms),
            connect_timeout_ms: NonZeroU64::new(of.timeout_ms),
            connect_attempts: 1,
            replays_max: 0,
            tls: self.trust(&check)?,
            ..HostConfig::default()
        };
        let scheme = if upstream.tls { "https" } else { "http" };
        let url = format!("{scheme}://{}", check.member.address);
        let host = requests.host(&url, config).map_err(|error| Arc::from(error.to_string()))?;
        let request = Request {
            headers: &[("User-Agent", "dunlin-health-check")],
            ..Request::get(of.path.as_deref().unwrap_or("/"))
        };
        let prepared = requests.prepare(host, &request);
        if let Err(why) = requests.send(host, &prepared, check.tag | CHECK) {
            requests.remove(host);
            return Err(why.to_string().into());
        }
        self.in_flight.insert(check.tag, (check, host));
        Ok(())
    }

    fn trust(&mut self, check: &Check) -> Trust {
        let ca = check.upstream.ca.clone().filter(|_| check.upstream.tls);
        let known = self.trust.get(&check.name).filter(|(of, _)| *of == ca);
        if let Some((_, trust)) = known {
            return trust.clone();
        }
        let trust = match &ca {
            Some(text) => Tls::with_roots(text.as_bytes())
                .map(Some)
                .map_err(|error| format!("`ca` cannot be read: {error}").into()),
            None => Ok(None),
        };
        self.trust.insert(Arc::clone(&check.name), (ca, trust.clone()));
        trust
    }

    /// Handles the results of checks: the status or the error of each. Returns whether the set of unhealthy members
    /// changed.
    pub(super) fn handle_results(
        &mut self,
        now: Now,
        ended: Vec<(u64, Result<u16, Arc<str>>)>,
        requests: &mut Requests<'_>,
    ) -> bool {
        for (tag, why) in std::mem::take(&mut self.failed) {
            self.changed |= self.checker.handle_result(now, tag, Err(why));
        }
        for (tag, found) in ended {
            let Some((check, host)) = self.in_flight.remove(&tag) else { continue };
            requests.remove(host);
            let result = found.and_then(|status| {
                let passes = check.upstream.health_check.passes(status);
                passes.then_some(()).ok_or_else(|| format!("it answered {status}").into())
            });
            self.changed |= self.checker.handle_result(now, tag, result);
        }
        std::mem::take(&mut self.changed)
    }
}
