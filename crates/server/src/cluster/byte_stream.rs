//! What stores send and receive by.

use tokio::io::{AsyncRead, AsyncWrite};

/// A connection, by TLS or not.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}
