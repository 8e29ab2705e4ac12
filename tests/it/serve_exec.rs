//! `POST /v1/exec`: events on the wire while the command runs, and what ends it.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use crate::http::{Answer, Client, Server};
use crate::support::{
    Mark, Signal, Value, assert_took, descriptors, helper, is_alive, json, kill_all, send, slack,
    wait_until,
};

const MIB: usize = 1 << 20;

/// A request of the sandbox dialect without a token.
pub fn request(line: &str, body: &Value) -> Vec<u8> {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let length = body.len();
    format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}").into()
}

/// The value of an answer with this status.
#[track_caller]
pub fn value(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text());
    serde_json::from_slice(&answer.body).expect("answers are JSON")
}

/// The events of one command as they come.
pub struct Events {
    pub client: Client,
    /// Those that came in one chunk and were not taken yet.
    waiting: VecDeque<Value>,
    /// The beginning of one that takes several chunks.
    begun: Vec<u8>,
}

impl Events {
    /// Asks for a command on a connection of its own and reads the head of the answer.
    #[track_caller]
    pub fn of(server: &Server, body: &Value) -> Events {
        Events::over(server.connect(), body)
    }

    #[track_caller]
    fn over(mut client: Client, body: &Value) -> Events {
        client.send(&request("POST /v1/exec", body));
        let head = client.head();
        assert_eq!(head.status, 200);
        let headers = [
            ("content-type", "application/x-ndjson"),
            ("x-accel-buffering", "no"),
            ("transfer-encoding", "chunked"),
        ];
        for (name, expected) in headers {
            assert_eq!(head.header(name), Some(expected), "{name}");
        }
        Events { client, waiting: VecDeque::new(), begun: Vec::new() }
    }

    /// The next event; `None` at the end of the answer.
    #[track_caller]
    pub fn next(&mut self) -> Option<Value> {
        while self.waiting.is_empty() {
            let chunk = self.client.chunk();
            if chunk.is_empty() {
                assert!(self.begun.is_empty(), "half an event");
                return None;
            }
            // Only an event of a whole buffer goes on in the next chunk.
            assert!(chunk.ends_with(b"\n") || chunk.len() >= 8 << 10, "an event is held back");
            self.begun.extend_from_slice(&chunk);
            if self.begun.ends_with(b"\n") {
                let text = String::from_utf8(std::mem::take(&mut self.begun)).expect("text");
                assert!(!text.contains(['\u{85}', '\u{2028}', '\u{2029}']), "a line is split");
                let event = |line| serde_json::from_str(line).expect("an event is JSON");
                self.waiting.extend(text.lines().map(event));
            }
        }
        self.waiting.pop_front()
    }

    /// The next event, which is of this kind.
    #[track_caller]
    pub fn expect(&mut self, kind: &str) -> Value {
        let event = self.next().unwrap_or_else(|| panic!("the end, not {kind}"));
        assert_eq!(event["event"], kind, "{event}");
        event
    }

    /// All that comes: the text of both streams, and the last event, which is the exit.
    #[track_caller]
    pub fn rest(&mut self) -> (String, String, Value) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        loop {
            let event = self.next().expect("the exit comes last");
            let data = event["data"].as_str();
            match event["event"].as_str().expect("its kind") {
                "stdout" => stdout += data.expect("text"),
                "stderr" => stderr += data.expect("text"),
                "exit" => {
                    assert_eq!(self.next(), None, "nothing follows the exit");
                    return (stdout, stderr, event);
                }
                "start" | "ping" | "truncated" => {}
                other => panic!("an unknown event {other}"),
            }
        }
    }
}

/// Runs a command to its end.
#[track_caller]
fn exec(server: &Server, body: &Value) -> (String, String, Value) {
    Events::of(server, body).rest()
}

#[track_caller]
fn assert_exit(exit: &Value, code: Option<i32>, signal: Option<i32>, timed_out: bool) {
    let keys = [&exit["exit_code"], &exit["signal"], &exit["timed_out"]];
    assert_eq!(keys, [&json!(code), &json!(signal), &json!(timed_out)], "{exit}");
    assert!(exit["duration_ms"].is_u64(), "{exit}");
}

