//! The devices of users, stored on disk (`redb`), and a feed of the tokens that turned out invalid.
//!
//! Every call of a [`Registry`] reads or writes the disk: call it from a thread that may block. Pass many changes to a
//! [`Writer`], which makes all that are queued in one transaction: the cost of a change is mostly the sync of the disk,
//! and one sync serves them all.
//!
//! ```
//! use dunlin_push::registry::{Change, Device, InvalidToken, Platform, Registry};
//!
//! let registry = Registry::in_memory()?;
//! let (app, token) = ("shop".to_owned(), "registration token".to_owned());
//! let device = Device { platform: Platform::Fcm, app, token };
//! registry.register("ada", &[device.clone()], 1_000)?;
//! assert_eq!(registry.devices("ada")?, [device.clone()]);
//!
//! // FCM has answered that the token is over.
//! let reason = "UNREGISTERED".to_owned();
//! let invalid = InvalidToken { device, reason, dead_since_ms: 2_000, doubtful: false };
//! registry.apply(&[Change::Invalidate(invalid)])?;
//! assert!(registry.devices("ada")?.is_empty());
//! let entry = &registry.feed(0, 100)?[0];
//! assert!(entry.dropped && entry.user.as_deref() == Some("ada"));
//! # Ok::<(), dunlin_push::registry::RegistryError>(())
//! ```

mod change;
mod writer;

use std::path::Path;
use std::sync::Arc;

use redb::{
    Database, MultimapTableDefinition, ReadableTable, ReadableTableMetadata, TableDefinition,
};
use serde::{Deserialize, Serialize};

pub use self::change::{Change, InvalidToken};
pub use self::writer::Writer;
use crate::store::{self, Store};

/// Device key → data of the device, in JSON.
const DEVICES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("devices");
/// User → device keys.
const USERS: MultimapTableDefinition<'_, &str, &str> = MultimapTableDefinition::new("users");
/// The epoch of the feed.
const EPOCHS: TableDefinition<'_, &str, u64> = TableDefinition::new("epochs");
/// Number → entry, in JSON.
const FEED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("feed");

/// Most entries; older ones are removed.
const FEED_MAX: u64 = 100_000;
const USER_BYTES_MAX: usize = 1_024;
const TOKEN_BYTES_MAX: usize = 4_096;
/// Most devices of one user; a further registration removes the oldest one.
const DEVICES_MAX: usize = 100;

/// A push service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// Apple's.
    Apns,
    /// Google's.
    Fcm,
    /// A browser's.
    Web,
}

/// A device or browser that receives notifications of an app.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The service of the token: `provider` in JSON.
    #[serde(rename = "provider")]
    pub platform: Platform,
    /// The app, by the name of its credential.
    pub app: String,
    /// Device token, registration token, or subscription in JSON.
    pub token: String,
}

/// The report of a push service about an invalid token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedEntry {
    /// Its number in the feed, from 1.
    pub n: u64,
    /// The user of the device; `None` if the registry did not have it.
    pub user: Option<String>,
    /// The device.
    pub device: Device,
    /// The service's reason: `Unregistered`, `BadDeviceToken`, `UNREGISTERED`, `Gone`.
    pub reason: String,
    /// Since when it is invalid, in milliseconds since 1970.
    pub dead_since_ms: u64,
    /// Whether it was removed.
    pub dropped: bool,
    /// Why it was not removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptReason>,
}

/// Why a token was not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptReason {
    /// The registry does not have it.
    Unknown,
    /// It was registered again after it became invalid.
    RegisteredAgain,
    /// The credential may be of the wrong environment.
    Environment,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    user: String,
    registered_ms: u64,
}

/// Users and their devices.
#[derive(Debug)]
pub struct Registry {
    store: Store,
    epoch: u64,
}

/// Why an operation of the registry failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A user or token is empty or too long; names which.
    #[error("{0}")]
    Invalid(&'static str),
    /// The store failed: the disk is full, the file has another format, or it is open in another process.
    #[error("the device registry's store failed: {0}")]
    Store(Arc<redb::Error>),
    /// The writer has ended.
    #[error("the device registry is closed")]
    Closed,
}

impl RegistryError {
    /// Returns whether the file is damaged, or has another format, so that another attempt cannot succeed.
    pub fn is_damage(&self) -> bool {
        matches!(self, RegistryError::Store(error) if store::is_damage(error))
    }
}

impl<E: Into<redb::Error>> From<E> for RegistryError {
    fn from(error: E) -> RegistryError {
        RegistryError::Store(Arc::new(error.into()))
    }
}

