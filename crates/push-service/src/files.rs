//! The push thread's files in the state directory: readable by this user only, and set aside when damaged.

use std::fmt::Display;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The files contain device tokens and messages of users.
const MODE: u32 = 0o600;

/// Opens a file with `open`, creating it if it does not exist. A damaged file, according to `is_damage`, is set aside and
/// named in `report`, unless it is `needed`: a server that continued without its contents would lose them.
///
/// # Errors
/// Returns a sentence with the file, the error and the fix.
pub(super) fn open<T, E: Display>(
    path: &Path,
    needed: bool,
    report: &mut Vec<String>,
    open: impl Fn(&Path) -> Result<T, E>,
    is_damage: impl Fn(&E) -> bool,
) -> Result<T, String> {
    // An unreadable file or a failing disk is not damage, and fails here.
    make_private(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let error = match open(path) {
        Ok(opened) => return Ok(opened),
        Err(error) => error,
    };
    if !is_damage(&error) {
        return Err(format!("{}: {error}", path.display()));
    }
    if needed {
        return Err(format!(
            "{}: {error}; bring a copy back, or move it away to begin with an empty one",
            path.display()
        ));
    }
    let aside = aside(path);
    fs::rename(path, &aside).map_err(|renamed| {
        format!("{}: {error}; nor can it be set aside: {renamed}", path.display())
    })?;
    let sentence =
        format!("{} was damaged ({error}) and is set aside as {}", path.display(), aside.display());
    tracing::error!("{sentence}");
    report.push(sentence);
    make_private(path).map_err(|error| format!("{}: {error}", path.display()))?;
    open(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns an unused name for the damaged file.
fn aside(path: &Path) -> PathBuf {
    let name = |n: u32| PathBuf::from(format!("{}.damaged-{n}", path.display()));
    (1..).map(name).find(|name| !name.exists()).unwrap_or_else(|| name(0))
}

fn make_private(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(MODE))
}

#[cfg(test)]
mod tests {
    use dunlin_push::journal::{Journal, JournalError};
    use dunlin_push::registry::{Registry, RegistryError};

    use super::*;

    #[test]
    fn a_damaged_file_is_set_aside_where_nothing_is_pushed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("devices.redb");
        fs::write(&path, vec![0x5a; 64 << 10]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut report = Vec::new();
        let refused =
            open(&path, true, &mut report, Registry::open, RegistryError::is_damage).err().unwrap();
        assert!(refused.contains("devices.redb") && report.is_empty(), "{refused}");

        drop(open(&path, false, &mut report, Registry::open, RegistryError::is_damage).unwrap());
        assert!(report[0].contains("devices.redb.damaged-1"), "{report:?}");
        assert_eq!(fs::read(directory.path().join("devices.redb.damaged-1")).unwrap()[0], 0x5a);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);

        let path = directory.path().join("pushes.redb");
        fs::write(&path, "no database").unwrap();
        drop(open(&path, false, &mut report, Journal::open, JournalError::is_damage).unwrap());
        assert_eq!(report.len(), 2);
        drop(open(&path, true, &mut report, Journal::open, JournalError::is_damage).unwrap());
        assert_eq!(report.len(), 2, "the new one is good");
    }

    /// Formerly, a file that another process had open, that a newer version had written, or that a failing disk did not
    /// return was set aside, too.
    #[test]
    fn a_file_that_is_whole_stays_where_it_is_when_it_cannot_be_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("devices.redb");
        let mut report = Vec::new();
        let mut again =
            || open(&path, false, &mut report, Registry::open, RegistryError::is_damage);
        let held = again().unwrap();
        let refused = again().err().unwrap();
        assert!(refused.contains("devices.redb"), "{refused}");
        drop(held);
        drop(again().unwrap());
        assert_eq!((report.len(), fs::read_dir(directory.path()).unwrap().count()), (0, 1));
    }
}
