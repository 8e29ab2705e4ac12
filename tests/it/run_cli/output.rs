//! Output of a command: inherited, or passed on up to a limit.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, pipe};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{MODES, Ran, finish, run, run_mode, run_sh};
use crate::support::{
    Mark, Signal, after, assert_took, children, is_alive, json, measured, send, slack, wait_until,
};

#[test]
fn what_is_kept_is_passed_on_exactly_and_the_rest_is_said() {
    let both = "printf 0123456789; printf abcdefghij >&2";
    let stopped =
        "runcap: stdout: kept the first 4 of 5 bytes\nruncap: stdout: stopped at its limit\n";
    // Options, script, code, stdout, stderr.
    let rows: [(&[&str], &str, i32, &str, &str); 15] = [
        (&["--max-output-size", "10"], both, 0, "0123456789", "abcdefghij"),
        (
            &["--max-output-size", "9"],
            "printf 0123456789; exit 7",
            7,
            "012345678",
            "runcap: stdout: kept the first 9 of 10 bytes\n",
        ),
        (
            &["--max-output-size", "5"],
            "echo abcdefghi >&2",
            0,
            "",
            "abcd\n\
             runcap: stderr: kept the first 4 and the last 1 of 10 bytes\n",
        ),
        (
            &["--max-output-size", "5", "--keep", "tail"],
            "echo 012345678; echo abcdefghi >&2",
            0,
            "5678\n",
            "fghi\n\
             runcap: stdout: kept the last 5 of 10 bytes\n\
             runcap: stderr: kept the last 5 of 10 bytes\n",
        ),
        (
            &["--max-output-size", "10", "--keep", "head+tail"],
            "seq 1 100",
            0,
            "1\n2\n3\n4\n0\n",
            "runcap: stdout: kept the first 8 and the last 2 of 292 bytes\n",
        ),
        (
            &["--max-output-size", "4", "--keep", "head+tail"],
            "seq 1 100",
            0,
            "1\n2\n",
            "runcap: stdout: kept the first 4 of 292 bytes\n",
        ),
        (
            &["--stdout-limit", "4"],
            both,
            0,
            "0123",
            "abcdefghij\nruncap: stdout: kept the first 4 of 10 bytes\n",
        ),
        (
            &["--stderr-limit", "4,head"],
            both,
            0,
            "0123456789",
            "abcd\nruncap: stderr: kept the first 4 of 10 bytes\n",
        ),
        (
            &["--max-output-size", "4", "--stderr-limit", "tail,6"],
            both,
            0,
            "0123",
            "efghij\n\
             runcap: stdout: kept the first 4 of 10 bytes\n\
             runcap: stderr: kept the last 6 of 10 bytes\n",
        ),
        (&["--max-output-size", "4", "--overflow", "stop"], "yes 123", 123, "123\n", stopped),
        (&["--stdout-limit", "4,stop"], "yes 123", 123, "123\n", stopped),
        (&["--stdout-limit", "4,stop"], "echo 123; exit 3", 3, "123\n", ""),
        (
            &["--stderr-limit", "4,stop"],
            "exec yes 123 >&2",
            123,
            "",
            "123\n\
             runcap: stderr: kept the first 4 of 5 bytes\n\
             runcap: stderr: stopped at its limit\n",
        ),
        (&["--merge-stderr"], "echo a; echo b >&2; echo c", 0, "a\nb\nc\n", ""),
        (
            &["--merge-stderr", "--max-output-size", "5"],
            "echo a; echo b >&2; echo c",
            0,
            "a\nb\nc",
            "runcap: stdout: kept the first 5 of 6 bytes\n",
        ),
    ];
    for (options, script, code, stdout, stderr) in rows {
        let ran = run_sh(options, script);
        let name = format!("{options:?} {script}");
        assert_eq!((ran.code, &*ran.text(), &*ran.stderr), (Some(code), stdout, stderr), "{name}");
    }
}

