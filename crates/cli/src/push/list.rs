//! The list of an import: lines of device tokens, lines of JSON, or CSV whose first line names its columns.

use std::io::{self, BufRead};

use dunlin_push::registry::Platform;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

/// Lines read ahead of the pushes.
const LINES_MAX: usize = 1_024;
/// What separates the columns of a CSV file, by the program that wrote it.
const SEPARATORS: [char; 3] = [',', ';', '\t'];
/// The longest record of a CSV file: one with a quotation mark too many has no end.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// A device of the list, and the fields that differ from the common push.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// The push service; by default the one that a credential is given for.
    #[serde(default)]
    pub(super) provider: Option<Platform>,
    /// The token; the subscription of a browser is an object.
    #[serde(deserialize_with = "token")]
    pub(super) token: String,
    /// The app, if the list has several of Apple's.
    #[serde(default)]
    pub(super) topic: Option<String>,
    #[serde(default)]
    pub(super) payload: Option<Value>,
    #[serde(default)]
    pub(super) id: Option<String>,
    #[serde(default)]
    pub(super) collapse_id: Option<String>,
}

/// A line of the list.
#[derive(Debug)]
pub(super) struct Line {
    /// Its number in the file, from 1.
    pub(super) number: u64,
    pub(super) bytes: usize,
    /// `None` if it has no device; or what is wrong with it.
    pub(super) entry: Result<Option<Entry>, String>,
}

fn token<'d, D: serde::Deserializer<'d>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => text,
        other => other.to_string(),
    })
}

/// What a column of a CSV file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Provider,
    Token,
    Topic,
    Payload,
    Id,
    CollapseId,
    Endpoint,
    P256dh,
    Auth,
    /// Something of the list's own: a user, a date.
    Other,
}

impl Column {
    fn of(name: &str) -> Column {
        match name.trim().to_ascii_lowercase().as_str() {
            "provider" | "platform" | "service" => Column::Provider,
            "token" | "device_token" | "registration_token" | "registration_id"
            | "subscription" => Column::Token,
            "topic" | "bundle_id" => Column::Topic,
            "payload" => Column::Payload,
            "id" | "apns_id" => Column::Id,
            "collapse_id" => Column::CollapseId,
            "endpoint" => Column::Endpoint,
            "p256dh" => Column::P256dh,
            "auth" => Column::Auth,
            _ => Column::Other,
        }
    }
}

/// The columns of a CSV file (RFC 4180).
#[derive(Debug)]
struct Columns {
    separator: char,
    columns: Vec<Column>,
}

impl Columns {
    /// Returns the columns that a line names; `None` if it is no such line.
    fn of(line: &str) -> Option<Columns> {
        SEPARATORS.into_iter().find_map(|separator| {
            let columns: Vec<Column> =
                fields(line, separator).iter().map(|name| Column::of(name)).collect();
            let is_header =
                columns.iter().any(|column| matches!(column, Column::Token | Column::Endpoint));
            is_header.then_some(Columns { separator, columns })
        })
    }

    fn read(&self, record: &str) -> Result<Option<Entry>, String> {
        if record.trim().is_empty() {
            return Ok(None);
        }
        let fields = fields(record, self.separator);
        if fields.len() != self.columns.len() {
            let (has, wants) = (fields.len(), self.columns.len());
            return Err(format!("it has {has} columns, and the first line names {wants}"));
        }
        let of = |wanted: Column| {
            let at = self.columns.iter().position(|column| *column == wanted)?;
            Some(fields[at].trim()).filter(|field| !field.is_empty()).map(str::to_owned)
        };
        let subscription = match (of(Column::Endpoint), of(Column::P256dh), of(Column::Auth)) {
            (Some(endpoint), Some(p256dh), Some(auth)) => Some(
                serde_json::json!({ "endpoint": endpoint, "keys": { "p256dh": p256dh, "auth": auth } })
                    .to_string(),
            ),
            (Some(_), ..) => return Err("an endpoint has p256dh and auth beside it".to_owned()),
            _ => None,
        };
        let Some(token) = of(Column::Token).or(subscription) else {
            return Err("it has no token".to_owned());
        };
        let provider = match of(Column::Provider).as_deref() {
            None => None,
            Some("apns") => Some(Platform::Apns),
            Some("fcm") => Some(Platform::Fcm),
            Some("web") => Some(Platform::Web),
            Some(other) => return Err(format!("provider: {other:?} is not apns, fcm or web")),
        };
        let payload = of(Column::Payload).map(|text| serde_json::from_str(&text)).transpose();
        let payload = payload.map_err(|error| format!("payload: {error}"))?;
        let (topic, id) = (of(Column::Topic), of(Column::Id));
        let collapse_id = of(Column::CollapseId);
        Ok(Some(Entry { provider, token, topic, payload, id, collapse_id }))
    }
}

/// Returns the fields of a record. A field in quotation marks may have separators, line ends, and quotation marks as `""`.
fn fields(record: &str, separator: char) -> Vec<String> {
    let mut fields = vec![String::new()];
    let (mut quoted, mut before) = (false, None);
    for letter in record.trim_end_matches(['\r', '\n']).chars() {
        match letter {
            '"' => {
                if before == Some('"') && !quoted {
                    fields.last_mut().into_iter().for_each(|field| field.push('"'));
                }
                quoted = !quoted;
            }
            letter if letter == separator && !quoted => fields.push(String::new()),
            letter => fields.last_mut().into_iter().for_each(|field| field.push(letter)),
        }
        before = Some(letter);
    }
    fields
}