#[test]
fn events_come_in_order_and_the_connection_goes_on() {
    let server = Server::start(&[]);
    let mut events =
        Events::of(&server, &json!({ "cmd": "echo out; sleep 0.1; echo err >&2; exit 3" }));
    let pid = events.expect("start")["pid"].as_u64().expect("a number");
    assert!(pid > 1);
    assert_eq!(events.expect("stdout")["data"], "out\n");
    assert_eq!(events.expect("stderr")["data"], "err\n");
    let exit = events.expect("exit");
    assert_exit(&exit, Some(3), None, false);
    assert_eq!(exit["status"], "exited");
    assert_eq!(events.next(), None);
    let (stdout, _, exit) =
        Events::over(events.client, &json!({ "cmd": ["printf", "%s|", "a b", "$X"] })).rest();
    assert_eq!(stdout, "a b|$X|");
    assert_exit(&exit, Some(0), None, false);
}

#[test]
fn what_a_command_is_given_is_what_it_finds() {
    let home = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(home.path().join("sub")).expect("it is new");
    let workspace = home.path().to_str().expect("text");
    let server = Server::start(&["--workspace", workspace]);
    let real = std::fs::canonicalize(home.path()).expect("it is there");
    let real = real.to_str().expect("text");
    let script = "pwd; echo \"$A\"; cat";
    let rows = [
        ("nothing", json!({ "cmd": script }), format!("{real}\n\n")),
        (
            "everything",
            json!({ "cmd": script, "cwd": "/sub", "env": { "A": "x y" }, "stdin": "in\n" }),
            format!("{real}/sub\nx y\nin\n"),
        ),
        (
            "wrong types are ignored",
            json!({ "cmd": script, "cwd": 1, "env": [], "stdin": {}, "timeout": [], "tag": 5 }),
            format!("{real}\n\n"),
        ),
    ];
    for (name, body, expected) in rows {
        let (stdout, stderr, exit) = exec(&server, &body);
        assert_eq!((stdout, stderr), (expected, String::new()), "{name}");
        assert_exit(&exit, Some(0), None, false);
    }
    // More than a pipe holds, both ways at once.
    let text = "0123456789abcde\n".repeat(65_536);
    let (stdout, _, exit) = exec(&server, &json!({ "cmd": ["cat"], "stdin": text }));
    assert!(stdout == text, "{} bytes came back", stdout.len());
    assert_exit(&exit, Some(0), None, false);
}

