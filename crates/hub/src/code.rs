//! Codes of the Centrifugal protocol that end a subscription or a connection.

/// Unsubscribed by the server API: do not subscribe again.
pub const UNSUBSCRIBE_SERVER: u32 = 2000;
/// The stream has a gap: subscribe again and recover.
pub const UNSUBSCRIBE_INSUFFICIENT_STATE: u32 = 2500;

/// The client does not read fast enough: reconnect.
pub const DISCONNECT_SLOW: u32 = 3008;

/// Whether a client comes back after this disconnect code: 3500–3999 and 4500–4999 are final, all others are not
/// (Centrifugo's docs, "Disconnect codes"; codes below 3000 are the transport's).
pub const fn reconnects(code: u32) -> bool {
    !matches!(code, 3500..=3999 | 4500..=4999)
}

#[cfg(test)]
mod tests {
    use super::reconnects;

    #[test]
    fn two_ranges_of_codes_are_final_and_all_others_are_not() {
        for code in [0, 1000, 1006, 2999, 3000, 3499, 4000, 4499, 5000, u32::MAX] {
            assert!(reconnects(code), "{code}");
        }
        for code in [3500, 3503, 3999, 4500, 4999] {
            assert!(!reconnects(code), "{code}");
        }
    }
}
