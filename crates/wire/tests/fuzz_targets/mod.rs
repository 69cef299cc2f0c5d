//! What the fuzzer feeds, and what must hold whatever it feeds.
//!
//! Shared by `fuzz/`, which explores, and by `tests/fuzz_corpus.rs`, which replays the seeds. Each
//! target takes any bytes and panics when an invariant is broken.

mod fossil;
mod http1;
mod http2;
mod nats;
mod protobuf;
mod proxy;
mod resp;
mod sse;
mod websocket;

/// A target by the name of its corpus.
pub type Target = fn(&[u8]);

/// All targets: `fuzz/corpus/NAME` holds the seeds of each.
pub const TARGETS: &[(&str, Target)] = &[
    ("http1_request", http1::request),
    ("http1_response", http1::response),
    ("http1_chunked", http1::chunked),
    ("http1_query", http1::query),
    ("http2_frames", http2::frames),
    ("http2_hpack", http2::hpack),
    ("http2_client", http2::client),
    ("websocket_frame", websocket::frame),
    ("websocket_messages", websocket::messages),
    ("websocket_handshake", websocket::handshake),
    ("websocket_extensions", websocket::extensions),
    ("websocket_inflate", websocket::inflate),
    ("websocket_deflate", websocket::deflate),
    ("fossil_encode", fossil::encode),
    ("fossil_decode", fossil::decode),
    ("nats_operations", nats::operations),
    ("protobuf_fields", protobuf::fields),
    ("proxy_header", proxy::header),
    ("resp_values", resp::values),
    ("sse_decoder", sse::decoder),
    ("sse_event", sse::event),
];

/// Splits off the first byte, which chooses the settings of a target.
fn settings(data: &[u8]) -> Option<(u8, &[u8])> {
    data.split_first().map(|(settings, data)| (*settings, data))
}
