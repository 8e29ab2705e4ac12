//! What is kept of a command's output, and that no amount of it hurts anybody.

use std::fs;
use std::io::{Read, Write, pipe};
use std::process::Stdio;
use std::time::Duration;

use crate::support::*;

const KEEPS: [&str; 3] = ["head", "tail", "head+tail"];

/// An endless writer for a second, cap 64 KiB: runcap's memory stays where it was.
#[test]
fn oc1_yes_does_not_grow_the_runner() {
    for keep in KEEPS {
        let mut session = Session::start(&[]);
        session.ask(&json!({"command": "true"}));
        let before = session.peak_rss_bytes();
        let yes = json!({"command": "yes", "timeout": 1, "max_output_size": 65536, "keep": keep,
            "encoding": "base64"});
        let answer = session.ask(&yes);
        assert_has(&answer, &json!({"status": "timed_out", "stdout_truncated": true}));
        assert_eq!(base64(&answer, "stdout_base64").len(), 65536, "{keep}");
        let received = number(&answer, "stdout_bytes");
        assert!(received > 10 << 20, "drained, {keep}: {received}");
        assert_eq!(number(&answer, "stdout_dropped_bytes"), received - 65536);
        // The kernel adds its counters up per CPU: the peak it tells may even have shrunk a little.
        let grown = session.peak_rss_bytes().saturating_sub(before);
        assert!(grown < 1 << 20, "{keep}: grew by {grown} bytes");
        assert!(session.end().success());
    }
}

/// A megabyte past a cap of 1000 bytes: the command notices nothing.
#[test]
fn oc2_past_the_cap_the_command_is_drained_and_ends_by_itself() {
    let script = "head -c 1000000 /dev/zero; echo DONE >&2; exit 7";
    for keep in KEEPS {
        let limit = json!({"max_output_size": 1000, "keep": keep});
        let answer = answer(json!({"command": script, "stdout_limit": limit, "timeout": 10}));
        assert_has(
            &answer,
            &json!({"status": "exited", "exit_code": 7, "stderr": "DONE\n", "stdout_bytes": 1000000,
                "stdout_dropped_bytes": 999000, "stdout_incomplete": null}),
        );
        assert!(duration(&answer) < Duration::from_secs(5), "{answer}");
    }
}

/// 300000 times X on one line, tail of 1024 bytes; and one byte without a newline.
#[test]
fn oc4_bytes_are_kept_and_not_lines() {
    let long_line = "head -c 300000 /dev/zero | tr '\\000' X; echo";
    let tail = json!({"command": long_line, "keep": "tail", "max_output_size": 1024});
    assert_has(
        &answer(tail),
        &json!({"stdout": "X".repeat(1023) + "\n", "stdout_bytes": 300001,
            "stdout_dropped_bytes": 298977, "stdout_gap_at": 0}),
    );
    let no_newline = answer(json!({"command": "printf x"}));
    assert_has(&no_newline, &json!({"stdout": "x", "stdout_bytes": 1, "stdout_truncated": null}));
}

/// 5910 bytes whose last line matters, head+tail of 2048: four fifths, the gap, one fifth.
#[test]
fn oc5_head_and_tail_keep_the_fatal_line_and_say_what_is_missing() {
    let numbers: String = (1..=1400).map(|number| format!("{number}\n")).collect();
    let whole = numbers + "FATAL: the cause\n";
    let marker = "\n[runcap: 3862 bytes dropped]\n";
    let kept = format!("{}{marker}{}", &whole[..1639], &whole[5910 - 409..]);
    let answer = answer(json!({"command": "seq 1 1400; echo FATAL: the cause; exit 2",
        "keep": "head+tail", "max_output_size": 2048}));
    assert_has(
        &answer,
        &json!({"exit_code": 2, "stdout": kept, "stdout_bytes": 5910, "stdout_truncated": true,
            "stdout_dropped_bytes": 3862, "stdout_gap_at": 1639}),
    );
}

/// Caps 1, 2, 3, 100 and streams around them, every policy, both streams, against the reference.
#[test]
fn oc6_kept_and_dropped_add_up_at_every_boundary() {
    let directory = tempfile::tempdir().unwrap();
    let reference = directory.path().join("reference");
    let mut session = Session::start(&[]);
    for (stream, redirect) in [("stdout", ""), ("stderr", ">&2")] {
        for keep in KEEPS {
            for cap in [1, 2, 3, 100] {
                for len in [cap - 1, cap, cap + 1, 2 * cap, 2 * cap + 1] {
                    let command = format!("head -c {len} /dev/urandom | tee reference {redirect}");
                    let answer = session.ask(&json!({"command": command, "keep": keep,
                        "max_output_size": cap, "encoding": "base64", "cwd": directory.path()}));
                    let whole = fs::read(&reference).unwrap();
                    check_against(&answer, stream, &whole, cap, keep);
                }
            }
        }
    }
    session.end();
}

