//! `POST /api/execute`: what a command may do to its server, its client and its neighbours.

use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use crate::http::{Answer, Client, Server};
use crate::support::{
    Mark, Signal, Value, assert_took, children, helper, is_alive, json, kill_all, processes_with,
    send, slack, wait_until, zombies,
};

const MIB: usize = 1 << 20;

/// One request on a connection of its own.
fn execute(server: &Server, request: &Value) -> Value {
    ask(&mut server.connect(), request)
}

fn post(request: &Value) -> Vec<u8> {
    let body = request.to_string();
    let length = body.len();
    let head = "POST /api/execute HTTP/1.1\r\nHost: localhost\r\n";
    format!("{head}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn ask(client: &mut Client, request: &Value) -> Value {
    client.send(&post(request));
    let answer = client.answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    value(&answer)
}

fn value(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).expect("answers are JSON")
}

fn sh(script: &str) -> Value {
    json!({ "command": ["sh", "-c", script] })
}

fn text<'a>(answer: &'a Value, key: &str) -> &'a str {
    answer[key].as_str().unwrap_or_else(|| panic!("{key} is text"))
}

#[test]
fn an_answer_has_picods_keys_in_their_order() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.send(&post(&sh("echo out; echo err >&2; exit 3")));
    let answer = client.answer();
    let order = ["stdout", "stderr", "exit_code", "duration", "start_time", "end_time"];
    let places = order.map(|key| answer.text().find(&format!("\"{key}\":")).expect(key));
    assert!(places.is_sorted(), "{}", answer.text());
    let answer = value(&answer);
    assert_eq!(answer.as_object().map(|object| object.len()), Some(6), "{answer}");
    assert_eq!(text(&answer, "stdout"), "out\n");
    assert_eq!(text(&answer, "stderr"), "err\n");
    assert_eq!(answer["exit_code"], 3);
    assert!(answer["duration"].is_f64());
    // The connection goes on.
    assert_eq!(ask(&mut client, &sh("exit 0"))["exit_code"], 0);
}

#[test]
fn oc1_a_command_that_prints_without_end_costs_its_cap() {
    let server = Server::start(&["--max-output-size", "1M"]);
    let script = "head -c 300000000 /dev/zero | tr '\\0' a; echo error >&2; exit 7";
    let answer = execute(&server, &sh(script));
    assert_eq!(answer["exit_code"], 7);
    assert_eq!(text(&answer, "stdout").len(), MIB);
    assert_eq!((&answer["stdout_truncated"], answer.get("stderr_truncated")), (&true.into(), None));
    let stderr = text(&answer, "stderr");
    assert!(stderr.starts_with("error\n") && stderr.contains("1048576"), "{stderr}");
    assert!(stderr.contains("300000000"), "{stderr}");
    assert!(server.peak_rss_bytes() < 16 << 20, "{} bytes", server.peak_rss_bytes());
}

#[test]
fn tk1_a_timeout_ends_the_whole_group_and_says_so() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    let start = Instant::now();
    let request = json!({
        "command": ["sh", "-c", format!("echo early; {mark} & setsid {mark} & wait")],
        "timeout": "500ms",
    });
    let answer = execute(&server, &request);
    assert_took(start.elapsed(), Duration::from_millis(500));
    assert_eq!((text(&answer, "stdout"), &answer["exit_code"]), ("early\n", &124.into()));
    assert!(text(&answer, "stderr").contains("Command timed out after 0 seconds"), "{answer}");
    mark.assert_gone();
}

#[test]
fn a_timeout_that_is_zero_or_less_starts_nothing() {
    let server = Server::start(&[]);
    for timeout in ["0", "0s", "-1s"] {
        let mark = Mark::new();
        let request = json!({ "command": ["sh", "-c", mark.to_string()], "timeout": timeout });
        assert_eq!(execute(&server, &request)["exit_code"], 124, "{timeout}");
        mark.assert_gone();
    }
}

