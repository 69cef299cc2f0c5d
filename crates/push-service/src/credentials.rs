//! Opens the credentials of the configuration, reports the unusable ones, and starts their senders.
//!
//! `dunlin-config` validates only what does not require parsing keys and certificates.

use std::time::Duration;

use dunlin_config::{ApnsEnvironment, ConfigError, ConfigErrors, Path, PushConfig, Route, Secret};
use dunlin_push::apns::{
    Apns, Certificate, CertificateFault, Credential, Environment, ProviderKey, ProviderToken,
};
use dunlin_push::fcm::{AUTHORITY, Fcm, ServiceAccount};
use dunlin_push::web_push::{Vapid, WebPush, WebPushConfig};
use dunlin_push::{Connect, Connections, Dialer, Origin, SenderConfig};

/// Validates the credentials that differ: that each key, certificate and account can be opened and is valid now, and that
/// connections have trusted roots. Adds an error with the configuration key at fault for each unusable one.
pub fn judge(before: &PushConfig, after: &PushConfig, faults: &mut ConfigErrors) {
    for (name, _, credential) in after.apns.changes_from(&before.apns) {
        let Some(credential) = credential else { continue };
        let path = Path::of("push.apns").join(name);
        let opened = apns(&path, credential).and_then(|(origin, _)| dialer(&path, origin));
        opened.map(drop).unwrap_or_else(|fault| faults.push(fault));
    }
    for (name, _, credential) in after.fcm.changes_from(&before.fcm) {
        let Some(credential) = credential else { continue };
        let path = Path::of("push.fcm").join(name);
        let opened = fcm(&path, credential).and_then(|(_, origin, token_origin)| {
            dialer(&path, origin)?;
            dialer(&path.join("service_account"), token_origin)
        });
        opened.map(drop).unwrap_or_else(|fault| faults.push(fault));
    }
    for (name, _, credential) in after.vapid.changes_from(&before.vapid) {
        let Some(credential) = credential else { continue };
        if let Err(fault) = vapid(&Path::of("push.vapid").join(name), credential) {
            faults.push(fault);
        }
    }
}

/// Returns the dialer of an origin. Fails if the origin's name is invalid or it has no trusted roots.
fn dialer(path: &Path, origin: Origin) -> Result<Dialer, ConfigError> {
    Dialer::new(origin).map_err(|error| fault(path, error.0, ""))
}

/// Starts an APNs sender for an app, in the current runtime.
pub(super) fn start_apns(
    path: &Path,
    config: &dunlin_config::ApnsConfig,
) -> Result<Apns, ConfigError> {
    let (origin, credential) = apns(path, config)?;
    let bounds =
        bounds(path, (config.connections_max, config.queue_bytes_max), config.answer_timeout_ms);
    Apns::start(origin, credential, bounds).map_err(|error| fault(path, error.0, ""))
}

/// Starts an FCM sender for a project, in the current runtime.
pub(super) fn start_fcm(
    path: &Path,
    config: &dunlin_config::FcmConfig,
) -> Result<Fcm, ConfigError> {
    let (account, origin, token_origin) = fcm(path, config)?;
    let (service, tokens) = (dialer(path, origin)?, dialer(path, token_origin)?);
    let bounds =
        bounds(path, (config.connections_max, config.queue_bytes_max), config.answer_timeout_ms);
    Ok(Fcm::start_with(account, service, tokens, bounds))
}

/// Starts a Web Push sender for a VAPID identity, in the current runtime.
pub(super) fn start_vapid(
    path: &Path,
    config: &dunlin_config::VapidConfig,
) -> Result<WebPush, ConfigError> {
    let vapid = vapid(path, config)?;
    let mut how = WebPushConfig {
        sender: bounds(
            path,
            (config.connections_max, config.queue_bytes_max),
            config.answer_timeout_ms,
        ),
        ..WebPushConfig::default()
    };
    if !config.hosts.is_empty() {
        how.hosts = config.hosts.to_vec();
    }
    let (path, taken) = (path.join("route"), config.route.clone());
    Ok(WebPush::with_dial(vapid, how, move |origin| {
        let authority = origin.strip_prefix("https://").unwrap_or(origin);
        let (host, port) = host_and_port(authority, 443)?;
        let mut origin = Origin::new(host, port);
        route(&path, &taken, &mut origin).map_err(|fault| fault.to_string())?;
        let dialer = Dialer::new(origin).map_err(|error| error.to_string())?;
        Ok(Box::new(dialer) as Box<dyn Connect>)
    }))
}

