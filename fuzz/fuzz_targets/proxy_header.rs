#![no_main]

mod shared;

libfuzzer_sys::fuzz_target!(|data: &[u8]| shared::run("proxy_header", data));
