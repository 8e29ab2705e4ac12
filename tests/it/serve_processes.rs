//! `/v1/processes`: commands that nobody waits for.

use std::thread;
use std::time::{Duration, Instant};

use crate::http::{Answer, Server};
use crate::serve_exec::{Events, request, value};
use crate::support::{
    Mark, Signal, Value, assert_took, descriptors, is_alive, json, kill_all, runcap, send, slack,
    threads, wait_until,
};

fn start(server: &Server, body: &Value) -> Answer {
    server.ask(&request("POST /v1/processes", body))
}

/// Starts one; its answer.
#[track_caller]
fn started(server: &Server, body: &Value) -> Value {
    value(&start(server, body), 200)
}

#[track_caller]
fn list(server: &Server) -> Vec<Value> {
    let answer = server.ask(&request("GET /v1/processes", &Value::Null));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    value(&answer, 200).as_array().expect("an array").clone()
}

#[track_caller]
fn one(server: &Server, id: &Value) -> Value {
    let found = list(server).into_iter().find(|process| process["id"] == *id);
    found.unwrap_or_else(|| panic!("{id} is listed"))
}

#[track_caller]
fn end(server: &Server, id: &str) -> bool {
    let answer = server.ask(&request(&format!("DELETE /v1/processes/{id}"), &Value::Null));
    let answer = value(&answer, 200);
    assert_eq!((&answer["id"], &answer["ok"]), (&json!(id), &json!(true)));
    assert_eq!(answer.as_object().map(|object| object.len()), Some(3), "{answer}");
    answer["killed"].as_bool().expect("true or false")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is text: {value}"))
}

#[test]
fn a_process_is_listed_as_it_was_sent_and_ended_once() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    let (program, seconds) = mark
        .to_string()
        .split_once(' ')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .expect("two words");
    let cmd = json!([program, seconds]);
    let answer = started(&server, &json!({ "cmd": cmd, "tag": "t\u{2028}" }));
    let pid = mark.sleeper();
    assert_eq!(answer, json!({ "id": "p-1", "pid": pid, "cmd": cmd, "tag": "t\u{2028}" }));
    let mut listed = list(&server);
    assert!(listed[0]["started_at_ms"].as_u64().expect("a number") > 1_700_000_000_000);
    listed[0]["started_at_ms"] = 0.into();
    let expected = json!({
        "id": "p-1", "pid": pid, "cmd": cmd, "tag": "t\u{2028}", "started_at_ms": 0,
        "running": true, "exit_code": null
    });
    assert_eq!(listed, [expected]);
    // Gone when the answer comes, and told truthfully.
    assert!(end(&server, "p-1"));
    assert!(!is_alive(pid));
    assert!(!end(&server, "p-1"));
    assert!(!end(&server, &pid.to_string()));
    let ended = one(&server, &json!("p-1"));
    assert_eq!((&ended["running"], &ended["exit_code"]), (&json!(false), &Value::Null));
    let line = "ms (canceled SIGTERM, killed 0, 'sleep', tag 't\\u{2028}')";
    wait_until("its end is logged", || server.log().contains(line));
    assert!(server.log().contains("Z process p-1 "), "{}", server.log());
}

#[test]
fn one_that_ended_by_itself_was_not_killed() {
    let server = Server::start(&[]);
    for (cmd, exit_code) in [("exit 5", json!(5)), ("kill -9 $$", Value::Null)] {
        let answer = started(&server, &json!({ "cmd": cmd }));
        assert_eq!((&answer["cmd"], &answer["tag"]), (&json!(cmd), &Value::Null));
        wait_until("it has ended", || one(&server, &answer["id"])["running"] == false);
        assert_eq!(one(&server, &answer["id"])["exit_code"], exit_code, "{cmd}");
        assert!(!end(&server, text(&answer, "id")), "{cmd}");
    }
    for unknown in ["p-99", "p-0", "1", "x", "99999999999999999999", "%2e%2e"] {
        assert!(!end(&server, unknown), "{unknown}");
    }
    for path in ["", "/", "/p-1/x", "/p-1/"] {
        let answer = server.ask(&request(&format!("DELETE /v1/processes{path}"), &Value::Null));
        let expected = format!("no route: DELETE /v1/processes{path}");
        assert_eq!(value(&answer, 404)["error"], expected);
    }
}

#[test]
fn a_process_is_found_by_its_pid_and_takes_all_it_started_with_it() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    let script = format!("trap '' TERM; setsid {mark} & {mark} & wait; {mark}");
    let answer = started(&server, &json!({ "cmd": script }));
    wait_until("both run", || mark.sleepers().len() == 2);
    let begin = Instant::now();
    assert!(end(&server, &answer["pid"].to_string()));
    assert_took(begin.elapsed(), Duration::from_millis(500));
    mark.assert_gone();
}