#[test]
fn a_longer_timeout_than_the_server_allows_is_cut_to_it() {
    let server = Server::start(&["--max-timeout", "1s", "--default-timeout", "1s"]);
    let start = Instant::now();
    let answer = execute(&server, &json!({ "command": ["sleep", "9"], "timeout": "1h" }));
    assert_took(start.elapsed(), Duration::from_secs(1));
    assert_eq!(answer["exit_code"], 124);
    assert!(text(&answer, "stderr").contains("timed out after 1 seconds"), "{answer}");
}

#[test]
fn es1_es2_how_a_command_ended_or_did_not_begin_is_told_apart() {
    let server = Server::start(&[]);
    let rows = [
        ("a signal", json!(["sh", "-c", "kill -9 $$"]), -1, ""),
        ("not found", json!(["no-such-program"]), 1, "no-such-program"),
        ("not executable", json!(["/etc/passwd"]), 1, "/etc/passwd"),
        ("its own 127", json!(["sh", "-c", "exit 127"]), 127, ""),
    ];
    for (name, command, exit_code, stderr) in rows {
        let answer = execute(&server, &json!({ "command": command }));
        assert_eq!(answer["exit_code"], exit_code, "{name}");
        assert!(text(&answer, "stderr").contains(stderr), "{name}: {answer}");
        assert_eq!(text(&answer, "stderr").is_empty(), stderr.is_empty(), "{name}: {answer}");
    }
}

#[test]
fn hs9_a_client_that_leaves_ends_its_command() {
    // Group, what left it, and what ignores TERM: gone within 100 ms of the client.
    let server = Server::start(&[]);
    for (name, leave) in [
        ("closes", (|client: Client| drop(client)) as fn(Client)),
        ("resets", |client| client.reset()),
        ("half-closes", |client| {
            client.stream.shutdown(Shutdown::Write).expect("a connection");
            // It stays, and gets nothing.
            thread::sleep(Duration::from_secs(1));
        }),
    ] {
        let mark = Mark::new();
        let mut client = server.connect();
        let script = format!("trap '' TERM; setsid {mark} & {mark}; {mark}; {mark}");
        client.send(&post(&sh(&script)));
        wait_until("both run", || mark.sleepers().len() == 2);
        let start = Instant::now();
        let leaving = thread::spawn(move || leave(client));
        wait_until("all are gone", || mark.living().is_empty());
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_millis(100) + slack(), "{name}: {elapsed:?}");
        leaving.join().expect("it ends");
    }
    server.assert_alive();
}

#[test]
fn hs11_more_commands_than_there_are_places_for_are_told_so_at_once() {
    let server = Server::start(&["--max-commands", "2"]);
    let mark = Mark::new();
    let mut busy = [server.connect(), server.connect()];
    busy.iter_mut().for_each(|client| client.send(&post(&sh(&mark.to_string()))));
    wait_until("both run", || mark.sleepers().len() == 2);
    let start = Instant::now();
    let mut third = server.connect();
    third.send(&post(&sh("exit 0")));
    let answer = third.answer();
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
    assert_eq!(value(&answer)["code"], 429);
    assert!(start.elapsed() < slack());
    server.assert_alive();
    // A place that is free again is taken again, on the same connection.
    kill_all(&mark.sleepers());
    busy.iter_mut().for_each(|client| assert_eq!(client.answer().status, 200));
    assert_eq!(ask(&mut third, &sh("exit 0"))["exit_code"], 0);
}

#[test]
fn a_stream_that_gets_no_budget_keeps_64_kib_and_says_why() {
    let server = Server::start(&["--output-budget", "0"]);
    let answer = execute(&server, &sh("head -c 200000 /dev/zero | tr '\\0' a; echo e >&2"));
    assert_eq!((&answer["exit_code"], text(&answer, "stdout").len()), (&0.into(), 64 << 10));
    assert_eq!(answer["stdout_truncated"], true);
    let stderr = text(&answer, "stderr");
    assert!(stderr.contains("output budget") && stderr.contains("200000"), "{stderr}");
    // A small output never asks.
    let answer = execute(&server, &sh("head -c 65536 /dev/zero | tr '\\0' a"));
    assert_eq!(text(&answer, "stdout").len(), 64 << 10);
    assert_eq!(answer.get("stdout_truncated"), None);
}

