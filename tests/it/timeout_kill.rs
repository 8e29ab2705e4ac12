//! Timeouts: what ends, when, and what the answer says of it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::*;

const SECOND: Duration = Duration::from_secs(1);

/// runcap's waits, as the design states them.
const GRACE: Duration = Duration::from_millis(500);
const KILL_WAIT: Duration = Duration::from_millis(750);

/// Runs one request and returns its answer and the time it took, by the clock of this process.
fn timed(request: Value) -> (Value, Duration) {
    let run = feed(&[], request.to_string().as_bytes());
    assert_eq!((run.code(), run.stderr.as_str()), (Some(0), ""), "{run:?}");
    (run.answers[0].clone(), run.elapsed)
}

#[test]
fn tk1_the_timeout_ends_the_shell_and_its_children() {
    // sleep & sleep; : under a timeout of 1 s: timed out at 1 s, none of the three is left.
    let mark = Mark::new();
    let (answer, elapsed) =
        timed(json!({ "command": format!("{mark} & {mark}; :"), "timeout": 1 }));
    mark.assert_gone();
    assert_has(
        &answer,
        &json!({ "status": "timed_out", "exit_code": null, "killed_processes": 2 }),
    );
    assert_took(elapsed, SECOND);
}

#[test]
fn tk2_term_ignored_is_killed_after_the_grace() {
    // A shell that ignores TERM: done at timeout + grace, by KILL.
    let mark = Mark::new();
    let command = format!(r#"trap "" TERM; : {mark}; while :; do sleep 0.1; done"#);
    let (answer, elapsed) = timed(json!({ "command": command, "timeout": 1 }));
    mark.assert_gone();
    let expected = json!({
        "status": "timed_out", "exit_code": null, "signal": 9, "signal_name": "SIGKILL",
        "reason": "the command was still running at its timeout of 1s",
    });
    assert_has(&answer, &expected);
    assert_took(elapsed, SECOND + GRACE);
}

#[test]
fn tk2_a_member_that_ignores_term_is_killed_after_the_grace_though_the_leader_is_gone() {
    // The leader dies of TERM, its child does not: the grace is the child's too, and no more.
    let mark = Mark::new();
    let command = format!(r#"(trap "" TERM; {mark}; :) & {mark}; :"#);
    let (answer, elapsed) = timed(json!({ "command": command, "timeout": 0.2, "grace": 0.4 }));
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "timed_out", "signal": 15, "killed_processes": 3 }));
    assert_took(elapsed, Duration::from_millis(600));
}

/// Writes a word for each TERM that it gets.
const COUNTER: &str = r#"
#include <signal.h>
#include <unistd.h>
static void count(int signal) { (void)!write(1, "term\n", 5); }
int main(void) {
    struct sigaction action = { .sa_handler = count };
    sigaction(SIGTERM, &action, 0);
    (void)!write(1, "ready\n", 6);
    for (;;) pause();
}
"#;

#[test]
fn term_comes_once() {
    // A second TERM means `at once` to many a program, so the first process gets exactly one, also
    // of a runcap that is slow (traced, so that two would not merge into one).
    if !installed("cc") || !installed("strace") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (source, program) = (directory.path().join("count.c"), directory.path().join("count"));
    std::fs::write(&source, COUNTER).expect("a file");
    assert!(run_quietly("cc", &["-o", path(&program), path(&source)]), "a program");
    let strace = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=kill"];
    let mut session = Session::of(through(&strace, &json_mode(&[])));
    for _ in 0..3 {
        let request = json!({ "command": [path(&program)], "timeout": 0.1, "grace": 0.05 });
        let answer = session.ask(&request);
        let expected = json!({ "status": "timed_out", "signal": 9, "stdout": "ready\nterm\n" });
        assert_has(&answer, &expected);
    }
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn a_first_process_that_left_its_group_ends_too() {
    // It moves into the group of its child: TERM reaches it by number, KILL its child by descent.
    let mark = Mark::new();
    let command = [helper(), "leave-group".to_owned(), mark.to_string()];
    let (answer, elapsed) = timed(json!({ "command": command, "timeout": 0.3 }));
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "timed_out", "signal": 15, "killed_processes": 1 }));
    assert_took(elapsed, Duration::from_millis(300));
}