fn apns(
    path: &Path,
    config: &dunlin_config::ApnsConfig,
) -> Result<(Origin, Credential), ConfigError> {
    let environment = match config.environment {
        ApnsEnvironment::Production => Environment::Production,
        ApnsEnvironment::Sandbox => Environment::Sandbox,
    };
    let mut origin = environment.origin();
    origin.port = config.port;
    route(&path.join("route"), &config.route, &mut origin)?;
    let text = |secret: &Option<Secret>| secret.as_ref().map(|s| s.reveal().to_owned());
    let Some(certificate) = text(&config.certificate) else {
        let id = |id: &Option<std::sync::Arc<str>>| id.as_deref().unwrap_or_default().to_owned();
        let pem = text(&config.key).unwrap_or_default();
        let key = ProviderKey::new(&pem, &id(&config.key_id), &id(&config.team_id));
        let key = key.map_err(|why| {
            let (at, why) = match why.split_once(": ") {
                Some(("key", why)) => ("key", why.to_owned()),
                _ if why.starts_with("team id") => ("team_id", why),
                _ => ("key_id", why),
            };
            fault(&path.join(at), why, "copy it from the developer account")
        })?;
        return Ok((origin, Credential::Token(ProviderToken::new(key))));
    };
    let at = path.join("certificate");
    let opened = if certificate.contains("-----BEGIN") {
        Certificate::from_pem(
            certificate.as_bytes(),
            &text(&config.certificate_password).unwrap_or_default(),
        )
    } else {
        let p12 = dunlin_push::decode_base64(&certificate).ok_or_else(|| {
            let fix = "write `base64 -w0 FILE.p12`, or the text of a PEM file";
            fault(&at, "this is neither Base64 nor PEM".to_owned(), fix)
        })?;
        Certificate::from_p12(&p12, &text(&config.certificate_password).unwrap_or_default())
    };
    let certificate = opened.map_err(|error| {
        let at = match error.fault {
            CertificateFault::Password => path.join("certificate_password"),
            _ => at,
        };
        fault(&at, error.what, &error.fix)
    })?;
    Ok((origin, Credential::Certificate(certificate)))
}

fn fcm(
    path: &Path,
    config: &dunlin_config::FcmConfig,
) -> Result<(ServiceAccount, Origin, Origin), ConfigError> {
    let text = config.service_account.as_ref().map_or("", Secret::reveal);
    let account = ServiceAccount::from_json(text).map_err(|error| {
        let fix = "set it to the text of the JSON file that the console gives";
        fault(&path.join("service_account"), error.to_string(), fix)
    })?;
    let at = path.join("route");
    let mut origin = Origin::new(AUTHORITY, 443);
    route(&at, &config.route, &mut origin)?;
    let token_uri = account.token_uri();
    let authority = token_uri.strip_prefix("https://").unwrap_or(token_uri);
    let authority = authority.split('/').next().unwrap_or_default();
    let (host, port) = host_and_port(authority, 443)
        .map_err(|why| fault(&path.join("service_account"), format!("token_uri: {why}"), ""))?;
    let mut token_origin = Origin::new(host, port);
    let token_route = Route { address: config.token_address.clone(), ..config.route.clone() };
    route(&at, &token_route, &mut token_origin).map_err(|fault| {
        match fault.path == at.join("address") {
            true => ConfigError { path: path.join("token_address"), ..fault },
            false => fault,
        }
    })?;
    Ok((account, origin, token_origin))
}

