//! The trace that a publication belongs to.

/// The ids of a span that has caused something (W3C Trace Context). The hub carries them, and does not look at them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: u128,
    /// The span.
    pub span: u64,
}

impl TraceContext {
    /// Returns the ids as bytes, the trace first.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.trace.to_be_bytes());
        bytes[16..].copy_from_slice(&self.span.to_be_bytes());
        bytes
    }

    /// Reads ids; `None` if these are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<TraceContext> {
        let (trace, span) = bytes.split_at_checked(16)?;
        let trace = u128::from_be_bytes(trace.try_into().ok()?);
        let span = u64::from_be_bytes(span.try_into().ok()?);
        (trace != 0 && span != 0).then_some(TraceContext { trace, span })
    }
}

/// A publication of a trace that was put into outboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedDelivery {
    /// The span that has caused it.
    pub cause: TraceContext,
    /// The channel.
    pub channel: std::sync::Arc<str>,
    /// See [`Publication::time_ms`](crate::Publication::time_ms).
    pub time_ms: u64,
    /// The number of outboxes.
    pub deliveries: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_as_bytes_and_others_are_none() {
        let context = TraceContext { trace: 7 << 100 | 3, span: 9 };
        assert_eq!(TraceContext::from_bytes(&context.to_bytes()), Some(context));
        for bad in [&[][..], &[1; 23], &[1; 25], &[0; 24]] {
            assert_eq!(TraceContext::from_bytes(bad), None, "{bad:?}");
        }
    }
}
