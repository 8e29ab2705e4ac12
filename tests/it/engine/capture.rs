//! Bounds of what is kept, below and beside the flags of a request.

use std::fs::File;
use std::io::{self, Read, Write, pipe};
use std::time::Duration;

use runcap::capture::Capture;
use runcap::outcome::End;
use runcap::run::{self, Control, Sinks};
use runcap::spec::{Keep, Limit, Overflow, Spec, Stdin};

use crate::support::*;

/// `io::copy` from a file and from a pipe, every policy: kept ≤ cap, received exact. A copy loop
/// that finds a way past `write` gets past the cap.
#[test]
fn io_copy_from_a_file_and_from_a_pipe_cannot_get_past_the_cap() {
    let stream: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stream");
    std::fs::write(&path, &stream).unwrap();
    for keep in [Keep::Head, Keep::Tail, Keep::HeadTail] {
        for cap in [0, 1, 1000, 65536, stream.len() - 1, stream.len()] {
            let from_file = copied(&mut File::open(&path).unwrap(), cap, keep);
            let (mut reader, mut writer) = pipe().unwrap();
            let from_pipe = std::thread::scope(|scope| {
                scope.spawn(|| {
                    writer.write_all(&stream).unwrap();
                    drop(writer);
                });
                copied(&mut reader, cap, keep)
            });
            for capture in [from_file, from_pipe] {
                let (older, newer) = capture.tail();
                let tail = [older, newer].concat();
                assert_eq!(capture.received(), stream.len() as u64, "{keep:?} {cap}");
                assert_eq!((capture.kept(), capture.head().len() + tail.len()), (cap, cap));
                assert!(stream.starts_with(capture.head()) && stream.ends_with(&tail));
            }
        }
    }
}

fn copied(source: &mut impl Read, cap: usize, keep: Keep) -> Capture {
    let mut capture = Capture::new(cap, keep).unwrap();
    let count = io::copy(source, &mut capture).unwrap();
    assert_eq!(count, capture.received());
    capture
}

/// `script` within these bounds, for a test to change.
fn spec(script: &str) -> Spec {
    let limit = Limit { cap: 1000, keep: Keep::Head, overflow: Overflow::Discard };
    let argv = ["/bin/sh", "-c", script].map(Into::into).to_vec();
    Spec::new(argv, Some(Duration::from_secs(10)), limit)
}

/// Runs `spec` as a library does.
fn outcome(spec: &Spec, cap: usize) -> (runcap::outcome::Outcome, Capture) {
    let mut stdout = Capture::new(cap, spec.stdout.keep).unwrap();
    let mut stderr = Capture::new(cap, spec.stderr.keep).unwrap();
    let sinks = Sinks { stdout: &mut stdout, stderr: &mut stderr };
    let control = Control::none();
    let outcome = run::run(spec, sinks, control).expect("the command starts");
    (outcome, stdout)
}

/// 256 MiB of stdin for a command that never reads, timeout 0.3 s.
#[test]
fn input_that_is_never_read_does_not_delay_the_deadline() {
    let timeout = Some(Duration::from_millis(300));
    let stdin = Stdin::Bytes(vec![0; 256 << 20]);
    let (outcome, _) = outcome(&Spec { stdin, timeout, ..spec("exec sleep 100") }, 0);
    assert_eq!(outcome.end, End::TimedOut);
    assert!(outcome.duration < Duration::from_millis(1500), "{outcome:?}");
    // As much as a request may hold.
    let request =
        json!({"command": ["sleep", "100"], "timeout": 0.3, "stdin": "x".repeat(30 << 20)});
    let answer = answer(request);
    assert_eq!(answer["status"], "timed_out");
    assert!(duration(&answer) < Duration::from_millis(1500), "{answer}");
}

/// A sink of cap 0, as only a library can ask for: nothing kept, everything counted.
#[test]
fn a_cap_of_zero_keeps_nothing_and_counts() {
    for keep in [Keep::Head, Keep::Tail, Keep::HeadTail] {
        let limit = Limit { cap: 0, keep, overflow: Overflow::Discard };
        let (outcome, stdout) = outcome(&Spec { stdout: limit, ..spec("seq 1 100000") }, 0);
        assert_eq!((outcome.end, outcome.stdout_incomplete), (End::Finished, false));
        assert_eq!((stdout.received(), stdout.kept()), (588895, 0));
    }
}

/// An endless writer that ignores TERM, `overflow: stop`: dead at the first byte past the cap.
#[test]
fn overflow_stop_kills_at_the_first_byte_past_the_cap() {
    for (redirect, stream) in [("", "stdout"), (">&2", "stderr")] {
        let script = format!("trap '' TERM; yes {redirect}");
        let answer = answer(json!({"command": script, "overflow": "stop", "grace": 30,
            "max_output_size": 1000, "timeout": 60}));
        assert_has(
            &answer,
            &json!({"status": "output_limit", "exit_code": null, "signal_name": "SIGKILL",
                stream: "y\n".repeat(500), format!("{stream}_bytes"): 1001,
                format!("{stream}_dropped_bytes"): 1, format!("{stream}_truncated"): true,
                format!("{stream}_gap_at"): 1000, format!("{stream}_incomplete"): true}),
        );
        let reason = answer["reason"].as_str().unwrap();
        assert!(reason.contains(stream) && reason.contains("1000"), "{reason}");
        assert!(duration(&answer) < Duration::from_secs(5), "without grace: {answer}");
    }
}

