//! Signals to runcap, who dies with it, and what is left of many runs.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{MODES, Ran, finish, run_mode, run_sh};
use crate::support::{
    Mark, Signal, after, all_processes, assert_took, children, is_alive, json, processes_with,
    runcap, send, stat, wait_until,
};

/// Signals that are passed on, by number and name.
const FORWARDED: [(Signal, &str, i32); 4] = [
    (Signal::TERM, "TERM", 15),
    (Signal::INT, "INT", 2),
    (Signal::HUP, "HUP", 1),
    (Signal::QUIT, "QUIT", 3),
];

/// A command that says `ready`, and then the name of each signal it gets.
fn teller(mark: &Mark, deaf: bool) -> String {
    // What a shell starts in the background ignores INT and QUIT, so it has a session of its own:
    // a live process of the group would be waited for.
    let end = if deaf { "" } else { "; exit 0" };
    let traps = FORWARDED.map(|(_, name, _)| format!("trap 'echo {name}{end}' {name}; "));
    format!("{}echo ready; setsid {mark} & while :; do wait; done", traps.concat())
}

/// A runcap whose command is a teller that is ready.
fn start(options: &[&str], mark: &Mark, deaf: bool) -> Child {
    let script = teller(mark, deaf);
    let mut command = run_mode(&[options, &["--", "sh", "-c", &script]].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    mark.sleeper();
    child
}

fn end(child: Child) -> Ran {
    let start = Instant::now();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let elapsed = start.elapsed();
    Ran { code: output.status.code(), stdout: output.stdout, stderr, elapsed }
}

#[test]
fn a_signal_is_passed_on_as_the_same_and_output_is_kept() {
    let tail: &[&str] = &["--max-output-size", "1M", "--keep", "tail"];
    for (mode, options) in MODES.into_iter().chain([("tail", tail)]) {
        for (signal, name, number) in FORWARDED {
            let mark = Mark::new();
            let child = start(options, &mark, false);
            send(child.id(), signal);
            let ran = end(child);
            let case = format!("{mode}, {name}: {ran:?}");
            assert_eq!((ran.code, &*ran.stderr), (Some(128 + number), ""), "{case}");
            assert_took(ran.elapsed, Duration::ZERO);
            let stdout = match mode {
                "answered" => {
                    assert_eq!(ran.answer()["status"], "canceled", "{case}");
                    ran.answer()["stdout"].as_str().unwrap().to_owned()
                }
                _ => ran.text(),
            };
            assert_eq!(stdout, format!("ready\n{name}\n"), "{case}");
            mark.assert_gone();
        }
    }
}

#[test]
fn a_command_that_stays_is_killed_after_the_grace() {
    for (mode, options) in MODES {
        let mark = Mark::new();
        let child = start(&[options, &["-k", "0.3"]].concat(), &mark, true);
        send(child.id(), Signal::INT);
        let ran = end(child);
        assert_eq!(ran.code, Some(130), "{mode}: {ran:?}");
        assert_took(ran.elapsed, Duration::from_millis(300));
        assert!(ran.text().contains("INT"), "{mode}: {ran:?}");
        mark.assert_gone();
    }
}

#[test]
fn without_a_grace_ten_seconds_are_granted() {
    // Told to end, the command goes on for longer than the 500 ms of a deadline.
    let script = "trap 'sleep 1; echo tidied; exit 0' TERM; echo ready; sleep 30 & wait";
    let mut command = run_mode(&["--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    stdout.read_line(&mut text).unwrap();
    send(child.id(), Signal::TERM);
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!((child.wait().unwrap().code(), &*text), (Some(143), "ready\ntidied\n"));
}

#[test]
fn a_second_signal_kills_at_once() {
    for (mode, options) in MODES {
        let mark = Mark::new();
        let child = start(&[options, &["-k", "60"]].concat(), &mark, true);
        let (runcap, leader) = (child.id(), children(child.id())[0]);
        send(runcap, Signal::HUP);
        std::thread::sleep(Duration::from_millis(200));
        assert!(is_alive(leader), "{mode}: the first one grants a minute");
        send(runcap, Signal::TERM);
        let ran = end(child);
        // The first one says why it ended.
        assert_eq!(ran.code, Some(129), "{mode}: {ran:?}");
        assert_took(ran.elapsed, Duration::ZERO);
        mark.assert_gone();
    }
}

#[test]
fn a_signal_does_not_put_off_the_deadline() {
    let mark = Mark::new();
    let start_of_all = Instant::now();
    let child = start(&["-t", "1"], &mark, true);
    send(child.id(), Signal::TERM);
    let ran = end(child);
    assert_eq!(ran.code, Some(143), "{ran:?}");
    // A second, and the grace of a deadline; not the ten seconds of a signal.
    assert_took(start_of_all.elapsed(), Duration::from_millis(1500));
    assert!(start_of_all.elapsed() < Duration::from_secs(6), "{:?}", start_of_all.elapsed());
    mark.assert_gone();
}

/// Names of the signals that a process ignores (SigIgn of /proc/PID/status), of those passed on.
const IGNORED: &str = r#"
    mask=$(sed -n 's/SigIgn:[[:space:]]*//p' /proc/self/status)
    for signal in 1 2 3 13 15 17; do
        test $((0x$mask >> (signal - 1) & 1)) = 0 || printf '%s ' $signal
    done"#;

#[test]
fn ignored_hup_int_and_quit_are_passed_on_and_nothing_else() {
    // sed is asked, since a shell may change what it got.
    let setup = "trap '' HUP INT QUIT TERM PIPE CHLD";
    for (mode, options) in &MODES[..2] {
        let mut command =
            after(setup, &run_mode(&[*options, &["--", "sh", "-c", IGNORED]].concat()));
        command.stdin(Stdio::null());
        let ran = finish(command);
        assert_eq!((ran.code, &*ran.text()), (Some(0), "1 2 3 "), "{mode}: {ran:?}");
        let mut command = run_mode(&[*options, &["--", "sh", "-c", IGNORED]].concat());
        command.stdin(Stdio::null());
        assert_eq!(finish(command).text(), "", "{mode}: nothing was ignored");
    }
    // json mode withholds all of it.
    let mut json_mode = runcap();
    json_mode.arg("json");
    let ran = crate::support::feed_command(
        after(setup, &json_mode),
        json!({ "command": IGNORED }).to_string().as_bytes(),
    );
    assert_eq!(ran.answers[0]["stdout"], "", "{ran:?}");
}

#[test]
fn a_signal_that_the_caller_ignores_ends_nothing() {
    for (signal, name, _) in FORWARDED {
        let mark = Mark::new();
        let script = format!("{mark} & echo ready; wait");
        let mut command =
            after(&format!("trap '' {name}"), &run_mode(&["--", "sh", "-c", &script]));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let sleeper = mark.sleeper();
        send(child.id(), signal);
        std::thread::sleep(Duration::from_millis(100));
        assert!(is_alive(sleeper) && is_alive(child.id()), "{name}");
        let other = if name == "TERM" { Signal::INT } else { Signal::TERM };
        send(child.id(), other);
        let ran = end(child);
        let expected = if name == "TERM" { 130 } else { 143 };
        assert_eq!(ran.code, Some(expected), "{name}: {ran:?}");
    }
}

#[test]
fn an_ignored_sigchld_loses_no_status() {
    for (mode, options) in MODES {
        let inner = run_mode(&[options, &["--", "sh", "-c", "exit 7"]].concat());
        let mut command = after("trap '' CHLD", &inner);
        command.stdin(Stdio::null());
        assert_eq!(finish(command).code, Some(7), "{mode}");
    }
}

#[test]
fn die_with_parent_takes_the_command_along() {
    for (mode, options) in MODES {
        for dies in [true, false] {
            let mark = Mark::new();
            let extra: &[&str] = if dies { &["--die-with-parent"] } else { &[] };
            let sleep: Vec<_> = mark_words(&mark);
            let sleep: Vec<_> = sleep.iter().map(String::as_str).collect();
            let mut command = run_mode(&[extra, options, &["--"], &sleep].concat());
            let mut child = command.stdout(Stdio::null()).spawn().unwrap();
            let sleeper = mark.sleeper();
            send(child.id(), Signal::KILL);
            child.wait().unwrap();
            if dies {
                wait_until(mode, || !is_alive(sleeper));
            } else {
                std::thread::sleep(Duration::from_millis(100));
                assert!(is_alive(sleeper), "{mode}: without it the command stays");
            }
        }
    }
}

fn mark_words(mark: &Mark) -> Vec<String> {
    mark.to_string().split(' ').map(str::to_owned).collect()
}

#[test]
fn a_command_that_kills_its_own_group_does_not_reach_runcap() {
    for (mode, options) in MODES {
        for (signal, number) in [("TERM", 15), ("KILL", 9), ("INT", 2)] {
            let ran = run_sh(options, &format!("kill -{signal} 0; sleep 9"));
            assert_eq!((ran.code, &*ran.stderr), (Some(128 + number), ""), "{mode}, {signal}");
        }
    }
}

/// `runcap run INNER` under an outer runcap.
fn nested(outer: &[&str], inner: &[&str], script: &str) -> Command {
    let runcap = env!("CARGO_BIN_EXE_runcap");
    run_mode(&[outer, &["--", runcap, "run"], inner, &["--", "sh", "-c", script]].concat())
}

#[test]
fn runcap_runs_under_runcap() {
    for (outer_name, outer) in MODES {
        for (inner_name, inner) in MODES {
            let name = format!("{inner_name} in {outer_name}");
            let ran = finish(nested(outer, inner, "echo hi; exit 9"));
            assert_eq!(ran.code, Some(9), "{name}: {ran:?}");
            assert!(ran.text().contains("hi"), "{name}: {ran:?}");
            // The outer deadline ends all of it, and so does a signal.
            let mark = Mark::new();
            let script = format!("setsid {mark} & {mark}");
            let ran = finish(nested(&[outer, &["-t", "0.5"]].concat(), inner, &script));
            assert_eq!(ran.code, Some(124), "{name}: {ran:?}");
            mark.assert_gone();
            let mark = Mark::new();
            let mut command = nested(outer, inner, &teller(&mark, false));
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            mark.sleeper();
            send(child.id(), Signal::TERM);
            let ran = end(child);
            assert_eq!(ran.code, Some(143), "{name}: {ran:?}");
            assert!(ran.text().contains("TERM"), "{name}: {ran:?}");
            mark.assert_gone();
        }
    }
}

#[test]
fn runcap_run_works_inside_runcap_json() {
    let runcap = env!("CARGO_BIN_EXE_runcap");
    for (mode, options) in MODES {
        let command = [&[runcap, "run"], options, &["--", "sh", "-c", "echo hi; exit 9"]].concat();
        let answer = crate::support::answer(json!({ "command": command }));
        assert_eq!(answer["exit_code"], 9, "{mode}: {answer}");
        assert!(answer["stdout"].as_str().unwrap().contains("hi"), "{mode}: {answer}");
        let mark = Mark::new();
        let script = format!("setsid {mark} & {mark}");
        let command = [&[runcap, "run"], options, &["--", "sh", "-c", &script]].concat();
        let answer = crate::support::answer(json!({ "command": command, "timeout": 0.4 }));
        assert_eq!(answer["status"], "timed_out", "{mode}: {answer}");
        mark.assert_gone();
    }
}

#[test]
fn a_thousand_runs_leave_nothing() {
    let own = std::process::id();
    let needle = "run --env LEAVES=nothing";
    let mut groups = Vec::new();
    for index in 0..1000 {
        let (_, options) = MODES[index % 3];
        let mut command = run_mode(&[options, &["--env", "LEAVES=nothing", "--", "true"]].concat());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        groups.push(child.id());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{index}");
    }
    assert_eq!(processes_with(needle), [0; 0]);
    let left = all_processes().into_iter().filter_map(|pid| Some((pid, stat(pid)?)));
    let of_runs = |pid: u32| groups.contains(&pid);
    let left: Vec<_> =
        left.filter(|(_, stat)| stat.parent != own && of_runs(stat.parent)).collect();
    assert!(left.is_empty(), "{left:?}");
}
