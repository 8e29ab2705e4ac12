//! The child starts clean: signals, descriptors, group, limits.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::*;

/// A limit that changes nothing, for the path that commands with limits take.
fn no_limits() -> Value {
    json!({"open_files": 1000})
}

/// The value of `key` in the text of /proc/PID/status.
fn status<'a>(text: &'a str, key: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{key} in {text}")).trim()
}

/// As [`status`], without signals 32, 33 and 34: the C library keeps them for its threads, refuses
/// to change them, and its posix_spawn ignores them in every child.
fn signals(text: &str, key: &str) -> u64 {
    let bit = |signal: u32| 1 << (signal - 1);
    let signals = u64::from_str_radix(status(text, key), 16).expect("a number of base 16");
    signals & !(bit(32) | bit(33) | bit(34))
}

/// runcap started with signals ignored, and blocked: the command has neither.
#[test]
fn tk16_signals_ignored_or_blocked_at_start_are_neither_in_the_command() {
    let mut blocking = Command::new("env");
    blocking.arg("--block-signal=HUP,INT,QUIT,TERM,CHLD,USR1");
    let json = json_mode(&[]);
    blocking.arg(json.get_program()).args(json.get_args());
    let rows = [
        ("SigIgn", after("trap '' HUP INT QUIT TERM CHLD PIPE USR1", &json)),
        ("SigBlk", blocking),
    ];
    for (key, program) in rows {
        let mut session = Session::of(program);
        for limits in [json!({}), no_limits()] {
            let request = json!({"command": ["cat", "/proc/self/status"], "limits": limits});
            let answer = session.ask(&request);
            let text = answer["stdout"].as_str().unwrap();
            assert_eq!(signals(text, "SigIgn"), 0, "{key} {limits}");
            assert_eq!(signals(text, "SigBlk"), 0, "{key} {limits}");
        }
        // A lost SIGCHLD would lose this status.
        assert_has(&session.ask(&json!({"command": "exit 7"})), &json!({"exit_code": 7}));
        session.end();
    }
}

/// The shell that starts runcap does pass on what it ignores: without this the test above
/// would prove nothing.
#[test]
fn tk16_ignored_and_blocked_signals_do_reach_a_program_that_keeps_them() {
    let mut cat = Command::new("cat");
    cat.arg("/proc/self/status");
    let output = after("trap '' TERM", &cat).output().unwrap();
    assert_eq!(signals(str::from_utf8(&output.stdout).unwrap(), "SigIgn"), 0x4000);
    let mut blocking = Command::new("env");
    blocking.args(["--block-signal=TERM", "cat", "/proc/self/status"]);
    let output = blocking.output().unwrap();
    assert_eq!(signals(str::from_utf8(&output.stdout).unwrap(), "SigBlk"), 0x4000);
}

/// runcap inherited descriptors 7 and 9: the command has 0, 1, 2, and ls the one it lists with.
#[test]
fn the_command_inherits_descriptors_0_1_and_2_only() {
    let program = after("exec 7</dev/null 9>/dev/null", &json_mode(&[]));
    let mut session = Session::of(program);
    for limits in [json!({}), no_limits()] {
        for stdin in [Value::Null, json!("x")] {
            let mut request = json!({"command": ["ls", "/proc/self/fd"], "limits": limits});
            if !stdin.is_null() {
                request["stdin"] = stdin;
            }
            assert_eq!(session.ask(&request)["stdout"], "0\n1\n2\n3\n", "{request}");
        }
    }
    session.end();
}

/// The leader leads a group of its own, in runcap's session.
#[test]
fn the_command_leads_its_own_group() {
    let mut session = Session::start(&[]);
    for limits in [json!({}), no_limits()] {
        let request = json!({"command": ["cat", "/proc/self/stat"], "limits": limits});
        let answer = session.ask(&request);
        let stat: Vec<_> = answer["stdout"].as_str().unwrap().split_whitespace().collect();
        let (pid, parent, group) = (stat[0], stat[3], stat[4]);
        assert_eq!(group, pid);
        assert_eq!(parent, session.child.id().to_string());
    }
    session.end();
}

