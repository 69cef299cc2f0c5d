#![no_main]

mod shared_net;

libfuzzer_sys::fuzz_target!(|data: &[u8]| shared_net::run("net_websocket", data));