#[test]
fn the_budget_comes_back_when_the_answer_was_sent() {
    // Enough for one stream of 4 MiB.
    let server = Server::start(&["--output-budget", "4M", "--max-output-size", "4M"]);
    for _ in 0..5 {
        let answer = execute(&server, &sh("head -c 4194304 /dev/zero | tr '\\0' a"));
        assert_eq!(text(&answer, "stdout").len(), 4 * MIB);
        assert_eq!(answer.get("stdout_truncated"), None, "{}", text(&answer, "stderr"));
    }
}

#[test]
fn oc3_sixteen_clients_get_their_own_output_whole_or_cut_with_the_right_counts() {
    let server = Server::start(&["--max-output-size", "1M", "--output-budget", "8M"]);
    thread::scope(|scope| {
        for index in 0..16 {
            let server = &server;
            scope.spawn(move || {
                let letter = char::from(b'a' + index);
                let script = format!("head -c 3000000 /dev/zero | tr '\\0' {letter}; exit {index}");
                for _ in 0..3 {
                    let answer = execute(server, &sh(&script));
                    let stdout = text(&answer, "stdout");
                    assert!(stdout.chars().all(|other| other == letter), "{index}: torn");
                    assert!([MIB, 64 << 10].contains(&stdout.len()), "{index}: {}", stdout.len());
                    assert_eq!(answer["stdout_truncated"], true);
                    assert!(text(&answer, "stderr").contains("3000000"), "{answer}");
                    assert_eq!(answer["exit_code"], index, "{index}");
                }
            });
        }
    });
}

#[test]
fn hs10_a_client_that_does_not_read_its_answer_holds_no_command() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.send(&post(&sh("head -c 9000000 /dev/zero | tr '\\0' a")));
    wait_until("the command is over", || children(server.pid()).is_empty());
    server.assert_alive();
    // Late, but whole.
    assert_eq!(text(&value(&client.answer()), "stdout").len(), 9_000_000);
}

#[test]
fn sd4_a_server_that_is_told_to_end_ends_its_commands_and_answers_them() {
    let mut server = Server::start(&[]);
    let mark = Mark::new();
    let mut client = server.connect();
    client.send(&post(&sh(&format!("echo early; trap '' TERM; {mark}; {mark}"))));
    wait_until("it runs", || !mark.sleepers().is_empty());
    let start = Instant::now();
    send(server.pid(), Signal::TERM);
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (200, true));
    let answer = value(&answer);
    assert_eq!((text(&answer, "stdout"), &answer["exit_code"]), ("early\n", &(-1).into()));
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(2) + slack(), "{:?}", start.elapsed());
    mark.assert_gone();
}