impl Registry {
    /// Opens the store in `file`, and creates it if there is none. Only one process at a time can open it.
    ///
    /// # Errors
    /// The error of the store.
    pub fn open(file: &Path) -> Result<Registry, RegistryError> {
        Registry::with(Store::open(file, make)?)
    }

    /// Creates a registry in memory.
    ///
    /// # Errors
    /// The error of the store.
    pub fn in_memory() -> Result<Registry, RegistryError> {
        Registry::with(Store::in_memory(make)?)
    }

    fn with(store: Store) -> Result<Registry, RegistryError> {
        let epoch = store.begin_read()?.open_table(EPOCHS)?.get("feed")?.map(|epoch| epoch.value());
        Ok(Registry { store, epoch: epoch.unwrap_or_default() })
    }

    /// Adds devices to a user: [`Change::Register`].
    ///
    /// # Errors
    ///
    /// The user or a token is invalid; nothing was changed.
    pub fn register(
        &self,
        user: &str,
        devices: &[Device],
        now_ms: u64,
    ) -> Result<(), RegistryError> {
        let (user, devices) = (user.to_owned(), devices.to_vec());
        self.apply_one(&Change::Register { user, devices, now_ms }).map(drop)
    }

    /// Removes a device, for example after a logout. Returns whether it was registered.
    ///
    /// # Errors
    /// The error of the store.
    pub fn remove(&self, device: &Device) -> Result<bool, RegistryError> {
        let devices = vec![device.clone()];
        Ok(self.apply_one(&Change::Remove { user: None, devices })? > 0)
    }

    /// Removes all devices of a user. Returns their number.
    ///
    /// # Errors
    /// The error of the store.
    pub fn remove_user(&self, user: &str) -> Result<usize, RegistryError> {
        self.apply_one(&Change::Remove { user: Some(user.to_owned()), devices: Vec::new() })
    }

    fn apply_one(&self, change: &Change) -> Result<usize, RegistryError> {
        let mut done = self.apply(std::slice::from_ref(change))?;
        done.pop().unwrap_or(Ok(0))
    }

    /// Returns the devices of a user with the time each was registered, in milliseconds since 1970.
    ///
    /// # Errors
    /// The error of the store.
    pub fn registrations(&self, user: &str) -> Result<Vec<(Device, u64)>, RegistryError> {
        let read = self.store.begin_read()?;
        let users = read.open_multimap_table(USERS)?;
        let records = read.open_table(DEVICES)?;
        let mut devices = Vec::new();
        for key in users.get(user)? {
            let key = key?;
            let record = records.get(key.value())?;
            let record = record.and_then(|record| decode::<Record>(record.value()));
            let registered_ms = record.map_or(0, |record| record.registered_ms);
            devices.extend(Device::from_key(key.value()).map(|device| (device, registered_ms)));
        }
        Ok(devices)
    }

    /// Returns the devices of a user.
    ///
    /// # Errors
    /// The error of the store.
    pub fn devices(&self, user: &str) -> Result<Vec<Device>, RegistryError> {
        let read = self.store.begin_read()?;
        let users = read.open_multimap_table(USERS)?;
        let mut devices = Vec::new();
        for key in users.get(user)? {
            devices.extend(Device::from_key(key?.value()));
        }
        Ok(devices)
    }

    /// Returns the number of devices.
    ///
    /// # Errors
    /// The error of the store.
    pub fn len(&self) -> Result<u64, RegistryError> {
        Ok(self.store.begin_read()?.open_table(DEVICES)?.len()?)
    }

    /// Returns whether there are no devices.
    ///
    /// # Errors
    /// The error of the store.
    pub fn is_empty(&self) -> Result<bool, RegistryError> {
        Ok(self.len()? == 0)
    }

    /// Returns the epoch of the feed. A feed that begins anew has another one, and its numbers begin at 1 again.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of the last entry.
    ///
    /// # Errors
    /// The error of the store.
    pub fn last_entry(&self) -> Result<u64, RegistryError> {
        let feed = self.store.begin_read()?.open_table(FEED)?;
        Ok(feed.last()?.map_or(0, |(number, _)| number.value()))
    }

    /// Returns at most `max` entries after number `after`, in order. To follow the feed, pass the last number received.
    /// Entries that were removed meanwhile are missing.
    ///
    /// # Errors
    /// The error of the store.
    pub fn feed(&self, after: u64, max: usize) -> Result<Vec<FeedEntry>, RegistryError> {
        let read = self.store.begin_read()?;
        let feed = read.open_table(FEED)?;
        let mut entries = Vec::new();
        for entry in feed.range(after.saturating_add(1)..)?.take(max) {
            entries.extend(decode::<FeedEntry>(entry?.1.value()));
        }
        Ok(entries)
    }
}

