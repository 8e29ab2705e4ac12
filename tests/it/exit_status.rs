//! How a command ended, told apart: exit codes, signals, and everything that kept it from starting.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{
    Session, Value, answer, children, descriptors, executable, feed, feed_command, json, keys,
    measured, not_here, runcap, sh,
};

#[test]
fn es1_a_death_by_signal_is_no_exit_code() {
    let rows = [
        ("kill -9 $$", "signaled", json!(null), json!(9), json!("SIGKILL")),
        ("kill -SEGV $$", "signaled", json!(null), json!(11), json!("SIGSEGV")),
        ("sh -c 'kill -9 $$' | cat; exit 0", "exited", json!(0), json!(null), json!(null)),
        ("exit 137", "exited", json!(137), json!(null), json!(null)),
    ];
    for (script, status, code, signal, name) in rows {
        let answer = sh(script);
        assert_eq!(answer["status"], status, "{script}");
        assert_eq!(answer["exit_code"], code, "{script}");
        assert_eq!(answer.get("signal").unwrap_or(&json!(null)), &signal, "{script}");
        assert_eq!(answer.get("signal_name").unwrap_or(&json!(null)), &name, "{script}");
    }
}

#[test]
fn es1_every_signal_has_its_name() {
    for (signal, name) in [(1, "SIGHUP"), (6, "SIGABRT"), (13, "SIGPIPE"), (15, "SIGTERM")] {
        let answer = sh(&format!("kill -{signal} $$"));
        assert_eq!((&answer["signal"], &answer["signal_name"]), (&json!(signal), &json!(name)));
    }
    let real_time = measured("kill -40 $$");
    assert_eq!(
        (&real_time["signal"], &real_time["signal_name"]),
        (&json!(40), &json!("SIGRTMIN+6"))
    );
}

/// What an answer says of a command that could not be started: code and message.
fn start_error(answer: &Value) -> (&str, &str) {
    assert_eq!(answer["status"], "failed_to_start", "{answer}");
    assert_eq!(answer["exit_code"], json!(null));
    let error = &answer["error"];
    let text = |key: &str| error[key].as_str().expect("error has code and message");
    (text("code"), text("message"))
}

#[test]
fn es2_what_could_not_start_is_told_from_what_ended_with_126_or_127() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    let (plain, directory) = (plain.to_str().unwrap(), directory.path().to_str().unwrap());
    let rows = [
        ("absent", "/nonexistent", "not_found", "os error 2"),
        ("absent from PATH", "no-such-program", "not_found", "os error 2"),
        ("no x bit", plain, "not_executable", "os error 13"),
        ("a directory", directory, "not_executable", "os error 13"),
        ("below a file", "/etc/passwd/x", "not_executable", "os error 20"),
    ];
    let mut session = Session::start(&[]);
    session.ask(&json!({ "command": ["true"] }));
    let before = descriptors(session.child.id());
    for (name, program, code, errno) in rows {
        for limits in [json!({}), json!({ "core": 0 })] {
            let answer = session.ask(&json!({ "command": [program], "limits": limits }));
            let (found, message) = start_error(&answer);
            assert_eq!(found, code, "{name}: {message}");
            assert!(message.contains(errno) && message.contains(program), "{name}: {message}");
            assert_eq!(children(session.child.id()), [0; 0], "{name} leaves no process");
        }
    }
    for code in [126, 127] {
        let answer = session.ask(&json!({ "command": format!("exit {code}") }));
        assert_eq!((&answer["status"], &answer["exit_code"]), (&json!("exited"), &json!(code)));
        assert_eq!(answer.get("error"), None);
    }
    assert_eq!(descriptors(session.child.id()), before, "no descriptor is left behind");
    assert_eq!(session.end().code(), Some(0), "every request was carried out");
}

#[test]
fn es3_a_missing_cwd_is_named_and_not_the_program() {
    for (cwd, errno) in [("/no/such/dir", "os error 2"), ("/etc/passwd", "os error 20")] {
        for key in ["cwd", "working_dir"] {
            let answer = answer(json!({ "command": ["/bin/echo", "x"], key: cwd }));
            let (code, message) = start_error(&answer);
            assert_eq!(code, "bad_cwd", "{message}");
            assert!(message.contains(cwd) && message.contains(errno), "{message}");
            assert!(!message.contains("echo"), "{message}");
        }
    }
}

