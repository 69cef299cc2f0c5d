//! Options that several commands share: the credential, and how to connect to Apple.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use dunlin_push::apns::{
    Certificate, Credential, Environment, ProviderKey, ProviderToken, decrypt_pem,
};
use dunlin_push::{Origin, Proxy};
use dunlin_wire::text::without_byte_order_mark;

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct Account {
    /// The signing key, a .p8 file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires_all = ["key_id", "team_id"])]
    key: Option<PathBuf>,
    /// The key's id, ten characters
    #[arg(long, value_name = "ID")]
    key_id: Option<String>,
    /// The team's id, ten characters
    #[arg(long, value_name = "ID")]
    team_id: Option<String>,
    /// A certificate with its key, .p12 or PEM, instead of a signing key
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "key")]
    certificate: Option<PathBuf>,
    /// The certificate's key (PEM), if it is in a separate file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "certificate")]
    certificate_key: Option<PathBuf>,
    /// The password of the .p12 file, or the passphrase of a PEM key
    #[arg(long, value_name = "TEXT", default_value = "")]
    password: String,
    /// Use the sandbox environment, for builds from Xcode
    #[arg(long)]
    sandbox: bool,
    /// Port to connect to, e.g. 2197 if a firewall blocks 443
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    #[command(flatten)]
    way: ServiceRoute,
}

/// How a service is reached, where the plain way does not do.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServiceRoute {
    /// Connect to this address instead, e.g. that of `dunlin apns simulate`
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Trust the certificates of this PEM file too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    roots: Option<PathBuf>,
    /// http://USER:PASSWORD@HOST:PORT or socks5://HOST:PORT
    #[arg(long, value_name = "URL")]
    proxy: Option<Proxy>,
}

impl ServiceRoute {
    /// Applies these options to an origin.
    pub(crate) fn lead(&self, mut origin: Origin) -> Result<Origin, CliError> {
        if let Some(address) = &self.address {
            let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                let reported = "--address: write HOST:PORT, as in 127.0.0.1:2197";
                return Err(format!("{reported}, not {address:?}").into());
            }
        }
        origin.address.clone_from(&self.address);
        origin.proxy.clone_from(&self.proxy);
        if let Some(roots) = &self.roots {
            origin.add_roots(roots)?;
        }
        Ok(origin)
    }
}

impl Account {
    /// Returns whether a credential is given.
    pub(crate) fn is_given(&self) -> bool {
        self.key.is_some() || self.certificate.is_some()
    }

    /// Returns how services are reached.
    pub(crate) fn route(&self) -> &ServiceRoute {
        &self.way
    }

    /// Returns the origin for pushes.
    pub(crate) fn origin(&self) -> Result<Origin, CliError> {
        self.way(self.environment().origin())
    }

    /// Returns the origin for managing broadcast channels.
    pub(crate) fn channels_origin(&self) -> Result<Origin, CliError> {
        self.way(self.environment().channels_origin())
    }

    fn environment(&self) -> Environment {
        if self.sandbox { Environment::Sandbox } else { Environment::Production }
    }

    fn way(&self, mut origin: Origin) -> Result<Origin, CliError> {
        origin.port = self.port.unwrap_or(origin.port);
        self.way.lead(origin)
    }

    /// Reads the credential.
    pub(crate) fn credential(&self) -> Result<Credential, CliError> {
        if let Some(file) = &self.certificate {
            let mut bytes = read(file)?;
            if let Some(key) = &self.certificate_key {
                bytes.push(b'\n');
                bytes.extend(read(key)?);
            }
            let certificate = if bytes.windows(10).any(|window| window == b"-----BEGIN") {
                Certificate::from_pem(&bytes, &self.password)
            } else {
                Certificate::from_p12(&bytes, &self.password)
            };
            let certificate =
                certificate.map_err(|error| format!("{}: {error}", file.display()))?;
            return Ok(Credential::Certificate(certificate));
        }
        let (Some(file), Some(key_id), Some(team_id)) = (&self.key, &self.key_id, &self.team_id)
        else {
            return Err(
                "name a credential: --key with --key-id and --team-id, or --certificate".into()
            );
        };
        let pem = decrypt_pem(&String::from_utf8_lossy(&read(file)?), &self.password)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let key = ProviderKey::new(&pem, key_id, team_id).map_err(|why| {
            match why.strip_prefix("key: ") {
                Some(why) => format!("{}: {why}", file.display()),
                None => why,
            }
        })?;
        Ok(Credential::Token(ProviderToken::new(key)))
    }
}

/// Returns the text of an option, or the contents of the file named after an `@`.
pub(crate) fn text_or_file(option: &str) -> Result<Vec<u8>, CliError> {
    match option.strip_prefix('@') {
        Some(file) => read(Path::new(file)),
        None => Ok(option.as_bytes().to_vec()),
    }
}

pub(crate) fn read(file: &Path) -> Result<Vec<u8>, CliError> {
    let bytes =
        fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Ok(without_byte_order_mark(&bytes).to_vec())
}
