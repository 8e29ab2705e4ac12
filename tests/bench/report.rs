//! What was measured, as a table and as JSON.

use std::fs;
use std::process::Command;
use std::time::SystemTime;

use runcap::wire::time::Rfc3339;
use serde_json::{Value, json};

use crate::tools::median;

/// One measured number beside its alternative and its goal.
pub(crate) struct Figure {
    /// What the number is, with its unit last: `median, ms`.
    pub(crate) what: &'static str,
    pub(crate) value: f64,
    /// What it is compared with, and the number of that.
    pub(crate) alternative: Option<(&'static str, f64)>,
    pub(crate) goal: Goal,
    /// Every single measurement, runcap's and the alternative's.
    pub(crate) raw: [Vec<f64>; 2],
}

/// What a figure must not exceed.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// No goal: the figure explains others.
    None,
    Value(f64),
    /// Value divided by the alternative's.
    Ratio(f64),
    /// Value minus the alternative's.
    Above(f64),
}

impl Figure {
    /// A number that stands alone.
    pub(crate) fn alone(what: &'static str, value: f64, goal: Goal) -> Figure {
        Figure { what, value, alternative: None, goal, raw: [vec![], vec![]] }
    }

    /// The medians of alternating measurements of runcap and of `name`.
    pub(crate) fn pairs(
        what: &'static str,
        name: &'static str,
        goal: Goal,
        raw: [Vec<f64>; 2],
    ) -> Figure {
        let [value, other] = raw.each_ref().map(|all| median(all));
        Figure { what, value, alternative: Some((name, other)), goal, raw }
    }

    fn ratio(&self) -> Option<f64> {
        self.alternative.map(|(_, other)| self.value / other)
    }

    fn met(&self) -> Option<bool> {
        let other = self.alternative.map_or(f64::NAN, |(_, other)| other);
        match self.goal {
            Goal::None => None,
            Goal::Value(most) => Some(self.value <= most),
            Goal::Ratio(most) => Some(self.value / other <= most),
            Goal::Above(most) => Some(self.value - other <= most),
        }
    }

    fn goal_text(&self) -> String {
        match self.goal {
            Goal::None => "-".to_owned(),
            Goal::Value(most) => format!("<= {}", number(most)),
            Goal::Ratio(most) => format!("ratio <= {most}"),
            Goal::Above(most) => format!("<= other + {}", number(most)),
        }
    }

    fn to_json(&self, row: &str) -> Value {
        let alternative =
            self.alternative.map(|(name, value)| json!({"name": name, "value": value}));
        json!({
            "row": row,
            "what": self.what,
            "value": self.value,
            "alternative": alternative,
            "ratio": self.ratio(),
            "goal": self.goal_text(),
            "met": self.met(),
            "raw": self.raw[0],
            "alternative_raw": self.raw[1],
        })
    }
}

/// All figures of one run.
pub(crate) struct Report {
    figures: Vec<(&'static str, Figure)>,
    head: Value,
}

impl Report {
    /// Prints where and what is measured, and the table's head.
    pub(crate) fn begin() -> Report {
        let head = json!({
            "machine": {"cpu": cpu_model(), "cores": cores(), "kernel": kernel()},
            "commit": commit(),
            "date": Rfc3339(SystemTime::now()).to_string(),
            "bench_libc": if cfg!(target_env = "musl") { "musl" } else { "gnu" },
        });
        println!("{head}");
        println!();
        print_cells("row", "figure", "value", "alternative", ["ratio", "goal", "met"]);
        Report { figures: Vec::new(), head }
    }

    /// Prints a row's figures and keeps them.
    pub(crate) fn add(&mut self, row: &'static str, figures: Vec<Figure>) {
        for figure in figures {
            let other = figure.alternative;
            print_cells(
                row,
                figure.what,
                &number(figure.value),
                &other.map_or("-".to_owned(), |(name, value)| format!("{name} {}", number(value))),
                [
                    &figure.ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
                    &figure.goal_text(),
                    figure.met().map_or("-", |met| if met { "met" } else { "NOT MET" }),
                ],
            );
            self.figures.push((row, figure));
        }
    }

    /// Prints how many goals were met.
    pub(crate) fn end(&self) {
        let met =
            |wanted| self.figures.iter().filter(|(_, each)| each.met() == Some(wanted)).count();
        println!("\ngoals met: {}, not met: {}", met(true), met(false));
    }

    pub(crate) fn to_json(&self) -> String {
        let mut report = self.head.clone();
        report["figures"] =
            self.figures.iter().map(|(row, figure)| figure.to_json(row)).collect::<Vec<_>>().into();
        format!("{report:#}\n")
    }
}

fn print_cells(row: &str, what: &str, value: &str, alternative: &str, rest: [&str; 3]) {
    let [ratio, goal, met] = rest;
    println!("{row:34} {what:30} {value:>12} {alternative:>28} {ratio:>6} {goal:>20} {met}");
}

/// A number with as many decimals as can mean something.
fn number(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned())).unwrap_or_default()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// The commit that is measured, marked where the tree differs from it; empty outside a repository.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(["-C", env!("CARGO_MANIFEST_DIR")])
            .args(arguments)
            .output()
            .map_or(vec![], |output| output.stdout);
        String::from_utf8_lossy(&output).trim().to_owned()
    };
    let dirty = !git(&["status", "--porcelain"]).is_empty();
    git(&["rev-parse", "HEAD"]) + if dirty { "+dirty" } else { "" }
}
