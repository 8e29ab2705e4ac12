//! What the tests share: running `runcap json`, and looking at processes from outside.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
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
    let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/helper/main.rs");
    // `cargo test --test it` alone builds no example.
    assert!(modified(&path) >= modified(&source), "build it: cargo build --example helper");
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
    /// The answers as they were written.
    pub stdout: Vec<u8>,
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
    let (status, stdout) = (output.status, output.stdout);
    Run { status, answers, stdout, stderr, elapsed: start.elapsed() }
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
        self.send_text(&request.to_string());
    }

    /// Sends a request that was spelled before.
    pub fn send_text(&mut self, request: &str) {
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

    /// Bytes of the largest resident set so far (VmHWM), read while the process still lives. The
    /// kernel sums counters of each CPU, so a later value can be a little below an earlier one.
    pub fn peak_rss_bytes(&self) -> u64 {
        status_kib(self.child.id(), "VmHWM") * 1024
    }

    /// Stops reading: closes our end of the program's stdout.
    pub fn hang_up(self) -> Child {
        drop(self.lines);
        self.child
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

/// Asserts that every key of `expected` has that value in `answer`; null says that it is absent.
#[track_caller]
pub fn assert_has(answer: &Value, expected: &Value) {
    for (key, value) in expected.as_object().expect("expectations are an object") {
        let text = answer.to_string();
        let (shown, _) = text.split_at(text.floor_char_boundary(4000));
        assert_eq!(&answer[key], value, "{key} in {shown}");
    }
}

/// A number of an answer.
#[track_caller]
pub fn number(answer: &Value, key: &str) -> u64 {
    answer[key].as_u64().unwrap_or_else(|| panic!("{key} is a number in {answer}"))
}

/// How long the command took, by its own answer.
#[track_caller]
pub fn duration(answer: &Value) -> Duration {
    Duration::from_secs_f64(answer["duration"].as_f64().expect("the command was started"))
}

/// The exact bytes in `key` of an answer.
#[track_caller]
pub fn base64(answer: &Value, key: &str) -> Vec<u8> {
    let text = answer[key].as_str().unwrap_or_else(|| panic!("{key} is text in {answer}"));
    assert_eq!(text.len() % 4, 0, "padded");
    let value = |byte| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("no base64: {:?}", char::from(byte)),
    };
    let digits = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::new();
    for group in digits.chunks(4) {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | u32::from(value(*digit)));
        let bits = bits << (6 * (4 - group.len())) << 8;
        bytes.extend_from_slice(&bits.to_be_bytes()[..group.len() - 1]);
    }
    bytes
}

/// A number of kibibytes (or a plain number) from /proc/PID/status.
pub fn status_kib(pid: u32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let line = line.unwrap_or_else(|| panic!("/proc/{pid}/status has {key}"));
    line.split_whitespace().next().expect("a number").parse().expect("a number")
}

/// Open descriptors of a process.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives").count()
}

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, Some("Z" | "X") | None)
}

/// A command that sleeps for years and is told apart from every other one.
pub fn marked_sleep() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("sleep {}{count:03}", std::process::id())
}

/// Live processes whose command line holds `needle` (their arguments joined by spaces).
pub fn processes_with(needle: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(needle) && is_alive(pid) && pid != std::process::id() {
            found.push(pid);
        }
    }
    found
}

/// Threads of a process.
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").count()
}

/// Tests that could not run, so far, in this process.
static NOT_HERE: AtomicUsize = AtomicUsize::new(0);

/// Says, on stderr and in a file of the target directory, that a test cannot run in this place.
pub fn not_here(reason: &str) {
    let count = NOT_HERE.fetch_add(1, Ordering::Relaxed) + 1;
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("not run here: {test}: {reason} ({count} so far)");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("not-run-here");
    let mut file = fs::File::options().create(true).append(true).open(path).expect("a file");
    writeln!(file, "not run here: {test}: {reason}").expect("room for a line");
}

