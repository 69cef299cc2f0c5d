//! Keys at a URL: a JSON Web Key Set (RFC 7517), searched for every token that names a key which is not configured.
//!
//! No I/O and no clock: the server fetches the set and supplies the time. A known key is found without a fetch,
//! so a slow or unreachable endpoint does not affect tokens with known keys. An unknown key schedules a fetch, which all clients
//! with unknown keys share. A key that the fetch did not find is refused until the next fetch is allowed.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dunlin_config::JwksRules;
use dunlin_wire::text::without_byte_order_mark;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::key::{Key, RSA, fingerprint_of, is_rsa_size};
use super::signature::{Algorithm, KeyMaterial};

/// The largest set, in bytes; a larger one is rejected.
pub const SET_BYTES_MAX: usize = 256 << 10;
/// The most keys that are used of a set.
const KEYS_MAX: usize = 256;
/// The most unknown keys that wait for a fetch. Tokens with further ones are refused as if the endpoint were unavailable.
const ASKED_MAX: usize = 4_096;
/// The longest pause before a retry after a failed fetch.
const RETRY_MS_MAX: u64 = 300_000;

/// The keys at one URL. They are kept as long as the settings name it.
pub struct Jwks {
    endpoint: Endpoint,
    /// Shared by all keys of the set: sessions end when the URL is removed from the settings, not when a key is rotated out.
    fingerprint: u64,
    hashes: RandomState,
    found: ArcSwap<FetchedKeys>,
    schedule: Mutex<Schedule>,
}

/// Where the set is, and how it is fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// `jwks_public_endpoint`.
    pub url: String,
    /// Certificates to trust, in PEM; `None`: the system's roots.
    pub ca: Option<String>,
    /// How long a fetch may take, in milliseconds.
    pub timeout_ms: u64,
    refresh_ms: u64,
    refetch_ms: u64,
}

/// The result of the last fetch.
#[derive(Default)]
struct FetchedKeys {
    keys: KeySet,
    /// Hashes of the keys that requests waited for. Those not in `keys` are refused until `missing_until_ms`.
    missing: HashSet<u64>,
    missing_until_ms: u64,
    failed: bool,
}

#[derive(Default)]
struct Schedule {
    /// Hashes of the keys that requests wait for.
    asked: HashSet<u64>,
    /// Hashes of the keys that waited when the current fetch began; `None` if none is in progress.
    fetching: Option<HashSet<u64>>,
    /// When the set is refreshed even if no unknown key was requested.
    refresh_at_ms: u64,
    /// The earliest time of a fetch for an unknown key.
    earliest_ms: u64,
    failures: u32,
}

/// Why a key is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingKey {
    /// The set does not have it.
    Unknown,
    /// The key is unknown, and the last fetch failed or too many keys wait for one.
    Unavailable,
    /// The key waits for a fetch.
    Pending,
}

impl Jwks {
    pub(super) fn new(rules: &JwksRules<'_>) -> Jwks {
        let endpoint = Endpoint::of(rules);
        Jwks {
            fingerprint: fingerprint_of(endpoint.url.as_bytes()),
            endpoint,
            hashes: RandomState::new(),
            found: ArcSwap::default(),
            schedule: Mutex::default(),
        }
    }

    /// Whether `rules` name the same endpoint with the same fetch settings.
    pub(super) fn is(&self, rules: &JwksRules<'_>) -> bool {
        self.endpoint == Endpoint::of(rules)
    }

    /// Returns where the set is fetched.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Calls `with` with the keys of this id. Schedules a fetch if they are unknown.
    ///
    /// # Errors
    /// The reason why they are unknown.
    pub(super) fn with<R>(
        &self,
        kid: &str,
        now_ms: u64,
        with: impl FnOnce(&[Key]) -> R,
    ) -> Result<R, MissingKey> {
        let found = self.found.load();
        if let Some(keys) = found.keys.0.get(kid) {
            return Ok(with(keys));
        }
        let hash = self.hashes.hash_one(kid);
        if now_ms < found.missing_until_ms && found.missing.contains(&hash) {
            return Err(if found.failed { MissingKey::Unavailable } else { MissingKey::Unknown });
        }
        let mut schedule = self.schedule();
        if schedule.asked.len() >= ASKED_MAX && !schedule.asked.contains(&hash) {
            return Err(MissingKey::Unavailable);
        }
        schedule.asked.insert(hash);
        Err(MissingKey::Pending)
    }