#[test]
fn hundreds_of_megabytes_past_the_limit_are_counted() {
    let ran = run_sh(&["--max-output-size", "10M"], "head -c 300M /dev/zero; exit 5");
    let expected = "runcap: stdout: kept the first 10485760 of 314572800 bytes\n";
    assert_eq!((ran.code, ran.stdout.len(), &*ran.stderr), (Some(5), 10 << 20, expected));
    assert!(ran.stdout.iter().all(|byte| *byte == 0));
}

#[test]
fn any_bytes_are_passed_on_as_they_are() {
    let bytes: Vec<u8> =
        (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let path = file.path().to_str().unwrap();
    let cut = bytes.len() - 1000;
    for (size, keep, expected) in [
        ("1M", "head", &bytes[..]),
        ("1M", "tail", &bytes[..]),
        ("1M", "head+tail", &bytes[..]),
        ("299000", "head", &bytes[..cut]),
        ("299000", "tail", &bytes[1000..]),
    ] {
        let ran = run(&["--max-output-size", size, "--keep", keep, "cat", path]);
        assert_eq!(ran.code, Some(0), "{size} {keep}");
        assert!(ran.stdout == expected, "{size} {keep}: {} bytes", ran.stdout.len());
    }
}

/// Starts a command whose stdout is read line by line.
fn start(mut command: Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
    (child, stdout)
}

fn line(stdout: &mut impl BufRead) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).expect("output is text");
    line
}

#[test]
fn output_is_passed_on_while_the_command_runs() {
    let rows: [&[&str]; 4] = [
        &["--max-output-size", "1M"],
        &["--max-output-size", "1M", "--keep", "head+tail"],
        &["--merge-stderr"],
        &["--stderr-limit", "1K"],
    ];
    for options in rows {
        let mark = Mark::new();
        let script = format!("printf 'one\\npart'; {mark}; echo never");
        let (mut child, mut stdout) =
            start(run_mode(&[options, &["-k", "0.1", "--", "sh", "-c", &script]].concat()));
        assert_eq!(line(&mut stdout), "one\n", "{options:?}");
        let mut part = [0; 4];
        stdout.read_exact(&mut part).unwrap();
        assert_eq!(&part, b"part", "{options:?}");
        // The line came although the command still runs.
        mark.sleeper();
        send(child.id(), Signal::TERM);
        assert_eq!(child.wait().unwrap().code(), Some(143), "{options:?}");
    }
}

#[test]
fn a_tail_comes_at_the_end() {
    // What is still to be cut off cannot be passed on: nothing comes before the end.
    let mark = Mark::new();
    let script = format!("seq 1 5; {mark}");
    let options = ["--max-output-size", "4", "--keep", "tail", "-q", "-t", "0.5"];
    let (mut child, mut stdout) = start(run_mode(&[&options[..], &["sh", "-c", &script]].concat()));
    let begin = Instant::now();
    assert_eq!(line(&mut stdout), "4\n");
    assert_took(begin.elapsed(), Duration::from_millis(400));
    assert_eq!(line(&mut stdout), "5\n");
    assert_eq!(child.wait().unwrap().code(), Some(124));
}

/// Where descriptors 0, 1 and 2 of the command and of runcap lead, one a line in a file.
fn links(options: &[&str], setup: impl FnOnce(&mut Command)) -> (Vec<String>, Vec<String>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let script = format!(
        "(for pid in $$ $PPID; do for fd in 0 1 2; do \
         readlink /proc/$pid/fd/$fd; done; done) >{path}; true"
    );
    let mut command = run_mode(&[options, &["--", "sh", "-c", &script]].concat());
    setup(&mut command);
    assert_eq!(command.status().unwrap().code(), Some(0));
    let text = std::fs::read_to_string(&path).unwrap();
    let links: Vec<_> = text.lines().map(str::to_owned).collect();
    assert_eq!(links.len(), 6, "{links:?}");
    let (command, runcap) = links.split_at(3);
    (command.to_vec(), runcap.to_vec())
}

