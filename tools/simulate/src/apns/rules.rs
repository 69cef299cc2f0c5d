//! Rules that reject pushes by the first digits of the device token.

use serde::{Deserialize, Serialize};

use super::Reason;

/// Rejects pushes to device tokens with a common prefix. The first matching rule decides; without one the push is
/// accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Prefix of the tokens; "" matches all.
    #[serde(default)]
    pub token: String,
    /// Topic of the pushes; `None` matches all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Matches only every Nth of these pushes; 0 and 1 match all.
    #[serde(default)]
    pub every: u64,
    /// Number of matches after which the rule is no longer applied; 0: unlimited.
    #[serde(default)]
    pub times: u64,
    /// The reason of the rejection.
    pub reason: Reason,
    /// With status 410, when the token became invalid, in milliseconds since 1970; by default an hour before the start
    /// of the simulator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp_ms: Option<u64>,
}

impl Rule {
    /// Returns the rules used without a rules file: each prefix resembles its answer.
    pub fn defaults() -> Vec<Rule> {
        let rule = |token: &str, reason| Rule {
            token: token.to_owned(),
            topic: None,
            every: 0,
            times: 0,
            reason,
            timestamp_ms: None,
        };
        vec![
            rule("dead", Reason::Unregistered),
            rule("e410", Reason::ExpiredToken),
            rule("bad0", Reason::BadDeviceToken),
            rule("d0f0", Reason::DeviceTokenNotForTopic),
            rule("0429", Reason::TooManyRequests),
            rule("0500", Reason::InternalServerError),
            rule("0503", Reason::ServiceUnavailable),
        ]
    }
}

/// The rules with their counters: candidates seen, and matches.
#[derive(Debug)]
pub(crate) struct Rules {
    rules: Vec<(Rule, u64, u64)>,
    timestamp_ms: u64,
}

/// A rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) reason: Reason,
    pub(crate) timestamp_ms: Option<u64>,
}

impl Rules {
    /// Creates the rules. `timestamp_ms` is the default of [`Rule::timestamp_ms`].
    pub(crate) fn new(rules: Vec<Rule>, timestamp_ms: u64) -> Rules {
        Rules { rules: rules.into_iter().map(|rule| (rule, 0, 0)).collect(), timestamp_ms }
    }

    pub(crate) fn judge(&mut self, device_token: &[u8], topic: &str) -> Result<(), Rejection> {
        for (rule, asked, fitted) in &mut self.rules {
            let prefix = rule.token.as_bytes();
            let begins = device_token.len() >= prefix.len()
                && device_token[..prefix.len()].eq_ignore_ascii_case(prefix);
            if !begins || rule.topic.as_ref().is_some_and(|wanted| wanted != topic) {
                continue;
            }
            *asked += 1;
            if rule.every > 1 && !asked.is_multiple_of(rule.every) {
                continue;
            }
            if rule.times > 0 && *fitted == rule.times {
                continue;
            }
            *fitted += 1;
            let timestamp_ms =
                rule.reason.has_timestamp().then(|| rule.timestamp_ms.unwrap_or(self.timestamp_ms));
            return Err(Rejection { reason: rule.reason, timestamp_ms });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_decides() {
        let mut rules = Rules::new(Rule::defaults(), 42);
        let refused = rules.judge(b"DEADbeef", "com.example").unwrap_err();
        assert_eq!(refused, Rejection { reason: Reason::Unregistered, timestamp_ms: Some(42) });
        let refused = rules.judge(b"bad0", "com.example").unwrap_err();
        assert_eq!(refused, Rejection { reason: Reason::BadDeviceToken, timestamp_ms: None });
        assert_eq!(rules.judge(b"00fc", "com.example"), Ok(()));
        assert_eq!(rules.judge(b"de", "com.example"), Ok(()));
    }

    #[test]
    fn a_rule_can_fit_every_third_time_and_twice_at_most() {
        let rule: Rule =
            serde_json::from_str(r#"{"every": 3, "times": 2, "reason": "TooManyRequests"}"#)
                .unwrap();
        let mut rules = Rules::new(vec![rule], 0);
        let fitted: Vec<usize> = (1..=12).filter(|_| rules.judge(b"00", "t").is_err()).collect();
        assert_eq!(fitted, [3, 6]);
    }

    #[test]
    fn a_rule_may_be_for_one_topic() {
        let rule = r#"{"topic": "com.example.other", "reason": "DeviceTokenNotForTopic"}"#;
        let mut rules = Rules::new(vec![serde_json::from_str(rule).unwrap()], 0);
        assert_eq!(rules.judge(b"00", "com.example"), Ok(()));
        assert!(rules.judge(b"00", "com.example.other").is_err());
    }
}
