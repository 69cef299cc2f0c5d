#![no_main]

#[path = "../../crates/hub/tests/delivery/client.rs"]
mod client;
#[path = "../../crates/hub/tests/delivery/deeds.rs"]
mod deeds;
#[path = "../../crates/hub/tests/delivery/judge.rs"]
mod judge;
#[path = "../../crates/hub/tests/kit/mod.rs"]
mod kit;
#[path = "../../crates/hub/tests/delivery/play.rs"]
mod play;

libfuzzer_sys::fuzz_target!(|data: &[u8]| deeds::run("hub", data));
