//! What outlives a command's first process: pipes that are held, orphans, marks and zombies.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

const SECOND: Duration = Duration::from_secs(1);

/// How long a held pipe is waited for, as the design states it.
const DRAIN: Duration = Duration::from_millis(250);

/// A file name in a directory of its own, as text.
fn file_in(directory: &tempfile::TempDir, name: &str) -> String {
    directory.path().join(name).into_os_string().into_string().expect("text")
}

#[test]
fn pg1_a_background_child_that_holds_the_pipe_is_killed_after_the_drain() {
    // sleep & echo started, holding both pipes or stderr only: exit 0 within the drain, not at the
    // timeout of 30 s; "started" is there, the child is killed and counted.
    let mark = Mark::new();
    for command in
        [format!("{mark} & echo started"), format!("{mark} </dev/null >/dev/null & echo started")]
    {
        let start = Instant::now();
        let answer = answer(json!({ "command": command, "timeout": 30 }));
        let elapsed = start.elapsed();
        mark.assert_gone();
        let expected = json!({
            "status": "exited", "exit_code": 0, "stdout": "started\n", "killed_processes": 1,
            "left_running": null,
        });
        assert_has(&answer, &expected);
        assert_took(elapsed, DRAIN);
    }
}

#[test]
fn pg1_a_background_child_that_is_left_is_reported_and_its_stream_is_incomplete() {
    // The same with `leave`: it lives, and the answer says so and which stream it holds.
    let mark = Mark::new();
    for (redirection, stdout_incomplete) in
        [("", json!(true)), (" </dev/null >/dev/null", json!(null))]
    {
        let start = Instant::now();
        let mut session = Session::start(&[]);
        let answer = session.ask(&json!({
            "command": format!("{mark}{redirection} & echo started"), "leftovers": "leave",
        }));
        assert_took(start.elapsed(), DRAIN);
        let expected = json!({
            "status": "exited", "exit_code": 0, "stdout": "started\n", "left_running": true,
            "killed_processes": null, "stdout_incomplete": stdout_incomplete,
            "stderr_incomplete": true,
        });
        assert_has(&answer, &expected);
        let sleeper = mark.sleeper();
        assert_eq!(stat(sleeper).expect("it lives").parent, session.child.id());
        kill_all(&mark.living());
        session.end();
    }
}

#[test]
fn pg3_a_service_that_is_left_goes_on_writing_while_runcap_lives() {
    // (sleep; echo log; …; touch FILE) & echo up, left: the file appears after the answer, since
    // somebody still reads. Killed by default: it never appears, and the answer counts it.
    let directory = tempfile::tempdir().expect("a directory");
    for (leftovers, expected) in [("leave", true), ("kill", false)] {
        let file = file_in(&directory, leftovers);
        let command = format!(
            "(sleep 0.5; echo log; echo err >&2; sleep 0.1; echo log2; touch {file}) & echo up"
        );
        let mut session = Session::start(&[]);
        let answer = session.ask(&json!({ "command": command, "leftovers": leftovers }));
        assert_has(&answer, &json!({ "status": "exited", "stdout": "up\n" }));
        let (left, killed) = (&answer["left_running"], &answer["killed_processes"]);
        if expected {
            assert_eq!((left, killed), (&json!(true), &json!(null)), "{answer}");
            wait_until("the service went on", || Path::new(&file).exists());
        } else {
            // The shell and its sleep.
            assert_eq!((left, killed), (&json!(null), &json!(2)), "{answer}");
            thread::sleep(SECOND);
            assert!(!Path::new(&file).exists(), "{answer}");
        }
        assert_eq!(session.end().code(), Some(0));
    }
}

