//! What one `dunlin` does, as a person at a shell, a client or a backend sees it.

mod admin_tls;
mod bad_files;
mod channels;
mod command_line;
mod compose;
mod crash;
mod federation;
#[path = "../kit/mod.rs"]
mod kit;
mod log;
mod programs;
mod proxies;
mod push_api;
mod push_import;
mod push_import_others;
mod push_trace;
mod slow_redis;
mod state;
mod upstreams;
