//! README shows commands, their output and tables of names. Each is compared with the program.
//!
//! A ```sh block is run; the ```json or ```text block that follows it is what it prints. A block
//! with cargo or rustup in it is not run inside a test: .ci/run runs it, and must hold its lines.
//! One with docker in it, and a ```dockerfile, must stand in tests/container.sh, which it runs too.
//! A ```python block must stand in tests/interop/backend.py, which .ci/run tests.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use runcap::client::get::READ_MAX_BYTES;
use runcap::client::put::WHOLE_MAX_BYTES;
use runcap::client::run::{CAPTURE_MAX_BYTES, STDIN_MAX_BYTES};
use runcap::client::transfer::JOBS_DEFAULT;
use runcap::run::{DRAIN, KEPT_STREAMS_MAX, KILL_WAIT};
use runcap::serve::content::UNSIZED_MAX_BYTES;
use runcap::serve::root::LISTED_MAX;
use runcap::serve::sandbox::listing::LIMIT_DEFAULT;
use runcap::serve::sandbox::processes::FINISHED_MAX;
use runcap::serve::transport::{
    HEAD_TIME_MAX, LARGE_HEADS_MAX, RATE_MIN, SHUTDOWN_MAX, SMALL_HEAD_MAX_BYTES, STALL_MAX,
};
use runcap::spec::{CAP_MAX_BYTES, DEFAULT_CAP_BYTES, DEFAULT_GRACE};
use runcap::token::TOKEN_MAX_BYTES;
use runcap::wire::http::head::{HEAD_MAX_BYTES, HEADERS_MAX};
use runcap::wire::native::{DEPTH_MAX, request::ARGUMENTS_MAX_BYTES};
use serde_json::Value;

use crate::support::{answer, feed, json, runcap};

const README: &str = include_str!("../../README.md");

/// Keys of an answer or an event whose values differ from run to run.
const VOLATILE: [&str; 9] = [
    "pid",
    "duration_ms",
    "start_time",
    "end_time",
    "duration",
    "cpu_seconds",
    "max_rss_bytes",
    "uptime",
    "uptime_ms",
];

#[test]
fn every_command_of_readme_does_what_readme_shows() {
    check_commands(README).unwrap();
}

#[test]
fn a_wrong_line_of_readme_is_found() {
    let rows = [
        ("a wrong number", "\"stdout_bytes\": 22888896", "\"stdout_bytes\": 22888897"),
        ("a wrong text", "\\n999\\n3000000\\n", "\\n99\\n3000000\\n"),
        ("a key that is not there", "\"stderr_bytes\": 0,", "\"stderr_bytes\": 0, \"x\": 1,"),
        ("a masked value of another type", "\"duration\": 0.022162", "\"duration\": \"0s\""),
        ("an answer too few", "{\"event\":\"truncated\",\"stream\":\"stdout\"}\n", ""),
        ("a command that fails", "seq 3000000 > big.log", "seq 3000000 > no/big.log"),
        ("a request that is refused", "\"keep\": \"head+tail\"}", "\"keeps\": \"head+tail\"}"),
        ("a cargo line that nobody runs", "\ncargo test\n", "\ncargo test --all\n"),
        ("a build that nobody runs", "cargo build --release", "cargo build -r"),
        ("an unknown kind of block", "```json", "```jsonc"),
        ("a line of docker that nobody runs", "--memory 32m", "--memory 64m"),
        ("an image that nobody builds", "COPY runcap busybox /", "COPY runcap /"),
        ("a wrong line on stderr", "the last 838860 of", "the last 838861 of"),
        ("a line of Python that nobody tests", "timeout or 60", "timeout or 61"),
    ];
    for (name, right, wrong) in rows {
        let planted = README.replacen(right, wrong, 1);
        assert_ne!(planted, README, "{name}");
        assert!(check_commands(&planted).is_err(), "{name}");
    }
}

#[test]
fn the_fields_of_a_request_are_those_of_readme() {
    let refusal = answer(json!({"command": ["true"], "no_such_field": 1}));
    let message = refusal["error"]["message"].as_str().expect("a message");
    let (_, fields) = message.split_once("the fields are ").expect("they are listed");
    let expected: BTreeSet<_> = fields.split(", ").map(str::to_owned).collect();
    assert_eq!(names("### Request", "field"), expected);
}

