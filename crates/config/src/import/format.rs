//! The formats of files.

use serde_json::Value;

use super::dotenv;
use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON (RFC 8259).
    Json,
    /// YAML 1.2.
    Yaml,
    /// TOML 1.
    Toml,
    /// Lines of `NAME=value`, as in a `.env` file.
    Environment,
}

impl Format {
    /// Detects the format by the extension of the file's name, otherwise by the beginning of the text.
    pub fn of(name: &str, text: &str) -> Format {
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("json") => Format::Json,
            Some("yaml" | "yml") => Format::Yaml,
            Some("toml") => Format::Toml,
            Some("env") => Format::Environment,
            _ if text.trim_start().starts_with('{') => Format::Json,
            _ if dotenv::is_environment(text) => Format::Environment,
            _ if toml::from_str::<toml::Table>(text).is_ok() => Format::Toml,
            _ => Format::Yaml,
        }
    }
}

/// Reads a file that is no environment as one value.
pub(super) fn parse(text: &str, format: Format) -> Result<Value, ConfigErrors> {
    let refused = |name: &str, why: String| {
        let why = why.lines().next().unwrap_or_default().to_owned();
        ConfigErrors::from(ConfigError::new(Path::root(), format!("this is not {name}: {why}")))
    };
    match format {
        Format::Json => serde_json::from_str(text).map_err(|why| refused("JSON", why.to_string())),
        Format::Yaml => {
            serde_saphyr::from_str(text).map_err(|why| refused("YAML", why.to_string()))
        }
        Format::Toml => {
            toml::from_str::<Value>(text).map_err(|why| refused("TOML", why.message().to_owned()))
        }
        Format::Environment => Ok(Value::Object(serde_json::Map::new())),
    }
}