#[test]
fn every_end_that_runcap_decides_sweeps_what_left_the_group() {
    // Escaped processes at a timeout with `leave`, at an output limit, with rlimits and with
    // --die-with-parent, which start the command in another way.
    let mark = Mark::new();
    let escape = format!("(setsid env -i {mark} <&- >&- 2>&- &)");
    let request = |end: &str| json!({ "command": format!("{escape}; {end}"), "timeout": 0.3 });
    let with = |end: &str, key: &str, value: Value| {
        let mut request = request(end);
        request[key] = value;
        request
    };
    let stop = json!({ "max_output_size": 10, "overflow": "stop" });
    let wait = format!("exec {mark}");
    for (args, request, status) in [
        (&[][..], with(&wait, "leftovers", json!("leave")), "timed_out"),
        (&[], with("exec yes", "stdout_limit", stop), "output_limit"),
        (&[], with(&wait, "limits", json!({ "core": 0 })), "timed_out"),
        (&[], with("exit 3", "limits", json!({ "core": 0 })), "exited"),
        (&["--die-with-parent"], request(&wait), "timed_out"),
        (&["--die-with-parent"], request("exit 3"), "exited"),
    ] {
        let run = feed(args, request.to_string().as_bytes());
        mark.assert_gone();
        let expected = json!({ "status": status, "killed_processes": 1, "left_running": null });
        assert_has(&run.answers[0], &expected);
    }
}

#[test]
fn tk2_the_grace_ends_as_soon_as_the_group_is_dead() {
    // A grace of 20 s and a command that dies of TERM: the answer comes at the deadline.
    let mark = Mark::new();
    let (answer, elapsed) = timed(json!({
        "command": format!("{mark} & {mark}; :"), "timeout": 0.2, "grace": 20,
    }));
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "timed_out", "signal_name": "SIGTERM" }));
    assert_took(elapsed, Duration::from_millis(200));
}

#[test]
fn tk4_a_child_in_a_session_of_its_own_is_killed_at_the_timeout() {
    // setsid sleep & sleep 60: the child left the group and holds the pipes; both are gone.
    let mark = Mark::new();
    let command = format!("setsid {mark} & sleep 60");
    let (answer, elapsed) = timed(json!({ "command": command, "timeout": 1 }));
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "timed_out", "left_running": null }));
    assert!(answer["killed_processes"].as_u64() >= Some(1), "{answer}");
    assert_took(elapsed, SECOND);
}

#[test]
fn tk5_a_daemon_that_closed_its_descriptors_is_killed_or_left_as_asked() {
    // A double-forked daemon without descriptors, exit 0: kill is the default, leave says so.
    let mark = Mark::new();
    let command = format!("(setsid {mark} <&- >&- 2>&- &); exit 0");
    let (answer, elapsed) = timed(json!({ "command": command }));
    mark.assert_gone();
    let expected = json!({ "status": "exited", "exit_code": 0, "killed_processes": 1 });
    assert_has(&answer, &expected);
    assert_took(elapsed, Duration::ZERO);

    let (answer, elapsed) = timed(json!({ "command": command, "leftovers": "leave" }));
    let expected = json!({ "status": "exited", "exit_code": 0, "killed_processes": null, "left_running": true });
    assert_has(&answer, &expected);
    assert_took(elapsed, Duration::ZERO);
    let daemon = mark.sleeper();
    let daemon_stat = stat(daemon).expect("it lives");
    assert_eq!((daemon_stat.session, daemon_stat.group), (daemon, daemon), "it is a daemon");
}

#[test]
fn tk6_a_stopped_group_ends_at_the_timeout() {
    // kill -STOP 0; echo never: TERM is pending until CONT, and comes before `never`.
    let mark = Mark::new();
    let command = format!("kill -STOP 0; echo never; : {mark}");
    let (answer, elapsed) = timed(json!({ "command": command, "timeout": 1 }));
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "timed_out", "signal": 15, "stdout": "" }));
    assert_took(elapsed, SECOND);
}

#[test]
fn tk7_a_command_that_signals_its_own_group_does_not_reach_runcap() {
    // kill -TERM 0, and KILL: the command dies of it, and the next request is answered.
    let mut session = Session::start(&[]);
    for (name, number) in [("TERM", 15), ("KILL", 9)] {
        let answer = session.ask(&json!({ "command": format!("kill -{name} 0; sleep 5") }));
        let name = format!("SIG{name}");
        let expected = json!({ "status": "signaled", "signal": number, "signal_name": name });
        assert_has(&answer, &expected);
    }
    // The group is there before the first instruction: the program sees itself lead it.
    let answer = session.ask(&json!({ "command": ["cat", "/proc/self/stat"] }));
    let text = answer["stdout"].as_str().expect("text");
    let fields: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(fields[0], fields[4], "pid and group in {text}");
    assert_eq!(session.end().code(), Some(0));
}

/// A helper that starts itself anew and exits for `life`, with `mark` on its command line.
fn relay(kind: &str, life: Duration, mark: &Mark) -> Vec<String> {
    let deadline = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970") + life;
    vec![helper(), kind.to_owned(), deadline.as_millis().to_string(), mark.to_string()]
}