fn check_against(answer: &Value, stream: &str, whole: &[u8], cap: usize, keep: &str) {
    let tail_cap = match keep {
        "head" => 0,
        "tail" => cap,
        _ => cap / 5,
    };
    let dropped = whole.len().saturating_sub(cap);
    let head = whole.len().min(cap - tail_cap);
    let tail = if dropped == 0 { head } else { whole.len() - tail_cap };
    let kept = [&whole[..head], &whole[tail..]].concat();
    assert_eq!(base64(answer, &format!("{stream}_base64")), kept, "{keep} {cap}: {answer}");
    let when_cut = |value: usize| if dropped > 0 { json!(value) } else { Value::Null };
    let truncated = if dropped > 0 { json!(true) } else { Value::Null };
    assert_has(
        answer,
        &json!({format!("{stream}_bytes"): whole.len(), format!("{stream}_truncated"): truncated,
            format!("{stream}_dropped_bytes"): when_cut(dropped),
            format!("{stream}_gap_at"): when_cut(head)}),
    );
}

/// A cap of 0 keeps nothing and is refused, with the field that means it.
#[test]
fn oc6_a_cap_of_zero_is_refused_and_told_of_capture_false() {
    let run = feed(&[], br#"{"command":"echo hi","max_output_size":0}"#);
    assert_eq!(run.code(), Some(1));
    let error = &run.answers[0]["error"];
    assert_has(error, &json!({"code": "invalid_request", "field": "max_output_size"}));
    assert!(error["message"].as_str().unwrap().contains("capture: false"), "{error}");
}

/// Ten megabytes on stdout, the error on stderr, cap 1000 each: the error is whole.
#[test]
fn oc7_a_flood_on_stdout_leaves_stderr_whole() {
    let script = "head -c 10000000 /dev/zero; echo the-real-error >&2; exit 1";
    let answer = answer(json!({"command": script, "max_output_size": 1000}));
    assert_has(
        &answer,
        &json!({"exit_code": 1, "stderr": "the-real-error\n", "stderr_bytes": 15,
            "stderr_truncated": null, "stdout_truncated": true, "stdout_bytes": 10000000}),
    );
}

/// Output whose last bytes come with the end of the command: complete, 200 times.
#[test]
fn oc8_the_last_bytes_are_there_every_time() {
    let mut session = Session::start(&[]);
    let script = "seq 1 100000; printf END";
    for round in 0..200 {
        // The whole text now and then, its end every time.
        let (keep, cap) = if round % 20 == 0 { ("head", 1 << 20) } else { ("tail", 100) };
        let answer = session.ask(&json!({"command": script, "keep": keep, "max_output_size": cap}));
        assert_has(&answer, &json!({"stdout_bytes": 588898, "stdout_incomplete": null}));
        let text = answer["stdout"].as_str().unwrap();
        assert!(text.ends_with("99999\n100000\nEND"), "round {round}");
        assert_eq!(text.len(), 588898.min(cap), "round {round}");
    }
    let byte_by_byte = "dd if=/dev/zero bs=1 count=200000 2>/dev/null";
    let answer = session.ask(&json!({"command": byte_by_byte, "encoding": "base64"}));
    assert_eq!(base64(&answer, "stdout_base64"), vec![0; 200000]);
    for _ in 0..20 {
        let full_pipe = "head -c 65536 /dev/zero; exec true";
        let answer = session.ask(&json!({"command": full_pipe, "encoding": "base64"}));
        assert_eq!(base64(&answer, "stdout_base64"), vec![0; 65536]);
    }
    session.end();
}

/// A thousand euro signs and a newline, cap 100: at most 100 bytes, and only whole characters.
#[test]
fn oc9_the_cap_counts_bytes_and_not_characters() {
    let command = format!("{} repeat € 1000; echo", helper());
    let text = answer(json!({"command": command, "max_output_size": 100}));
    assert_has(
        &text,
        &json!({"stdout": "€".repeat(33), "stdout_bytes": 3001, "stdout_truncated": true,
            "stdout_dropped_bytes": 2902, "stdout_gap_at": 99, "stdout_replaced": null}),
    );
    let exact = answer(json!({"command": command, "max_output_size": 100, "encoding": "base64"}));
    assert_eq!(base64(&exact, "stdout_base64"), &"€".repeat(34).as_bytes()[..100]);
    assert_has(&exact, &json!({"stdout_dropped_bytes": 2901, "stdout_gap_at": 100}));
}

/// Limits past every integer and past the largest cap: refused, on the wire and as an argument.
#[test]
fn oc10_absurd_caps_are_refused() {
    let absurd = ["9223372036854775808", "18446744073709551615", "18014398509481985"];
    for number in absurd {
        for cap in [number.to_owned(), format!("\"{number}\""), format!("\"{number}K\"")] {
            let request = format!(r#"{{"command":"echo hi","max_output_size":{cap}}}"#);
            let run = feed(&[], request.as_bytes());
            assert_eq!(run.code(), Some(1), "{run:?}");
            assert_has(&run.answers[0], &json!({"status": "bad_request", "stdout": ""}));
            assert_eq!(run.answers[0]["error"]["field"], "max_output_size", "{run:?}");
            let argument = feed(&["--max-output-size", cap.trim_matches('"')], b"");
            assert_eq!((argument.code(), argument.answers.len()), (Some(125), 0), "{argument:?}");
            assert!(argument.stderr.contains(number), "{}", argument.stderr);
        }
    }
}

/// The largest cap that is taken costs nothing where little is printed.
#[test]
fn oc10_a_large_cap_is_not_paid_in_advance() {
    let mut session = Session::start(&[]);
    session.ask(&json!({"command": "true"}));
    let before = session.peak_rss_bytes();
    for keep in KEEPS {
        let request = json!({"command": "echo hi", "max_output_size": 268435456, "keep": keep});
        assert_has(&session.ask(&request), &json!({"stdout": "hi\n", "cap_lowered_to": null}));
    }
    // The kernel adds its counters up per CPU: the peak it tells may even have shrunk a little.
    let grown = session.peak_rss_bytes().saturating_sub(before);
    assert!(grown < 1 << 20, "grew by {grown} bytes");
    session.end();
}

/// Both streams flooded, one after the other and in turn: no side waits for the other.
#[test]
fn oc11_floods_of_both_streams_do_not_deadlock() {
    let one = "head -c 1000000 /dev/zero";
    let rows = [
        (format!("{one} >&2; {one}; exit 4"), 1_000_000),
        (format!("{one}; {one} >&2; exit 4"), 1_000_000),
        (
            "for i in $(seq 50); do head -c 70000 /dev/zero; head -c 70000 /dev/zero >&2; done; \
             exit 4"
                .to_owned(),
            3_500_000,
        ),
    ];
    for (script, total) in rows {
        let answer = answer(json!({"command": script, "timeout": 10, "max_output_size": 1000}));
        assert_has(&answer, &json!({"exit_code": 4, "stdout_bytes": total, "stderr_bytes": total}));
    }
}

/// What fdinfo says of descriptors 0, 1 and 2: no O_NONBLOCK (04000 in octal) anywhere.
fn assert_blocking(flags: &str) {
    let flags: Vec<_> = flags.lines().filter_map(|line| line.strip_prefix("flags:")).collect();
    assert_eq!(flags.len(), 3, "{flags:?}");
    for flags in flags {
        let bits = u32::from_str_radix(flags.trim(), 8).unwrap();
        assert_eq!(bits & 0o4000, 0, "{flags}");
    }
}

/// Neither the command's descriptors nor those that runcap was given become non-blocking.
#[test]
fn oc12_descriptors_of_the_command_and_of_the_caller_stay_blocking() {
    let command = ["cat", "/proc/self/fdinfo/0", "/proc/self/fdinfo/1", "/proc/self/fdinfo/2"];
    let (requests, mut to_requests) = pipe().unwrap();
    let (mut from_answers, answers) = pipe().unwrap();
    let (_from_errors, errors) = pipe().unwrap();
    for request in [json!({"command": command, "stdin": "x"}), json!({"command": command})] {
        writeln!(to_requests, "{request}").unwrap();
    }
    drop(to_requests);
    let mut program = json_mode(&[]);
    program.stdin(requests.try_clone().unwrap()).stdout(answers.try_clone().unwrap());
    let status = program.stderr(errors.try_clone().unwrap()).status().unwrap();
    assert!(status.success());
    for fd in [requests.into(), answers.into(), errors.into()] {
        assert!(!is_nonblocking(fd));
    }
    drop(program);
    let mut lines = String::new();
    from_answers.read_to_string(&mut lines).unwrap();
    for line in lines.lines() {
        let answer: Value = serde_json::from_str(line).unwrap();
        assert_blocking(answer["stdout"].as_str().unwrap());
    }
    assert_eq!(lines.lines().count(), 2);
}

fn is_nonblocking(fd: std::os::fd::OwnedFd) -> bool {
    rustix::fs::fcntl_getfl(fd).unwrap().contains(rustix::fs::OFlags::NONBLOCK)
}

/// 300000 lines to somebody who reads a little at a time: complete, live and in one answer.
#[test]
fn oc12_a_slow_reader_gets_everything() {
    let expected: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    for live in [true, false] {
        let mut child =
            json_mode(&[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let request = json!({"command": "seq 1 300000", "stream": live, "timeout": 30});
        writeln!(child.stdin.take().unwrap(), "{request}").unwrap();
        let (mut stdout, mut lines) = (child.stdout.take().unwrap(), Vec::new());
        while (&mut stdout).take(20_000).read_to_end(&mut lines).unwrap() > 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(child.wait().unwrap().success());
        let lines = String::from_utf8(lines).unwrap();
        let events: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let key = if live { "data" } else { "stdout" };
        let text: String = events.iter().filter_map(|event| event[key].as_str()).collect();
        assert!(text == expected, "{} of {} bytes", text.len(), expected.len());
        assert_has(events.last().unwrap(), &json!({"exit_code": 0, "stdout_truncated": null}));
    }
}