#[test]
fn refusals_start_nothing_and_name_what_is_wrong() {
    let server = Server::start(&[]);
    let home = tempfile::tempdir().expect("a directory");
    let not_one = home.path().join("no-program");
    std::fs::write(&not_one, "x").expect("it is new");
    let not_one = not_one.to_str().expect("text");
    let rows = [
        ("no JSON", "{".to_owned(), "invalid JSON body: "),
        ("no command", "{}".to_owned(), "missing 'cmd' (string or array of strings)"),
        ("empty", r#"{"cmd": []}"#.to_owned(), "cmd array must not be empty"),
        ("items", r#"{"cmd": [1]}"#.to_owned(), "cmd array items must be strings"),
        (
            "shell",
            r#"{"cmd": ["a"], "shell": true}"#.to_owned(),
            "shell=true requires 'cmd' to be a string",
        ),
        (
            "not found",
            r#"{"cmd": ["no-such-program"]}"#.to_owned(),
            "failed to spawn 'no-such-program': ",
        ),
        ("not executable", json!({ "cmd": [not_one] }).to_string(), "failed to spawn '"),
        (
            "no directory",
            r#"{"cmd": "true", "cwd": "none"}"#.to_owned(),
            "failed to spawn '/bin/sh': ",
        ),
        ("outside", r#"{"cmd": "true", "cwd": "../.."}"#.to_owned(), "failed to spawn '/bin/sh': "),
        (
            "in the background",
            r#"{"cmd": ["no-such-program"], "background": true}"#.to_owned(),
            "failed to spawn 'no-such-program': ",
        ),
    ];
    let mut client = server.connect();
    for (name, body, message) in rows {
        let head = "POST /v1/exec HTTP/1.1\r\nHost: localhost\r\n";
        client.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
        let answer = client.answer();
        let answer = value(&answer, 400);
        let said = answer["error"].as_str().expect("text");
        assert!(said.starts_with(message), "{name}: {said}");
        assert_eq!(answer.as_object().map(|object| object.len()), Some(1), "{name}");
    }
    let chunked =
        "POST /v1/exec HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(server.ask(chunked.as_bytes()).status, 411);
    assert_eq!(server.ask(&request("GET /v1/exec", &Value::Null)).status, 404);
}

#[test]
fn how_a_command_ended_is_told_apart() {
    let server = Server::start(&["--max-timeout", "1s", "--default-timeout", "1s"]);
    let rows = [
        ("a code", json!({ "cmd": "exit 7" }), Some(7), None, false, "exited"),
        ("a signal", json!({ "cmd": "kill -9 $$" }), None, Some(9), false, "signaled"),
        (
            "a deadline",
            json!({ "cmd": "sleep 9", "timeout": 0.2 }),
            None,
            Some(15),
            true,
            "timed_out",
        ),
        (
            "the longest one",
            json!({ "cmd": "sleep 9", "timeout": 99 }),
            None,
            Some(15),
            true,
            "timed_out",
        ),
        ("none given", json!({ "cmd": "sleep 9" }), None, Some(15), true, "timed_out"),
        (
            "at once",
            json!({ "cmd": ["sleep", "9"], "timeout": -1 }),
            None,
            Some(15),
            true,
            "timed_out",
        ),
        (
            "a trap at the deadline",
            json!({ "cmd": "trap 'exit 4' TERM; sleep 9 & wait", "timeout": 0.2 }),
            Some(4),
            None,
            true,
            "timed_out",
        ),
        (
            "a limit",
            json!({ "cmd": ["yes"], "max_output_size": "10K", "overflow": "stop" }),
            None,
            Some(9),
            false,
            "output_limit",
        ),
    ];
    for (name, body, code, signal, timed_out, status) in rows {
        let (_, _, exit) = exec(&server, &body);
        assert_exit(&exit, code, signal, timed_out);
        assert_eq!(exit["status"], status, "{name}: {exit}");
        assert_eq!(
            exit.get("reason").is_some(),
            code.is_none() != (signal == Some(9) && status == "signaled") || timed_out,
            "{name}: {exit}"
        );
    }
}

#[test]
fn tk1_a_timeout_keeps_what_came_and_leaves_nothing_behind() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    let start = Instant::now();
    let script = format!("echo early; {mark} & setsid {mark} & wait");
    let (stdout, _, exit) = exec(&server, &json!({ "cmd": script, "timeout": 0.5 }));
    assert_took(start.elapsed(), Duration::from_millis(500));
    assert_eq!((stdout.as_str(), &exit["timed_out"]), ("early\n", &true.into()));
    assert_eq!(exit["killed_processes"], 2, "{exit}");
    mark.assert_gone();
}

#[test]
fn the_first_byte_is_sent_while_the_command_runs() {
    // Each line waits for the client to have seen the one before.
    let server = Server::start(&[]);
    let home = tempfile::tempdir().expect("a directory");
    let at = |name: usize| home.path().join(name.to_string());
    let script = format!(
        "for i in 1 2 3; do echo $i; until [ -e {}/$i ]; do sleep 0.01; done; done",
        home.path().display()
    );
    let mut events = Events::of(&server, &json!({ "cmd": script }));
    events.expect("start");
    for line in 1..=3 {
        assert_eq!(events.expect("stdout")["data"], format!("{line}\n"));
        std::fs::write(at(line), "").expect("room");
    }
    assert_exit(&events.expect("exit"), Some(0), None, false);
}

#[test]
fn en_characters_arrive_whole_and_lines_are_not_split() {
    let server = Server::start(&[]);
    // Cut after each byte.
    let script = r"for b in '\342' '\202' '\254' '\360' '\237' '\230' '\200' 'a\377' 'b\300' \
        '\342\202'; do printf $b; sleep 0.02; done";
    let mut events = Events::of(&server, &json!({ "cmd": script }));
    let mut texts = vec![];
    while let Some(event) = events.next() {
        texts.extend(event["data"].as_str().map(str::to_owned));
    }
    assert_eq!(texts.concat(), "€😀a\u{fffd}b\u{fffd}\u{fffd}");
    assert!(texts.contains(&"€".to_owned()) && texts.contains(&"😀".to_owned()), "{texts:?}");
    let odd = "a\u{85}b\u{2028}c\u{2029}d\u{b}\u{c}\u{1c}\u{1d}\u{1e}\u{0}\u{7f}\r\n\"\\";
    let (stdout, _, _) = exec(&server, &json!({ "cmd": ["cat"], "stdin": odd }));
    assert_eq!(stdout, odd);
}

#[test]
fn a_background_child_does_not_hold_the_answer_and_lives_on() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    let start = Instant::now();
    let body = json!({ "cmd": format!("(sleep 0.4; echo late; {mark}) & echo started") });
    let (stdout, _, exit) = exec(&server, &body);
    assert_eq!((stdout.as_str(), &exit["left_running"]), ("started\n", &true.into()));
    assert!(start.elapsed() < Duration::from_millis(250) + slack(), "{:?}", start.elapsed());
    assert!(is_alive(mark.sleeper()), "it has written its line and was not killed for it");
}

#[test]
fn a_cap_is_told_once_and_the_rest_is_counted() {
    let server = Server::start(&[]);
    let body = json!({ "cmd": "seq 100000; echo e >&2", "max_output_size": "1K" });
    let mut events = Events::of(&server, &body);
    let (mut stdout, mut truncated) = (String::new(), vec![]);
    let exit = loop {
        let event = events.next().expect("the exit comes");
        match event["event"].as_str().expect("a kind") {
            "stdout" => stdout += event["data"].as_str().expect("text"),
            "truncated" => truncated.push(event["stream"].clone()),
            "exit" => break event,
            _ => {}
        }
    };
    let whole: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert_eq!((stdout.as_str(), truncated), (&whole[..1024], vec![json!("stdout")]));
    assert_exit(&exit, Some(0), None, false);
    wait_until("it is logged", || server.log().contains("/v1/exec 200"));
    assert!(server.log().contains("stdout 1024/588895"), "{}", server.log());
}

#[test]
fn a_silent_command_is_heard_of_every_15_seconds() {
    let server = Server::start(&[]);
    let start = Instant::now();
    let mut events = Events::of(&server, &json!({ "cmd": "sleep 16.5; echo a" }));
    events.expect("start");
    events.expect("ping");
    let elapsed = start.elapsed();
    let due = Duration::from_secs(15);
    assert!(elapsed >= due && elapsed < due + Duration::from_secs(1) + slack(), "{elapsed:?}");
    assert_eq!(events.rest().0, "a\n");
}

#[test]
fn hs9_a_client_that_leaves_ends_its_command() {
    let server = Server::start(&[]);
    for (name, leave) in [
        ("closes", (|client: Client| drop(client)) as fn(Client)),
        ("resets", |client| client.reset()),
        ("half-closes", |client| {
            client.stream.shutdown(Shutdown::Write).expect("a connection");
            thread::sleep(Duration::from_secs(1));
        }),
    ] {
        let mark = Mark::new();
        let script = format!("trap '' TERM; setsid {mark} & {mark}; {mark}; {mark}");
        let mut events = Events::of(&server, &json!({ "cmd": script }));
        events.expect("start");
        wait_until("both run", || mark.sleepers().len() == 2);
        let start = Instant::now();
        let leaving = thread::spawn(move || leave(events.client));
        wait_until("all are gone", || mark.living().is_empty());
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_millis(100) + slack(), "{name}: {elapsed:?}");
        leaving.join().expect("it ends");
    }
    server.assert_alive();
}