#[test]
fn tk8_a_chain_of_short_lived_processes_in_the_group_is_ended() {
    // Each process of the group starts the next and exits, the leader first: all are gone after
    // the drain, though no two looks find the same one; runcap does not spin.
    let mark = Mark::new();
    let mut session = Session::start(&[]);
    let start = Instant::now();
    let chain = relay("relay", Duration::from_secs(8), &mark);
    let answer = session.ask(&json!({ "command": chain, "timeout": 1 }));
    let elapsed = start.elapsed();
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "exited", "exit_code": 0, "left_running": null }));
    assert_took(elapsed, Duration::from_millis(250));
    let cpu_ticks = stat(session.child.id()).expect("it lives").cpu_ticks;
    assert!(cpu_ticks < 50, "{cpu_ticks} hundredths of a second of CPU time");
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn tk8_zombies_that_nobody_reaps_do_not_hold_up_the_end() {
    // Twenty zombies in the group, whose parent never waits: they take signals and do not count.
    let mark = Mark::new();
    let script = format!("i=0; while [ $i -lt 20 ]; do sleep 0 & i=$((i+1)); done; exec {mark}");
    let (answer, elapsed) = timed(json!({ "command": script, "timeout": 0.5, "grace": 5 }));
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "timed_out", "signal": 15, "killed_processes": null }));
    assert_took(elapsed, Duration::from_millis(500));
}

#[test]
fn tk8_a_chain_that_changes_its_group_all_the_time_cannot_hold_up_the_answer() {
    // Each process of the chain leads a group of its own: rounds and time are bounded, and what
    // is left is said to be.
    let mark = Mark::new();
    let chain = relay("relay-away", Duration::from_secs(3), &mark);
    let (answer, elapsed) = timed(json!({ "command": chain, "timeout": 1 }));
    assert_has(&answer, &json!({ "status": "exited", "exit_code": 0 }));
    if answer["left_running"].is_null() {
        mark.assert_gone();
    }
    assert_took(elapsed, Duration::from_millis(250));
}

