//! `runcap run` without a terminal: its options, exit codes and lines of text.

mod help;
mod output;
mod signals;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    Mark, MemoryGroup, Value, assert_has, assert_took, executable, json, runcap, wait_until,
};

/// What one runcap did.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
    elapsed: Duration,
}

impl Ran {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The one line of `run --json`.
    #[track_caller]
    fn answer(&self) -> Value {
        assert_eq!(self.text().matches('\n').count(), 1, "{self:?}");
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// `runcap run ARGS`, not yet started, with nothing on stdin.
fn run_mode(args: &[&str]) -> Command {
    let mut command = runcap();
    command.arg("run").args(args).stdin(Stdio::null());
    command
}

/// Runs a command to its end and reads what it writes.
fn finish(mut command: Command) -> Ran {
    let start = Instant::now();
    let output = command.output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let elapsed = start.elapsed();
    Ran { code: output.status.code(), stdout: output.stdout, stderr, elapsed }
}

fn run(args: &[&str]) -> Ran {
    finish(run_mode(args))
}

/// `runcap run OPTIONS -- sh -c SCRIPT`.
fn run_sh(options: &[&str], script: &str) -> Ran {
    run(&[options, &["--", "sh", "-c", script]].concat())
}

/// The three ways in which `run` may stand to the output of a command.
const MODES: [(&str, &[&str]); 3] =
    [("inherited", &[]), ("mirrored", &["--max-output-size", "1M"]), ("answered", &["--json"])];

#[test]
fn every_exit_code_is_passed_on() {
    for code in 0..=255 {
        let ran = run_sh(&[], &format!("exit {code}"));
        assert_eq!((ran.code, &ran.stderr[..]), (Some(code), ""), "{code}");
    }
    for (mode, options) in &MODES[1..] {
        for code in [0, 1, 2, 10, 123, 124, 125, 126, 127, 128, 137, 255] {
            let ran = run_sh(options, &format!("exit {code}"));
            assert_eq!((ran.code, &ran.stderr[..]), (Some(code), ""), "{mode}, {code}");
        }
    }
}

#[test]
fn death_by_signal_is_128_and_its_number() {
    for (mode, options) in MODES {
        for signal in [1, 2, 3, 6, 9, 11, 13, 14, 15, 64] {
            let ran = run_sh(options, &format!("kill -{signal} $$"));
            assert_eq!((ran.code, &ran.stderr[..]), (Some(128 + signal), ""), "{mode}, {signal}");
        }
        // A child's death is the shell's to tell.
        let ran = run_sh(options, "sh -c 'kill -9 $$' | cat; exit 0");
        assert_eq!(ran.code, Some(0), "{mode}");
    }
}

#[test]
fn what_could_not_be_started_is_126_127_or_125() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("plain"), "no program").unwrap();
    let script = executable(directory.path(), "script", "#!/no/such/interpreter\n");
    let (plain, missing) = (path("plain"), path("missing"));
    // The last is the code of the answer.
    let rows: [(&[&str], i32, &str, &str); 10] = [
        (&["no-such-program"], 127, "program 'no-such-program' not found", "not_found"),
        (&[&missing], 127, "not found: No such file or directory", "not_found"),
        (&[""], 127, "program '' not found", "not_found"),
        (&[&plain], 126, "Permission denied", "not_executable"),
        (&["/"], 126, "cannot execute '/'", "not_executable"),
        (&["/etc/passwd/x"], 126, "Not a directory", "not_executable"),
        (&[&script], 126, "its interpreter", "not_executable"),
        (&["-C", &missing, "true"], 125, "cannot enter the working directory", "bad_cwd"),
        (&["-C", &plain, "true"], 125, "Not a directory", "bad_cwd"),
        (&["-e", "PATH=/no/such", "true"], 127, "program 'true' not found", "not_found"),
    ];
    for (args, code, message, error_code) in rows {
        for (mode, options) in MODES {
            let ran = run(&[options, args].concat());
            let name = format!("{mode}, {args:.60?}: {ran:?}");
            assert_eq!(ran.code, Some(code), "{name}");
            if mode == "answered" {
                let answer = ran.answer();
                assert_eq!(answer["status"], "failed_to_start", "{name}");
                assert_eq!(answer["error"]["code"], error_code, "{name}");
                assert!(answer["error"]["message"].as_str().unwrap().contains(message), "{name}");
                continue;
            }
            assert_eq!(ran.stdout, b"", "{name}");
            assert!(ran.stderr.starts_with("runcap: ") && ran.stderr.contains(message), "{name}");
            assert_eq!(ran.stderr.matches('\n').count(), 1, "{name}");
        }
    }
    let ran = run(&["--stdin", &missing, "true"]);
    let message = format!("runcap: cannot read --stdin {missing}: No such file or directory");
    assert_eq!((ran.code, &ran.stderr[..]), (Some(125), &*format!("{message} (os error 2)\n")));
}

