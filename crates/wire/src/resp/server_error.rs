//! Errors of Redis and the fix for each.

use std::fmt;

/// An error of a Redis server: the first word of its text, or the error that a script received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerError {
    /// The data set is being read from the disk.
    Loading,
    /// A replica was asked to write.
    ReadOnly,
    /// A replica has lost its primary and does not serve possibly stale data.
    MasterDown,
    /// `maxmemory` is reached, and nothing can be evicted.
    OutOfMemory,
    /// Writes are refused because the last snapshot failed.
    Misconfigured,
    /// Writes are refused because too few replicas are connected.
    TooFewReplicas,
    /// A password is required.
    AuthenticationRequired,
    /// The name or the password is wrong.
    WrongPassword,
    /// The user may not do this.
    NoPermission,
    /// The script is not in the server's cache.
    NoScript,
    /// The key holds another kind of value.
    WrongType,
    /// Another script has run for too long.
    Busy,
    /// The server's connection limit is reached.
    TooManyClients,
    /// An argument is longer than the server allows (`proto-max-bulk-len`). It closes the connection.
    TooLarge,
    /// The server does not speak RESP3: older than Redis 6.
    TooOld,
    /// The slot is now at another node of the cluster.
    Moved {
        /// The slot.
        slot: u16,
        /// The node as `host:port`; an empty host means the node that sent the error.
        address: String,
    },
    /// This command alone goes to another node of the cluster, after `ASKING`.
    Ask {
        /// The slot.
        slot: u16,
        /// The node.
        address: String,
    },
    /// Some of the slot's keys are on another node; try again soon.
    TryAgain,
    /// The cluster does not serve the slot.
    ClusterDown,
    /// Any other error.
    Other,
}

impl ServerError {
    /// Parses an error's text. An error from within a script counts as that error (Redis 6 puts it at the end of the text).
    pub fn parse(text: &str) -> ServerError {
        let text = match text.rsplit_once("@user_script: ") {
            Some((_, inner)) if text.starts_with("ERR Error running script") => {
                inner.split_once(": ").map_or(inner, |(_, inner)| inner).trim_start_matches('-')
            }
            _ => text,
        };
        let mut words = text.split(' ');
        let redirection = |words: &mut dyn Iterator<Item = &str>| {
            Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
        };
        match words.next().unwrap_or_default() {
            "LOADING" => ServerError::Loading,
            "READONLY" => ServerError::ReadOnly,
            "MASTERDOWN" => ServerError::MasterDown,
            "OOM" => ServerError::OutOfMemory,
            "MISCONF" => ServerError::Misconfigured,
            "NOREPLICAS" => ServerError::TooFewReplicas,
            "NOAUTH" => ServerError::AuthenticationRequired,
            "WRONGPASS" => ServerError::WrongPassword,
            "NOPERM" => ServerError::NoPermission,
            "NOSCRIPT" => ServerError::NoScript,
            "WRONGTYPE" => ServerError::WrongType,
            "BUSY" => ServerError::Busy,
            "NOPROTO" => ServerError::TooOld,
            "CLUSTERDOWN" => ServerError::ClusterDown,
            "TRYAGAIN" => ServerError::TryAgain,
            "MOVED" => redirection(&mut words)
                .map_or(ServerError::Other, |(slot, address)| ServerError::Moved { slot, address }),
            "ASK" => redirection(&mut words)
                .map_or(ServerError::Other, |(slot, address)| ServerError::Ask { slot, address }),
            "ERR" if text.starts_with("ERR The user executing the script can't") => {
                ServerError::NoPermission
            }
            "ERR" if text.starts_with("ERR Protocol error: invalid bulk length") => {
                ServerError::TooLarge
            }
            "ERR" if text.starts_with("ERR max number of clients") => ServerError::TooManyClients,
            "ERR" if text.starts_with("ERR unknown command") && text.contains("HELLO") => {
                ServerError::TooOld
            }
            _ => ServerError::Other,
        }
    }