impl Entry {
    /// Parses a line of a list that is no CSV; returns `None` if it is blank.
    ///
    /// # Errors
    /// When the line begins as JSON but is not an entry, or is one of CSV.
    fn read(line: &str) -> Result<Option<Entry>, String> {
        if line.trim_start().starts_with('{') {
            // A browser's own form of its subscription.
            let json: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
            if json["endpoint"].is_string() && json.get("token").is_none() {
                let provider = Some(Platform::Web);
                return Ok(Some(Entry { provider, token: json.to_string(), ..Entry::default() }));
            }
            return serde_json::from_str(line).map(Some).map_err(|error| error.to_string());
        }
        let token = line.split('#').next().unwrap_or_default().trim();
        if token.contains(SEPARATORS) {
            return Err(
                "the first line of a CSV file names its columns, one of them `token`".to_owned()
            );
        }
        let entry = Entry { token: token.to_owned(), ..Entry::default() };
        Ok((!token.is_empty()).then_some(entry))
    }
}

/// Reads a list line by line.
struct List<R> {
    input: R,
    number: u64,
    columns: Option<Columns>,
}

impl<R: BufRead> List<R> {
    /// Returns the next line, or record of a CSV file; `None` at the end.
    fn next(&mut self) -> io::Result<Option<Line>> {
        let mut bytes = Vec::new();
        if self.input.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
        let is_first = self.number == 0;
        self.number += 1;
        let number = self.number;
        // A quotation mark that is open continues on the next line.
        let is_open = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'"').count() % 2 == 1;
        while self.columns.is_some() && is_open(&bytes) && bytes.len() < RECORD_BYTES_MAX {
            if self.input.read_until(b'\n', &mut bytes)? == 0 {
                break;
            }
            self.number += 1;
        }
        let length = bytes.len();
        let entry = match String::from_utf8(bytes) {
            Err(_) => Err("it is not UTF-8".to_owned()),
            Ok(text) if is_first => {
                let text = text.trim_start_matches('\u{feff}');
                self.columns =
                    if text.trim_start().starts_with('{') { None } else { Columns::of(text) };
                if self.columns.is_some() { Ok(None) } else { Entry::read(text) }
            }
            Ok(text) => match &self.columns {
                Some(columns) => columns.read(&text),
                None => Entry::read(&text),
            },
        };
        Ok(Some(Line { number, bytes: length, entry }))
    }
}

/// Reads the lines on a separate thread: a pipe may block while outcomes arrive.
pub(super) fn lines(input: impl BufRead + Send + 'static) -> mpsc::Receiver<io::Result<Line>> {
    let (sender, receiver) = mpsc::channel(LINES_MAX);
    std::thread::spawn(move || {
        let mut list = List { input, number: 0, columns: None };
        while let Some(read) = list.next().transpose() {
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
        let browser = r#"{"endpoint":"https://p.example/1","keys":{}}"#;
        let entry = Entry::read(browser).unwrap().unwrap();
        assert_eq!((entry.provider, entry.token.as_str()), (Some(Platform::Web), browser));
    }

    fn all(text: &str) -> Vec<(u64, Result<Option<Entry>, String>)> {
        let mut list = List { input: text.as_bytes(), number: 0, columns: None };
        let mut lines = Vec::new();
        while let Some(line) = list.next().unwrap() {
            lines.push((line.number, line.entry));
        }
        lines
    }

    #[test]
    fn a_csv_file_is_read_by_its_columns_and_faults_have_the_number_of_their_line() {
        let text = "\u{feff}user;Provider;TOKEN;payload\r\n\
                    ada;fcm;abc:D-1_;\"{\"\"a\"\":\r\n1}\"\r\n\
                    \r\n\
                    bob;;00ff;\n\
                    eve;sms;00ff;\n\
                    too;few\n";
        let lines = all(text);
        let entry = |at: usize| lines[at].1.as_ref().unwrap().as_ref().unwrap();
        assert_eq!(entry(1).provider, Some(Platform::Fcm));
        assert_eq!(entry(1).token, "abc:D-1_");
        assert_eq!(entry(1).payload, Some(serde_json::json!({ "a": 1 })));
        assert_eq!((entry(3).provider, entry(3).token.as_str()), (None, "00ff"));
        let numbers: Vec<u64> = lines.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 2, 4, 5, 6, 7], "the record of line 2 has two lines");
        assert!(lines[4].1.as_ref().unwrap_err().contains("sms"));
        assert!(lines[5].1.as_ref().unwrap_err().contains("2 columns"));

        let browser = "endpoint,p256dh,auth\nhttps://p.example/1,x,y\n";
        let token = all(browser).remove(1).1.unwrap().unwrap().token;
        assert!(token.contains(r#""endpoint":"https://p.example/1""#), "{token}");
        let unnamed = all("00ff,ada\n").remove(0).1.unwrap_err();
        assert!(unnamed.contains("first line"), "{unnamed}");
        let marked = all("\u{feff}00ff\n").remove(0).1.unwrap().unwrap();
        assert_eq!(marked.token, "00ff");
    }
}
