//! `runcap run` under a terminal, as a person sees it.

mod pty;

use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::support::{Mark, Signal, Stat, children, executable, is_alive, send, stat, wait_until};
use pty::{CTRL_BACKSLASH, CTRL_C, CTRL_Z, Pty};

/// The runcap that `shell` has started; it has started its command.
fn runcap_under(shell: u32) -> u32 {
    let is_runcap = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "runcap\n")
    };
    let find = || children(shell).into_iter().find(is_runcap);
    wait_until("runcap runs a command", || find().is_some_and(|pid| !children(pid).is_empty()));
    find().expect("it was just there")
}

/// The command that `runcap` has started.
fn command_under(runcap: u32) -> u32 {
    wait_until("the command is there", || !children(runcap).is_empty());
    children(runcap)[0]
}

fn alive(pid: u32) -> Stat {
    stat(pid).expect("the process lives")
}

#[track_caller]
fn wait_for_state(pid: u32, state: char) {
    wait_until(&format!("state {state} of {:?}", stat(pid)), || {
        stat(pid).is_some_and(|now| now.state == state)
    });
}

#[track_caller]
fn wait_for_foreground(pty: &Pty, group: u32) {
    wait_until(&format!("the foreground is {group}'s"), || pty.foreground() == group);
}

#[test]
fn plain_run_leaves_the_terminal_to_the_command() {
    let mut pty = Pty::start(
        env!("CARGO_BIN_EXE_runcap"),
        &["run", "--", "sh", "-c", "for i in 0 1 2; do test -t $i && echo $i-is-one; done; exit 3"],
    );
    assert_eq!(pty.end(), 3);
    assert_eq!(pty.shown(), "0-is-one\r\n1-is-one\r\n2-is-one\r\n");
}

#[test]
fn the_foreground_is_the_commands_and_comes_back() {
    let rows = [
        ("it ends", "\n", "code=5", ""),
        ("it is killed", "", "code=137", "kill"),
        ("it times out", "", "code=124", "--timeout 0.5"),
    ];
    for (name, typed, code, how) in rows {
        let option = if how.starts_with("--") { how } else { "" };
        let mut pty = Pty::sh(&format!(
            "$RUNCAP run {option} -- sh -c 'echo up; read x; exit 5'; echo code=$?; read y"
        ));
        let runcap = runcap_under(pty.leader());
        let command = command_under(runcap);
        pty.wait_for("up");
        assert_eq!(alive(command).group, command, "{name}");
        assert_eq!(alive(runcap).group, pty.leader(), "{name}: runcap stays in the shell's group");
        assert_eq!(pty.foreground(), command, "{name}");
        pty.press(typed);
        if how == "kill" {
            send(command, Signal::KILL);
        }
        pty.wait_for(code);
        assert_eq!(pty.foreground(), pty.leader(), "{name}");
        pty.press("\n");
        assert_eq!(pty.end(), 0, "{name}: the shell can read the terminal");
    }
}

#[test]
fn keys_that_end_a_command_end_it_and_not_runcap() {
    let rows = [(CTRL_C, 130), (CTRL_BACKSLASH, 131)];
    for limits in ["", "--max-output-size 1K"] {
        for (key, code) in rows {
            let mut pty = Pty::sh(&format!(
                "trap : INT QUIT; $RUNCAP run {limits} -- sh -c '
                    ulimit -c 0; echo up; exec sleep 1000'; echo code=$?"
            ));
            pty.wait_for("up");
            pty.press(key);
            pty.wait_for(&format!("code={code}\r\n"));
            assert_eq!(pty.end(), 0, "{limits} {key:?}");
        }
    }
}

