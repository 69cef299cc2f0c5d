#![no_main]

mod shared_protocol;

libfuzzer_sys::fuzz_target!(|data: &[u8]| shared_protocol::run("protocol_emulation", data));