#[test]
fn pg3_a_service_may_write_more_than_a_pipe_holds() {
    // 1 MB after the answer, to both streams: read and thrown away, nothing blocks.
    let directory = tempfile::tempdir().expect("a directory");
    let file = file_in(&directory, "done");
    let flood = "head -c 1000000 /dev/zero";
    let command = format!("(sleep 0.4; {flood}; {flood} >&2; touch {file}) & :");
    let mut session = Session::start(&[]);
    let answer = session.ask(&json!({ "command": command, "leftovers": "leave" }));
    assert_has(&answer, &json!({ "status": "exited", "left_running": true, "stdout_bytes": 0 }));
    wait_until("all was taken", || Path::new(&file).exists());
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn pg3_at_its_end_runcap_closes_kept_streams_and_says_so() {
    // A service left with two streams, then EOF: one line on stderr; the next log line is SIGPIPE.
    let directory = tempfile::tempdir().expect("a directory");
    let (go, alive) = (file_in(&directory, "go"), file_in(&directory, "alive"));
    let mark = Mark::new();
    let command = format!(
        "(: {mark}; while ! [ -e {go} ]; do sleep 0.02; done; \
         /bin/echo log && touch {alive}) & echo up"
    );
    let request = json!({ "command": command, "leftovers": "leave" });
    let run = feed(&[], request.to_string().as_bytes());
    assert_eq!(run.code(), Some(0), "{run:?}");
    assert_has(&run.answers[0], &json!({ "left_running": true }));
    let expected = "runcap: 2 output streams of processes that were left running are closed\n";
    assert_eq!(run.stderr, expected);
    assert!(!mark.living().is_empty(), "it lives until it writes");
    File::create(go).expect("a file");
    wait_until("it ended", || mark.living().is_empty());
    assert!(!Path::new(&alive).exists(), "its log line went nowhere");
}

#[test]
fn pg3_past_64_kept_streams_the_oldest_is_closed() {
    // 33 services with two streams each: the first one's are closed, so it dies of its next log
    // line; the second one's and the last one's are not; no answer is held up by any of it.
    let directory = tempfile::tempdir().expect("a directory");
    let go = file_in(&directory, "go");
    let mark = Mark::new();
    let mut session = Session::start(&[]);
    let runcap = session.child.id();
    let mut after_two = 0;
    for number in 0..33 {
        let alive = file_in(&directory, &number.to_string());
        // /bin/echo fails where the shell's own would take the shell along.
        let command = format!(
            "(: {mark}; while ! [ -e {go} ]; do sleep 0.2; done; \
             /bin/echo log && touch {alive}) & :"
        );
        let start = Instant::now();
        let answer = session.ask(&json!({ "command": command, "leftovers": "leave" }));
        assert_took(start.elapsed(), DRAIN);
        assert_has(&answer, &json!({ "status": "exited", "left_running": true }));
        if number == 1 {
            after_two = descriptors(runcap);
        }
    }
    let (last, second) = (file_in(&directory, "32"), file_in(&directory, "1"));
    wait_until("the oldest are closed", || descriptors(runcap) == after_two + 60);
    File::create(go).expect("a file");
    wait_until("the others went on", || Path::new(&last).exists() && Path::new(&second).exists());
    wait_until("all ended", || mark.living().is_empty());
    assert!(!Path::new(&file_in(&directory, "0")).exists(), "the first one's stream was closed");
    wait_until("their streams ended", || descriptors(runcap) == after_two - 4);
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn pg4_what_a_short_lived_child_writes_after_the_exit_is_taken() {
    // 100 times (sleep 0.05; echo late) & echo early: both lines each time, at the end of file and
    // not at the end of the drain; nothing is killed or left, since nothing needs to be.
    let took: Vec<Vec<Duration>> = thread::scope(|scope| {
        let lanes = [(); 4].map(|()| scope.spawn(|| late_lines(25)));
        lanes.into_iter().map(|lane| lane.join().expect("it holds")).collect()
    });
    let mut took = took.concat();
    took.sort();
    // On a busy machine a sleep of 50 ms may be longer than the drain of 250 ms.
    assert!(took.len() >= 90, "{} of 100 were in time", took.len());
    assert!(took[took.len() / 2] < Duration::from_millis(200), "{took:?}");
}

/// How long each of so many commands took that was not cut by the drain.
fn late_lines(count: usize) -> Vec<Duration> {
    let mut session = Session::start(&[]);
    let run = |_| {
        let answer = session.ask(&json!({ "command": "(sleep 0.05; echo late) & echo early" }));
        assert_has(&answer, &json!({ "status": "exited", "exit_code": 0, "left_running": null }));
        if duration(&answer) >= DRAIN && answer["stdout"] == "early\n" {
            return None;
        }
        assert_has(&answer, &json!({ "stdout_incomplete": null, "killed_processes": null }));
        let text = answer["stdout"].as_str().expect("text");
        assert!(matches!(text, "early\nlate\n" | "late\nearly\n"), "{answer}");
        Some(duration(&answer))
    };
    let took = (0..count).filter_map(run).collect();
    assert_eq!(session.end().code(), Some(0));
    took
}

#[test]
fn pg5_a_child_that_holds_no_pipe_is_killed_or_listed() {
    // timeout=2, sleep >/dev/null 2>&1 </dev/null & exit 0: no watchdog is needed any more, since
    // it is swept at once, or left and listed.
    let mark = Mark::new();
    let command = format!("{mark} >/dev/null 2>&1 </dev/null & exit 0");
    for (leftovers, left, killed) in
        [("kill", json!(null), json!(1)), ("leave", json!(true), json!(null))]
    {
        let start = Instant::now();
        let answer = answer(json!({ "command": command, "timeout": 2, "leftovers": leftovers }));
        assert_took(start.elapsed(), Duration::ZERO);
        let expected = json!({
            "status": "exited", "exit_code": 0, "left_running": left, "killed_processes": killed,
            "stdout_incomplete": null, "stderr_incomplete": null,
        });
        assert_has(&answer, &expected);
        assert_eq!(mark.living().is_empty(), leftovers == "kill", "{answer}");
    }
}

#[test]
fn pg6_closed_streams_are_no_exit() {
    // exec >&- 2>&-; sleep 2; exit 5: exit 5 at 2 s, and runcap sleeps meanwhile; with a timeout of
    // 1 s it is ended then.
    let command = "exec >&- 2>&-; sleep 2; exit 5";
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = Session::start(&[]);
            let start = Instant::now();
            let answer = session.ask(&json!({ "command": command, "timeout": 10 }));
            assert_has(&answer, &json!({ "status": "exited", "exit_code": 5 }));
            assert_took(start.elapsed(), 2 * SECOND);
            let cpu_ticks = stat(session.child.id()).expect("it lives").cpu_ticks;
            assert!(cpu_ticks < 5, "{cpu_ticks} hundredths of a second of CPU time");
        });
        scope.spawn(|| {
            let start = Instant::now();
            let answer = answer(json!({ "command": command, "timeout": 1 }));
            assert_has(&answer, &json!({ "status": "timed_out", "exit_code": null }));
            assert_took(start.elapsed(), SECOND);
        });
    });
}

