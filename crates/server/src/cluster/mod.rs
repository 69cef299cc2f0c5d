//! The nodes of a cluster: who is one, calls that hold on all of them, and presence over all of them.
//!
//! A task of the control thread ([`Agent`](agent)) is this node's part in it. It holds one connection to Redis. Workers
//! reach it over the bus by [`crate::cluster_message`]; without `cluster.engine` there is no such task, and workers ask
//! nobody.
//!
//! What is kept in Redis, each name behind the engine's `prefix` and `:cluster`:
//!
//! | name | what |
//! |---|---|
//! | `:nodes` | hash: a node's number → its uid, the end of its lease, its facts ([`lease`]) |
//! | `:uids` | set: processes that may have left members behind |
//! | `:links` | hash: such a process → the connection that writes its members |
//! | `:members:CHANNEL` | hash: session id → who it is, and the uid of its node ([`members`]) |
//! | `:channels:UID` | set: channels of which a process has members |
//! | `:revocations` | hash: what is revoked → the call that revokes it, for nodes that were away |
//! | `:settings` | hash: changes of all nodes' settings, sealed, by number ([`changes`]) |
//! | `:settings:claim` | the node that makes such a change |
//! | `:removed:UID` | list: members of a dead process that are removed and not announced yet |
//! | `:sweep:UID` | which node sweeps after a dead one |
//! | `:calls`, `:calls:UID` | channels: to all nodes, to one ([`message`]) |

mod address;
mod agent;
mod answers;
mod calls;
mod changes;
mod condition;
mod forwarding;
mod handle;
mod kept;
mod lease;
mod link;
mod log_position;
mod member_writes;
mod members;
mod message;
mod names;
mod online;
mod presence;
mod state;
mod status;

pub(crate) use handle::ClusterHandle;
pub(crate) use state::ClusterState;
