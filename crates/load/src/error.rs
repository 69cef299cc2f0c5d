use std::fmt;
use std::io;

/// Why a benchmark could not be carried out: one sentence, and the operating system's reason where there is one.
#[derive(Debug)]
pub struct Error {
    sentence: String,
    source: Option<io::Error>,
}

impl Error {
    /// One that the operating system has no part in.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), source: None }
    }

    /// What was being done, and why it failed.
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
        // The reason itself stands in the sentence.
        self.source.as_ref()?.source()
    }
}

/// Adds the sentence that says what was being done when the operating system refused.
pub trait Context<T> {
    /// # Errors
    /// The same with the sentence in front.
    fn context(self, sentence: impl Into<String>) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, sentence: impl Into<String>) -> Result<T, Error> {
        self.map_err(|source| Error::io(sentence, source))
    }
}