    /// Returns a name for metrics and health, in snake case.
    pub fn name(&self) -> &'static str {
        match self {
            ServerError::Loading => "loading",
            ServerError::ReadOnly => "read_only",
            ServerError::MasterDown => "master_down",
            ServerError::OutOfMemory => "out_of_memory",
            ServerError::Misconfigured => "misconfigured",
            ServerError::TooFewReplicas => "too_few_replicas",
            ServerError::AuthenticationRequired => "authentication_required",
            ServerError::WrongPassword => "wrong_password",
            ServerError::NoPermission => "no_permission",
            ServerError::NoScript => "no_script",
            ServerError::WrongType => "wrong_type",
            ServerError::Busy => "busy",
            ServerError::TooManyClients => "too_many_clients",
            ServerError::TooLarge => "payload_too_large",
            ServerError::TooOld => "too_old",
            ServerError::Moved { .. } => "moved",
            ServerError::Ask { .. } => "ask",
            ServerError::TryAgain => "try_again",
            ServerError::ClusterDown => "cluster_down",
            ServerError::Other => "error",
        }
    }

    /// Returns the fix.
    pub fn fix(&self) -> &'static str {
        match self {
            ServerError::Loading => "wait until Redis has read its data set",
            ServerError::ReadOnly => {
                "this is a replica; name the primary, or the Sentinels that know it"
            }
            ServerError::MasterDown => "the replica has lost its primary; name the primary",
            ServerError::OutOfMemory => {
                "raise `maxmemory` of Redis, or keep less history in fewer channels"
            }
            ServerError::Misconfigured => {
                "Redis cannot write its snapshot; see its log and its disk"
            }
            ServerError::TooFewReplicas => {
                "start the replicas of Redis, or lower its `min-replicas-to-write`"
            }
            ServerError::AuthenticationRequired => "set user and password of this Redis",
            ServerError::WrongPassword => "user or password is wrong; correct them",
            ServerError::NoPermission => {
                "permit the user ~PREFIX* ~{PREFIX* &PREFIX* &{PREFIX* +@all -@dangerous +info (ACL SETUSER)"
            }
            ServerError::NoScript => "the script is loaded again; nothing to do",
            ServerError::WrongType => {
                "a key with this prefix is somebody else's; set another prefix or remove the key"
            }
            ServerError::Busy => "somebody's script blocks Redis; SCRIPT KILL ends it",
            ServerError::TooManyClients => "raise `maxclients` of Redis",
            ServerError::TooLarge => {
                "raise `proto-max-bulk-len` of Redis and `queue_bytes_max` of the engine, or publish less at once"
            }
            ServerError::TooOld => "Redis 6.2 or later, or Valkey, is needed",
            ServerError::Moved { .. } | ServerError::Ask { .. } => {
                "this is a node of a Redis Cluster; configure it as a cluster"
            }
            ServerError::TryAgain => "slots are being moved; it is tried again",
            ServerError::ClusterDown => "the cluster does not serve all slots; see CLUSTER INFO",
            ServerError::Other => "see the text of Redis",
        }
    }
}

impl std::error::Error for ServerError {}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.fix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_known_by_their_code_and_by_what_a_script_met() {
        let moved = ServerError::Moved { slot: 3999, address: "127.0.0.1:6381".to_owned() };
        for (text, error) in [
            ("LOADING Redis is loading the dataset in memory", ServerError::Loading),
            ("OOM command not allowed when used memory > 'maxmemory'.", ServerError::OutOfMemory),
            (
                "ERR Error running script (call to f_0): @user_script:1: @user_script: 1: -OOM command not allowed",
                ServerError::OutOfMemory,
            ),
            (
                "WRONGTYPE Operation against a key script: 4, on @user_script:1.",
                ServerError::WrongType,
            ),
            ("MOVED 3999 127.0.0.1:6381", moved),
            ("MOVED", ServerError::Other),
            (
                "ERR The user executing the script can't publish to the channel mentioned in the command",
                ServerError::NoPermission,
            ),
            ("ERR max number of clients reached", ServerError::TooManyClients),
            ("ERR unknown command `HELLO`, with args beginning with: `3`", ServerError::TooOld),
            ("", ServerError::Other),
        ] {
            assert_eq!(ServerError::parse(text), error, "{text}");
            assert!(!error.name().is_empty() && !error.fix().is_empty());
        }
    }
}
