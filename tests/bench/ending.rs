//! How fast a command is ended: at its output limit and at its deadline.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use crate::report::{Figure, Goal};
use crate::tools::{Session, alternate, marked, median, milliseconds, ms, quantile, runcap};

const STOPS: usize = 1000;
const STOP_CAP_BYTES: u64 = 64 << 10;
const ROUNDS: usize = 9;
const DAY_MS: f64 = 86_400_000.0;

/// A writer without end is stopped at 64 KiB, a thousand times in one `runcap json`.
pub(crate) fn overflow_stop(command: &[&str]) -> Vec<Figure> {
    let mark = mark("overflow");
    let request = json!({
        "command": command,
        "overflow": "stop",
        "max_output_size": STOP_CAP_BYTES,
        "timeout": 30,
        "env": env(&mark),
    });
    let mut session = Session::start();
    let _ = session.ask(&request);
    let before = session.resources();
    let mut durations = Vec::new();
    let mut walls = Vec::new();
    for _ in 0..STOPS {
        let mut answer = Value::Null;
        walls.push(ms(|| answer = session.ask(&request)));
        assert_eq!(answer["status"], "output_limit", "{answer}");
        durations.push(answer["duration"].as_f64().expect("seconds") * 1e3);
    }
    let after = session.resources();
    let none = Goal::Value(0.0);
    let figure =
        |what, values: &[f64], part, goal| Figure::alone(what, quantile(values, part), goal);
    vec![
        figure("duration median, ms", &durations, 0.5, Goal::Value(10.0)),
        figure("duration p99, ms", &durations, 0.99, Goal::Value(10.0)),
        Figure {
            raw: [durations.clone(), vec![]],
            ..figure("duration max, ms", &durations, 1.0, Goal::Value(10.0))
        },
        figure("request to answer p99, ms", &walls, 0.99, Goal::None),
        figure("request to answer max, ms", &walls, 1.0, Goal::None),
        Figure::alone("descriptors left", after[0] - before[0], none),
        Figure::alone("threads left", after[1] - before[1], none),
        Figure::alone("children left", after[2] - before[2], none),
        Figure::alone("processes left", marked(&mark).len() as f64, none),
    ]
}

/// The whole of a `runcap json` whose command has to be ended after 0.2 s, against `timeout`.
pub(crate) fn timeout(grace: Option<u32>) -> Vec<Figure> {
    let request = with_grace(json!({"command": ["sleep", "10"], "timeout": 0.2}), grace);
    let request = request.to_string();
    let ours = || {
        ms(|| {
            let mut command = Command::new(runcap());
            command.arg("json").stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("runcap starts");
            let mut stdin = child.stdin.take().expect("stdin is piped");
            std::io::Write::write_all(&mut stdin, request.as_bytes()).expect("runcap reads");
            drop(stdin);
            let answer = child.wait_with_output().expect("runcap ends").stdout;
            let answer: Value = serde_json::from_slice(&answer).expect("an answer is JSON");
            assert_eq!(answer["status"], "timed_out", "{answer}");
        })
    };
    let theirs = || {
        ms(|| {
            let mut command = Command::new("timeout");
            command.args(["-s", "KILL", "0.2", "sleep", "10"]);
            assert!(!command.status().expect("timeout starts").success());
        })
    };
    let raw = alternate(ROUNDS, ours, theirs);
    vec![Figure::pairs("whole process, ms", "timeout -s KILL", Goal::Above(5.0), raw)]
}

/// How long after its deadline the last of a shell and its 50 sleeps is gone, seen from outside.
pub(crate) fn group_of_50(grace: Option<u32>) -> Vec<Figure> {
    last_of_50("for i in $(seq 50); do sleep 30 & done; wait", 51, grace, 10.0)
}

/// The same for 50 sleeps that left the group: each leads a session, and its parent is gone.
pub(crate) fn escaped_50(grace: Option<u32>) -> Vec<Figure> {
    let script = "for i in $(seq 50); do (setsid sleep 30 &) </dev/null >/dev/null 2>&1; done; \
                  exec sleep 30";
    last_of_50(script, 51, grace, 50.0)
}

