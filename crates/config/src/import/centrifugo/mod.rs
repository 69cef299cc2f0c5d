//! Centrifugo v3 to v6. Older versions, whose keys had no sections, are rewritten with the keys of v6 and then translated like
//! it; the report has the keys as they stand in the file.

mod broker;
mod channel;
mod client;
mod engine;
mod environment;
mod older;
mod proxy;

use serde_json::Value;

use super::dotenv::Variables;
use super::origin::Origin;
use super::report::Mapping;
use super::source::ImportSource;
use super::variables;
use crate::error::ConfigErrors;

/// Returns the version of a file, or of an environment if there is no file.
pub(super) fn generation(document: &Value, variables: &Variables) -> Origin {
    let keys = document.as_object();
    if keys.is_some_and(|keys| keys.iter().any(|(key, value)| older::is_section(key, value))) {
        return Origin::CentrifugoV6;
    }
    match keys.is_none_or(serde_json::Map::is_empty) {
        true => environment::generation(variables),
        false => older::generation(document),
    }
}

/// Returns whether a variable is a key of Centrifugo.
pub(super) fn has_keys(variables: &Variables) -> bool {
    environment::keys(variables).next().is_some()
}

/// Translates a document and the variables that override it.
///
/// # Errors
/// A store that nodes share cannot be taken, and `without_engine` is not set.
pub(super) fn translate(
    mut document: Value,
    variables: &Variables,
    origin: Origin,
    without_engine: bool,
) -> Result<ImportSource, ConfigErrors> {
    let is_v6 = origin == Origin::CentrifugoV6;
    let mut names = environment::merge(&mut document, variables, is_v6);
    variables::expand_all(&mut document, &|name| variables.get(name).cloned());
    let mut rows = Vec::new();
    if !is_v6 {
        let converted = older::convert(document, origin);
        document = converted.document;
        // A variable sets an old key, which stands for a new one.
        let of_variables = std::mem::take(&mut names);
        names = converted.names;
        for name in names.values_mut() {
            if let Some(variable) = of_variables.get(name.as_str()) {
                name.clone_from(variable);
            }
        }
        rows = converted.rows;
    }
    let mut source = ImportSource::new(document).with_names(names);
    source.is_flat = !is_v6;
    source.rows = rows;
    if is_v6 {
        leftovers(&mut source);
    }
    proxy::proxies(&mut source);
    client::client(&mut source);
    client::server(&mut source);
    channel::channels(&mut source);
    engine::engine(&mut source, origin, without_engine)?;
    broker::broker(&mut source, without_engine)?;
    client::rest(&mut source);
    source.absent(client::absent_note);
    Ok(source)
}

/// Reports keys of v5 in a file of v6, which Centrifugo v6 does not read.
fn leftovers(source: &mut ImportSource) {
    for (key, name) in older::leftovers(source.rest()) {
        source.take(&key);
        let note = format!("v6 does not read this key of v5: there it is `{name}`");
        source.row(&key, Mapping::Absent, note);
    }
}
