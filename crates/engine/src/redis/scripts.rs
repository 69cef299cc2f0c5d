//! The scripts that run inside Redis.

use std::fmt::Write as _;

use super::config::Layout;

/// The check that its caller knows the generation of the server's data.
const BEHIND: &str = include_str!("lua/behind.lua");

/// A script: its text, and its hash in the server's cache.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) sha: String,
}

impl Script {
    /// Returns the text for the node that imports the script's slot; see `lua/asking.lua`.
    pub(crate) fn asked(&self, sharded: bool) -> String {
        let publish = if sharded { "SPUBLISH" } else { "PUBLISH" };
        // What that node has of the generation's key, if anything, is not what the caller's was named after.
        let text = self.text.replace(BEHIND, "local function is_behind() return false end\n");
        include_str!("lua/asking.lua").replace("@publish", publish).replace("@script", &text)
    }
}

/// All scripts of an engine.
#[derive(Clone, Debug)]
pub(crate) struct Scripts {
    pub(crate) publish: Script,
    pub(crate) publish_checked: Script,
    pub(crate) announce: Script,
    pub(crate) open: Script,
    pub(crate) history: Script,
    pub(crate) replica_history: Script,
    pub(crate) positions: Script,
    pub(crate) remove: Script,
    pub(crate) generation: Script,
}

impl Scripts {
    /// Scripts for a server of a cluster, where publications reach the subscribers of the slot's nodes, or any other.
    pub(crate) fn new(sharded: bool, layout: Layout) -> Scripts {
        let publish = if sharded { "SPUBLISH" } else { "PUBLISH" };
        let build = |text: &str, before: &str, done: &str| {
            let text = text
                .replace("@before", before)
                .replace("@done", done)
                .replace("@begin", include_str!("lua/begin.lua"))
                .replace("@behind\n", BEHIND)
                .replace("@page", include_str!("lua/page.lua"))
                .replace("@after", include_str!("lua/after.lua"))
                .replace("@publish", publish);
            let mut sha = String::with_capacity(40);
            for byte in sha1_smol::Sha1::from(&text).digest().bytes() {
                let _ = write!(sha, "{byte:02x}");
            }
            Script { text, sha }
        };
        let plain = |text: &str| build(text, "", "");
        if layout == Layout::Centrifugo {
            let publish_text = include_str!("lua/centrifugo/publish.lua");
            return Scripts {
                publish: plain(publish_text),
                publish_checked: build(
                    publish_text,
                    include_str!("lua/centrifugo/checked.lua"),
                    include_str!("lua/centrifugo/checked_done.lua"),
                ),
                announce: plain(include_str!("lua/centrifugo/announce.lua")),
                open: plain(include_str!("lua/centrifugo/open.lua")),
                history: plain(include_str!("lua/centrifugo/history.lua")),
                replica_history: plain(include_str!("lua/replica_history.lua")),
                positions: plain(include_str!("lua/centrifugo/positions.lua")),
                remove: plain(include_str!("lua/centrifugo/remove.lua")),
                generation: plain(include_str!("lua/centrifugo/generation.lua")),
            };
        }
        let publish_text = include_str!("lua/publish.lua");
        Scripts {
            publish: plain(publish_text),
            publish_checked: build(
                publish_text,
                include_str!("lua/checked.lua"),
                include_str!("lua/checked_done.lua"),
            ),
            announce: plain(include_str!("lua/announce.lua")),
            open: plain(include_str!("lua/open.lua")),
            history: plain(include_str!("lua/history.lua")),
            replica_history: plain(include_str!("lua/replica_history.lua")),
            positions: plain(include_str!("lua/positions.lua")),
            remove: plain(include_str!("lua/remove.lua")),
            generation: plain(include_str!("lua/generation.lua")),
        }
    }

    /// Returns all scripts that a server with channels runs.
    pub(crate) fn all(&self) -> [&Script; 8] {
        [
            &self.publish,
            &self.publish_checked,
            &self.announce,
            &self.open,
            &self.history,
            &self.positions,
            &self.remove,
            &self.generation,
        ]
    }
}
