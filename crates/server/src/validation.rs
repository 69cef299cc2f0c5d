//! The validation of a configuration: every check that it must pass before it is served.
//!
//! `dunlin-config` checks what needs no more than the values. The checks here need libraries for TLS, tokens and expressions, or
//! open something. [`ValidConfig`] is made by all of them, whoever asks: `dunlin serve`, `dunlin config check`, a program that
//! embeds the server. A change of a running server is judged by the same functions, for the keys that it changes.

use std::sync::Arc;

use dunlin_config::{
    ChannelOptions, Config, ConfigError, ConfigErrors, Map, Path, Secret, Tenant, TokenRules,
    Upstream, Webhooks,
};
use dunlin_engine_servers::login::{credentials, is_in_file};
use dunlin_engine_servers::tls as peer;
use dunlin_federation::{Identity, PublicKey, is_domain};
use dunlin_net::Url;
use dunlin_program::{Hook, ProgramError};
use rustls::pki_types::ServerName;

use crate::api::Method;
use crate::api::scope::PUSH;
use crate::namespace::bounded_regex;
use crate::namespace::expression;
use crate::programs::compiled;
use crate::{auth, tls};

/// A configuration that has passed every check: the only kind that is served.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidConfig(Config);

/// Reads and validates a configuration file.
pub type Reload = Box<dyn Fn() -> Result<ValidConfig, String> + Send>;

impl ValidConfig {
    /// Validates a configuration.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its key and a fix. Checks that open files and read the clock are among
    /// them: certificates, credentials.
    pub fn new(config: Config) -> Result<ValidConfig, ConfigErrors> {
        let errors = errors_of(&config);
        if errors.is_empty() { Ok(ValidConfig(config)) } else { Err(errors) }
    }

    /// Returns the configuration.
    pub fn get(&self) -> &Config {
        &self.0
    }

    /// Returns the configuration.
    pub fn into_inner(self) -> Config {
        self.0
    }
}

/// Returns everything that is wrong with a configuration. [`ValidConfig::new`] refuses one with errors.
pub fn errors_of(config: &Config) -> ConfigErrors {
    let mut errors = config.validate().err().unwrap_or_default();
    let mut further = ConfigErrors::default();
    changes(&Config::default(), config, &mut further);
    errors.add_further(&further);
    errors
}

/// Validates the differences from a valid configuration.
pub(crate) fn changes(before: &Config, after: &Config, errors: &mut ConfigErrors) {
    settings(before, after, errors);
    outside(before, after, errors);
}

/// Validates the differences from a valid configuration that depend on nothing but the settings. Once valid, they stay
/// valid: a state directory whose settings do not pass was written by another version.
pub(crate) fn settings(before: &Config, after: &Config, errors: &mut ConfigErrors) {
    tls::judge_authorities(after, errors);
    webhooks(&before.webhooks, &after.webhooks, errors);
    proxies(before, after, errors);
    engines(before, after, errors);
    scopes(before, after, errors);
    expressions(before, after, errors);
    programs(before, after, errors);
    federation(before, after, errors);
    if cfg!(not(feature = "otlp")) && !after.otlp.endpoint.is_empty() {
        let fix = "take a binary with the feature `otlp`, or remove it";
        let why = "this binary sends no traces and metrics".to_owned();
        errors.push(config_error(Path::of("otlp.endpoint"), why, fix));
    }
    let (old, new) = (&before.client, &after.client);
    tokens("client.token", old.token.rules(), new.token.rules(), errors);
    let (old, new) = (&old.subscription_token, &new.subscription_token);
    tokens("client.subscription_token", old.rules(), new.rules(), errors);
    let none = Tenant::default();
    for (name, old, new) in after.tenants.changes_from(&before.tenants) {
        let Some(new) = new else { continue };
        let path = Path::of("tenants").join(name).join("token_keys");
        token_keys(&path, &old.map_or(&none, |old| old).token_keys, &new.token_keys, errors);
    }
}

