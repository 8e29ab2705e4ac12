//! Peak memory of a `runcap json` that captures much, and of one that captures nothing to speak of.

use serde_json::{Value, json};

use crate::report::{Figure, Goal};
use crate::tools::{Session, quantile};

const CAP_BYTES: u64 = 10 << 20;

/// Cap plus 1.5 MiB.
const PEAK_GOAL_BYTES: f64 = ((10 << 20) + (3 << 19)) as f64;
const SMALL_GOAL_BYTES: f64 = (5 << 19) as f64;

/// Shell commands that write without end.
pub(crate) const ASCII: &str = "yes 'GET /index.html 200 1532 the quick brown fox jumps over it'";
pub(crate) const ZEROS: &str = "cat /dev/zero";
pub(crate) const RANDOM: &str = "cat /dev/urandom";

/// The worst peak of `rounds` processes that each capture the first `bytes` of `producer`.
pub(crate) fn capture(producer: &str, bytes: u64, rounds: usize) -> Vec<Figure> {
    let request = json!({
        "command": format!("{producer} | head -c {bytes}"),
        "max_output_size": CAP_BYTES,
        "timeout": 600,
    });
    let check = |answer: &Value| {
        assert_eq!(answer["status"], "exited", "signal {}", answer["signal"]);
        assert_eq!(answer["stdout_bytes"], bytes, "all was received");
        assert_eq!(answer["stdout_truncated"], true);
    };
    vec![peak(&request, rounds, check, PEAK_GOAL_BYTES)]
}

pub(crate) fn small_output() -> Vec<Figure> {
    let check = |answer: &Value| assert_eq!(answer["stdout"], "hi\n");
    vec![peak(&json!({"command": ["echo", "hi"]}), 7, check, SMALL_GOAL_BYTES)]
}

fn peak(request: &Value, rounds: usize, check: impl Fn(&Value), goal: f64) -> Figure {
    let measure = |_| {
        let mut session = Session::start();
        check(&session.ask(request));
        // Its stdin is still open, so it lives and can be looked at.
        session.peak_rss_bytes()
    };
    let raw: Vec<f64> = (0..rounds).map(measure).collect();
    let value = quantile(&raw, 1.0);
    Figure { raw: [raw, vec![]], ..Figure::alone("largest VmHWM, bytes", value, Goal::Value(goal)) }
}
