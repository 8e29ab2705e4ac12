//! What runcap says of itself, and how it refuses what was typed.

use std::collections::BTreeSet;
use std::fs::File;

use super::{finish, run};
use crate::support::{answer, feed, json, runcap};

/// Prints help with these arguments, which must succeed.
fn text(args: &[&str]) -> String {
    let mut command = runcap();
    command.args(args);
    let ran = finish(command);
    assert_eq!((ran.code, &ran.stderr[..]), (Some(0), ""), "{args:?}");
    String::from_utf8(ran.stdout).expect("help is text")
}

const MODES: [&[&str]; 5] = [&[], &["run"], &["json"], &["doctor"], &["help"]];

#[test]
fn every_help_fits_a_screen_and_has_an_example() {
    for mode in MODES {
        let whole = text(&[mode, &["--help"]].concat());
        let short = text(&[mode, &["-h"]].concat());
        for help in [&whole, &short] {
            let lines = help.lines().count();
            let columns = help.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(lines <= 50 && columns <= 100, "{mode:?}: {lines} × {columns}\n{help}");
            assert!(help.contains("Usage: runcap"), "{help}");
        }
        assert!(short.lines().count() < whole.lines().count(), "{mode:?}\n{short}");
        let last = whole.lines().last().expect("a line");
        assert!(last.starts_with("Example: ") && last.contains("runcap"), "{mode:?}: {last}");
    }
    assert!(text(&["run", "-h"]).lines().count() * 2 < text(&["run", "--help"]).lines().count());
    for topic in ["exit-codes", "json"] {
        let table = text(&["help", topic]);
        let columns = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(table.lines().count() <= 50 && columns <= 100, "{table}");
    }
}

#[test]
fn the_top_level_lists_the_modes_and_an_example() {
    for args in [&["--help"][..], &["-h"], &["help"]] {
        let help = text(args);
        for mode in ["run", "json", "doctor", "help"] {
            assert!(help.contains(&format!("\n  {mode:<6}  ")), "{mode}: {help}");
        }
        assert!(help.contains("\nExample: runcap run "), "{help}");
    }
    let mut command = runcap();
    command.arg("--version");
    assert_eq!(finish(command).stdout, b"runcap 0.1.0\n");
}

#[test]
fn the_help_of_run_shows_every_option_its_group_and_its_default() {
    let help = text(&["run", "--help"]);
    // Group, option, and what its line says.
    let rows = [
        ("Options", "-t, --timeout <DUR>", "[default: never]"),
        ("Options", "-k, --grace <DUR>", "[default: 500ms; 10s after a signal]"),
        ("Options", "    --leftovers <WHAT>", "kill or leave"),
        ("Options", "    --die-with-parent", ""),
        ("Options", "-q, --quiet", ""),
        ("Options", "-h, --help", ""),
        ("Output", "    --max-output-size <SIZE>", "[default: all]"),
        ("Output", "    --keep <PART>", "[default: head; head+tail of stderr]"),
        ("Output", "    --overflow <WHAT>", "[default: discard]"),
        ("Output", "    --stdout-limit <SPEC>", "4M,stop or 80K,head+tail"),
        ("Output", "    --stderr-limit <SPEC>", ""),
        ("Output", "    --merge-stderr", ""),
        ("Output", "    --json", "10M"),
        ("Command", "-C, --cwd <DIR>", "[default: the current one]"),
        ("Command", "-e, --env <K=V>", ""),
        ("Command", "-i, --clear-env", ""),
        ("Command", "    --stdin <FILE>", "[default: runcap's own stdin]"),
        ("Command", "    --no-stdin", ""),
        ("Limits", "    --limit-memory <SIZE>", ""),
        ("Limits", "    --limit-processes <N>", "does not hold root"),
        ("Limits", "    --limit-open-files <N>", ""),
        ("Limits", "    --limit-file-size <SIZE>", ""),
        ("Limits", "    --limit-cpu <N>", ""),
    ];
    for (group, option, says) in rows {
        let (_, rest) = help.split_once(&format!("\n{group}")).expect(group);
        let lines = rest.split("\n\n").next().unwrap_or(rest);
        let start = format!("  {option} ");
        let line = lines.lines().find(|line| line.starts_with(&start));
        assert!(line.is_some_and(|line| line.contains(says)), "{group}, {option}: {help}");
    }
    let options = help.lines().filter(|line| line.starts_with("  ") && line.contains(" --"));
    let options = options.filter(|line| line.trim_start().starts_with('-')).count();
    assert_eq!(options, rows.len(), "every option has a row here: {help}");
    assert!(help.contains("[default: leave; kill where runcap reads the output]"), "{help}");
}

