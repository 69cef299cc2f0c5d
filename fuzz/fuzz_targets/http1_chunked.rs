#![no_main]

mod shared;

libfuzzer_sys::fuzz_target!(|data: &[u8]| shared::run("http1_chunked", data));