/// Validates what the differences use outside the settings: files, the roots of this machine, the clock. It may be gone
/// when the process starts again. What depends on it is closed then, until it is back.
pub(crate) fn outside(before: &Config, after: &Config, errors: &mut ConfigErrors) {
    dunlin_push_service::judge(&before.push, &after.push, errors);
    tls::judge(before, after, errors);
    for (name, _, engine) in after.engines.changes_from(&before.engines) {
        let Some(engine) = engine.filter(|engine| is_in_file(engine)) else { continue };
        login(&Path::of("engines").join(name), engine, errors);
    }
    let upstreams = after.webhooks.upstreams.changes_from(&before.webhooks.upstreams);
    let upstreams = upstreams.filter_map(|(name, _, of)| {
        let of = of.filter(|of| of.tls && of.ca.is_none());
        of.map(|_| Path::of("webhooks.upstreams").join(name))
    });
    let engines = after.engines.changes_from(&before.engines).filter_map(|(name, _, of)| {
        let of = of.filter(|of| of.tls && of.ca.is_none());
        of.map(|_| Path::of("engines").join(name))
    });
    for path in upstreams.chain(engines) {
        trust(&path, None, errors);
    }
}

/// Compiles every expression of channels: name patterns and permissions.
fn expressions(before: &Config, after: &Config, errors: &mut ConfigErrors) {
    let (old, new) = (&before.channel, &after.channel);
    let path = Path::of("channel");
    namespaces(&path, (&old.namespaces, &new.namespaces), errors);
    let (old, new) = (&old.without_namespace, &new.without_namespace);
    expressions_of(&path.join("without_namespace"), old, new, errors);
    let none = Tenant::default();
    for (name, old, new) in after.tenants.changes_from(&before.tenants) {
        let Some(new) = new else { continue };
        let (path, old) = (Path::of("tenants").join(name), old.map_or(&none, |old| old));
        namespaces(&path, (&old.namespaces, &new.namespaces), errors);
        let (old, new) = (&old.without_namespace, &new.without_namespace);
        expressions_of(&path.join("without_namespace"), old, new, errors);
    }
}

fn namespaces(
    path: &Path,
    (old, new): (&Map<ChannelOptions>, &Map<ChannelOptions>),
    errors: &mut ConfigErrors,
) {
    let none = ChannelOptions::default();
    for (name, old, new) in new.changes_from(old) {
        let Some(new) = new else { continue };
        let path = path.join("namespaces").join(name);
        expressions_of(&path, old.map_or(&none, |old| old), new, errors);
    }
}

fn expressions_of(
    path: &Path,
    old: &ChannelOptions,
    new: &ChannelOptions,
    errors: &mut ConfigErrors,
) {
    if let Some(regex) =
        new.channel_regex.as_ref().filter(|_| old.channel_regex != new.channel_regex)
        && let Err(error) = bounded_regex::judge(regex)
    {
        errors.push(config_error(path.join("channel_regex"), error, bounded_regex::FIX));
    }
    for ((key, text), (_, before)) in expression::texts(new).into_iter().zip(expression::texts(old))
    {
        if let Some(text) = text.filter(|_| text != before)
            && let Err(error) = expression::judge(text)
        {
            errors.push(config_error(path.join(key), error, expression::FIX));
        }
    }
}

/// Checks that every method in the scope of an API key exists.
fn scopes(before: &Config, after: &Config, errors: &mut ConfigErrors) {
    for (name, _, scope) in after.api.scopes.changes_from(&before.api.scopes) {
        let Some(scope) = scope else { continue };
        for (at, method) in scope.methods.iter().enumerate() {
            if *method != PUSH && Method::of(method).is_none() {
                let path = Path::of("api.scopes").join(name).join("methods").join(at);
                let sentence = format!("there is no method {method:?}");
                errors.push(config_error(path, sentence, "name methods of the API, or `push`"));
            }
        }
    }
}