#[test]
fn of_two_who_end_one_at_once_one_did_it() {
    let server = Server::start(&[]);
    for _ in 0..5 {
        let answer = started(&server, &json!({ "cmd": "trap '' TERM; while :; do sleep 1; done" }));
        let id = text(&answer, "id");
        let killed = thread::scope(|scope| {
            let ends: Vec<_> = (0..4).map(|_| scope.spawn(|| end(&server, id))).collect();
            ends.into_iter().filter_map(|end| end.join().expect("it ends").then_some(())).count()
        });
        assert_eq!(killed, 1);
    }
}

#[test]
fn a_process_outlives_the_connection_and_the_default_timeout() {
    let server = Server::start(&["--default-timeout", "300ms", "--max-timeout", "300ms"]);
    let mark = Mark::new();
    let before = threads(server.pid());
    let mut client = server.connect();
    client.send(&request("POST /v1/exec", &json!({ "cmd": mark.to_string(), "background": true })));
    let answer = value(&client.answer(), 200);
    assert_eq!(text(&answer, "id"), "p-1");
    client.reset();
    let pid = mark.sleeper();
    thread::sleep(Duration::from_millis(600));
    assert!(is_alive(pid), "no timeout was asked for");
    assert_eq!(one(&server, &answer["id"])["running"], true);
    assert!(end(&server, "p-1"));
    wait_until("its threads are gone", || threads(server.pid()) == before);
    // One that was asked for holds.
    let answer = started(&server, &json!({ "cmd": mark.to_string(), "timeout": 0.2 }));
    wait_until("it has ended", || one(&server, &answer["id"])["running"] == false);
    mark.assert_gone();
    assert!(!end(&server, text(&answer, "id")), "its deadline has ended it");
}

#[test]
fn what_a_process_prints_is_thrown_away_and_never_blocks_it() {
    let server = Server::start(&[]);
    let script = "head -c 50000000 /dev/zero; head -c 50000000 /dev/zero >&2; exit 3";
    let answer = started(&server, &json!({ "cmd": script }));
    wait_until("it has ended", || one(&server, &answer["id"])["running"] == false);
    assert_eq!(one(&server, &answer["id"])["exit_code"], 3);
    assert!(server.peak_rss_bytes() < 16 << 20);
}

#[test]
fn the_256_that_ended_last_are_remembered() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    let oldest = started(&server, &json!({ "cmd": mark.to_string() }));
    mark.sleeper();
    let descriptors_before = descriptors(server.pid());
    for count in 1..=300 {
        let answer = started(&server, &json!({ "cmd": ["true"] }));
        assert_eq!(answer["id"], format!("p-{}", count + 1));
    }
    wait_until("all others have ended", || {
        list(&server).iter().filter(|process| process["running"] == true).count() == 1
    });
    let ids = |server: &Server| -> Vec<_> {
        list(server).iter().map(|process| text(process, "id").to_owned()).collect()
    };
    let listed = ids(&server);
    assert_eq!(listed.len(), 257, "256 and the one that runs");
    assert_eq!(listed[0], text(&oldest, "id"), "the one that runs is never forgotten");
    assert!(listed.contains(&"p-301".to_owned()) && !listed.contains(&"p-2".to_owned()));
    // What is remembered takes no descriptor.
    wait_until("they were closed", || descriptors(server.pid()) <= descriptors_before + 2);
    // The one that began first ends last.
    assert!(end(&server, text(&oldest, "id")));
    assert_eq!(one(&server, &oldest["id"])["running"], false);
    assert_eq!(ids(&server).len(), 256);
    // Ended by others, and told of it although 256 have ended since.
    let slow = json!({ "cmd": "trap '' TERM; while :; do sleep 0.1; done", "grace": 2 });
    let slow = started(&server, &slow);
    let killed = thread::scope(|scope| {
        let ended = scope.spawn(|| end(&server, text(&slow, "id")));
        for _ in 0..260 {
            started(&server, &json!({ "cmd": ["true"] }));
        }
        ended.join().expect("it is answered")
    });
    assert!(killed);
}

#[test]
fn a_place_is_free_when_the_end_is_told() {
    let server = Server::start(&["--max-commands", "1"]);
    for _ in 0..40 {
        let answer = started(&server, &json!({ "cmd": ["sleep", "99"] }));
        assert!(end(&server, text(&answer, "id")));
        // As the published client, which does not read past the exit.
        let mut events = Events::of(&server, &json!({ "cmd": ["true"] }));
        while events.next().expect("the exit comes")["event"] != "exit" {}
    }
}

