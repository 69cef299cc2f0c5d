use std::fmt;
use std::io;

/// Why a simulator could not be started: one sentence that names the fix, and its cause where there is one.
#[derive(Debug)]
pub struct StartError {
    sentence: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StartError {
    pub(crate) fn new(sentence: impl Into<String>) -> StartError {
        StartError { sentence: sentence.into(), source: None }
    }

    pub(crate) fn because(
        sentence: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> StartError {
        StartError { sentence: sentence.into(), source: Some(source.into()) }
    }

    /// Whether an address is taken already.
    pub fn is_address_in_use(&self) -> bool {
        let source = self.source.as_ref().and_then(|source| source.downcast_ref::<io::Error>());
        source.is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
