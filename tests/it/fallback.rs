//! What holds without the newer kernel interfaces, each taken away alone and all together, and
//! what `runcap doctor` says of them.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

/// `runcap ARGS` that does without these interfaces.
fn runcap_without(list: &str, args: &[&str]) -> Command {
    let mut command = Command::new(helper());
    command.args(["runcap-without", list]).args(args);
    command
}

/// Everything that must hold with every fallback.
fn core(command: impl Fn() -> Command + Sync) {
    let command = &command;
    thread::scope(|scope| {
        scope.spawn(|| timeout_kills_the_group(command));
        scope.spawn(|| an_escaped_process_is_swept(command));
        scope.spawn(|| output_past_the_cap_is_drained(command));
        scope.spawn(|| a_hundred_commands_leave_nothing(command));
        scope.spawn(|| descriptors_are_kept_from_commands(command));
        scope.spawn(|| another_runcap_is_left_alone(command));
    });
}

fn timeout_kills_the_group(command: &(impl Fn() -> Command + Sync)) {
    // The group at the deadline, dying of TERM and of KILL, and what left it: all gone in time.
    let group = "MARK & MARK & MARK; :";
    let deaf = "trap '' TERM; MARK & MARK; :";
    let escaped = "(setsid MARK <&- >&- 2>&- &); setsid env -i MARK & MARK; :";
    let rows =
        [(group, 5.0, 3, 400), (deaf, 0.2, 2, 600), (escaped, 0.0, 3, 400), (escaped, 5.0, 3, 400)];
    thread::scope(|scope| {
        for (script, grace, killed, took) in rows {
            scope.spawn(move || {
                let mark = Mark::new();
                let script = script.replace("MARK", &mark.to_string());
                let mut session = Session::of(command());
                let start = Instant::now();
                let request = json!({ "command": script, "timeout": 0.4, "grace": grace });
                let answer = session.ask(&request);
                assert_eq!(mark.living(), [0; 0], "{answer}");
                let expected = json!({
                    "status": "timed_out", "exit_code": null, "killed_processes": killed,
                    "left_running": null,
                });
                assert_has(&answer, &expected);
                assert_took(start.elapsed(), Duration::from_millis(took));
                assert_eq!(children(session.child.id()), [0; 0], "all are reaped");
                assert_eq!(session.end().code(), Some(0));
            });
        }
    });
}

fn an_escaped_process_is_swept(command: &impl Fn() -> Command) {
    // setsid, double fork, no environment, no descriptors; the leader exits with 3.
    let mark = Mark::new();
    let mut session = Session::of(command());
    let script = format!("(setsid env -i {mark} <&- >&- 2>&- &); exit 3");
    for _ in 0..5 {
        let answer = session.ask(&json!({ "command": script }));
        mark.assert_gone();
        let expected = json!({ "status": "exited", "exit_code": 3, "killed_processes": 1 });
        assert_has(&answer, &expected);
    }
    let answer = session.ask(&json!({ "command": script, "leftovers": "leave" }));
    assert_has(&answer, &json!({ "exit_code": 3, "killed_processes": null, "left_running": true }));
    let left = mark.sleeper();
    let answer = session.ask(&json!({ "command": "exit 4" }));
    assert_has(&answer, &json!({ "exit_code": 4, "left_running": null, "killed_processes": null }));
    assert!(is_alive(left), "what was left is no later command's");
    assert_eq!(session.end().code(), Some(0));
}

fn another_runcap_is_left_alone(command: &impl Fn() -> Command) {
    // Two runcaps, whose first commands carry the same mark: one sweeps, the other's command, its
    // orphan and the other itself live on.
    let (mark, other) = (Mark::new(), Mark::new());
    let (mut first, mut second) = (Session::of(command()), Session::of(command()));
    second.send(&json!({ "command": format!("(setsid {other} &); {other}; exit 6") }));
    wait_until("both run", || other.sleepers().len() == 2);
    let script = format!("(setsid env -i {mark} <&- >&- 2>&- &); exec {mark}");
    let answer = first.ask(&json!({ "command": script, "timeout": 0.3, "grace": 0 }));
    assert_has(&answer, &json!({ "status": "timed_out", "killed_processes": 1 }));
    assert_eq!(other.sleepers().len(), 2, "they are another's");
    send(second.child.id(), Signal::TERM);
    let answer = second.line().expect("an answer");
    assert_eq!(answer["status"], "canceled", "{answer}");
    other.assert_gone();
    assert_eq!(first.end().code(), Some(0));
}

fn output_past_the_cap_is_drained(command: &impl Fn() -> Command) {
    // 3 MB a stream with a cap of 1,000: the command notices nothing, every byte is counted.
    let mut session = Session::of(command());
    let flood = "head -c 3000000 /dev/zero | tr '\\0' x";
    let answer = session.ask(&json!({
        "command": format!("{flood} >&2; {flood}; exit 5"), "max_output_size": 1000, "keep": "head",
    }));
    let expected = json!({
        "status": "exited", "exit_code": 5, "stdout_bytes": 3_000_000, "stderr_bytes": 3_000_000,
        "stdout_dropped_bytes": 2_999_000, "stdout": "x".repeat(1000), "stderr": "x".repeat(1000),
        "stdout_incomplete": null,
    });
    assert_has(&answer, &expected);
    assert_eq!(session.end().code(), Some(0));
}

