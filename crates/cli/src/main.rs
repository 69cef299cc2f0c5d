//! dunlin: serve, bench, config, token, check.

fn main() {}
