use std::fmt;

use crate::pointer::Pointer;

/// The path of a key: `client.token.hmac_secret`, `channel.namespaces.chat.history_size`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path(Vec<String>);

impl Path {
    /// Returns the path of the whole document.
    pub fn root() -> Path {
        Path::default()
    }

    pub(crate) fn from_steps(steps: Vec<String>) -> Path {
        Path(steps)
    }

    /// Parses a path of plain keys of the schema: `client.token`.
    pub fn of(dotted: &str) -> Path {
        Path(dotted.split('.').map(str::to_owned).collect())
    }

    /// Returns the path of a key or an element below this one.
    pub fn join(&self, key: impl fmt::Display) -> Path {
        let mut steps = self.0.clone();
        steps.push(key.to_string());
        Path(steps)
    }

    /// Returns the path of the parent; `None` for the root.
    pub fn parent(&self) -> Option<Path> {
        let (_, rest) = self.0.split_last()?;
        Some(Path(rest.to_vec()))
    }

    /// Returns the steps.
    pub fn steps(&self) -> &[String] {
        &self.0
    }

    /// Returns whether this is the whole document.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the path as a JSON Pointer (RFC 6901): `/client/token/hmac_secret`.
    pub fn pointer(&self) -> String {
        self.0.iter().fold(String::new(), |mut pointer, step| {
            Pointer::push_step(&mut pointer, step);
            pointer
        })
    }
}

impl From<&str> for Path {
    fn from(dotted: &str) -> Path {
        Path::of(dotted)
    }
}

impl fmt::Display for Path {
    /// Formats a dotted key of TOML; keys that are not bare are quoted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        let steps = self.0.iter().map(|step| match !step.is_empty() && step.bytes().all(bare) {
            true => step.clone(),
            false => format!("{step:?}"),
        });
        f.write_str(&steps.collect::<Vec<_>>().join("."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_prints_as_toml_and_points_as_json() {
        let path = Path::of("channel.namespaces").join("a.b/c").join("history_size");
        assert_eq!(path.to_string(), "channel.namespaces.\"a.b/c\".history_size");
        assert_eq!(path.pointer(), "/channel/namespaces/a.b~1c/history_size");
        assert_eq!(path.parent().unwrap().parent().unwrap(), Path::of("channel.namespaces"));
        assert!(Path::root().parent().is_none());
    }
}