/// Checks that every token key can be used for verification.
fn tokens(table: &str, before: TokenRules<'_>, after: TokenRules<'_>, errors: &mut ConfigErrors) {
    let path = Path::of(table);
    token_keys(&path.join("keys"), before.keys, after.keys, errors);
    let mut judge = |path: Path, judged| token_key(path, judged, errors);
    for (key, old, new) in [
        ("hmac_secret", before.hmac_secret, after.hmac_secret),
        ("hmac_secret_previous", before.hmac_secret_previous, after.hmac_secret_previous),
    ] {
        if let Some(secret) = new.filter(|new| old != Some(new)) {
            judge(path.join(key), auth::judge_secret(secret));
        }
    }
    for (key, old, new, family) in [
        ("rsa_public_key", before.rsa_public_key, after.rsa_public_key, auth::Family::Rsa),
        ("ecdsa_public_key", before.ecdsa_public_key, after.ecdsa_public_key, auth::Family::Ec),
        ("eddsa_public_key", before.eddsa_public_key, after.eddsa_public_key, auth::Family::Ed),
    ] {
        if let Some(pem) = new.filter(|_| old != new) {
            judge(path.join(key), auth::judge_pem(pem, family));
        }
    }
    for (key, old, new) in [
        ("audience_regex", before.audience_regex, after.audience_regex),
        ("issuer_regex", before.issuer_regex, after.issuer_regex),
    ] {
        if let Some(Err(error)) = new.filter(|_| old != new).map(bounded_regex::judge) {
            errors.push(config_error(path.join(key), error, bounded_regex::FIX));
        }
    }
    if before.jwks != after.jwks
        && let Some(jwks) = after.jwks
    {
        let mut add = |key, why: String, fix| errors.push(config_error(path.join(key), why, fix));
        let url = jwks.endpoint.parse::<Url>();
        if !["http://", "https://"].iter().any(|scheme| jwks.endpoint.starts_with(scheme)) {
            let fix = "write the whole URL: \"https://idp.example/keys\"";
            add("jwks_public_endpoint", "it begins with neither http:// nor https://".into(), fix);
        } else if let Err(error) = url {
            add("jwks_public_endpoint", error.to_string(), "write the whole URL");
        }
        if let Some(Err((_, why, fix))) = jwks.ca.map(|ca| peer::trust(Some(ca))) {
            add("jwks_ca", why, fix);
        }
    }
}

fn token_keys(path: &Path, before: &Map<Secret>, after: &Map<Secret>, errors: &mut ConfigErrors) {
    for (kid, _, secret) in after.changes_from(before) {
        if let Some(secret) = secret {
            token_key(path.join(kid), auth::judge(secret), errors);
        }
    }
}

fn token_key(path: Path, judged: Result<(), &'static str>, errors: &mut ConfigErrors) {
    if let Err(why) = judged {
        let fix = "write the public key as `openssl pkey -pubout` does, all its lines";
        errors.push(config_error(path, why.into(), fix));
    }
}

fn webhooks(before: &Webhooks, after: &Webhooks, errors: &mut ConfigErrors) {
    for (name, before, after) in after.upstreams.changes_from(&before.upstreams) {
        let Some(after) = after.filter(|after| after.tls) else { continue };
        let path = Path::of("webhooks.upstreams").join(name);
        if after.ca.is_some() {
            trust(&path, after.ca.as_deref(), errors);
        }
        let none = Upstream::default();
        // The names of members were not checked if TLS was off before.
        let before = before.filter(|before| before.tls).map_or(&none, |before| before);
        for (name, _, member) in after.members.changes_from(&before.members) {
            let Some(member) = member else { continue };
            certified_name(
                path.join("members").join(name).join("address"),
                &member.address,
                errors,
            );
        }
    }
}

/// Checks the roots and the server names of backends with a single address.
fn proxies(before: &Config, after: &Config, errors: &mut ConfigErrors) {
    for (name, _, proxy) in after.proxies.changes_from(&before.proxies) {
        let Some(proxy) = proxy.filter(|proxy| proxy.upstream.is_none()) else { continue };
        let Some(rest) = proxy.endpoint.strip_prefix("https://") else { continue };
        let path = Path::of("proxies").join(name);
        if proxy.ca.is_some() {
            trust(&path, proxy.ca.as_deref(), errors);
        }
        let authority = rest.split('/').next().unwrap_or(rest);
        certified_name(path.join("endpoint"), authority, errors);
    }
}

