//! Connections of a user on all nodes, where `limits.connections_per_user_max` bounds them.
//!
//! A node admits a user by its own count, writes the new count, and reads those of the other living nodes in the same operation.
//! If the sum is too large, it disconnects what it has admitted since its last write. Writes are serialized, so of two nodes that
//! admit the last connection at once the second notices. A connect is answered after that; without a connection to the store each
//! node uses its own count.
//!
//! One write of a node is in flight at a time; later changes are written together by the next one.

use std::sync::Arc;

use dunlin_access::limits::user_connections::{UserConnections, UserCount};

use super::agent::{Agent, TaskResult};
use super::store::{StoreError, UserCountsWrite};
use crate::message::{ClusterOutput, ClusterToWorker};

/// The agent's state of the counts.
#[derive(Default)]
pub(super) struct UserCounts {
    /// The counts to write; `None` without a bound.
    table: Option<Arc<UserConnections>>,
    /// The state of the store is unknown: write all counts.
    is_lost: bool,
    is_writing: bool,
}

impl UserCounts {
    /// Marks the written counts as lost.
    pub(super) fn lose(&mut self) {
        self.is_lost = true;
    }
}

impl Agent {
    /// Writes changed counts, unless a write is in flight.
    pub(super) fn write_users(&mut self) {
        let Some(store) = self.store.clone().filter(|_| self.has_joined) else { return };
        let is_bounded = self.node.snapshot().config.limits.connections_per_user_max > 0;
        let table = self.node.user_connections().filter(|_| is_bounded);
        let counts = &mut self.user_counts;
        if counts.is_writing {
            return;
        }
        if counts.table.as_ref().map(Arc::as_ptr) != table.as_ref().map(Arc::as_ptr) {
            counts.table.iter().for_each(|former| former.share(false));
            counts.is_lost = true;
            counts.table = table;
        }
        let is_lost = std::mem::take(&mut counts.is_lost);
        let changed = match &counts.table {
            None => None,
            Some(table) => {
                table.share(true);
                if is_lost { None } else { table.take_changed() }
            }
        };
        let (is_all, users) = match (changed, &counts.table) {
            (Some(users), _) => (false, users),
            (None, Some(table)) => (true, table.all()),
            (None, None) => (is_lost, Vec::new()),
        };
        if users.is_empty() && !is_all {
            return;
        }
        counts.is_writing = true;
        let living = self.nodes.values().filter(|node| node.is_alive());
        let others = living.filter(|node| node.uid != self.lease.uid);
        let others = others.map(|node| Arc::clone(&node.uid)).collect();
        let written = users.iter().map(|of| (of.user.clone(), of.connections)).collect();
        let counted = store.count_users(UserCountsWrite { users: written, is_all, others });
        let number = store.number();
        self.jobs.spawn(async move { TaskResult::UsersWritten(number, users, counted.await) });
    }

    /// Handles written counts: the workers that admitted the last connections of users above the bound disconnect them.
    pub(super) fn handle_users_written(
        &mut self,
        number: u64,
        users: Vec<UserCount>,
        elsewhere: Result<Vec<u64>, StoreError>,
    ) {
        self.user_counts.is_writing = false;
        let elsewhere = match elsewhere {
            Ok(elsewhere) => elsewhere,
            Err(error) => {
                // They are written again with the next lease renewal.
                self.user_counts.lose();
                self.node.cluster().set_counts_users(false);
                return match error {
                    // A write without an answer may still arrive at the store, which ignores it once the next connection has
                    // begun.
                    StoreError::Closed(_)
                        if self.store.as_ref().is_some_and(|store| store.number() == number) =>
                    {
                        self.lose_store(&error);
                    }
                    error => self.handle_failure(&error),
                };
            }
        };
        self.node.cluster().set_counts_users(self.user_counts.table.is_some());
        let max = self.node.snapshot().config.limits.connections_per_user_max;
        for (UserCount { user, connections, let_in_by }, elsewhere) in
            users.into_iter().zip(elsewhere)
        {
            let all = u64::from(connections) + elsewhere;
            let beyond = if max == 0 { 0 } else { all.saturating_sub(max.into()) };
            let beyond = usize::try_from(beyond).unwrap_or(usize::MAX);
            let stay = let_in_by.len().saturating_sub(beyond);
            for (at, worker) in let_in_by.into_iter().enumerate() {
                let message = match at < stay {
                    true => ClusterToWorker::UserCounted(user.clone()),
                    false => ClusterToWorker::UserOverLimit(user.clone()),
                };
                let _ = self.outbox.send(ClusterOutput::Worker(worker.into(), message));
            }
        }
        self.write_users();
    }
}
