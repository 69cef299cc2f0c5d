//! The errors of NATS, and the fix for each.

use crate::status::RefusalReason;

const fn refusal(name: &'static str, fix: &'static str) -> RefusalReason {
    RefusalReason { name, fix }
}

pub(crate) const WRONG_PASSWORD: RefusalReason =
    refusal("wrong_password", "user, password, token, nkey or credentials are wrong; correct them");
pub(crate) const EXPIRED: RefusalReason = refusal(
    "credentials_expired",
    "the JWT is over, of the user or of its account; issue new credentials, as `nsc generate creds` does",
);
pub(crate) const REVOKED: RefusalReason = refusal(
    "credentials_revoked",
    "the account has revoked this user; issue credentials of another, or take it back",
);
pub(crate) const BAD_CREDENTIALS: RefusalReason = refusal(
    "bad_credentials",
    "the file of `credentials_file` or `nkey_seed_file` cannot be used any more; see the detail",
);
pub(crate) const NO_NONCE: RefusalReason = refusal(
    "no_nonce",
    "the server knows no nkeys and no operator; configure them, or log in by user and password",
);
pub(crate) const NO_PERMISSION: RefusalReason = refusal(
    "no_permission",
    "the user must be allowed to publish and subscribe to PREFIX.> and to publish to $JS.API.>",
);
pub(crate) const NO_JETSTREAM: RefusalReason = refusal(
    "no_jetstream",
    "start nats-server with JetStream (`-js`) and allow it to the account, or set `jetstream = false`",
);
pub(crate) const STREAM_CONFIG: RefusalReason = refusal(
    "stream_config",
    "the stream cannot be as the settings have it; compare `stream_…` with `nats stream info PREFIX`",
);
pub(crate) const STORAGE_FULL: RefusalReason = refusal(
    "storage_full",
    "give JetStream more storage, or keep less: `stream_bytes_max`, `stream_max_age_ms`",
);
pub(crate) const UNAVAILABLE: RefusalReason =
    refusal("jetstream_unavailable", "JetStream has no leader; see the servers' logs");
pub(crate) const TOO_LARGE: RefusalReason =
    refusal("max_payload", "raise `max_payload` of nats-server, or publish less at once");
pub(crate) const TOO_MANY: RefusalReason =
    refusal("too_many_clients", "raise `max_connections` of nats-server");
pub(crate) const SLOW_CONSUMER: RefusalReason = refusal(
    "slow_consumer",
    "the server cut a connection that did not keep up; raise its `max_pending` and `write_deadline`",
);
pub(crate) const TLS_REQUIRED: RefusalReason =
    refusal("tls_required", "the server is spoken to by TLS alone; set `tls = true`");
pub(crate) const TLS_UNAVAILABLE: RefusalReason = refusal(
    "tls_unavailable",
    "the server speaks no TLS; give it a `tls` block, or set `tls = false`",
);
pub(crate) const TLS_FAILED: RefusalReason = refusal(
    "tls_failed",
    "see the detail: `ca` has signed the server's certificate, which bears the name in `addresses`; a server that verifies \
     clients wants `tls_client_cert`; `tls_handshake_first` is for servers with `handshake_first`",
);
pub(crate) const NO_GREETING: RefusalReason = refusal(
    "no_greeting",
    "is it NATS? One with `handshake_first` awaits TLS: set `tls = true` and `tls_handshake_first = true`",
);
pub(crate) const TOO_OLD: RefusalReason =
    refusal("too_old", "nats-server 2.9 or later is needed, with headers allowed");
pub(crate) const OTHER: RefusalReason = refusal("error", "see the detail and the server's log");

/// Returns the meaning of `-ERR`.
pub fn of_text(text: &str) -> RefusalReason {
    let text = text.to_ascii_lowercase();
    for (beginning, refusal) in [
        ("authorization violation", WRONG_PASSWORD),
        ("authentication", WRONG_PASSWORD),
        ("user authentication expired", EXPIRED),
        ("account authentication expired", EXPIRED),
        ("user authentication revoked", REVOKED),
        ("user authentication", WRONG_PASSWORD),
        ("permissions violation", NO_PERMISSION),
        ("maximum connections", TOO_MANY),
        ("maximum account", TOO_MANY),
        ("maximum payload", TOO_LARGE),
        ("slow consumer", SLOW_CONSUMER),
        ("secure connection", TLS_REQUIRED),
    ] {
        if text.starts_with(beginning) {
            return refusal;
        }
    }
    OTHER
}

/// Returns the meaning of a JetStream error code.
pub(crate) fn of_code(code: u32) -> RefusalReason {
    match code {
        10_023 | 10_028 | 10_047 | 10_077 => STORAGE_FULL,
        10_054 => TOO_LARGE,
        10_035 | 10_039 | 10_076 => NO_JETSTREAM,
        10_052 | 10_058 | 10_065 | 10_074 => STREAM_CONFIG,
        10_008 | 10_009 => UNAVAILABLE,
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_names() {
        assert_eq!(of_text("Authorization Violation"), WRONG_PASSWORD);
        assert_eq!(of_text("Permissions Violation for Publish to \"a\""), NO_PERMISSION);
        assert_eq!(of_text("User Authentication Expired"), EXPIRED);
        assert_eq!(of_text("User Authentication Revoked"), REVOKED);
        assert_eq!(of_text("Stale Connection"), OTHER);
        assert_eq!((of_code(10_077), of_code(1)), (STORAGE_FULL, OTHER));
    }
}
