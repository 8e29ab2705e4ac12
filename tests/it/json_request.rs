//! What `runcap json` takes for a request, what it refuses, and how it finds the next one.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{
    Run, Session, Value, answer, feed, feed_command, is_alive, json, keys, measured,
    processes_with, runcap, sh, wait_until,
};

/// What a secret looks like here: it must never be printed.
const CANARY: &str = "Xcanary7f3aX";

/// How long a bound of a second may take where the program is built without optimization.
const SECOND: Duration = Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 1 });

/// A file that a command would create, and the text of that command's fields.
struct Trap {
    directory: tempfile::TempDir,
}

impl Trap {
    fn new() -> Trap {
        Trap { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("started")
    }

    /// `"command":["touch",FILE]`, to stand in a request.
    fn field(&self) -> String {
        format!(r#""command":["touch",{}]"#, json!(self.path()))
    }

    fn assert_nothing_started(&self, name: &str) {
        assert!(!self.path().exists(), "{name}: something was started");
    }

    /// The trap works: the same command, in a request that is right, creates the file.
    fn assert_it_works(&self) {
        assert_eq!(feed(&[], format!("{{{}}}", self.field()).as_bytes()).code(), Some(0));
        assert!(self.path().exists());
    }
}

/// The message of a refusal, after the rest of it was checked.
fn refused<'a>(answer: &'a Value, code: &str, name: &str) -> &'a str {
    assert_eq!(answer["status"], "bad_request", "{name}: {answer}");
    assert_eq!(answer["error"]["code"], code, "{name}: {answer}");
    assert_eq!(answer["exit_code"], json!(null), "{name}");
    let message = answer["error"]["message"].as_str().expect("an error has a message");
    assert!(!message.contains('\n') && message.len() <= 2000, "{name}: {message}");
    message
}

/// Sends rows of `(name, request, field, fragment of the message)`, one a line. In a request `@`
/// stands for a command that would create a file and `%` for the canary.
fn check_refusals(rows: &[(&str, &str, Option<&str>, &str)]) {
    let trap = Trap::new();
    let lines: Vec<_> = rows
        .iter()
        .map(|(_, request, ..)| request.replace('@', &trap.field()).replace('%', CANARY))
        .collect();
    let run = feed(&[], lines.join("\n").as_bytes());
    assert_eq!(run.answers.len(), rows.len(), "one answer for each: {run:?}");
    for ((name, _, field, fragment), answer) in rows.iter().zip(&run.answers) {
        let message = refused(answer, "invalid_request", name);
        assert_eq!(
            answer["error"].get("field").and_then(Value::as_str),
            *field,
            "{name}: {answer}"
        );
        assert!(message.contains(fragment), "{name}: {message}");
        assert!(!answer.to_string().contains(CANARY), "{name}: {answer}");
    }
    assert!(!run.stderr.contains(CANARY), "{}", run.stderr);
    assert_eq!(run.code(), Some(1));
    trap.assert_nothing_started("refusals");
    trap.assert_it_works();
}