#[test]
fn a_timeout_is_124_and_says_so() {
    // Options, script, whether TERM reached the script, and the line.
    let trap = "trap 'echo term; exit 0' TERM; echo started; sleep 30 & wait";
    let deaf = "trap '' TERM; echo started; sleep 30";
    let rows: [(&[&str], &str, &str, f64); 4] = [
        (&["-t", "0.3"], trap, "started\nterm\n", 0.3),
        (&["-t", "300ms", "-k", "30"], trap, "started\nterm\n", 0.3),
        (&["--timeout", "300ms", "--grace", "200ms"], deaf, "started\n", 0.5),
        (&["-t", "0.3", "-k", "0"], trap, "started\n", 0.3),
    ];
    for (mode, extra) in MODES {
        for (options, script, stdout, seconds) in rows {
            let ran = run_sh(&[options, extra].concat(), script);
            let name = format!("{mode}, {options:?}: {ran:?}");
            assert_eq!(ran.code, Some(124), "{name}");
            assert_took(ran.elapsed, Duration::from_secs_f64(seconds));
            if mode == "answered" {
                assert_has(&ran.answer(), &json!({"status": "timed_out", "stdout": stdout}));
                assert_eq!(ran.stderr, "", "{name}");
            } else {
                assert_eq!(ran.text(), stdout, "{name}");
                assert_eq!(ran.stderr, "runcap: timed out after 300ms\n", "{name}");
            }
        }
    }
}

#[test]
fn a_deadline_ends_everything_that_was_started() {
    for (mode, options) in MODES {
        let mark = Mark::new();
        let script = format!("setsid {mark} & {mark} & echo started; {mark}");
        let ran = run_sh(&[&["-t", "0.4"], options].concat(), &script);
        assert_eq!(ran.code, Some(124), "{mode}: {ran:?}");
        assert!(ran.text().contains("started"), "{mode}: {ran:?}");
        mark.assert_gone();
    }
}

#[test]
fn timeouts_are_durations_above_zero() {
    let rows = ["0", "0s", "-1", "NaN", "inf", "1e400", "", "5x", " 5", "1m30"];
    for timeout in rows {
        let option = format!("--timeout={timeout}");
        let ran = run(&[&option, "true"]);
        assert_eq!(ran.code, Some(125), "{timeout:?}: {ran:?}");
        assert!(ran.stderr.contains("--timeout"), "{timeout:?}: {ran:?}");
        if !timeout.is_empty() {
            assert!(ran.stderr.contains(timeout), "{timeout:?}: {ran:?}");
        }
    }
    for timeout in ["9223372036", "2562047h", "18446744073709551615", "1e300"] {
        // A timeout that is taken is not a short one, whatever its size.
        let ran = run_sh(&["-t", timeout], "sleep 0.1; echo ok");
        let refused = ran.code == Some(125) && ran.stderr.contains(timeout);
        let taken = ran.code == Some(0) && ran.stdout == b"ok\n";
        assert!(refused || taken, "{timeout}: {ran:?}");
        assert!(!ran.stderr.contains("panicked"), "{timeout}: {ran:?}");
    }
    assert_eq!(run(&["-t", "9223372036", "true"]).code, Some(0));
    assert_eq!(run(&["-t", "5", "-k", "9223372036", "true"]).code, Some(0));
}

#[test]
fn quiet_says_nothing_of_runcaps_own() {
    let rows: [(&[&str], i32); 6] = [
        (&["-t", "0.1", "sleep", "9"], 124),
        (&["--max-output-size", "1", "echo", "hello"], 0),
        (&["--max-output-size", "1", "--overflow", "stop", "yes"], 123),
        (&["no-such-program"], 127),
        (&["-C", "/no/such", "true"], 125),
        (&["--max-output-size", "9", "--leftovers", "leave", "sh", "-c", "sleep 1 & true"], 0),
    ];
    for (args, code) in rows {
        let loud = run(args);
        assert!(loud.stderr.starts_with("runcap: "), "{args:?}: {loud:?}");
        for quiet in ["-q", "--quiet"] {
            let ran = run(&[&[quiet], args].concat());
            assert_eq!((ran.code, &ran.stderr[..]), (Some(code), ""), "{args:?}");
            assert_eq!(ran.stdout, loud.stdout, "{args:?}");
        }
    }
    // What the command says is not runcap's.
    assert_eq!(run_sh(&["-q"], "echo mine >&2").stderr, "mine\n");
}

