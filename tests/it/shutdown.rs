//! How `runcap json` itself ends: told to by a signal, killed, or left by its reader.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

const SECOND: Duration = Duration::from_secs(1);

/// The signals that end runcap.
const ENDING: [(Signal, &str, i32); 4] = [
    (Signal::TERM, "TERM", 15),
    (Signal::INT, "INT", 2),
    (Signal::HUP, "HUP", 1),
    (Signal::QUIT, "QUIT", 3),
];

#[test]
fn a_signal_ends_the_running_command_and_it_is_still_answered() {
    // TERM, INT, HUP, QUIT while a command with an escaped child runs: canceled, with what it
    // wrote; nothing is left; exit 128 + n.
    for (signal, name, number) in ENDING {
        let mark = Mark::new();
        let mut session = Session::start(&[]);
        let command = format!("echo before; (setsid {mark} &); exec {mark}");
        session.send(&json!({ "command": command, "tag": name }));
        wait_until("both run", || mark.sleepers().len() == 2);
        let told = Instant::now();
        send(session.child.id(), signal);
        let answer = session.line().expect("an answer");
        mark.assert_gone();
        let expected = json!({
            "status": "canceled", "exit_code": null, "signal": 15, "stdout": "before\n",
            "reason": "runcap was told to stop", "killed_processes": 1, "tag": name,
        });
        assert_has(&answer, &expected);
        assert_took(told.elapsed(), Duration::ZERO);
        assert_eq!(session.end().code(), Some(128 + number));
    }
}

#[test]
fn sd4_a_command_that_ignores_term_is_killed_after_the_grace_of_a_shutdown() {
    // trap "" TERM, and TERM to runcap: KILL after the request's own grace; the next request is
    // not begun.
    let mark = Mark::new();
    let mut session = Session::start(&[]);
    let command = format!(r#"trap "" TERM; {mark} & {mark}; :"#);
    session.send(&json!({ "command": command, "grace": 0.4 }));
    session.send(&json!({ "command": "echo next" }));
    wait_until("both run", || mark.sleepers().len() == 2);
    let told = Instant::now();
    send(session.child.id(), Signal::TERM);
    let answer = session.line().expect("an answer");
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "canceled", "signal": 9, "killed_processes": 2 }));
    assert_took(told.elapsed(), Duration::from_millis(400));
    assert_eq!(session.end().code(), Some(128 + 15));
}