#[test]
fn a_command_may_take_ctrl_c_for_itself() {
    let mut pty =
        Pty::sh("$RUNCAP run -- sh -c 'trap \"echo caught\" INT; echo up; read x; read x; exit 6'");
    pty.wait_for("up");
    pty.press(CTRL_C);
    pty.wait_for("caught");
    pty.press("\n\n");
    assert_eq!(pty.end(), 6);
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let pty = Pty::interactive();
    pty.enter("$RUNCAP run -- sh -c 'echo up; read x; echo got=$x'");
    pty.wait_for("\r\nup\r\n");
    let runcap = runcap_under(pty.leader());
    let command = command_under(runcap);
    pty.press(CTRL_Z);
    pty.wait_for("Stopped");
    wait_for_foreground(&pty, pty.leader());
    assert_eq!([alive(runcap).state, alive(command).state], ['T', 'T']);
    pty.enter("fg");
    wait_for_foreground(&pty, command);
    // Once more: the second time is like the first.
    pty.press(CTRL_Z);
    wait_for_foreground(&pty, pty.leader());
    wait_for_state(command, 'T');
    pty.enter("fg");
    wait_for_foreground(&pty, command);
    pty.enter("words");
    pty.wait_for("got=words");
    wait_for_foreground(&pty, pty.leader());
    pty.enter("echo code=$?");
    pty.wait_for("code=0");
}

#[test]
fn bg_continues_a_job_without_the_terminal() {
    // It waits for a word through a pipe and so starts no process: one that is stopped between
    // vfork and exec would hold up its parent.
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let pty = Pty::interactive();
    pty.enter(&format!(
        "$RUNCAP run -- sh -c 'echo up; read go <{}; echo do''ne; read x; echo got=$x'",
        pipe.display()
    ));
    pty.wait_for("\r\nup\r\n");
    let runcap = runcap_under(pty.leader());
    let command = command_under(runcap);
    pty.press(CTRL_Z);
    wait_for_state(runcap, 'T');
    wait_for_foreground(&pty, pty.leader());
    pty.enter("bg");
    wait_until("both go on", || [runcap, command].iter().all(|pid| alive(*pid).state != 'T'));
    assert_eq!(pty.foreground(), pty.leader());
    std::fs::write(pipe, "go\n").expect("the command reads it");
    pty.wait_for("done");
    // It reads, from the background.
    wait_for_state(command, 'T');
    wait_for_state(runcap, 'T');
    assert_eq!(pty.foreground(), pty.leader());
    pty.enter("fg");
    wait_for_foreground(&pty, command);
    pty.enter("words");
    pty.wait_for("got=words");
}

#[test]
fn a_deadline_that_passes_while_stopped_acts_when_continued() {
    for resume in ["fg", "bg"] {
        let mark = Mark::new();
        let pty = Pty::interactive();
        pty.enter(&format!("$RUNCAP run --timeout 0.7 -- {mark}; echo code=$?"));
        let runcap = runcap_under(pty.leader());
        let command = mark.sleeper();
        let start = Instant::now();
        wait_for_foreground(&pty, command);
        pty.press(CTRL_Z);
        wait_for_state(command, 'T');
        wait_for_state(runcap, 'T');
        while start.elapsed() < Duration::from_millis(1000) {
            assert!(is_alive(command) && is_alive(runcap), "{resume}: nobody ends what is stopped");
            std::thread::sleep(Duration::from_millis(20));
        }
        pty.enter(resume);
        pty.wait_for("runcap: timed out after 700ms");
        wait_until("the command is gone", || !is_alive(command));
        wait_for_foreground(&pty, pty.leader());
        mark.assert_gone();
    }
}

#[test]
fn what_stops_a_command_from_elsewhere_stops_the_job_too() {
    let pty = Pty::interactive();
    pty.enter("$RUNCAP run -- sh -c 'echo up; read x; echo got=$x'");
    pty.wait_for("\r\nup\r\n");
    let runcap = runcap_under(pty.leader());
    let command = command_under(runcap);
    send(command, Signal::STOP);
    pty.wait_for("Stopped");
    wait_for_foreground(&pty, pty.leader());
    pty.enter("fg");
    wait_for_foreground(&pty, command);
    pty.enter("words");
    pty.wait_for("got=words");
}