#[test]
fn options_end_where_the_command_begins() {
    let rows: [(&[&str], &str); 6] = [
        (&["echo", "-t", "5"], "-t 5\n"),
        (&["-t", "5", "echo", "--json", "--", "x"], "--json -- x\n"),
        (&["--", "printf", "%s", "--help"], "--help"),
        (&["printf", "%s", "--help"], "--help"),
        (&["--", "echo", "--", "-q"], "-- -q\n"),
        (&["-q", "--", "printf", "%s|", "", "a b", "*"], "|a b|*|"),
    ];
    for (args, expected) in rows {
        let ran = run(args);
        assert_eq!((ran.code, ran.text().as_str()), (Some(0), expected), "{args:?}: {ran:?}");
    }
    let ran = run(&["--", "-x"]);
    assert_eq!(ran.code, Some(127), "{ran:?}");
    assert!(ran.stderr.starts_with("runcap: program '-x' not found"), "{ran:?}");
}

#[test]
fn arguments_are_bytes() {
    let strange = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join(OsStr::from_bytes(b"d\xff"));
    std::fs::create_dir(&below).unwrap();
    std::fs::write(below.join(OsStr::from_bytes(b"f\xfe")), "from the file").unwrap();
    let mut command = run_mode(&["-e"]);
    command.arg(strange(b"V\xfd=\xfc=\xfb")).arg("-C").arg(&below);
    command.arg("--stdin").arg(below.join(OsStr::from_bytes(b"f\xfe")));
    let script = "cat; printf '|%s|' \"$0\"; grep -az ^V /proc/$$/environ | tr '\\0' '\\n'; pwd";
    command.args(["--", "sh", "-c", script]).arg(strange(b"a\xffb"));
    let ran = finish(command);
    let expected = [&b"from the file|a\xffb|V\xfd=\xfc=\xfb\n"[..], below.as_os_str().as_bytes()];
    assert_eq!(ran.stdout, [expected.concat(), b"\n".to_vec()].concat(), "{ran:?}");
    // An option whose value must be text names it.
    let mut command = run_mode(&["-t"]);
    command.arg(strange(b"5\xff")).arg("true");
    assert_eq!(finish(command).code, Some(125));
    // And a program that is not there.
    let mut command = run_mode(&["--"]);
    command.arg(strange(b"no\xff"));
    assert_eq!(finish(command).code, Some(127));
}

#[test]
fn directory_and_environment_are_as_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let path = path.to_str().unwrap();
    executable(directory.path(), "here", "#!/bin/sh\necho found\n");
    let own = std::env::current_dir().unwrap();
    let rows: [(&[&str], String); 9] = [
        (&["pwd"], format!("{}\n", own.display())),
        (&["-C", path, "pwd"], format!("{path}\n")),
        (&["--cwd", path, "./here"], "found\n".into()),
        (&["-e", "A=1", "-e", "B=", "--env", "A=2=3", "sh", "-c", "echo $A,$B"], "2=3,\n".into()),
        (&["sh", "-c", "echo $INHERITED"], "yes\n".into()),
        (&["-i", "/usr/bin/env"], String::new()),
        (&["--clear-env", "-e", "X=y", "/usr/bin/env"], "X=y\n".into()),
        (&["-i", "env"], String::new()),
        (&["-e", "INHERITED=no", "sh", "-c", "echo $INHERITED"], "no\n".into()),
    ];
    for (mode, options) in MODES {
        for (args, expected) in &rows {
            let mut command = run_mode(&[options, *args].concat());
            command.env("INHERITED", "yes");
            let ran = finish(command);
            assert_eq!(ran.code, Some(0), "{mode}, {args:?}: {ran:?}");
            let stdout = match mode {
                "answered" => ran.answer()["stdout"].as_str().unwrap().to_owned(),
                _ => ran.text(),
            };
            assert_eq!(&stdout, expected, "{mode}, {args:?}: {ran:?}");
        }
    }
}

