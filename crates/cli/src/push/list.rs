//! The list of an import: per line a device token, or a JSON object with fields for that device.

use std::io::BufRead;

use dunlin_push::apns::{DeviceToken, Push, Target};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

/// Lines read ahead of the pushes.
const LINES_MAX: usize = 1_024;

/// A device of the list, and the fields that differ from the common push.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) token: String,
    /// The app, if the list has several.
    #[serde(default)]
    pub(super) topic: Option<String>,
    #[serde(default)]
    pub(super) payload: Option<Value>,
    #[serde(default)]
    pub(super) id: Option<String>,
    #[serde(default)]
    pub(super) collapse_id: Option<String>,
}

impl Entry {
    /// Parses a line; returns `None` if it is blank.
    ///
    /// # Errors
    /// When the line begins as JSON but is not an entry.
    pub(super) fn read(line: &str) -> Result<Option<Entry>, String> {
        if line.trim_start().starts_with('{') {
            return serde_json::from_str(line).map(Some).map_err(|error| error.to_string());
        }
        let token = line.split('#').next().unwrap_or_default().trim();
        let entry = Entry { token: token.to_owned(), ..Entry::default() };
        Ok((!token.is_empty()).then_some(entry))
    }

    /// Returns the push of this entry: the common push with the entry's own fields.
    ///
    /// # Errors
    /// When the token is invalid.
    pub(super) fn push(&self, common: &Push) -> Result<Push, String> {
        let token = DeviceToken::new(&self.token).map_err(|error| error.to_string())?;
        let mut push = Push { target: Target::Device(token), ..common.clone() };
        if let Some(topic) = &self.topic {
            push.topic = Some(topic.as_str().into());
        }
        if let Some(payload) = &self.payload {
            push.payload = payload.to_string().into();
        }
        if let Some(id) = &self.id {
            push.id = Some(id.clone());
        }
        if let Some(id) = &self.collapse_id {
            push.collapse_id = Some(id.clone());
            push.resend_uncertain = true;
        }
        Ok(push)
    }
}

/// Reads the lines on a separate thread: a pipe may block while outcomes arrive.
pub(super) fn lines(
    mut input: impl BufRead + Send + 'static,
) -> mpsc::Receiver<std::io::Result<String>> {
    let (sender, receiver) = mpsc::channel(LINES_MAX);
    std::thread::spawn(move || {
        loop {
            let mut line = String::new();
            let read = match input.read_line(&mut line) {
                Ok(0) => return,
                Ok(_) => Ok(line),
                Err(error) => Err(error),
            };
            let failed = read.is_err();
            // The run may have ended before its list.
            if sender.blocking_send(read).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_token_or_an_object() {
        let read = |line| Entry::read(line).map(|entry| entry.map(|entry| entry.token));
        assert_eq!(read(" ab # a comment\n"), Ok(Some("ab".to_owned())));
        assert_eq!((read("\n"), read("# nothing")), (Ok(None), Ok(None)));
        assert_eq!(read(r#"{"token":"ab","payload":{"aps":{}}}"#), Ok(Some("ab".to_owned())));
        assert!(read(r#"{"tokn":"ab"}"#).is_err_and(|why| why.contains("tokn")));
    }
}
