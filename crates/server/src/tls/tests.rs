use dunlin_config::{ConfigError, Secret};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::*;

/// A certificate for these names and its key, in PEM.
fn pair(names: &[&str]) -> (String, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names.clone()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, names[0].as_str());
    (params.self_signed(&key).unwrap().pem(), key)
}

fn inline(chain: &str, key: &str) -> Certificate {
    let (chain, key) = (Some(chain.into()), Some(Secret::new(key)));
    Certificate { chain, key, ..Certificate::default() }
}

fn with(certificates: &[(&str, Certificate)]) -> Config {
    let mut config = Config::development();
    config.server.client_ingress.tls = true;
    for (name, certificate) in certificates {
        config.tls.certificates.insert(*name, certificate.clone());
    }
    config
}

fn judged(after: &Config) -> Vec<ConfigError> {
    let mut errors = ConfigErrors::default();
    judge(&Config::development(), after, &mut errors);
    judge_authorities(after, &mut errors);
    errors.iter().cloned().collect()
}

/// The names of the certificates in use.
fn names_in_use(tls: &Tls) -> Vec<String> {
    tls.certificates.chosen.load().all.iter().flat_map(|opened| opened.names.clone()).collect()
}

#[test]
fn unusable_certificate_is_refused_with_its_key() {
    let ((chain, key), (other, _)) = (pair(&["a.example"]), pair(&["b.example"]));
    assert!(judged(&with(&[("a", inline(&chain, &key.serialize_pem()))])).is_empty());

    let expired = {
        let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        params.self_signed(&key).unwrap().pem()
    };
    let coming = {
        let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(3000, 1, 1);
        params.self_signed(&key).unwrap().pem()
    };
    let missing =
        Certificate { chain_file: Some("/nowhere".into()), ..inline("", &key.serialize_pem()) };
    let missing = Certificate { chain: None, ..missing };
    for (certificate, at, what) in [
        (inline(&other, &key.serialize_pem()), "key", "not the key of the certificate"),
        (
            inline(&chain, "-----BEGIN PRIVATE KEY-----"),
            "key",
            "cannot be read: its end is missing, -----END PRIVATE KEY-----",
        ),
        (inline(&chain, "no key"), "key", "cannot be read: it holds no PEM section"),
        (inline("", &key.serialize_pem()), "chain", "it holds no certificate"),
        (inline(&chain.replace("MII", "MI*"), &key.serialize_pem()), "chain", "cannot be read"),
        (inline(&expired, &key.serialize_pem()), "chain", "expired on 2002-01-01"),
        (inline(&coming, &key.serialize_pem()), "chain", "is valid from 3000-01-01"),
        (
            inline(&format!("{chain}{other}"), &key.serialize_pem()),
            "chain",
            "certificate 2 has not signed",
        ),
        (missing, "chain_file", "\"/nowhere\" cannot be read"),
    ] {
        let errors = judged(&with(&[("a", certificate)]));
        assert_eq!(errors.len(), 1, "{what}: {errors:?}");
        assert_eq!(errors[0].path.to_string(), format!("tls.certificates.a.{at}"), "{what}");
        assert!(errors[0].message.contains(what), "{what}: {}", errors[0].message);
        assert!(errors[0].fix.is_some());
    }
    let mut config = with(&[("a", inline(&chain, &key.serialize_pem()))]);
    config.server.admin_ingress.client_ca = Some("nothing".into());
    assert_eq!(judged(&config)[0].path.to_string(), "server.admin_ingress.client_ca");
}

#[test]
fn a_chain_in_order_is_taken() {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "an authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["a.example".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &authority).unwrap().pem();
    let chain = format!("{leaf}{}", authority.pem());
    assert!(judged(&with(&[("a", inline(&chain, &key.serialize_pem()))])).is_empty());
    let chain = format!("{}{leaf}", authority.pem());
    assert!(!judged(&with(&[("a", inline(&chain, &key.serialize_pem()))])).is_empty());
}

#[test]
fn changed_files_are_read_again_and_what_is_broken_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let [chain_file, key_file] = ["chain.pem", "key.pem"]
        .map(|name| directory.path().join(name).to_str().unwrap().to_owned());
    let write = |names: &[&str]| {
        let (chain, key) = pair(names);
        fs::write(&chain_file, chain).unwrap();
        fs::write(&key_file, key.serialize_pem()).unwrap();
    };
    write(&["old.example"]);
    let (chain_file, key_file) = (Some((*chain_file).into()), Some((*key_file).into()));
    let certificate = Certificate { chain_file, key_file, ..Certificate::default() };
    let config = with(&[("a", certificate)]);
    let tls = Tls::of(&config, None);
    assert_eq!(names_in_use(&tls), ["old.example"]);
    write(&["new.example", "*.new.example"]);
    tls.reopen(&config).unwrap();
    assert_eq!(names_in_use(&tls), ["new.example", "*.new.example"]);
    fs::write(directory.path().join("key.pem"), pair(&["x"]).1.serialize_pem()).unwrap();
    assert!(tls.reopen(&config).is_err());
    assert_eq!(names_in_use(&tls), ["new.example", "*.new.example"]);
    assert!(tls.first_expiry_s() > 0 && tls.is_complete(&config));
    assert!(!Tls::of(&config, None).is_complete(&config), "what is broken is left out at a start");
}