#[test]
fn stdin_is_passed_on_or_what_was_asked_for() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from a file").unwrap();
    let path = file.path().to_str().unwrap();
    let rows: [(&[&str], &str); 3] =
        [(&[], "from runcap"), (&["--stdin", path], "from a file"), (&["--no-stdin"], "")];
    let given = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(given.path(), "from runcap").unwrap();
    for (mode, extra) in MODES {
        for (options, expected) in rows {
            let mut command = run_mode(&[options, extra, &["cat"]].concat());
            command.stdin(std::fs::File::open(given.path()).unwrap());
            let ran = finish(command);
            let stdout = match mode {
                "answered" => ran.answer()["stdout"].as_str().unwrap().to_owned(),
                _ => ran.text(),
            };
            assert_eq!((ran.code, stdout.as_str()), (Some(0), expected), "{mode}, {options:?}");
        }
    }
}

#[test]
fn a_command_may_leave_its_stdin_unread() {
    // A mebibyte is written to runcap; the status is the command's.
    for (script, code) in
        [("true", 0), ("head -c 1 >/dev/null; exit 6", 6), ("exec <&-; exit 6", 6)]
    {
        for (mode, options) in MODES {
            let mut command = run_mode(&[options, &["--", "sh", "-c", script]].concat());
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            let mut child = command.spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let writer = std::thread::spawn(move || {
                // Whether it is read is the command's affair.
                let _ = std::io::Write::write_all(&mut stdin, &vec![b'x'; 1 << 20]);
            });
            assert_eq!(child.wait().unwrap().code(), Some(code), "{mode}: {script}");
            writer.join().unwrap();
        }
    }
}

#[test]
fn each_limit_is_set_on_the_command() {
    // Option, value, and the line of /proc/self/limits with its soft limit.
    let rows = [
        ("--limit-memory", "1G", "Max address space", "1073741824"),
        ("--limit-processes", "4321", "Max processes", "4321"),
        ("--limit-open-files", "77", "Max open files", "77"),
        ("--limit-file-size", "64K", "Max file size", "65536"),
        ("--limit-cpu", "1234", "Max cpu time", "1234"),
    ];
    for (option, value, name, soft) in rows {
        for (mode, options) in &MODES[..2] {
            let ran = run(&[*options, &[option, value, "cat", "/proc/self/limits"]].concat());
            let text = ran.text();
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let line = line.unwrap_or_else(|| panic!("{option}: {ran:?}"));
            assert_eq!(line.split_whitespace().next(), Some(soft), "{mode}, {option}");
        }
        for (value, message) in [("-1", "unexpected"), ("x", "invalid value 'x'")] {
            let ran = run(&[option, value, "true"]);
            assert_eq!(ran.code, Some(125), "{option} {value}: {ran:?}");
            assert!(ran.stderr.contains(message), "{option} {value}: {ran:?}");
        }
    }
    let ran = run(&["--limit-cpu", "1", "--", "sh", "-c", "while :; do :; done"]);
    assert_eq!(ran.code, Some(128 + 24), "SIGXCPU: {ran:?}");
}

#[test]
fn leftovers_live_on_or_are_killed_as_asked() {
    // Options, whether what was left lives on, and what is said of it.
    let closed = "runcap: processes were left running, and their output is closed\n";
    let alone = "runcap: processes were left running\n";
    let (kill, leave): (&[&str], &[&str]) = (&["--leftovers", "kill"], &["--leftovers", "leave"]);
    let limit: &[&str] = &["--max-output-size", "1M"];
    let (merge, json): (&[&str], &[&str]) = (&["--merge-stderr"], &["--json"]);
    let rows: [(&str, Vec<&str>, &str, bool, &str); 11] = [
        ("plain", vec![], "&", true, ""),
        ("plain, kill", kill.to_vec(), "&", false, ""),
        ("plain, leave", leave.to_vec(), "&", true, ""),
        ("limit", limit.to_vec(), "&", false, ""),
        ("merge", merge.to_vec(), "&", false, ""),
        ("json", json.to_vec(), "&", false, ""),
        ("limit, kill", [kill, limit].concat(), "&", false, ""),
        ("limit, leave", [leave, limit].concat(), "&", true, closed),
        ("limit, leave, no pipe held", [leave, limit].concat(), ">/dev/null 2>&1 &", true, alone),
        ("json, leave", [leave, json].concat(), "&", true, closed),
        ("json, leave, no pipe held", [leave, json].concat(), ">/dev/null 2>&1 &", true, ""),
    ];
    for (name, options, redirection, lives, said) in rows {
        let mark = Mark::new();
        let mut command = run_mode(&options);
        let script = format!("setsid {mark} {redirection} {mark} {redirection} echo started");
        command.args(["--", "sh", "-c", &script]);
        // Files, so that what lives on does not hold this test.
        let files =
            [tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap()];
        command.stdout(files[0].reopen().unwrap()).stderr(files[1].reopen().unwrap());
        let start = Instant::now();
        let status = command.status().unwrap();
        assert_took(start.elapsed(), Duration::ZERO);
        let [stdout, stderr] = files.map(|file| std::fs::read_to_string(file.path()).unwrap());
        assert_eq!((status.code(), stderr.as_str()), (Some(0), said), "{name}");
        assert!(stdout.contains("started"), "{name}: {stdout}");
        if lives {
            wait_until(name, || mark.sleepers().len() == 2);
        } else {
            mark.assert_gone();
        }
        if name.starts_with("json") {
            let answer: Value = serde_json::from_str(&stdout).unwrap();
            let (left, killed) =
                if lives { (json!(true), json!(null)) } else { (json!(null), 2.into()) };
            let expected = json!({"left_running": left, "killed_processes": killed});
            assert_has(&answer, &expected);
        }
    }
}

