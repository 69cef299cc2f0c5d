use std::fmt;
use std::io;

/// Why a benchmark failed: one sentence, and the operating system's error if there is one.
#[derive(Debug)]
pub struct Error {
    sentence: String,
    source: Option<io::Error>,
}

impl Error {
    /// Creates an error without one of the operating system.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), source: None }
    }

    /// Creates an error from what was attempted and why it failed.
    pub fn io(sentence: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { sentence: sentence.into(), source: Some(source.into()) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.sentence),
            None => f.write_str(&self.sentence),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // `Display` already includes the operating system's error.
        self.source.as_ref()?.source()
    }
}

/// Adds to an error of the operating system what was attempted.
pub trait Context<T> {
    /// Converts the error, with `sentence` before it.
    ///
    /// # Errors
    /// The same error, converted.
    fn context(self, sentence: impl Into<String>) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, sentence: impl Into<String>) -> Result<T, Error> {
        self.map_err(|source| Error::io(sentence, source))
    }
}
