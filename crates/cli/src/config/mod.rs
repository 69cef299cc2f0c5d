//! `dunlin config`: prints and changes the settings of a running server, and checks configuration files.

mod address;
mod admin_response;
mod client;
pub(crate) mod environment;
mod file;
mod import;
mod key;
mod show;
mod watch;

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use dunlin_config::{Config, Pointer, docs, schema};
use serde_json::Value;

use crate::error::CliError;
use crate::style;
use address::{AdminAddress, TlsFiles};
use client::{Client, Method};

use file::text_of;
use import::ImportArgs;

pub(crate) use file::File;
use key::KeyParser;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print what is set in a running server
    Get {
        /// Key to print, e.g. client.ping_interval_ms or /client/ping_interval_ms; by default everything
        #[arg(value_parser = KeyParser, hide_possible_values = true)]
        key: Option<String>,
        /// Print this revision
        #[arg(long, value_name = "N")]
        revision: Option<u64>,
        /// Print secrets too; needs the token
        #[arg(long)]
        secrets: bool,
        #[command(flatten)]
        server: Server,
    },
    /// Set one key of a running server
    Set {
        /// Key to set, e.g. client.ping_interval_ms
        #[arg(value_parser = KeyParser, hide_possible_values = true)]
        key: String,
        /// Value: JSON, otherwise taken as a string; `-` reads standard input
        #[arg(allow_hyphen_values = true)]
        value: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Remove an entry, or reset a key to its default
    Unset {
        /// What to take out, as in channel.namespaces.chat
        #[arg(value_parser = KeyParser, hide_possible_values = true)]
        key: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Show what applying a file, or restoring a revision, would change in a running server
    Diff {
        /// The file: TOML, or JSON; `-` reads standard input
        #[arg(value_hint = ValueHint::FilePath, required_unless_present = "revision")]
        file: Option<PathBuf>,
        /// Compare with this revision
        #[arg(long, value_name = "N", conflicts_with = "file")]
        revision: Option<u64>,
        /// Treat the file as a JSON Merge Patch (RFC 7396): keys that it leaves out stay as they are
        #[arg(long)]
        merge: bool,
        #[command(flatten)]
        server: Server,
    },
    /// Apply a file to a running server, all of it or none
    Apply {
        /// The file: TOML, JSON, or a JSON Patch (an array of operations); `-` reads standard input
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Treat the file as a JSON Merge Patch (RFC 7396): keys that it leaves out stay as they are
        #[arg(long)]
        merge: bool,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Restore an earlier revision
    Restore {
        /// The revision
        revision: u64,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// List who changed what and when
    Revisions {
        /// Number of revisions, newest first
        #[arg(long, default_value_t = 20)]
        limit: u32,
        /// Show what this revision changed
        revision: Option<u64>,
        #[command(flatten)]
        server: Server,
    },
    /// Follow changes as they happen
    Watch {
        /// Start after this revision; by default, now
        #[arg(long, value_name = "N")]
        from: Option<u64>,
        #[command(flatten)]
        server: Server,
    },
    /// Print a file with every key, its documentation and its default
    Default,
    /// Check a file; print every error with its line and how to fix it
    Check {
        /// The file; `-` reads standard input
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Convert a configuration of Centrifugo, Soketi or Laravel Reverb, and report what each key became
    ///
    /// Reads files of Centrifugo v3 to v6, values of its Helm chart, Soketi's file, and environments of all three. Says which it
    /// has detected. Prints the converted file with the report as its first comment, and the report to standard error. The result
    /// is never more permissive: if a restriction has no counterpart, what it protected is closed.
    Import(ImportArgs),
    /// Print the documentation of every key in Markdown
    Docs,
    /// Print the JSON Schema of the configuration
    Schema,
}

/// The status of a change of all nodes that was made, but that some nodes do not run.
const NOT_EVERYWHERE: u16 = 207;

/// Which server.
#[derive(Debug, Clone, Args)]
pub(crate) struct Server {
    /// The server's admin port: HOST:PORT, https://HOST:PORT, or unix:PATH of its socket; by default `DUNLIN_ADMIN`,
    /// or 127.0.0.1:8001
    #[arg(long, value_name = "ADDR", help_heading = "Server")]
    admin: Option<String>,
    /// With https://: trust the certificates of this PEM file in place of the system's; else `DUNLIN_ADMIN_CA`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Server")]
    ca: Option<String>,
    /// With https://: the client certificate, a PEM file, for a server with `client_ca`; else `DUNLIN_ADMIN_CERT`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Server")]
    cert: Option<String>,
    /// The private key of --cert, a PEM file; else `DUNLIN_ADMIN_CERT_KEY`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Server")]
    cert_key: Option<String>,
    /// Admin token; by default `DUNLIN_ADMIN_TOKEN`. Not needed for a server on this machine that this user
    /// has started with `--state`
    #[arg(long, help_heading = "Server")]
    token: Option<String>,
    /// Print JSON
    #[arg(long, help_heading = "Server")]
    json: bool,
}

/// The server API of which server, and with which key.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerApi {
    /// The server's client port: HOST:PORT or https://HOST:PORT; by default `DUNLIN_SERVER`, or 127.0.0.1:8000
    #[arg(long, value_name = "ADDR", help_heading = "Server")]
    server: Option<String>,
    /// With https://: trust the certificates of this PEM file in place of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Server")]
    ca: Option<String>,
    /// API key; by default `DUNLIN_API_KEY`. Not needed in development mode
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    api_key: Option<String>,
}

impl ServerApi {
    /// Calls a method, and returns its result.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses the call.
    pub(crate) fn call(&self, method: &str, body: &Value) -> Result<Value, CliError> {
        let of =
            |given: &Option<String>, name: &str| given.clone().or_else(|| std::env::var(name).ok());
        let address = of(&self.server, "DUNLIN_SERVER");
        let address = address.unwrap_or_else(|| "127.0.0.1:8000".to_owned());
        let files = TlsFiles { ca: self.ca.clone(), ..TlsFiles::default() };
        // The address is read as that of the admin port is, and so are its faults.
        let of_server = |error: CliError| -> CliError {
            error.to_string().replace("--admin", "--server").into()
        };
        let admin = AdminAddress::parse(&address, &files).map_err(of_server)?;
        let mut headers = vec![("Content-Type", "application/json".to_owned())];
        headers.extend(of(&self.api_key, "DUNLIN_API_KEY").map(|key| ("X-API-Key", key)));
        let client = Client { admin, token: None };
        let path = format!("/api/{method}");
        let response = client.call(Method::Post, &path, &headers, Some(&body.to_string()));
        let mut response = response.map_err(of_server)?;
        let mut text = String::new();
        response.body.read_to_string(&mut text)?;
        let mut answer: Value = serde_json::from_str(&text).unwrap_or_default();
        if let Some(why) = answer["error"]["message"].as_str() {
            return Err(why.to_owned().into());
        }
        match response.status {
            200 => Ok(answer["result"].take()),
            401 => Err(format!("{address} wants an API key; name it with --api-key").into()),
            status => Err(format!("{address} answers {status}: {}", text.trim()).into()),
        }
    }
}

/// How to change it.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// Only show what would change
    #[arg(long, help_heading = "Change")]
    dry_run: bool,
    /// Wait until the change is on the disk
    #[arg(long, help_heading = "Change")]
    durable: bool,
    /// Fail if this is not the current revision
    #[arg(long, value_name = "N", help_heading = "Change")]
    if_match: Option<u64>,
    /// Comment for the list of revisions
    #[arg(long, short = 'm', value_name = "TEXT", help_heading = "Change")]
    comment: Option<String>,
    /// Let one worker run it this long first; roll back if that worker's error rate rises
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=300), help_heading = "Change")]
    canary: Option<u32>,
    /// Change all nodes of the cluster, this one first
    #[arg(long, conflicts_with = "dry_run", help_heading = "Change")]
    cluster: bool,
    #[command(flatten)]
    server: Server,
}