#[test]
fn without_limits_the_descriptors_are_runcaps_own() {
    let setup = |command: &mut Command| {
        let (reader, writer) = pipe().unwrap();
        command.stdin(reader).stdout(writer);
        command.stderr(tempfile::tempfile().unwrap());
    };
    // Nobody stands between: nothing could copy a byte.
    let (of_command, of_runcap) = links(&[], setup);
    assert_eq!(of_command, of_runcap);
    assert!(of_command[0].starts_with("pipe:") && of_command[2].contains("/tmp"), "{of_command:?}");
    assert_eq!(links(&["-t", "9", "-q", "--leftovers", "kill"], setup).0.len(), 3);
    let (of_command, of_runcap) = links(&["--max-output-size", "1M"], setup);
    assert_eq!(of_command[0], of_runcap[0], "stdin is passed on");
    assert_ne!(of_command[1], of_runcap[1]);
    assert_ne!(of_command[2], of_runcap[2]);
}

#[test]
fn no_descriptor_is_made_nonblocking() {
    // Flags of /proc/PID/fdinfo are octal; 0o4000 is O_NONBLOCK.
    let nonblocking = |flags: &str| i64::from_str_radix(flags.trim(), 8).unwrap() & 0o4000 != 0;
    for (mode, options) in MODES {
        let script = "for fd in 0 1 2; do sed -n 's/flags://p' /proc/self/fdinfo/$fd; done; true";
        let (reader, writer) = pipe().unwrap();
        let mut command = run_mode(&[options, &["--", "sh", "-c", script]].concat());
        let ran = finish({
            command.stdin(reader.try_clone().unwrap());
            command
        });
        let text = match mode {
            "answered" => ran.answer()["stdout"].as_str().unwrap().to_owned(),
            _ => ran.text(),
        };
        assert_eq!(text.lines().filter(|flags| nonblocking(flags)).count(), 0, "{mode}: {text}");
        assert_eq!(text.lines().count(), 3, "{mode}: {text}");
        for end in [rustix::fs::fcntl_getfl(&reader), rustix::fs::fcntl_getfl(&writer)] {
            assert!(!end.unwrap().contains(rustix::fs::OFlags::NONBLOCK), "{mode}");
        }
    }
}

#[test]
fn a_slow_reader_gets_everything() {
    let expected: String = (1..=50_000).map(|number| format!("{number}\n")).collect();
    for options in
        [&[][..], &["--max-output-size", "1M"], &["--max-output-size", "1M", "--keep", "tail"]]
    {
        let script = "seq 1 50000; echo done >&2";
        let mut command = run_mode(&[options, &["--", "sh", "-c", script]].concat());
        command.stderr(Stdio::null());
        let (mut child, mut stdout) = start(command);
        let (mut text, mut piece) = (Vec::new(), [0; 20_000]);
        loop {
            std::thread::sleep(Duration::from_millis(20));
            match stdout.get_mut().read(&mut piece).unwrap() {
                0 => break,
                count => text.extend_from_slice(&piece[..count]),
            }
        }
        assert_eq!(child.wait().unwrap().code(), Some(0), "{options:?}");
        assert!(text == expected.as_bytes(), "{options:?}: {} bytes", text.len());
    }
}

#[test]
fn a_reader_may_begin_after_the_command_has_ended() {
    // 200000 bytes do not fit into the two pipes between them. Nobody is in a hurry.
    let mark = Mark::new();
    let script = format!("head -c 200000 /dev/zero; echo x >&2; : {mark}");
    let mut command = run_mode(&["--max-output-size", "1M", "--", "sh", "-c", &script]);
    command.stderr(Stdio::null());
    let (mut child, mut stdout) = start(command);
    std::thread::sleep(Duration::from_millis(1500));
    let mut text = Vec::new();
    stdout.read_to_end(&mut text).unwrap();
    assert_eq!((child.wait().unwrap().code(), text.len()), (Some(0), 200_000));
}