/// Each limit, as the command sees it: soft and hard.
#[test]
fn limits_are_those_of_the_command() {
    let rows = [
        ("memory", json!("1G"), "Max address space", "1073741824", "1073741824"),
        ("processes", json!(500), "Max processes", "500", "500"),
        ("open_files", json!(64), "Max open files", "64", "64"),
        ("file_size", json!("1M"), "Max file size", "1048576", "1048576"),
        // SIGXCPU at the soft limit, KILL a second later.
        ("cpu_seconds", json!(5), "Max cpu time", "5", "6"),
        ("core", json!(0), "Max core file size", "0", "0"),
    ];
    let mut session = Session::start(&[]);
    let mut all = json!({});
    for (field, value, name, soft, hard) in &rows {
        all[field] = value.clone();
        let limits = json!({ *field: value });
        check_limits(&mut session, &limits, &[(name, soft, hard)]);
    }
    let expected: Vec<_> = rows.iter().map(|(_, _, name, soft, hard)| (name, soft, hard)).collect();
    let expected: Vec<_> = expected.iter().map(|(a, b, c)| (**a, **b, **c)).collect();
    check_limits(&mut session, &all, &expected);
    // runcap keeps its own, but for the mark that it puts on its commands.
    let after = session.ask(&json!({"command": ["cat", "/proc/self/limits"]}));
    let own = fs::read_to_string(format!("/proc/{}/limits", session.child.id())).unwrap();
    let unmarked = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with("Max realtime timeout"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(unmarked(after["stdout"].as_str().unwrap()), unmarked(&own));
    session.end();
}

fn check_limits(session: &mut Session, limits: &Value, expected: &[(&str, &str, &str)]) {
    let answer = session.ask(&json!({"command": ["cat", "/proc/self/limits"], "limits": limits}));
    let text = answer["stdout"].as_str().unwrap();
    for (name, soft, hard) in expected {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        let values: Vec<_> = line.split_whitespace().take(2).collect();
        assert_eq!(values, [*soft, *hard], "{name} with {limits}");
    }
}

/// A limit that is reached acts as the kernel says: SIGXFSZ, SIGXCPU.
#[test]
fn rx5_a_command_past_its_limits_dies_of_their_signals() {
    let directory = tempfile::tempdir().unwrap();
    let rows = [
        (json!("exec head -c 1000000 /dev/zero >big"), json!({"file_size": 1024}), "SIGXFSZ"),
        (json!("while :; do :; done"), json!({"cpu_seconds": 1}), "SIGXCPU"),
    ];
    for (command, limits, signal) in rows {
        let answer = answer(json!({"command": command, "limits": limits, "timeout": 20,
            "max_output_size": 10, "cwd": directory.path()}));
        assert_has(&answer, &json!({"status": "signaled", "signal_name": signal}));
    }
}

/// With and without limits: the same error for a missing program, a script without `#!`, a
/// directory as a program, a missing interpreter and a missing working directory.
#[test]
fn commands_with_limits_fail_to_start_the_same_way() {
    let directory = tempfile::tempdir().unwrap();
    let executable = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    executable("no-shebang", "exit 0\n");
    executable("empty", "");
    executable("no-interpreter", "#!/no/such/interpreter\n");
    fs::write(directory.path().join("not-executable"), "#!/bin/sh\n").unwrap();
    let cwd = directory.path().to_str().unwrap();
    let rows = [
        ("no-such-program", cwd, "not_found"),
        ("./no-such-program", cwd, "not_found"),
        ("./no-shebang", cwd, "not_executable"),
        ("./empty", cwd, "not_executable"),
        ("./no-interpreter", cwd, "not_executable"),
        ("./not-executable", cwd, "not_executable"),
        (cwd, cwd, "not_executable"),
        ("true", "/no/such/directory", "bad_cwd"),
        ("true", "/dev/null", "bad_cwd"),
    ];
    let mut session = Session::start(&[]);
    for (program, cwd, code) in rows {
        let plain = session.ask(&json!({"command": [program], "cwd": cwd}));
        assert_eq!(plain["status"], "failed_to_start", "{program} in {cwd}: {plain}");
        assert_eq!(plain["error"]["code"], code, "{program} in {cwd}: {plain}");
        let request = json!({"command": [program], "cwd": cwd, "limits": no_limits()});
        assert_eq!(session.ask(&request), plain);
    }
    assert_eq!(children(session.child.id()).len(), 0);
    session.end();
}

/// With and without limits: the same arguments, variables and directory.
#[test]
fn commands_with_limits_start_the_same_way() {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"echo "$0" "$@"; pwd -P; env | grep -v ^_= | sort"#;
    let mut session = Session::start(&[]);
    for clear_env in [false, true] {
        let request = json!({"command": ["sh", "-c", script, "zero", "", "two words", "ü"],
            "cwd": directory.path(), "clear_env": clear_env,
            "env": {"ONE": "1=2\n3", "PATH": "/nowhere:/usr/bin:/bin"}});
        let plain = session.ask(&request);
        let mut limited = request;
        limited["limits"] = no_limits();
        let limited = session.ask(&limited);
        assert!(plain["stdout"].as_str().unwrap().contains("zero  two words ü\n"), "{plain}");
        assert_eq!(limited["stdout"], plain["stdout"]);
    }
    session.end();
}
