//! The settings in this process's environment.

use std::ffi::OsString;

use dunlin_config::environment::PREFIX;
use dunlin_config::{Config, ConfigError, ConfigErrors, Path};

use crate::style;

/// Returns the configuration with the environment's values applied, and warns of variables that are no setting. Adds an
/// error for each value that its key does not accept.
pub(crate) fn apply(config: &Config, errors: &mut ConfigErrors) -> Config {
    let variables = readable(std::env::vars_os(), errors);
    match config.with_environment(variables) {
        Ok((config, warnings)) => {
            warnings.iter().for_each(style::warning);
            config
        }
        Err(wrong) => {
            wrong.iter().for_each(|error| errors.push(error.clone()));
            config.clone()
        }
    }
}

/// Returns the variables whose value is text. A setting must not be ignored because its value is none.
fn readable(
    variables: impl Iterator<Item = (OsString, OsString)>,
    errors: &mut ConfigErrors,
) -> Vec<(String, String)> {
    let mut readable = Vec::new();
    for (name, value) in variables {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => readable.push((name, value)),
            Err(_) if name.starts_with(PREFIX) => errors.push(ConfigError {
                path: Path::root(),
                line: None,
                message: format!("{name}: the variable's value is no UTF-8"),
                fix: Some("write it as text, and what is binary in Base64 or PEM".to_owned()),
            }),
            Err(_) => {}
        }
    }
    readable
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_setting_whose_value_is_no_text_is_refused_and_others_are_left_alone() {
        let broken = || OsString::from_vec(vec![b'a', 0xff]);
        let variables = [
            ("DUNLIN_CLIENT_TOKEN_HMAC_SECRET".into(), broken()),
            ("PWD".into(), broken()),
            ("DUNLIN_SERVER_NAME".into(), "a".into()),
        ];
        let mut errors = ConfigErrors::default();
        let read = readable(variables.into_iter(), &mut errors);
        assert_eq!(read, [("DUNLIN_SERVER_NAME".to_owned(), "a".to_owned())]);
        assert_eq!(errors.len(), 1);
        assert!(errors.to_string().contains("DUNLIN_CLIENT_TOKEN_HMAC_SECRET: "), "{errors}");
    }
}