#[test]
fn es3_a_cwd_that_may_not_be_entered_is_named_and_not_the_program() {
    // As another user, since root may enter any directory; so the program moves where that user
    // can reach it.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("runcap");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_runcap")).arg(&program).status();
    assert!(copied.unwrap().success());
    let closed = directory.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o644)).unwrap();

    let mut command = Command::new(&program);
    command.arg("json").current_dir("/");
    if rustix::process::getuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let request = json!({ "command": ["/bin/echo", "x"], "cwd": closed });
    let run = feed_command(command, request.to_string().as_bytes());
    let (code, message) = start_error(&run.answers[0]);
    assert_eq!(code, "bad_cwd", "{message}");
    assert!(message.contains("closed") && message.contains("os error 13"), "{message}");
}

#[test]
fn es4_a_script_that_cannot_be_executed_is_a_start_error() {
    let directory = tempfile::tempdir().unwrap();
    let rows = [
        ("no shebang", "echo hi\n", "not_executable", "os error 8"),
        ("empty", "", "not_executable", "os error 8"),
        ("interpreter missing", "#!/no/such\n", "not_executable", "interpreter"),
    ];
    for (name, text, code, fragment) in rows {
        let script = executable(directory.path(), name, text);
        for limits in [json!({}), json!({ "core": 0 })] {
            let answer = answer(json!({ "command": [script], "limits": limits }));
            let (found, message) = start_error(&answer);
            assert_eq!(found, code, "{name}: {message}");
            assert!(message.contains(fragment), "{name}: {message}");
        }
    }
}

#[test]
fn es5_a_relative_program_is_the_childs_and_its_own_path_is_searched() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let path = |name: &str| root.join(name).to_str().unwrap().to_owned();
    for name in ["w1", "w2"] {
        executable(root, &format!("{name}/tool"), &format!("#!/bin/sh\necho {name}\n"));
    }
    executable(root, "w1/sub/inner", "#!/bin/sh\necho inner\n");
    executable(root, "w2/only-here", "#!/bin/sh\necho runcaps own\n");
    let (w1, w2) = (path("w1"), path("w2"));
    let rows = [
        ("relative to the new cwd", json!({ "command": ["./tool"], "cwd": w1 }), "w1\n"),
        ("no cwd: runcap's", json!({ "command": ["./tool"] }), "w2\n"),
        ("PATH of env", json!({ "command": ["tool"], "env": { "PATH": w1 } }), "w1\n"),
        ("env cleared", json!({ "command": ["sh", "-c", "echo $#"], "clear_env": true }), "0\n"),
        (
            "relative PATH entry, from the new cwd",
            json!({ "command": ["inner"], "cwd": w1, "env": { "PATH": "/nowhere:sub" } }),
            "inner\n",
        ),
        (
            "empty PATH entry is the new cwd",
            json!({ "command": ["tool"], "cwd": w1, "env": { "PATH": "/nowhere:" } }),
            "w1\n",
        ),
        ("runcap's PATH", json!({ "command": ["only-here"] }), "runcaps own\n"),
        (
            "runcap's PATH is not env's",
            json!({ "command": ["only-here"], "env": { "PATH": w1 } }),
            "",
        ),
        ("nor that of a cleared env", json!({ "command": ["only-here"], "clear_env": true }), ""),
        (
            "runcap's cwd is not searched",
            json!({ "command": ["only-here"], "env": { "PATH": "" }, "cwd": w1 }),
            "",
        ),
    ];
    let mut command = runcap();
    let inherited = std::env::var("PATH").unwrap();
    command.arg("json").current_dir(&w2).env("PATH", format!("{w2}:{inherited}"));
    let mut session = Session::of(command);
    for (name, request, stdout) in rows {
        let answer = session.ask(&request);
        assert_eq!(answer["stdout"], stdout, "{name}: {answer}");
        if stdout.is_empty() {
            assert_eq!(start_error(&answer).0, "not_found", "{name}");
        }
    }
    session.end();
}

