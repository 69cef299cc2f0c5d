//! The limits of a machine that affect its connections, read once.

use std::fs;

use dunlin_server::Memory;

/// The values found; `None` if a file is missing (another kernel, a container).
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    /// `RLIMIT_NOFILE`, hard; the server raises its soft limit to it.
    pub(crate) nofile_hard: u64,
    /// Whether this process may raise its hard limit.
    pub(crate) may_raise_nofile: bool,
    /// `fs.nr_open`: what `RLIMIT_NOFILE` may be raised to at most.
    pub(crate) nr_open: Option<u64>,
    /// `fs.file-max`, and the files open now.
    pub(crate) file_max: Option<u64>,
    pub(crate) files_open: Option<u64>,
    /// `net.core.somaxconn`: the kernel's cap of a listener's backlog.
    pub(crate) somaxconn: Option<u64>,
    /// `net.ipv4.tcp_max_syn_backlog`.
    pub(crate) syn_backlog: Option<u64>,
    /// The third number of `net.ipv4.tcp_mem`, in bytes.
    pub(crate) tcp_mem_max_bytes: Option<u64>,
    /// `fs.epoll.max_user_watches`.
    pub(crate) epoll_watches: Option<u64>,
    /// `net.ipv4.ip_local_port_range`, as a number of ports.
    pub(crate) local_ports: Option<u64>,
    /// `net.netfilter.nf_conntrack_max`, and the connections tracked now.
    pub(crate) conntrack_max: Option<u64>,
    pub(crate) conntrack_count: Option<u64>,
    /// `MemAvailable`, or the memory left in the control groups if that is less.
    pub(crate) memory_available_bytes: Option<u64>,
    /// The memory that a server may use here.
    pub(crate) memory: Option<Memory>,
    pub(crate) page_bytes: u64,
}

impl Machine {
    pub(crate) fn read() -> Machine {
        use rustix::process::{Resource, getrlimit};
        let sys = |name: &str| first(&format!("/proc/sys/{}", name.replace('.', "/")));
        let page_bytes = rustix::param::page_size() as u64;
        let memory = Memory::read();
        let ports = numbers("/proc/sys/net/ipv4/ip_local_port_range");
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            // No limit is represented by the largest number.
            nofile_hard: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
            may_raise_nofile: has_sys_resource(),
            nr_open: sys("fs.nr_open"),
            file_max: sys("fs.file-max"),
            files_open: first("/proc/sys/fs/file-nr"),
            somaxconn: sys("net.core.somaxconn"),
            syn_backlog: sys("net.ipv4.tcp_max_syn_backlog"),
            tcp_mem_max_bytes: numbers("/proc/sys/net/ipv4/tcp_mem")
                .get(2)
                .map(|pages| pages.saturating_mul(page_bytes)),
            epoll_watches: sys("fs.epoll.max_user_watches"),
            local_ports: match ports[..] {
                [low, high] => Some(high.saturating_sub(low) + 1),
                _ => None,
            },
            conntrack_max: sys("net.netfilter.nf_conntrack_max"),
            conntrack_count: sys("net.netfilter.nf_conntrack_count"),
            memory_available_bytes: [
                mem_available_bytes(),
                memory.as_ref().and_then(|memory| memory.bytes_left),
            ]
            .into_iter()
            .flatten()
            .min(),
            memory,
            page_bytes,
        }
    }
}

fn first(path: &str) -> Option<u64> {
    numbers(path).first().copied()
}

fn numbers(path: &str) -> Vec<u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map_while(|word| word.parse().ok()).collect()
}

fn mem_available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Returns whether `CAP_SYS_RESOURCE` (24) is in the effective set: without it the hard limit can only be lowered.
fn has_sys_resource() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|set| set & CAP_SYS_RESOURCE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_read() {
        let machine = Machine::read();
        assert!(machine.cores > 0 && machine.nofile_hard > 0 && machine.page_bytes >= 4096);
        assert!(machine.memory_available_bytes.is_some_and(|bytes| bytes > 0));
        assert!(machine.file_max.is_some() && machine.somaxconn.is_some());
    }
}
