//! The control port: ledger, counts and behaviour over HTTP/1.1, for tests in any language.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::apns::{Order, Shared};

/// Maximum size of a request's body.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Maximum number of entries in an answer.
const ENTRIES_MAX: usize = 10_000;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

const HELP: &str = "\
GET    /ledger?after=N  what became of each push, JSON lines, at most 10,000; N is the last `n` seen
DELETE /ledger          forget it
GET    /counts          what was seen and done
GET    /behaviour       how it behaves
PATCH  /behaviour       change that, as in {\"rtt_ms\": 250, \"goaway\": {\"every\": 10000}}
POST   /order           have something happen now, as in {\"do\": \"go_away\", \"last\": 5}
GET    /ca.pem          the certificate to trust
";

/// Serves the control port until the runtime is dropped.
pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>, ca_pem: String) {
    let ca_pem: Arc<str> = ca_pem.into();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the control port could not accept");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let (shared, ca_pem) = (Arc::clone(&shared), Arc::clone(&ca_pem));
        tokio::task::spawn_local(async move {
            let answer = service_fn(|request| {
                let (shared, ca_pem) = (Arc::clone(&shared), Arc::clone(&ca_pem));
                async move { Ok::<_, Infallible>(respond(&shared, &ca_pem, request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a control connection ended");
            }
        });
    }
}

async fn respond(
    shared: &Shared,
    ca_pem: &str,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    match (head.method, head.uri.path()) {
        (Method::GET, "/") => text(StatusCode::OK, HELP),
        (Method::GET, "/ca.pem") => text(StatusCode::OK, ca_pem.to_owned()),
        (Method::GET, "/counts") => json(&shared.counts()),
        (Method::GET, "/behaviour") => json(&**shared.behaviour.borrow()),
        (Method::GET, "/ledger") => {
            let query = head.uri.query().unwrap_or_default();
            let after = match query.strip_prefix("after=").unwrap_or("0").parse() {
                Ok(after) if query.is_empty() || query.starts_with("after=") => after,
                _ => {
                    return text(
                        StatusCode::BAD_REQUEST,
                        "write /ledger?after=N with a whole number\n",
                    );
                }
            };
            let mut lines = Vec::new();
            for entry in shared.world().ledger.entries(after, ENTRIES_MAX) {
                // Cannot fail: an entry is always serializable and the writer is a `Vec`.
                let _ = serde_json::to_writer(&mut lines, &entry);
                lines.push(b'\n');
            }
            typed(StatusCode::OK, "application/x-ndjson", lines)
        }
        (Method::DELETE, "/ledger") => {
            shared.world().ledger.clear();
            text(StatusCode::OK, "")
        }
        (Method::PATCH, "/behaviour") => {
            let patched = match body_text(body).await {
                Ok(text) => {
                    shared.behaviour.borrow().patched(&text).map_err(|fault| fault.to_string())
                }
                Err(fault) => Err(fault),
            };
            match patched {
                Ok(behaviour) => {
                    let response = json(&behaviour);
                    shared.behaviour.send_replace(Arc::new(behaviour));
                    response
                }
                Err(fault) => text(StatusCode::BAD_REQUEST, format!("{fault}\n")),
            }
        }
        (Method::POST, "/order") => {
            let order = match body_text(body).await {
                Ok(text) => serde_json::from_str::<Order>(&text).map_err(|fault| fault.to_string()),
                Err(fault) => Err(fault),
            };
            match order {
                Ok(order) => {
                    let connections = shared.orders.send(order).unwrap_or(0);
                    json(&serde_json::json!({ "connections": connections }))
                }
                Err(fault) => text(StatusCode::BAD_REQUEST, format!("{fault}\n")),
            }
        }
        _ => text(StatusCode::NOT_FOUND, HELP),
    }
}

async fn body_text(body: Incoming) -> Result<String, String> {
    let body =
        Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
    String::from_utf8(body.to_bytes().to_vec()).map_err(|_| "the body is not UTF-8".to_owned())
}

fn json(value: &impl Serialize) -> Response<Full<Bytes>> {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    typed(StatusCode::OK, "application/json", text)
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