/// A hundred times `yes`: it dies of KILL, not of a broken pipe that it could have acted on.
#[test]
fn overflow_stop_leaves_no_broken_pipe_to_act_on() {
    let mut session = Session::start(&[]);
    for _ in 0..100 {
        let request = json!({"command": ["yes"], "overflow": "stop", "max_output_size": 1000});
        assert_has(&session.ask(&request), &json!({"signal_name": "SIGKILL", "stderr": ""}));
    }
    session.end();
}

/// Exactly the cap under `overflow: stop` is no overflow.
#[test]
fn overflow_stop_lets_exactly_the_cap_through() {
    let command = "head -c 1000 /dev/zero; exit 3";
    let request = json!({"command": command, "overflow": "stop", "max_output_size": 1000});
    let expected = json!({"status": "exited", "exit_code": 3, "stdout_bytes": 1000,
        "stdout_truncated": null, "stdout_incomplete": null});
    assert_has(&answer(request), &expected);
}

/// `overflow: stop` with a cap of 999 bytes over numbered lines of 8: runcap asked for exactly
/// 1000, so the pipe, which this test opened too, goes on with line 126.
#[test]
fn overflow_stop_asks_for_no_more_than_one_byte_past_the_cap() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo $$ >pid.new; mv pid.new pid; until [ -e go ]; do sleep 0.01; done; \
                  exec seq -w 1 9999999";
    for capture in [true, false] {
        let mut session = Session::start(&[]);
        session.send(&json!({"command": script, "cwd": directory.path(), "overflow": "stop",
            "max_output_size": 999, "capture": capture}));
        let pid = directory.path().join("pid");
        wait_until("the command has started", || pid.exists());
        let leader = std::fs::read_to_string(&pid).unwrap();
        let mut rest = File::open(format!("/proc/{}/fd/1", leader.trim())).unwrap();
        let go = directory.path().join("go");
        std::fs::write(&go, "").unwrap();
        let answer = session.line().unwrap();
        assert_has(&answer, &json!({"status": "output_limit", "stdout_bytes": 1000}));
        let mut line = [0; 8];
        rest.read_exact(&mut line).unwrap();
        assert_eq!(str::from_utf8(&line), Ok("0000126\n"), "capture: {capture}");
        session.end();
        std::fs::remove_file(pid).unwrap();
        std::fs::remove_file(go).unwrap();
    }
}

/// `capture: false`: no text, every count, and no memory for it.
#[test]
fn capture_false_counts_and_keeps_nothing() {
    for encoding in ["utf-8", "base64"] {
        let suffix = if encoding == "base64" { "_base64" } else { "" };
        let script = "head -c 3000000 /dev/zero; printf error >&2; exit 2";
        let answer = answer(json!({"command": script, "capture": false, "encoding": encoding}));
        assert_has(
            &answer,
            &json!({"exit_code": 2, format!("stdout{suffix}"): "", format!("stderr{suffix}"): "",
                "stdout_bytes": 3000000, "stderr_bytes": 5, "stdout_truncated": true,
                "stdout_dropped_bytes": 3000000, "stdout_incomplete": null}),
        );
    }
    let silent = answer(json!({"command": "true", "capture": false}));
    assert_has(&silent, &json!({"stdout_bytes": 0, "stdout_truncated": null}));
}

/// A hundred lines to each stream in turn: one text, in the order of the writes.
#[test]
fn merge_stderr_keeps_the_true_order() {
    let script = "for i in $(seq 100); do echo out $i; echo err $i >&2; done";
    let expected: String = (1..=100).map(|i| format!("out {i}\nerr {i}\n")).collect();
    let answer = answer(json!({"command": script, "merge_stderr": true}));
    assert_has(
        &answer,
        &json!({"stdout": expected, "stdout_bytes": expected.len(), "stderr": "",
            "stderr_bytes": 0, "stderr_incomplete": null, "stderr_truncated": null}),
    );
}

/// 32 MiB of memory for runcap's control group: caps are lowered to a quarter, and 300 MB of
/// output are answered.
#[test]
fn caps_are_lowered_under_a_memory_limit_and_the_limit_is_survived() {
    let Some(group) = MemoryGroup::new("runcap-test", 32 << 20) else { return };
    let mut session = Session::of(group.wrap(&json_mode(&[])));
    let small = session.ask(&json!({"command": "echo hi", "max_output_size": 8 << 20}));
    assert_has(&small, &json!({"stdout": "hi\n", "cap_lowered_to": null}));
    for keep in ["head", "tail", "head+tail"] {
        let flood = "head -c 300000000 /dev/zero";
        let answer = session.ask(&json!({"command": flood, "keep": keep, "encoding": "base64",
            "max_output_size": "256M"}));
        assert_has(
            &answer,
            &json!({"exit_code": 0, "cap_lowered_to": 8 << 20, "stdout_bytes": 300_000_000,
                "stdout_dropped_bytes": 300_000_000 - (8 << 20)}),
        );
        let kept = answer["stdout_base64"].as_str().unwrap().trim_end_matches('=');
        assert_eq!(kept.len() / 4 * 3 + kept.len() % 4 - 1, 8 << 20, "{keep}");
    }
    assert!(session.end().success());
}
