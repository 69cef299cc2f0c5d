//! The credentials of a node at NATS, in the settings or in a file that they name.

use dunlin_config::{Config, Engine};
use dunlin_engine::nats::{Credentials, CredentialsError};

use crate::file::read_file;

/// Returns the NATS credentials and the name of their setting. Reads the file if the setting names one.
pub fn credentials(
    config: &Engine,
) -> Option<(&'static str, Result<Credentials, CredentialsError>)> {
    let from_file = |path: &str, read: fn(&str) -> Result<Credentials, CredentialsError>| {
        let unreadable = |error| CredentialsError::Unreadable(format!("{path:?}: {error}"));
        read_file(path).map_err(unreadable).and_then(|text| read(&text))
    };
    Some(match config {
        Engine { nkey_seed: Some(seed), .. } => {
            ("nkey_seed", Credentials::from_seed(seed.reveal()))
        }
        Engine { credentials: Some(text), .. } => {
            ("credentials", Credentials::from_creds(text.reveal()))
        }
        Engine { nkey_seed_file: Some(path), .. } => {
            ("nkey_seed_file", from_file(path, Credentials::from_seed))
        }
        Engine { credentials_file: Some(path), .. } => {
            ("credentials_file", from_file(path, Credentials::from_creds))
        }
        _ => return None,
    })
}

/// Whether the credentials of an engine are in a file.
pub fn is_in_file(config: &Engine) -> bool {
    config.nkey_seed_file.is_some() || config.credentials_file.is_some()
}

/// Whether a change makes this process open files by name.
pub fn names_files(before: &Config, after: &Config) -> bool {
    let mut changed = after.engines.changes_from(&before.engines);
    changed.any(|(_, _, after)| after.is_some_and(|engine| is_in_file(engine)))
}