#[test]
fn the_resource_limits_of_readme_are_taken() {
    let row = README.lines().find(|line| line.starts_with("| `limits` |")).expect("the row");
    let meaning = row.rsplit(':').next().expect("a list of names");
    let limits: Value = backticked(meaning.split('(').next().expect("the list comes first"))
        .map(|name| (name.to_owned(), json!(1u64 << 40)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    assert_eq!(limits.as_object().map(|limits| limits.len()), Some(6), "{limits}");
    let taken = answer(json!({"command": ["true"], "limits": limits}));
    assert_eq!(taken["status"], "exited", "{taken}");
}

#[test]
fn keys_statuses_and_events_are_those_of_readme() {
    let requests = [
        json!({"command": "printf '\\377'; printf '\\377' >&2", "tag": "a"}),
        json!({"command": "echo 12345; echo 12345 >&2", "max_output_size": 2}),
        json!({"command": ["echo"], "encoding": "base64"}),
        json!({"command": ["yes"], "overflow": "stop", "max_output_size": 2}),
        json!({"command": "yes >&2", "overflow": "stop", "max_output_size": 2}),
        json!({"command": "kill -9 $$"}),
        json!({"command": ["sleep", "9"], "timeout": 0.01}),
        json!({"command": "sleep 0.5 >/dev/null 2>&1 & true"}),
        json!({"command": "sleep 0.5 >/dev/null 2>&1 & true", "leftovers": "leave"}),
        json!({"command": ["no-such-program"]}),
        json!({"command": []}),
        json!({"command": "echo 12; echo 12 >&2", "stream": true, "max_output_size": 2}),
        json!({"command": ["echo"], "stream": true, "encoding": "base64"}),
    ];
    let input: String = requests.iter().map(Value::to_string).collect();
    let lines = feed(&[], input.as_bytes()).answers;
    let of_key = |key: &str| {
        let values = lines.iter().filter_map(|line| line[key].as_str());
        values.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let answers = lines.iter().filter(|line| line.get("status").is_some());
    let keys = answers.flat_map(|answer| answer.as_object().expect("an object").keys().cloned());

    // A memory limit, a reader that goes away and 15 silent seconds have tests of their own.
    let with = |mut seen: BTreeSet<String>, unseen: &str| {
        assert!(seen.insert(unseen.to_owned()), "{unseen} was seen after all");
        seen
    };
    assert_eq!(names("### Answer", "field"), with(keys.collect(), "cap_lowered_to"));
    assert_eq!(names("### Answer", "status"), with(of_key("status"), "canceled"));
    assert_eq!(names("### Events", "event"), with(of_key("event"), "ping"));
}

#[test]
fn flags_and_their_defaults_are_those_of_readme() {
    for (mode, heading) in [("json", "### Flags"), ("serve", "### Server flags")] {
        let help = runcap().args([mode, "--help"]).output().expect("the program starts").stdout;
        let help = String::from_utf8(help).expect("help is text");
        let flags = help.split("\n      --").skip(1).map(|flag| {
            let (name, rest) = flag.split_once("  ").expect("a flag has a description");
            let default = rest.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
            let name = format!("--{}", name.replace(['<', '>'], ""));
            (name, default.map_or("off", |(default, _)| default).to_owned())
        });
        let in_readme = table(heading, "flag").into_iter().map(|cells| {
            let flag = backticked(&cells[0]).next().expect("a flag").to_owned();
            (flag, cells[1].replace('`', ""))
        });
        let in_readme = in_readme.collect::<BTreeSet<_>>();
        assert_eq!(in_readme, flags.collect::<BTreeSet<_>>(), "{mode}");
    }
}

#[test]
fn exit_codes_are_those_of_readme() {
    // 128+n has a test of its own, among those of signals.
    let rows: [(&[&str], &str, &str); 4] = [
        (&[], r#"{"command":"exit 3"}"#, "0"),
        (&[], r#"{"command":["no-such-program"]}"#, "0"),
        (&[], "", "1"),
        (&["--no-such-flag"], "", "125"),
    ];
    let table = table("### Exit codes", "code");
    let codes: BTreeSet<_> = table.iter().map(|cells| cells[0].as_str()).collect();
    assert_eq!(codes, BTreeSet::from(["0", "1", "125", "128+n"]));
    for (arguments, input, expected) in rows {
        let code = feed(arguments, input.as_bytes()).code().expect("runcap exits");
        assert_eq!(code.to_string(), expected, "{arguments:?} {input}");
    }
}

#[test]
fn the_options_of_run_are_those_of_readme() {
    let help = runcap().args(["run", "--help"]).output().expect("the program starts").stdout;
    let help = String::from_utf8(help).expect("help is text");
    let options = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let options = options.filter(|line| line.contains("--") && !line.starts_with("-h,"));
    let options = options.map(|line| {
        let option = line.split("  ").next().expect("a line has a beginning");
        option.replace(['<', '>', '[', ']'], "")
    });
    assert_eq!(names("### Options", "option"), options.collect::<BTreeSet<_>>());
}

#[test]
fn what_a_run_ends_with_is_what_readme_says() {
    let rows: [(&str, &[&str]); 9] = [
        ("the command's", &["sh", "-c", "exit 33"]),
        ("128+n", &["sh", "-c", "kill -9 $$"]),
        ("123", &["--stdout-limit", "1K,stop", "yes"]),
        ("124", &["--timeout", "0.01", "sleep", "9"]),
        ("125", &["--no-such-option"]),
        ("125", &["--cwd", "/no/such/directory", "true"]),
        ("126", &["/etc/passwd"]),
        ("127", &["no-such-program"]),
        ("127", &["--json", "no-such-program"]),
    ];
    let table = table("### How it ends", "exit code");
    let codes: BTreeSet<_> = table.iter().map(|cells| cells[0].as_str()).collect();
    assert_eq!(codes, rows.iter().map(|(code, _)| *code).collect());
    for (code, arguments) in rows {
        let mut run = runcap();
        run.arg("run").args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let ended = run.status().expect("the program starts").code().expect("it exits");
        let expected = code.parse().unwrap_or(if code == "128+n" { 128 + 9 } else { 33 });
        assert_eq!(ended, expected, "{arguments:?}");
    }
}

#[test]
fn lines_of_runcaps_own_are_those_of_readme() {
    let background = "sleep 1 >/dev/null 2>&1 & echo 123";
    let runs: [&[&str]; 4] = [
        &["--max-output-size", "1M", "--no-stdin", "seq", "3000000"],
        &["--timeout", "0.01", "sleep", "9"],
        &["--stdout-limit", "1K,stop", "yes"],
        &["--max-output-size", "9", "--leftovers", "leave", "sh", "-c", background],
    ];
    let mut seen = String::new();
    for arguments in runs {
        let mut run = runcap();
        run.arg("run").args(arguments).stdout(Stdio::null());
        let stderr = run.output().expect("the program starts").stderr;
        seen.push_str(&String::from_utf8(stderr).expect("lines are text"));
    }
    // No test has a process that KILL does not end.
    seen.push_str("runcap: a process could not be killed\n");
    let shown = seen.replace("after 10ms", "after 30s");
    for cells in table("### How it ends", "line") {
        let line = backticked(&cells[0]).next().expect("a line");
        assert!(shown.lines().any(|other| other == line), "{line} is not in\n{seen}");
    }
}

#[test]
fn the_numbers_of_readme_are_those_of_the_code() {
    let mib = |bytes: usize| bytes >> 20;
    let rows = [
        format!("| cap of a stream | {} MiB unless set", mib(DEFAULT_CAP_BYTES)),
        format!("at most {} MiB; at most a quarter", mib(CAP_MAX_BYTES)),
        format!("1 to {CAP_MAX_BYTES} ({} MiB)", mib(CAP_MAX_BYTES)),
        format!("`timeout` + `grace` + {} ms", DRAIN.as_millis()),
        format!("read for at most {} ms", DRAIN.as_millis()),
        format!("given up after {} ms", KILL_WAIT.as_millis()),
        format!("runcap lives (at most {KEPT_STREAMS_MAX}\n  streams"),
        format!("nesting of {DEPTH_MAX} levels"),
        format!("| `command` and `env` | {} MiB", mib(ARGUMENTS_MAX_BYTES)),
        format!("| `grace` | seconds, or a duration | {} |", DEFAULT_GRACE.as_secs_f64()),
        format!("nothing happened for {} s", runcap::live::PING_AFTER.as_secs()),
        format!("After {} syntax", runcap::json::SYNTAX_ERRORS_MAX),
        format!("at most {TOKEN_MAX_BYTES} bytes |"),
        format!(
            "| {} KiB, {HEADERS_MAX} headers, {} s |",
            HEAD_MAX_BYTES >> 10,
            HEAD_TIME_MAX.as_secs()
        ),
        format!(
            "| heads over {} KiB, all connections | {LARGE_HEADS_MAX} at once |",
            SMALL_HEAD_MAX_BYTES >> 10
        ),
        format!(
            "| a wait for a client to read | {} s, and {} KiB a second on average |",
            STALL_MAX.as_secs(),
            RATE_MIN >> 10
        ),
        format!("After {} s, or at\nonce", SHUTDOWN_MAX.as_secs_f64()),
        format!("and the last {FINISHED_MAX} that ended |"),
        format!("(at most {} MiB of text, `-` is stdin)", STDIN_MAX_BYTES >> 20),
        format!("at most {} MiB over both streams", mib(CAPTURE_MAX_BYTES)),
        format!("`--jobs N` ({JOBS_DEFAULT} ranges at once)"),
        format!("Up to {} MiB replace the old file", WHOLE_MAX_BYTES >> 20),
        format!("of up to {} MiB.", READ_MAX_BYTES >> 20),
        format!("are read first and then sent, up to {} MiB.", mib(UNSIZED_MAX_BYTES)),
        format!("`limit` ({LIMIT_DEFAULT}, at most {LISTED_MAX})"),
    ];
    for row in rows {
        assert!(README.contains(&row), "README does not say: {row}");
    }
}

/// A fenced block.
struct Block<'a> {
    language: &'a str,
    text: String,
}

fn blocks(readme: &str) -> Result<Vec<Block<'_>>, String> {
    let mut blocks = Vec::new();
    let mut lines = readme.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        if !["sh", "json", "text", "rust", "dockerfile", "python"].contains(&language) {
            return Err(format!("a block of an unknown kind: {line}"));
        }
        let body = lines.by_ref().take_while(|line| *line != "```");
        blocks.push(Block { language, text: body.map(|line| format!("{line}\n")).collect() });
    }
    Ok(blocks)
}

fn check_commands(readme: &str) -> Result<(), String> {
    let blocks = blocks(readme)?;
    let commands = |block: &&Block| ["sh", "dockerfile", "python"].contains(&block.language);
    for (at, block) in blocks.iter().enumerate().filter(|(_, block)| commands(block)) {
        let shown = blocks.get(at + 1).filter(|next| ["json", "text"].contains(&next.language));
        let done = if block.language == "python" {
            check_in_interop(&block.text)
        } else if ["cargo ", "rustup "].iter().any(|tool| block.text.contains(tool)) {
            check_in_ci(&block.text)
        } else if block.language == "dockerfile" || block.text.contains("docker ") {
            check_in_container(&block.text)
        } else {
            check_run(&block.text, shown)
        };
        done.map_err(|problem| format!("{problem}\nin the block\n{}", block.text))?;
    }
    Ok(())
}

/// Every line of the script is a line of .ci/run, which runs it.
fn check_in_ci(script: &str) -> Result<(), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/run");
    let ci = std::fs::read_to_string(path).expect(".ci/run is there");
    let missing = script.lines().find(|line| !ci.lines().any(|other| other.trim() == *line));
    missing.map_or(Ok(()), |line| Err(format!(".ci/run does not run: {line}")))
}

/// The whole text stands in tests/container.sh, line by line.
fn check_in_container(text: &str) -> Result<(), String> {
    let script = include_str!("../container.sh");
    let found = script.contains(&format!("\n{text}"));
    if found { Ok(()) } else { Err("it does not stand in tests/container.sh".to_owned()) }
}

/// The whole text stands in tests/interop/backend.py, line by line.
fn check_in_interop(text: &str) -> Result<(), String> {
    let tested = include_str!("../interop/backend.py");
    let found = tested.contains(&format!("\n{text}"));
    if found { Ok(()) } else { Err("it does not stand in tests/interop/backend.py".to_owned()) }
}

/// Runs the script in an empty directory and compares what it prints.
fn check_run(script: &str, shown: Option<&Block<'_>>) -> Result<(), String> {
    let directory = tempfile::tempdir().expect("a directory");
    let bin = Path::new(env!("CARGO_BIN_EXE_runcap")).parent().expect("it stands in a directory");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("there is a PATH"));
    let mut sh = Command::new("sh");
    sh.args(["-e", "-c", script]).env("PATH", path).current_dir(&directory).stdin(Stdio::null());
    let output = sh.output().expect("sh starts");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if !stderr.is_empty() {
        return Err(format!("it writes to stderr: {stderr}"));
    }
    let equal = match shown {
        Some(Block { language: "json", text }) => stable(&stdout)? == stable(text)?,
        Some(Block { text, .. }) => stdout == *text,
        None => output.status.success() && stdout.is_empty(),
    };
    let expected = shown.map_or("", |block| &block.text);
    if equal { Ok(()) } else { Err(format!("it prints\n{stdout}\nand not\n{expected}")) }
}

/// The JSON values of a text; of what differs from run to run, only the type.
fn stable(text: &str) -> Result<Vec<Value>, String> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    values
        .map(|value| {
            let mut value = value.map_err(|error| format!("{error} in {text}"))?;
            for key in VOLATILE {
                if let Some(value) = value.get_mut(key) {
                    *value = if value.is_number() { "a number" } else { "no number" }.into();
                }
            }
            Ok(value)
        })
        .collect()
}

/// The rows of the table under `heading` whose first column is called `first`, cell by cell.
fn table(heading: &str, first: &str) -> Vec<Vec<String>> {
    let section = README.lines().skip_while(|line| *line != heading).skip(1);
    let section = section.take_while(|line| !line.starts_with('#'));
    let rows = section.skip_while(|line| !line.starts_with(&format!("| {first} |"))).skip(2);
    let rows: Vec<_> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect();
    assert!(!rows.is_empty(), "{heading} has a table of {first}");
    rows
}

/// The names in the first column of a table.
fn names(heading: &str, first: &str) -> BTreeSet<String> {
    let rows = table(heading, first);
    rows.iter().flat_map(|cells| backticked(&cells[0])).map(str::to_owned).collect()
}

fn backticked(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}