impl Command {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        match self {
            Command::Get { key, revision, secrets, server } => {
                get(key.as_deref(), *revision, *secrets, server)
            }
            Command::Set { key, value, change } => {
                let value = match value.as_str() {
                    "-" => text_of(Path::new("-"))?,
                    value => value.to_owned(),
                };
                change.send(Method::Put, &path(&pointer(key)?), Some(&one_value(&value)), None)
            }
            Command::Unset { key, change } => {
                change.send(Method::Delete, &path(&pointer(key)?), None, None)
            }
            Command::Diff { file, revision, merge, server } => {
                let change = ChangeArgs::dry(server.clone());
                match (file, revision) {
                    (Some(file), _) => change.send_file(file, *merge),
                    (None, Some(revision)) => change.restore(*revision),
                    (None, None) => Ok(()),
                }
            }
            Command::Apply { file, merge, change } => change.send_file(file, *merge),
            Command::Restore { revision, change } => change.restore(*revision),
            Command::Revisions { limit, revision, server } => revisions(*limit, *revision, server),
            Command::Watch { from, server } => watch::run(*from, &server.client()?, server.json),
            Command::Default => style::print(&Config::default_toml()),
            Command::Import(import) => import.run(),
            Command::Docs => style::print(&docs::markdown()),
            Command::Schema => {
                style::print(&format!("{}\n", serde_json::to_string_pretty(&schema::json())?))
            }
            Command::Check { file } => {
                File::read(file)?.validate(|config| config).map_err(|(_, refusal)| refusal)?;
                style::print(&format!("{}\n", style::paint(style::GOOD, "The file is valid.")))
            }
        }
    }
}

