//! The admin port: `/health`, `/metrics` and `/info`, answered by the control thread.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
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

fn respond(node: &Node, request: &Request<Incoming>) -> Response<Full<Bytes>> {
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