#[test]
fn a_body_that_a_process_holds_counts_until_it_ends() {
    let Some(group) = crate::support::MemoryGroup::new("processes", 256 << 20) else { return };
    // A quarter of 256 MiB, of which a body of 12 MB takes about twice its size.
    let mut command = runcap();
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    let server = Server::of(group.wrap(&command));
    let stdin = "x".repeat(12_000_000);
    let body = json!({ "cmd": ["sleep", "99"], "stdin": stdin });
    let statuses: Vec<_> = (0..6).map(|_| start(&server, &body).status).collect();
    assert!(statuses.contains(&200) && statuses.contains(&503), "{statuses:?}");
    for process in list(&server) {
        assert!(end(&server, text(&process, "id")));
    }
    wait_until("the memory is free again", || start(&server, &body).status == 200);
    for process in list(&server) {
        end(&server, text(&process, "id"));
    }
}

#[test]
fn a_command_of_a_megabyte_is_listed_cut() {
    let server = Server::start(&[]);
    let word = "x".repeat(100_000);
    let answer = started(&server, &json!({ "cmd": ["sleep", "0", word, word, word] }));
    wait_until("it has ended", || one(&server, &answer["id"])["running"] == false);
    let listed = one(&server, &answer["id"]);
    assert!(listed.to_string().len() < 8192, "{} bytes", listed.to_string().len());
    assert_eq!(listed["cmd"][0], "sleep");
}

#[test]
fn sd4_processes_end_with_the_server() {
    for (name, end_server) in [
        ("a signal", (|server: &mut Server| send(server.pid(), Signal::TERM)) as fn(&mut Server)),
        ("nobody comes", |_| {}),
    ] {
        let idle = if name == "a signal" { "60s" } else { "1s" };
        let mut server = Server::start(&["--idle-exit", idle]);
        let mark = Mark::new();
        let script = format!("trap '' TERM; setsid {mark} & {mark}; {mark}; {mark}");
        started(&server, &json!({ "cmd": script, "grace": 60 }));
        wait_until("both run", || mark.sleepers().len() == 2);
        let begin = Instant::now();
        end_server(&mut server);
        assert_eq!(server.child.wait().expect("it ends").code(), Some(0), "{name}");
        assert!(
            begin.elapsed() < Duration::from_secs(4) + slack(),
            "{name}: {:?}",
            begin.elapsed()
        );
        mark.assert_gone();
    }
}

#[test]
fn a_service_that_a_process_leaves_lives_on() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    let answer = started(&server, &json!({ "cmd": format!("{mark} & exit 2") }));
    wait_until("it has ended", || one(&server, &answer["id"])["running"] == false);
    assert_eq!(one(&server, &answer["id"])["exit_code"], 2);
    let sleeper = mark.sleeper();
    assert!(!end(&server, text(&answer, "id")));
    assert!(is_alive(sleeper));
    kill_all(&[sleeper]);
}

#[test]
fn a_list_is_not_held_up_by_who_reads_it_slowly() {
    // One client asks over and over and never reads; the others start and end processes meanwhile.
    let server = Server::start(&[]);
    let mut deaf = server.connect();
    let long = "y".repeat(4000);
    for _ in 0..40 {
        started(&server, &json!({ "cmd": ["true", long] }));
    }
    let ask = request("GET /v1/processes", &Value::Null).repeat(200);
    deaf.send(&ask);
    let answer = started(&server, &json!({ "cmd": "sleep 77" }));
    assert!(end(&server, text(&answer, "id")));
    let mut events = Events::of(&server, &json!({ "cmd": "echo a" }));
    assert_eq!(events.rest().0, "a\n");
}

#[test]
fn the_end_of_a_process_is_logged_in_the_format_that_was_asked_for() {
    for (format, expected) in [("json", true), ("off", false)] {
        let server = Server::start(&["--log", format]);
        let answer = started(&server, &json!({ "cmd": "exit 4" }));
        wait_until("it has ended", || one(&server, &answer["id"])["running"] == false);
        // Lines before the answer that follows it are written before that one's.
        let lines = |server: &Server| -> Vec<Value> {
            let log = server.log();
            let lines = log.lines().filter(|line| !line.starts_with("runcap: listening"));
            lines.map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
        };
        if expected {
            wait_until("it is logged", || lines(&server).iter().any(|l| l["process"] == "p-1"));
            let lines = lines(&server);
            let line = lines.iter().find(|line| line["process"] == "p-1").expect("it is there");
            assert_eq!(line["note"], "exited 4, killed 0, '/bin/sh'");
            assert!(line["ms"].is_number() && line["time"].is_string(), "{line}");
        } else {
            assert_eq!(lines(&server), [Value::Null; 0]);
        }
    }
}
