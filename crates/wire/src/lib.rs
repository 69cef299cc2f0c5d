//! Codecs without I/O: bytes in, events out.
//!
//! Each module turns bytes of one protocol into typed events and back. Nothing here opens a socket,
//! reads a clock or keeps a buffer for an idle connection: the caller passes the bytes it holds, is
//! told how many were consumed and what they meant, and keeps whatever state a cut message needs.
//!
//! - [`http1`]: HTTP/1.1 heads and bodies, for servers and clients (RFC 9110, RFC 9112).
//! - [`http2`]: frames, header compression and a client's connection (RFC 9113, RFC 7541).
//! - [`websocket`]: handshake, frames, message assembly and permessage-deflate (RFC 6455, RFC 7692).
//! - [`sse`]: server-sent events (WHATWG HTML §9.2).
//! - [`resp`]: values and commands of Redis, RESP2 and RESP3.
//!
//! What a peer can cause is an error value that knows the protocol's own answer to it: the status
//! code of an HTTP response, or the close code of a WebSocket.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod http1;
pub mod http2;
pub mod resp;
pub mod sse;
mod token;
pub mod websocket;