/// Runs `helper at-once COUNT SCRIPT` and returns `NUMBER HOW MILLISECONDS TEXT` of each, by
/// number.
fn at_once(count: usize, script: &str) -> Vec<(String, u64, String)> {
    let output = Command::new(helper()).args(["at-once", &count.to_string(), script]).output();
    let output = output.expect("the helper starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let mut lines: Vec<_> = text
        .lines()
        .map(|line| {
            let mut parts = line.splitn(4, ' ');
            let mut next = || parts.next().expect("four parts").to_owned();
            let number: usize = next().parse().expect("a number");
            (number, (next(), next().parse().expect("a number"), next()))
        })
        .collect();
    lines.sort();
    assert_eq!(lines.len(), count, "{text}");
    lines.into_iter().map(|(_, line)| line).collect()
}

#[test]
fn pg7_commands_that_start_at_the_same_moment_share_no_descriptor() {
    // 50 at once, ls /proc/self/fd: 0, 1, 2 and ls's own, nothing of runcap's.
    for (how, _, text) in at_once(50, "exec ls /proc/self/fd") {
        assert_eq!((how.as_str(), text.as_str()), ("Some(Code(0))", "0 1 2 3 "));
    }
}

#[test]
fn pg7_a_quick_command_ends_while_a_slow_one_runs() {
    // One of twenty sleeps 2 s, the others end at once: their streams end too.
    let script = r#"if [ "$I" = 0 ]; then sleep 2; else echo quick; fi"#;
    for (number, (how, millis, text)) in at_once(20, script).into_iter().enumerate() {
        assert_eq!(how, "Some(Code(0))");
        if number > 0 {
            assert_eq!(text, "quick ");
            assert!(millis < 1900, "{number} took {millis} ms");
        }
    }
}

#[test]
fn pg7_descriptors_that_runcap_inherited_are_not_the_commands() {
    // runcap has 7 and 9 open: the command has 0, 1, 2 and ls's own.
    let command = after("exec 7</dev/null 9>/dev/null", &json_mode(&[]));
    let run = feed_command(command, br#"{"command":["ls","/proc/self/fd"]}"#);
    assert_eq!(run.answers[0]["stdout"], "0\n1\n2\n3\n", "{run:?}");
}

#[test]
fn orphans_come_to_runcap_while_it_lives() {
    // A double fork out of the session: its parent is runcap, by /proc.
    let mark = Mark::new();
    let mut session = Session::start(&[]);
    session.send(&json!({ "command": format!("(setsid {mark} &); sleep 1.5") }));
    let orphan = mark.sleeper();
    let runcap = session.child.id();
    wait_until("it came to runcap", || stat(orphan).expect("it lives").parent == runcap);
    let answer = session.line().expect("an answer");
    mark.assert_gone();
    assert_has(&answer, &json!({ "status": "exited", "killed_processes": 1 }));
    assert_eq!(children(runcap), [0; 0], "reaped");
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn children_that_runcap_had_before_are_never_touched() {
    // A shell starts a sleeper, and a loop that orphans one process after the other, and becomes
    // runcap. Every kind of end: the sleeper and the loop live on, the loop's orphans too.
    let (mark, stranger, orphan) = (Mark::new(), Mark::new(), Mark::new());
    let setup = format!(
        "{stranger} </dev/null >/dev/null 2>&1 & \
         (for i in 1 2 3 4 5 6 7 8 9 10; do ({orphan} &); sleep 0.1; done) \
         </dev/null >/dev/null 2>&1 & :"
    );
    let mut session = Session::of(after(&setup, &json_mode(&[])));
    let runcap = session.child.id();
    let stranger = stranger.sleeper();
    let requests = [
        (json!({ "command": "exit 3" }), "exited"),
        (json!({ "command": "kill -KILL $$" }), "signaled"),
        (json!({ "command": format!("{mark} & (setsid {mark} &); exit 0") }), "exited"),
        (
            json!({ "command": format!("(setsid env -i {mark} &); exec {mark}"), "timeout": 0.2 }),
            "timed_out",
        ),
        (json!({ "command": format!("{mark}"), "timeout": 0.2, "grace": 0 }), "timed_out"),
        (json!({ "command": "yes", "overflow": "stop", "max_output_size": 10 }), "output_limit"),
        (json!({ "command": ["/no/such"] }), "failed_to_start"),
        (json!({ "command": [] }), "bad_request"),
        (json!({ "command": format!("{mark} &"), "leftovers": "leave" }), "exited"),
        (json!({ "command": "sleep 0.7" }), "exited"),
    ];
    for (request, status) in requests {
        let answer = session.ask(&request);
        assert_eq!(answer["status"], status, "{answer}");
        let stat = stat(stranger).expect("the stranger lives");
        assert_eq!((stat.parent, stat.state), (runcap, 'S'), "after {answer}");
    }
    wait_until("the loop made ten orphans", || orphan.sleepers().len() == 10);
    let adopted = |pid: &u32| stat(*pid).expect("it lives").parent == runcap;
    assert!(orphan.sleepers().iter().any(adopted), "those that came after runcap's start");
    assert_eq!(mark.sleepers().len(), 1, "the one that was left");
    // Canceled, too.
    session.send(&json!({ "command": format!("{mark}; :") }));
    wait_until("it runs", || mark.sleepers().len() == 2);
    send(runcap, Signal::TERM);
    assert_eq!(session.line().expect("an answer")["status"], "canceled");
    assert_eq!(session.end().code(), Some(128 + 15));
    assert!(is_alive(stranger));
    assert_eq!(orphan.sleepers().len(), 10);
    kill_all(&[stranger]);
}

#[test]
fn a_command_is_marked_and_runcap_is_not() {
    // The soft RLIMIT_RTTIME of a command is 2^52 + n, another n for each; runcap has its own back.
    let mark = Mark::new();
    let mut session = Session::start(&[]);
    let runcap = session.child.id();
    let own = soft_rttime(std::process::id());
    let mut seen = Vec::new();
    for _ in 0..3 {
        session.send(
            &json!({ "command": format!("(setsid env -i {mark} &); exec {mark}"), "timeout": 0.3 }),
        );
        wait_until("both run", || mark.sleepers().len() == 2);
        let marks: Vec<u64> = mark
            .sleepers()
            .into_iter()
            .map(|pid| soft_rttime(pid).parse().expect("a finite limit"))
            .collect();
        assert_eq!(marks[0], marks[1], "all processes of a command have its mark");
        assert!((1 << 52..1 << 53).contains(&marks[0]), "{marks:?}");
        assert_eq!(soft_rttime(runcap), own);
        seen.push(marks[0]);
        let answer = session.line().expect("an answer");
        assert_has(&answer, &json!({ "status": "timed_out", "killed_processes": 1 }));
        mark.assert_gone();
    }
    seen.dedup();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn a_nested_runcap_sets_no_mark_and_cleans_up_all_the_same() {
    // runcap runs runcap, whose commands double-fork out of their session with no environment: the
    // inner one has killed that when it answers; its commands carry the outer one's mark.
    let (mark, second) = (Mark::new(), Mark::new());
    let escape = |mark| format!("(setsid env -i {mark} <&- >&- 2>&- &)");
    let inner = [
        json!({ "command": format!("{}; exit 0", escape(&mark)) }),
        json!({ "command": format!("{}; exec {second}", escape(&second)), "timeout": 0.2 }),
        json!({ "command": ["grep", "realtime timeout", "/proc/self/limits"] }),
    ];
    let mut session = Session::start(&[]);
    session.send(&json!({
        "command": format!("tee | {} json", env!("CARGO_BIN_EXE_runcap")), "stream": true,
        "stdin": inner.map(|request| format!("{request}\n")).concat(),
    }));
    let mut answers = Vec::new();
    let outer = loop {
        let event = session.line().expect("an answer");
        match event["event"].as_str() {
            Some("exit") => break event,
            Some("stdout") => {
                let text = event["data"].as_str().expect("text");
                let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
                answers.extend(lines);
                if answers.len() == 1 {
                    mark.assert_gone();
                }
            }
            _ => {}
        }
    };
    second.assert_gone();
    assert_has(&outer, &json!({ "status": "exited", "exit_code": 0, "killed_processes": null }));
    assert_has(&answers[0], &json!({ "status": "exited", "killed_processes": 1 }));
    assert_has(&answers[1], &json!({ "status": "timed_out", "killed_processes": 1 }));
    let limit: Value = answers[2]["stdout"].as_str().expect("text").split_whitespace().collect();
    // A part of all marks for each process, by its pid: this is the outer one's first.
    let outers = (1_u64 << 52) + (u64::from(session.child.id()) << 30) + 1;
    assert_eq!(limit[3], outers.to_string(), "the outer one's first command");
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn a_nested_runcap_that_is_killed_leaves_nothing() {
    // The outer one's deadline without grace: the inner one, its command and what escaped that are
    // all gone.
    let mark = Mark::new();
    let inner = json!({ "command": format!("(setsid env -i {mark} <&- >&- 2>&- &); {mark}; :") });
    let start = Instant::now();
    let answer = answer(json!({
        "command": [env!("CARGO_BIN_EXE_runcap"), "json"], "stdin": inner.to_string(),
        "timeout": 0.4, "grace": 0,
    }));
    mark.assert_gone();
    // The inner shell and the two sleepers.
    assert_has(&answer, &json!({ "status": "timed_out", "signal": 9, "killed_processes": 3 }));
    assert_took(start.elapsed(), Duration::from_millis(400));
}

#[test]
fn nothing_of_a_thousand_commands_stays_with_runcap() {
    // 1,000 commands of five kinds: descriptors, threads and zombies as before, memory flat.
    let mark = Mark::new();
    let mut session = Session::start(&[]);
    let runcap = session.child.id();
    let kinds = [
        json!({ "command": ["true"] }),
        json!({ "command": "exit 3" }),
        json!({ "command": "(sleep 0 &); echo text", "stdin": "input" }),
        json!({ "command": ["/no/such"] }),
        json!({ "command": format!("{mark} </dev/null >/dev/null 2>&1 & :") }),
    ];
    let mut run = |times: usize| {
        for _ in 0..times / kinds.len() {
            for request in &kinds {
                session.ask(request);
            }
        }
        assert_eq!(children(runcap), [0; 0], "no zombie, no child");
        (descriptors(runcap), threads(runcap), status_kib(runcap, "VmRSS"))
    };
    let (descriptors, threads, rss_kib) = run(100);
    let after = run(1000);
    assert_eq!((after.0, after.1), (descriptors, threads));
    assert!(after.2 < rss_kib + 512, "{rss_kib} KiB, then {} KiB", after.2);
    assert!(session.peak_rss_bytes() < 16 << 20, "{} bytes", session.peak_rss_bytes());
    assert_eq!(session.end().code(), Some(0));
    mark.assert_gone();
}

#[test]
fn es8_no_status_is_stolen_by_reaping() {
    // Eight sessions at once, 200 commands each: every second one leaves five orphans that end at
    // about the same time. Every status is right, and no zombie stays.
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut session = Session::start(&[]);
                noise(&mut session, 200);
                assert_eq!(children(session.child.id()), [0; 0]);
                assert_eq!(session.end().code(), Some(0));
            });
        }
    });
}