/// Regression test: one unusable certificate prevented the renewal of all others.
#[test]
fn one_that_cannot_be_used_stays_and_the_others_are_renewed() {
    let directory = tempfile::tempdir().unwrap();
    let file = |of: &str, what: &str| {
        directory.path().join(format!("{of}.{what}")).to_str().unwrap().to_owned()
    };
    let write = |of: &str, name: &str| {
        let (chain, key) = pair(&[name]);
        fs::write(file(of, "chain"), chain).unwrap();
        fs::write(file(of, "key"), key.serialize_pem()).unwrap();
    };
    let certificate = |of: &str| Certificate {
        chain_file: Some(file(of, "chain").into()),
        key_file: Some(file(of, "key").into()),
        ..Certificate::default()
    };
    write("a", "a.example");
    write("b", "old.example");
    let config = with(&[("a", certificate("a")), ("b", certificate("b"))]);
    let tls = Tls::of(&config, None);
    fs::write(file("a", "chain"), "half").unwrap();
    write("b", "new.example");
    let errors = tls.reopen(&config).unwrap_err();
    let errors: Vec<String> = errors.iter().map(|error| error.path.to_string()).collect();
    assert_eq!(errors, ["tls.certificates.a.chain_file"]);
    assert_eq!(names_in_use(&tls), ["a.example", "new.example"]);

    // A change of the configuration does not remove it either.
    let mut next = config.clone();
    next.tls.certificates.remove("b");
    let tls = Tls::of(&next, Some((&config, &tls)));
    assert_eq!(names_in_use(&tls), ["a.example"]);
}

/// Regression test: a pipe blocked the admin thread forever, and a device filled the memory.
#[test]
fn only_a_regular_file_of_a_bounded_size_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let large = fs::File::create(at("large")).unwrap();
    large.set_len((1 << 20) + 1).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for (file, why) in [
        ("/dev/null".to_owned(), "no regular file"),
        (at("large"), "larger than 1 MiB"),
        (at("pipe"), "no regular file"),
    ] {
        let certificate =
            Certificate { chain_file: Some(file.as_str().into()), ..Certificate::default() };
        let errors = judged(&with(&[("a", certificate)]));
        assert!(errors[0].message.contains(why), "{file}: {}", errors[0].message);
    }
}

#[test]
fn a_name_is_borne_by_itself_or_by_the_label_above() {
    assert!(matches("a.example", "a.example"));
    assert!(matches("*.example", "a.example"));
    for (pattern, name) in
        [("*.example", "example"), ("*.example", "b.a.example"), ("a.example", "b.example")]
    {
        assert!(!matches(pattern, name), "{pattern} {name}");
    }
}

#[test]
fn unchanged_tls_settings_are_shared_so_that_sessions_resume() {
    let (chain, key) = pair(&["a.example"]);
    let config = with(&[("a", inline(&chain, &key.serialize_pem()))]);
    let tls = Tls::of(&config, None);
    let mut next = config.clone();
    next.tls.certificates.insert("b", inline(&chain, &key.serialize_pem()));
    let (before, tls) = (&tls.servers[0].tickets, Tls::of(&next, Some((&config, &tls))));
    assert!(Arc::ptr_eq(before, &tls.servers[0].tickets));
    assert_eq!(names_in_use(&tls), ["a.example", "a.example"]);
}

#[test]
fn a_listener_whose_tls_cannot_be_built_does_not_listen() {
    let (chain, key) = pair(&["a.example"]);
    let mut config = with(&[("a", inline(&chain, &key.serialize_pem()))]);
    config.server.admin_ingress.tls = true;
    let server = |config: &Config| {
        let tls = Tls::of(config, None);
        let ingresses = [&config.server.client_ingress, &config.server.admin_ingress];
        ingresses.map(|ingress| tls.server(ingress).map(|built| built.is_some()).ok())
    };
    assert_eq!(server(&config), [Some(true), Some(true)]);
    let half = &chain[..chain.len() / 2];
    for client_ca in ["", "no PEM", half] {
        config.server.client_ingress.client_ca = Some(client_ca.into());
        config.server.admin_ingress.client_ca = Some(client_ca.into());
        assert_eq!(server(&config), [None, None], "{client_ca:?}: neither TLS nor plain text");
    }
    config.server.client_ingress = Ingress::default();
    assert_eq!(server(&config)[0], Some(false), "plain text is what its settings say");
}
