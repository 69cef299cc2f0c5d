/// Why a simulator could not be started: one sentence that names the fix, and its cause where there is one.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
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
}
