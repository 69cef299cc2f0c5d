use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tracked text files of this repository.
pub(crate) struct Repository {
    pub(crate) root: PathBuf,
    /// By their paths from the root.
    pub(crate) files: Vec<(String, String)>,
}

impl Repository {
    pub(crate) fn read() -> Repository {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let listed = Command::new("git").arg("-C").arg(&root).args(["ls-files", "-z"]).output();
        let listed = listed.expect("git lists the files");
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        let names = String::from_utf8(listed.stdout).expect("file names are UTF-8");
        let text = |name: &str| {
            // A file may be deleted and not yet committed; pictures and corpora are not text.
            let text = String::from_utf8(fs::read(root.join(name)).ok()?).ok()?;
            (!name.starts_with("fuzz/corpus/")).then(|| (name.to_owned(), text))
        };
        let files = names.split_terminator('\0').filter_map(text).collect();
        Repository { root, files }
    }

    /// The files whose names end with `suffix`.
    pub(crate) fn ending(&self, suffix: &str) -> impl Iterator<Item = (&str, &str)> {
        let files = self.files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        files.filter(move |(name, _)| name.ends_with(suffix))
    }

    /// A file's text; empty when there is no such file.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.files.iter().find(|(file, _)| file == name).map_or("", |(_, text)| text)
    }

    /// The names of the folders in `crates` and `tools`, sorted.
    pub(crate) fn crates(&self) -> Vec<&str> {
        let manifests = self.ending("/Cargo.toml");
        let mut crates: Vec<_> = manifests
            .filter_map(|(name, _)| {
                let name = name.strip_prefix("crates/").or_else(|| name.strip_prefix("tools/"));
                name?.strip_suffix("/Cargo.toml")
            })
            .collect();
        crates.sort_unstable();
        assert!(crates.len() >= 9, "only {crates:?} were found");
        crates
    }

    /// The folder of a crate.
    pub(crate) fn folder(&self, name: &str) -> String {
        let folder = format!("tools/{name}");
        let is_tool = !self.text(&format!("{folder}/Cargo.toml")).is_empty();
        if is_tool { folder } else { format!("crates/{name}") }
    }

    /// The manifest of a crate.
    pub(crate) fn manifest(&self, name: &str) -> &str {
        self.text(&format!("{}/Cargo.toml", self.folder(name)))
    }
}

/// Fails with every complaint at once.
pub(crate) fn report(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}