#[test]
fn tk9_a_group_is_signalled_only_while_its_leader_is_unreaped() {
    // Every kind of end, traced: no signal goes to a leader or its group once wait4 has taken it,
    // and before that its end was seen without taking it (WNOWAIT).
    if !installed("strace") {
        return;
    }
    let mark = Mark::new();
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace");
    let trace_path = trace.to_str().expect("text");
    // Without -f: only the thread that signals and reaps, which is the first one.
    let calls = "trace=kill,tkill,tgkill,wait4,waitid,pidfd_send_signal";
    let strace = ["strace", "-qq", "-o", trace_path, "-e", calls];
    let command = through(&strace, &json_mode(&[]));
    let requests = [
        json!({ "command": "true" }),
        json!({ "command": format!("{mark} & {mark}; :"), "timeout": 0.3 }),
        json!({ "command": format!(r#"trap "" TERM; {mark}; :"#), "timeout": 0.3, "grace": 0.1 }),
        json!({ "command": format!("{mark} & exit 3") }),
        json!({ "command": format!("(setsid {mark} &); exit 3") }),
        json!({ "command": format!("yes {mark}"), "overflow": "stop", "max_output_size": 10 }),
    ];
    let input: String = requests.iter().map(|request| format!("{request}\n")).collect();
    let run = feed_command(command, input.as_bytes());
    assert_eq!((run.code(), run.answers.len()), (Some(0), requests.len()), "{run:?}");
    mark.assert_gone();

    let text = std::fs::read_to_string(trace).expect("a trace");
    // Number of a leader, and the line where it was reaped.
    let mut reaped: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let Some(arguments) = line.strip_prefix("wait4(") else { continue };
        let pid = arguments.split(',').next().expect("an argument");
        if line.ends_with(&format!("= {pid}")) {
            reaped.insert(pid, number);
        }
    }
    assert!(reaped.len() >= requests.len(), "{text}");
    let mut looked = 0;
    for (number, line) in text.lines().enumerate() {
        if let Some(arguments) = line.strip_prefix("kill(") {
            let target = arguments.split(',').next().expect("an argument").trim_start_matches('-');
            let gone = reaped.get(target).is_some_and(|reaped| *reaped < number);
            assert!(!gone, "signalled after it was reaped: {line}\n{text}");
        }
        if line.starts_with("waitid(P_PID") {
            assert!(line.contains("WNOWAIT"), "{line}");
            looked += 1;
        }
    }
    assert!(looked >= requests.len(), "{text}");
}

#[test]
fn tk10_odd_timeouts_are_refused_or_meant_and_never_a_panic() {
    // The row's inputs as JSON and on the command line.
    let refused = [
        "0",
        "-1",
        "1e300",
        "18446744073709551615",
        r#""""#,
        r#""5x""#,
        r#"" 5""#,
        r#""NaN""#,
        r#""inf""#,
        r#""0s""#,
        r#""-1s""#,
        r#""5""#,
        "true",
        "null",
        "86401",
        r#""9223372036854775807s""#,
    ];
    let mut input = String::new();
    for timeout in refused {
        input += &format!("{{\"command\":\"sleep 2; echo ok\",\"timeout\":{timeout}}}\n");
    }
    for number in ["NaN", "inf", "1e400"] {
        input += &format!("{{\"command\":\"sleep 2; echo ok\",\"timeout\":{number}}}\n");
    }
    input += "{\"command\":\"echo alive\"}\n";
    let run = feed(&[], input.as_bytes());
    assert_eq!(run.code(), Some(1), "{run:?}");
    assert_eq!(run.stderr, "");
    assert!(run.elapsed < 2 * SECOND, "nothing was run: {run:?}");
    for (timeout, answer) in refused.iter().zip(&run.answers) {
        assert_eq!(answer["status"], "bad_request", "{timeout}: {answer}");
        assert_eq!(answer["error"]["field"], "timeout", "{timeout}: {answer}");
    }
    let rest = &run.answers[refused.len()..];
    assert_eq!(rest.len(), 4, "{run:?}");
    rest[..3].iter().for_each(|answer| assert_eq!(answer["status"], "bad_request", "{answer}"));
    assert_has(&rest[3], &json!({ "status": "exited", "stdout": "alive\n" }));
}

#[test]
fn tk10_a_tiny_timeout_is_a_timeout_and_a_huge_one_is_none() {
    // 0.0000001 s ends at once; the longest that is allowed, and a grace as long, end nothing.
    let (answer, elapsed) = timed(json!({ "command": "sleep 2; echo ok", "timeout": 0.0000001 }));
    assert_has(&answer, &json!({ "status": "timed_out", "stdout": "" }));
    assert_took(elapsed, Duration::ZERO);
    for (maximum, timeout) in [("24h", json!(86400)), ("2562047h", json!("2562047h"))] {
        let request =
            json!({ "command": "sleep 0.1; echo ok", "timeout": timeout, "grace": timeout });
        let run = feed(&["--max-timeout", maximum], request.to_string().as_bytes());
        assert_has(&run.answers[0], &json!({ "status": "exited", "stdout": "ok\n" }));
    }
    for odd in ["0", "-1", "NaN", "inf", "1e400", "1e300", "18446744073709551615", "", "5x", " 5"] {
        let run = feed(&[&format!("--default-timeout={odd}")], br#"{"command":"echo ok"}"#);
        assert_eq!((run.code(), run.answers.len()), (Some(125), 0), "{odd}: {run:?}");
        assert!(run.stderr.contains("--default-timeout"), "{odd}: {run:?}");
        assert!(!run.stderr.contains("panicked"), "{odd}: {run:?}");
    }
}

#[test]
fn tk11_what_was_written_before_the_timeout_is_in_the_answer() {
    // echo progress; echo warn >&2; sleep 60: both lines, timed out.
    let (answer, elapsed) = timed(json!({
        "command": "echo progress; echo warn >&2; sleep 60", "timeout": 1,
    }));
    let expected = json!({ "status": "timed_out", "stdout": "progress\n", "stderr": "warn\n" });
    assert_has(&answer, &expected);
    assert_took(elapsed, SECOND);
}

/// A file system on which every write waits in the kernel until it is dropped.
struct Frozen {
    directory: tempfile::TempDir,
    mounted: bool,
    frozen: bool,
}

impl Frozen {
    /// `None`, counted as not run, where no loop device can be had.
    fn new() -> Option<Frozen> {
        for program in ["mkfs.ext4", "fsfreeze", "mount"] {
            if !installed(program) {
                return None;
            }
        }
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("image");
        let file = std::fs::File::create(&image).expect("a file");
        file.set_len(4 << 20).expect("room");
        assert!(run_quietly("mkfs.ext4", &["-q", path(&image)]), "a file system");
        let mut frozen = Frozen { directory, mounted: false, frozen: false };
        std::fs::create_dir(frozen.mount()).expect("a directory");
        frozen.mounted = run_quietly("mount", &["-o", "loop", path(&image), path(&frozen.mount())]);
        if !frozen.mounted {
            not_here("no loop device can be mounted");
            return None;
        }
        frozen.frozen = run_quietly("fsfreeze", &["-f", path(&frozen.mount())]);
        assert!(frozen.frozen, "a mounted ext4 can be frozen");
        Some(frozen)
    }

    fn mount(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    fn thaw(&mut self) {
        if std::mem::take(&mut self.frozen) {
            run_quietly("fsfreeze", &["-u", path(&self.mount())]);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
        if self.mounted {
            let mount = self.mount();
            wait_until("it can be unmounted", || run_quietly("umount", &[path(&mount)]));
        }
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("text")
}

fn run_quietly(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("the program starts").success()
}

#[test]
fn tk13_a_process_that_kill_does_not_end_is_given_up_and_reported() {
    // A write to a frozen file system, as the leader and as its child: answered by timeout +
    // grace + 750 ms, `could not be killed`, the session goes on, and nothing stays once it thaws.
    let Some(mut frozen) = Frozen::new() else { return };
    let file = frozen.mount().join("file");
    let file = path(&file);
    let mut sessions = Vec::new();
    for (command, leader_is_stuck) in
        [(format!("echo x >{file}"), true), (format!("(echo x >{file}) & wait"), false)]
    {
        let mut session = Session::start(&[]);
        let start = Instant::now();
        let answer = session.ask(&json!({ "command": command, "timeout": 0.5, "grace": 0.2 }));
        let elapsed = start.elapsed();
        let expected = json!({ "status": "timed_out", "exit_code": null, "left_running": true });
        assert_has(&answer, &expected);
        let reason = answer["reason"].as_str().expect("a reason");
        assert_eq!(reason.ends_with("; it could not be killed"), leader_is_stuck, "{answer}");
        assert_took(elapsed, Duration::from_millis(700) + KILL_WAIT);
        let next = session.ask(&json!({ "command": "echo usable" }));
        assert_has(
            &next,
            &json!({ "status": "exited", "stdout": "usable\n", "left_running": null }),
        );
        assert_eq!(children(session.child.id()).len(), 1, "it waits in the kernel");
        sessions.push(session);
    }
    frozen.thaw();
    let thawed = Instant::now();
    for session in sessions {
        wait_until("the dead are reaped", || children(session.child.id()).is_empty());
        assert!(thawed.elapsed() < SECOND / 2 + slack(), "{:?}", thawed.elapsed());
        assert_eq!(session.end().code(), Some(0));
    }
}

#[test]
fn tk14_a_process_that_may_not_be_signalled_is_reported() {
    // As uid 65534, a set-user-id program that becomes root for good: as the leader, and beside
    // a process that can be killed. KILL is refused (EPERM) for the one, and is no success of the
    // other's. Timeout + grace + 750 ms, `left_running`, no hang.
    if !rustix::process::geteuid().is_root() {
        return not_here("only root makes programs that become root");
    }
    if !installed("setpriv") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let at = path(directory.path());
    let copy = r#"chmod 755 "$1" && cp "$2" "$1/runcap" && cp "$(command -v setpriv)" "$1/become" \
                  && chmod 4755 "$1/become""#;
    assert!(run_quietly("/bin/sh", &["-c", copy, "sh", at, env!("CARGO_BIN_EXE_runcap")]));
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mark = Mark::new();
    let root = format!("{at}/become --reuid=0 --regid=0 --clear-groups {mark}");
    let tests = [
        ("alone", root.clone(), "; it could not be killed"),
        ("beside", format!("{mark} & {root} & wait"), "at its timeout of 500ms"),
    ];
    for (name, command, reason) in tests {
        let command: Value = match name {
            "alone" => command.split(' ').collect(),
            _ => command.into(),
        };
        let request = json!({ "command": command, "timeout": 0.5, "grace": 0.2 });
        let mut runcap = Command::new("setpriv");
        runcap.args(nobody).args([&format!("{at}/runcap"), "json"]).current_dir("/");
        let run = feed_command(runcap, request.to_string().as_bytes());
        let survivors = mark.sleepers();
        kill_all(&mark.living());
        assert_eq!((run.code(), run.stderr.as_str()), (Some(0), ""), "{name}: {run:?}");
        let answer = &run.answers[0];
        assert_has(answer, &json!({ "status": "timed_out", "left_running": true }));
        assert!(answer["reason"].as_str().expect("a reason").ends_with(reason), "{answer}");
        assert_eq!(survivors.len(), 1, "only the one of root's: {answer}");
        assert_took(run.elapsed, Duration::from_millis(700) + KILL_WAIT);
        wait_until("it is gone", || mark.living().is_empty());
    }
}

/// Makes the wall clock of a program jump by `STEP` seconds once its first second is over.
const CLOCK_STEP: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static time_t start;
    struct timespec steady;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &steady);
    if (!start) start = steady.tv_sec;
    long result = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME && steady.tv_sec - start >= 1) now->tv_sec += atol(getenv("STEP"));
    return result;
}
"#;

#[test]
fn tk15_a_step_of_the_wall_clock_moves_no_deadline() {
    // The clock steps by an hour, forwards and backwards, while a command runs: it ends at its
    // timeout of 3 s, which is also what the answer says; the next start time shows the step.
    if !installed("cc") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (source, library) = (directory.path().join("step.c"), directory.path().join("step.so"));
    std::fs::write(&source, CLOCK_STEP).expect("a file");
    let args = ["-shared", "-fPIC", "-o", path(&library), path(&source)];
    assert!(run_quietly("cc", &args), "a library");
    thread::scope(|scope| {
        for step in ["3600", "-3600"] {
            let library = &library;
            scope.spawn(move || {
                let requests = "{\"command\":\"sleep 10\",\"timeout\":3}\n{\"command\":\"true\"}";
                let mut command = json_mode(&[]);
                command.env("LD_PRELOAD", library).env("STEP", step);
                let run = feed_command(command, requests.as_bytes());
                let [first, second] = &run.answers[..] else { panic!("{run:?}") };
                let hour = |answer: &Value| answer["start_time"].to_string()[..14].to_owned();
                if hour(first) == hour(second) {
                    return not_here("a static program takes no library that moves its clock");
                }
                assert_has(first, &json!({ "status": "timed_out", "signal": 15 }));
                assert_has(second, &json!({ "status": "exited" }));
                assert_took(duration(first), 3 * SECOND);
                assert_took(run.elapsed, 3 * SECOND);
            });
        }
    });
}

#[test]
fn tk15_times_of_the_answer_agree_with_its_duration() {
    // The end is the start plus the monotonic duration, whatever the wall clock did.
    let (answer, elapsed) = timed(json!({ "command": "sleep 0.3" }));
    assert_took(duration(&answer), Duration::from_millis(300));
    assert!(duration(&answer) <= elapsed, "{answer}");
    let (start, end) = (seconds_of_day(&answer["start_time"]), seconds_of_day(&answer["end_time"]));
    let between = (end - start).rem_euclid(86_400.0);
    assert!((between - duration(&answer).as_secs_f64()).abs() < 1e-5, "{answer}");
}

fn seconds_of_day(time: &Value) -> f64 {
    let time = time.as_str().expect("text").split(['T', 'Z']).nth(1).expect("a time of day");
    time.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().expect("a number"))
}

#[test]
fn tk16_the_command_starts_with_an_empty_signal_mask() {
    // runcap was started with TERM and INT blocked, the command has nothing blocked.
    let blocked = ["env", "--block-signal=TERM", "--block-signal=INT"];
    let grep = br#"{"command":["grep","SigBlk","/proc/self/status"]}"#;
    let plain = Command::new("env")
        .args(&blocked[1..])
        .args(["grep", "SigBlk"])
        .arg("/proc/self/status")
        .output();
    let plain = String::from_utf8(plain.expect("env starts").stdout).expect("text");
    assert_eq!(plain, "SigBlk:\t0000000000004002\n", "without runcap");
    let run = feed_command(through(&blocked, &json_mode(&[])), grep);
    assert_eq!(run.answers[0]["stdout"], "SigBlk:\t0000000000000000\n", "{run:?}");
}

#[test]
fn tk17_a_command_that_reads_the_terminal_ends_by_its_timeout() {
    // read </dev/tty inside a terminal session: no stopped process stays past the deadline, and
    // the shell that started runcap still reads from its terminal, whose settings are as before.
    if !installed("script") {
        return;
    }
    let mark = Mark::new();
    let directory = tempfile::tempdir().expect("a directory");
    let request = directory.path().join("request");
    let command = format!(r#"read x </dev/tty; echo rc=$?; : {mark}"#);
    let json = json!({ "command": command, "timeout": 1 });
    std::fs::write(&request, json.to_string()).expect("a file");
    let runcap = env!("CARGO_BIN_EXE_runcap");
    let session = format!(
        r#"before=$(stty -g); {runcap} json <{}; [ "$before" = "$(stty -g)" ] && echo same; echo ready; read line; echo "got $line""#,
        path(&request)
    );
    let mut script = Command::new("script");
    script.args(["-qec", &session, "/dev/null"]).env("SHELL", "/bin/sh");
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let start = Instant::now();
    let mut script = script.spawn().expect("script starts");
    let mut stdin = script.stdin.take().expect("piped");
    let mut stdout = script.stdout.take().expect("piped");
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains("ready") {
        let count = stdout.read(&mut buffer).expect("it can be read");
        assert!(count > 0, "{text}");
        text += &String::from_utf8_lossy(&buffer[..count]);
    }
    let elapsed = start.elapsed();
    mark.assert_gone();
    stdin.write_all(b"typed\n").expect("a terminal takes a line");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("it can be read");
    drop(stdin);
    assert!(script.wait().expect("it ends").success(), "{text}{rest}");
    assert!(rest.contains("got typed"), "{text}{rest}");
    assert!(text.contains("same"), "{text}");
    let answer = text.lines().find(|line| line.starts_with('{')).expect("an answer");
    let answer: Value = serde_json::from_str(answer).expect("JSON");
    assert!(answer["status"] == "timed_out" || answer["stdout"] != "rc=0\n", "{answer}");
    assert!(elapsed < SECOND + slack(), "{elapsed:?}: {answer}");
}

#[test]
fn timed_out_is_decided_before_the_exit_is_known() {
    // 300 commands that end around their deadline: exited with 7, or timed out with no code, and
    // never a mix.
    let outcomes: Vec<bool> = thread::scope(|scope| {
        let sessions = (0..4).map(|lane| scope.spawn(move || ends_around_the_deadline(lane)));
        let sessions: Vec<_> = sessions.collect();
        sessions.into_iter().flat_map(|session| session.join().expect("it holds")).collect()
    });
    assert_eq!(outcomes.len(), 300);
    let timed_out = outcomes.iter().filter(|timed_out| **timed_out).count();
    assert!((1..300).contains(&timed_out), "both kinds were seen: {timed_out} of 300");
}

/// Runs 75 commands of 50 ms with timeouts around that; returns which timed out.
fn ends_around_the_deadline(lane: u64) -> Vec<bool> {
    let mut session = Session::start(&[]);
    let run = |step: u64| {
        // The last one is sure to end in time on any machine.
        let timeout_us = if step == 74 { 5_000_000 } else { 44_000 + (step * 4 + lane) * 40 };
        let answer = session.ask(&json!({
            "command": "sleep 0.05; exit 7", "timeout": timeout_us as f64 / 1e6,
        }));
        let timed_out = answer["status"] == "timed_out";
        if timed_out {
            assert_has(&answer, &json!({ "exit_code": null }));
            assert!(answer["reason"].is_string(), "{answer}");
        } else {
            let expected =
                json!({ "status": "exited", "exit_code": 7, "signal": null, "reason": null });
            assert_has(&answer, &expected);
        }
        timed_out
    };
    (0..75).map(run).collect()
}

#[test]
fn timed_out_has_no_exit_code_though_the_command_exits_by_itself_at_term() {
    // trap 'exit 7' TERM: it was ended at its deadline, so it did not exit.
    let command = "trap 'exit 7' TERM; while :; do sleep 0.01; done";
    let (answer, _) = timed(json!({ "command": command, "timeout": 0.2 }));
    assert_has(&answer, &json!({ "status": "timed_out", "exit_code": null, "signal": null }));
}

#[test]
fn killed_processes_counts_everything_but_the_leader() {
    // Known trees: exact numbers, at the deadline with and without a grace.
    let trees = [
        ("one child", "MARK; :", 1),
        ("a group of four", "MARK & MARK & MARK & MARK; :", 4),
        ("three generations", "sh -c 'sh -c \"MARK; :\"; :'; :", 3),
        ("one in a session of its own", "setsid MARK & MARK; :", 2),
        ("two double forks", "(setsid MARK &); (setsid MARK &); MARK; :", 3),
        ("no environment", "(setsid env -i MARK &); MARK; :", 2),
        ("stopped", "MARK & kill -STOP $!; MARK; :", 2),
        ("the leader only", "exec MARK", 0),
    ];
    let run = |(name, script, expected): (&str, &str, u64)| {
        let mark = Mark::new();
        let script = script.replace("MARK", &mark.to_string());
        let mut session = Session::start(&[]);
        for grace in [0.0, 0.5] {
            let request = json!({ "command": script, "timeout": 0.5, "grace": grace });
            let answer = session.ask(&request);
            mark.assert_gone();
            let expected = if expected == 0 { Value::Null } else { json!(expected) };
            assert_eq!(answer["killed_processes"], expected, "{name}, grace {grace}: {answer}");
            assert_eq!(answer["status"], "timed_out", "{name}: {answer}");
        }
        assert_eq!(session.end().code(), Some(0));
    };
    thread::scope(|scope| {
        for tree in trees {
            scope.spawn(move || run(tree));
        }
    });
}

#[test]
fn killed_processes_counts_what_outlived_the_leader() {
    // The same for what was left by a command that ended by itself.
    let mark = Mark::new();
    let mut session = Session::start(&[]);
    let left = [
        ("in the group", format!("{mark} & exit 0"), 1),
        ("in a session of its own", format!("setsid {mark} & exit 0"), 1),
        ("five", format!("for i in 1 2 3 4 5; do {mark} & done; exit 0"), 5),
    ];
    for (name, command, expected) in left {
        let answer = session.ask(&json!({ "command": command }));
        mark.assert_gone();
        let expected = json!({ "status": "exited", "killed_processes": expected });
        assert_has(&answer, &expected);
        assert_eq!(answer["left_running"], Value::Null, "{name}: {answer}");
    }
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn rx1_three_hundred_children_are_gone_at_the_timeout() {
    // for i in $(seq 300): sleep &; wait: all 300 killed and counted.
    let mark = Mark::new();
    let command = format!("for i in $(seq 300); do {mark} & done; wait");
    let (answer, elapsed) = timed(json!({ "command": command, "timeout": 2 }));
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "timed_out", "killed_processes": 300 }));
    assert_took(elapsed, 2 * SECOND);
}

/// `command` as a user that nothing else runs as, with at most so many processes.
fn as_spare_user(uid: u32, processes: u32, command: &Command) -> Command {
    let (user, group) = (format!("--reuid={uid}"), format!("--regid={uid}"));
    let limit = format!("--nproc={processes}");
    through(&["setpriv", &user, &group, "--clear-groups", "prlimit", &limit], command)
}

/// A copy of runcap that any user can execute.
fn public_runcap() -> (tempfile::TempDir, Command) {
    let directory = tempfile::tempdir().expect("a directory");
    let copy = r#"chmod 755 "$1" && cp "$2" "$1/runcap""#;
    let at = path(directory.path()).to_owned();
    assert!(run_quietly("/bin/sh", &["-c", copy, "sh", &at, env!("CARGO_BIN_EXE_runcap")]));
    let mut command = Command::new(format!("{at}/runcap"));
    command.arg("json");
    (directory, command)
}

#[test]
fn rx1_no_process_to_be_had_is_a_clean_error() {
    // A limit of one process: threads count too, so nothing can be started, and the answer says
    // why; the session goes on to say so.
    if !rustix::process::geteuid().is_root() {
        return not_here("only root becomes another user");
    }
    if !installed("setpriv") || !installed("prlimit") {
        return;
    }
    let (_directory, runcap) = public_runcap();
    let mut command = as_spare_user(65531, 1, &runcap);
    command.current_dir("/");
    let run = feed_command(command, b"{\"command\":\"true\"}\n{\"command\":\"true\"}");
    assert_eq!((run.code(), run.answers.len()), (Some(0), 2), "{run:?}");
    for answer in &run.answers {
        assert_has(answer, &json!({ "status": "failed_to_start", "exit_code": null }));
        assert_eq!(answer["error"]["code"], "spawn_failed", "{answer}");
        let message = answer["error"]["message"].as_str().expect("text");
        assert!(message.contains("Resource temporarily unavailable"), "{answer}");
    }
    assert_eq!(run.stderr, "");
}

#[test]
fn rx1_a_fork_bomb_within_a_process_limit_is_gone_at_the_timeout() {
    // f() { f | f & }; f as a user that may have 200 processes: all are gone, and what comes next
    // is answered.
    if !rustix::process::geteuid().is_root() {
        return not_here("only root becomes another user");
    }
    if !installed("setpriv") || !installed("prlimit") {
        return;
    }
    let uid = 65530;
    let (_directory, runcap) = public_runcap();
    let mut command = as_spare_user(uid, 200, &runcap);
    command.current_dir("/");
    let mut session = Session::of(command);
    let start = Instant::now();
    let answer = session.ask(&json!({
        "command": "f() { f | f & }; f; sleep 30", "timeout": 1, "max_output_size": 100,
    }));
    let elapsed = start.elapsed();
    let own = session.child.id();
    let left: Vec<u32> = processes_of(uid).into_iter().filter(|pid| *pid != own).collect();
    kill_all(&left);
    assert_eq!(left, [0; 0], "{answer}");
    assert!(matches!(answer["status"].as_str(), Some("timed_out" | "exited")), "{answer}");
    assert!(elapsed < SECOND + GRACE + KILL_WAIT + slack(), "{elapsed:?}");
    let answer = session.ask(&json!({ "command": "echo usable" }));
    assert_has(&answer, &json!({ "status": "exited", "stdout": "usable\n" }));
    assert_eq!(session.end().code(), Some(0));
}

/// Live processes of a user.
fn processes_of(uid: u32) -> Vec<u32> {
    let is_theirs = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains(&format!("\nUid:\t{uid}\t"))
    };
    all_processes().into_iter().filter(|pid| is_theirs(pid) && is_alive(*pid)).collect()
}

