//! What the rows share: the programs they measure, a talk with `runcap json`, statistics, pinning.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

const MUSL: &str = "x86_64-unknown-linux-musl";

/// The release build as it is shipped: one static musl binary. Built here when it is not there.
pub(crate) fn runcap() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("--bin", "runcap"))
}

/// The program of tests/helper, built as runcap is.
pub(crate) fn helper() -> &'static str {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("--example", "helper")).to_str().expect("the path is text")
}

fn build(kind: &str, name: &str) -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--release", "--target", MUSL, kind, name])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "the static build failed: is the target {MUSL} installed?");
    let messages = String::from_utf8(output.stdout).expect("cargo writes text");
    let messages = messages.lines().map(serde_json::from_str::<Value>);
    let mut paths = messages.filter_map(|message| {
        Some(PathBuf::from(message.expect("cargo writes JSON")["executable"].as_str()?))
    });
    paths.next_back().expect("cargo names the executable")
}

/// A static program that does nothing: what any program costs here.
pub(crate) fn nothing() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let path = runcap().with_file_name("nothing");
        let mut rustc = Command::new("rustc")
            .args(["--target", MUSL, "-O", "--crate-name", "nothing", "-o"])
            .arg(&path)
            .arg("-")
            .stdin(Stdio::piped())
            .spawn()
            .expect("rustc starts");
        let mut source = rustc.stdin.take().expect("stdin is piped");
        source.write_all(b"fn main() {}").expect("rustc reads its source");
        drop(source);
        assert!(rustc.wait().expect("rustc ends").success(), "the program that does nothing");
        path
    })
}

/// A `runcap json` that is talked to request by request and lives until it is dropped.
pub(crate) struct Session {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Session {
    pub(crate) fn start() -> Session {
        let mut command = Command::new(runcap());
        let command = command.arg("json").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("runcap starts");
        let answers = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Session { child, answers }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send(&mut self, request: &Value) {
        let stdin = self.child.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{request}").expect("runcap reads its stdin");
    }

    pub(crate) fn answer(&mut self) -> Value {
        let mut line = Vec::new();
        self.answers.read_until(b'\n', &mut line).expect("stdout can be read");
        serde_json::from_slice(&line).expect("an answer is JSON")
    }

    pub(crate) fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.answer()
    }

    /// A number from /proc/PID/status.
    pub(crate) fn status(&self, key: &str) -> f64 {
        let text =
            fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("runcap lives");
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let number =
            line.and_then(|line| line.split_whitespace().next()).expect("the key is there");
        number.parse().expect("a number")
    }

    /// The largest resident set so far, bytes.
    pub(crate) fn peak_rss_bytes(&self) -> f64 {
        self.status("VmHWM") * 1024.0
    }

    /// Resident set now, bytes.
    pub(crate) fn rss_bytes(&self) -> f64 {
        self.status("VmRSS") * 1024.0
    }

    /// Open descriptors, threads and children.
    pub(crate) fn resources(&self) -> [f64; 3] {
        let pid = self.pid();
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("runcap lives").count();
        let children = processes(|_, parent, _| parent == pid).len();
        [descriptors as f64, self.status("Threads"), children as f64]
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It has answered everything, so the end of its input ends it.
        let _ = self.child.wait();
    }
}

/// Processes for which `wanted(pid, parent, environment)` holds, zombies too.
pub(crate) fn processes(wanted: impl Fn(u32, u32, &[u8]) -> bool) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name before the last parenthesis may hold anything; then come state and parent.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let parent = fields.split_whitespace().nth(1).and_then(|parent| parent.parse().ok());
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        parent.is_some_and(|parent| wanted(*pid, parent, &environment))
    })
    .collect()
}

/// Processes that were given the variable `mark`.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let has = |environment: &[u8]| {
        environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(mark.as_bytes()))
    };
    processes(|_, _, environment| has(environment))
}

/// Restricts this process, and what it starts from now on, to these cores (`0`, `0-1`).
pub(crate) fn pin(cores: &str) {
    let pid = std::process::id().to_string();
    let mut taskset = Command::new("taskset");
    let output = taskset.args(["-a", "-c", "-p", cores, &pid]).output().expect("taskset starts");
    assert!(output.status.success(), "taskset: {}", String::from_utf8_lossy(&output.stderr));
}

/// Does `work` on core 0 only, or wherever the scheduler likes.
pub(crate) fn maybe_pinned<T>(pinned: bool, work: impl FnOnce() -> T) -> T {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if pinned {
        pin("0");
    }
    let result = work();
    if pinned {
        pin(&format!("0-{}", cores - 1));
    }
    result
}

/// Measures both in turn, `rounds` times, after one round that does not count.
pub(crate) fn alternate(
    rounds: usize,
    mut ours: impl FnMut() -> f64,
    mut theirs: impl FnMut() -> f64,
) -> [Vec<f64>; 2] {
    let _ = (ours(), theirs());
    let mut raw = [vec![], vec![]];
    for _ in 0..rounds {
        raw[0].push(ours());
        raw[1].push(theirs());
    }
    raw
}

/// The median time of `count` calls, milliseconds.
pub(crate) fn median_ms(count: usize, mut call: impl FnMut()) -> f64 {
    median(&(0..count).map(|_| ms(&mut call)).collect::<Vec<_>>())
}

/// The time of one call, milliseconds.
pub(crate) fn ms(call: impl FnOnce()) -> f64 {
    let start = Instant::now();
    call();
    milliseconds(start.elapsed())
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which `part` of all lie.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}
