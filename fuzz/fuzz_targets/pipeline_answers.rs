#![no_main]

mod shared_pipeline;

libfuzzer_sys::fuzz_target!(|data: &[u8]| shared_pipeline::run("pipeline_answers", data));
