//! `/revocations`: revoked tokens and blocked users. Also executes the server API's `revoke_token`,
//! `invalidate_user_tokens`, `block_user` and `unblock_user`, which arrive over the bus.

use dunlin_net::ConnId;
use dunlin_net::http::{self, Method};
use serde::Deserialize;
use serde_json::{Value, json};

use super::problem::{self, ProblemDetails};
use super::{Admin, Cx, answer_json, unix_ms};
use crate::auth::revocation::{NAME_BYTES_MAX, Revocation, RevocationError, Revoked};
use crate::message::worker::WorkerMessage;

/// The body of a `POST` or `DELETE`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RevocationBody {
    jti: Option<String>,
    user: Option<String>,
    /// Unix time in seconds; default: now.
    issued_before: Option<u64>,
    /// Unix time in seconds; 0: never.
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    expire_at: u64,
}

impl Admin {
    /// Answers a request for `/revocations`.
    pub(super) fn revocations(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::Request<'_>,
    ) -> Result<(), ProblemDetails> {
        match request.method {
            Method::Get | Method::Head => {
                let revocations: Vec<Value> =
                    self.state.revocations.list(unix_ms()).iter().map(shown).collect();
                answer_json(cx, conn, 200, &json!({ "revocations": revocations }));
            }
            Method::Post => {
                let revocation = body(request)?.revocation()?;
                self.revoke(&revocation).map_err(problem_of)?;
                answer_json(cx, conn, 200, &json!({}));
            }
            Method::Delete => {
                let RevocationBody { jti, user, .. } = body(request)?;
                if !self.state.revocations.remove(jti.as_deref(), user.as_deref()) {
                    let detail = "no such revocation";
                    return Err(ProblemDetails::new(&problem::NOT_FOUND, detail));
                }
                let now_ms = unix_ms();
                if let Some(log) = &mut self.revocation_log
                    && let Err(error) = log.rewrite(&self.state.revocations, now_ms)
                {
                    return Err(ProblemDetails::new(&problem::LOG_NOT_WRITTEN, error.to_string()));
                }
                answer_json(cx, conn, 200, &json!({}));
            }
            _ => return Err(ProblemDetails::method("GET, HEAD, POST, DELETE")),
        }
        Ok(())
    }

    /// Handles a revocation by a caller of the server API.
    pub(super) fn handle_revoke(&mut self, worker: usize, token: u64, revocation: &Revocation) {
        let result = self.revoke(revocation);
        // If the ring is full, the worker answers its caller with a timeout.
        let _ = self
            .endpoint
            .send(self.state.bus.worker(worker), WorkerMessage::RevokeReply { token, result });
    }

    /// Handles the end of a user's block, requested by a caller of the server API.
    pub(super) fn handle_unblock(&mut self, worker: usize, token: u64, user: &str) {
        let is_new = self.state.revocations.unblock(user);
        let result = match &mut self.revocation_log {
            Some(log) if is_new => log.rewrite(&self.state.revocations, unix_ms()).map_err(|error| {
                tracing::error!(%error, "that a user is not blocked any more is not on the disk");
                RevocationError::NotOnDisk
            }),
            _ => Ok(()),
        };
        let _ = self
            .endpoint
            .send(self.state.bus.worker(worker), WorkerMessage::RevokeReply { token, result });
    }

    fn revoke(&mut self, revocation: &Revocation) -> Result<(), RevocationError> {
        let now_ms = unix_ms();
        let max = self.store.head().config.client.token.revocations_max as usize;
        let in_force = self.state.revocations.add(revocation.clone(), now_ms, max)?;
        for worker in 0..self.state.workers() {
            let message = WorkerMessage::Revoked(Box::new(in_force.clone()));
            let to = self.state.bus.worker(worker);
            if self.endpoint.send(to, message).is_err() && !self.unreached.contains(&worker) {
                self.unreached.push(worker);
            }
        }
        let Some(log) = &mut self.revocation_log else { return Ok(()) };
        log.append(&in_force, &self.state.revocations, now_ms, max).map_err(|error| {
            tracing::error!(%error, "a revocation is not on the disk");
            RevocationError::NotOnDisk
        })
    }

    /// Notifies workers again whose rings were full when tokens were revoked. Called once a second.
    pub(super) fn reach_workers(&mut self) {
        let Self { unreached, endpoint, state, .. } = self;
        unreached.retain(|&worker| {
            endpoint.send(state.bus.worker(worker), WorkerMessage::RevokedUnseen).is_err()
        });
    }
}

impl RevocationBody {
    fn revocation(self) -> Result<Revocation, ProblemDetails> {
        match (self.jti, self.user) {
            (Some(jti), None) if !jti.is_empty() => Ok(Revocation::of_token(&jti, self.expire_at)),
            (None, Some(user)) if !user.is_empty() => {
                let before = self.issued_before.unwrap_or(unix_ms() / 1000 + 1);
                Ok(Revocation::of_user(&user, before, self.expire_at))
            }
            _ => {
                let detail = "name a token by `jti`, or a user by `user`, and not both";
                Err(ProblemDetails::new(&problem::MALFORMED, detail))
            }
        }
    }
}

fn body(request: &http::Request<'_>) -> Result<RevocationBody, ProblemDetails> {
    serde_json::from_slice(request.body)
        .map_err(|error| ProblemDetails::new(&problem::MALFORMED, error.to_string()))
}

fn shown(revocation: &Revocation) -> Value {
    let mut shown = match &revocation.of {
        Revoked::Jti(jti) => json!({ "jti": jti }),
        Revoked::User { user, issued_before_s } => {
            json!({ "user": user, "issued_before": issued_before_s })
        }
        Revoked::Blocked(user) => json!({ "blocked": user }),
    };
    shown["expire_at"] = revocation.until_s.into();
    shown
}

fn problem_of(error: RevocationError) -> ProblemDetails {
    match error {
        RevocationError::Full => ProblemDetails::new(
            &problem::INVALID,
            "client.token.revocations_max is reached; give revocations an end, or raise it",
        ),
        RevocationError::TooLong => ProblemDetails::new(
            &problem::MALFORMED,
            format!("the id or the user has more than {NAME_BYTES_MAX} bytes"),
        ),
        RevocationError::NotOnDisk => ProblemDetails::new(
            &problem::LOG_NOT_WRITTEN,
            "it is in force, but the disk does not take it: a restart would forget it",
        ),
    }
}
