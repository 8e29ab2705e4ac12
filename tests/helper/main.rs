//! A program for tests to run: what it does is its first argument.

fn main() {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("burn-cpu") => burn_cpu(number(args.next())),
        Some("touch-memory") => touch_memory(number(args.next())),
        other => panic!("no such helper: {other:?}"),
    }
}

fn number(argument: Option<String>) -> u64 {
    argument.and_then(|text| text.parse().ok()).expect("a number is given")
}

/// Uses this many hundredths of a second of CPU time.
fn burn_cpu(ticks: u64) {
    let used = || {
        let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc is mounted");
        let after_name = stat.rsplit(')').next().expect("the name ends");
        // proc_pid_stat(5): utime and stime are the 12th and 13th field after the name.
        let times = after_name.split_whitespace().skip(11).take(2);
        times.map(|time| time.parse::<u64>().expect("a number")).sum::<u64>()
    };
    while used() < ticks {}
}

/// Holds this many MiB of memory for a moment.
fn touch_memory(mebibytes: u64) {
    let bytes = usize::try_from(mebibytes << 20).expect("it fits");
    std::hint::black_box(vec![1_u8; bytes]);
}
