//! Dialogues of peers with the codecs.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod http1_body;
mod http1_request;
mod http1_response;
mod http2_client;
mod http2_hpack;
mod http2_properties;
mod nats;
mod properties;
mod proxy;
mod resp;
mod sse;
mod websocket_deflate;
mod websocket_handshake;
mod websocket_messages;