/// A control group of its own with a memory limit, removed when it is dropped.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// `None`, said aloud, where nobody may make control groups.
    pub fn new(name: &str, limit_bytes: u64) -> Option<MemoryGroup> {
        if !rustix::process::geteuid().is_root() {
            not_here("only root makes control groups");
            return None;
        }
        let version_1 = Path::new("/sys/fs/cgroup/memory");
        let (root, file) = if version_1.join("memory.limit_in_bytes").exists() {
            (version_1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let group = root.join(format!("{name}-{}", std::process::id()));
        match fs::create_dir(&group) {
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => {
                not_here("control groups are mounted read-only");
                return None;
            }
            made => made.expect("root makes a control group"),
        }
        let group = MemoryGroup(group);
        fs::write(group.0.join(file), limit_bytes.to_string()).expect("the limit can be set");
        Some(group)
    }

    /// `command`, to be started inside the group.
    pub fn wrap(&self, command: &Command) -> Command {
        let mut wrapped = Command::new("/bin/sh");
        wrapped.args(["-c", r#"echo $$ >"$0" && exec "$@""#]).arg(self.0.join("cgroup.procs"));
        wrapped.arg(command.get_program()).args(command.get_args());
        wrapped
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that has just ended may still be on its way out of the group.
        wait_until("the control group is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

/// `command`, to be started by a shell that first does `setup`.
pub fn after(setup: &str, command: &Command) -> Command {
    let mut wrapped = Command::new("/bin/sh");
    wrapped.args(["-c", &format!(r#"{setup}; exec "$@""#), "sh"]);
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped
}

/// `runcap json ARGS`, not yet started.
pub fn json_mode(args: &[&str]) -> Command {
    let mut command = runcap();
    command.arg("json").args(args);
    command
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

/// A command that sleeps for years and is told apart from every other one. Whatever still has it
/// on its command line when this is dropped is killed.
pub struct Mark(String);

impl Mark {
    pub fn new() -> Mark {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Mark(format!("sleep {}7{count:03}", std::process::id()))
    }

    /// Processes that have it on their command line: shells that are to run it too.
    pub fn living(&self) -> Vec<u32> {
        processes_with(&self.0)
    }

    /// Processes that are this very command.
    pub fn sleepers(&self) -> Vec<u32> {
        let is_sleeper = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line == format!("{}\0", self.0.replace(' ', "\0")).as_bytes()
        };
        self.living().into_iter().filter(is_sleeper).collect()
    }

    /// The one process that is this very command, as soon as it is there.
    pub fn sleeper(&self) -> u32 {
        wait_until("the command runs", || !self.sleepers().is_empty());
        self.sleepers()[0]
    }

    /// Asserts that none is alive now.
    #[track_caller]
    pub fn assert_gone(&self) {
        assert_eq!(self.living(), [0; 0], "alive: {}", self.0);
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // One that is being started just now is found the next time.
        for _ in 0..100 {
            let living = self.living();
            if living.is_empty() {
                break;
            }
            kill_all(&living);
        }
    }
}

/// Kills processes that a test let live.
pub fn kill_all(pids: &[u32]) {
    for pid in pids {
        send(*pid, Signal::KILL);
    }
}

/// Sends a signal to a process that the test started; it may have ended by itself.
pub fn send(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid"));
    let _ = rustix::process::kill_process(pid.expect("a pid"), signal);
}

/// What /proc/PID/stat says.
#[derive(Debug, Clone, Copy)]
pub struct Stat {
    pub state: char,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    /// User and system time, hundredths of a second.
    pub cpu_ticks: u64,
}

/// A process, zombies too; `None` when it is gone.
pub fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    // One that is just being reaped has -1 for its group.
    let number = |index: usize| fields.get(index)?.parse().ok();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        state: fields[0].chars().next()?,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        cpu_ticks: ticks(11)? + ticks(12)?,
    })
}

/// The number of every process, zombies too.
pub fn all_processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Children of a process, zombies too.
pub fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| stat(*pid).is_some_and(|stat| stat.parent == parent);
    all_processes().into_iter().filter(is_child).collect()
}

/// Children of a process that nobody has reaped.
pub fn zombies(parent: u32) -> Vec<u32> {
    let is_zombie = |pid: &u32| stat(*pid).is_some_and(|stat| stat.state == 'Z');
    children(parent).into_iter().filter(is_zombie).collect()
}

/// The soft limit on real-time computing of a process, which is what marks a command's.
pub fn soft_rttime(pid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("the process lives");
    let line = text.lines().find_map(|line| line.strip_prefix("Max realtime timeout"));
    line.and_then(|line| line.split_whitespace().next()).expect("the kernel shows it").to_owned()
}

/// `command`, to be started by a program that becomes it, such as env or prlimit.
pub fn through(wrapper: &[&str], command: &Command) -> Command {
    let mut wrapped = Command::new(wrapper[0]);
    wrapped.args(&wrapper[1..]).arg(command.get_program()).args(command.get_args());
    wrapped
}

/// Whether a program is installed; where it is not, the test is counted as not run.
pub fn installed(program: &str) -> bool {
    let mut look = Command::new("/bin/sh");
    look.args(["-c", r#"command -v "$0" >/dev/null"#, program]);
    let found = look.status().expect("a shell").success();
    if !found {
        not_here(&format!("{program} is not installed"));
    }
    found
}

/// Asserts that `elapsed` lies between `least` and what is granted above it.
#[track_caller]
pub fn assert_took(elapsed: Duration, least: Duration) {
    assert!(elapsed >= least, "too early: {elapsed:?} of {least:?}");
    let most = least + slack();
    assert!(elapsed < most, "too late: {elapsed:?} for {least:?}, at most {most:?}");
}

/// What is granted above a time that was promised: half a second, and on a busy machine as many
/// times that as there are processes to a processor, since a promise needs processor time to be
/// kept in.
pub fn slack() -> Duration {
    let text = std::fs::read_to_string("/proc/loadavg").expect("/proc is mounted");
    let load: f64 = text.split(' ').next().expect("a number").parse().expect("a number");
    let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    Duration::from_millis(500).mul_f64((load / processors).clamp(1.0, 6.0))
}
