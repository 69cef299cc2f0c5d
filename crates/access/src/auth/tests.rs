use dunlin_config::{Secret, Token};
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};

use super::*;
use crate::auth::OptionsOverride;

const KEY: &str = "the backend's key";
const NOW_MS: u64 = 1_700_000_000_000;
const NOW_S: u64 = NOW_MS / 1_000;

fn rules() -> Token {
    Token { hmac_secret: Some(Secret::new(KEY)), ..Token::default() }
}

fn signed(algorithm: Algorithm, key: &str, claims: &Value) -> String {
    let key = EncodingKey::from_secret(key.as_bytes());
    let header = jsonwebtoken::Header::new(algorithm);
    jsonwebtoken::encode(&header, claims, &key).expect("claims are JSON")
}

fn verified_by(rules: &Token, claims: &Value) -> Result<Identity, Error> {
    Verifier::new(rules.rules()).verify(&signed(Algorithm::HS256, KEY, claims), NOW_MS)
}

fn verified(claims: &Value) -> Result<Identity, Error> {
    verified_by(&rules(), claims)
}

#[test]
fn a_token_says_who_the_client_is() {
    let identity = verified(&json!({
        "sub": "42",
        "exp": NOW_S + 60,
        "info": {"name": "Ada"},
        "meta": {"plan": 1},
        "channels": ["news", "chat:1", "news"],
        "iat": NOW_S,
    }))
    .unwrap();
    assert_eq!(identity.user, "42");
    assert_eq!(identity.expire_at_s, Some(NOW_S + 60));
    assert_eq!(identity.info.unwrap().get(), r#"{"name":"Ada"}"#);
    assert_eq!(identity.meta.unwrap().get(), r#"{"plan":1}"#);
    assert_eq!(identity.subscriptions.into_keys().collect::<Vec<_>>(), ["chat:1", "news"]);
}

#[test]
fn null_in_any_claim_is_as_if_it_were_absent() {
    use dunlin_protocol::json::members_without_null;
    assert!(members_without_null::<Claims>("{}").is_empty());
    assert!(members_without_null::<SubscribeOptions>("{}").is_empty());
    let identity = verified(&json!({
        "sub": "u", "channels": null, "caps": null, "info": null, "aud": null, "exp": null,
        "subs": {"a": null, "b": {"override": {"presence": {"value": null}, "join_leave": null}}},
    }))
    .unwrap();
    assert_eq!(identity.user, "u");
    assert_eq!(identity.subscriptions.into_keys().collect::<Vec<_>>(), ["a", "b"]);
    let caps = json!([{"channels": ["a"], "match": null, "allow": null}]);
    assert!(verified(&json!({"sub": "u", "caps": caps})).is_ok());
}

#[test]
fn subs_say_more_than_channels_and_go_before_them() {
    let identity = verified(&json!({
        "channels": ["ignored"],
        "subs": {"news": {
            "data": [1],
            "override": {"presence": {"value": true}, "force_recovery": {"value": false}},
        }},
    }))
    .unwrap();
    assert_eq!((identity.user.as_str(), identity.expire_at_s), ("", None));
    let (name, options) = identity.subscriptions.first_key_value().unwrap();
    assert_eq!((name.as_str(), options.data.as_ref().unwrap().get()), ("news", "[1]"));
    let expected = OptionsOverride {
        presence: Some(true),
        force_recovery: Some(false),
        ..OptionsOverride::default()
    };
    assert_eq!(options.overrides, expected);
    assert_eq!(identity.subscriptions.len(), 1);
}

#[test]
fn a_token_ends_at_its_second_and_leeway_moves_it() {
    assert_eq!(verified(&json!({"exp": NOW_S})).unwrap_err(), Error::Expired);
    assert!(verified(&json!({"exp": NOW_S as f64 + 0.5})).is_ok());
    assert_eq!(verified(&json!({"exp": -1})).unwrap_err(), Error::Expired);
    assert_eq!(verified(&json!({"nbf": NOW_S + 1})).unwrap_err(), Error::NotYetValid);

    let lenient = Token { leeway_ms: 2_000, ..rules() };
    assert!(verified_by(&lenient, &json!({"exp": NOW_S - 1, "nbf": NOW_S + 1})).is_ok());
    assert_eq!(verified_by(&lenient, &json!({"exp": NOW_S - 2})).unwrap_err(), Error::Expired);
}

#[test]
fn expire_at_is_the_connections_own_end() {
    let end = |claims| verified(&claims).unwrap().expire_at_s;
    assert_eq!(end(json!({"exp": NOW_S + 5, "expire_at": NOW_S + 900})), Some(NOW_S + 900));
    assert_eq!(end(json!({"exp": NOW_S + 5, "expire_at": 0})), None);
    assert_eq!(
        verified(&json!({"exp": NOW_S - 5, "expire_at": 0})).unwrap_err(),
        Error::Expired,
        "the token itself still ends at `exp`"
    );
}

#[test]
fn only_hmac_by_a_known_key_is_accepted() {
    let claims = json!({"sub": "42"});
    let mut rules = rules();
    let verify = |rules: &Token, token: &str| Verifier::new(rules.rules()).verify(token, NOW_MS);
    for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
        assert!(verify(&rules, &signed(algorithm, KEY, &claims)).is_ok());
    }
    let before = signed(Algorithm::HS256, "the key before", &claims);
    assert_eq!(verify(&rules, &before).unwrap_err(), Error::Signature);
    rules.hmac_secret_previous = Some(Secret::new("the key before"));
    assert!(verify(&rules, &before).is_ok());
    assert_eq!(verify(&Token::default(), &before).unwrap_err(), Error::NoKey);

    // {"alg":"none","typ":"JWT"} and {"alg":"RS256","typ":"JWT"}, each with {"sub":"42"}.
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJzdWIiOiI0MiJ9.";
    assert!(matches!(verify(&rules, none).unwrap_err(), Error::Malformed(_)));
    let rs256 = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiI0MiJ9.AAAA";
    assert_eq!(verify(&rules, rs256).unwrap_err(), Error::Algorithm);
}

#[test]
fn audience_and_issuer_are_demanded_once_configured() {
    assert!(verified(&json!({"aud": "anyone", "iss": "anyone"})).is_ok());
    let rules = Token { audience: Some("push".into()), issuer: Some("backend".into()), ..rules() };
    let verified = |claims| verified_by(&rules, &claims).map(|_| ());
    assert_eq!(verified(json!({"aud": ["web", "push"], "iss": "backend"})), Ok(()));
    assert_eq!(verified(json!({"aud": "push"})), Err(Error::Issuer));
    assert_eq!(verified(json!({"iss": "backend"})), Err(Error::Audience));
    assert_eq!(verified(json!({"aud": "web", "iss": "backend"})), Err(Error::Audience));
    assert_eq!(verified(json!({"aud": "push", "iss": "someone"})), Err(Error::Issuer));
}

#[test]
fn a_malformed_connection_token_is_rejected() {
    for token in ["", "a.b", "a.b.c", "....", "\u{2603}.\u{2603}.\u{2603}"] {
        let error = Verifier::new(rules().rules()).verify(token, NOW_MS).unwrap_err();
        assert!(matches!(error, Error::Malformed(_)), "{token}: {error}");
    }
    for claims in [
        json!({"sub": 42}),
        json!({"exp": "tomorrow"}),
        json!({"channels": "news"}),
        json!({"b64info": "no base64!"}),
        json!({"subs": {"a": {"b64data": "/w=="}}}),
        json!({"sub": "42", "channel": "a subscription token's"}),
        json!([]),
    ] {
        let error = verified(&claims).unwrap_err();
        assert!(matches!(error, Error::Malformed(_)), "{claims}: {error}");
    }
    let long = "a".repeat(TOKEN_BYTES_MAX + 1);
    assert!(Verifier::new(rules().rules()).verify(&long, NOW_MS).is_err());
}

#[test]
fn a_token_that_names_its_key_is_verified_by_that_key_alone() {
    let mut rules = rules();
    rules.keys.insert("2026", Secret::new("the key of 2026"));
    let signed_as = |kid: Option<&str>, key: &str| {
        let header = jsonwebtoken::Header {
            kid: kid.map(str::to_owned),
            ..jsonwebtoken::Header::new(Algorithm::HS256)
        };
        let key = EncodingKey::from_secret(key.as_bytes());
        jsonwebtoken::encode(&header, &json!({"sub": "42"}), &key).expect("claims are JSON")
    };
    let before = Verifier::new(rules.rules());
    let verify = |token: &str| before.verify(token, NOW_MS);
    let named = verify(&signed_as(Some("2026"), "the key of 2026")).unwrap();
    assert_eq!(verify(&signed_as(Some("2026"), KEY)).unwrap_err(), Error::Signature);
    let unnamed = verify(&signed_as(Some("unknown"), KEY)).unwrap();
    assert_ne!(named.key, unnamed.key);
    assert!(before.keeps(named.key.unwrap()) && before.keeps(unnamed.key.unwrap()));

    rules.keys.remove("2026");
    rules.hmac_secret_previous = rules.hmac_secret.replace(Secret::new("a newer key"));
    let after = Verifier::new(rules.rules());
    assert!(!after.keeps(named.key.unwrap()), "revoked");
    assert!(after.keeps(unnamed.key.unwrap()), "the one before the newest still holds");
}

#[test]
fn a_token_that_demands_what_is_not_understood_is_refused() {
    for (header, refused) in [
        (json!({"alg": "HS256", "crit": ["exp"]}), true),
        (json!({"alg": "HS256", "crit": ["b64"], "b64": false}), true),
        (json!({"alg": "HS256", "crit": []}), true),
        (json!({"alg": "HS256", "unknown": 1}), false),
    ] {
        let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let message = format!("{}.{}", part(&header), part(&json!({"sub": "42"})));
        let key = EncodingKey::from_secret(KEY.as_bytes());
        let signature =
            jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
        let token = format!("{message}.{signature}");
        let verified = Verifier::new(rules().rules()).verify(&token, NOW_MS).map(|_| ());
        let expected = if refused { Err(Error::Critical) } else { Ok(()) };
        assert_eq!(verified, expected, "{header}");
    }
}

#[test]
fn fields_that_distinguish_a_token_are_kept() {
    let of = |claims| verified(&claims).unwrap().token.unwrap();
    let token = of(json!({"jti": "a", "iat": NOW_S}));
    assert_eq!((token.jti.as_deref(), token.issued_at_s), (Some("a"), Some(NOW_S)));
    let unnamed = of(json!({"sub": "42"}));
    assert_eq!((&unnamed.jti, unnamed.issued_at_s), (&None, None));
    assert_ne!(unnamed.signed, token.signed);
    assert_eq!(of(json!({"jti": 7})).jti.as_deref(), Some("7"));
}

#[test]
fn a_verifier_does_not_show_its_keys() {
    assert!(!format!("{:?}", Verifier::new(rules().rules())).contains(KEY));
}

#[test]
fn info_and_data_may_come_in_base64() {
    let identity = verified(
        &json!({"b64info": "eyJhIjoxfQ==", "info": 2, "subs": {"a": {"b64data": "WzFd"}}}),
    );
    let identity = identity.unwrap();
    assert_eq!(identity.info.unwrap().get(), r#"{"a":1}"#);
    assert_eq!(identity.subscriptions["a"].data.as_ref().unwrap().get(), "[1]");
}

#[test]
fn a_subscription_token_says_which_user_may_have_which_channel() {
    let verify = |claims: &Value| {
        Verifier::new(rules().rules())
            .verify_subscription(&signed(Algorithm::HS256, KEY, claims), NOW_MS)
    };
    let subscription = verify(&json!({
        "sub": "42", "channel": "$gossips", "client": "7", "exp": NOW_S + 60, "expire_at": NOW_S + 90,
        "info": {"a": 1}, "data": [1], "override": {"force_positioning": {"value": true}}, "jti": "t",
    }))
    .unwrap();
    assert_eq!((subscription.user.as_str(), subscription.channel.as_str()), ("42", "$gossips"));
    assert_eq!(subscription.client.as_deref(), Some("7"));
    assert_eq!(subscription.expire_at_s, Some(NOW_S + 90));
    assert_eq!(subscription.options.overrides.force_positioning, Some(true));
    assert_eq!(subscription.token.jti.as_deref(), Some("t"));
    assert_eq!(verify(&json!({"channel": "a", "exp": NOW_S})).unwrap_err(), Error::Expired);
    let connection = verify(&json!({"sub": "42"})).unwrap_err();
    assert!(matches!(connection, Error::Malformed(_)), "a connection token subscribes nowhere");
}

/// Returns the rules with this public key twice: without a `kid`, and under the `kid` `k`.
fn with_public_key(name: &str, pem: &str) -> [Token; 2] {
    let mut named = Token::default();
    named.keys.insert("k", Secret::new(pem));
    let pem = Some(pem.to_owned());
    let unnamed = match name {
        "rsa" => Token { rsa_public_key: pem, ..Token::default() },
        "eddsa" => Token { eddsa_public_key: pem, ..Token::default() },
        _ => Token { ecdsa_public_key: pem, ..Token::default() },
    };
    [unnamed, named]
}

#[test]
fn a_token_of_each_public_key_algorithm_is_verified_by_its_key_alone() {
    // Made by PyJWT: each with {"sub": "42"} and the header's `kid` "k".
    let made: Value = serde_json::from_str(include_str!("tests/tokens.json")).unwrap();
    let made = made.as_object().unwrap();
    let text = |of: &Value| of.as_str().unwrap().to_owned();
    let keys = [
        ("rsa", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"].as_slice()),
        ("es256", &["ES256"]),
        ("es384", &["ES384"]),
        ("p521", &["ES512"]),
        ("eddsa", &["EdDSA", "Ed25519"]),
    ];
    let all: Vec<&str> =
        keys.iter().flat_map(|(_, algorithms)| algorithms.iter().copied()).collect();
    for (name, own) in keys {
        for rules in with_public_key(name, &text(&made["keys"][name])) {
            let verifier = Verifier::new(rules.rules());
            for algorithm in &all {
                let token = text(&made["tokens"][*algorithm]);
                let verified = verifier.verify(&token, NOW_MS).map(|of| of.user);
                match own.contains(algorithm) {
                    true => assert_eq!(verified, Ok("42".into()), "{algorithm}"),
                    false => assert_eq!(verified, Err(Error::Algorithm), "{algorithm} by {name}"),
                }
            }
            let (signed, signature) = text(&made["tokens"][own[0]])
                .rsplit_once('.')
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .unwrap();
            let forged = format!("{signed}.{}", signature.chars().rev().collect::<String>());
            let error = verifier.verify(&forged, NOW_MS).unwrap_err();
            assert!(matches!(error, Error::Signature | Error::Malformed(_)), "{error}");
        }
    }
}

/// Returns the token with the other valid ECDSA signature of the same text: (r, n - s) for (r, s), by the order of the curve.
fn with_other_signature(token: &str, order: &str) -> String {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let (r, s) = signature.split_at(signature.len() / 2);
    let byte = |at: usize| u8::from_str_radix(&order[2 * at..2 * at + 2], 16).unwrap();
    let mut other = s.to_vec();
    let mut borrow = 0;
    for at in (0..s.len()).rev() {
        let difference = i16::from(byte(at)) - i16::from(s[at]) - borrow;
        borrow = i16::from(difference < 0);
        other[at] = difference.rem_euclid(256) as u8;
    }
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode([r, &other].concat()))
}

/// Regression test: the bar after a disconnect was keyed by the text of the signature, from which anyone computes another.
#[test]
fn token_with_another_signature_of_the_same_text_is_barred_as_the_same_token() {
    let made: Value = serde_json::from_str(include_str!("tests/tokens.json")).unwrap();
    for (algorithm, key, order) in [
        ("ES256", "es256", "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551"),
        (
            "ES384",
            "es384",
            "ffffffffffffffffffffffffffffffffffffffffffffffff\
             c7634d81f4372ddf581a0db248b0a77aecec196accc52973",
        ),
    ] {
        let [rules, _] = with_public_key(key, made["keys"][key].as_str().unwrap());
        let verifier = Verifier::new(rules.rules());
        let token = made["tokens"][algorithm].as_str().unwrap();
        let other = with_other_signature(token, order);
        assert_ne!(token, other);
        let [token, other] =
            [token, &other].map(|of| verifier.verify(of, NOW_MS).unwrap().token.unwrap());
        let revocations = revocation::Revocations::default();
        revocations.bar(revocations.id_of(&token), NOW_MS + 1_000, NOW_MS, 9);
        let refused = revocations.refuses(revocations.id_of(&other), "42", None, NOW_MS);
        assert!(refused.is_some(), "{algorithm}");
    }
}

#[test]
fn a_public_key_is_never_the_secret_of_an_hmac() {
    let made: Value = serde_json::from_str(include_str!("tests/tokens.json")).unwrap();
    let pem = made["keys"]["rsa"].as_str().unwrap();
    for rules in with_public_key("rsa", pem) {
        for kid in [None, Some("k".to_owned())] {
            let header =
                jsonwebtoken::Header { kid, ..jsonwebtoken::Header::new(Algorithm::HS256) };
            let key = EncodingKey::from_secret(pem.as_bytes());
            let token = jsonwebtoken::encode(&header, &json!({"sub": "admin"}), &key).unwrap();
            let error = Verifier::new(rules.rules()).verify(&token, NOW_MS).unwrap_err();
            assert!(matches!(error, Error::Algorithm | Error::NoKey), "{error}");
        }
    }
}

/// Otherwise the published key would be taken for a secret, and whoever has it could sign tokens.
#[test]
fn public_key_with_a_byte_order_mark_is_a_public_key() {
    let made: Value = serde_json::from_str(include_str!("tests/tokens.json")).unwrap();
    let pem = format!("\u{feff}{}", made["keys"]["rsa"].as_str().unwrap());
    let mut rules = Token::default();
    rules.keys.insert("k", Secret::new(&*pem));
    let verifier = Verifier::new(rules.rules());
    let token = made["tokens"]["RS256"].as_str().unwrap();
    assert_eq!(verifier.verify(token, NOW_MS).map(|of| of.user), Ok("42".into()));
    assert!(judge_secret(&Secret::new(pem)).is_err());
}

#[test]
fn a_key_that_verifies_nothing_is_refused_before_it_is_taken() {
    let made: Value = serde_json::from_str(include_str!("tests/tokens.json")).unwrap();
    let pem = |name: &str| made["keys"][name].as_str().unwrap().to_owned();
    assert_eq!(judge_pem(&pem("es384"), Family::Ec), Ok(()));
    assert_eq!(judge_pem(&pem("p521"), Family::Ec), Ok(()));
    for (pem, family) in [
        (pem("rsa"), Family::Ec),
        (pem("rsa_1024"), Family::Rsa),
        (pem("private"), Family::Ed),
        (pem("rsa").replace("MII", "MI"), Family::Rsa),
        ("a secret".into(), Family::Rsa),
    ] {
        assert!(judge_pem(&pem, family).is_err(), "{pem}");
        assert!(
            !pem.starts_with("-----") || family == Family::Ec || judge(&Secret::new(pem)).is_err()
        );
    }
    assert!(judge_secret(&Secret::new(pem("rsa"))).is_err());
    assert_eq!(judge(&Secret::new("a secret of sixteen bytes")), Ok(()));
}

#[test]
fn claims_of_identity_providers_are_mapped_and_checked() {
    let rules = Token {
        audience_regex: Some("^push-(eu|us)$".into()),
        issuer_regex: Some("^https://idp[.]example/".into()),
        user_id_claim: Some("https://example.com/uid".into()),
        ..rules()
    };
    let of = |aud: Value, iss: &str, uid: Value| {
        let claims =
            json!({"sub": "auth0|1", "aud": aud, "iss": iss, "https://example.com/uid": uid});
        verified_by(&rules, &claims).map(|of| of.user)
    };
    let iss = "https://idp.example/realm";
    assert_eq!(of(json!(["web", "push-us"]), iss, json!("42")), Ok("42".into()));
    assert_eq!(of(json!("push-eu"), iss, json!(42)), Ok("42".into()));
    assert_eq!(of(json!("push-eu2"), iss, json!("42")), Err(Error::Audience));
    assert!(of(Value::Null, iss, json!("42")).is_err());
    assert_eq!(
        of(json!("push-eu"), "https://evil/?https://idp.example/", json!("42")),
        Err(Error::Issuer)
    );
    for nobody in [Value::Null, json!(""), json!({"a": 1})] {
        assert!(matches!(of(json!("push-eu"), iss, nobody), Err(Error::Malformed(_))));
    }
}

#[test]
fn a_token_whose_key_is_in_the_set_waits_until_the_set_is_there() {
    let made: Value = serde_json::from_str(include_str!("tests/tokens.json")).unwrap();
    let rules = Token { jwks_public_endpoint: Some("https://idp.example/keys".into()), ..rules() };
    let verifier = Verifier::new(rules.rules());
    let jwks = Arc::clone(verifier.jwks().unwrap());
    let tokens = made["jwks_tokens"].as_object().unwrap();
    let verify = |token: &str| verifier.verify(token, NOW_MS);
    for token in tokens.values() {
        assert_eq!(verify(token.as_str().unwrap()).unwrap_err(), Error::Pending);
    }
    // A configured secret works without the set.
    assert!(verify(&signed(Algorithm::HS256, KEY, &json!({"sub": "42"}))).is_ok());
    jwks.begin(NOW_MS);
    let set = KeySet::parse(made["jwks"].to_string().as_bytes()).unwrap();
    assert_eq!(jwks.fetched(set, NOW_MS), 5);
    for (kid, token) in tokens {
        let identity = verify(token.as_str().unwrap()).unwrap();
        assert_eq!(identity.user, "42", "{kid}");
        assert!(verifier.keeps(identity.key.unwrap()));
    }
    // The key `p` is for ES256 only, so an HMAC with this `kid` is refused.
    let header = jsonwebtoken::Header {
        kid: Some("p".into()),
        ..jsonwebtoken::Header::new(Algorithm::HS256)
    };
    let key = EncodingKey::from_secret(b"another secret");
    let token = jsonwebtoken::encode(&header, &json!({"sub": "42"}), &key).unwrap();
    assert_eq!(verify(&token).unwrap_err(), Error::Signature);
    // Without a `kid` the set is not searched.
    let unnamed = made["tokens"]["ES256"].as_str().unwrap().split_once('.').unwrap().1;
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256"}"#);
    assert_eq!(verify(&format!("{header}.{unnamed}")).unwrap_err(), Error::NoKeyId);

    // Fetched keys are kept while the endpoint is unchanged, and dropped with it.
    let lenient = Token { leeway_ms: 7, ..rules.clone() };
    let next = Verifier::next(lenient.rules(), Some(&verifier));
    assert!(Arc::ptr_eq(next.jwks().unwrap(), &jwks));
    let other = Token { jwks_public_endpoint: Some("https://other.example/keys".into()), ..rules };
    let next = Verifier::next(other.rules(), Some(&verifier));
    let p = tokens["p"].as_str().unwrap();
    let key = verify(p).unwrap().key.unwrap();
    assert!(!next.keeps(key) && next.verify(p, NOW_MS).unwrap_err() == Error::Pending);
}
