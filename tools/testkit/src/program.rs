use std::path::Path;

/// The program `dunlin` beside another program of the same build. A test of the whole workspace has built it; one of a single
/// crate has not.
///
/// # Panics
/// When it is not there; the message names the command that builds it.
pub fn server_beside(program: &str) -> String {
    let server = Path::new(program).with_file_name("dunlin");
    assert!(server.is_file(), "there is no {}: cargo build -p dunlin-cli", server.display());
    server.to_str().expect("UTF-8").to_owned()
}
