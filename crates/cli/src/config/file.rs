//! A configuration file, judged with the line of each fault.

use std::fmt;
use std::io::Read;
use std::path::Path;

use dunlin_config::{Config, Faults};

use crate::{Refusal, style};

/// A configuration file with its text, so that faults can be said with their lines.
pub(crate) struct File {
    name: String,
    text: String,
}

impl File {
    pub(crate) fn read(path: &Path) -> Result<File, Refusal> {
        let mut text = String::new();
        let read = match path.to_str() {
            Some("-") => std::io::stdin().read_to_string(&mut text),
            _ => std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)),
        };
        match read {
            Ok(_) => Ok(File::of(path, text)),
            Err(error) => Err(format!("{} cannot be read: {error}", path.display()).into()),
        }
    }

    /// A file that was read already.
    pub(crate) fn of(path: &Path, text: String) -> File {
        let name = path.display().to_string();
        File { name: if name == "-" { "standard input".to_owned() } else { name }, text }
    }

    /// What the file says; whether it fits together is for [`File::judge`].
    pub(crate) fn config(&self) -> Result<Config, Refusal> {
        Config::from_toml(&self.text).map_err(|faults| self.refusal(faults))
    }

    /// What is wrong with its form; empty when nothing is.
    pub(crate) fn faults(&self) -> Faults {
        Config::from_toml(&self.text).err().unwrap_or_default()
    }

    /// Refuses a config that must not be served, and warns of what is probably not meant. The config
    /// may differ from the file by flags.
    pub(crate) fn judge(&self, config: &Config) -> Result<(), Refusal> {
        if let Err(mut faults) = config.validate() {
            faults.locate(&self.text);
            return Err(self.refusal(faults));
        }
        // What the server would find out when it opens keys and certificates.
        if let Err(mut faults) = dunlin_server::judge(&Config::default(), config) {
            faults.locate(&self.text);
            return Err(self.refusal(faults));
        }
        config.warnings().iter().for_each(style::warning);
        Ok(())
    }

    fn refusal(&self, faults: Faults) -> Refusal {
        Box::new(Refused { file: self.name.clone(), faults })
    }
}

/// The faults of a file, each on a line that editors can jump to.
#[derive(Debug)]
struct Refused {
    file: String,
    faults: Faults,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.faults.len();
        write!(f, "{} has {count} fault{}", self.file, if count == 1 { "" } else { "s" })?;
        for fault in &self.faults {
            write!(f, "\n  {}", style::paint(style::BOLD, &self.file))?;
            if let Some(line) = fault.line {
                write!(f, "{}", style::paint(style::BOLD, format_args!(":{line}")))?;
            }
            let mut fault = fault.clone();
            fault.line = None;
            let fix = fault.fix.take();
            write!(f, ": {fault}")?;
            if let Some(fix) = fix {
                write!(f, "\n    {} {fix}", style::paint(style::GOOD, "fix:"))?;
            }
        }
        let listed = self.faults.iter().count();
        if listed < count {
            write!(f, "\n  and {} more", count - listed)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}
