use std::fmt;

use serde::{Serialize, Serializer};

use crate::error::ConfigError;
use crate::path::Path;

/// Maximum length of a pointer; the longest names of a namespace and a member fit.
const POINTER_BYTES_MAX: usize = 4_096;

/// A JSON Pointer (RFC 6901): `/channel/namespaces/chat/history_size`. The empty pointer is the whole document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pointer(Vec<String>);

impl Pointer {
    /// Returns the pointer of the whole document.
    pub fn root() -> Pointer {
        Pointer::default()
    }

    /// Parses a pointer. In a URI, percent-encoding must be decoded first (RFC 6901 §6).
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub fn parse(text: &str) -> Result<Pointer, ConfigError> {
        let error = |what: &str, fix: String| ConfigError::new(Path::root(), what).with_fix(fix);
        if text.len() > POINTER_BYTES_MAX {
            let fix = format!("a pointer has at most {POINTER_BYTES_MAX} bytes");
            return Err(error("this pointer is too long", fix));
        }
        if text.is_empty() {
            return Ok(Pointer::root());
        }
        let Some(steps) = text.strip_prefix('/') else {
            let fix = format!("write \"/{}\"", text.replace('.', "/"));
            return Err(error("a pointer begins with `/`", fix));
        };
        let steps = steps.split('/').map(|step| {
            if !step.contains('~') {
                return Some(step.to_owned());
            }
            // `~01` is `~1`: RFC 6901 §4 requires `~1` to be replaced first.
            let plain = step.replace("~1", "").replace("~0", "");
            (!plain.contains('~')).then(|| step.replace("~1", "/").replace("~0", "~"))
        });
        match steps.collect::<Option<Vec<_>>>() {
            Some(steps) => Ok(Pointer(steps)),
            None => Err(error(
                "a `~` in a pointer is followed by 0 or 1",
                "write `~0` for `~` and `~1` for `/`".into(),
            )),
        }
    }

    /// Returns the steps, unescaped.
    pub fn steps(&self) -> &[String] {
        &self.0
    }

    /// Returns whether this is the whole document.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether `other` is this place or below it.
    pub fn contains(&self, other: &Pointer) -> bool {
        other.0.starts_with(&self.0)
    }

    /// Returns the pointer of a key or an element below this place.
    pub fn join(&self, step: impl Into<String>) -> Pointer {
        let mut steps = self.0.clone();
        steps.push(step.into());
        Pointer(steps)
    }

    /// Returns the same place as a path, which is displayed as in TOML.
    pub fn path(&self) -> Path {
        Path::from_steps(self.0.clone())
    }

    /// Appends a step in its escaped form.
    pub(crate) fn push_step(text: &mut String, step: &str) {
        text.push('/');
        match step.contains(['~', '/']) {
            true => text.push_str(&step.replace('~', "~0").replace('/', "~1")),
            false => text.push_str(step),
        }
    }
}

/// Serializes as text.
impl Serialize for Pointer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path().pointer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_6901() {
        for (text, steps) in [
            ("", &[][..]),
            ("/foo", &["foo"]),
            ("/foo/0", &["foo", "0"]),
            ("/", &[""]),
            ("/a~1b", &["a/b"]),
            ("/c%d", &["c%d"]),
            ("/ ", &[" "]),
            ("/m~0n", &["m~n"]),
            ("/~01", &["~1"]),
        ] {
            let pointer = Pointer::parse(text).expect("a pointer");
            assert_eq!(pointer.steps(), steps, "{text}");
            assert_eq!(pointer.to_string(), text);
        }
        assert_eq!(Pointer::parse("a.b").unwrap_err().fix.unwrap(), "write \"/a/b\"");
        assert!(Pointer::parse("/~2").is_err() && Pointer::parse("/~").is_err());
    }
}