#[test]
fn rx2_out_of_descriptors_is_an_error_that_says_so() {
    // RLIMIT_NOFILE from 5 to 20, three requests: each is run or names the reason, all three
    // alike (nothing leaks), and there is no panic.
    if !installed("prlimit") {
        return;
    }
    let mut ran = 0;
    for limit in 5..=20 {
        let nofile = format!("--nofile={limit}:{limit}");
        let hi = "{\"command\":\"echo hi\"}\n";
        let run =
            feed_command(through(&["prlimit", &nofile], &json_mode(&[])), hi.repeat(3).as_bytes());
        assert!(!run.stderr.contains("panicked"), "{limit}: {run:?}");
        if run.code() == Some(125) {
            assert!(run.stderr.contains("Too many open files"), "{limit}: {run:?}");
            continue;
        }
        assert_eq!((run.code(), run.answers.len()), (Some(0), 3), "{limit}: {run:?}");
        for answer in &run.answers {
            assert_eq!(answer["status"], run.answers[0]["status"], "{limit}: {run:?}");
            if answer["status"] == "exited" {
                assert_has(answer, &json!({ "stdout": "hi\n", "exit_code": 0 }));
            } else {
                let message = answer["error"]["message"].as_str().expect("an error");
                assert!(message.contains("Too many open files"), "{limit}: {answer}");
            }
        }
        ran += usize::from(run.answers[0]["status"] == "exited");
    }
    assert!(ran > 0, "twenty are enough");
}
