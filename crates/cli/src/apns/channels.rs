//! `dunlin apns channels`: the broadcast channels of an app.

use clap::{Args, Subcommand};
use dunlin_push::apns::{Channels as ChannelStore, Storage};

use super::credential::Account;
use crate::error::CliError;
use crate::style::{GOOD, paint, print};

#[derive(Debug, Args)]
#[command(
    after_help = "Send to a channel with `dunlin apns send --channel ID --type liveactivity --payload …`."
)]
pub(crate) struct Channels {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a channel and print its id
    Create {
        /// Store the most recent message for devices that are offline, for up to eight hours
        #[arg(long)]
        store: bool,
        #[command(flatten)]
        app: App,
    },
    /// List the ids of all channels
    List {
        #[command(flatten)]
        app: App,
    },
    /// Show what a channel stores for devices that are offline
    Show {
        /// Its id
        channel: String,
        #[command(flatten)]
        app: App,
    },
    /// Delete a channel permanently
    Delete {
        /// Its id
        channel: String,
        #[command(flatten)]
        app: App,
    },
}

#[derive(Debug, Args)]
struct App {
    /// The app's bundle identifier
    #[arg(long, value_name = "BUNDLE")]
    topic: String,
    #[command(flatten)]
    account: Account,
}

impl App {
    fn channels(&self) -> Result<ChannelStore, CliError> {
        let (origin, credential) = (self.account.channels_origin()?, self.account.credential()?);
        Ok(ChannelStore::new(origin, credential, &self.topic)?)
    }
}

impl Channels {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            match self.command {
                Command::Create { store, app } => {
                    let storage = if store { Storage::MostRecent } else { Storage::None };
                    let id = app.channels()?.create(storage).await?;
                    Ok(print(&format!("{id}\n"))?)
                }
                Command::List { app } => {
                    let mut ids = app.channels()?.list().await?;
                    ids.push(String::new());
                    Ok(print(&ids.join("\n"))?)
                }
                Command::Show { channel, app } => {
                    let kept = match app.channels()?.show(&channel).await? {
                        Storage::None => "nothing is kept for devices that are off",
                        Storage::MostRecent => {
                            "the most recent message is kept, eight hours at most"
                        }
                    };
                    Ok(print(&format!("{channel}  {kept}\n"))?)
                }
                Command::Delete { channel, app } => {
                    app.channels()?.delete(&channel).await?;
                    Ok(print(&format!("{} {channel}\n", paint(GOOD, "deleted")))?)
                }
            }
        })
    }
}