    /// Returns the milliseconds until the next fetch is due; `None` during a fetch.
    pub fn due_in_ms(&self, now_ms: u64) -> Option<u64> {
        let schedule = self.schedule();
        if schedule.fetching.is_some() {
            return None;
        }
        let asked = (!schedule.asked.is_empty()).then_some(schedule.earliest_ms);
        let due_ms = asked.unwrap_or(u64::MAX).min(schedule.refresh_at_ms);
        Some(due_ms.saturating_sub(now_ms))
    }

    /// Marks the beginning of a fetch. [`Jwks::fetched`] or [`Jwks::failed`] must follow.
    pub fn begin(&self, now_ms: u64) {
        let mut schedule = self.schedule();
        schedule.fetching = Some(std::mem::take(&mut schedule.asked));
        schedule.earliest_ms = now_ms.saturating_add(self.endpoint.refetch_ms);
    }

    /// Replaces the keys by those of a fetched set. Returns their number.
    pub fn fetched(&self, mut keys: KeySet, now_ms: u64) -> usize {
        let count = keys.len();
        for key in Arc::make_mut(&mut keys.0).values_mut().flatten() {
            key.fingerprint = self.fingerprint;
        }
        let mut schedule = self.schedule();
        // Keys that were requested during the fetch may be in its result.
        for kid in keys.0.keys() {
            schedule.asked.remove(&self.hashes.hash_one(&**kid));
        }
        schedule.failures = 0;
        schedule.refresh_at_ms = now_ms.saturating_add(self.endpoint.refresh_ms);
        let missing = schedule.fetching.take().unwrap_or_default();
        let missing_until_ms = now_ms.saturating_add(self.endpoint.refetch_ms);
        self.found.store(Arc::new(FetchedKeys { keys, missing, missing_until_ms, failed: false }));
        count
    }

    /// Keeps the known keys after a failed fetch, and schedules a retry with exponential backoff.
    pub fn failed(&self, now_ms: u64) {
        let mut schedule = self.schedule();
        let endpoint = &self.endpoint;
        let retry_ms = endpoint.refetch_ms.saturating_mul(1 << schedule.failures.min(16));
        let retry_ms = retry_ms.min(RETRY_MS_MAX).min(endpoint.refresh_ms);
        schedule.failures += 1;
        schedule.refresh_at_ms = now_ms.saturating_add(retry_ms);
        let missing = schedule.fetching.take().unwrap_or_default();
        let missing_until_ms = now_ms.saturating_add(endpoint.refetch_ms);
        let keys = self.found.load().keys.clone();
        self.found.store(Arc::new(FetchedKeys { keys, missing, missing_until_ms, failed: true }));
    }