#[test]
fn es7_an_ignored_sigchld_loses_no_status() {
    let mut command = Command::new("env");
    command.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_runcap"), "json"]);
    let input = br#"{"command":"exit 7"} {"command":["grep","SigIgn","/proc/self/status"]}"#;
    let run = feed_command(command, input);
    assert_eq!(run.answers[0]["exit_code"], 7);
    // posix_spawn of glibc and musl leaves the signals that libc keeps for itself (32 to 34)
    // ignored.
    let ignored = run.answers[1]["stdout"].as_str().unwrap().trim_start_matches("SigIgn:").trim();
    let ignored = u64::from_str_radix(ignored, 16).unwrap() & !(0b111 << 31);
    assert_eq!(ignored, 0, "nor is it handed on");
}

/// A command that leaves orphans.
const NOISE: &str = "for j in 1 2 3 4 5; do (sleep 0.01 &) ; done; exit 9";

/// Asks for 50 exit codes from `first` on, with and without orphans, and looks for zombies.
fn es8_codes(first: u32) {
    let mut session = Session::start(&[]);
    for code in first..first + 50 {
        let answer = session.ask(&json!({ "command": format!("exit {}", code % 250) }));
        assert_eq!(answer["exit_code"], code % 250);
        if code % 10 == 0 {
            assert_eq!(session.ask(&json!({ "command": NOISE }))["exit_code"], 9);
        }
    }
    assert_eq!(children(session.child.id()), [0; 0], "no zombie");
    session.end();
}

#[test]
fn es8_every_status_of_one_session_is_right() {
    for first in [0, 50, 100, 150, 200] {
        es8_codes(first);
    }
}

#[test]
fn es8_every_status_of_parallel_sessions_is_right() {
    thread::scope(|scope| {
        for first in [0, 50, 100, 150, 200] {
            scope.spawn(move || es8_codes(first));
        }
    });
}

#[test]
fn es8_every_status_is_right_as_pid_1_and_no_zombie_stays() {
    const UNSHARE: [&str; 2] = ["-Upfr", "--mount-proc"];
    let works = Command::new("unshare").args(UNSHARE).arg("true").output();
    if !works.is_ok_and(|output| output.status.success()) {
        return not_here("no user and pid namespaces of its own");
    }
    let mut command = Command::new("unshare");
    command.args(UNSHARE).args([env!("CARGO_BIN_EXE_runcap"), "json"]);
    let mut session = Session::of(command);
    assert_eq!(session.ask(&json!({ "command": "echo $PPID" }))["stdout"], "1\n");
    for code in 0..50 {
        let answer = session.ask(&json!({ "command": format!("exit {code}") }));
        assert_eq!(answer["exit_code"], code);
        for leftovers in ["kill", "leave"] {
            let noise = json!({ "command": NOISE, "leftovers": leftovers });
            assert_eq!(session.ask(&noise)["exit_code"], 9, "{leftovers}");
        }
    }
    // Looks for a second, or until there is none.
    let zombies = r#"for i in $(seq 20); do
        count=$(cat /proc/[0-9]*/status 2>/dev/null | grep -c '^State:.Z')
        [ "$count" = 0 ] && break
        sleep 0.05
    done; echo $count"#;
    assert_eq!(session.ask(&json!({ "command": zombies }))["stdout"], "0\n");
    session.end();
}

#[test]
fn es9_the_commands_code_is_passed_on_and_truncation_does_not_change_it() {
    let rows = [
        (json!({ "command": "exit 10" }), 10),
        (json!({ "command": "exit 255" }), 255),
        (json!({ "command": "exit 256" }), 0),
        (json!({ "command": "yes | head -c 100000; exit 1", "max_output_size": 10 }), 1),
        (json!({ "command": "seq 9000; exit 3", "keep": "tail", "max_output_size": 9 }), 3),
        (json!({ "command": "seq 9000; exit 4", "capture": false }), 4),
    ];
    for (request, code) in rows {
        let run = feed(&[], request.to_string().as_bytes());
        let answer = &run.answers[0];
        assert_eq!((&answer["status"], &answer["exit_code"]), (&json!("exited"), &json!(code)));
        assert_eq!(run.code(), Some(0), "the code of a command is none of runcap's");
    }
}

