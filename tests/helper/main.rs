//! A program for tests to run: what it does is its first argument.

mod kinds;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["relay", deadline_ms, _mark] => kinds::relay(deadline_ms, false),
        ["relay-away", deadline_ms, _mark] => kinds::relay(deadline_ms, true),
        ["leave-group", sleep] => kinds::leave_group(sleep),
        ["at-once", count, script] => kinds::at_once(count.parse().expect("a number"), script),
        ["runcap-without", list, ..] => {
            let rest: Vec<String> = args[2..].iter().map(|arg| arg.to_string()).collect();
            kinds::runcap_without(list, &rest)
        }
        _ => panic!("no such helper: {args:?}"),
    }
}