/// Runs a command whose stdout nobody reads, until runcap ends.
fn unread(options: &[&str], script: &str) -> (Child, std::io::PipeReader) {
    let (reader, writer) = pipe().unwrap();
    let mut command = run_mode(&[options, &["--", "sh", "-c", script]].concat());
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    (child, reader)
}

/// Waits for the end of a runcap that writes little; one that does not end is killed.
fn end_of(mut child: Child, since: Instant) -> Ran {
    while child.try_wait().unwrap().is_none() {
        if since.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("runcap does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ran { code: output.status.code(), stdout: Vec::new(), stderr, elapsed: since.elapsed() }
}

#[test]
fn a_reader_that_never_reads_does_not_hold_runcap_past_its_deadline() {
    let capped: &[&str] = &["--max-output-size", "1M"];
    let tail: &[&str] = &["--max-output-size", "1M", "--keep", "tail"];
    let no_reader = "runcap: cannot write to stdout: its reader does not read\n";
    let timed_out = "runcap: timed out after 400ms\n";
    let both = format!("{no_reader}{timed_out}");
    // More than one pipe holds, and less than two of them.
    let long = "head -c 110000 /dev/zero";
    let rows: [(&str, &[&str], &str, i32, &str); 6] = [
        ("endless", capped, "exec yes", 124, &both),
        ("endless, tail", tail, "exec yes", 124, &both),
        ("endless, answer", &["--json"], "exec yes", 124, &both),
        // The command ended in time; what it wrote did not get out.
        ("ended", capped, long, 125, no_reader),
        ("ended, tail", tail, long, 125, no_reader),
        ("ended, answer", &["--json"], long, 125, no_reader),
    ];
    std::thread::scope(|scope| {
        for (name, options, script, code, said) in rows {
            scope.spawn(move || {
                let options = [options, &["-t", "0.4", "-k", "0.2"]].concat();
                let start = Instant::now();
                let (child, _reader) = unread(&options, script);
                let ran = end_of(child, start);
                assert_eq!((ran.code, &*ran.stderr), (Some(code), said), "{name}");
                let most = Duration::from_millis(400 + 200 + 1500) + slack();
                assert!(ran.elapsed < most, "{name}: {:?}", ran.elapsed);
            });
        }
    });
}

#[test]
fn a_signal_ends_a_runcap_whose_reader_does_not_read() {
    // The command has ended by itself; nothing but the reader holds runcap up.
    let rows: [(&str, &[&str]); 3] = [
        ("head", &["--max-output-size", "1M"]),
        ("tail", &["--max-output-size", "1M", "--keep", "tail"]),
        ("answer", &["--json"]),
    ];
    std::thread::scope(|scope| {
        for (name, options) in rows {
            scope.spawn(move || {
                let end = tempfile::tempdir().unwrap();
                let end = end.path().join("reached");
                // More than one pipe holds, and less than two of them.
                let script = format!("head -c 110000 /dev/zero; >{}", end.display());
                let (child, _reader) = unread(options, &script);
                let runcap = child.id();
                wait_until(name, || end.exists() && !children(runcap).into_iter().any(is_alive));
                std::thread::sleep(Duration::from_millis(100));
                assert!(is_alive(runcap), "{name}: it waits for its reader");
                let start = Instant::now();
                send(runcap, Signal::TERM);
                let ran = end_of(child, start);
                assert_eq!(ran.code, Some(143), "{name}: {ran:?}");
                assert!(ran.elapsed < Duration::from_secs(1) + slack(), "{name}: {ran:?}");
            });
        }
    });
}

#[test]
fn a_broken_stdout_ends_the_command_and_is_141() {
    let rows: [(&str, &[&str], &str); 6] = [
        ("inherited", &[], "exec yes"),
        ("mirrored", &["--max-output-size", "1M"], "exec yes"),
        ("beyond the limit", &["--max-output-size", "2"], "echo 123456; exec yes"),
        ("tail", &["--max-output-size", "1K", "--keep", "tail"], "seq 1 9999"),
        ("merged", &["--merge-stderr"], "exec yes >&2"),
        ("answer", &["--json"], "exec yes"),
    ];
    for (name, options, script) in rows {
        let mark = Mark::new();
        let script = format!("{mark} & {script}");
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let options = [options, &["--leftovers", "kill", "--", "sh", "-c", &script]].concat();
        let start = Instant::now();
        let child = run_mode(&options).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let ran = end_of(child, start);
        assert_eq!((ran.code, &*ran.stderr), (Some(141), ""), "{name}");
        assert_took(ran.elapsed, Duration::ZERO);
        mark.assert_gone();
    }
}

#[test]
fn a_stdout_that_breaks_later_ends_the_command_too() {
    for options in [&["--max-output-size", "100M"][..], &[]] {
        let (mut child, mut stdout) = start(run_mode(&[options, &["yes"]].concat()));
        assert_eq!(line(&mut stdout), "y\n");
        drop(stdout);
        assert_eq!(child.wait().unwrap().code(), Some(141), "{options:?}");
    }
}

#[test]
fn a_full_disk_is_125_and_named() {
    let rows: [(&[&str], &str, &str); 5] = [
        (&["--max-output-size", "1M"], "stdout", "exec yes"),
        (&["--max-output-size", "1K", "--keep", "tail"], "stdout", "seq 1 9999"),
        (&["--merge-stderr"], "stdout", "echo x >&2"),
        (&["--json"], "stdout", "echo x"),
        (&["--max-output-size", "1M"], "stderr", "echo x >&2"),
    ];
    for (options, stream, script) in rows {
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let mut command = run_mode(&[options, &["--", "sh", "-c", script]].concat());
        if stream == "stdout" {
            command.stdout(full()).stderr(Stdio::piped());
        } else {
            command.stdout(Stdio::piped()).stderr(full());
        }
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{options:?}");
        if stream == "stdout" {
            let expected =
                "runcap: cannot write to stdout: No space left on device (os error 28)\n";
            assert_eq!(String::from_utf8_lossy(&output.stderr), expected, "{options:?}");
        }
    }
}

#[test]
fn closed_descriptors_count_as_dev_null() {
    // What runcap opens must not get their numbers, nor its words end up in what it opened.
    for (mode, options) in MODES {
        for closed in 0..8 {
            let list: Vec<_> = (0..3).filter(|fd| closed & 1 << fd != 0).collect();
            let file = tempfile::NamedTempFile::new().unwrap();
            let path = file.path().to_str().unwrap();
            let script = format!(
                "cat >/dev/null; echo out; echo err >&2; \
                 (for fd in 0 1 2; do readlink /proc/$$/fd/$fd; done) >{path}; exit 3"
            );
            let closing: Vec<_> = list.iter().map(|fd| format!("exec {fd}>&-")).collect();
            let setup = format!("true; {}", closing.join("; "));
            let setup = setup.trim_end_matches("; ");
            let ran = finish({
                let inner = run_mode(&[options, &["--", "sh", "-c", &script]].concat());
                let mut command = after(setup, &inner);
                command.stdin(Stdio::null());
                command
            });
            let name = format!("{mode}, {list:?} closed: {ran:?}");
            assert_eq!(ran.code, Some(3), "{name}");
            let links = std::fs::read_to_string(path).unwrap();
            assert_eq!(links.lines().count(), 3, "{name}: {links}");
            if mode == "answered" {
                assert!(list.contains(&1) || ran.answer()["stderr"] == json!("err\n"), "{name}");
                continue;
            }
            let text = |fd, text| if list.contains(&fd) { "" } else { text };
            assert_eq!(
                (&*ran.text(), &*ran.stderr),
                (text(1, "out\n"), text(2, "err\n")),
                "{name}"
            );
            for (fd, link) in links.lines().enumerate() {
                let is_null = link == "/dev/null";
                assert!(fd == 0 || mode == "mirrored" || is_null == list.contains(&fd), "{name}");
            }
        }
    }
}

#[test]
fn few_descriptors_are_an_error_and_no_panic() {
    for (mode, options) in MODES {
        let mut codes = Vec::new();
        for most in 4..=20 {
            let limit = format!("--nofile={most}:{most}");
            let args = [options, &["--", "echo", "hi"]].concat();
            let ran = finish(crate::support::through(&["prlimit", &limit], &run_mode(&args)));
            let name = format!("{mode}, {most}: {ran:?}");
            assert!(!ran.stderr.contains("panicked"), "{name}");
            // With three or four not even the loader can open a library.
            match ran.code {
                Some(0) => assert!(ran.text().contains("hi"), "{name}"),
                Some(125) if ran.stdout.is_empty() => {
                    assert!(ran.stderr.contains("Too many open files"), "{name}");
                }
                Some(125) => assert!(ran.text().contains("Too many open files"), "{name}"),
                _ => assert!(ran.code == Some(127) && most <= 4, "{name}"),
            }
            codes.push(ran.code);
        }
        assert_eq!(codes.last(), Some(&Some(0)), "{mode}: {codes:?}");
        assert!(codes.contains(&Some(125)), "{mode}: {codes:?}");
    }
}

#[test]
fn descriptors_are_passed_on_to_the_command() {
    let runcap = env!("CARGO_BIN_EXE_runcap");
    let bash = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script]).env("RUNCAP", runcap).stdin(Stdio::null());
        finish(command)
    };
    let nine = |before: &str| {
        let script = format!("exec 9<<<'nine'; {before} sh -c 'cat <&9; ls /proc/$$/fd'");
        let ran = bash(&script);
        assert_eq!(ran.code, Some(0), "{before}: {ran:?}");
        ran.text()
    };
    for options in ["", "--max-output-size 1M", "--limit-cpu 9", "-t 5 --merge-stderr"] {
        let ran = bash(&format!("$RUNCAP run {options} -- diff <(echo a) <(echo b)"));
        let expected = "1c1\n< a\n---\n> b\n";
        assert_eq!((ran.code, &*ran.text()), (Some(1), expected), "{options}: {ran:?}");
        // What it would have without runcap, and nothing of runcap's own.
        let open = nine(&format!("$RUNCAP run {options} --"));
        assert!(open.starts_with("nine\n"), "{options}: {open}");
        assert_eq!(open, nine(""), "{options}");
    }
}