#[test]
fn es10_a_file_that_is_closed_soon_runs() {
    let directory = tempfile::tempdir().unwrap();
    let mut session = Session::start(&[]);
    session.ask(&json!({ "command": ["true"] }));
    // A loaded machine may close the file later than it was told to: then once more.
    let runs = (0..20).any(|_| {
        let script = executable(directory.path(), "script", "#!/bin/sh\necho ran\n");
        let writer = File::options().append(true).open(&script).unwrap();
        session.send(&json!({ "command": [script] }));
        thread::sleep(Duration::from_millis(20));
        drop(writer);
        session.line().unwrap()["stdout"] == "ran\n"
    });
    assert!(runs, "a file that was busy for 20 ms was not executed once in 20 times");
    session.end();
}

#[test]
fn es10_a_file_held_for_good_is_a_clear_error_within_a_fifth_of_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let script = executable(directory.path(), "script", "#!/bin/sh\necho ran\n");
    let _writer = File::options().append(true).open(&script).unwrap();
    let mut session = Session::start(&[]);
    session.ask(&json!({ "command": ["true"] }));
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let answer = session.ask(&json!({ "command": [script] }));
        best = best.min(start.elapsed());
        let (code, message) = start_error(&answer);
        assert_eq!(code, "not_executable");
        assert!(message.contains("os error 26") && message.contains("script"), "{message}");
    }
    assert!(best < Duration::from_millis(200), "{best:?}");
    session.end();
}

#[test]
fn es10_a_script_written_while_others_spawn_runs() {
    let directory = tempfile::tempdir().unwrap();
    let done = AtomicBool::new(false);
    let answers: Vec<Value> = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // Bounded, so that a failure ends the test.
                for _ in 0..20_000 {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    Command::new("/bin/true").status().unwrap();
                }
            });
        }
        let mut session = Session::start(&[]);
        let ask = |index| {
            let script = directory.path().join(format!("script{index}"));
            fs::write(&script, format!("#!/bin/sh\nexit {index}\n")).unwrap();
            fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
            session.ask(&json!({ "command": [script] }))
        };
        let answers = (0..100).map(ask).collect();
        done.store(true, Ordering::Relaxed);
        answers
    });
    // On a loaded machine one of the others may hold the file for longer than is waited for.
    let busy = |answer: &Value| answer["error"].to_string().contains("os error 26");
    assert!(answers.iter().filter(|answer| busy(answer)).count() <= 2, "{answers:?}");
    for (index, answer) in answers.iter().enumerate() {
        assert!(busy(answer) || answer["exit_code"] == index, "{answer}");
    }
}

#[test]
fn an_answer_has_exactly_the_keys_of_how_it_ended() {
    const STARTED: &str = "cpu_seconds duration end_time exit_code max_rss_bytes start_time status \
                           stderr stderr_bytes stdout stdout_bytes";
    const NOT_STARTED: &str = "error exit_code status stderr stderr_bytes stdout stdout_bytes";
    const BASE64: &str = "cpu_seconds duration end_time exit_code max_rss_bytes start_time status \
                          stderr_base64 stderr_bytes stdout_base64 stdout_bytes";
    let truncated = "stdout_dropped_bytes stdout_gap_at stdout_truncated";
    let rows = [
        ("plain", json!({ "command": "echo hi" }), STARTED, "".to_owned()),
        ("tag", json!({ "command": "echo hi", "tag": "" }), STARTED, "tag".to_owned()),
        ("base64", json!({ "command": "echo hi", "encoding": "base64" }), BASE64, "".to_owned()),
        (
            "not UTF-8",
            json!({ "command": r"printf '\377'" }),
            STARTED,
            "stdout_replaced".to_owned(),
        ),
        (
            "truncated",
            json!({ "command": "seq 9", "max_output_size": 3 }),
            STARTED,
            truncated.to_owned(),
        ),
        ("signaled", json!({ "command": "kill $$" }), STARTED, "signal signal_name".to_owned()),
        (
            "timed out",
            json!({ "command": ["sleep", "60"], "timeout": 0.05 }),
            STARTED,
            "reason signal signal_name".to_owned(),
        ),
        (
            "timed out, exited on TERM",
            json!({ "command": "trap 'exit 3' TERM; sleep 60 & wait", "timeout": 1 }),
            STARTED,
            "reason killed_processes".to_owned(),
        ),
        (
            "output limit",
            json!({ "command": ["yes"], "max_output_size": 3, "overflow": "stop" }),
            STARTED,
            format!("reason signal signal_name stdout_incomplete {truncated}"),
        ),
        ("failed to start", json!({ "command": ["/none"] }), NOT_STARTED, "".to_owned()),
        ("bad request", json!({ "command": [] }), NOT_STARTED, "".to_owned()),
    ];
    for (name, request, common, own) in rows {
        let answer = answer(request);
        let mut expected: Vec<_> = common.split(' ').chain(own.split_terminator(' ')).collect();
        expected.sort_unstable();
        assert_eq!(keys(&answer), expected, "{name}: {answer}");
        check_types(&answer);
        if name != "plain" && answer["status"] != "exited" {
            assert_eq!(answer["exit_code"], json!(null), "{name}");
        }
    }
}

