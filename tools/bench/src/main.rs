//! `dunlin-bench`, which `dunlin bench`, `dunlin apns bench` and `dunlin apns simulate` run.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    dunlin_bench::main()
}
