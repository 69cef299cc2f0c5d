#![no_main]

mod shared_config;

libfuzzer_sys::fuzz_target!(|data: &[u8]| shared_config::run("config_pointer", data));
