//! Namespaces whose channel names have a meaning in NATS: with wildcards, or as subjects.

use crate::error::ConfigErrors;
use crate::path::Path;
use crate::{ChannelOptions, Config, Engine, EngineKind, Map};

/// Checks that namespaces with wildcards use NATS and are not used by apps of the Pusher protocol: a wildcard would
/// match their private channels.
pub(crate) fn references(config: &Config, valid: &Config, errors: &mut ConfigErrors) {
    raw(config, errors);
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

/// Returns whether subjects of one raw engine may be those of another. That requires a common server and the same
/// login, because another login may belong to another account.
fn reach_same_subjects(one: &Engine, other: &Engine) -> bool {
    let login = |of: &Engine| {
        let of = of.clone();
        let seeds = (of.nkey_seed, of.nkey_seed_file, of.credentials, of.credentials_file);
        (of.user, of.token, of.tls_client_cert, seeds)
    };
    one.addresses.iter().any(|address| other.addresses.contains(address))
        && (one.raw_prefix.starts_with(&*other.raw_prefix)
            || other.raw_prefix.starts_with(&*one.raw_prefix))
        && login(one) == login(other)
}

/// Checks that channels of raw engines cannot collide with other subjects in NATS.
fn raw(config: &Config, errors: &mut ConfigErrors) {
    let nats = || config.engines.iter().filter(|(_, engine)| engine.kind == EngineKind::Nats);
    if nats().all(|(_, engine)| !engine.raw) {
        return;
    }
    let owner = |token: &str| nats().find(|(_, engine)| *engine.prefix == *token);
    for (name, engine) in nats().filter(|(_, engine)| engine.raw) {
        let first = engine.raw_prefix.split('.').next().unwrap_or_default();
        if let Some((other, _)) = owner(first).filter(|_| !first.is_empty()) {
            let message =
                format!("it is the `prefix` of the engine {other:?}, whose subjects are its own");
            let path = Path::of("engines").join(name).join("raw_prefix");
            errors.add(path, message, "write another, or change that `prefix`");
        }
        // Reports each pair once, at the later name.
        let before = nats().take_while(|(other, _)| *other != name).filter(|(_, of)| of.raw);
        for (other, _) in before.filter(|(_, of)| reach_same_subjects(engine, of)) {
            let message =
                format!("subjects of {name:?} would be those of the engine {other:?}, too");
            let fix = "write prefixes of which none begins with the other, or have one engine";
            errors.add(Path::of("engines").join(name).join("raw_prefix"), message, fix);
        }
    }
    let raw_engine = |options: &ChannelOptions| {
        let engine = options.engine.as_ref().and_then(|name| config.engines.get(name));
        engine.filter(|engine| engine.kind == EngineKind::Nats && engine.raw)
    };
    if let Some(engine) = raw_engine(&config.channel.without_namespace) {
        let path = Path::of("channel.without_namespace").join("engine");
        if engine.raw_prefix.is_empty() {
            let fix = "set its `raw_prefix`, or name another";
            errors.add(path, "channels without a namespace would reach every subject", fix);
        } else if &*engine.raw_separator == "." {
            let fix = "set its `raw_separator` to \":\", or name another";
            errors.add(path, "channels without a namespace would be those of namespaces, too", fix);
        }
    }
    for (name, options) in config.channel.namespaces.iter() {
        let Some(engine) = raw_engine(options) else { continue };
        let is_token = !name.is_empty()
            && !name.contains(['.', '*', '>'])
            && name.bytes().all(|byte| byte > b' ' && byte != 0x7f);
        let is_ours = engine.raw_prefix.is_empty()
            && (name.starts_with(['_', '$'])
                || &*engine.raw_separator == "." && owner(name).is_some());
        if !is_token || is_ours {
            let path = Path::of("channel.namespaces").join(name).join("engine");
            let message = "subjects of the raw engine cannot begin with the namespace's name";
            errors.add(path, message, "set `raw_prefix` of the engine, or rename the namespace");
        }
    }
}
