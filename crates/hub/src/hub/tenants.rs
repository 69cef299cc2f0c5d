//! Usage of tenants, and the removal of their data.

use super::Hub;
use crate::config::Now;
use crate::error::Error;
use crate::shares::NamespaceShare;
use crate::tenant;

/// Traffic in a tenant's channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantTraffic {
    /// Publications requested on this worker.
    pub publications: u64,
    /// Bytes of their payloads.
    pub published_bytes: u64,
    /// Publications delivered to subscribers here.
    pub deliveries: u64,
    /// Bytes of their payloads.
    pub delivered_bytes: u64,
}

impl Hub {
    /// Usage of namespaces in the slots from `from` on, `places` at most, and the next slot unless all were
    /// visited.
    pub fn namespaces_page(&self, from: u32, places: u32) -> (Vec<NamespaceShare>, Option<u32>) {
        self.shares.page(from, places)
    }

    /// Usage of a namespace, if it has been used.
    pub fn namespace(&self, name: &str) -> Option<NamespaceShare> {
        self.shares.find(name).map(|at| self.shares.share(at).into())
    }

    /// The number of sessions and distinct users of a tenant here.
    pub fn population(&self, tenant: &str) -> (u32, u32) {
        self.users.of_tenant(tenant)
    }

    /// The traffic of tenants since the last call.
    pub fn take_traffic(&mut self) -> impl Iterator<Item = (Box<str>, TenantTraffic)> {
        self.tenant_traffic.drain()
    }

    /// Counts traffic in a channel, if it is a tenant's.
    pub(super) fn count_traffic(&mut self, channel: &str, count: impl FnOnce(&mut TenantTraffic)) {
        let Some(tenant) = tenant::split(channel).0 else { return };
        match self.tenant_traffic.get_mut(tenant) {
            Some(traffic) => count(traffic),
            None => count(self.tenant_traffic.entry(tenant.into()).or_default()),
        }
    }

    /// Removes some idempotency keys of a namespace. Returns whether it has none left here.
    pub fn forget_keys(&mut self, namespace: &str, keys_max: u32) -> bool {
        let namespace = self.shares.find(namespace);
        namespace.is_none_or(|namespace| self.idempotency.forget(namespace, keys_max))
    }

    /// Removes the channels at home here for which `is_gone` is true, in the slots from `from` on, `places`
    /// at most, with histories and positions. Returns the next slot unless all were visited.
    pub fn forget_channels(
        &mut self,
        now: Now,
        from: u32,
        places: u32,
        is_gone: impl Fn(&str) -> bool,
    ) -> Option<u32> {
        self.now = now;
        let len = self.homes.indices().end;
        let end = from.saturating_add(places).min(len);
        for at in from..end {
            if self.homes.get(at).is_none_or(|home| !is_gone(&home.name)) {
                continue;
            }
            self.end_agent(at, Error::Cancelled);
            self.end_stream(at);
            self.remove_if_empty(at);
        }
        self.run();
        (end < len).then_some(end)
    }
}