impl Server {
    /// Returns the admin port's response for a path.
    pub(crate) fn get(&self, path: &str) -> Result<Value, CliError> {
        self.client()?.call(Method::Get, path, &[], None)?.read()
    }

    /// Posts JSON to a path of the admin port.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        let headers = [("Content-Type", "application/json".to_owned())];
        self.client()?.call(Method::Post, path, &headers, Some(&body.to_string()))?.read()
    }

    /// Reads a path of the admin port as it comes: lines, or a document that is no JSON.
    pub(crate) fn stream(&self, path: &str) -> Result<Box<dyn Read>, CliError> {
        let response = self.client()?.call(Method::Get, path, &[], None)?;
        match response.status {
            200 => Ok(response.body),
            // A response without status 200 is a problem.
            _ => response.read().and(Ok(Box::new(std::io::empty()))),
        }
    }

    /// Reads a path of the admin port that answers with JSON whatever its status.
    pub(crate) fn get_any(&self, path: &str) -> Result<(u16, Value), CliError> {
        let mut response = self.client()?.call(Method::Get, path, &[], None)?;
        let mut text = String::new();
        response.body.by_ref().take(1 << 20).read_to_string(&mut text)?;
        Ok((response.status, serde_json::from_str(&text).unwrap_or_default()))
    }

    /// Percent-encodes a value of a query.
    pub(crate) fn query_value(text: &str) -> String {
        client::encoded(text, b"")
    }

    /// Returns whether to print JSON.
    pub(crate) fn wants_json(&self) -> bool {
        self.json
    }

    fn client(&self) -> Result<Client, CliError> {
        let of = |given: &Option<String>, name: &str| {
            let from_environment = || std::env::var(name).ok().filter(|value| !value.is_empty());
            given.clone().or_else(from_environment)
        };
        let files = TlsFiles {
            ca: of(&self.ca, "DUNLIN_ADMIN_CA"),
            cert: of(&self.cert, "DUNLIN_ADMIN_CERT"),
            cert_key: of(&self.cert_key, "DUNLIN_ADMIN_CERT_KEY"),
        };
        let admin = of(&self.admin, "DUNLIN_ADMIN");
        let admin = admin.as_deref().unwrap_or("127.0.0.1:8001");
        Ok(Client {
            admin: AdminAddress::parse(admin, &files)?,
            token: of(&self.token, "DUNLIN_ADMIN_TOKEN"),
        })
    }
}

impl ChangeArgs {
    fn dry(server: Server) -> ChangeArgs {
        let (durable, if_match, comment, canary, cluster) = (false, None, None, None, false);
        ChangeArgs { dry_run: true, durable, if_match, comment, canary, cluster, server }
    }

    fn restore(&self, revision: u64) -> Result<(), CliError> {
        self.send(Method::Post, &format!("/config/revisions/{revision}/restore"), None, None)
    }

    /// Sends the contents of a file: a whole configuration, a merge patch, or patch operations.
    fn send_file(&self, file: &Path, merge: bool) -> Result<(), CliError> {
        let text = text_of(file)?;
        let is_json = matches!(text.trim_start().as_bytes().first(), Some(b'{' | b'['))
            && file.extension().is_none_or(|extension| extension != "toml")
            && serde_json::from_str::<Value>(&text).is_ok();
        if is_json && text.trim_start().starts_with('[') {
            let kind = Some("application/json-patch+json");
            return self.send(Method::Patch, "/config", Some(&text), kind);
        }
        let body = if is_json {
            text
        } else if merge {
            // The server validates its keys; keys left out do not become defaults here.
            let value: toml::Value = toml::from_str(&text)
                .map_err(|error| format!("{} is not TOML: {error}", file.display()))?;
            serde_json::to_string(&value)?
        } else {
            let file = File::of(file, text);
            serde_json::to_string(&file.config()?)?
        };
        if merge {
            let kind = Some("application/merge-patch+json");
            return self.send(Method::Patch, "/config", Some(&body), kind);
        }
        self.send(Method::Put, "/config", Some(&body), None)
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&str>,
        kind: Option<&str>,
    ) -> Result<(), CliError> {
        let comment = self.comment.as_ref().map(|text| client::encoded(text, b""));
        let query = [
            self.dry_run.then(|| "dry_run=1".to_owned()),
            self.durable.then(|| "durable=1".to_owned()),
            comment.map(|comment| format!("comment={comment}")),
            self.canary.map(|seconds| format!("canary=worker&seconds={seconds}")),
            self.cluster.then(|| "scope=cluster".to_owned()),
        ];
        let query = query.into_iter().flatten().collect::<Vec<_>>().join("&");
        let path = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        let kind = kind.unwrap_or("application/json");
        let mut headers = vec![("From", whoami()), ("Content-Type", kind.to_owned())];
        if let Some(revision) = self.if_match {
            headers.push(("If-Match", format!("\"{revision}\"")));
        }
        let response = self.server.client()?.call(method, &path, &headers, body)?;
        let is_everywhere = response.status != NOT_EVERYWHERE;
        let answer = response.read()?;
        match self.server.json {
            true => style::print(&format!("{answer}\n"))?,
            false => style::print(&show::outcome(&answer, self.dry_run))?,
        }
        match is_everywhere {
            true => Ok(()),
            false => Err(answer["detail"].as_str().unwrap_or("some nodes do not run it").into()),
        }
    }
}

