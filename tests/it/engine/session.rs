//! What is left of a command in runcap, and what a reader that goes away leaves.

use std::time::{Duration, Instant};

use crate::support::*;

/// 200 commands that end in every way: as many threads, descriptors and children as before.
#[test]
fn nothing_of_a_command_is_left_in_runcap() {
    let mut session = Session::start(&[]);
    let requests = [
        json!({"command": ["true"]}),
        json!({"command": "echo out; echo err >&2; exit 3"}),
        json!({"command": ["no-such-program"]}),
        json!({"command": ["true"], "cwd": "/no/such/directory"}),
        json!({"command": ["true"], "limits": {"open_files": 100}}),
        json!({"command": ["/"], "limits": {"open_files": 100}}),
        json!({"command": ["true"], "stdin": "x".repeat(100_000)}),
        json!({"command": ["yes"], "overflow": "stop", "max_output_size": 1000}),
        json!({"command": ["sleep", "100"], "timeout": 0.01}),
        json!({"command": "head -c 1000000 /dev/zero", "max_output_size": 10}),
        json!({"command": "kill -9 $$", "merge_stderr": true}),
        json!({"command": "echo", "capture": false}),
        json!({"comand": ["true"]}),
    ];
    let look = |pid| (threads(pid), descriptors(pid), children(pid).len());
    let pid = session.child.id();
    // Once over everything: /dev/null, for one, is opened the first time it is needed.
    requests.iter().for_each(|request| drop(session.ask(request)));
    wait_until("only the main thread is left", || threads(pid) == 1);
    let (before, peak) = (look(pid), session.peak_rss_bytes());
    for request in requests.iter().cycle().take(200) {
        session.ask(request);
    }
    // A thread that has done its work may still be on its way out.
    wait_until("only the main thread is left", || threads(pid) == 1);
    assert_eq!(look(pid), before, "threads, descriptors, children");
    assert_eq!(before.2, 0, "no child, no zombie");
    let grown = session.peak_rss_bytes().saturating_sub(peak);
    assert!(grown < 1 << 20, "grew by {grown} bytes");
    session.end();
}

/// The reader of stdout goes away: the command is ended soon, and runcap exits with 125.
#[test]
fn a_command_ends_when_the_reader_is_gone() {
    let rows = [
        ("silent", "", "", json!({})),
        ("silent and live", "", "", json!({"stream": true})),
        ("chatty and live", "yes &", "", json!({"stream": true})),
        ("deaf to TERM", "trap '' TERM;", "; true", json!({"grace": 0.3})),
    ];
    for (name, before, after, mut request) in rows {
        let sleep = marked_sleep();
        request["command"] = json!(format!("{before} {sleep} {after}"));
        let mut session = Session::start(&[]);
        session.send(&request);
        wait_until("the command runs", || !processes_with(&sleep).is_empty());
        let start = Instant::now();
        let mut runcap = session.hang_up();
        wait_until("runcap ends", || runcap.try_wait().unwrap().is_some());
        let status = runcap.wait().unwrap();
        assert_eq!(status.code(), Some(125), "{name}");
        assert!(start.elapsed() < Duration::from_secs(3), "{name}: {:?}", start.elapsed());
        assert_eq!(processes_with(&sleep).len(), 0, "{name}");
    }
}

/// The end of stdin cancels nothing: the command runs on, and is answered.
#[test]
fn the_end_of_stdin_cancels_nothing() {
    let run = feed(&[], json!({"command": "sleep 0.3; echo done"}).to_string().as_bytes());
    assert_eq!(run.code(), Some(0));
    assert_has(&run.answers[0], &json!({"exit_code": 0, "stdout": "done\n"}));
    assert!(run.elapsed >= Duration::from_millis(300));
}