#[test]
fn the_table_of_exit_codes_has_them_all() {
    let table = text(&["help", "exit-codes"]);
    let (of_run, of_others) = table.split_once("runcap json:").expect("three tables");
    let (of_json, of_serve) = of_others.split_once("runcap serve:").expect("three tables");
    let codes = |table: &str| -> Vec<String> {
        let rows = table.lines().filter_map(|line| line.strip_prefix("  "));
        rows.map(|row| row.split("  ").next().unwrap_or(row).to_owned()).collect()
    };
    let expected = ["0 to 255", "128+n", "123", "124", "125", "126", "127"];
    assert_eq!(codes(of_run), expected, "{table}");
    assert_eq!(codes(of_json), ["0", "1", "125", "128+n"], "{table}");
    assert_eq!(codes(of_serve), ["0", "125", "128+n"], "{table}");
}

#[test]
fn the_tables_of_json_are_those_of_the_program() {
    let table = text(&["help", "json"]);
    let (request, response) = table.split_once("\nResponse of ").expect("two tables");
    let names = |table: &str| -> BTreeSet<String> {
        let rows = table.lines().skip(1).filter_map(|line| line.strip_prefix("  "));
        let names = rows.filter_map(|row| row.split("  ").next());
        let names = names.flat_map(|names| names.split(", "));
        names.filter(|name| !matches!(*name, "" | "…")).map(str::to_owned).collect()
    };
    let refusal = answer(json!({"command": ["true"], "no_such_field": 1}));
    let message = refusal["error"]["message"].as_str().expect("a message");
    let (_, fields) = message.split_once("the fields are ").expect("they are listed");
    let expected: BTreeSet<_> = fields.split(", ").map(str::to_owned).collect();
    assert_eq!(names(request), expected, "{table}");

    let requests = concat!(
        r#"{"command":"printf '\\377'; printf '\\377' >&2","tag":"a"}"#,
        r#"{"command":"echo 123; echo 123 >&2","max_output_size":2}"#,
        r#"{"command":["yes"],"overflow":"stop","max_output_size":2}"#,
        r#"{"command":"sleep 0.5 & true","leftovers":"leave"}"#,
        r#"{"command":"sleep 0.5 & true"}"#,
        r#"{"command":[]}"#,
    );
    let answers = feed(&[], requests.as_bytes()).answers;
    let seen = answers.iter().flat_map(|answer| answer.as_object().expect("an object").keys());
    let mut seen: BTreeSet<_> = seen.cloned().collect();
    // A row of stdout stands for that of stderr; a memory limit has a test of its own.
    seen.retain(|key| {
        let twin = key.strip_prefix("stderr_").map(|rest| format!("stdout_{rest}"));
        !twin.is_some_and(|twin| names(response).contains(&twin)) || key == "stderr_bytes"
    });
    assert!(seen.insert("cap_lowered_to".to_owned()));
    assert_eq!(names(response), seen, "{table}");
    let statuses = ["exited", "signaled", "timed_out", "output_limit", "canceled"];
    for status in statuses.iter().chain(&["failed_to_start", "bad_request"]) {
        assert!(response.contains(status), "{status}: {table}");
    }
}