#[test]
fn a_second_signal_kills_at_once() {
    // A grace of 20 s; the second signal ends it, of the same kind or another; the first one
    // decides the exit code.
    for second in [Signal::TERM, Signal::INT] {
        let mark = Mark::new();
        let mut session = Session::start(&[]);
        let runcap = session.child.id();
        let command = format!(r#"trap "" TERM; {mark}; :"#);
        session.send(&json!({ "command": command, "grace": 20 }));
        mark.sleeper();
        send(runcap, Signal::TERM);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(mark.sleepers().len(), 1, "the grace runs");
        let told = Instant::now();
        send(runcap, second);
        let answer = session.line().expect("an answer");
        mark.assert_gone();
        assert_has(&answer, &json!({ "status": "canceled", "signal": 9 }));
        assert_took(told.elapsed(), Duration::ZERO);
        assert_eq!(session.end().code(), Some(128 + 15));
    }
}

#[test]
fn two_signals_at_once_end_the_command_too() {
    // Both are there before the poll loop sees the first.
    let mark = Mark::new();
    let mut session = Session::start(&[]);
    session.send(&json!({ "command": format!(r#"trap "" TERM; {mark}; :"#), "grace": 20 }));
    mark.sleeper();
    let told = Instant::now();
    send(session.child.id(), Signal::INT);
    send(session.child.id(), Signal::QUIT);
    let answer = session.line().expect("an answer");
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "canceled", "signal": 9 }));
    assert_took(told.elapsed(), Duration::ZERO);
    let code = session.end().code();
    assert!(matches!(code, Some(130 | 131)), "{code:?}");
}

#[test]
fn a_signal_while_idle_ends_runcap_at_once() {
    // Before the first request, in the middle of one, and between two: 128 + n, nothing more said.
    for (signal, _, number) in ENDING {
        for input in ["", r#"{"command": "#, "{\"command\":\"true\"}\n"] {
            let mut session = Session::start(&[]);
            session.child.stdin.as_ref().expect("piped").write_all(input.as_bytes()).expect("read");
            if input.ends_with('\n') {
                session.line().expect("an answer");
            }
            let runcap = session.child.id();
            wait_until("it is ready", || {
                let status = std::fs::read_to_string(format!("/proc/{runcap}/status"));
                let status = status.expect("it lives");
                let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
                let caught = u64::from_str_radix(caught.expect("a mask"), 16).expect("a mask");
                caught >> (number - 1) & 1 == 1
            });
            let told = Instant::now();
            send(runcap, signal);
            assert_eq!(session.child.wait().expect("it ends").code(), Some(128 + number));
            assert_took(told.elapsed(), Duration::ZERO);
        }
    }
}

#[test]
fn a_signal_that_was_ignored_at_start_stays_so_for_runcap_and_not_for_the_command() {
    // env --ignore-signal, as nohup does: runcap goes on, the command has nothing ignored and dies
    // of the same signal.
    for (signal, name, number) in ENDING {
        let ignore = format!("--ignore-signal={name}");
        let mut session = Session::of(through(&["env", &ignore], &json_mode(&[])));
        let answer = session.ask(&json!({ "command": ["grep", "SigIgn", "/proc/self/status"] }));
        let ignored =
            answer["stdout"].as_str().and_then(|text| text.trim().strip_prefix("SigIgn:\t"));
        let ignored = u64::from_str_radix(ignored.expect("a line"), 16).expect("a mask");
        // 32 to 34 are libc's own: its posix_spawn leaves them ignored, and it sets them anew.
        assert_eq!(ignored & !(0b111 << 31), 0, "{name}: {ignored:x}");
        let mark = Mark::new();
        session.send(&json!({ "command": format!("{mark}; exit 6") }));
        let sleeper = mark.sleeper();
        let runcap = session.child.id();
        send(runcap, signal);
        thread::sleep(Duration::from_millis(50));
        assert!(is_alive(sleeper), "{name}");
        send(sleeper, signal);
        let answer = session.line().expect("an answer");
        assert_has(&answer, &json!({ "status": "exited", "exit_code": 6 }));
        send(runcap, signal);
        let answer = session.ask(&json!({ "command": format!("kill -{name} $$") }));
        assert_has(&answer, &json!({ "status": "signaled", "signal": number }));
        // The others end it as ever.
        if signal != Signal::TERM {
            send(runcap, Signal::TERM);
            assert_eq!(session.end().code(), Some(128 + 15), "{name}");
        } else {
            assert_eq!(session.end().code(), Some(0), "{name}");
        }
    }
}

#[test]
fn sd2_die_with_parent_ends_the_command_when_runcap_is_killed() {
    // KILL of runcap while sleep runs: with the flag the command's first process is gone at once,
    // without it lives on.
    for (args, dies) in [(&["--die-with-parent"][..], true), (&[], false)] {
        let mark = Mark::new();
        let mut session = Session::start(args);
        session.send(&json!({ "command": format!("exec {mark}") }));
        let sleeper = mark.sleeper();
        send(session.child.id(), Signal::KILL);
        assert_eq!(session.child.wait().expect("it ends").signal(), Some(9));
        let killed = Instant::now();
        if dies {
            wait_until("the command is gone", || !is_alive(sleeper));
            assert!(killed.elapsed() < SECOND / 2 + slack(), "{:?}", killed.elapsed());
        } else {
            thread::sleep(Duration::from_millis(300));
            assert!(is_alive(sleeper), "nobody ended it");
        }
    }
}

#[test]
fn sd2_die_with_parent_changes_nothing_while_runcap_lives() {
    // Hundreds of ends of helper threads later a command is still not killed: the flag is tied to
    // a thread that lives as long as the process.
    let mut session = Session::start(&["--die-with-parent"]);
    for number in 0..100 {
        let answer = session.ask(&json!({ "command": format!("exit {number}"), "stdin": "x" }));
        assert_has(&answer, &json!({ "status": "exited", "exit_code": number }));
    }
    let answer = session.ask(&json!({ "command": "sleep 0.3; exit 4" }));
    assert_has(&answer, &json!({ "status": "exited", "exit_code": 4 }));
    assert_eq!(session.end().code(), Some(0));
}

/// Starts `command` with this input, and returns it without its stdout, which nobody reads.
fn without_reader(mut command: Command, input: &Value, read_first: bool) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    writeln!(stdin, "{input}").expect("runcap reads");
    let mut stdout = child.stdout.take().expect("piped");
    if read_first {
        stdout.read_exact(&mut [0]).expect("a first byte");
    }
    child
}

#[test]
fn sd6_a_reader_that_is_gone_ends_the_command_without_a_panic() {
    // yes, streamed, with a reader that takes one byte (head -c 1), and a silent command whose
    // reader goes: 125, one line and no panic, and the group is gone.
    let mark = Mark::new();
    let requests = [
        (json!({ "command": format!("exec yes '{mark}'"), "stream": true }), true),
        (json!({ "command": format!("{mark} & {mark}; :") }), false),
    ];
    for (request, read_first) in requests {
        let start = Instant::now();
        let mut child = without_reader(json_mode(&[]), &request, read_first);
        let mut stderr = String::new();
        let mut pipe = child.stderr.take().expect("piped");
        pipe.read_to_string(&mut stderr).expect("text");
        assert_eq!(child.wait().expect("it ends").code(), Some(125), "{stderr}");
        mark.assert_gone();
        assert!(stderr.starts_with("runcap: ") && !stderr.contains("panic"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert_took(start.elapsed(), Duration::ZERO);
    }
}

#[test]
fn sd6_a_stdout_that_takes_nothing_is_an_error_and_a_closed_one_is_no_output() {
    // >/dev/full: 125 and the reason. >&-: it counts as /dev/null, so the command runs.
    let directory = tempfile::tempdir().expect("a directory");
    let ran = directory.path().join("ran");
    let request = json!({ "command": ["touch", ran.to_str()] }).to_string();
    for (redirection, code, stderr) in
        [(">/dev/full", 125, "No space left on device"), (">&-", 0, "")]
    {
        let mut command = after(&format!("exec {redirection}"), &json_mode(&[]));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(request.as_bytes()).expect("runcap reads");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{redirection}: {text}");
        assert!(text.contains(stderr) && !text.contains("panic"), "{redirection}: {text}");
        assert!(std::fs::remove_file(&ran).is_ok(), "{redirection}: it ran");
    }
}

#[test]
fn sd7_the_end_of_the_requests_is_the_end_after_the_last_answer() {
    // </dev/null: one refusal and exit 1 at once. A request and then end of file: it is carried
    // out, and runcap uses no CPU time while it waits.
    let run = feed_command(json_mode(&[]), b"");
    assert_eq!((run.code(), run.answers.len()), (Some(1), 1), "{run:?}");
    assert_eq!(run.answers[0]["status"], "bad_request");
    assert_took(run.elapsed, Duration::ZERO);

    let mark = Mark::new();
    let mut session = Session::start(&[]);
    session.send(&json!({ "command": format!("sleep 1; : {mark}; exit 8") }));
    drop(session.child.stdin.take());
    thread::sleep(Duration::from_millis(800));
    let cpu_ticks = stat(session.child.id()).expect("it waits for its command").cpu_ticks;
    assert!(cpu_ticks <= 3, "{cpu_ticks} hundredths of a second of CPU time");
    let answer = session.line().expect("an answer");
    assert_has(&answer, &json!({ "status": "exited", "exit_code": 8 }));
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn sd7_runcap_ends_when_the_process_that_asked_is_killed() {
    // A client holds both pipes and is killed: runcap ends its command and itself.
    let mark = Mark::new();
    let directory = tempfile::tempdir().expect("a directory");
    let request = directory.path().join("request");
    let json = json!({ "command": format!("{mark} & {mark}; :") });
    std::fs::write(&request, json.to_string()).expect("a file");
    let (runcap, request) = (env!("CARGO_BIN_EXE_runcap"), request.to_str().expect("text"));
    let pid_file = directory.path().join("pid");
    // cat holds the write end of stdin and tail -f the read end of stdout.
    let script = format!(
        "mkfifo in out && (exec {runcap} json <in >out & echo $! >pid) && exec 3>in 4<out && cat {request} >&3 && read line <&4"
    );
    let mut client = Command::new("/bin/sh");
    client.args(["-c", &script]).current_dir(directory.path());
    client.stdin(Stdio::null()).stdout(Stdio::null());
    let mut client = client.spawn().expect("a shell");
    wait_until("both run", || mark.sleepers().len() == 2);
    let pid = std::fs::read_to_string(pid_file).expect("a file");
    let pid: u32 = pid.trim().parse().expect("a number");
    assert!(is_alive(pid));
    client.kill().expect("it is ours");
    client.wait().expect("it ends");
    let killed = Instant::now();
    wait_until("runcap is gone", || !is_alive(pid));
    mark.assert_gone();
    assert!(killed.elapsed() < SECOND / 2 + slack(), "{:?}", killed.elapsed());
}

#[test]
fn a_file_as_stdout_is_no_reader_that_goes() {
    // Answers into a file: nobody reads it, and the command is not canceled for that.
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("answers");
    let mut command = json_mode(&[]);
    command.stdin(Stdio::piped()).stdout(File::create(&path).expect("a file"));
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(br#"{"command":"sleep 0.1; exit 2"}"#).expect("runcap reads");
    drop(stdin);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let answer: Value =
        serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON");
    assert_has(&answer, &json!({ "status": "exited", "exit_code": 2 }));
}
