//! Benchmarks: none yet.

fn main() {}
