//! Every target: the name of the program says which one it runs. The bodies are those that `cargo test` replays seeds with.

#![no_main]
#![allow(dead_code, reason = "the rest of these modules is for tests")]

#[path = "../../crates/hub/tests/all/delivery/actions.rs"]
mod actions;
#[path = "../../crates/hub/tests/all/delivery/client.rs"]
mod client;
#[path = "../../crates/config/tests/fuzz_targets/mod.rs"]
mod config;
#[path = "../../crates/federation/tests/all/fuzz_targets.rs"]
mod federation;
#[path = "../../crates/hub/tests/kit/mod.rs"]
mod kit;
#[path = "../../crates/log/tests/fuzz_targets/mod.rs"]
mod log;
#[path = "../../crates/net/tests/fuzz_targets/mod.rs"]
mod net;
#[path = "../../crates/hub/tests/all/delivery/oracle.rs"]
mod oracle;
#[path = "../../crates/pipeline/tests/fuzz_targets/mod.rs"]
mod pipeline;
#[path = "../../crates/program/tests/fuzz_targets/mod.rs"]
mod program;
#[path = "../../crates/protocol/tests/fuzz_targets/mod.rs"]
mod protocol;
#[path = "../../crates/server/tests/fuzz_targets/mod.rs"]
mod server;
#[path = "../../crates/hub/tests/all/delivery/simulation.rs"]
mod simulation;
#[path = "../../crates/wire/tests/fuzz_targets/mod.rs"]
mod wire;

type Target = (&'static str, fn(&[u8]));

const CRATES: [&[Target]; 12] = [
    actions::TARGETS,
    config::TARGETS,
    federation::TARGETS,
    log::TARGETS,
    net::TARGETS,
    pipeline::TARGETS,
    program::TARGETS,
    protocol::TARGETS,
    server::TARGETS,
    dunlin_server::FUZZ_TARGETS,
    dunlin_simulate::FUZZ_TARGETS,
    wire::TARGETS,
];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut all = CRATES.into_iter().flatten();
    let target = all.find(|(name, _)| *name == env!("CARGO_BIN_NAME"));
    target.expect("each program is a target").1(data);
});