    /// The number of known keys.
    pub fn len(&self) -> usize {
        self.found.load().keys.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Jwks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwks").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Endpoint {
    fn of(rules: &JwksRules<'_>) -> Endpoint {
        Endpoint {
            url: rules.endpoint.to_owned(),
            ca: rules.ca.map(str::to_owned),
            timeout_ms: rules.timeout_ms,
            refresh_ms: rules.refresh_ms,
            refetch_ms: rules.refetch_ms,
        }
    }
}

/// The public keys of a set, by their `kid`.
#[derive(Clone, Debug, Default)]
pub struct KeySet(Arc<HashMap<Box<str>, Vec<Key>>>);

#[derive(Deserialize)]
struct Set<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

/// One key of a set (RFC 7517 §4, RFC 7518 §6, RFC 8037 §2).
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Parses a set. Skips everything that is not a public key for verification: secrets, keys for encryption, keys of
    /// unsupported types and sizes, and keys without a `kid`.
    ///
    /// # Errors
    /// The text is too long, or is not a key set.
    pub fn parse(bytes: &[u8]) -> Result<KeySet, String> {
        if bytes.len() > SET_BYTES_MAX {
            return Err(format!("it has more than {SET_BYTES_MAX} bytes"));
        }
        let set: Set<'_> = serde_json::from_slice(without_byte_order_mark(bytes))
            .map_err(|error| error.to_string())?;
        let mut keys: HashMap<Box<str>, Vec<Key>> = HashMap::new();
        let read = set.keys.iter().filter_map(|key| serde_json::from_str::<Jwk>(key.get()).ok());
        for (kid, key) in read.filter_map(Jwk::into_key).take(KEYS_MAX) {
            keys.entry(kid.into()).or_default().push(key);
        }
        Ok(KeySet(Arc::new(keys)))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Jwk {
    fn into_key(self) -> Option<(String, Key)> {
        if self.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_ref()?).ok();
        let named: Option<Algorithm> = match &self.alg {
            // A key with an unknown `alg` is skipped; no other algorithm is assumed for it.
            Some(name) => Some(Algorithm::named(name)?),
            None => None,
        };
        let fits = |family: &[Algorithm]| match named {
            Some(named) => family.contains(&named).then(|| vec![named]),
            None => Some(family.to_vec()),
        };
        let key = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => {
                let (n, e) = (bytes(&self.n)?, bytes(&self.e)?);
                is_rsa_size(&n).ok()?;
                // Leading zeros are not part of the number (RFC 7518 §6.3.1.1).
                let n = &n[n.iter().take_while(|byte| **byte == 0).count()..];
                Key::new(0, KeyMaterial::RsaNumbers(n.to_vec(), e), &fits(RSA)?)
            }
            ("EC", Some(curve)) => {
                let algorithm = match curve {
                    "P-256" => Algorithm::ES256,
                    "P-384" => Algorithm::ES384,
                    "P-521" => Algorithm::ES512,
                    _ => return None,
                };
                fits(&[algorithm])?;
                let point = [vec![4], bytes(&self.x)?, bytes(&self.y)?].concat();
                Key::of_point(0, &point, algorithm).ok()?
            }
            ("OKP", Some("Ed25519")) => {
                fits(&[Algorithm::Ed25519])?;
                Key::of_ed25519(0, &bytes(&self.x)?).ok()?
            }
            _ => return None,
        };
        Some((self.kid.filter(|kid| !kid.is_empty())?, key))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RULES: JwksRules<'static> = JwksRules {
        endpoint: "https://idp.example/keys",
        ca: None,
        timeout_ms: 5_000,
        refresh_ms: 3_600_000,
        refetch_ms: 5_000,
    };

    fn made() -> Value {
        serde_json::from_str(include_str!("tests/tokens.json")).unwrap()
    }

    /// `Ok`: the key is known.
    fn look_up(jwks: &Jwks, kid: &str, now_ms: u64) -> Result<(), MissingKey> {
        jwks.with(kid, now_ms, |keys| assert_eq!(keys.len(), 1))
    }