fn a_hundred_commands_leave_nothing(command: &impl Fn() -> Command) {
    // Descriptors, threads and children of runcap are as before; every status is right.
    let mut session = Session::of(command());
    let runcap = session.child.id();
    let mut run = |times: u32| {
        for number in 0..times {
            let (script, code) = match number % 4 {
                0 => ("(sleep 0.005 &); (sleep 0.005 &); exit 9".to_owned(), 9),
                _ => (format!("exit {number}"), number),
            };
            let answer = session.ask(&json!({ "command": script }));
            assert_has(&answer, &json!({ "status": "exited", "exit_code": code }));
        }
        // Where ends are noticed by looking, an orphan may take a moment to be reaped.
        wait_until("all are reaped", || children(runcap).is_empty());
        (descriptors(runcap), threads(runcap))
    };
    let before = run(8);
    assert_eq!(run(100), before);
    assert_eq!(session.end().code(), Some(0));
}

fn descriptors_are_kept_from_commands(command: &impl Fn() -> Command) {
    // runcap has 7 and 9 open, its command does not.
    let command = after("exec 7</dev/null 9>/dev/null", &command());
    let run = feed_command(command, br#"{"command":["ls","/proc/self/fd"]}"#);
    assert_eq!(run.answers[0]["stdout"], "0\n1\n2\n3\n", "{run:?}");
}

#[test]
fn without_pidfd_the_promises_hold() {
    core(|| runcap_without("pidfd", &["json"]));
}

#[test]
fn without_close_range_the_promises_hold() {
    core(|| runcap_without("close_range", &["json"]));
}

#[test]
fn without_splice_the_promises_hold() {
    core(|| runcap_without("splice", &["json"]));
}

#[test]
fn without_children_lists_the_promises_hold() {
    core(|| runcap_without("children", &["json"]));
}

#[test]
fn without_the_mark_the_promises_hold() {
    core(|| runcap_without("mark", &["json"]));
}

const ALL: &str = "pidfd,close_range,splice,children,openat2,mark";

#[test]
fn without_any_of_them_the_promises_hold() {
    core(|| runcap_without(ALL, &["json"]));
}

#[test]
fn under_a_finite_limit_on_realtime_computing_the_promises_hold() {
    // The mark cannot be set there.
    if installed("prlimit") {
        core(|| through(&["prlimit", "--rttime=1000000:1000000"], &json_mode(&[])));
    }
}

#[test]
fn with_everything_the_promises_hold() {
    core(|| json_mode(&[]));
}

/// The names and what follows them, of all six lines.
fn doctor(mut command: Command) -> Vec<(String, String)> {
    let output = command.output().expect("the program starts");
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<_> = text
        .lines()
        .map(|line| {
            let (name, rest) = line.split_at(16);
            (name.trim_end().to_owned(), rest.trim_start().to_owned())
        })
        .collect();
    let names: Vec<_> = lines.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "pidfd",
            "close_range",
            "splice",
            "children lists",
            "subreaper",
            "openat2",
            "inherited mark"
        ],
        "{text}"
    );
    lines
}

/// The names that are not in use.
fn missing(lines: &[(String, String)]) -> Vec<&str> {
    let missing = lines.iter().filter(|(_, rest)| rest != "in use");
    let missing = missing.inspect(|(name, rest)| assert!(rest.starts_with("not here: "), "{name}"));
    missing.map(|(name, _)| name.as_str()).collect()
}

#[test]
fn doctor_says_what_is_in_use_and_what_is_weaker_without() {
    // Here all seven; without each interface, that one; under a finite limit and in a nested runcap
    // the mark, with the reason.
    let mut plain = runcap();
    plain.arg("doctor");
    assert_eq!(missing(&doctor(plain)), [""; 0]);
    for (list, expected) in [
        ("pidfd", &["pidfd"][..]),
        ("close_range", &["close_range"]),
        ("splice", &["splice"]),
        ("children", &["children lists"]),
        ("openat2", &["openat2"]),
        ("mark", &["inherited mark"]),
        (ALL, &["pidfd", "close_range", "splice", "children lists", "openat2", "inherited mark"]),
    ] {
        assert_eq!(missing(&doctor(runcap_without(list, &["doctor"]))), expected, "{list}");
    }
    let answer = answer(json!({ "command": [env!("CARGO_BIN_EXE_runcap"), "doctor"] }));
    let text = answer["stdout"].as_str().expect("text");
    assert!(text.contains("inherited mark   not here: this runcap runs under another"), "{text}");
    assert_eq!(text.lines().count(), 7, "{text}");
}

#[test]
fn doctor_says_that_a_finite_limit_is_in_the_way_of_the_mark() {
    // prlimit --rttime=1000000:1000000 runcap doctor.
    if !installed("prlimit") {
        return;
    }
    let mut plain = runcap();
    plain.arg("doctor");
    let lines = doctor(through(&["prlimit", "--rttime=1000000:1000000"], &plain));
    assert_eq!(missing(&lines), ["inherited mark"]);
    assert!(lines[6].1.contains("a finite RLIMIT_RTTIME is in the way"), "{lines:?}");
}

#[test]
fn doctor_ends_quietly_when_nobody_reads_it() {
    // stdout is a pipe whose reader is gone: exit 0 and not a word.
    let mut command = runcap();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = command.arg("doctor").stdout(writer).output().expect("the program starts");
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
}