fn last_of_50(script: &str, count: usize, grace: Option<u32>, goal_ms: f64) -> Vec<Figure> {
    let timeout = Duration::from_secs(1);
    let mark = mark("fifty");
    let request = json!({
        "command": script,
        "timeout": timeout.as_secs_f64(),
        "env": env(&mark),
    });
    let request = with_grace(request, grace);
    let mut session = Session::start();
    let mut late = Vec::new();
    for _ in 0..ROUNDS {
        session.send(&request);
        let gone = last_end(&mark, count);
        let answer = session.answer();
        assert_eq!(answer["status"], "timed_out", "{answer}");
        let start = answer["start_time"].as_str().expect("a started command has a start_time");
        let since_start = milliseconds_of_day(gone) - day_milliseconds(start);
        late.push(since_start.rem_euclid(DAY_MS) - milliseconds(timeout));
    }
    let (middle, worst) = (median(&late), quantile(&late, 1.0));
    vec![
        Figure::alone("all gone after deadline, ms", middle, Goal::Value(goal_ms)),
        Figure {
            raw: [late, vec![]],
            ..Figure::alone("all gone, worst round, ms", worst, Goal::Value(goal_ms))
        },
    ]
}

/// What a command that leaves nothing pays for the look at its end: one look a sample, while this
/// process has no children.
pub(crate) fn leftovers_check() -> Vec<Figure> {
    let mut samples: Vec<f64> = (0..10_000)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(runcap::run::count_strays(), 0);
            milliseconds(start.elapsed()) * 1e3
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    let (middle, worst) = (median(&samples), quantile(&samples, 0.99));
    vec![
        Figure::alone("median, us", middle, Goal::Value(30.0)),
        Figure::alone("p99, us", worst, Goal::None),
    ]
}

/// Ten thousand commands through one `runcap json`: what it holds after them against after the
/// first hundred.
pub(crate) fn ten_thousand() -> Vec<Figure> {
    let mut session = Session::start();
    let request = json!({"command": ["true"]});
    let mut ask = |count| {
        for _ in 0..count {
            assert_eq!(session.ask(&request)["status"], "exited");
        }
        (session.resources(), session.rss_bytes())
    };
    let (before, rss_before) = ask(100);
    let (after, rss_after) = ask(10_000);
    let none = Goal::Value(0.0);
    vec![
        Figure::alone("RSS grown, bytes", rss_after - rss_before, Goal::Value(65_536.0)),
        Figure::alone("descriptors left", after[0] - before[0], none),
        Figure::alone("threads left", after[1] - before[1], none),
        Figure::alone("children left, zombies too", after[2] - before[2], none),
    ]
}

/// Waits until `count` marked processes live, and then until none of them does.
fn last_end(mark: &str, count: usize) -> SystemTime {
    let start = Instant::now();
    let pids = loop {
        let pids = marked(mark);
        if pids.len() == count {
            break pids;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{} of {count} processes", pids.len());
        std::thread::sleep(Duration::from_millis(20));
    };
    let open = |pid: u32| {
        let pid = Pid::from_raw(i32::try_from(pid).expect("pids fit")).expect("pids are not 0");
        pidfd_open(pid, PidfdFlags::empty()).expect("the process lives until the deadline")
    };
    // One after the other: the last wait ends when the last process does.
    for pidfd in pids.into_iter().map(open).collect::<Vec<_>>() {
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).expect("a pidfd can be polled");
    }
    SystemTime::now()
}

fn with_grace(mut request: Value, grace: Option<u32>) -> Value {
    if let Some(grace) = grace {
        request["grace"] = grace.into();
    }
    request
}

/// A variable that no other process has.
fn mark(row: &str) -> String {
    format!("RUNCAP_BENCH_{row}_{}", std::process::id())
}

fn env(mark: &str) -> Value {
    json!({mark: "1"})
}

fn milliseconds_of_day(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH).expect("it is after 1970");
    milliseconds(since) % DAY_MS
}

/// The same of a moment in RFC 3339 and UTC, `2026-01-31T12:00:00.123456789Z`.
fn day_milliseconds(moment: &str) -> f64 {
    let time = moment.split_once('T').expect("a date and a time").1.trim_end_matches('Z');
    let parts = time.split(':').map(|part| part.parse::<f64>().expect("a number"));
    parts.fold(0.0, |sum, part| sum * 60.0 + part) * 1e3
}
