//! Addresses of users: `user@domain`.

/// The longest name of a domain in bytes (RFC 1035 §2.3.4).
const DOMAIN_BYTES_MAX: usize = 253;

/// A user of a domain. What is before the last `@` is the user, who may have a mail address as a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// The user, not empty.
    pub user: &'a str,
    /// The domain.
    pub domain: &'a str,
}

impl<'a> Address<'a> {
    /// Reads an address. `None`: it is a local name.
    ///
    /// Whether the domain is one that messages are sent to, only the settings know: a mail address is a common user id.
    pub fn parse(text: &'a str) -> Option<Address<'a>> {
        let (user, domain) = text.rsplit_once('@')?;
        (!user.is_empty() && is_domain(domain)).then_some(Address { user, domain })
    }
}

/// Whether this may name a domain: labels of lower-case letters, digits and `-`, separated by dots (RFC 1123 §2.1).
pub fn is_domain(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    name.len() <= DOMAIN_BYTES_MAX && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_with_several_at_signs_is_split_at_the_last() {
        let read = |text| Address::parse(text).map(|of| (of.user, of.domain));
        assert_eq!(read("bob@b.example"), Some(("bob", "b.example")));
        assert_eq!(read("bob@mail.example@b.example"), Some(("bob@mail.example", "b.example")));
        for local in ["bob", "@b.example", "bob@", "bob@B.example", "bob@-b", "bob@b..c", "bob@b/c"]
        {
            assert_eq!(read(local), None, "{local}");
        }
        assert!(!is_domain(&"a".repeat(64)) && !is_domain(&["a"; 130].join(".")));
    }
}
