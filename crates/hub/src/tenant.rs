//! Names of tenants that share a hub.
//!
//! Inside the server a channel or user of a tenant is `MARK TENANT MARK NAME`; outside it is `NAME`. Names from
//! outside must not have the mark ([`has_control`]), so they cannot address a tenant. Everything that is stored by name
//! (channels, users, revocations, budgets) is therefore separate.

/// Encloses a tenant's name. No name from outside has it.
pub const MARK: char = '\u{1}';

/// Splits a name into its tenant, if it has one, and the external name.
pub fn split(name: &str) -> (Option<&str>, &str) {
    let tenanted = name.strip_prefix(MARK).and_then(|rest| rest.split_once(MARK));
    tenanted.map_or((None, name), |(tenant, bare)| (Some(tenant), bare))
}

/// The external name.
pub fn bare(name: &str) -> &str {
    if name.as_bytes().first() == Some(&(MARK as u8)) { split(name).1 } else { name }
}

/// The internal name of a tenant's channel or user; for `""` the prefix of all of them.
pub fn qualify(tenant: &str, bare: &str) -> String {
    let mut name = String::with_capacity(tenant.len() + bare.len() + 2);
    name.push(MARK);
    name.push_str(tenant);
    name.push(MARK);
    name.push_str(bare);
    name
}

/// Whether a name from outside is refused: it has a control character (U+0000 to U+001F, U+007F to U+009F). The mark is one of
/// them and is for the server alone; the others would divide lines of logs, headers of backends and subjects of NATS.
pub fn has_control(name: &str) -> bool {
    // Most names have neither a control character of ASCII nor the first byte of another one.
    let may_have = |byte: u8| byte.is_ascii_control() || byte == 0xc2;
    name.bytes().any(may_have) && name.contains(char::is_control)
}

/// Why a name with a control character is refused.
pub const NO_CONTROL: &str = "no name has control characters";

/// Whether a command for `user` applies to the user with this name: to the same user, or, if the command names nobody, to all
/// users of its tenant. A command without a tenant is for the users of no tenant.
pub(crate) fn addresses(user: &str, name: &str) -> bool {
    match split(user) {
        (tenant, "") => split(name).0 == tenant,
        _ => user == name,
    }
}

/// Whether a name is only the prefix of a tenant.
pub(crate) fn is_anybody(user: &str) -> bool {
    matches!(split(user), (Some(_), ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_apart_as_it_was_put_together() {
        assert_eq!(split(&qualify("acme", "chat:1")), (Some("acme"), "chat:1"));
        assert_eq!(split(&qualify("acme", "")), (Some("acme"), ""));
        let nested = qualify("acme", &qualify("globex", "a"));
        assert_eq!(split(&nested).0, Some("acme"), "the first one is the tenant");
        for plain in ["", "chat:1", "a\u{1}b\u{1}", "\u{1}unfinished"] {
            assert_eq!((split(plain), bare(plain)), ((None, plain), plain));
        }
        assert_eq!(bare(&qualify("acme", "42")), "42");
    }

    #[test]
    fn name_with_a_control_character_is_refused_and_any_other_is_not() {
        for refused in ["a\u{1}b", "\0", "a\r\nX: y", "a\u{7f}", "\u{85}", "é\u{9b}31m"] {
            assert!(has_control(refused), "{refused:?}");
        }
        for taken in ["", "chat:1", "#ada,bob", "$a b", "日本", "é", "\u{a0}", "a\u{200d}b"] {
            assert!(!has_control(taken), "{taken:?}");
        }
    }

    #[test]
    fn a_tenant_alone_addresses_its_users_and_nobody_elses() {
        let (acme, ada) = (qualify("acme", ""), qualify("acme", "ada"));
        assert!(addresses(&acme, &ada) && addresses(&ada, &ada) && addresses(&acme, &acme));
        assert!(
            addresses("", "ada")
                && addresses("", "")
                && !addresses("", &ada)
                && !addresses("", &acme)
        );
        assert!(!addresses(&acme, "") && !addresses("ada", "bob"));
        assert!(!addresses(&acme, "ada") && !addresses(&ada, "ada") && !addresses("ada", &ada));
        assert!(!addresses(&acme, &qualify("acme2", "ada")), "the mark ends its name");
        assert!(!addresses(&ada, &qualify("acme", "ada2")));
    }
}
