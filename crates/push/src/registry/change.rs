//! Changes of the registry. Many of them share one transaction; each has its own result.

use redb::{MultimapTable, ReadableMultimapTable, ReadableTable, Table, WriteTransaction};

use super::{
    DEVICES, DEVICES_MAX, Device, FEED, FEED_MAX, FeedEntry, KeptReason, Record, Registry,
    RegistryError, TOKEN_BYTES_MAX, USER_BYTES_MAX, USERS, decode, encode,
};

/// A change of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds devices to a user. A token belongs to one user; it is moved if another user has it. A user has at most
    /// 100; a further registration removes the oldest one. The result is the number of devices.
    Register {
        /// The user.
        user: String,
        /// The devices.
        devices: Vec<Device>,
        /// When the app got the tokens, in milliseconds since 1970; registering again renews it.
        now_ms: u64,
    },
    /// Removes devices, for example after a logout, or all devices of a user. The result is the number of removed
    /// devices.
    Remove {
        /// Remove all devices of this user.
        user: Option<String>,
        /// Remove these devices, too.
        devices: Vec<Device>,
    },
    /// Handles the report of a push service about a token. The result is 1 if the token was removed.
    Invalidate(InvalidToken),
}

/// The report of a push service about an invalid token. The device is removed if it was registered before the token
/// became invalid; a later registration is valid, as Apple's `timestamp` is meant ("Handling notification responses
/// from APNs"). Each report is added to the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidToken {
    /// The device.
    pub device: Device,
    /// The service's reason.
    pub reason: String,
    /// Since when it is invalid, in milliseconds since 1970; the time of the push if the service gives none.
    pub dead_since_ms: u64,
    /// Keep the token: the sender's configuration may be wrong ([`KeptReason::Environment`]).
    pub doubtful: bool,
}

impl Change {
    /// Returns the number of devices, which determines the cost.
    pub fn devices(&self) -> usize {
        match self {
            Change::Register { devices, .. } | Change::Remove { devices, .. } => devices.len(),
            Change::Invalidate(_) => 1,
        }
    }

    /// Validates the change, before any change of its transaction is made.
    fn validate(&self) -> Result<(), RegistryError> {
        let Change::Register { user, devices, .. } = self else { return Ok(()) };
        if user.is_empty() || user.len() > USER_BYTES_MAX {
            return Err(RegistryError::Invalid("user: it has to have 1 to 1,024 bytes"));
        }
        let legal = |device: &Device| {
            (1..=TOKEN_BYTES_MAX).contains(&device.token.len())
                && device.app.len() <= USER_BYTES_MAX
                && !device.app.contains('\0')
        };
        if !devices.iter().all(legal) {
            return Err(RegistryError::Invalid(
                "token, app: a token has 1 to 4,096 bytes, an app at most 1,024 and no NUL",
            ));
        }
        Ok(())
    }
}

/// Writes the devices of Apple whose tokens have capital letters under their keys of today. Of two spellings the one that was
/// registered last stays.
pub(super) fn fold_case(write: &WriteTransaction) -> Result<(), redb::Error> {
    let mut records = write.open_table(DEVICES)?;
    let mut users = write.open_multimap_table(USERS)?;
    let mut moved = Vec::new();
    for entry in records.range("a".."b")? {
        let (key, record) = entry?;
        let now = Device::from_key(key.value()).map(|device| device.key());
        if let (Some(now), Some(record)) = (now, decode::<Record>(record.value()))
            && now != key.value()
        {
            moved.push((key.value().to_owned(), now, record));
        }
    }
    for (before, now, record) in moved {
        records.remove(before.as_str())?;
        users.remove(record.user.as_str(), before.as_str())?;
        let other = records.get(now.as_str())?.and_then(|other| decode::<Record>(other.value()));
        match other {
            Some(other) if other.registered_ms > record.registered_ms => continue,
            Some(other) => {
                users.remove(other.user.as_str(), now.as_str())?;
            }
            None => {}
        }
        records.insert(now.as_str(), encode(&record).as_slice())?;
        users.insert(record.user.as_str(), now.as_str())?;
    }
    Ok(())
}

/// The tables of a transaction.
struct Tables<'t> {
    records: Table<'t, &'static str, &'static [u8]>,
    users: MultimapTable<'t, &'static str, &'static str>,
    feed: Table<'t, u64, &'static [u8]>,
}

