//! Namespaces with wildcards.

use crate::error::ConfigErrors;
use crate::path::Path;
use crate::{ChannelOptions, Config, EngineKind, Map};

/// Namespaces with wildcards live in NATS, and are those of no app of the Pusher protocol: its channels say in their own names
/// who they are for.
pub(crate) fn references(config: &Config, valid: &Config, errors: &mut ConfigErrors) {
    let check = |path: &dyn Fn() -> Path, options: &ChannelOptions, errors: &mut ConfigErrors| {
        if !options.wildcards {
            return;
        }
        let engine = options.engine.as_ref().and_then(|name| config.engines.get(name));
        if engine.is_none_or(|engine| engine.kind != EngineKind::Nats) {
            let fix = "name an engine of type \"nats\" in `engine`, or remove it";
            errors.add(path().join("wildcards"), "only channels in NATS have wildcards", fix);
        }
    };
    check(&|| Path::of("channel.without_namespace"), &config.channel.without_namespace, errors);
    let none = Map::new();
    let namespaces = &config.channel.namespaces;
    let same = config.engines.is_same(&valid.engines);
    let compared = if same { &valid.channel.namespaces } else { &none };
    for (name, _, after) in namespaces.changes_from(compared) {
        if let Some(options) = after {
            check(&|| Path::of("channel.namespaces").join(name), options, errors);
        }
    }
    for (name, app) in config.pusher.apps.iter().filter(|(_, app)| app.tenant.is_none()) {
        if namespaces.get(&app.namespace).is_some_and(|options| options.wildcards) {
            let message =
                format!("{:?} has wildcards, which would match private channels", app.namespace);
            let path = Path::of("pusher.apps").join(name).join("namespace");
            errors.add(path, message, "name a namespace without `wildcards`");
        }
    }
}
