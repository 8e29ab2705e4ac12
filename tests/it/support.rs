//! What the tests share: running `runcap json`, and looking at processes from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub use serde_json::{Value, json};

/// The program under test.
pub fn runcap() -> Command {
    Command::new(env!("CARGO_BIN_EXE_runcap"))
}

/// The helper program of tests/helper, which cargo builds as an example beside the tests.
pub fn helper() -> String {
    let mut path: PathBuf = std::env::current_exe().expect("a test knows its own path");
    path.pop();
    path.pop();
    path.push("examples/helper");
    assert!(path.exists(), "cargo test builds the example `helper`: {}", path.display());
    path.into_os_string().into_string().expect("the target directory is text")
}

/// Runs one request through `runcap json` and returns its answer.
pub fn answer(request: Value) -> Value {
    let run = feed(&[], request.to_string().as_bytes());
    assert_eq!(run.answers.len(), 1, "one request, one answer: {run:?}");
    run.answers.into_iter().next().expect("one answer")
}

/// What one `runcap json` did.
#[derive(Debug)]
pub struct Run {
    pub status: ExitStatus,
    pub answers: Vec<Value>,
    pub stderr: String,
    pub elapsed: Duration,
}

impl Run {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// Gives `input` to `runcap json ARGS` and reads everything it answers. Every line must be JSON.
pub fn feed(args: &[&str], input: &[u8]) -> Run {
    let mut command = runcap();
    command.arg("json").args(args);
    feed_command(command, input)
}

/// As [`feed`], for a command that was put together by the test.
pub fn feed_command(mut command: Command, input: &[u8]) -> Run {
    let start = Instant::now();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let output = std::thread::scope(|scope| {
        // A program that ends early leaves input unread, which is its right.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().expect("the program ends")
    });
    let answers = output
        .stdout
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| {
            serde_json::from_slice(line).unwrap_or_else(|error| {
                panic!("an answer is no JSON: {error}: {}", String::from_utf8_lossy(line))
            })
        })
        .collect();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Run { status: output.status, answers, stderr, elapsed: start.elapsed() }
}

/// A `runcap json` that is talked to request by request.
pub struct Session {
    pub child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Session {
    pub fn start(args: &[&str]) -> Session {
        let mut command = runcap();
        command.arg("json").args(args);
        Session::of(command)
    }

    pub fn of(mut command: Command) -> Session {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Session { child, lines }
    }

    pub fn send(&mut self, request: &Value) {
        let stdin = self.child.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{request}").expect("runcap reads its stdin");
    }

    /// The next line; `None` at the end.
    pub fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        let count = self.lines.read_line(&mut line).expect("answers are text");
        (count > 0).then(|| serde_json::from_str(&line).expect("an answer is JSON"))
    }

    pub fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.line().expect("an answer for every request")
    }

    /// Bytes of the largest resident set so far (VmHWM), read while the process still lives.
    pub fn peak_rss_bytes(&self) -> u64 {
        status_kib(self.child.id(), "VmHWM") * 1024
    }

    /// Closes stdin and waits for the end.
    pub fn end(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        let mut rest = Vec::new();
        self.lines.read_to_end(&mut rest).expect("stdout can be read");
        assert_eq!(rest, b"", "nothing after the last answer");
        self.child.wait().expect("the program ends")
    }
}

/// A number of kibibytes (or a plain number) from /proc/PID/status.
pub fn status_kib(pid: u32, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let line = line.unwrap_or_else(|| panic!("/proc/{pid}/status has {key}"));
    line.split_whitespace().next().expect("a number").parse().expect("a number")
}

/// Open descriptors of a process.
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives").count()
}

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, Some("Z" | "X") | None)
}

/// Live processes whose command line holds `needle` (their arguments joined by spaces).
pub fn processes_with(needle: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(needle) && is_alive(pid) && pid != std::process::id() {
            found.push(pid);
        }
    }
    found
}

/// Waits until `condition` holds, at most ten seconds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a shell script as one request and returns its answer.
pub fn sh(script: &str) -> Value {
    answer(json!({ "command": script }))
}

/// The exact keys of an answer, sorted.
pub fn keys(answer: &Value) -> Vec<&str> {
    let mut keys: Vec<_> =
        answer.as_object().expect("an answer is an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// Children of a process, zombies too.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    let of_task = |task: std::path::PathBuf| std::fs::read_to_string(task.join("children"));
    let lists: Vec<_> = tasks.flatten().filter_map(|task| of_task(task.path()).ok()).collect();
    lists.join(" ").split_whitespace().map(|pid| pid.parse().expect("a pid")).collect()
}

/// Writes an executable file and returns its path as text.
///
/// Another process writes it: a descriptor of this one may be held by what another test spawns
/// just now, and then the file is busy.
pub fn executable(directory: &std::path::Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    let write = r#"mkdir -p "${1%/*}" && printf %s "$2" > "$1" && chmod 755 "$1""#;
    let status = Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(text).status();
    assert!(status.expect("a shell starts").success());
    path.into_os_string().into_string().expect("the path is text")
}

/// Runs a script under runcap, from outside: `$RUNCAP` and `$HELPER` are the two programs. So its
/// memory, time and exit code are measured where `runcap json` itself is part of it.
pub fn measured(script: &str) -> Value {
    let (runcap, helper) = (env!("CARGO_BIN_EXE_runcap"), helper());
    answer(json!({ "command": script, "env": { "RUNCAP": runcap, "HELPER": helper } }))
}

impl Session {
    /// Stops reading the answers.
    pub fn hang_up(self) -> Child {
        self.child
    }
}
