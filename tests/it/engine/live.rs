//! `stream: true`: events as they happen.

use std::time::{Duration, Instant};

use crate::support::*;

/// Runs one request with `stream: true` and returns its events, each with its time of arrival.
fn events(mut request: Value) -> Vec<(Duration, Value)> {
    request["stream"] = json!(true);
    let mut session = Session::start(&[]);
    let start = Instant::now();
    session.send(&request);
    let mut events = Vec::new();
    while events.last().is_none_or(|(_, event): &(_, Value)| event["event"] != "exit") {
        let event = session.line().expect("exit is the last event");
        events.push((start.elapsed(), event));
    }
    session.end();
    events
}

fn named<'a>(events: &'a [(Duration, Value)], name: &str) -> Vec<&'a Value> {
    events.iter().map(|(_, event)| event).filter(|event| event["event"] == name).collect()
}

/// Output on both streams: start first, exit last, in it no text and every count.
#[test]
fn the_first_event_is_start_and_the_last_is_exit() {
    let script = "echo $$; echo error >&2; exit 3";
    let events = events(json!({"command": script, "tag": "mine"}));
    let (first, last) = (&events[0].1, &events.last().unwrap().1);
    assert_eq!(first["event"], "start");
    let pid = number(first, "pid");
    assert_eq!(named(&events, "stdout"), [&json!({"event": "stdout", "data": format!("{pid}\n")})]);
    assert_eq!(named(&events, "stderr"), [&json!({"event": "stderr", "data": "error\n"})]);
    assert_eq!((named(&events, "start").len(), named(&events, "exit").len()), (1, 1));
    assert_has(
        last,
        &json!({"event": "exit", "status": "exited", "exit_code": 3, "stdout": "", "stderr": "",
            "stdout_bytes": pid.to_string().len() + 1, "stderr_bytes": 6, "stdout_truncated": null,
            "tag": "mine"}),
    );
}

/// `a`, half a second, `b`: each event is on the wire when it happens.
#[test]
fn events_arrive_as_they_happen() {
    let events = events(json!({"command": "echo a; sleep 0.5; echo b; sleep 0.5"}));
    let names: Vec<_> = events.iter().map(|(_, event)| event["event"].clone()).collect();
    assert_eq!(names, ["start", "stdout", "stdout", "exit"]);
    // `sleep` never returns early, so an event held back would come too close to the next one.
    let gap = |earlier: usize, later: usize| events[later].0 - events[earlier].0;
    assert!(gap(1, 2) > Duration::from_millis(250), "{events:?}");
    assert!(gap(2, 3) > Duration::from_millis(250), "{events:?}");
}

/// The bytes of a euro sign, written one by one: one event, when it is whole.
#[test]
fn en3_a_split_character_arrives_whole_in_one_event() {
    let script = r"printf 'a\342'; sleep 0.1; printf '\202'; sleep 0.1; printf '\254b'";
    let split = events(json!({"command": script}));
    let data: Vec<_> = named(&split, "stdout").iter().map(|event| event["data"].clone()).collect();
    assert_eq!(data, ["a", "€b"]);
    let cut = events(json!({"command": r"printf 'a\342\202'"}));
    let data: String =
        named(&cut, "stdout").iter().map(|event| event["data"].as_str().unwrap()).collect();
    assert_eq!(data, "a\u{fffd}");
    let last = &cut.last().unwrap().1;
    assert_has(last, &json!({"stdout_bytes": 3, "stdout_replaced": true}));
}

/// A megabyte with a cap of 1000: a thousand bytes, one `truncated`, then only counting.
#[test]
fn past_the_cap_there_is_one_truncated_event() {
    for pauses in ["", "sleep 0.1; head -c 1000 /dev/zero; sleep 0.1; echo end"] {
        let script = format!("yes | head -c 1000000; echo error >&2; {pauses}");
        let events = events(json!({"command": script, "stdout_limit": {"max_output_size": 1000}}));
        let sent: String =
            named(&events, "stdout").iter().map(|event| event["data"].as_str().unwrap()).collect();
        assert_eq!(sent, "y\n".repeat(500));
        assert_eq!(
            named(&events, "truncated"),
            [&json!({"event": "truncated", "stream": "stdout"})]
        );
        assert_eq!(named(&events, "stderr").len(), 1);
        let last = &events.last().unwrap().1;
        let total = number(last, "stdout_bytes");
        assert_eq!(total, if pauses.is_empty() { 1_000_000 } else { 1_001_004 });
        assert_has(
            last,
            &json!({"status": "exited", "stdout_truncated": true, "stdout_gap_at": 1000,
                "stdout_dropped_bytes": total - 1000, "stderr_truncated": null}),
        );
    }
}

/// Exactly the cap: nothing was left out, so no event says so.
#[test]
fn exactly_the_cap_is_not_truncated() {
    let request = json!({"command": "head -c 1000 /dev/zero", "max_output_size": 1000});
    let events = events(request);
    assert_eq!(named(&events, "truncated").len(), 0);
    let last = &events.last().unwrap().1;
    assert_has(last, &json!({"stdout_bytes": 1000, "stdout_truncated": null}));
}

/// A cap inside a euro sign: what was sent are whole characters.
#[test]
fn a_character_that_the_cap_cuts_is_not_sent() {
    let request = json!({"command": "printf '€€€'", "max_output_size": 7});
    let events = events(request);
    assert_eq!(named(&events, "stdout")[0]["data"], "€€");
    let last = &events.last().unwrap().1;
    assert_has(
        last,
        &json!({"stdout_bytes": 9, "stdout_gap_at": 6, "stdout_dropped_bytes": 3,
            "stdout_replaced": null}),
    );
}

/// base64: every byte of both streams, event by event.
#[test]
fn base64_events_are_exact() {
    let script = "seq 1 50000 | tee copy; printf '\\377\\000' >&2";
    let directory = tempfile::tempdir().unwrap();
    let request = json!({"command": script, "encoding": "base64", "cwd": directory.path()});
    let events = events(request);
    let sent: Vec<u8> =
        named(&events, "stdout").iter().flat_map(|event| base64(event, "data_base64")).collect();
    assert_eq!(sent, std::fs::read(directory.path().join("copy")).unwrap());
    assert_eq!(base64(named(&events, "stderr")[0], "data_base64"), b"\xff\0");
    let last = &events.last().unwrap().1;
    assert_has(last, &json!({"stdout_base64": "", "stderr_base64": "", "stderr_bytes": 2}));
}

/// `overflow: stop` on a live stream: the cap, the event, the end.
#[test]
fn overflow_stop_ends_a_live_command() {
    let request = json!({"command": "yes", "max_output_size": 1000, "overflow": "stop"});
    let events = events(request);
    let sent: String =
        named(&events, "stdout").iter().map(|event| event["data"].as_str().unwrap()).collect();
    assert_eq!(sent, "y\n".repeat(500));
    assert_eq!(named(&events, "truncated").len(), 1);
    assert_has(
        &events.last().unwrap().1,
        &json!({"status": "output_limit", "stdout_bytes": 1001, "stdout_dropped_bytes": 1,
            "stdout_gap_at": 1000, "stdout_incomplete": true}),
    );
}

/// A command that cannot be started has one event: exit.
#[test]
fn a_command_that_cannot_start_has_an_exit_event_only() {
    let events = events(json!({"command": ["/no/such/program"]}));
    assert_eq!(events.len(), 1, "{events:?}");
    assert_has(&events[0].1, &json!({"event": "exit", "status": "failed_to_start"}));
}
