//! Detects whose configuration it is.

use serde_json::Value;

use super::centrifugo;
use super::dotenv::Variables;
use super::origin::Origin;
use crate::Path;
use crate::error::{ConfigError, ConfigErrors};

/// Keys at the top of Soketi's file, some of them with further steps after a dot.
const OF_SOKETI: &[&str] = &[
    "appManager",
    "adapter",
    "channelLimits",
    "eventLimits",
    "httpApi",
    "rateLimiter",
    "databasePooling",
    "shutdownGracePeriod",
    "userAuthenticationTimeout",
];

/// Detects it, by the file if there is one, otherwise by the variables.
pub(super) fn detect(document: &Value, variables: &Variables) -> Result<Origin, ConfigErrors> {
    let keys = document.as_object().into_iter().flat_map(serde_json::Map::keys);
    let mut tops = keys.map(|key| key.split('.').next().unwrap_or_default()).peekable();
    if tops.peek().is_some() {
        return Ok(match tops.any(|top| OF_SOKETI.contains(&top)) {
            true => Origin::Soketi,
            false => centrifugo::generation(document, variables),
        });
    }
    let has = |prefix: &str| variables.keys().any(|name| name.starts_with(prefix));
    let found: Vec<Origin> = [
        (centrifugo::has_keys(variables), centrifugo::generation(document, variables)),
        (has("SOKETI_"), Origin::Soketi),
        (has("REVERB_APP_"), Origin::Reverb),
    ]
    .into_iter()
    .filter_map(|(is_there, origin)| is_there.then_some(origin))
    .collect();
    let refused = |what: String, fix: &str| {
        Err(ConfigError::new(Path::root(), what).with_fix(fix.to_owned()).into())
    };
    match found[..] {
        [origin] => Ok(origin),
        [] => refused(
            "nothing in it is of Centrifugo, Soketi or Reverb".to_owned(),
            "name their file, or an environment with `CENTRIFUGO_...`, `SOKETI_...` or `REVERB_APP_...`",
        ),
        _ => {
            let names: Vec<String> = found.iter().map(Origin::to_string).collect();
            let what = format!("it has variables of {}", names.join(" and "));
            refused(what, "say which with --from")
        }
    }
}
