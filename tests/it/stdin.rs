//! What the command reads, and that runcap never waits for it to read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::*;

/// `len` zero bytes as a request spells them.
fn zeros(len: usize) -> String {
    let padding = [0, 2, 1][len % 3];
    "A".repeat((len + padding) / 3 * 4 - padding) + &"=".repeat(padding)
}

/// Ten megabytes through `cat`: written and read at the same time.
fn ten_megabytes_through_cat(session: &mut Session) {
    let stdin = zeros(10 << 20);
    let request = json!({"command": "cat", "stdin_base64": stdin, "timeout": 20,
        "encoding": "base64"});
    let answer = session.ask(&request);
    assert_has(&answer, &json!({"status": "exited", "exit_code": 0, "stdout_bytes": 10 << 20}));
    assert!(answer["stdout_base64"] == stdin, "what came back is not what was sent");
}

#[test]
fn si1_ten_megabytes_through_cat_come_back_whole() {
    let mut session = Session::start(&[]);
    ten_megabytes_through_cat(&mut session);
    session.end();
}

/// 100 MiB for `sleep 100`, timeout a second: ended then, and the input is held once.
#[test]
fn si2_stdin_that_nobody_reads_delays_no_deadline_and_is_held_once() {
    let mut session = Session::start(&["--max-request-size", "150M"]);
    session.ask(&json!({"command": "true"}));
    let before = session.peak_rss_bytes();
    let stdin = "x".repeat(100 << 20);
    let answer = session.ask(&json!({"command": ["sleep", "100"], "timeout": 1, "stdin": stdin}));
    assert_has(&answer, &json!({"status": "timed_out", "signal_name": "SIGTERM"}));
    assert!(duration(&answer) < Duration::from_millis(2500), "{answer}");
    let grown = session.peak_rss_bytes().saturating_sub(before);
    assert!(grown < 110 << 20, "grew by {grown} bytes");
    session.end();
}

/// A megabyte for commands that do not read it, or only one byte, or close it.
#[test]
fn si3_input_that_is_not_read_is_no_error() {
    let stdin = "x".repeat(1 << 20);
    let mut session = Session::start(&[]);
    let request = json!({"command": ["true"], "stdin": stdin}).to_string();
    for _ in 0..100 {
        session.send_text(&request);
        let answer = session.line().expect("an answer");
        assert_has(&answer, &json!({"status": "exited", "exit_code": 0, "error": null}));
    }
    for script in ["head -c 1 >/dev/null; exit 6", "exec <&-; sleep 1; exit 6"] {
        let answer = session.ask(&json!({"command": script, "stdin": stdin}));
        assert_has(&answer, &json!({"status": "exited", "exit_code": 6, "stderr": ""}));
    }
    assert!(session.end().success());
}

/// Writes to both streams, then lists its own descriptors into a file.
const LIST_DESCRIPTORS: &str =
    r#"echo out; echo err >&2; (ls -l /proc/$$/fd >"$FILE"); echo listed >>"$FILE"; exit 3"#;

/// runcap without descriptor 0, 1, 2 or all of them: each counts as /dev/null.
#[test]
fn si5_descriptors_closed_at_start_are_dev_null() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("descriptors");
    let request = json!({"command": LIST_DESCRIPTORS, "env": {"FILE": &file}});
    // (what is closed, exit code, whether the command runs, answers)
    let rows = [
        ("exec <&-", 1, false, 1),
        ("exec >&-", 0, true, 0),
        ("exec 2>&-", 0, true, 1),
        ("exec >&- 2>&-", 0, true, 0),
        ("exec <&- >&- 2>&-", 1, false, 0),
    ];
    for (closing, code, runs, answers) in rows {
        let run = feed_command(after(closing, &json_mode(&[])), request.to_string().as_bytes());
        assert_eq!(run.code(), Some(code), "{closing}: {run:?}");
        assert_eq!((run.answers.len(), run.stderr.as_str()), (answers, ""), "{closing}");
        if let (true, Some(answer)) = (runs, run.answers.first()) {
            let expected = json!({"exit_code": 3, "stdout": "out\n", "stderr": "err\n"});
            assert_has(answer, &expected);
        }
        if runs {
            let listed = fs::read_to_string(&file).unwrap();
            let targets: Vec<_> =
                listed.lines().filter_map(|line| line.split_once(" -> ")).collect();
            assert_eq!(targets.len(), 3, "{closing}: {listed}");
            assert_eq!(targets[0].1, "/dev/null");
            assert!(targets[1..].iter().all(|(_, to)| to.starts_with("pipe:")), "{listed}");
            assert!(listed.ends_with("listed\n"), "nothing of runcap's in it: {listed}");
            fs::remove_file(&file).unwrap();
        }
        assert!(!file.exists(), "{closing}: the command did not run");
    }
}

/// A user with more than a thousand pipes gets pipes of one or two pages: nothing depends on it.
#[test]
fn si6_small_pipes_are_enough() {
    if fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft").unwrap().trim() == "0" {
        return not_here("the kernel does not limit pipes of a user");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &str, name: &str| {
        let to = directory.path().join(name);
        fs::copy(from, &to).unwrap();
        to
    };
    let mut command = Command::new(copy(&helper(), "helper"));
    command.arg("small-pipes").arg(copy(env!("CARGO_BIN_EXE_runcap"), "runcap")).arg("json");
    command.current_dir("/").stderr(Stdio::inherit());
    if rustix::process::geteuid().is_root() {
        // The limit does not hold root.
        command.uid(65534).gid(65534);
    }
    let mut session = Session::of(command);
    ten_megabytes_through_cat(&mut session);
    let script = "head -c 1000000 /dev/zero; echo DONE >&2; exit 7";
    let limit = json!({"max_output_size": 1000});
    let answer = session.ask(&json!({"command": script, "timeout": 10, "stdout_limit": limit}));
    let expected = json!({"exit_code": 7, "stderr": "DONE\n", "stdout_bytes": 1000000});
    assert_has(&answer, &expected);
    assert!(session.end().success());
}

/// Where a request gives none, there is nothing to read and nothing to wait for.
#[test]
fn stdin_is_dev_null_unless_given() {
    let commands = [json!(["readlink", "/proc/self/fd/0"]), json!("cat; readlink /proc/self/fd/0")];
    for command in commands {
        let answer = answer(json!({"command": command, "timeout": 10}));
        assert_has(&answer, &json!({"exit_code": 0, "stdout": "/dev/null\n"}));
    }
    let empty = answer(json!({"command": "cat; readlink /proc/self/fd/0", "stdin": ""}));
    assert!(empty["stdout"].as_str().unwrap().starts_with("pipe:"), "{empty}");
}