#[test]
fn a_command_stopped_at_its_output_limit_dies_of_the_kill_and_of_nothing_before() {
    // A pipe that is closed first would let the shell see `yes` die of SIGPIPE and go on.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("went-on");
    let script = format!("yes; echo $? > {}", file.display());
    let request = json!({ "command": script, "max_output_size": 3, "overflow": "stop" });
    let mut session = Session::start(&[]);
    for round in 0..100 {
        let answer = session.ask(&request);
        assert_eq!(answer["status"], "output_limit", "{answer}");
        assert_eq!(answer["signal_name"], "SIGKILL", "round {round}: {answer}");
        assert!(!file.exists(), "round {round}");
    }
    session.end();
}

/// Each field is of the type that the table of fields gives it.
fn check_types(answer: &Value) {
    for (key, value) in answer.as_object().unwrap() {
        let right = match key.as_str() {
            "exit_code" => value.is_i64() || value.is_null(),
            "error" => {
                let mut keys = keys(value);
                keys.retain(|key| !matches!(*key, "field" | "offset"));
                keys == ["code", "message"]
            }
            "duration" | "cpu_seconds" => value.is_f64(),
            "signal" | "max_rss_bytes" | "killed_processes" => value.is_u64(),
            key if key.ends_with("_bytes") || key.ends_with("_gap_at") => value.is_u64(),
            "stdout_truncated" | "stdout_incomplete" | "stdout_replaced" => value == true,
            _ => value.is_string(),
        };
        assert!(right, "{key}: {value}");
    }
}

#[test]
fn start_end_and_duration_agree_and_cpu_and_memory_are_plausible() {
    let before = std::time::SystemTime::now();
    let answer = measured("$HELPER burn-cpu 20; $HELPER touch-memory 50");
    let after = std::time::SystemTime::now();
    assert_eq!(answer["exit_code"], 0, "{answer}");

    let seconds = |key: &str| answer[key].as_f64().unwrap();
    assert!((0.2..5.0).contains(&seconds("cpu_seconds")), "{answer}");
    assert!(seconds("duration") >= 0.15, "{answer}");
    let memory = answer["max_rss_bytes"].as_u64().unwrap();
    assert!((50 << 20..80 << 20).contains(&memory), "{answer}");

    let [start, end] =
        ["start_time", "end_time"].map(|key| nanoseconds(answer[key].as_str().unwrap()));
    let since_epoch = |moment: std::time::SystemTime| {
        moment.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
    };
    assert!(since_epoch(before) <= start && end <= since_epoch(after), "{answer}");
    let told = (seconds("duration") * 1e9) as u128;
    assert!((end - start).abs_diff(told) <= 2_000, "to the microsecond: {answer}");
}

/// Nanoseconds since the epoch of `2026-01-02T03:04:05.123456789Z`, as `date` reads it.
fn nanoseconds(moment: &str) -> u128 {
    assert_eq!((moment.len(), moment.ends_with('Z')), (30, true), "{moment}");
    let output = Command::new("date").args(["-d", moment, "+%s%N"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}
