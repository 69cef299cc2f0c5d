//! The result without values that Dunlin refuses.

use serde_json::{Value, json};

use super::report::Mapping;
use super::source::ImportSource;
use super::variables::has_reference;
use crate::error::{ConfigError, ConfigErrors};
use crate::{Config, Path, check};

/// Returns the translated configuration without the values that Dunlin refuses. Without a rule, what it guarded is closed.
///
/// # Errors
/// A store is refused that nodes share, and `without_engine` is not set.
pub(super) fn valid(
    source: &mut ImportSource,
    without_engine: bool,
) -> Result<Config, ConfigErrors> {
    loop {
        let mut errors = ConfigErrors::default();
        references(&source.out, &Path::root(), &mut errors);
        if errors.is_empty() {
            match Config::from_json(source.out.clone()).and_then(|config| {
                config.validate()?;
                Ok(config)
            }) {
                Ok(config) => return Ok(config),
                Err(refused) => errors = refused,
            }
        }
        let before = source.out.clone();
        for error in &errors {
            let steps = error.path.steps();
            if steps.first().is_some_and(|step| step == "engines") {
                unshared(source, error, without_engine)?;
                continue;
            }
            check::remove(&mut source.out, steps);
            let to = error.path.to_string();
            let key = source.untake(&to).unwrap_or(to);
            source.row(&key, Mapping::Closed, format!("left out: {error}"));
            close(source, steps);
        }
        if source.out == before {
            // The error is not in a key that was written; the defaults are valid.
            source.out = json!({});
        }
    }
}

/// Closes what a key that was left out may have guarded.
fn close(source: &mut ImportSource, steps: &[String]) {
    // Without its certificates or its client authentication, an address must be loopback.
    if steps.iter().any(|step| step == "tls" || step == "client_ingress") {
        source.unset("server.client_addr");
    }
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    match steps[..] {
        // Without a rule no key may remain, because it would admit tokens that the rule refuses. Both kinds are removed,
        // because subscription tokens without keys of their own would be verified with those of connections.
        ["client", kind @ ("token" | "subscription_token"), rule, ..] => {
            let is_rule = ["audience", "audience_regex", "issuer", "issuer_regex", "user_id_claim"];
            if kind == "subscription_token" || is_rule.contains(&rule) {
                for kind in ["client.token", "client.subscription_token"] {
                    source.unset(kind);
                }
            }
        }
        ["channel", "without_namespace", option, ..] if is_restriction(option) => {
            revoke(source, &Path::of("channel.without_namespace"));
        }
        ["channel", "namespaces", name, option, ..] if is_restriction(option) => {
            revoke(source, &Path::of("channel.namespaces").join(name));
        }
        _ => {}
    }
}

/// Returns whether an option of a namespace restricts the permissions beside it.
fn is_restriction(option: &str) -> bool {
    matches!(option, "channel_regex" | "name_pattern") || option.ends_with("_proxy")
}

/// Ends the import, or goes on without engines if that is asked for.
fn unshared(
    source: &mut ImportSource,
    error: &ConfigError,
    without_engine: bool,
) -> Result<(), ConfigErrors> {
    if !without_engine {
        return Err(no_engine(source, "engines", error.to_string()));
    }
    source.row("engines", Mapping::Closed, format!("left out: {error}"));
    for key in ["engines", "cluster", "channel.without_namespace.engine"] {
        source.unset(key);
    }
    let namespaces = source.out.pointer_mut("/channel/namespaces").and_then(Value::as_object_mut);
    for options in namespaces.into_iter().flat_map(|all| all.values_mut()) {
        check::remove(options, &["engine".to_owned()]);
    }
    Ok(())
}

/// The error that ends an import because a store that nodes share cannot be taken.
pub(super) fn no_engine(source: &ImportSource, key: &str, why: String) -> ConfigErrors {
    let fix = "correct it; or convert without it (--without-engine) and write `engines` by hand, because without one nodes share nothing";
    ConfigError::new(Path::of(&source.name_of(key)), why).with_fix(fix.to_owned()).into()
}

/// Removes every permission of a namespace.
pub(super) fn revoke(source: &mut ImportSource, to: &Path) {
    let options = source.out.pointer_mut(&to.pointer()).and_then(Value::as_object_mut);
    if let Some(options) = options {
        options.retain(|name, _| {
            !["_proxy", "_cel"].iter().any(|end| name.ends_with(end)) && !name.starts_with("allow_")
        });
    }
}

/// Refuses each text with a reference to a variable: it is not what was meant, and may be known to everybody.
fn references(value: &Value, path: &Path, errors: &mut ConfigErrors) {
    match value {
        Value::String(text) if has_reference(text) => {
            let message = "it refers to a variable that is not known here";
            let fix = "give the variable with --env FILE, or with --process-env";
            errors.push(ConfigError::new(path.clone(), message).with_fix(fix.to_owned()));
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                references(value, &path.join(index), errors);
            }
        }
        Value::Object(object) => {
            for (key, value) in object {
                references(value, &path.join(key), errors);
            }
        }
        _ => {}
    }
}
