//! Filters of subscriptions by the tags of publications.

use std::cmp::Ordering;

use crate::publication::Tags;

/// Selects publications by their tags.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TagFilter {
    /// All filters match.
    And(Box<[TagFilter]>),
    /// At least one filter matches.
    Or(Box<[TagFilter]>),
    /// The filter does not match.
    Not(Box<TagFilter>),
    /// A condition on one tag.
    Tag {
        /// The name of the tag.
        key: Box<str>,
        /// The condition.
        is: TagCondition,
    },
}

/// A condition on the value of a tag. For `In` and `NotIn` a missing tag is the empty string; for the others it has
/// no value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TagCondition {
    /// Equal to this text.
    Equal(Box<str>),
    /// Not equal to this text, or missing.
    NotEqual(Box<str>),
    /// One of these texts.
    In(Box<[Box<str>]>),
    /// None of these texts.
    NotIn(Box<[Box<str>]>),
    /// Present.
    Exists,
    /// Missing.
    Missing,
    /// Begins with this text.
    StartsWith(Box<str>),
    /// Ends with this text.
    EndsWith(Box<str>),
    /// Contains this text.
    Contains(Box<str>),
    /// A decimal number in this relation to the given one. Other text does not match.
    Number(NumberOrder, Box<str>),
}

/// A relation of two decimal numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumberOrder {
    /// Less.
    Less,
    /// Less or equal.
    LessOrEqual,
    /// Greater.
    Greater,
    /// Greater or equal.
    GreaterOrEqual,
}

impl TagFilter {
    /// Whether a publication with these tags matches.
    pub fn admits(&self, tags: &Tags) -> bool {
        match self {
            Self::And(all) => all.iter().all(|filter| filter.admits(tags)),
            Self::Or(any) => any.iter().any(|filter| filter.admits(tags)),
            Self::Not(filter) => !filter.admits(tags),
            Self::Tag { key, is } => {
                let value = tags.iter().find(|(name, _)| name == key).map(|(_, value)| &**value);
                is.holds(value)
            }
        }
    }

    /// The number of nodes and values; each is compared at most once.
    pub fn parts(&self) -> usize {
        1 + match self {
            Self::And(list) | Self::Or(list) => list.iter().map(Self::parts).sum(),
            Self::Not(filter) => filter.parts(),
            Self::Tag { is: TagCondition::In(list) | TagCondition::NotIn(list), .. } => list.len(),
            Self::Tag { .. } => 0,
        }
    }

    /// Approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        let own = match self {
            Self::And(list) | Self::Or(list) => {
                return size_of::<Self>() + list.iter().map(Self::bytes).sum::<usize>();
            }
            Self::Not(filter) => filter.bytes(),
            Self::Tag { key, is } => key.len() + is.bytes(),
        };
        size_of::<Self>() + own
    }
}

impl TagCondition {
    fn holds(&self, value: Option<&str>) -> bool {
        let one_of = |list: &[Box<str>]| list.iter().any(|of| **of == *value.unwrap_or_default());
        match self {
            Self::Equal(text) => value == Some(text),
            Self::NotEqual(text) => value != Some(text),
            Self::In(list) => one_of(list),
            Self::NotIn(list) => !one_of(list),
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
            Self::StartsWith(text) => value.is_some_and(|value| value.starts_with(&**text)),
            Self::EndsWith(text) => value.is_some_and(|value| value.ends_with(&**text)),
            Self::Contains(text) => value.is_some_and(|value| value.contains(&**text)),
            Self::Number(order, number) => {
                value.and_then(|value| compare(value, number)).is_some_and(|is| order.holds(is))
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Exists | Self::Missing => 0,
            Self::In(list) | Self::NotIn(list) => {
                list.iter().map(|text| text.len() + size_of::<Box<str>>()).sum()
            }
            Self::Equal(text)
            | Self::NotEqual(text)
            | Self::StartsWith(text)
            | Self::EndsWith(text)
            | Self::Contains(text)
            | Self::Number(_, text) => text.len(),
        }
    }
}

impl NumberOrder {
    fn holds(self, is: Ordering) -> bool {
        match self {
            Self::Less => is.is_lt(),
            Self::LessOrEqual => is.is_le(),
            Self::Greater => is.is_gt(),
            Self::GreaterOrEqual => is.is_ge(),
        }
    }
}

/// Compares two decimal numbers of any length, digit by digit. `None` if one is not a number.
fn compare(a: &str, b: &str) -> Option<Ordering> {
    let (a, b) = (Decimal::parse(a)?, Decimal::parse(b)?);
    let magnitude = || {
        let whole = a.whole.len().cmp(&b.whole.len()).then_with(|| a.whole.cmp(b.whole));
        whole.then_with(|| a.fraction.cmp(b.fraction))
    };
    Some(match (a.is_negative(), b.is_negative()) {
        (false, false) => magnitude(),
        (true, true) => magnitude().reverse(),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
    })
}

/// A decimal number without insignificant zeros.
struct Decimal<'a> {
    minus: bool,
    whole: &'a str,
    fraction: &'a str,
}

