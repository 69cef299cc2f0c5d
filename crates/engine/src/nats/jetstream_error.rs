//! The error that JetStream answers a request with.

use serde::Deserialize;

use super::refusals;
use crate::status::RefusalReason;

/// The `error` of an answer of JetStream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct JetStreamError {
    /// What is wrong, by number.
    pub err_code: u32,
    /// What is wrong, in the server's words.
    pub description: String,
}

impl JetStreamError {
    /// The subject's last message is another than was expected. Servers from 2.12 have a second code for where they do not say which
    /// it is: while other messages of a stream with replicas are being stored.
    pub fn is_wrong_last_sequence(&self) -> bool {
        matches!(self.err_code, 10_071 | 10_164)
    }

    /// There is a stream of the name, and its configuration is another.
    pub fn is_stream_name_in_use(&self) -> bool {
        self.err_code == 10_058
    }

    /// There is no such stream.
    pub fn is_stream_not_found(&self) -> bool {
        self.err_code == 10_059
    }

    /// Why the server refuses, and what to do about it.
    pub fn reason(&self) -> RefusalReason {
        refusals::of_code(self.err_code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_codes_of_a_wrong_last_sequence_are_known() {
        for (body, is_wrong) in [
            (r#"{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}"#, true),
            (r#"{"code":400,"err_code":10164,"description":"wrong last sequence"}"#, true),
            (r#"{"code":404,"err_code":10059}"#, false),
        ] {
            let error: JetStreamError = serde_json::from_str(body).unwrap();
            assert_eq!(error.is_wrong_last_sequence(), is_wrong, "{body}");
            assert_eq!(error.is_stream_not_found(), !is_wrong, "{body}");
        }
    }
}
