#![no_main]

#[path = "../../crates/hub/tests/delivery/client.rs"]
mod client;
#[path = "../../crates/hub/tests/delivery/actions.rs"]
mod actions;
#[path = "../../crates/hub/tests/delivery/oracle.rs"]
mod oracle;
#[path = "../../crates/hub/tests/kit/mod.rs"]
mod kit;
#[path = "../../crates/hub/tests/delivery/simulation.rs"]
mod simulation;

libfuzzer_sys::fuzz_target!(|data: &[u8]| actions::run("hub", data));