/// Checks this domain's name and key, and those of its peers.
fn federation(before: &Config, after: &Config, errors: &mut ConfigErrors) {
    let (own, path) = (&after.federation, Path::of("federation"));
    let domain_fix = "name it as in DNS, in lower case: a.example";
    let names = own.peers.changes_from(&before.federation.peers);
    for (name, peer) in names.filter_map(|(name, _, new)| Some((name, new?))) {
        let path = path.join("peers").join(name);
        if !is_domain(name) || **name == *own.domain {
            let sentence = format!("{name:?} is no other domain");
            errors.push(config_error(path.clone(), sentence, domain_fix));
        }
        if peer.keys.is_empty() || peer.keys.len() > 2 {
            let sentence = format!("there are {} keys", peer.keys.len());
            let fix = "set the public key that `dunlin federation key` has printed there; two while it changes";
            errors.push(config_error(path.join("keys"), sentence, fix));
        }
        for (at, key) in peer.keys.iter().enumerate() {
            if let Err(error) = PublicKey::parse(key) {
                let fix = "set what `dunlin federation key` has printed for peers";
                errors.push(config_error(path.join("keys").join(at), error.to_string(), fix));
            }
        }
        let is_address = peer.address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
        });
        if !peer.address.is_empty() && !is_address {
            let sentence = format!("{:?} is no host and port", peer.address);
            let fix = "write it as b.example:7443; empty if the peer connects to this server";
            errors.push(config_error(path.join("address"), sentence, fix));
        }
    }
    if let Some(key) = &own.key
        && let Err(error) = Identity::new(&own.domain, key.reveal())
    {
        let fix = "set the private key that `dunlin federation key` has printed";
        errors.push(config_error(path.join("key"), error.to_string(), fix));
    }
    if !own.domain.is_empty() && !is_domain(&own.domain) {
        let sentence = format!("{:?} is no domain", own.domain);
        errors.push(config_error(path.join("domain"), sentence, domain_fix));
    }
    if !own.enabled {
        return;
    }
    for (key, is_missing, fix) in [
        ("domain", own.domain.is_empty(), domain_fix),
        ("key", own.key.is_none(), "set the private key that `dunlin federation key` has printed"),
    ] {
        if is_missing {
            let sentence = "it is not set, and federation.enabled is".to_owned();
            errors.push(config_error(path.join(key), sentence, fix));
        }
    }
    if !after.client.subscribe_to_user_personal_channel.enabled {
        let sentence =
            "messages of peers arrive in the personal channels of users, and there are none";
        let fix = "set client.subscribe_to_user_personal_channel.enabled";
        errors.push(config_error(path.join("enabled"), sentence.to_owned(), fix));
    }
    if after.cluster.engine.is_some() {
        let sentence = "a node of a cluster has no links to peers";
        let fix = "leave it off here, and federate by a server that is not in the cluster";
        errors.push(config_error(path.join("enabled"), sentence.to_owned(), fix));
    }
}

