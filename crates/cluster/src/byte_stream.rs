//! The byte streams of stores.

use tokio::io::{AsyncRead, AsyncWrite};

/// A connection, with or without TLS.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}