#[test]
fn a_slow_reader_slows_the_command_and_costs_the_server_nothing() {
    let server = Server::start(&[]);
    let helper = helper();
    let bytes = 300 * 1_000_000;
    let body = json!({ "cmd": [helper, "produce", "1000000", "300"], "timeout": 120 });
    let mut events = Events::of(&server, &body);
    events.expect("start");
    // What the sockets and the pipe hold, and not a byte more: the command waits.
    let produced =
        |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let pid = crate::support::children(server.pid())[0];
    let mut last = String::new();
    wait_until("it waits", || {
        let now = produced(pid);
        thread::sleep(Duration::from_millis(50));
        std::mem::replace(&mut last, now) == produced(pid)
    });
    let written = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
        line.expect("the line").parse::<usize>().expect("a number")
    };
    assert!(written(&last) < 32 * MIB, "{last}");
    let (stdout, _, exit) = events.rest();
    assert_eq!(stdout.len(), bytes);
    assert_exit(&exit, Some(0), None, false);
    let peak = server.peak_rss_bytes();
    assert!(peak < 16 << 20, "{peak} bytes were resident");
}

#[test]
fn the_deadline_holds_for_a_command_whose_client_does_not_read() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    let script = format!("{mark} & yes");
    let mut events = Events::of(&server, &json!({ "cmd": script, "timeout": 0.5 }));
    events.expect("start");
    let start = Instant::now();
    wait_until("all are gone", || mark.living().is_empty());
    assert!(start.elapsed() < Duration::from_millis(500) + slack(), "{:?}", start.elapsed());
    let (stdout, _, exit) = events.rest();
    assert!(stdout.bytes().all(|byte| b"y\n".contains(&byte)), "torn");
    assert_eq!(exit["timed_out"], true);
}

