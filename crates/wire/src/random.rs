//! Pseudo-random numbers, the same for the same seed (SplitMix64). They are predictable: not for secrets.

/// Returns the next number and advances the state, which may be any number.
///
/// ```
/// let mut state = 1_234_567;
/// assert_eq!(dunlin_wire::random::next(&mut state), 6_457_827_717_110_365_317);
/// assert_eq!(dunlin_wire::random::next(&mut state), 3_203_168_211_198_807_973);
/// ```
pub const fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