/// Compiles every program that is new or different, and checks that programs have the functions that settings ask for.
fn programs(before: &Config, after: &Config, errors: &mut ConfigErrors) {
    if after.programs.is_empty() {
        return;
    }
    let mut broken = Vec::new();
    for (name, _, program) in after.programs.changes_from(&before.programs) {
        let Some(program) = program.filter(|of| !of.source.trim().is_empty()) else { continue };
        if let Err(ProgramError { line, message, .. }) = compiled(name, &program.source) {
            let place = line.map_or_else(String::new, |line| format!("line {line}: "));
            let path = Path::of("programs").join(name).join("source");
            let fix = "correct it; `dunlin program check FILE` says the same";
            errors.push(config_error(path, format!("{place}{message}"), fix));
            broken.push(name);
        }
    }
    speak(after, errors);
    let mut asks = |path: Path, name: &Option<Arc<str>>, hook: Hook| {
        let Some(name) = name else { return };
        let Some(program) = after.programs.get(name).filter(|_| !broken.contains(&name)) else {
            return;
        };
        if compiled(name, &program.source).is_ok_and(|code| !code.defines(hook)) {
            let sentence = format!("the program {name:?} has no function `{}`", hook.name());
            let fix = "add it to the table that the program returns, or name another";
            errors.push(config_error(path, sentence, fix));
        }
    };
    let client = &after.client.proxy;
    let path = Path::of("client.proxy");
    asks(path.join("connect"), &client.connect, Hook::Connect);
    asks(path.join("refresh"), &client.refresh, Hook::Refresh);
    asks(path.join("rpc"), &client.rpc, Hook::Rpc);
    for (namespace, of) in after.rpc.namespaces.iter() {
        let path = Path::of("rpc.namespaces").join(namespace).join("proxy");
        asks(path, &Some(Arc::clone(&of.proxy)), Hook::Rpc);
    }
    let mut channel = |path: Path, of: &ChannelOptions| {
        asks(path.join("subscribe_proxy"), &of.subscribe_proxy, Hook::Subscribe);
        asks(path.join("sub_refresh_proxy"), &of.sub_refresh_proxy, Hook::SubRefresh);
        asks(path.join("publish_proxy"), &of.publish_proxy, Hook::Publish);
    };
    channel(Path::of("channel.without_namespace"), &after.channel.without_namespace);
    // Other code may lack a function that namespaces ask for, though they have not changed.
    let none = Map::new();
    let same = after.programs.is_same(&before.programs);
    let compared = if same { &before.channel.namespaces } else { &none };
    for (name, _, of) in after.channel.namespaces.changes_from(compared) {
        if let Some(of) = of {
            channel(Path::of("channel.namespaces").join(name), of);
        }
    }
}

/// Checks that programs speak a protocol where they are to.
fn speak(after: &Config, errors: &mut ConfigErrors) {
    let spoken = after.listeners.iter().filter_map(|(name, of)| {
        Some((Path::of("listeners").join(name).join("program"), &**of.program.as_ref()?))
    });
    let paths = after.programs.iter().filter(|(_, of)| !of.websocket_path.is_empty());
    let paths =
        paths.map(|(name, _)| (Path::of("programs").join(name).join("websocket_path"), name));
    for (path, name) in spoken.chain(paths) {
        let Some(program) = after.programs.get(name) else { continue };
        if compiled(name, &program.source).is_ok_and(|code| !code.speaks()) {
            let sentence = format!("the program {name:?} speaks no protocol");
            let fix = "add a function `frame` to the table that the program returns";
            errors.push(config_error(path, sentence, fix));
        }
    }
}

/// Checks the roots, server names and credentials of engines.
fn engines(before: &Config, after: &Config, errors: &mut ConfigErrors) {
    for (name, _, engine) in after.engines.changes_from(&before.engines) {
        let Some(engine) = engine else { continue };
        let path = Path::of("engines").join(name);
        if !is_in_file(engine) {
            login(&path, engine, errors);
        }
        if !engine.tls {
            continue;
        }
        if engine.ca.is_some() {
            trust(&path, engine.ca.as_deref(), errors);
        }
        if let Err(error) = peer::judge_identity(engine) {
            let fix =
                "set both to the text of the .pem files of one pair, the key without a passphrase";
            errors.push(config_error(path.join("tls_client_cert"), error.to_string(), fix));
        }
        for (index, address) in engine.addresses.iter().enumerate() {
            certified_name(path.join("addresses").join(index), address, errors);
        }
    }
}

/// Checks the credentials of an engine. Expired ones are accepted: the node starts, and reports them until they are
/// renewed.
fn login(path: &Path, engine: &dunlin_config::Engine, errors: &mut ConfigErrors) {
    if let Some((key, Err(error))) = credentials(engine) {
        let fix = match key {
            "nkey_seed" | "nkey_seed_file" => "write what `nk -gen user` made, one line: SU...",
            _ => "take what `nsc generate creds` wrote, all of it",
        };
        errors.push(config_error(path.join(key), error.to_string(), fix));
    }
}