#[test]
fn sd4_a_server_that_is_told_to_end_ends_its_commands_and_says_so() {
    let mut server = Server::start(&[]);
    let mark = Mark::new();
    // A grace of its own does not hold the end up.
    let script = format!("echo early; trap '' TERM; {mark}; {mark}");
    let mut events = Events::of(&server, &json!({ "cmd": script, "grace": 60 }));
    wait_until("it runs", || !mark.sleepers().is_empty());
    let start = Instant::now();
    send(server.pid(), Signal::TERM);
    let (stdout, _, exit) = events.rest();
    assert_eq!((stdout.as_str(), &exit["status"]), ("early\n", &json!("canceled")));
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(2) + slack(), "{:?}", start.elapsed());
    mark.assert_gone();
}

#[test]
fn a_grace_that_has_begun_is_cut_when_the_server_ends() {
    let mut server = Server::start(&[]);
    let mark = Mark::new();
    let script = format!("trap 'echo told' TERM; {mark} & while :; do sleep 0.05; done");
    let body = json!({ "cmd": script, "grace": 60, "timeout": 0.2 });
    let mut events = Events::of(&server, &body);
    events.expect("start");
    // The shell may say on stderr that its sleep was ended.
    while events.next().expect("it is told")["data"] != "told\n" {}
    let start = Instant::now();
    send(server.pid(), Signal::TERM);
    assert_eq!(events.rest().2["timed_out"], true);
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(2) + slack(), "{:?}", start.elapsed());
    mark.assert_gone();
}

#[test]
fn hs11_more_commands_than_there_are_places_for_are_told_so_at_once() {
    let server = Server::start(&["--max-commands", "1"]);
    let mark = Mark::new();
    let mut busy = Events::of(&server, &json!({ "cmd": mark.to_string() }));
    busy.expect("start");
    let sleeper = mark.sleeper();
    for line in ["POST /v1/exec", "POST /v1/processes"] {
        let answer = server.ask(&request(line, &json!({ "cmd": "true" })));
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")), "{line}");
        assert!(value(&answer, 429)["error"].is_string());
    }
    kill_all(&[sleeper]);
    busy.rest();
    exec(&server, &json!({ "cmd": "true" }));
}

