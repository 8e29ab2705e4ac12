//! How a command is made to end: TERM and CONT, the grace, KILL, the drain limit.

use std::time::Duration;

use crate::support::*;

/// What a loaded machine may take longer than the bounds say.
const SLACK: Duration = Duration::from_millis(800);

/// Asserts that the command took at least `least` and not much more.
#[track_caller]
fn assert_took(answer: &Value, least: f64) {
    let (took, least) = (duration(answer), Duration::from_secs_f64(least));
    assert!(took >= least && took < least + SLACK, "{least:?} expected: {answer}");
}

/// A command that stopped itself, timeout 0.3 s: TERM and CONT end it then, not the grace.
#[test]
fn tk6_a_stopped_command_ends_at_the_deadline() {
    let script = "kill -STOP $$; echo never";
    let answer = answer(json!({"command": script, "timeout": 0.3, "grace": 10}));
    let expected = json!({"status": "timed_out", "signal_name": "SIGTERM", "stdout": ""});
    assert_has(&answer, &expected);
    assert_took(&answer, 0.3);
}

/// TERM ignored, grace 0.4 s: killed then.
#[test]
fn tk2_a_command_that_ignores_term_is_killed_after_the_grace() {
    let script = "trap '' TERM; echo before; while :; do sleep 1; done";
    let answer = answer(json!({"command": script, "timeout": 0.3, "grace": 0.4}));
    assert_has(
        &answer,
        &json!({"status": "timed_out", "exit_code": null, "signal": 9, "signal_name": "SIGKILL",
            "stdout": "before\n"}),
    );
    assert_took(&answer, 0.7);
}

/// Grace 0: KILL at once, so that no trap runs.
#[test]
fn without_grace_there_is_no_term() {
    let script = "trap 'echo term; exit 0' TERM; while :; do sleep 0.05; done";
    let answer = answer(json!({"command": script, "timeout": 0.3, "grace": 0}));
    let expected = json!({"status": "timed_out", "signal_name": "SIGKILL", "stdout": ""});
    assert_has(&answer, &expected);
    assert_took(&answer, 0.3);
}

/// A trap that cleans up within the grace: it is heard, and nothing waits for the grace's end.
#[test]
fn a_command_that_ends_on_term_is_heard_and_not_waited_for() {
    let script = "trap 'echo cleaned up; exit 5' TERM; while :; do sleep 0.05; done";
    let answer = answer(json!({"command": script, "timeout": 0.3, "grace": 20}));
    assert_has(
        &answer,
        &json!({"status": "timed_out", "exit_code": null, "signal": null,
            "stdout": "cleaned up\n"}),
    );
    assert_took(&answer, 0.3);
}

/// The first TERM asks, and to many programs a second one means "at once": there is one.
#[test]
fn term_comes_once() {
    let mut session = Session::start(&[]);
    let script = "trap 'echo term' TERM; sleep 5; sleep 0.01; :";
    let mut heard = 0;
    for _ in 0..20 {
        let answer = session.ask(&json!({"command": script, "timeout": 0.05, "grace": 5}));
        // On a loaded machine the deadline may come before the trap.
        let count = answer["stdout"].as_str().unwrap().lines().count();
        assert!(count <= 1, "{answer}");
        heard += count;
    }
    assert!(heard > 0, "the trap was never set in time");
    session.end();
}

/// A leader that moved to another group: its group is empty, and it ends at the deadline.
#[test]
fn tk7_a_leader_that_left_its_group_ends_too() {
    for (grace, signal) in [(20, "SIGTERM"), (0, "SIGKILL")] {
        let command = [&helper(), "sleep-in-group-of-parent", "100"];
        let answer = answer(json!({"command": command, "timeout": 0.3, "grace": grace}));
        assert_has(&answer, &json!({"status": "timed_out", "signal_name": signal}));
        assert_took(&answer, 0.3);
    }
}

/// The leader ends on TERM, a member of its group ignores TERM: dead when the answer arrives.
#[test]
fn tk1_a_group_member_that_ignores_term_is_dead_when_the_answer_arrives() {
    let sleep = marked_sleep();
    let script = format!("trap 'exit 0' TERM; (trap '' TERM; exec {sleep}) & wait");
    let mut session = Session::start(&[]);
    session.send(&json!({"command": script, "timeout": 0.5, "grace": 0.4}));
    wait_until("shell and member run", || processes_with(&sleep).len() == 2);
    let answer = session.line().unwrap();
    assert_eq!(processes_with(&sleep).len(), 0);
    assert_has(&answer, &json!({"status": "timed_out", "stdout_incomplete": null}));
    assert_took(&answer, 0.9);
    session.end();
}

/// The whole group ends on TERM: the answer comes then, not after the grace.
#[test]
fn tk1_the_whole_group_ends_at_the_deadline() {
    let sleep = marked_sleep();
    let script = format!("{sleep} & {sleep} | {sleep}");
    let mut session = Session::start(&[]);
    session.send(&json!({"command": script, "timeout": 0.5, "grace": 20}));
    wait_until("shell and three run", || processes_with(&sleep).len() == 4);
    let answer = session.line().unwrap();
    assert_eq!(processes_with(&sleep).len(), 0);
    assert_took(&answer, 0.5);
    session.end();
}

/// A background process that left the group holds the pipe: the answer waits a quarter of a
/// second for it and says that the end was not seen.
#[test]
fn pg1_a_process_that_holds_the_pipe_delays_the_answer_by_the_drain_limit() {
    let sleep = marked_sleep();
    let script = format!("{} detached-sleep 5 {sleep} & echo started", helper());
    let mut session = Session::start(&[]);
    let answer = session.ask(&json!({"command": script, "timeout": 60, "leftovers": "leave"}));
    kill_all(&processes_with(&sleep));
    assert_has(
        &answer,
        &json!({"status": "exited", "exit_code": 0, "stdout": "started\n",
            "stdout_incomplete": true, "stderr_incomplete": true}),
    );
    assert_took(&answer, 0.25);
    session.end();
}

/// A background process that left the group holds a full stdin: nobody waits until it reads.
#[test]
fn pg1_a_process_that_holds_stdin_does_not_delay_the_answer() {
    let sleep = marked_sleep();
    let hold = format!("{} detached-sleep 5 {sleep} <&3 >/dev/null 2>&1 &", helper());
    let command = format!("exec 3<&0; {hold} echo started");
    let mut session = Session::start(&[]);
    let answer = session.ask(&json!({"command": command, "stdin": "x".repeat(1 << 20),
        "timeout": 60, "leftovers": "leave"}));
    kill_all(&processes_with(&sleep));
    assert_has(&answer, &json!({"status": "exited", "stdout": "started\n"}));
    assert_took(&answer, 0.0);
    session.end();
}

/// A short-lived background process writes after the leader's end: taken, and nothing waits on.
#[test]
fn pg4_what_a_short_background_process_writes_last_is_taken() {
    let script = "(sleep 0.03; echo late) & echo early";
    let answer = answer(json!({"command": script, "leftovers": "leave"}));
    let expected = json!({"stdout": "early\nlate\n", "stdout_incomplete": null});
    assert_has(&answer, &expected);
    assert_took(&answer, 0.03);
}
