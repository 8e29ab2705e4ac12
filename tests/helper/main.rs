//! A program for tests to run: what it does is its first argument.

fn main() {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        other => panic!("no such helper: {other:?}"),
    }
}