const NOISE: &str = "for j in 1 2 3 4 5; do (sleep 0.01 &) ; done; exit 9";

/// Runs this many commands and checks every exit code.
fn noise(session: &mut Session, count: u64) {
    for number in 0..count {
        let (command, code) = match number % 2 {
            0 => (format!("exit {}", number % 250), number % 250),
            _ => (NOISE.to_owned(), 9),
        };
        let answer = session.ask(&json!({ "command": command }));
        assert_has(
            &answer,
            &json!({ "status": "exited", "exit_code": code, "left_running": null }),
        );
    }
}

#[test]
fn es8_no_status_is_stolen_among_two_hundred_commands_at_once() {
    // exit $((I % 250)) 200 times at once in one process, a third of them with noise.
    let script = format!(r#"if [ $((I % 3)) = 0 ]; then {NOISE}; fi; exit $((I % 250))"#);
    for (number, (how, _, _)) in at_once(200, &script).into_iter().enumerate() {
        let code = if number % 3 == 0 { 9 } else { number % 250 };
        assert_eq!(how, format!("Some(Code({code}))"), "command {number}");
    }
}

/// `runcap json` as PID 1 of a PID namespace; its number seen from here.
fn as_pid_1() -> Option<(Session, u32)> {
    if !rustix::process::geteuid().is_root() {
        not_here("only root makes PID namespaces");
        return None;
    }
    if !installed("unshare") {
        return None;
    }
    let session = Session::of(through(&["unshare", "-pf", "--mount-proc"], &json_mode(&[])));
    let unshare = session.child.id();
    wait_until("it runs", || !children(unshare).is_empty());
    let runcap = children(unshare)[0];
    Some((session, runcap))
}

#[test]
fn rx4_no_zombie_stays_with_runcap_as_pid_1() {
    // Ten times (sleep 0.1 &); exit 0, killed or left: no zombie within a second, also of what
    // ends between two requests; every status is right (ES8).
    let Some((mut session, runcap)) = as_pid_1() else { return };
    let answer = session.ask(&json!({ "command": "echo $PPID" }));
    assert_eq!(answer["stdout"], "1\n", "{answer}");
    for leftovers in ["kill", "leave"] {
        for _ in 0..10 {
            let request = json!({
                "command": "(sleep 0.1 </dev/null >/dev/null 2>&1 &) ; exit 0",
                "leftovers": leftovers,
            });
            assert_has(&session.ask(&request), &json!({ "status": "exited", "exit_code": 0 }));
        }
        let answered = Instant::now();
        wait_until("all are reaped", || children(runcap).is_empty());
        assert!(answered.elapsed() < SECOND / 2 + slack(), "{:?}", answered.elapsed());
    }
    noise(&mut session, 60);
    wait_until("all are reaped", || children(runcap).is_empty());
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn rx4_as_pid_1_runcap_reaps_orphans_that_are_none_of_its_commands() {
    // A process enters the namespace, as `docker exec` does, and leaves an orphan: it lives until
    // it ends by itself, and is reaped though no request is being run.
    let Some((mut session, runcap)) = as_pid_1() else { return };
    session.ask(&json!({ "command": ["true"] }));
    if !installed("nsenter") {
        return;
    }
    let mark = Mark::new();
    let script = format!("(sleep 0.5 &); ({mark} &)");
    let target = runcap.to_string();
    let status = Command::new("nsenter")
        .args(["-t", &target, "-p", "-m", "/bin/sh", "-c", &script])
        .stdin(Stdio::null())
        .status();
    assert!(status.expect("nsenter starts").success());
    wait_until("two orphans came", || children(runcap).len() == 2);
    wait_until("one ended and was reaped", || children(runcap) == mark.sleepers());
    assert_eq!(mark.sleepers().len(), 1);
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn rx4_a_leftover_that_dies_between_two_requests_is_reaped() {
    // Left running, 0.3 s later dead, no request meanwhile: no zombie within a second of its end.
    let mark = Mark::new();
    let mut session = Session::start(&[]);
    let runcap = session.child.id();
    let command = format!("(sleep 0.3 &); (setsid {mark} &); exit 4");
    let answer = session.ask(&json!({ "command": command, "leftovers": "leave" }));
    assert_has(&answer, &json!({ "status": "exited", "exit_code": 4, "left_running": true }));
    let sleeper = mark.sleeper();
    wait_until("the one that ended is reaped", || children(runcap) == [sleeper]);
    send(sleeper, Signal::KILL);
    let killed = Instant::now();
    wait_until("the one that was killed is reaped", || children(runcap).is_empty());
    assert!(killed.elapsed() < SECOND / 2 + slack(), "{:?}", killed.elapsed());
    // What came to runcap from an earlier command is no affair of a later one.
    let answer = session.ask(&json!({ "command": format!("({mark} &); exit 5") }));
    assert_has(&answer, &json!({ "exit_code": 5, "killed_processes": 1 }));
    assert_eq!(session.end().code(), Some(0));
}

#[test]
fn what_one_command_left_survives_the_next_ones_sweep() {
    // A service is left; later commands time out, leave and sweep: it lives, with its parent.
    let (service, mark) = (Mark::new(), Mark::new());
    let mut session = Session::start(&[]);
    let left = format!("({service} </dev/null >/dev/null 2>&1 &); exit 0");
    session.ask(&json!({ "command": left, "leftovers": "leave" }));
    let sleeper = service.sleeper();
    let escape = format!("(setsid env -i {mark} <&- >&- 2>&- &)");
    for request in [
        json!({ "command": format!("{escape}; exec {mark}"), "timeout": 0.2 }),
        json!({ "command": format!("{escape}; exec {mark}"), "timeout": 0.2, "grace": 0 }),
        json!({ "command": format!("{escape}; exit 0") }),
    ] {
        let answer = session.ask(&request);
        mark.assert_gone();
        assert_has(&answer, &json!({ "killed_processes": 1, "left_running": null }));
        assert_eq!(stat(sleeper).expect("it lives").parent, session.child.id());
    }
    assert_eq!(session.end().code(), Some(0));
    assert!(is_alive(sleeper), "it outlives runcap, too");
}

#[test]
fn zombies_of_a_command_are_no_leftovers() {
    // A child that ends by itself while its parent, an orphan, does not reap it: nothing alive.
    let mut session = Session::start(&[]);
    let answer = session.ask(&json!({ "command": "sh -c 'true & exec sleep 0.1' & sleep 0.3" }));
    let expected = json!({ "status": "exited", "killed_processes": null, "left_running": null });
    assert_has(&answer, &expected);
    assert_eq!(zombies(session.child.id()), [0; 0]);
    assert_eq!(session.end().code(), Some(0));
}

/// A process whose first thread ends while another one appends to a file.
const HEADLESS: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
static char *path;
static void *beat(void *none) {
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    for (;;) { if (write(file, "x", 1) != 1) return none; usleep(2000); }
}
int main(int count, char **args) {
    pthread_t thread;
    path = args[count - 1];
    setsid();
    pthread_create(&thread, 0, beat, 0);
    syscall(SYS_exit, 0);
}
"#;

#[test]
fn a_process_whose_first_thread_has_ended_is_alive() {
    // /proc shows it as a zombie, and it goes on: outside the group it is killed and counted all
    // the same, or said to be left.
    if !installed("cc") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (source, program) = (file_in(&directory, "headless.c"), file_in(&directory, "headless"));
    std::fs::write(&source, HEADLESS).expect("a file");
    let status = Command::new("cc").args(["-pthread", "-o", &program, &source]).status();
    assert!(status.expect("a compiler starts").success());
    for (leftovers, killed, left) in
        [("kill", json!(1), json!(null)), ("leave", json!(null), json!(true))]
    {
        let beats = file_in(&directory, leftovers);
        let size = || std::fs::metadata(&beats).expect("it ran").len();
        let command =
            format!("({program} {beats} <&- >&- 2>&- &); while ! [ -s {beats} ]; do :; done");
        let answer = answer(json!({ "command": command, "leftovers": leftovers }));
        let at_answer = size();
        thread::sleep(Duration::from_millis(100));
        let later = size();
        // The one that was left has nobody else who would end it.
        let zombie = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name == "headless\n")
        };
        kill_all(&all_processes().into_iter().filter(zombie).collect::<Vec<_>>());
        assert_has(&answer, &json!({ "killed_processes": killed, "left_running": left }));
        assert_eq!(later == at_answer, leftovers == "kill", "{at_answer} bytes, then {later}");
    }
}