#[test]
fn a_command_in_a_pipeline_gets_the_terminal_when_it_asks() {
    let reader = "$RUNCAP run -- sh -c 'read x </dev/tty; echo got=$x' | cat";
    let shell = Pty::sh(&format!("{reader}; read y; echo then=$y"));
    let interactive = Pty::interactive();
    interactive.enter(&format!("{reader}; read y; echo then=$y"));
    for pty in [shell, interactive] {
        let command = command_under(runcap_under(pty.leader()));
        wait_for_foreground(&pty, command);
        pty.enter("words");
        pty.wait_for("got=words");
        wait_until("the foreground comes back", || pty.foreground() != command);
        pty.enter("more");
        pty.wait_for("then=more");
    }
}

#[test]
fn ctrl_c_ends_a_pipeline_that_has_not_asked() {
    let mark = Mark::new();
    let pty = Pty::interactive();
    pty.enter(&format!("$RUNCAP run -- {mark} | cat; echo code=${{PIPESTATUS[0]}}"));
    let sleeper = mark.sleeper();
    assert_ne!(pty.foreground(), sleeper);
    pty.press(CTRL_C);
    wait_for_foreground(&pty, pty.leader());
    wait_until("the command is gone", || !is_alive(sleeper));
}

#[test]
fn ctrl_z_stops_a_pipeline_that_has_not_asked() {
    let mark = Mark::new();
    let pty = Pty::interactive();
    pty.enter(&format!("$RUNCAP run -- {mark} | cat"));
    let sleeper = mark.sleeper();
    let runcap = runcap_under(pty.leader());
    wait_for_foreground(&pty, alive(runcap).group);
    pty.press(CTRL_Z);
    pty.wait_for("Stopped");
    wait_for_state(sleeper, 'T');
    wait_for_state(runcap, 'T');
    pty.enter("fg");
    wait_until("both go on", || [runcap, sleeper].iter().all(|pid| alive(*pid).state == 'S'));
    pty.press(CTRL_C);
    wait_until("the command is gone", || !is_alive(sleeper));
}

#[test]
fn from_the_background_the_terminal_is_never_taken() {
    let pty = Pty::interactive();
    pty.enter("$RUNCAP run -- sh -c 'read x </dev/tty; echo got=$x' &");
    let runcap = runcap_under(pty.leader());
    let command = command_under(runcap);
    wait_for_state(command, 'T');
    wait_for_state(runcap, 'T');
    assert_eq!(pty.foreground(), pty.leader());
    // The shell is still spoken to.
    pty.enter("echo $((40 + 2))");
    pty.wait_for("\r\n42\r\n");
    pty.enter("fg");
    wait_for_foreground(&pty, command);
    pty.enter("words");
    pty.wait_for("got=words");
}

#[test]
fn settings_of_the_terminal_stay_as_they_were() {
    for limits in ["", "--max-output-size 1K", "--json"] {
        let mut pty = Pty::sh(&format!("read a; $RUNCAP run {limits} -- echo up; read b"));
        let before = format!("{:?}", pty.settings());
        pty.press("\n");
        pty.wait_for("up");
        wait_for_foreground(&pty, pty.leader());
        assert_eq!(format!("{:?}", pty.settings()), before, "{limits}");
        assert!(!pty.is_nonblocking(), "{limits}");
        pty.press("\n");
        assert_eq!(pty.end(), 0, "{limits}");
    }
}

