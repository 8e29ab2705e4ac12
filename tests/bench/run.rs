//! The whole of a `runcap run`: what it costs to start, and how fast it drains what a command
//! writes, against `timeout` and what it is piped to in scripts.

use std::process::{Command, Stdio};

use crate::report::{Figure, Goal};
use crate::tools::{alternate, helper, maybe_pinned, median_ms, ms, runcap};

const ROUNDS: usize = 9;
const CALLS_A_ROUND: usize = 60;

/// `run -- /bin/true` against `timeout`, with and without the pipe that caps the output.
pub(crate) fn start(pinned: bool) -> Vec<Figure> {
    let against = |theirs: &[&str]| {
        let ours = || successful(Command::new(runcap()).args(["run", "--", "/bin/true"]));
        let theirs = || successful(Command::new(theirs[0]).args(&theirs[1..]));
        maybe_pinned(pinned, || {
            alternate(
                ROUNDS,
                || median_ms(CALLS_A_ROUND, ours),
                || median_ms(CALLS_A_ROUND, theirs),
            )
        })
    };
    let timeout = against(&["timeout", "10", "/bin/true"]);
    let pipeline = against(&["sh", "-c", "timeout 10 true | head -c 1000"]);
    vec![
        Figure::pairs("run -- /bin/true, ms", "timeout 10", Goal::Ratio(0.85), timeout),
        Figure::pairs("run -- /bin/true, ms", "timeout 10 | head", Goal::Ratio(0.55), pipeline),
    ]
}

/// A limit of `runcap run`, and what does the same in a script.
pub(crate) struct Drain {
    option: [&'static str; 4],
    alternative: &'static str,
    pipe: &'static str,
}

/// The first 10 KiB.
pub(crate) const HEAD: Drain = Drain {
    option: ["--max-output-size", "10K", "--keep", "head"],
    alternative: "timeout | (head; cat)",
    pipe: "(head -c 10240; cat >/dev/null)",
};

/// The last MiB.
pub(crate) const TAIL: Drain = Drain {
    option: ["--max-output-size", "1M", "--keep", "tail"],
    alternative: "timeout | tail",
    pipe: "tail -c 1048576",
};

/// What writes to the pipe.
#[derive(Clone, Copy)]
pub(crate) enum Producer {
    /// So many blocks of so many bytes.
    Blocks { bytes: u64, count: u64 },
    /// 1 GiB from /dev/zero.
    Zeros,
}

/// The cores of runcap (or of the pipe's reader), and of the command.
#[derive(Clone, Copy)]
pub(crate) enum Pins {
    None,
    Cores { reader: &'static str, command: &'static str },
}

impl Drain {
    /// The time until the whole output is drained.
    pub(crate) fn with(&self, producer: Producer, pins: Pins, goal: f64) -> Vec<Figure> {
        let command = match producer {
            Producer::Blocks { bytes, count } => format!("{} produce {bytes} {count}", helper()),
            Producer::Zeros => "head -c 1073741824 /dev/zero".to_owned(),
        };
        let (reader, command) = match pins {
            Pins::None => (String::new(), command),
            Pins::Cores { reader, command: core } => {
                (format!("taskset -c {reader} "), format!("taskset -c {core} {command}"))
            }
        };
        let (runcap, option) = (runcap().display(), self.option.join(" "));
        let ours = format!("{reader}{runcap} run --quiet --timeout 20 {option} -- {command}");
        let theirs = format!("{reader}sh -c 'timeout 20 {command} | {}'", self.pipe);
        let time = |script: &str| {
            let script = format!("exec {script}");
            ms(|| successful(Command::new("sh").args(["-c", &script])))
        };
        let raw = alternate(ROUNDS, || time(&ours), || time(&theirs));
        vec![Figure::pairs("drained, ms", self.alternative, Goal::Ratio(goal), raw)]
    }
}

fn successful(command: &mut Command) {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    assert!(command.status().expect("the program starts").success(), "{command:?}");
}
