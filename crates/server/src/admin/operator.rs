//! The operator's access to the admin port: a token and a Unix socket in the state directory.
//!
//! The server creates both, accessible only to its own user, so that other users of the machine have no more access than
//! a remote caller. The token is created once, at the first start; the socket at every start.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use dunlin_config::Secret;

use super::OperatorAccess;

/// The token's file in the state directory.
const TOKEN_FILE: &str = "admin-token";
/// The socket in the state directory.
const SOCKET_FILE: &str = "admin-socket";
const MODE: u32 = 0o600;
/// A shorter text in the token's file is incomplete, left by a crash or an editor.
const TOKEN_BYTES_MIN: usize = 16;

/// What was found or made in a state directory.
pub(crate) struct Operator {
    pub(crate) access: OperatorAccess,
    pub(crate) socket: Option<UnixListener>,
    /// Readable sentences: where the access is, and errors.
    pub(crate) report: Vec<String>,
}

/// Reads or creates the token, and opens the socket.
///
/// # Errors
/// Returns an error if the token can be neither read nor created. A socket that cannot be created is only reported, since
/// the token suffices.
pub(crate) fn open(state_dir: &Path) -> io::Result<Operator> {
    let state_dir = std::path::absolute(state_dir)?;
    let mut report = Vec::new();
    let token = token(&state_dir.join(TOKEN_FILE), &mut report)?;
    let path = state_dir.join(SOCKET_FILE);
    let socket = match listen(&path) {
        Ok(socket) => Some(socket),
        Err(error) => {
            report.push(format!("no socket for the operator at {}: {error}", path.display()));
            None
        }
    };
    let access = OperatorAccess { token, socket: socket.as_ref().map(|_| path) };
    Ok(Operator { access, socket, report })
}

fn token(path: &Path, report: &mut Vec<String>) -> io::Result<Secret> {
    match fs::read_to_string(path) {
        Ok(text) if text.trim().len() >= TOKEN_BYTES_MIN => {
            if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
                fs::set_permissions(path, Permissions::from_mode(MODE))?;
                report.push(format!(
                    "{} could be read by others and is closed to them now; remove it and start again for a new token",
                    path.display()
                ));
            }
            return Ok(Secret::new(text.trim()));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let made = PathBuf::from(format!("{}.new", path.display()));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(&made)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    writeln!(file, "{token}")?;
    file.sync_all()?;
    fs::rename(&made, path)?;
    report.push(format!("an admin token was created: {}", path.display()));
    Ok(Secret::new(token))
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    // No other process uses the state directory, so a socket in it is left from an earlier process.
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    // Its permissions are set in a private directory, where no other user can reach it.
    let private = path.with_extension("new");
    match fs::remove_dir_all(&private) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(&private)?;
    let made = private.join(SOCKET_FILE);
    let socket = UnixListener::bind(&made)?;
    fs::set_permissions(&made, Permissions::from_mode(MODE))?;
    fs::rename(&made, path)?;
    fs::remove_dir(&private)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_token_is_made_once_and_nobody_else_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let first = open(directory.path()).unwrap();
        let path = directory.path().join(TOKEN_FILE);
        assert!(first.report[0].contains("admin-token"), "{:?}", first.report);
        assert_eq!((mode(&path), mode(&directory.path().join(SOCKET_FILE))), (MODE, MODE));
        assert_eq!(first.access.token.reveal().len(), 64);
        drop(first.socket);

        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let second = open(directory.path()).unwrap();
        assert!(second.access.token == first.access.token && second.socket.is_some());
        assert!(second.report[0].contains("closed"), "{:?}", second.report);
        assert_eq!(mode(&path), MODE);

        fs::write(&path, "\n").unwrap();
        let third = open(directory.path()).unwrap();
        assert!(third.access.token != first.access.token, "an empty file lets nobody in");
    }
}