impl<'a> Decimal<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (minus, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (whole, fraction) = match digits.split_once('.') {
            Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
            Some(_) => return None,
            None => (digits, ""),
        };
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
        Some(Self { minus, whole, fraction })
    }

    /// Zero has no sign.
    fn is_negative(&self) -> bool {
        self.minus && !(self.whole.is_empty() && self.fraction.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tags(list: &[(&str, &str)]) -> Tags {
        list.iter().map(|&(name, value)| (name.into(), value.into())).collect()
    }

    fn tag(key: &str, is: TagCondition) -> TagFilter {
        TagFilter::Tag { key: key.into(), is }
    }

    #[test]
    fn conditions_hold_as_in_centrifugo() {
        use TagCondition::{
            Contains, EndsWith, Equal, Exists, In, Missing, NotEqual, NotIn, Number, StartsWith,
        };
        let given = tags(&[("kind", "goal"), ("minute", "45.50")]);
        let list = |texts: &[&str]| texts.iter().map(|&text| text.into()).collect();
        for (filter, admits) in [
            (tag("kind", Equal("goal".into())), true),
            (tag("none", Equal("".into())), false),
            (tag("none", NotEqual("goal".into())), true),
            (tag("kind", NotEqual("goal".into())), false),
            (tag("kind", In(list(&["card", "goal"]))), true),
            (tag("none", In(list(&[""]))), true),
            (tag("none", NotIn(list(&["x"]))), true),
            (tag("kind", Exists), true),
            (tag("kind", Missing), false),
            (tag("none", Missing), true),
            (tag("kind", StartsWith("go".into())), true),
            (tag("none", StartsWith("".into())), false),
            (tag("kind", EndsWith("al".into())), true),
            (tag("kind", Contains("oa".into())), true),
            (tag("minute", Number(NumberOrder::Greater, "45.5".into())), false),
            (tag("minute", Number(NumberOrder::GreaterOrEqual, "045.5".into())), true),
            (tag("minute", Number(NumberOrder::Less, "100".into())), true),
            (tag("kind", Number(NumberOrder::Less, "100".into())), false),
        ] {
            assert_eq!(filter.admits(&given), admits, "{filter:?}");
            assert_eq!(TagFilter::Not(Box::new(filter)).admits(&given), !admits);
        }
        let both = [tag("kind", Exists), tag("none", Exists)];
        assert!(!TagFilter::And(both.clone().into()).admits(&given));
        assert!(TagFilter::Or(both.into()).admits(&given));
    }

    #[test]
    fn value_that_is_no_number_does_not_compare() {
        for text in ["", "-", "+", ".", "1.", ".5", "1e3", "0x1", "1 ", "١"] {
            assert_eq!(compare(text, "1"), None, "{text:?}");
        }
        assert_eq!(compare("-0", "0.00"), Some(Ordering::Equal));
        let huge = "9".repeat(10_000);
        assert_eq!(compare(&huge, "1"), Some(Ordering::Greater));
    }

    proptest! {
        #[test]
        fn decimals_compare_as_integers_do(a: i64, b: i64, zeros in "0{0,5}") {
            let of = |n: i64| {
                let sign = if n < 0 { "-" } else { "" };
                format!("{sign}{zeros}{}.{zeros}", n.unsigned_abs()).trim_end_matches('.').to_owned()
            };
            prop_assert_eq!(compare(&of(a), &of(b)), Some(a.cmp(&b)));
        }
    }
}