fn get(
    key: Option<&str>,
    revision: Option<u64>,
    secrets: bool,
    server: &Server,
) -> Result<(), CliError> {
    let pointer = key.map_or_else(|| Ok(Pointer::root()), pointer)?;
    let query = if secrets { "?secrets=1" } else { "" };
    let asked = match revision {
        None => format!("{}{query}", path(&pointer)),
        Some(revision) => format!("/config/revisions/{revision}/config{query}"),
    };
    let mut value = server.client()?.call(Method::Get, &asked, &[], None)?.read()?;
    if let Some(revision) = revision {
        let at = value.pointer(&pointer.to_string()).cloned();
        value = at.ok_or_else(|| format!("revision {revision} has no {pointer}"))?;
    }
    if server.json {
        return style::print(&format!("{value:#}\n"));
    }
    style::print(&show::value(&value)?)
}

fn revisions(limit: u32, revision: Option<u64>, server: &Server) -> Result<(), CliError> {
    let path = match revision {
        Some(revision) => format!("/config/revisions/{revision}"),
        None => format!("/config/revisions?limit={limit}"),
    };
    let value = server.client()?.call(Method::Get, &path, &[], None)?.read()?;
    if server.json {
        return style::print(&format!("{value}\n"));
    }
    style::print(&match revision {
        Some(_) => show::revision(&value),
        None => show::revisions(&value),
    })
}

/// Parses a key, dotted or as a JSON Pointer.
fn pointer(key: &str) -> Result<Pointer, CliError> {
    if key.is_empty() || key.starts_with('/') {
        return Pointer::parse(key).map_err(|error| error.to_string().into());
    }
    let mut pointer = Pointer::root();
    let mut rest = key;
    loop {
        // A quoted step may hold dots, as in TOML.
        let (step, after) = match rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
            Some((step, after)) => (step, after),
            None => {
                let end = rest.find('.').unwrap_or(rest.len());
                rest.split_at(end)
            }
        };
        pointer = pointer.join(step);
        match after.strip_prefix('.') {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(pointer),
            None => return Err(format!("{key} is no key; write it as in client.\"a.b\".c").into()),
        }
    }
}

/// Returns the pointer as a path of the admin port (RFC 6901 §6).
fn path(pointer: &Pointer) -> String {
    format!("/config{}", client::encoded(&pointer.to_string(), b"/"))
}

/// Passes JSON through; makes a JSON string of anything else.
fn one_value(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => text.to_owned(),
        Err(_) => Value::String(text.trim_end_matches('\n').to_owned()).to_string(),
    }
}

/// Returns the author of a change, as in `ada@laptop`.
fn whoami() -> String {
    let name = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let who = format!("{}@{host}", name.as_deref().unwrap_or("unknown"));
    who.chars().filter(|c| c.is_ascii_graphic()).take(128).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_dotted_or_a_pointer() {
        let read = |key: &str| pointer(key).map(|pointer| pointer.to_string());
        assert_eq!(read("client.ping_interval_ms").unwrap(), "/client/ping_interval_ms");
        assert_eq!(read("/client/ping_interval_ms").unwrap(), "/client/ping_interval_ms");
        assert_eq!(read("api.keys.\"a.b/c\"").unwrap(), "/api/keys/a.b~1c");
        assert_eq!(read("").unwrap(), "");
        assert!(read("a.\"b\"c").is_err());
        assert_eq!(path(&pointer("api.keys.\"a b\"").unwrap()), "/config/api/keys/a%20b");
    }

    #[test]
    fn a_value_is_json_or_a_text() {
        assert_eq!(one_value("10"), "10");
        assert_eq!(one_value("[\"*\"]"), "[\"*\"]");
        assert_eq!(one_value("keep_latest\n"), "\"keep_latest\"");
    }
}