#[test]
fn the_token_is_wanted_before_anything_else_is_looked_at() {
    let mut command = crate::support::runcap();
    command.args(["serve", "--listen", "127.0.0.1:0"]).env("RUNCAP_TOKEN", "CANARY-7f3a9c");
    let server = Server::of(command);
    let body =
        json!({ "cmd": "env; tr '\\0' '\\n' </proc/$PPID/environ; cat /proc/$PPID/cmdline" });
    for line in ["POST /v1/exec", "GET /v1/no-such-route", "GET /v1/processes"] {
        let answer = server.ask(&request(line, &body));
        let expected = json!({ "error": "invalid or missing X-Sandbox-Token" });
        assert_eq!(value(&answer, 403), expected, "{line}");
    }
    let line =
        "POST /v1/exec HTTP/1.1\r\nX-Sandbox-Token: CANARY-7f3a9c\r\nAuthorization: Bearer x";
    let text = String::from_utf8(request("POST /v1/exec", &body)).expect("text");
    let mut client = server.connect();
    client.send(text.replacen("POST /v1/exec HTTP/1.1", line, 1).as_bytes());
    let answer = client.answer();
    assert_eq!(answer.status, 200);
    assert!(!answer.text().contains("CANARY"), "{}", answer.text());
}

#[test]
fn eighteen_commands_at_once_with_stdin_fit_into_140_open_files() {
    let mut command = std::process::Command::new("sh");
    let runcap = crate::support::runcap();
    command.args(["-c", "ulimit -n 140; exec \"$0\" \"$@\""]).arg(runcap.get_program());
    let server = Server::of({
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        command
    });
    let mut all: Vec<_> = (0..18)
        .map(|index| {
            let stdin = format!("{index}\n").repeat(40_000);
            let script = "read line; sleep 1; echo $line; cat >/dev/null";
            (index, Events::of(&server, &json!({ "cmd": script, "stdin": stdin })))
        })
        .collect();
    wait_until("all run", || crate::support::children(server.pid()).len() == 18);
    let open = descriptors(server.pid());
    assert!(open < 140, "{open} descriptors");
    for (index, events) in &mut all {
        let (stdout, stderr, exit) = events.rest();
        assert_eq!((stdout, stderr), (format!("{index}\n"), String::new()));
        assert_exit(&exit, Some(0), None, false);
    }
}

#[test]
fn eighteen_commands_at_once_get_every_byte_of_their_own() {
    let server = Server::start(&[]);
    thread::scope(|scope| {
        for client in 0..18 {
            let server = &server;
            scope.spawn(move || {
                let mut connection = Some(server.connect());
                for round in 0..40 {
                    let word = format!("{client}.{round}.€");
                    let script = format!(
                        "i=0; while [ $i -lt 300 ]; do echo {word}$i; echo e{word}$i >&2; \
                         i=$((i+1)); done"
                    );
                    let client = connection.take().expect("it goes on");
                    let mut events = Events::over(client, &json!({ "cmd": script }));
                    let (stdout, stderr, exit) = events.rest();
                    let lines = |mark: &str| -> String {
                        (0..300).map(|line| format!("{mark}{word}{line}\n")).collect()
                    };
                    assert!(stdout == lines(""), "{word}: {} bytes", stdout.len());
                    assert!(stderr == lines("e"), "{word}: {} bytes", stderr.len());
                    assert_exit(&exit, Some(0), None, false);
                    connection = Some(events.client);
                }
            });
        }
    });
}

#[test]
fn http_1_0_gets_its_events_up_to_the_end_of_the_connection() {
    let server = Server::start(&[]);
    let body = json!({ "cmd": "echo a; exit 3" }).to_string();
    let mut client = server.connect();
    let head = "POST /v1/exec HTTP/1.0\r\n";
    client.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let (bytes, is_orderly) = client.rest();
    let text = String::from_utf8(bytes).expect("text");
    let (_, body) = text.split_once("\r\n\r\n").expect("a head");
    let kinds: Vec<Value> =
        body.lines().map(|line| serde_json::from_str(line).expect("an event")).collect();
    let kinds: Vec<_> =
        kinds.iter().map(|event| event["event"].as_str().expect("a kind")).collect();
    assert_eq!((kinds, is_orderly), (vec!["start", "stdout", "exit"], true));
}
