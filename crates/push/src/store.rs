//! A `redb` store that is reopened after a failure: after a disk error `redb` accepts no further operations.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use redb::{Database, Error, ReadTransaction, ReadableDatabase};

/// Returns the epoch of a new feed: a text that no other feed has.
pub(crate) fn new_epoch() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

type Open = dyn Fn() -> Result<Database, Error> + Send + Sync;

/// The store of a registry or a journal.
pub(crate) struct Store {
    /// `None` after a failure, until it is reopened.
    database: RwLock<Option<Database>>,
    open: Box<Open>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store in `file`, and creates it if necessary. Only one process can open it. `make` creates the
    /// tables.
    pub(crate) fn open(
        file: &Path,
        make: fn(&Database) -> Result<(), Error>,
    ) -> Result<Store, Error> {
        let file = file.to_owned();
        Store::with(move || Ok(Database::create(&file)?), make)
    }

    /// Creates a store in memory.
    pub(crate) fn in_memory(make: fn(&Database) -> Result<(), Error>) -> Result<Store, Error> {
        let memory = redb::backends::InMemoryBackend::new;
        Store::with(move || Ok(Database::builder().create_with_backend(memory())?), make)
    }

    pub(crate) fn with(
        open: impl Fn() -> Result<Database, Error> + Send + Sync + 'static,
        make: fn(&Database) -> Result<(), Error>,
    ) -> Result<Store, Error> {
        let open = move || {
            let database = open()?;
            make(&database)?;
            Ok(database)
        };
        let store = Store { database: RwLock::new(None), open: Box::new(open) };
        store.reopen()?;
        Ok(store)
    }

    /// Does nothing if it has been reopened already.
    fn reopen(&self) -> Result<(), Error> {
        let mut place = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            *place = Some((self.open)()?);
        }
        Ok(())
    }

    /// Uses the store, and reopens it if necessary. A failure closes it.
    pub(crate) fn with_database<T>(
        &self,
        using: impl Fn(&Database) -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            let used = {
                let place = self.database.read().unwrap_or_else(PoisonError::into_inner);
                place.as_ref().map(&using)
            };
            match used {
                None => self.reopen()?,
                Some(used) => {
                    if used.as_ref().is_err_and(is_fatal) {
                        *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
                    }
                    return used;
                }
            }
        }
    }

    pub(crate) fn begin_read(&self) -> Result<ReadTransaction, Error> {
        self.with_database(|database| Ok(database.begin_read()?))
    }
}

/// Returns whether the store accepts no further operations after this error.
fn is_fatal(error: &Error) -> bool {
    use redb::Error::{Corrupted, DatabaseClosed, Io, LockPoisoned, PreviousIo};
    matches!(error, Io(_) | PreviousIo | LockPoisoned(_) | Corrupted(_) | DatabaseClosed)
}

/// Returns whether a file was refused because of its content: damage, or tables of another program.
pub(crate) fn is_damage(error: &Error) -> bool {
    match error {
        Error::Corrupted(_)
        | Error::TableTypeMismatch { .. }
        | Error::TableIsMultimap(_)
        | Error::TableIsNotMultimap(_)
        | Error::TypeDefinitionChanged { .. } => true,
        // The file is not a database.
        Error::Io(error) => {
            matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

#[cfg(test)]
pub(crate) mod disk;
