//! Names of tenants that share a hub.
//!
//! Inside the server a channel or user of a tenant is `MARK TENANT MARK NAME`; outside it is `NAME`. Names from
//! outside must not have the mark ([`has_mark`]), so they cannot address a tenant. Everything that is stored by name
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

/// Whether a name from outside is refused: the mark is for the server alone.
pub fn has_mark(name: &str) -> bool {
    name.contains(MARK)
}

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