impl Device {
    /// Returns a text that is the same for two spellings of one device: Apple's tokens are hexadecimal and compare without
    /// case, a browser is the endpoint of its subscription.
    pub fn identity(&self) -> String {
        if self.platform == Platform::Web
            && let Ok(json) = serde_json::from_str::<serde_json::Value>(&self.token)
            && let Some(endpoint) = json["endpoint"].as_str()
        {
            return format!("w{}\0{endpoint}", self.app);
        }
        self.key()
    }

    /// Returns the key of a device. The token is last, because only it may contain any character.
    fn key(&self) -> String {
        let platform = match self.platform {
            Platform::Apns => 'a',
            Platform::Fcm => 'f',
            Platform::Web => 'w',
        };
        match self.platform {
            Platform::Apns => {
                format!("{platform}{}\0{}", self.app, self.token.to_ascii_lowercase())
            }
            Platform::Fcm | Platform::Web => format!("{platform}{}\0{}", self.app, self.token),
        }
    }

    fn from_key(key: &str) -> Option<Device> {
        let mut rest = key.chars();
        let platform = match rest.next()? {
            'a' => Platform::Apns,
            'f' => Platform::Fcm,
            'w' => Platform::Web,
            _ => return None,
        };
        let (app, token) = rest.as_str().split_once('\0')?;
        Some(Device { platform, app: app.to_owned(), token: token.to_owned() })
    }
}

/// Creates missing tables in a store.
fn make(database: &Database) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    write.open_table(DEVICES)?;
    write.open_multimap_table(USERS)?;
    write.open_table(FEED)?;
    {
        let mut epochs = write.open_table(EPOCHS)?;
        if epochs.get("feed")?.is_none() {
            epochs.insert("feed", store::new_epoch())?;
            // A file of a version that compared tokens of Apple with case.
            change::fold_case(&write)?;
        }
    }
    Ok(write.commit()?)
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and numbers are JSON")
}

