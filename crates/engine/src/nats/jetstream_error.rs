//! Errors in answers of JetStream.

use serde::Deserialize;

use super::refusals;
use crate::status::RefusalReason;

/// The `error` object of a JetStream answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct JetStreamError {
    /// The error code.
    pub err_code: u32,
    /// The server's description.
    pub description: String,
}

impl JetStreamError {
    /// Returns whether the subject's last message differs from the expected one. Servers from 2.12 have a second code that
    /// omits the actual sequence, used while other messages of a replicated stream are being stored.
    pub fn is_wrong_last_sequence(&self) -> bool {
        matches!(self.err_code, 10_071 | 10_164)
    }

    /// Returns whether a stream with the name exists and has another configuration.
    pub fn is_stream_name_in_use(&self) -> bool {
        self.err_code == 10_058
    }

    /// Returns whether the stream does not exist.
    pub fn is_stream_not_found(&self) -> bool {
        self.err_code == 10_059
    }

    /// Returns why the server refuses, and the fix.
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