    fn set() -> KeySet {
        KeySet::parse(made()["jwks"].to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_set_has_the_public_keys_that_are_verified_with_and_nothing_else() {
        assert_eq!(set().len(), 5);
        let with = |key: &str, value: Value, of: usize| {
            let mut jwks = made()["jwks"].clone();
            jwks["keys"] = json!([jwks["keys"][of]]);
            jwks["keys"][0][key] = value;
            KeySet::parse(jwks.to_string().as_bytes()).unwrap().len()
        };
        assert_eq!(with("other", json!({"a": [1]}), 0), 1);
        assert_eq!(with("alg", json!("Ed25519"), 3), 1);
        let marked = format!("\u{feff}{}", made()["jwks"]);
        assert_eq!(KeySet::parse(marked.as_bytes()).unwrap().len(), 5);
        for (key, value, of) in [
            ("use", json!("enc"), 0),
            ("kid", Value::Null, 0),
            ("n", json!("AQAB"), 0),
            ("alg", json!("HS256"), 0),
            ("alg", json!("ES256"), 0),
            ("alg", json!("RSA-OAEP"), 0),
            ("kty", json!("oct"), 0),
            ("kty", json!(7), 0),
            ("crv", json!("P-384"), 1),
            ("alg", json!("ES256"), 4),
            ("x", json!("AQAB"), 4),
            ("crv", json!("secp256k1"), 1),
            ("x", json!("AQAB"), 3),
            ("x", json!("!"), 3),
        ] {
            assert_eq!(with(key, value, of), 0, "{key}");
        }
        for broken in ["", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":[}"#] {
            assert!(KeySet::parse(broken.as_bytes()).is_err(), "{broken}");
        }
        assert!(KeySet::parse(&vec![b' '; SET_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn many_unknown_keys_cost_one_fetch_an_interval() {
        let jwks = Jwks::new(&RULES);
        assert_eq!(jwks.due_in_ms(0), Some(0), "the first fetch waits for nobody");
        jwks.begin(0);
        assert_eq!(jwks.due_in_ms(0), None, "one at a time");
        assert!(look_up(&jwks, "p", 0) == Err(MissingKey::Pending));
        assert_eq!(jwks.fetched(set(), 10), 5);
        assert_eq!(look_up(&jwks, "p", 10), Ok(()));

        for n in 0..10_000 {
            let unknown = look_up(&jwks, &format!("kid{n}"), 20);
            match n {
                0..4_096 => assert!(unknown == Err(MissingKey::Pending)),
                _ => assert!(unknown == Err(MissingKey::Unavailable), "memory is bounded"),
            }
        }
        assert_eq!(jwks.due_in_ms(20), Some(4_980));
        jwks.begin(5_000);
        jwks.fetched(set(), 5_100);
        for n in 0..4_096 {
            assert!(look_up(&jwks, &format!("kid{n}"), 5_200) == Err(MissingKey::Unknown));
        }
        assert_eq!(jwks.due_in_ms(5_200), Some(3_599_900), "nobody waits");
        assert!(
            look_up(&jwks, "kid0", 10_200) == Err(MissingKey::Pending),
            "it may be there by now"
        );
        assert_eq!(jwks.due_in_ms(10_200), Some(0));
    }

    #[test]
    fn an_endpoint_that_is_gone_stops_nobody_whose_key_is_known() {
        let jwks = Jwks::new(&RULES);
        jwks.begin(0);
        jwks.failed(5_000);
        assert_eq!(jwks.due_in_ms(5_000), Some(5_000));
        jwks.begin(10_000);
        jwks.fetched(set(), 10_000);
        let mut now_ms = 10_000;
        assert!(look_up(&jwks, "new", now_ms) == Err(MissingKey::Pending));
        for _ in 0..20 {
            now_ms += jwks.due_in_ms(now_ms).unwrap();
            jwks.begin(now_ms);
            jwks.failed(now_ms);
            assert_eq!(look_up(&jwks, "p", now_ms), Ok(()));
        }
        assert_eq!(jwks.due_in_ms(now_ms), Some(RETRY_MS_MAX));
        assert!(look_up(&jwks, "new", now_ms) == Err(MissingKey::Pending));
        now_ms += 5_000;
        jwks.begin(now_ms);
        assert!(look_up(&jwks, "newer", now_ms) == Err(MissingKey::Pending));
        jwks.failed(now_ms);
        assert!(look_up(&jwks, "new", now_ms) == Err(MissingKey::Unavailable), "for the moment");
        assert!(
            look_up(&jwks, "newer", now_ms) == Err(MissingKey::Pending),
            "was not asked for yet"
        );
    }
}