#[test]
fn what_was_typed_wrongly_is_125_and_is_named() {
    let rows: [(&[&str], &[&str]); 28] = [
        (&[], &["Usage: runcap <MODE>"]),
        (&["jsn"], &["'jsn'", "'json'"]),
        (&["--verison"], &["'--verison'", "'--version'"]),
        (&["help", "exit-code"], &["'exit-code'", "exit-codes, json"]),
        (&["help", "nothing"], &["'nothing'", "exit-codes, json"]),
        (&["run"], &["<COMMAND>", "Usage: runcap run [OPTIONS] [--] COMMAND [ARG]..."]),
        (&["run", "--tiemout", "3", "true"], &["'--tiemout'", "'--timeout'"]),
        (&["run", "--tiemout", "3", "--", "true"], &["'--tiemout'", "'--timeout'"]),
        (&["run", "--max-output", "3", "true"], &["'--max-output'", "'--max-output-size'"]),
        (&["run", "-x", "true"], &["'-x'"]),
        (&["run", "-t", "3x", "true"], &["'3x'", "--timeout", "use ns, us, ms, s, m or h"]),
        (&["run", "-t"], &["--timeout"]),
        (&["run", "-k", "-1s", "true"], &["-1"]),
        (&["run", "-t", "1", "-t", "2", "true"], &["--timeout", "multiple times"]),
        (&["run", "--max-output-size", "4MB", "true"], &["'4MB'", "use 4M"]),
        (&["run", "--max-output-size", "0", "true"], &["'0'", "the least is 1"]),
        (&["run", "--max-output-size", "257M", "true"], &["'257M'", "the most is 268435456"]),
        (&["run", "--keep", "tial", "true"], &["'tial'", "expected head, tail or head+tail"]),
        (&["run", "--keep", "tail", "true"], &["--keep", "add --max-output-size"]),
        (&["run", "--overflow", "stop", "--merge-stderr", "true"], &["add --max-output-size"]),
        (&["run", "--stdout-limit", "stop", "true"], &["--stdout-limit names no size"]),
        (&["run", "--stderr-limit", "4M,4K", "true"], &["'4M,4K'", "'4K' says again"]),
        (&["run", "--stdout-limit", "4M,stopp", "true"], &["'stopp'", "4M,stop"]),
        (&["run", "--stdout-limit", "4M,stop,tail", "true"], &["keeps its head"]),
        (&["run", "--merge-stderr", "--stderr-limit", "1", "true"], &["--stderr-limit out"]),
        (&["run", "--leftovers", "x", "true"], &["'x'", "expected kill or leave"]),
        (&["run", "-e", "A", "true"], &["'A'", "KEY=VALUE"]),
        (&["run", "--stdin", "/dev/null", "--no-stdin", "true"], &["--stdin", "--no-stdin"]),
    ];
    for (args, fragments) in rows {
        let mut command = runcap();
        command.args(args);
        let ran = finish(command);
        assert_eq!((ran.code, &ran.stdout[..]), (Some(125), &b""[..]), "{args:?}: {ran:?}");
        for fragment in fragments {
            assert!(ran.stderr.contains(fragment), "{args:?}: {fragment} in {}", ran.stderr);
        }
        assert!(!ran.stderr.contains("panicked"), "{args:?}: {ran:?}");
    }
}

#[test]
fn a_mistyped_option_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("started");
    let path = path.to_str().unwrap();
    for option in ["--quite", "-z", "--json=yes", "--timeout=x", "-qz"] {
        assert_eq!(run(&[option, "touch", path]).code, Some(125), "{option}");
        assert!(!std::path::Path::new(path).exists(), "{option}");
    }
    assert_eq!(run(&["--quiet", "touch", path]).code, Some(0));
    assert!(std::path::Path::new(path).exists());
}

#[test]
fn texts_end_quietly_where_nobody_reads_and_fail_on_a_full_disk() {
    let rows: [&[&str]; 8] = [
        &["--help"],
        &["run", "-h"],
        &["run", "--help"],
        &["--version"],
        &["help"],
        &["help", "exit-codes"],
        &["help", "json"],
        &["doctor"],
    ];
    for args in rows {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = runcap();
        let output = command.args(args).stdout(writer).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*stderr), (Some(0), ""), "{args:?}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = runcap().args(args).stdout(full).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let expected = "runcap: cannot write to stdout: No space left on device (os error 28)\n";
        assert_eq!((output.status.code(), &*stderr), (Some(125), expected), "{args:?}");
    }
}