/// Checks that certificates can be verified with these roots, or with those of this machine.
fn trust(path: &Path, ca: Option<&str>, errors: &mut ConfigErrors) {
    if let Err((key, sentence, fix)) = peer::trust(ca) {
        errors.push(config_error(path.join(key), sentence, fix));
    }
}

/// Checks that a certificate can bear the name of a server.
fn certified_name(path: Path, address: &str, errors: &mut ConfigErrors) {
    let host = host(address);
    if ServerName::try_from(host).is_err() {
        let sentence = format!("no certificate can bear the name {host:?}");
        errors.push(config_error(path, sentence, "write the name that its certificate has"));
    }
}

fn host(address: &str) -> &str {
    // An IPv6 address without a port ends with its bracket.
    let host = match address.rsplit_once(':') {
        Some((host, _)) if !address.ends_with(']') => host,
        _ => address,
    };
    host.trim_start_matches('[').trim_end_matches(']')
}

fn config_error(path: Path, sentence: String, fix: &str) -> ConfigError {
    ConfigError { path, line: None, message: sentence, fix: Some(fix.to_owned()) }
}

#[cfg(test)]
mod tests {
    use dunlin_config::{Engine, EngineKind, FederationPeer, Member, Secret};

    use super::*;

    const ROOT: &str = include_str!("../tests/data/root.pem");

    fn with(upstream: Upstream) -> Config {
        let mut config = Config::development();
        config.webhooks.upstreams.insert("backend", upstream);
        config
    }

    fn speaking(ca: Option<&str>, address: &str) -> Upstream {
        let mut upstream = Upstream { tls: true, ca: ca.map(Into::into), ..Upstream::default() };
        upstream.members.insert("a", Member { address: address.into(), ..Member::default() });
        upstream
    }

    fn reported(before: &Config, after: &Config) -> Vec<String> {
        let mut errors = ConfigErrors::default();
        changes(before, after, &mut errors);
        errors.iter().map(|error| format!("{} {}", error.path.pointer(), error.message)).collect()
    }