#[test]
fn every_wrong_field_is_refused_and_named() {
    check_refusals(&[
        ("unknown", r#"{@,"argv":["x"]}"#, Some("argv"), "unknown field 'argv': the fields are"),
        ("wrong case", r#"{@,"Timeout":1}"#, Some("Timeout"), "unknown field 'Timeout'"),
        ("cwd", r#"{@,"cwd":1}"#, Some("cwd"), "invalid value 1: expected a string"),
        ("cwd null", r#"{@,"cwd":null}"#, Some("cwd"), "invalid value null"),
        ("working_dir", r#"{@,"working_dir":[]}"#, Some("working_dir"), "an array"),
        ("cwd twice", r#"{@,"cwd":"/","working_dir":"/"}"#, Some("working_dir"), "exclude"),
        ("clear_env", r#"{@,"clear_env":"yes"}"#, Some("clear_env"), "'yes': expected true or"),
        ("stdins", r#"{@,"stdin":"%","stdin_base64":""}"#, Some("stdin_base64"), "exclude"),
        ("keep", r#"{@,"keep":"middle"}"#, Some("keep"), r#"'middle': expected "head" or "tail""#),
        ("keep number", r#"{@,"keep":1}"#, Some("keep"), "invalid value 1"),
        ("overflow", r#"{@,"overflow":"drop"}"#, Some("overflow"), "'drop'"),
        ("limit", r#"{@,"stdout_limit":5}"#, Some("stdout_limit"), "invalid value 5"),
        ("limit key", r#"{@,"stderr_limit":{"max":1}}"#, Some("stderr_limit.max"), "unknown"),
        ("limit value", r#"{@,"stdout_limit":{"keep":"x"}}"#, Some("stdout_limit.keep"), "'x'"),
        ("tail, stop", r#"{@,"keep":"tail","overflow":"stop"}"#, Some("keep"), "keeps the head"),
        (
            "tail of one stream, stop",
            r#"{@,"stderr_limit":{"keep":"tail"},"overflow":"stop"}"#,
            Some("stderr_limit.keep"),
            "overflow: stop keeps the head",
        ),
        ("tail, stream", r#"{@,"keep":"tail","stream":true}"#, Some("keep"), "stream: true"),
        ("merge", r#"{@,"merge_stderr":1}"#, Some("merge_stderr"), "invalid value 1"),
        (
            "merge and a limit",
            r#"{@,"merge_stderr":true,"stderr_limit":{}}"#,
            Some("stderr_limit"),
            "exclude",
        ),
        ("capture", r#"{@,"capture":0}"#, Some("capture"), "invalid value 0"),
        ("no capture, stream", r#"{@,"capture":false,"stream":true}"#, Some("stream"), "exclude"),
        ("encoding", r#"{@,"encoding":"utf8"}"#, Some("encoding"), r#""utf-8" or "base64""#),
        ("leftovers", r#"{@,"leftovers":"ask"}"#, Some("leftovers"), r#""kill" or "leave""#),
        ("limits", r#"{@,"limits":[]}"#, Some("limits"), "expected an object"),
        ("limits key", r#"{@,"limits":{"cpu":1}}"#, Some("limits.cpu"), "unknown field 'cpu'"),
        ("no memory", r#"{@,"limits":{"memory":0}}"#, Some("limits.memory"), "the least is 1"),
        ("a float", r#"{@,"limits":{"core":1.5}}"#, Some("limits.core"), "invalid value 1.5"),
        ("stream", r#"{@,"stream":"true"}"#, Some("stream"), "invalid value 'true'"),
        ("tag", r#"{@,"tag":{}}"#, Some("tag"), "an object: expected a string"),
        ("no command", r#"{"tag":"x"}"#, Some("command"), "missing"),
        ("empty script", r#"{"command":""}"#, Some("command"), "empty string"),
        ("null command", r#"{"command":null}"#, Some("command"), "invalid value null"),
        ("object command", r#"{"command":{"a":"%"}}"#, Some("command"), "an object"),
    ]);
}

#[test]
fn every_wrong_time_and_size_is_refused_and_named() {
    check_refusals(&[
        ("no unit", r#"{@,"timeout":"10"}"#, Some("timeout"), "'10'"),
        ("no such unit", r#"{@,"timeout":"5x"}"#, Some("timeout"), "'5x'"),
        ("zero", r#"{@,"timeout":0}"#, Some("timeout"), "above zero"),
        ("zero text", r#"{@,"timeout":"0s"}"#, Some("timeout"), "above zero"),
        ("negative", r#"{@,"timeout":-1.5}"#, Some("timeout"), "-1.5"),
        ("longer than the longest", r#"{@,"timeout":86401}"#, Some("timeout"), "longest is 24h"),
        ("bool", r#"{@,"timeout":true}"#, Some("timeout"), "invalid value true"),
        ("grace text", r#"{@,"grace":"500"}"#, Some("grace"), "'500'"),
        ("grace negative", r#"{@,"grace":-1}"#, Some("grace"), "-1"),
        ("grace too long", r#"{@,"grace":"25h"}"#, Some("grace"), "longest is 24h"),
        ("size zero", r#"{@,"max_output_size":0}"#, Some("max_output_size"), "capture: false"),
        ("size text zero", r#"{@,"max_output_size":"0K"}"#, Some("max_output_size"), "capture: f"),
        ("size negative", r#"{@,"max_output_size":-1}"#, Some("max_output_size"), "value -1"),
        ("size float", r#"{@,"max_output_size":4096.0}"#, Some("max_output_size"), "4096.0"),
        ("size bool", r#"{@,"max_output_size":true}"#, Some("max_output_size"), "value true"),
        ("size MB", r#"{@,"max_output_size":"4MB"}"#, Some("max_output_size"), "'4MB'"),
        ("size over", r#"{@,"max_output_size":268435457}"#, Some("max_output_size"), "268435456"),
        (
            "size over, one stream",
            r#"{@,"stderr_limit":{"max_output_size":"257M"}}"#,
            Some("stderr_limit.max_output_size"),
            "the most is 268435456",
        ),
    ]);
}

#[test]
fn no_refusal_shows_what_stands_in_env_or_stdin() {
    check_refusals(&[
        ("env array", r#"{@,"env":["%"]}"#, Some("env"), "object of strings"),
        ("env text", r#"{@,"env":"%"}"#, Some("env"), "object of strings"),
        ("env number", r#"{@,"env":{"%":5}}"#, Some("env"), "no string"),
        ("env twice", r#"{@,"env":{"%":"a","%":"b"}}"#, Some("env"), "twice"),
        ("env lone surrogate", r#"{@,"env":{"A":"%\ud800"}}"#, Some("env"), ""),
        ("env not closed", r#"{@,"env":{"A":"%"},}"#, None, "invalid JSON"),
        ("stdin number", r#"{@,"stdin":["%"]}"#, Some("stdin"), "must be a string"),
        ("stdin twice", r#"{@,"stdin":"%","stdin":"%"}"#, Some("stdin"), "twice"),
        ("stdin lone surrogate", r#"{@,"stdin":"%\ud800"}"#, Some("stdin"), "lone surrogate"),
        ("stdin bad escape", r#"{@,"stdin":"%\q%"}"#, None, "invalid JSON: invalid escape"),
        ("base64", r#"{@,"stdin_base64":"%%!"}"#, Some("stdin_base64"), "base64"),
        ("base64 null", r#"{@,"stdin_base64":null}"#, Some("stdin_base64"), "must be a string"),
        ("other field", r#"{@,"stdin":"%","env":{"A":"%"},"x":1}"#, Some("x"), "unknown"),
        ("no comma", r#"{@,"stdin":"%" "env":{"A":"%"}}"#, None, "invalid JSON"),
    ]);
}

#[test]
fn jr1_deep_nesting_is_refused_and_the_next_request_runs() {
    let deep = |open: &str, close: &str, depth| open.repeat(depth) + "1" + &close.repeat(depth);
    let rows = [
        ("arrays", format!(r#"{{"x":{}}}"#, deep("[", "]", 100_000)), "deeper than 127"),
        ("bare arrays", deep("[", "]", 100_000), "deeper than 127"),
        ("objects", deep(r#"{"x":"#, "}", 100_000), "deeper than 127"),
        ("128 levels", format!(r#"{{"x":{}}}"#, deep("[", "]", 127)), "deeper than 127"),
        ("127 levels are read", format!(r#"{{"x":{}}}"#, deep("[", "]", 126)), "unknown field 'x'"),
    ];
    for (name, request, fragment) in rows {
        let run = feed(&[], format!("{request}{}", r#"{"command":["true"]}"#).as_bytes());
        let message = refused(&run.answers[0], "invalid_request", name);
        assert!(message.contains(fragment), "{name}: {message}");
        assert_eq!(run.answers[1]["exit_code"], 0, "{name}");
        assert_eq!((run.answers.len(), run.code()), (2, Some(1)), "{name}");
    }
    for open in ["[", r#"{"x":"#] {
        let run = feed(&[], open.repeat(100_000).as_bytes());
        let message = refused(&run.answers[0], "invalid_request", open);
        assert!(message.contains("input ends inside"), "{message}");
        assert_eq!((run.answers.len(), run.code()), (1, Some(1)), "{open}");
    }
}

#[test]
fn jr2_a_key_given_twice_is_refused() {
    check_refusals(&[
        ("command", r#"{"command":["true"],@}"#, Some("command"), "twice"),
        ("command escaped", r#"{@,"comm\u0061nd":["true"]}"#, Some("command"), "twice"),
        ("env", r#"{@,"env":{"PATH":"/a","PATH":"/b"}}"#, Some("env"), "twice"),
        ("env itself", r#"{@,"env":{},"env":{}}"#, Some("env"), "twice"),
        ("timeout", r#"{@,"timeout":1,"timeout":1}"#, Some("timeout"), "twice"),
        ("null first", r#"{"command":null,@}"#, Some("command"), "null"),
        ("limits", r#"{@,"limits":{"core":1,"core":2}}"#, Some("limits.core"), "twice"),
        (
            "in a stream's limit",
            r#"{@,"stdout_limit":{"keep":"head","keep":"tail"}}"#,
            Some("stdout_limit.keep"),
            "twice",
        ),
    ]);
}

#[test]
fn jr3_an_odd_number_is_refused_or_exact() {
    let odd =
        ["1e400", "-1", "-0", "18446744073709551616", "9007199254740993", "true", "null", "[]"];
    let mut rows = Vec::new();
    for field in ["timeout", "max_output_size"] {
        rows.extend(odd.map(|value| (field, value)));
    }
    rows.extend([("timeout", r#""10""#), ("max_output_size", "1.5"), ("max_output_size", "1e3")]);
    let requests: Vec<_> = rows
        .iter()
        .map(|(field, value)| (format!("{field} {value}"), format!("{{@,\"{field}\":{value}}}")))
        .collect();
    let table: Vec<_> = rows
        .iter()
        .zip(&requests)
        .map(|((field, _), (name, request))| (name.as_str(), request.as_str(), Some(*field), ""))
        .collect();
    check_refusals(&table);

    let input = r#"{"command":["sleep","60"],"timeout":1.5e-1}
        {"command":"seq 999","max_output_size":"10"} {"command":["true"],"timeout":1e3}"#;
    let run = feed(&[], input.as_bytes());
    assert!(run.answers[0]["reason"].as_str().unwrap().ends_with(" 150ms"), "{run:?}");
    assert_eq!(run.answers[1]["stdout"], "1\n2\n3\n4\n5\n");
    assert_eq!((&run.answers[2]["exit_code"], run.code()), (&json!(0), Some(0)));
}

#[test]
fn jr5_nul_and_odd_names_are_refused_without_their_value() {
    check_refusals(&[
        ("argument", r#"{"command":["echo","a\u0000b"]}"#, Some("command[1]"), "NUL"),
        ("program", r#"{"command":["a\u0000b"]}"#, Some("command[0]"), "NUL"),
        ("script", r#"{"command":"echo a\u0000b"}"#, Some("command"), "NUL"),
        ("name", r#"{@,"env":{"%\u0000B":"1"}}"#, Some("env"), "name holds a NUL"),
        ("value", r#"{@,"env":{"A":"%\u0000y"}}"#, Some("env"), "value holds a NUL"),
        ("empty name", r#"{@,"env":{"":"%"}}"#, Some("env"), "name is empty"),
        ("= in a name", r#"{@,"env":{"A=B":"%"}}"#, Some("env"), "name holds '='"),
        ("= at the end", r#"{@,"env":{"NOEQ=":""}}"#, Some("env"), "name holds '='"),
        ("cwd", r#"{@,"cwd":"/tmp\u0000x"}"#, Some("cwd"), "NUL"),
    ]);
}

#[test]
fn jr6_no_shell_sees_names_values_or_arguments() {
    let trap = Trap::new();
    let touch = format!("touch {} #", trap.path().display());
    let odd_name = format!("A; {touch}");
    let in_argument = format!("$({touch})\n`{touch}`");
    let cwd = format!("/tmp; {touch}");

    let set = answer(json!({ "command": ["env"], "env": { &odd_name: "1" }, "clear_env": true }));
    assert_eq!(set["stdout"], format!("{odd_name}=1\n"), "passed on as it is");
    assert_eq!(answer(json!({ "command": ["true"], "cwd": cwd }))["error"]["code"], "bad_cwd");
    let printed = answer(json!({ "command": ["printf", "%s", in_argument] }));
    assert_eq!(printed["stdout"], in_argument);
    trap.assert_nothing_started("shell");
}

#[test]
fn jr7_what_is_no_whole_request_is_refused_and_runs_nothing() {
    let rows = [
        ("empty", "", "holds no request"),
        ("blank", " \t\r\n\n", "holds no request"),
        ("cut", r#"{"command":["tou"#, "input ends inside a string"),
        ("cut after a value", "{@", "input ends inside an array or an object"),
        ("byte order mark", "\u{feff}{@}", "byte order mark"),
        ("empty array", r#"{"command":[]}"#, "empty array"),
        ("number", r#"{"command":[1]}"#, "invalid value 1"),
        ("empty program", r#"{"command":[""]}"#, "empty string"),
        ("array", "[]", "expected an object"),
        ("null", "null", "expected an object"),
        ("number alone", "5", "expected an object"),
        ("text alone", r#""x""#, "expected an object"),
        ("single quotes", "{'command':['true']}", "invalid JSON: key must be a string at byte 1"),
        ("comma at the end", "{@,}", "invalid JSON: trailing comma"),
        ("not a value", "{@,\"x\":NaN}", "invalid JSON: expected value"),
        ("other bracket", "{@]", "closes the other kind"),
        ("not UTF-8", "{@,\"tag\":\"\u{fffd}\"}", ""),
    ];
    let trap = Trap::new();
    for (name, input, fragment) in rows {
        let mut input = input.replace('@', &trap.field()).into_bytes();
        if name == "not UTF-8" {
            let at = input.windows(3).position(|bytes| bytes == "\u{fffd}".as_bytes()).unwrap();
            input.splice(at..at + 3, [0xFF]);
        }
        let run = feed(&[], &input);
        assert_eq!((run.answers.len(), run.code()), (1, Some(1)), "{name}: {run:?}");
        let message = refused(&run.answers[0], "invalid_request", name);
        assert!(message.contains(fragment), "{name}: {message}");
        trap.assert_nothing_started(name);
    }
    trap.assert_it_works();
}

/// Statuses and exit codes of all answers: `0 bad 3`.
fn summary(run: &Run) -> String {
    let one = |answer: &Value| match answer["status"].as_str() {
        Some("exited") => answer["exit_code"].to_string(),
        Some("bad_request") => "bad".to_owned(),
        other => panic!("{other:?}: {answer}"),
    };
    run.answers.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn jr7_the_next_value_is_read_after_a_refusal_and_the_next_line_after_a_syntax_error() {
    let rows = [
        ("a line", "$3\n$4\n", "3 4", 0),
        ("no newline at the end", "$3\n$4", "3 4", 0),
        ("doubled", "$3$4", "3 4", 0),
        ("several on a line", " $3 \t$4\r\n\n\n$5", "3 4 5", 0),
        ("pretty-printed", "{\n  \"command\":\n\n  [\n \"true\"\n  ]\n}\n\n{\n}", "0 bad", 1),
        ("a script is a command", r#"{"command":"true"}"#, "0", 0),
        ("refused, then the next on its line", "{@,\"x\":1}$3", "bad 3", 1),
        ("scalars and arrays", "1 null[]\"x\"$3", "bad bad bad bad 3", 1),
        ("syntax error, rest of its line skipped", "{@,}{@}\n$3", "bad 3", 1),
        ("after a value that ran", "$4 x {@}\n$3", "4 bad 3", 1),
        ("comma between values", "$4,{@}\n$3", "4 bad 3", 1),
        ("string not closed on its line", "{\"command\":[\"tou\n$3\n", "bad 3", 1),
        ("bracket of the other kind", "{@] {@}\n$3", "bad 3", 1),
        ("no JSON", "hello {@}\n\nGET / HTTP/1.1\n$3", "bad bad 3", 1),
        ("not UTF-8 outside a string", "\u{e9} {@}\n$3", "bad 3", 1),
    ];
    let trap = Trap::new();
    for (name, input, expected, code) in rows {
        let mut input = input.replace('@', &trap.field());
        for exit in ["3", "4", "5"] {
            let command = format!(r#"{{"command":"exit {exit}"}}"#);
            input = input.replace(&format!("${exit}"), &command);
        }
        let run = feed(&[], input.as_bytes());
        assert_eq!(summary(&run), expected, "{name}: {run:?}");
        assert_eq!(run.code(), Some(code), "{name}");
        trap.assert_nothing_started(name);
    }
}

#[test]
fn jr7_a_value_that_comes_in_pieces_is_one_value() {
    let mut session = Session::start(&[]);
    for piece in ["{\"comm", "and\":\"echo h\\u00", "e9", "\"", "}"] {
        session.child.stdin.as_mut().unwrap().write_all(piece.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(session.line().unwrap()["stdout"], "hé\n", "and it is answered without a newline");
    session.end();
}

#[test]
fn jr8_an_argument_the_kernel_does_not_take_is_told_as_such() {
    let long = |length| json!({ "command": ["/bin/true", "a".repeat(length)] });
    let many = vec!["a".repeat(100_000); 40];
    let mut too_many = vec!["/bin/true".to_owned()];
    too_many.extend(many);
    let variable = CANARY.repeat(131_072 / CANARY.len() + 1);
    let rows = [
        ("131072 bytes", long(131_072)),
        ("40 arguments of 100000 bytes", json!({ "command": too_many })),
        (
            "a variable of 131072 bytes",
            json!({ "command": ["/bin/true"], "env": { "A": variable } }),
        ),
    ];
    let mut session = Session::start(&[]);
    for (name, request) in rows {
        let answer = session.ask(&request);
        assert_eq!(answer["status"], "failed_to_start", "{name}");
        assert_eq!(answer["error"]["code"], "spawn_failed", "{name}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("E2BIG") && message.contains("stdin"), "{name}: {message}");
        assert!(!answer.to_string().contains(CANARY), "{name}");
        assert_eq!(session.ask(&long(131_071))["exit_code"], 0, "alive, and this one fits");
    }
    session.end();
}

#[test]
fn jr8_more_than_any_kernel_takes_is_refused() {
    let arguments = vec!["a".repeat(100_000); 70];
    let answer = answer(json!({ "command": arguments }));
    let message = refused(&answer, "invalid_request", "7 MB of arguments");
    assert!(message.contains("E2BIG") && message.contains("stdin"), "{message}");
}

#[test]
fn jr9_endless_lines_end_within_a_second_in_little_memory() {
    let answer = measured("yes | $RUNCAP json");
    assert_eq!(answer["exit_code"], 1, "{answer}");
    let answers: Vec<Value> = lines(&answer);
    assert_eq!(answers.len(), 100);
    let message = refused(&answers[99], "invalid_request", "the last");
    assert!(message.contains("100 syntax errors in a row"), "{message}");
    assert_small_and_quick(&answer, 16 << 20);
}

#[test]
fn jr9_an_endless_value_is_refused_at_the_stated_size() {
    let limit = 32 << 20;
    let answer = measured("(printf '{\"command\":[\"'; yes a | tr -d '\\n') | $RUNCAP json");
    assert_eq!(answer["exit_code"], 1, "{answer}");
    let answers = lines(&answer);
    assert_eq!(answers.len(), 1, "{answer}");
    let message = refused(&answers[0], "request_too_large", "endless");
    assert!(message.contains(&format!("larger than {limit} bytes")), "{message}");
    assert_small_and_quick(&answer, limit + (8 << 20));
}

/// The answers that a `runcap json` under runcap wrote.
fn lines(answer: &Value) -> Vec<Value> {
    let text = answer["stdout"].as_str().expect("answers are text");
    text.lines().map(|line| serde_json::from_str(line).expect("answers are JSON")).collect()
}

fn assert_small_and_quick(answer: &Value, most_bytes: u64) {
    let duration = Duration::from_secs_f64(answer["duration"].as_f64().unwrap());
    assert!(duration < SECOND, "{duration:?}");
    let memory = answer["max_rss_bytes"].as_u64().unwrap();
    assert!(memory < most_bytes, "{memory} bytes, at most {most_bytes}");
}

#[test]
fn jr9_a_request_over_the_size_limit_is_answered_and_ends_the_run() {
    let trap = Trap::new();
    let fits = r#"{"command":"exit 3"}"#;
    let limit = ["--max-request-size", &fits.len().to_string()];
    let over = format!("{} {{{}}}\n{fits}", fits.replace('3', "33"), trap.field());
    for (name, input, expected) in [
        ("at the limit", fits.to_owned(), "3"),
        ("over, then more", format!("{fits}{over}"), "3 bad"),
    ] {
        let run = feed(&limit, input.as_bytes());
        assert_eq!(summary(&run), expected, "{name}");
        assert_eq!(run.code(), Some(u8::from(expected.contains("bad")).into()), "{name}");
    }
    let run = feed(&limit, over.as_bytes());
    let message = refused(&run.answers[0], "request_too_large", "over");
    assert!(message.contains("larger than 20 bytes"), "{message}");
    trap.assert_nothing_started("over the limit");
}

#[test]
fn jr10_a_misspelt_limit_is_refused_and_the_right_one_holds() {
    // Told from the sleeps of another run of this test on the same machine.
    let seconds = format!("60.{}", std::process::id());
    let sleep = format!(r#""command":["sleep","{seconds}"]"#);
    let misspelt = ["timeout_s", "Timeout_ms", "timeoutMs", "timeout_ms", "time_out", "limit"];
    let requests = misspelt.map(|name| format!("{{{sleep},\"{name}\":1}}"));
    let table: Vec<_> = misspelt
        .iter()
        .zip(&requests)
        .map(|(name, request)| (*name, request.as_str(), Some(*name), "unknown field"))
        .collect();
    check_refusals(&table);

    for stream in [false, true] {
        let request = json!({ "command": ["sleep", &seconds], "timeout": 0.1, "stream": stream });
        let run = feed(&[], request.to_string().as_bytes());
        let last = run.answers.last().unwrap();
        assert_eq!(last["status"], "timed_out", "stream {stream}");
        assert!(run.elapsed < Duration::from_secs(5), "stream {stream}: {:?}", run.elapsed);
    }
    assert_eq!(processes_with(&format!("sleep {seconds}")), [0; 0], "nothing is left");
}

#[test]
fn a_tag_is_echoed_in_every_answer_also_where_it_comes_last() {
    let rows = [
        r#"{"command":["true"],"tag":"é\n1"}"#,
        r#"{"command":["/none"],"tag":"é\n1"}"#,
        r#"{"command":[],"tag":"é\n1"}"#,
        r#"{"tag":"é\n1","x":1}"#,
        r#"{"x":[{"y":[1]}],"command":["true"],"tag":"é\n1"}"#,
        r#"{"command":["true"],"stdin":"\ud800","tag":"é\n1"}"#,
        r#"{"tag":"é\n1","command":["true"],}"#,
    ];
    for row in rows {
        assert_eq!(answer_of(row)["tag"], "é\n1", "{row}");
    }
    assert_eq!(answer_of(r#"{"command":[]}"#).get("tag"), None);
}

fn answer_of(request: &str) -> Value {
    feed(&[], request.as_bytes()).answers.remove(0)
}

#[test]
fn a_long_key_or_value_does_not_make_a_long_answer() {
    let long = "x".repeat(100_000);
    let rows = [
        ("unknown key", format!(r#"{{"command":["true"],"{long}":1}}"#)),
        ("key of limits", format!(r#"{{"command":["true"],"limits":{{"{long}":1}}}}"#)),
        ("value", format!(r#"{{"command":["true"],"keep":"{long}"}}"#)),
        ("number", format!(r#"{{"command":["true"],"timeout":1{}}}"#, "0".repeat(100_000))),
        ("text alone", format!(r#""{long}""#)),
    ];
    for (name, request) in rows {
        let answer = answer_of(&request);
        refused(&answer, "invalid_request", name);
        assert!(answer.to_string().len() < 2_500, "{name}: {} bytes", answer.to_string().len());
    }
}

#[test]
fn line_separators_are_escaped_so_that_an_answer_is_one_line_for_every_reader() {
    let request = r#"{"command":["printf","a\u0085b\u2028c\u2029d"],"tag":"\u0085\u2028\u2029"}"#;
    let mut command = runcap();
    let mut child =
        command.arg("json").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(request.as_bytes()).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(output.contains(r#""stdout":"a\u0085b\u2028c\u2029d""#), "{output}");
    assert!(output.contains(r#""tag":"\u0085\u2028\u2029""#), "{output}");
    assert!(!output.contains(['\u{85}', '\u{2028}', '\u{2029}']), "{output}");
}

#[test]
fn a_large_stdin_is_held_once() {
    let (stdin, kept) = (30 << 20, 10 << 20);
    for (name, field, text) in
        [("text", "stdin", "a".repeat(stdin)), ("base64", "stdin_base64", "YWFh".repeat(stdin / 4))]
    {
        let mut session = Session::start(&[]);
        let answer = session.ask(&json!({ "command": ["cat"], field: text }));
        let decoded = if field == "stdin" { stdin } else { stdin / 4 * 3 };
        assert_eq!(answer["stdout_bytes"], decoded, "{name}");
        assert_eq!(answer["stdout"].as_str().unwrap().len(), kept, "{name}");
        let most = stdin as u64 + kept as u64 + (8 << 20);
        let peak = session.peak_rss_bytes();
        assert!(peak < most, "{name}: {peak} bytes, at most {most}");
        session.end();
    }
}

#[test]
fn a_wrong_call_ends_with_125_and_says_why() {
    let rows: [(&[&str], &str); 12] = [
        (&[], "Usage"),
        (&["no-such-mode"], "no-such-mode"),
        (&["json", "--no-such-option"], "--no-such-option"),
        (&["json", "operand"], "operand"),
        (&["json", "--max-output-size", "0"], "the least is 1"),
        (&["json", "--max-output-size", "4MB"], "4MB"),
        (&["json", "--max-output-size", "257M"], "268435456"),
        (&["json", "--default-timeout", "0"], "above zero"),
        (&["json", "--default-timeout", "5x"], "5x"),
        (&["json", "--default-timeout", "2h", "--max-timeout", "1h"], "--max-timeout"),
        (&["json", "--max-timeout", "-1"], "-1"),
        (&["json", "--max-request-size", "many"], "many"),
    ];
    for (arguments, fragment) in rows {
        let output = runcap().args(arguments).stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {stderr}");
        assert!(stderr.contains(fragment), "{arguments:?}: {stderr}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
    }
    for arguments in [["--help"], ["--version"]] {
        let output = runcap().args(arguments).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stdout.starts_with(b"Runs") || output.stdout.starts_with(b"runcap "));
    }
}

#[test]
fn stdin_or_stdout_that_fails_ends_with_125() {
    let request = Trap::new();
    let file = request.directory.path().join("request");
    std::fs::write(&file, r#"{"command":["true"]}"#).unwrap();
    let open = |path: &Path| Stdio::from(File::open(path).unwrap());
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());

    let from = |stdin: Stdio, stdout: Stdio| {
        let output =
            runcap().arg("json").stdin(stdin).stdout(stdout).stderr(Stdio::piped()).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, stderr) = from(open(Path::new("/")), Stdio::piped());
    assert_eq!(code, Some(125));
    assert!(stderr.contains("cannot read requests from stdin"), "{stderr}");
    let (code, stderr) = from(open(&file), full());
    assert_eq!(code, Some(125));
    assert!(stderr.contains("cannot write answers to stdout"), "{stderr}");
}

#[test]
fn a_reader_that_is_gone_cancels_the_command_and_ends_with_125() {
    let mut command = runcap();
    command.arg("json").stderr(Stdio::null());
    let mut session = Session::of(command);
    session.send(&json!({ "command": "echo $$; exec sleep 60.11", "stream": true }));
    let pid = session.line().unwrap()["pid"].as_u64().unwrap();
    let pid = u32::try_from(pid).unwrap();
    wait_until("the command runs", || processes_with("sleep 60.11").contains(&pid));
    assert_eq!(session.hang_up().wait().unwrap().code(), Some(125));
    assert!(!is_alive(pid), "the command is ended");
}

#[test]
fn the_end_of_stdin_does_not_cancel_what_runs() {
    let run = feed(&[], br#"{"command":"sleep 0.2; echo done"}"#);
    assert_eq!(run.answers[0]["stdout"], "done\n");
    assert_eq!(run.code(), Some(0));
}

#[test]
fn the_options_bound_a_request_that_says_nothing() {
    let options = ["--max-output-size", "3", "--default-timeout", "100ms", "--max-timeout", "5"];
    let input = br#"{"command":"seq 9","timeout":5} {"command":["sleep","60"]}
        {"command":"true","timeout":6}"#;
    let run = feed(&options, input);
    assert_eq!(run.answers[0]["stdout"], "1\n2");
    assert_eq!(run.answers[1]["status"], "timed_out");
    let message = refused(&run.answers[2], "invalid_request", "over --max-timeout");
    assert!(message.contains("longest is 5s"), "{message}");
}

#[test]
fn a_refused_request_in_a_session_leaves_the_next_one_alone() {
    let mut session = Session::start(&[]);
    for _ in 0..50 {
        let answer = session.ask(&json!({ "command": [] }));
        assert_eq!(keys(&answer)[0], "error");
        assert_eq!(session.ask(&json!({ "command": ["true"] }))["exit_code"], 0);
    }
    assert_eq!(session.end().code(), Some(1), "one was refused");
}

#[test]
fn requests_do_not_share_environment_or_directory() {
    let run = feed(
        &[],
        br#"{"command":"export A=1","env":{"B":"2"},"cwd":"/tmp"}{"command":"echo $A$B; pwd"}"#,
    );
    let own = std::env::current_dir().unwrap();
    assert_eq!(run.answers[1]["stdout"], format!("\n{}\n", own.display()));
    assert_eq!(sh("echo ${A:-none}")["stdout"], "none\n");
}

#[test]
fn a_command_under_another_shell_of_the_caller_is_still_bin_sh() {
    let mut command: Command = runcap();
    command.arg("json").env("SHELL", "/bin/false");
    let run = feed_command(command, br#"{"command":"echo $0"}"#);
    assert_eq!(run.answers[0]["stdout"], "/bin/sh\n");
}