/// Decodes data; those of an older version that cannot be decoded count as missing.
fn decode<T: for<'d> Deserialize<'d>>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A temporary file of one test, removed on drop.
    struct File(PathBuf);

    impl File {
        fn new() -> File {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            File(
                std::env::temp_dir()
                    .join(format!("dunlin-registry-{}-{n}.redb", std::process::id())),
            )
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn device(token: &str) -> Device {
        Device { platform: Platform::Apns, app: "com.example.app".into(), token: token.into() }
    }

    #[test]
    fn devices_outlive_the_process() {
        let file = File::new();
        {
            let registry = Registry::open(&file.0).unwrap();
            registry.register("ada", &[device("a1"), device("a2")], 10).unwrap();
        }
        let registry = Registry::open(&file.0).unwrap();
        assert_eq!(registry.devices("ada").unwrap(), [device("a1"), device("a2")]);
        assert_eq!(registry.len().unwrap(), 2);
        assert_eq!(registry.devices("bob").unwrap(), []);
    }

    #[test]
    fn a_token_belongs_to_the_user_who_registered_it_last() {
        let file = File::new();
        let registry = Registry::open(&file.0).unwrap();
        registry.register("ada", &[device("shared")], 10).unwrap();
        registry.register("bob", &[device("shared")], 20).unwrap();
        assert_eq!(registry.devices("ada").unwrap(), []);
        assert_eq!(registry.devices("bob").unwrap(), [device("shared")]);
        assert!(registry.remove(&device("shared")).unwrap());
        assert!(!registry.remove(&device("shared")).unwrap());
        assert!(registry.is_empty().unwrap());
    }

    #[test]
    fn a_dead_token_is_dropped_unless_it_was_registered_again_since() {
        let file = File::new();
        let registry = Registry::open(&file.0).unwrap();
        registry.register("ada", &[device("dead"), device("again")], 1_000).unwrap();
        registry.register("ada", &[device("again")], 3_000).unwrap();
        let entry = |token: &str| {
            Change::Invalidate(InvalidToken {
                device: device(token),
                reason: "Unregistered".to_owned(),
                dead_since_ms: 2_000,
                doubtful: false,
            })
        };
        let judged = registry.apply(&[entry("dead"), entry("again"), entry("unknown")]).unwrap();
        assert_eq!(judged.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [1, 0, 0]);
        assert_eq!(registry.devices("ada").unwrap(), [device("again")]);

        let feed = registry.feed(0, 10).unwrap();
        let entries: Vec<_> = feed
            .iter()
            .map(|entry| {
                assert_eq!(entry.dropped, entry.kept.is_none());
                (entry.n, entry.device.token.as_str(), entry.user.as_deref(), entry.kept)
            })
            .collect();
        let expected = [
            (1, "dead", Some("ada"), None),
            (2, "again", Some("ada"), Some(KeptReason::RegisteredAgain)),
            (3, "unknown", None, Some(KeptReason::Unknown)),
        ];
        assert_eq!(entries, expected);
        assert_eq!(registry.feed(2, 10).unwrap()[0].n, 3);
        assert_eq!(registry.feed(0, 1).unwrap().len(), 1);
    }

    #[test]
    fn a_token_that_is_refused_by_a_doubtful_sender_is_in_the_feed_and_kept() {
        let registry = Registry::in_memory().unwrap();
        registry.register("ada", &[device("fine")], 1_000).unwrap();
        let entry = InvalidToken {
            device: device("fine"),
            reason: "BadDeviceToken".to_owned(),
            dead_since_ms: 2_000,
            doubtful: true,
        };
        assert_eq!(registry.apply(&[Change::Invalidate(entry)]).unwrap()[0].as_ref().unwrap(), &0);
        let feed = registry.feed(0, 10).unwrap();
        assert_eq!((feed[0].dropped, feed[0].kept), (false, Some(KeptReason::Environment)));
        assert_eq!(feed[0].user.as_deref(), Some("ada"));
        assert_eq!(registry.devices("ada").unwrap(), [device("fine")]);
    }

    #[test]
    fn token_of_apple_is_one_device_in_any_case_and_one_of_google_is_not() {
        let registry = Registry::in_memory().unwrap();
        registry.register("ada", &[device("AB01"), device("ab01")], 1).unwrap();
        assert_eq!(registry.devices("ada").unwrap(), [device("ab01")]);
        assert!(registry.remove(&device("Ab01")).unwrap());
        let google = |token: &str| Device { platform: Platform::Fcm, ..device(token) };
        registry.register("ada", &[google("A"), google("a")], 1).unwrap();
        assert_eq!(registry.devices("ada").unwrap().len(), 2);
        let browser = |token: &str| Device { platform: Platform::Web, ..device(token) };
        let spaced = browser(r#"{ "keys": {}, "endpoint": "https://a.example/1" }"#);
        let plain = browser(r#"{"endpoint":"https://a.example/1"}"#);
        assert_eq!(spaced.identity(), plain.identity());
    }

    #[test]
    fn file_that_distinguished_case_keeps_one_device_of_each_token() {
        let file = File::new();
        let (upper, lower) = ("acom.example.app\0AB01", "acom.example.app\0ab01");
        {
            let database = Database::create(&file.0).unwrap();
            let write = database.begin_write().unwrap();
            {
                let mut records = write.open_table(DEVICES).unwrap();
                let mut users = write.open_multimap_table(USERS).unwrap();
                for (key, user, registered_ms) in [(upper, "ada", 1), (lower, "bob", 2)] {
                    let record = Record { user: user.to_owned(), registered_ms };
                    records.insert(key, encode(&record).as_slice()).unwrap();
                    users.insert(user, key).unwrap();
                }
            }
            write.commit().unwrap();
        }
        let registry = Registry::open(&file.0).unwrap();
        assert_eq!(registry.devices("ada").unwrap(), []);
        assert_eq!(registry.devices("bob").unwrap(), [device("ab01")]);
        assert_eq!(registry.len().unwrap(), 1);
    }

    #[test]
    fn a_user_has_so_many_devices_and_the_oldest_makes_room() {
        let file = File::new();
        let registry = Registry::open(&file.0).unwrap();
        for n in 0..=DEVICES_MAX {
            // Names in the reverse order of age, so that age decides.
            registry.register("ada", &[device(&format!("{:03}", 999 - n))], n as u64).unwrap();
        }
        let devices = registry.devices("ada").unwrap();
        assert_eq!(devices.len(), DEVICES_MAX);
        assert!(!devices.contains(&device("999")) && devices.contains(&device("998")));
        assert_eq!(registry.len().unwrap(), DEVICES_MAX as u64);
    }

    #[test]
    fn malformed_user_or_token_changes_nothing() {
        let file = File::new();
        let registry = Registry::open(&file.0).unwrap();
        assert!(registry.register("", &[device("a")], 0).is_err());
        assert!(registry.register("ada", &[device("a"), device("")], 0).is_err());
        let long = device(&"x".repeat(TOKEN_BYTES_MAX + 1));
        assert!(registry.register("ada", &[long], 0).is_err());
        assert!(registry.is_empty().unwrap());
    }
}