#[test]
fn sd5_ls2_a_command_finds_nothing_of_the_servers() {
    let mut command = crate::support::runcap();
    command.args(["serve", "--listen", "127.0.0.1:0"]).env("RUNCAP_TOKEN", "CANARY-7f3a9c");
    let server = Server::of(command);
    let script =
        "env; tr '\\0' '\\n' </proc/$PPID/environ; cat /proc/$PPID/cmdline; ls /proc/self/fd";
    let body = sh(script).to_string();
    let answer = server.ask(
        format!(
            "POST /api/execute HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer CANARY-7f3a9c\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    );
    assert!(!answer.text().contains("CANARY"), "{}", answer.text());
    let answer = value(&answer);
    // Its own directory is the fourth.
    assert!(text(&answer, "stdout").ends_with("0\n1\n2\n3\n"), "{answer}");
}

#[test]
fn pg3_a_service_that_a_command_leaves_lives_on_and_can_write() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    let script = format!("(sleep 0.3; echo log; {mark}) & echo started");
    let start = Instant::now();
    let answer = execute(&server, &sh(&script));
    assert_eq!((text(&answer, "stdout"), &answer["exit_code"]), ("started\n", &0.into()));
    assert!(start.elapsed() < Duration::from_millis(250) + slack(), "{:?}", start.elapsed());
    // It has written its line by now, and was not killed for it.
    let sleeper = mark.sleeper();
    assert!(is_alive(sleeper));
}

#[test]
fn rx4_orphans_of_commands_leave_no_zombie() {
    let server = Server::start(&[]);
    for _ in 0..10 {
        assert_eq!(execute(&server, &sh("(sleep 0.1 &) ; exit 0"))["exit_code"], 0);
    }
    wait_until("none is left", || zombies(server.pid()).is_empty());
}

#[test]
fn refusals_start_nothing() {
    let server = Server::start(&[]);
    let rows = [
        ("no JSON", "{", ""),
        ("no command", "{}", ""),
        ("an empty command", r#"{"command": []}"#, "command cannot be empty"),
        ("a text", r#"{"command": "echo"}"#, ""),
        ("a key twice", r#"{"command": ["true"], "command": ["true"]}"#, ""),
        ("a bad timeout", r#"{"command": ["true"], "timeout": "10"}"#, "Invalid timeout format"),
        (
            "out of the workspace",
            r#"{"command": ["true"], "working_dir": "../../.."}"#,
            "Invalid working directory",
        ),
    ];
    for (name, body, message) in rows {
        let length = body.len();
        let head = "POST /api/execute HTTP/1.1\r\nHost: localhost\r\n";
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        let answer = server.ask(request.as_bytes());
        assert_eq!(answer.status, 400, "{name}: {}", answer.text());
        let answer = value(&answer);
        assert_eq!(answer["code"], 400, "{name}");
        assert!(text(&answer, "error").starts_with(message), "{name}: {answer}");
    }
}

#[test]
fn a_working_directory_is_made_and_entered() {
    let workspace = tempfile::tempdir().expect("a directory");
    let path = workspace.path().to_str().expect("text");
    let server = Server::start(&["--workspace", path]);
    let real = std::fs::canonicalize(path).expect("it is there");
    let real = real.to_str().expect("text");
    let rows = [("", ""), ("a/b", "/a/b"), ("/a", "/a"), ("a/../c", "/c")];
    for (asked, expected) in rows {
        let answer = execute(&server, &json!({ "command": ["pwd"], "working_dir": asked }));
        assert_eq!(text(&answer, "stdout"), format!("{real}{expected}\n"), "{asked}");
    }
    std::os::unix::fs::symlink("/etc", workspace.path().join("out")).expect("a link");
    let body = json!({ "command": ["pwd"], "working_dir": "out" });
    let mut client = server.connect();
    client.send(&post(&body));
    let answer = client.answer();
    assert_eq!(answer.status, 400, "{}", answer.text());
}

#[test]
fn the_log_says_how_a_command_ended_and_nothing_that_it_was_given() {
    let server = Server::start(&[]);
    let request = json!({
        "command": ["sh", "-c", "echo SECRET-OUT; kill -9 $$", "SECRET-ARG"],
        "env": { "K": "SECRET-ENV" },
    });
    execute(&server, &request);
    wait_until("it is logged", || server.log().contains("/api/execute 200"));
    let log = server.log();
    assert!(log.contains("signaled -1, stdout 11/11, stderr 0/0, killed 0, 'sh'"), "{log}");
    assert!(!log.contains("SECRET"), "{log}");
}

#[test]
fn sixty_four_clients_that_print_300_mb_each_cost_the_budget_and_no_answer() {
    let budget = 32 * MIB as u64;
    let server = Server::start(&["--output-budget", "32M"]);
    let helper = helper();
    thread::scope(|scope| {
        for _ in 0..64 {
            let (server, helper) = (&server, &helper);
            scope.spawn(move || {
                let command = json!({ "command": [helper, "produce", "1000000", "300"] });
                let answer = execute(server, &command);
                assert_eq!(answer["exit_code"], 0, "{}", text(&answer, "stderr"));
                assert_eq!(answer["stdout_truncated"], true);
                assert!(text(&answer, "stderr").contains("300000000"), "{answer}");
                let length = text(&answer, "stdout").len();
                assert!([10 * MIB, 64 << 10].contains(&length), "{length}");
            });
        }
    });
    let peak = server.peak_rss_bytes();
    assert!(peak <= budget + (24 << 20), "{peak} bytes were resident");
    assert!(processes_with("produce 1000000 300").is_empty());
}