impl Registry {
    /// Makes changes in order and in one transaction: they are on the disk when this returns. Returns the result of each
    /// change. An invalid change does not affect the others.
    ///
    /// # Errors
    /// The error of the store; none of the changes was made.
    pub fn apply(
        &self,
        changes: &[Change],
    ) -> Result<Vec<Result<usize, RegistryError>>, RegistryError> {
        let done = self.store.with_database(|database| {
            let write = database.begin_write()?;
            let mut done = Vec::with_capacity(changes.len());
            {
                let mut tables = Tables {
                    records: write.open_table(DEVICES)?,
                    users: write.open_multimap_table(USERS)?,
                    feed: write.open_table(FEED)?,
                };
                for change in changes {
                    done.push(match change.validate() {
                        Ok(()) => Ok(tables.apply(change)?),
                        Err(invalid) => Err(invalid),
                    });
                }
            }
            write.commit()?;
            Ok(done)
        })?;
        Ok(done)
    }
}

impl Tables<'_> {
    fn apply(&mut self, change: &Change) -> Result<usize, redb::Error> {
        match change {
            Change::Register { user, devices, now_ms } => self.register(user, devices, *now_ms),
            Change::Remove { user, devices } => {
                let mut count = match user {
                    Some(user) => self.remove_user(user)?,
                    None => 0,
                };
                for device in devices {
                    count += usize::from(self.remove(&device.key())?);
                }
                Ok(count)
            }
            Change::Invalidate(invalid) => self.invalidate(invalid),
        }
    }

    fn register(
        &mut self,
        user: &str,
        devices: &[Device],
        now_ms: u64,
    ) -> Result<usize, redb::Error> {
        for device in devices {
            let key = device.key();
            let record = Record { user: user.to_owned(), registered_ms: now_ms };
            let before = self.records.insert(key.as_str(), encode(&record).as_slice())?;
            let before = before.and_then(|before| decode::<Record>(before.value()));
            if let Some(before) = before.filter(|before| before.user != user) {
                self.users.remove(before.user.as_str(), key.as_str())?;
            }
            self.users.insert(user, key.as_str())?;
        }
        let mut keys = Vec::new();
        let owned = self.users.get(user)?;
        if owned.len() <= DEVICES_MAX as u64 {
            return Ok(devices.len());
        }
        for key in owned {
            let key = key?.value().to_owned();
            let registered_ms = self.record(&key)?.map_or(0, |record| record.registered_ms);
            keys.push((registered_ms, key));
        }
        keys.sort();
        for (_, key) in keys.iter().take(keys.len().saturating_sub(DEVICES_MAX)) {
            self.users.remove(user, key.as_str())?;
            self.records.remove(key.as_str())?;
        }
        Ok(devices.len())
    }

    fn remove(&mut self, key: &str) -> Result<bool, redb::Error> {
        let record = self.records.remove(key)?;
        let record = record.and_then(|record| decode::<Record>(record.value()));
        match record {
            Some(record) => Ok(self.users.remove(record.user.as_str(), key)?),
            None => Ok(false),
        }
    }

    fn remove_user(&mut self, user: &str) -> Result<usize, redb::Error> {
        let mut count = 0;
        for key in self.users.remove_all(user)? {
            self.records.remove(key?.value())?;
            count += 1;
        }
        Ok(count)
    }

    fn invalidate(&mut self, invalid: &InvalidToken) -> Result<usize, redb::Error> {
        let InvalidToken { device, reason, dead_since_ms, doubtful } = invalid;
        let key = device.key();
        let record = self.record(&key)?;
        let kept = match &record {
            None => Some(KeptReason::Unknown),
            Some(record) if *dead_since_ms < record.registered_ms => {
                Some(KeptReason::RegisteredAgain)
            }
            Some(_) => doubtful.then_some(KeptReason::Environment),
        };
        if kept.is_none() {
            self.remove(&key)?;
        }
        let n = self.feed.last()?.map_or(0, |(n, _)| n.value()) + 1;
        let entry = FeedEntry {
            n,
            user: record.map(|record| record.user),
            device: device.clone(),
            reason: reason.clone(),
            dead_since_ms: *dead_since_ms,
            dropped: kept.is_none(),
            kept,
        };
        self.feed.insert(n, encode(&entry).as_slice())?;
        if let Some(old) = n.checked_sub(FEED_MAX) {
            self.feed.remove(old)?;
        }
        Ok(usize::from(kept.is_none()))
    }

    fn record(&self, key: &str) -> Result<Option<Record>, redb::Error> {
        let record = self.records.get(key)?;
        Ok(record.and_then(|record| decode(record.value())))
    }
}
