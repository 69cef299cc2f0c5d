#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dunlin_simulate::fuzz("simulate_http2", data));