fn vapid(path: &Path, config: &dunlin_config::VapidConfig) -> Result<Vapid, ConfigError> {
    let key = config.private_key.as_ref().map_or("", Secret::reveal);
    let vapid = Vapid::new(key, &config.subject).map_err(|error| {
        let why = error.to_string();
        let at = if why.contains("contact") { "subject" } else { "private_key" };
        fault(&path.join(at), why, "make a key with `openssl ecparam -genkey -name prime256v1`")
    })?;
    route(&path.join("route"), &config.route, &mut Origin::new("localhost", 443))?;
    Ok(vapid)
}

/// Applies a route to an origin.
fn route(path: &Path, route: &Route, origin: &mut Origin) -> Result<(), ConfigError> {
    if let Some(address) = &route.address {
        host_and_port(address, 0).ok().filter(|(_, port)| *port != 0).ok_or_else(|| {
            let sentence = format!("{address:?} has no host or no port");
            fault(&path.join("address"), sentence, "write it as in \"127.0.0.1:2197\"")
        })?;
        origin.address = Some(address.to_string());
    }
    if let Some(ca) = &route.ca {
        origin.add_roots_pem(ca.as_bytes()).map_err(|error| {
            fault(&path.join("ca"), error.0, "set it to the text of a PEM file")
        })?;
    }
    if let Some(proxy) = &route.proxy {
        // The error does not repeat the text, which may contain a password.
        origin.proxy = Some(proxy.reveal().parse().map_err(|_| {
            let fix = "write http://USER:PASSWORD@HOST:PORT or socks5://HOST:PORT";
            fault(&path.join("proxy"), "this is no proxy".to_owned(), fix)
        })?);
    }
    Ok(())
}

fn host_and_port(authority: &str, default: u16) -> Result<(&str, u16), String> {
    match authority.rsplit_once(':') {
        Some(("", _)) => Err("there is no host".to_owned()),
        Some((host, port)) => Ok((host, port.parse().map_err(|_| format!("{port:?} is no port"))?)),
        None => Ok((authority, default)),
    }
}

fn bounds(path: &Path, most: (u32, u64), answer_timeout_ms: u64) -> SenderConfig {
    let (connections_max, queue_bytes_max) = most;
    SenderConfig {
        name: path.to_string().into(),
        connections: Connections::Auto { max: connections_max as usize },
        queue_bytes_max: usize::try_from(queue_bytes_max).unwrap_or(usize::MAX),
        answer_within: Duration::from_millis(answer_timeout_ms),
        ..SenderConfig::default()
    }
}

