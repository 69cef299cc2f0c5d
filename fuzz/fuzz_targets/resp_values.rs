#![no_main]

mod shared;

libfuzzer_sys::fuzz_target!(|data: &[u8]| shared::run("resp_values", data));