    #[test]
    fn a_broken_certificate_is_reported_before_anybody_is_called() {
        let development = Config::development();
        let good = with(speaking(Some(ROOT), "push.example:443"));
        assert_eq!(reported(&development, &good), Vec::<String>::new());

        // One line is missing, as after an incomplete copy.
        let lines: Vec<_> = ROOT.lines().collect();
        let cut = [&lines[..2], &lines[3..]].concat().join("\n");
        for broken in [cut, ROOT.replace("MII", "MI*"), ROOT.replace("-----END", "-----E")] {
            let broken = with(speaking(Some(&broken), "push.example:443"));
            let errors = reported(&good, &broken);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].starts_with("/webhooks/upstreams/backend/ca "), "{errors:?}");
        }
    }

    #[test]
    fn a_name_that_no_certificate_has_is_reported_if_there_is_to_be_one() {
        let bad = with(speaking(Some(ROOT), "-push.example:443"));
        let with_tls = reported(&Config::development(), &bad);
        assert_eq!(with_tls.len(), 1, "{with_tls:?}");
        let pointer = "/webhooks/upstreams/backend/members/a/address ";
        assert!(with_tls[0].starts_with(pointer), "{with_tls:?}");
        assert_eq!(reported(&bad, &bad), Vec::<String>::new(), "it did not change");

        let upstream = Upstream { tls: false, ..speaking(None, "-push.example:80") };
        let plain = with(upstream);
        assert_eq!(reported(&Config::development(), &plain), Vec::<String>::new());
        assert_eq!(reported(&plain, &bad).len(), 1, "now it speaks TLS");
        assert_eq!(reported(&plain, &with(speaking(Some(ROOT), "[2001:db8::7]:443"))).len(), 0);
    }

    #[test]
    fn a_login_that_cannot_be_one_is_reported_before_anybody_is_called() {
        let with = |engine: Engine| {
            let mut config = Config::development();
            config.engines.insert("main", Engine { kind: EngineKind::Nats, ..engine });
            let errors = reported(&Config::development(), &config);
            errors.into_iter().map(|error| error.replace("/engines/main/", "")).collect::<Vec<_>>()
        };
        // Generated by `nk -gen user` for this test only.
        let seed = "SUAFOI4M5WPR57IPS36SGGJM3K7WGC2SW5MAIBBJXGQ27W2IPNRHTOUKT4";
        let nkey = |seed: &str| Engine { nkey_seed: Some(Secret::new(seed)), ..Engine::default() };
        assert_eq!(with(nkey(seed)), Vec::<String>::new());
        let cut = with(nkey(&seed[..57]));
        assert_eq!(cut, ["nkey_seed it is no seed, or a part of it is missing or mistyped"]);
        let credentials = Some(Secret::new(seed));
        let no_jwt = with(Engine { credentials, ..Engine::default() });
        assert_eq!(no_jwt, ["credentials there is no block \"NATS USER JWT\" in it"]);
        let credentials_file = Some("/nowhere/main.creds".into());
        let missing = with(Engine { credentials_file, ..Engine::default() });
        assert!(
            missing[0].starts_with("credentials_file \"/nowhere/main.creds\": "),
            "{missing:?}"
        );
        let tls_client_cert = Some(ROOT.into());
        let tls_client_key = Some(Secret::new("no key"));
        let ca = Some(ROOT.into());
        let no_key =
            with(Engine { tls: true, ca, tls_client_cert, tls_client_key, ..Engine::default() });
        assert!(no_key[0].starts_with("tls_client_cert "), "{no_key:?}");
    }

    #[test]
    fn federation_that_is_wrong_names_the_key_and_the_fix() {
        let valid = || {
            let mut config = Config::development();
            config.client.subscribe_to_user_personal_channel.enabled = true;
            config.federation.enabled = true;
            config.federation.domain = "a.example".into();
            config.federation.key = Some(Secret::new("11".repeat(32)));
            let keys = Arc::from(["22".repeat(32)]);
            let peer = FederationPeer { keys, ..FederationPeer::default() };
            config.federation.peers.insert("b.example", peer);
            config
        };
        assert!(errors_of(&valid()).is_empty(), "{:?}", errors_of(&valid()));
        let with_peer = |config: &mut Config, name: &str, change: &dyn Fn(&mut FederationPeer)| {
            let mut peer = config.federation.peers.get("b.example").unwrap().clone();
            change(&mut peer);
            config.federation.peers.insert(name, peer);
        };
        type Change<'a> = &'a dyn Fn(&mut Config);
        let cases: [(&str, Change<'_>); 9] = [
            ("/federation/domain", &|config| config.federation.domain = "".into()),
            ("/federation/domain", &|config| config.federation.domain = "A.example".into()),
            ("/federation/key", &|config| config.federation.key = None),
            ("/federation/key", &|config| config.federation.key = Some(Secret::new("short"))),
            ("/federation/enabled", &|config| {
                config.client.subscribe_to_user_personal_channel.enabled = false;
            }),
            ("/federation/peers/a.example", &|config| with_peer(config, "a.example", &|_| {})),
            ("/federation/peers/b.example/keys", &|config| {
                with_peer(config, "b.example", &|peer| peer.keys = Arc::default());
            }),
            ("/federation/peers/b.example/keys/0", &|config| {
                with_peer(config, "b.example", &|peer| peer.keys = Arc::from(["x".to_owned()]));
            }),
            ("/federation/peers/b.example/address", &|config| {
                with_peer(config, "b.example", &|peer| peer.address = "b.example".into());
            }),
        ];
        for (key, change) in cases {
            let mut config = valid();
            change(&mut config);
            let errors = errors_of(&config);
            let named = errors.iter().find(|error| error.path.pointer() == key);
            let named = named.unwrap_or_else(|| panic!("{key}: {errors:?}"));
            assert!(named.fix.is_some(), "{key}");
        }
    }
}
