//! Secrets that are none: what a document or a template has in the place of a secret.
//!
//! Everybody knows them, so with one of them anybody could sign tokens, publish, or change settings.

use crate::Secret;
use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;
use crate::pointer::Pointer;
use crate::schema;
use crate::snapshot::ChangedKey;

/// Phrases, in lower case, that stand in examples for the secret itself.
const PHRASES: [&str; 22] = [
    "openssl rand",
    "changeme",
    "change-me",
    "change_me",
    "change me",
    "change-this",
    "change_this",
    "change this",
    "replaceme",
    "replace-me",
    "replace_me",
    "replace me",
    "replace-this",
    "replace_this",
    "replace this",
    "replace with",
    "your-secret",
    "your_secret",
    "your secret",
    "your-api-key",
    "your_api_key",
    "placeholder",
];

/// Refuses placeholders. Looks at every secret of the schema that differs from a valid configuration.
pub(crate) fn judge(changes: &[ChangedKey], errors: &mut ConfigErrors) {
    for change in changes {
        let Some(after) = &change.after else { continue };
        let Ok(pointer) = Pointer::parse(&change.pointer) else { continue };
        let steps = pointer.steps();
        let Some((node, _)) = schema::root().at(steps.iter().map(String::as_str)) else { continue };
        let path = Path::from_steps(steps.to_vec());
        node.each_secret(&path, after, &mut |path, secret| {
            if let Some(what) = placeholder(secret) {
                let fix = "set the secret itself: make one with `openssl rand -hex 32`, or take what its service has given";
                errors.push(ConfigError::new(path.clone(), what).with_fix(fix));
            }
        });
    }
}

/// Returns what a text has in the place of a secret, if it has.
fn placeholder(text: &str) -> Option<String> {
    if text == Secret::HIDDEN || !text.is_empty() && text.bytes().all(|byte| byte == b'.') {
        return Some("it stands for a secret, and is none".to_owned());
    }
    if let Some(variable) = variable(text) {
        return Some(format!("{variable:?} in it stands for a secret that nobody has filled in"));
    }
    let lower = text.to_ascii_lowercase();
    let phrase = PHRASES.iter().find(|phrase| lower.contains(**phrase));
    let is_put = lower.starts_with("put ") && lower.ends_with(" here");
    let is_marked = text.starts_with('<') && text.ends_with('>') && !text.contains('\n');
    let is_example = phrase.is_some() || is_put || is_marked;
    is_example.then(|| "it is the placeholder of an example, which everybody knows".to_owned())
}

/// Finds a variable that a shell, Compose, Helm or a template was to replace: `${NAME}`, `$(command)`, `{{ name }}`, or
/// `$NAME` alone.
fn variable(text: &str) -> Option<&str> {
    let name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if let Some(rest) = text.strip_prefix('$')
        && rest.bytes().next().is_some_and(|first| first.is_ascii_uppercase() || first == b'_')
        && rest.bytes().all(|byte| name(byte) && !byte.is_ascii_lowercase())
    {
        return Some(text);
    }
    for (opens, closes) in [("${", "}"), ("$(", ")"), ("{{", "}}")] {
        let Some((at, _)) = text.match_indices(opens).next() else { continue };
        let inner = &text[at + opens.len()..];
        let Some(end) = inner.find(closes) else { continue };
        let first = inner.trim_start().bytes().next();
        if first.is_some_and(|first| name(first) || first == b'.') {
            return Some(&text[at..at + opens.len() + end + closes.len()]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_is_refused_as_a_secret_and_a_random_text_is_taken() {
        for stands in [
            "put openssl rand -hex 32 here",
            "put the secret of your app here",
            "${DUNLIN_SECRET}",
            "Bearer ${TOKEN:-none}",
            "$(openssl rand -hex 32)",
            "{{ .Values.secret }}",
            "{{secret}}-of-the-app",
            "$SECRET_KEY",
            "<your API key of 32 bytes>",
            "ChangeMe-0123456789abcdef",
            "replace-me-replace-me",
            "your-secret-key-here",
            "...",
            "***",
        ] {
            assert!(placeholder(stands).is_some(), "{stands}");
        }
        for secret in [
            "",
            "6f1c2b7d5e0a49c8b3d2f1e07a9c4b5d",
            "a-key-that-the-backend-signs-tokens-with",
            "pa$$word{1}",
            "$argon2id$v=19$m=65536",
            "$2b$12$abcdefghijklmnopqrstuv",
            "S3cret$",
            "dGhpcyBpcyBhIHNlY3JldA==",
            "{\"type\": \"service_account\", \"x\": {\"y\": {}}}",
            "-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\n",
        ] {
            assert_eq!(placeholder(secret), None, "{secret}");
        }
    }
}
