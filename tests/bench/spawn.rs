//! What it costs to start: a command inside the engine, and runcap itself.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use runcap::capture::Capture;
use runcap::outcome::Exit;
use runcap::run::{Control, Sinks, run};
use runcap::spec::{Keep, Limit, Overflow, Spec};

use crate::report::{Figure, Goal};
use crate::tools::{alternate, maybe_pinned, median_ms, nothing, runcap};

const ROUNDS: usize = 11;
const CALLS_A_ROUND: usize = 60;

/// From spawn to reaped inside the engine, against std's spawn and wait (posix_spawn and waitid),
/// while this process holds `touched_bytes` of memory.
pub(crate) fn engine(pinned: bool, touched_bytes: usize) -> Vec<Figure> {
    let touched = vec![1u8; touched_bytes];
    let spec = spec();
    let raw = maybe_pinned(pinned, || {
        alternate(
            ROUNDS,
            || median_ms(CALLS_A_ROUND, || run_engine(&spec)),
            || median_ms(CALLS_A_ROUND, run_std),
        )
    });
    drop(std::hint::black_box(touched));
    vec![Figure::pairs("spawn to reaped, ms", "std posix_spawn", Goal::Ratio(1.4), raw)]
}

fn spec() -> Spec {
    let limit = Limit { cap: 64 << 10, keep: Keep::Head, overflow: Overflow::Discard };
    Spec::new(vec!["/bin/true".into()], Some(Duration::from_secs(60)), limit)
}

fn run_engine(spec: &Spec) {
    let capture = |limit: Limit| Capture::new(limit.cap, limit.keep).expect("memory for 64 KiB");
    let (mut stdout, mut stderr) = (capture(spec.stdout), capture(spec.stderr));
    let sinks = Sinks { stdout: &mut stdout, stderr: &mut stderr };
    let outcome = run(spec, sinks, Control::none()).expect("/bin/true starts");
    assert_eq!(outcome.leader, Some(Exit::Code(0)));
}

fn run_std() {
    let status = Command::new("/bin/true").process_group(0).status().expect("/bin/true starts");
    assert!(status.success());
}

pub(crate) fn binary_size() -> Vec<Figure> {
    let bytes = runcap().metadata().expect("it was just built").len();
    vec![Figure::alone("static binary, bytes", bytes as f64, Goal::Value(1_300_000.0))]
}

/// The whole process `runcap --version` against a static program that does nothing.
pub(crate) fn version() -> Vec<Figure> {
    let run = |program: &Path| {
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null());
        assert!(command.status().expect("the program starts").success());
    };
    let raw = maybe_pinned(true, || {
        alternate(
            ROUNDS,
            || median_ms(CALLS_A_ROUND, || run(runcap())),
            || median_ms(CALLS_A_ROUND, || run(nothing())),
        )
    });
    vec![Figure::pairs("--version, ms", "static no-op", Goal::Ratio(1.8), raw)]
}