#[test]
fn make_shares_its_jobs_through_runcap() {
    if !crate::support::installed("make") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let inner = "all: a b\na b:\n\t@echo made $@\n";
    let outer = "all:\n\t+@$(RUNCAP) run -- $(MAKE) -f inner\n";
    std::fs::write(directory.path().join("inner"), inner).unwrap();
    std::fs::write(directory.path().join("outer"), outer).unwrap();
    let mut command = Command::new("make");
    command.args(["-j3", "-f", "outer"]).current_dir(directory.path());
    command.env("RUNCAP", env!("CARGO_BIN_EXE_runcap")).stdin(Stdio::null());
    let ran = finish(command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.text().contains("made a") && ran.text().contains("made b"), "{ran:?}");
    // make says "jobserver unavailable" when the descriptors are missing.
    assert!(!ran.stderr.contains("jobserver"), "{ran:?}");
}

#[test]
fn memory_does_not_grow_with_what_is_passed_on() {
    // Half a gigabyte through runcap, none of which is kept.
    let run = r#"exec "$RUNCAP" run --max-output-size 1K "$HELPER" repeat"#;
    let measured = measured(&format!(r#"{run} "$(printf %1000s)" 500000 2>&1"#));
    assert_eq!(measured["exit_code"], 0, "{measured}");
    assert!(measured["max_rss_bytes"].as_u64().unwrap() < 16 << 20, "{measured}");
}
