//! The trace that a request belongs to: the header `traceparent` (W3C Trace Context, level 1).

/// The parent of the spans that a request causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: u128,
    /// The span of the caller.
    pub span: u64,
    /// Whether the caller records it.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Parses the header. An invalid one counts as absent (§4.3), so that it does not fail a push.
    pub fn read(header: &str) -> Option<TraceParent> {
        let bytes = header.as_bytes();
        // Version, trace, parent and flags. Later versions may append fields after a dash.
        let is_cut = |at: usize| bytes.get(at) == Some(&b'-');
        let ends = bytes.len() == 55 || bytes.len() > 55 && is_cut(55) && !header.starts_with("00");
        if !ends || ![2, 35, 52].into_iter().all(is_cut) {
            return None;
        }
        let hex = |from: usize, to: usize| {
            let digits = header.get(from..to)?;
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            digits.bytes().all(is_digit).then(|| u128::from_str_radix(digits, 16).ok()).flatten()
        };
        let (version, trace, span, flags) = (hex(0, 2)?, hex(3, 35)?, hex(36, 52)?, hex(53, 55)?);
        // An id of all zeros is invalid, and so is version ff.
        (version != 0xff && trace != 0 && span != 0).then_some(TraceParent {
            trace,
            span: span as u64,
            is_sampled: flags & 1 == 1,
        })
    }

    /// Returns the span of a call and its pushes; a disabled span without a subscriber.
    pub(crate) fn span(parent: Option<TraceParent>, call: u64) -> tracing::Span {
        let span = tracing::trace_span!(
            target: "dunlin_push::trace",
            "api_push",
            otel.kind = "server",
            call,
            trace_id = tracing::field::Empty,
            parent_span_id = tracing::field::Empty,
        );
        if let Some(parent) = parent.filter(|_| !span.is_disabled()) {
            span.record("trace_id", format!("{:032x}", parent.trace).as_str());
            span.record("parent_span_id", format!("{:016x}", parent.span).as_str());
        }
        span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_header_names_a_trace_and_its_parent() {
        let parent = TraceParent::read(GOOD).unwrap();
        assert_eq!(parent.trace, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!(parent.span, 0xb7ad_6b71_6920_3331);
        let later = format!("01{}-more", &GOOD[2..]);
        assert_eq!(TraceParent::read(&later), Some(parent), "a later version may go on");
    }

    #[test]
    fn what_is_no_header_is_no_trace() {
        let zero_trace = GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        let zero_span = GOOD.replace("b7ad6b7169203331", &"0".repeat(16));
        for bad in [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-more"),
            &format!("{GOOD}0"),
            &GOOD.replace('a', "A"),
            &GOOD.replace("00-", "ff-"),
            &GOOD.replace('-', "_"),
            &GOOD.replacen("0a", "ä", 1),
            &zero_trace,
            &zero_span,
        ] {
            assert_eq!(TraceParent::read(bad), None, "{bad:?}");
        }
    }
}