#[test]
fn the_answer_of_run_is_that_of_json_mode() {
    let ran = run_sh(&["--json"], "printf 'out\\377'; echo err >&2; exit 3");
    assert_eq!((ran.code, &ran.stderr[..]), (Some(3), ""), "{ran:?}");
    let expected = json!({
        "status": "exited", "exit_code": 3, "stdout": "out\u{fffd}", "stdout_bytes": 4,
        "stdout_replaced": true, "stderr": "err\n", "stderr_bytes": 4, "tag": null, "event": null,
    });
    assert_has(&ran.answer(), &expected);
    let rows: [(&[&str], &str, i32, Value); 7] = [
        (&[], "kill -9 $$", 137, json!({"status": "signaled", "signal": 9})),
        (
            &["--max-output-size", "4"],
            "echo 123456789; exit 1",
            1,
            json!({"status": "exited", "stdout": "1234", "stdout_dropped_bytes": 6}),
        ),
        (
            &["--max-output-size", "4", "--overflow", "stop"],
            "yes",
            123,
            json!({"status": "output_limit", "stdout": "y\ny\n", "stdout_bytes": 5}),
        ),
        (
            &["--stderr-limit", "4,tail"],
            "echo 12345678 >&2",
            0,
            json!({"stderr": "678\n", "stderr_truncated": true}),
        ),
        (
            &["--merge-stderr"],
            "echo a; echo b >&2; echo c",
            0,
            json!({"stdout": "a\nb\nc\n", "stderr": "", "stderr_bytes": 0}),
        ),
        (
            &["-t", "0.2"],
            "sleep 9",
            124,
            json!({"status": "timed_out", "signal": 15,
                "reason": "the command was still running at its timeout of 200ms"}),
        ),
        (
            &[],
            "head -c 11534336 /dev/zero",
            0,
            json!({"stdout_bytes": 11_534_336, "stdout_dropped_bytes": 1_048_576}),
        ),
    ];
    for (options, script, code, expected) in rows {
        let ran = run_sh(&[&["--json"], options].concat(), script);
        assert_eq!((ran.code, &ran.stderr[..]), (Some(code), ""), "{options:?} {script}");
        assert_has(&ran.answer(), &expected);
    }
}

#[test]
fn an_answer_keeps_within_a_quarter_of_the_memory_limit() {
    let Some(group) = MemoryGroup::new("runcap-run-cli", 64 << 20) else { return };
    let rows: [(&[&str], Value, u64); 2] =
        [(&["--max-output-size", "200M"], json!(16 << 20), 16 << 20), (&[], json!(null), 10 << 20)];
    for (options, lowered, kept) in rows {
        let args = [options, &["--json", "--", "head", "-c", "300M", "/dev/zero"]].concat();
        let mut command = group.wrap(&run_mode(&args));
        command.stdin(Stdio::null());
        let ran = finish(command);
        assert_eq!(ran.code, Some(0), "{:?} {}", ran.code, ran.stderr);
        let answer = ran.answer();
        let dropped = (300 << 20) - kept;
        assert_eq!(answer["cap_lowered_to"], lowered);
        assert_eq!(answer["stdout_dropped_bytes"], json!(dropped));
    }
}