#[test]
fn with_limits_a_command_has_no_terminal() {
    for limits in ["--max-output-size 1M", "--stdout-limit 1M", "--merge-stderr", "--json"] {
        let mark = Mark::new();
        let mut pty = Pty::sh(&format!(
            "$RUNCAP run {limits} -- sh -c 'read x </dev/tty; echo failed=$?; exec {mark}'"
        ));
        let command = mark.sleeper();
        let runcap = runcap_under(pty.leader());
        if limits != "--json" {
            // Passed on while it runs.
            pty.wait_for("failed=");
        }
        assert_eq!(alive(command).session, command, "{limits}");
        assert_eq!(alive(runcap).session, pty.leader(), "{limits}");
        assert_eq!(pty.foreground(), pty.leader(), "{limits}");
        send(command, Signal::TERM);
        pty.end();
        assert!(pty.shown().contains("failed="), "{limits}: {}", pty.shown());
    }
}

#[test]
fn a_new_window_size_reaches_the_command() {
    let pty = Pty::sh(
        "$RUNCAP run -- sh -c 'trap \"stty size\" WINCH; echo up
            while :; do sleep 0.02; done'",
    );
    pty.wait_for("up");
    pty.resize(97);
    pty.wait_for("24 97");
    pty.press(CTRL_C);
}

#[test]
fn ctrl_z_does_not_strand_the_command_of_a_session_leader() {
    // Nobody would continue runcap, so the kernel does not stop it: as in a container.
    let runcap = env!("CARGO_BIN_EXE_runcap");
    for (name, script, rest) in [
        ("with the terminal", "echo up; read x; exit 4", ""),
        // No second process: one that is stopped between vfork and exec holds up its parent.
        ("in a pipeline", "echo up >&2; exec sleep 0.5", "| (cat >/dev/null; exit 4)"),
    ] {
        let script = format!("exec {runcap} run -- sh -c '{script}' {rest}");
        let mut pty = Pty::start("bash", &["-c", &format!("set -o pipefail; {script}")]);
        pty.wait_for("up");
        pty.press(CTRL_Z);
        pty.wait_for("^Z");
        pty.press("\n");
        assert_eq!(pty.end(), 4, "{name}");
    }
}

#[test]
fn a_session_that_hangs_up_takes_the_command_along() {
    for limits in ["", "--max-output-size 1K"] {
        let mark = Mark::new();
        let pty = Pty::sh(&format!("$RUNCAP run {limits} -- {mark}; echo"));
        let sleeper = mark.sleeper();
        let runcap = runcap_under(pty.leader());
        send(pty.leader(), Signal::KILL);
        wait_until("both are gone", || ![sleeper, runcap].into_iter().any(is_alive));
    }
}

#[test]
fn a_command_that_cannot_be_executed_leaves_the_terminal() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = executable(directory.path(), "no-interpreter-line", "exit 0\n");
    let mut pty = Pty::sh(&format!("$RUNCAP run -- {script}; echo code=$?; read y; exit 9"));
    pty.wait_for("code=126");
    assert_eq!(pty.foreground(), pty.leader());
    pty.press("\n");
    assert_eq!(pty.end(), 9, "the shell can read the terminal");
}

#[test]
fn the_foreground_comes_back_from_a_job_of_the_command() {
    // The command is a shell that gives the terminal to a group of its own, and is killed.
    for leftovers in ["kill", "leave"] {
        let mark = Mark::new();
        let mut pty = Pty::sh(&format!(
            "$RUNCAP run --leftovers {leftovers} -- bash --norc --noprofile -i
            echo code=$?; read y; exit 9"
        ));
        pty.wait_for("ready> ");
        let shell = command_under(runcap_under(pty.leader()));
        pty.enter(&mark.to_string());
        let sleeper = mark.sleeper();
        wait_for_foreground(&pty, sleeper);
        send(shell, Signal::KILL);
        pty.wait_for("code=137");
        assert_eq!(is_alive(sleeper), leftovers == "leave");
        assert_eq!(pty.foreground(), pty.leader(), "{leftovers}");
        drop(mark);
        pty.press("\n");
        assert_eq!(pty.end(), 9, "{leftovers}: the shell can read the terminal");
    }
}
