//! The admin port: `/health`, `/metrics` and `/info`, answered by the control thread.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::metrics;
use crate::node::{Node, State};

/// Admin connections served at once; the next one waits in the accept queue.
const CONNECTIONS_MAX: usize = 128;
/// A head that takes longer is cut off.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept (no descriptors), so that the loop does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

const PATHS: &str = "/health, /metrics, /info";

/// Serves the admin port until the runtime is dropped.
pub(crate) async fn serve(node: Arc<Node>, listener: TcpListener) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed; were it, there would be nothing left to serve.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "admin port could not accept");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let node = Arc::clone(&node);
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let response = respond(&node, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "admin connection ended");
            }
            drop(place);
        });
    }
}

fn respond<B>(node: &Node, request: &Request<B>) -> Response<Full<Bytes>> {
    // A load balancer has no secret, and learns nothing from `/health` but that we live.
    if request.uri().path() != "/health" && !is_authorised(node, request) {
        let why = "send admin.token as `Authorization: Bearer TOKEN`\n".to_owned();
        let mut response = text(StatusCode::UNAUTHORIZED, why);
        let challenge = hyper::header::HeaderValue::from_static("Bearer");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        return response;
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response =
            text(StatusCode::METHOD_NOT_ALLOWED, format!("use GET; the paths are {PATHS}\n"));
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/health" => {
            let state = node.state();
            let status = match state {
                State::Serving => StatusCode::OK,
                State::Starting | State::Draining => StatusCode::SERVICE_UNAVAILABLE,
            };
            json(status, &serde_json::json!({ "status": state.name() }))
        }
        "/metrics" => {
            let mut response = text(StatusCode::OK, metrics::exposition(&node.counters));
            let exposition = "text/plain; version=0.0.4; charset=utf-8";
            response
                .headers_mut()
                .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(exposition));
            response
        }
        "/info" => json(StatusCode::OK, &node.info()),
        path => text(StatusCode::NOT_FOUND, format!("{path} is not here; the paths are {PATHS}\n")),
    }
}

/// Whether the caller shows `admin.token` (RFC 6750 §2.1), or none is set.
fn is_authorised<B>(node: &Node, request: &Request<B>) -> bool {
    let settings = node.settings.load();
    let Some(token) = &settings.config.admin.token else { return true };
    let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.split_once(' '));
    shown.is_some_and(|(scheme, shown)| {
        scheme.eq_ignore_ascii_case("Bearer") && token.matches(shown.trim())
    })
}

fn json(status: StatusCode, value: &serde_json::Value) -> Response<Full<Bytes>> {
    let mut response = text(status, format!("{value:#}\n"));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    response
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, hyper::header::HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use dunlin_config::{Config, Secret};

    use super::*;
    use crate::settings::Settings;

    fn status(node: &Node, path: &str, authorization: Option<&str>) -> StatusCode {
        let mut request = Request::get(path);
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        respond(node, &request.body(()).expect("a request")).status()
    }

    #[test]
    fn with_a_token_only_its_bearer_sees_more_than_health() {
        let mut config = Config::default();
        config.admin.token = Some(Secret::new("0123456789abcdef"));
        let node = Node::new(Settings::new(config), 1, [0; 16], String::new());
        for path in ["/metrics", "/info", "/elsewhere"] {
            assert_eq!(status(&node, path, None), StatusCode::UNAUTHORIZED);
            assert_eq!(status(&node, path, Some("Bearer wrong")), StatusCode::UNAUTHORIZED);
            assert_eq!(status(&node, path, Some("0123456789abcdef")), StatusCode::UNAUTHORIZED);
        }
        assert_eq!(status(&node, "/metrics", Some("Bearer 0123456789abcdef")), StatusCode::OK);
        assert_eq!(status(&node, "/info", Some("bearer 0123456789abcdef")), StatusCode::OK);
        assert_ne!(status(&node, "/health", None), StatusCode::UNAUTHORIZED);
    }

    #[test]
    fn without_a_token_the_loopback_address_is_the_guard() {
        let node = Node::new(Settings::new(Config::default()), 1, [0; 16], String::new());
        assert_eq!(status(&node, "/metrics", None), StatusCode::OK);
    }
}