fn fault(path: &Path, sentence: String, fix: &str) -> ConfigError {
    let fix = (!fix.is_empty()).then(|| fix.to_owned());
    ConfigError { path: path.clone(), line: None, message: sentence, fix }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use dunlin_config::{ApnsConfig, FcmConfig, Map, VapidConfig};

    use super::*;

    /// Keys made for these tests.
    const KEY: &str = include_str!("../../server/tests/data/apns-key.p8");
    const P12: &[u8] = include_bytes!("../../push/tests/certificates/valid.p12");

    fn faults_of(push: &PushConfig) -> ConfigErrors {
        let mut faults = ConfigErrors::default();
        judge(&PushConfig::default(), push, &mut faults);
        faults
    }

    fn pointer_of(push: &PushConfig) -> String {
        let faults = faults_of(push);
        let fault = faults.iter().next().expect("a fault");
        format!("{} {}", fault.path.pointer(), fault.message)
    }

    fn with_apns(apns: ApnsConfig) -> PushConfig {
        let mut map = Map::new();
        map.insert("app", apns);
        PushConfig { apns: map, ..PushConfig::default() }
    }

    fn keyed(key: &str) -> ApnsConfig {
        ApnsConfig {
            key: Some(Secret::new(key)),
            key_id: Some("KEY1234567".into()),
            team_id: Some("TEAM123456".into()),
            topic: "com.example.app".into(),
            ..ApnsConfig::default()
        }
    }

    #[test]
    fn a_credential_that_cannot_be_used_is_reported_with_the_key_at_fault() {
        assert!(faults_of(&with_apns(keyed(KEY))).is_empty());
        // An RSA key; Apple requires P-256.
        let rsa = include_str!("../../push/tests/data/service-account.json");
        let rsa: serde_json::Value = serde_json::from_str(rsa).unwrap();
        let error = pointer_of(&with_apns(keyed(rsa["private_key"].as_str().unwrap())));
        assert!(error.starts_with("/push/apns/app/key ") && error.contains("P-256"), "{error}");

        let p12 = |password: &str, bytes: &[u8]| {
            with_apns(ApnsConfig {
                certificate: Some(Secret::new(BASE64_STANDARD.encode(bytes))),
                certificate_password: Some(Secret::new(password)),
                topic: "com.example.app".into(),
                ..ApnsConfig::default()
            })
        };
        let error = pointer_of(&p12("wrong", P12));
        assert!(error.starts_with("/push/apns/app/certificate_password "), "{error}");
        let error = pointer_of(&p12("", b"hello"));
        assert!(error.starts_with("/push/apns/app/certificate "), "{error}");

        let ended = include_bytes!("../../push/tests/certificates/ended.p12");
        let error = pointer_of(&p12("dunlin", ended));
        assert_eq!(error, "/push/apns/app/certificate the certificate expired on 2020-01-31");
        let early = include_str!("../../push/tests/certificates/early.pem");
        let error = pointer_of(&with_apns(ApnsConfig {
            certificate: Some(Secret::new(early)),
            topic: "com.example.app".into(),
            ..ApnsConfig::default()
        }));
        assert_eq!(error, "/push/apns/app/certificate the certificate is valid from 2100-03-01 on");

        let route = |route: Route| with_apns(ApnsConfig { route, ..keyed(KEY) });
        let error =
            pointer_of(&route(Route { address: Some("simulator".into()), ..Route::default() }));
        assert!(error.starts_with("/push/apns/app/route/address "), "{error}");
        let error = pointer_of(&route(Route { ca: Some("hello".into()), ..Route::default() }));
        assert!(error.starts_with("/push/apns/app/route/ca "), "{error}");
        let secret = Secret::new("ftp://ada:secret@proxy:1");
        let error = pointer_of(&route(Route { proxy: Some(secret), ..Route::default() }));
        assert!(error.starts_with("/push/apns/app/route/proxy ") && !error.contains("secret"));
    }

    #[test]
    fn accounts_and_application_keys_are_opened_too() {
        let account = include_str!("../../push/tests/data/service-account.json");
        let with = |account: &str| {
            let mut fcm = Map::new();
            let service_account = Some(Secret::new(account));
            fcm.insert("app", FcmConfig { service_account, ..FcmConfig::default() });
            PushConfig { fcm, ..PushConfig::default() }
        };
        assert!(faults_of(&with(account)).is_empty());
        let error = pointer_of(&with(&account.replace("https://oauth2", "https://-oauth2")));
        assert!(error.starts_with("/push/fcm/app/service_account "), "{error}");
        let error = pointer_of(&with(&account.replace("BEGIN PRIVATE KEY", "BEGIN KEY")));
        assert!(error.starts_with("/push/fcm/app/service_account private_key"), "{error}");

        let mut vapid = Map::new();
        let private_key = Some(Secret::new("abc"));
        let subject = "mailto:ops@example.com".into();
        vapid.insert("site", VapidConfig { private_key, subject, ..VapidConfig::default() });
        let error = pointer_of(&PushConfig { vapid, ..PushConfig::default() });
        assert!(error.starts_with("/push/vapid/site/private_key "), "{error}");
    }

    #[test]
    fn what_did_not_change_is_not_opened_again() {
        let push = with_apns(keyed("-----BEGIN PRIVATE KEY-----\nexpired since\n"));
        assert!(!faults_of(&push).is_empty());
        let mut faults = ConfigErrors::default();
        judge(&push.clone(), &push, &mut faults);
        assert!(faults.is_empty());
    }
}
