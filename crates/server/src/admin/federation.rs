//! `/federation`: shows the peers, and dials one now.

use std::sync::Arc;

use dunlin_net::ConnId;
use dunlin_net::http::{self, Method, query};
use serde_json::json;

use super::problem::{self, ProblemDetails};
use super::{Admin, Cx, answer_json};
use crate::message::federation::FederationMessage;

impl Admin {
    /// Handles a request below `/federation`; `rest` is the path behind it.
    pub(super) fn federation(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::Request<'_>,
        rest: &str,
    ) -> Result<(), ProblemDetails> {
        if rest.is_empty() {
            return match request.method {
                Method::Get | Method::Head => {
                    answer_json(cx, conn, 200, &self.state.federation.status());
                    Ok(())
                }
                _ => Err(ProblemDetails::method("GET, HEAD")),
            };
        }
        let Some(peer) = rest.strip_prefix('/').and_then(|rest| rest.strip_suffix("/retry")) else {
            let detail = "use POST /federation/{peer}/retry";
            return Err(ProblemDetails::new(&problem::NOT_FOUND, detail));
        };
        if !matches!(request.method, Method::Post) {
            return Err(ProblemDetails::method("POST"));
        }
        let peer: Arc<str> = query::decode_path(peer).into();
        let settings = self.state.settings.load();
        if settings.config.federation.peer(&peer).is_none() {
            let detail = format!("`{peer}` is not a peer, is blocked, or federation is off");
            return Err(ProblemDetails::new(&problem::NOT_FOUND, detail));
        }
        let to = self.state.bus.federation();
        if self.endpoint.send(to, FederationMessage::Retry(peer)).is_err() {
            let detail = "the federation thread is busy";
            return Err(ProblemDetails::new(&problem::OVERLOADED, detail).header("Retry-After", &1));
        }
        self.endpoint.flush();
        answer_json(cx, conn, 200, &json!({}));
        Ok(())
    }
}
