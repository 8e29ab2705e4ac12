//! Runs random process trees through one `runcap json`, and looks on from outside.
//!
//! This process is the observer: a subreaper above the runcap under test, so that whatever gets
//! away from it comes here, is reported and is killed. It signals nothing but its descendants.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};
use serde_json::{Value, json};

use crate::check::{self, Observed};
use crate::proc::{self, Process};
use crate::tree::{Place, Random, Tree, now};

/// Interfaces of the kernel that a session may be without.
const FEATURES: [&str; 5] = ["pidfd", "splice", "children", "close_range", "mark"];

/// How long an answer is waited for before the session is given up.
const ANSWER_MAX: Duration = Duration::from_secs(6);

/// How long a thread, a descriptor or a zombie may outlive the answer (invariant 3).
const AFTER_ANSWER: Duration = Duration::from_millis(750);

/// What a bound is stretched by where some process is short of a CPU all the time; on an idle
/// machine it is next to nothing.
const PRESSURE_ALLOWANCE: Duration = Duration::from_millis(100);

/// What a session's seed decides.
#[derive(Debug)]
pub struct Plan {
    /// Kernel interfaces that are taken away from the runcap under test.
    without: Vec<&'static str>,
    /// The runcap under test has a child before it begins.
    child_before: bool,
    trees: Vec<(u64, Bounds)>,
    /// runcap is told to end (TERM) so long into its last tree.
    told_after_ms: Option<u64>,
}

/// The bounds that one tree is run within.
#[derive(Debug, Clone)]
pub struct Bounds {
    pub timeout_ms: u64,
    pub grace_ms: u64,
    pub cap: [usize; 2],
    pub keep: [&'static str; 2],
    pub stop_at_cap: bool,
    pub merged: bool,
    pub capture: bool,
    pub leave: bool,
    pub stdin_bytes: usize,
    /// How the leader is spawned: with a resource limit it is forked.
    pub limited: bool,
}

impl Plan {
    pub fn new(seed: u64) -> Plan {
        let random = &mut Random::new(seed);
        let without = match random.chance(30) {
            true => FEATURES.into_iter().filter(|_| random.chance(40)).collect(),
            false => Vec::new(),
        };
        let child_before = random.chance(30);
        let count = random.pick(&[1, 1, 2, 4]);
        let trees = (0..count).map(|_| (random.next(), Bounds::new(random))).collect();
        let told_after_ms = random.chance(15).then(|| random.range(1, 300));
        Plan { without, child_before, trees, told_after_ms }
    }
}

impl Bounds {
    fn new(random: &mut Random) -> Bounds {
        let stop_at_cap = random.chance(15);
        let keeps: &[&str] = if stop_at_cap { &["head"] } else { &["head", "tail", "head+tail"] };
        let mut cap = || match random.below(4) {
            0 => random.range(1, 20) as usize,
            1 => random.range(1, 5_000) as usize,
            2 => random.range(1, 200_000) as usize,
            _ => 1 << 20,
        };
        Bounds {
            cap: [cap(), cap()],
            timeout_ms: random.range(20, 300),
            grace_ms: if random.chance(30) { 0 } else { random.range(1, 100) },
            keep: [random.pick(keeps), random.pick(keeps)],
            stop_at_cap,
            merged: random.chance(25),
            capture: random.chance(85),
            leave: random.chance(25),
            stdin_bytes: if random.chance(20) { random.range(1, 300_000) as usize } else { 0 },
            limited: random.chance(10),
        }
    }

    fn request(&self, tree: &Tree, place: &Place<'_>) -> Value {
        let limit =
            |stream: usize| json!({"max_output_size": self.cap[stream], "keep": self.keep[stream]});
        let mut request = json!({
            "command": tree.argv(0, place),
            "timeout": self.timeout_ms as f64 / 1000.0,
            "grace": self.grace_ms as f64 / 1000.0,
            "overflow": if self.stop_at_cap { "stop" } else { "discard" },
            "stdout_limit": limit(0),
            "stderr_limit": limit(1),
            "merge_stderr": self.merged,
            "capture": self.capture,
            "leftovers": if self.leave { "leave" } else { "kill" },
        });
        if self.merged {
            request.as_object_mut().expect("an object").remove("stderr_limit");
        }
        if self.stdin_bytes > 0 {
            request["stdin"] = "x".repeat(self.stdin_bytes).into();
        }
        if self.limited {
            request["limits"] = json!({"core": 0});
        }
        request
    }
}

/// What a session found.
pub struct Report {
    pub trees: usize,
    pub problems: Vec<String>,
}

/// Runs the session of `seed`.
pub fn run(seed: u64, runcap: &str, helper: &str, verbose: bool) -> Report {
    set_child_subreaper(Some(rustix::process::getpid())).expect("Linux has subreapers");
    let plan = Plan::new(seed);
    let directory = std::env::temp_dir().join(format!("runcap-tree-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory for the records");
    let mut report = Report { trees: 0, problems: Vec::new() };
    let mut bystander =
        Command::new(helper).arg("tree-bystander").spawn().expect("the helper starts");
    if verbose {
        eprintln!(
            "session {seed}: without {:?}, child before: {}",
            plan.without, plan.child_before
        );
    }
    let mut session = Session::start(&plan, runcap, helper);
    for (index, (tree_seed, bounds)) in plan.trees.iter().enumerate() {
        let records = directory.join(index.to_string());
        fs::create_dir_all(&records).expect("a directory for the records");
        let place = Place { helper, runcap, directory: records.to_str().expect("text") };
        let tree = Tree::new(*tree_seed);
        if verbose {
            eprintln!("{}", describe(&tree, bounds));
        }
        let last = index + 1 == plan.trees.len();
        session.told_after_ms = plan.told_after_ms.filter(|_| last);
        let mut problems = session.tree(&plan, &tree, bounds, &place, bystander.id(), verbose);
        if proc::process(bystander.id()).is_none_or(|process| !process.live) {
            problems.push("the observer's child, a bystander, is dead".to_owned());
        }
        report.trees += 1;
        let shown = problems.iter().map(|problem| format!("tree {index}: {problem}"));
        report.problems.extend(shown);
        if session.broken {
            break;
        }
    }
    report.problems.extend(session.end());
    // Nothing of this session stays, whatever went wrong; only descendants are signalled.
    kill_descendants(&[]);
    let _ = bystander.wait();
    if report.problems.is_empty() || !verbose {
        let _ = fs::remove_dir_all(&directory);
    } else {
        eprintln!("records: {}", directory.display());
    }
    report
}

fn describe(tree: &Tree, bounds: &Bounds) -> String {
    let mut text = format!("tree {} within {bounds:?}", tree.seed);
    for (id, node) in tree.nodes.iter().enumerate() {
        text.push_str(&format!("\n  {id}: {node:?}"));
    }
    text
}

/// Kills every descendant of this process but `spared` and what descends from those, and reaps
/// what comes here; returns how many were still alive.
fn kill_descendants(spared: &[u32]) -> usize {
    let (mut struck, give_up) = (0, Instant::now() + Duration::from_secs(3));
    // One look may miss a process whose parent changes meanwhile.
    let mut empty_looks = 0;
    loop {
        let living: Vec<Process> =
            proc::descendants(spared).into_iter().filter(|process| process.live).collect();
        empty_looks = if living.is_empty() { empty_looks + 1 } else { 0 };
        if empty_looks == 2 || Instant::now() > give_up {
            return struck;
        }
        for process in &living {
            // Looked at again just before: it is our descendant, so its number stays until it is
            // reaped, and nearly all of those are reaped by the runcap under test or here.
            if proc::process(process.pid).is_some_and(|now| now.start == process.start) {
                struck += 1;
                let _ = kill_process(pid(process.pid), Signal::KILL);
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32).expect("a process number")
}

/// What a process holds besides its commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holdings {
    threads: usize,
    descriptors: usize,
    children: usize,
}

fn holdings(pid: u32) -> Option<Holdings> {
    let count = |what: &str| Some(fs::read_dir(format!("/proc/{pid}/{what}")).ok()?.count());
    Some(Holdings {
        threads: count("task")?,
        descriptors: count("fd")?,
        children: proc::all().iter().filter(|process| process.parent == pid).count(),
    })
}

/// One line of the runcap under test, and when its first byte was there: a long one takes a while
/// to write and to read.
struct Line {
    text: String,
    began: Instant,
    began_at: u128,
}

/// The same, decoded.
struct Answer {
    value: Value,
    began: Instant,
    began_at: u128,
}

fn read_lines(mut stdout: BufReader<ChildStdout>, lines: &Sender<Line>) {
    loop {
        let mut text = String::new();
        // An error comes again at the read below.
        let _ = stdout.fill_buf();
        let (began, began_at) = (Instant::now(), now());
        match stdout.read_line(&mut text) {
            Ok(count) if count > 0 && lines.send(Line { text, began, began_at }).is_ok() => {}
            _ => return,
        }
    }
}

/// A runcap under test.
struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Line>,
    /// Children that it has of its own: the bystander from before.
    own_children: Vec<u32>,
    base: Holdings,
    /// Processes were left running in it once: it has a thread for them since.
    left: bool,
    /// Orphans are the command's: nobody else could have left them.
    alone: bool,
    marks: bool,
    broken: bool,
    /// It is told to end so long into the next tree.
    told_after_ms: Option<u64>,
    noise: &'static Noise,
}

impl Session {
    fn start(plan: &Plan, runcap: &str, helper: &str) -> Session {
        let mut words: Vec<String> = Vec::new();
        if plan.child_before {
            let script = "\"$0\" tree-bystander & exec \"$@\"";
            words.extend(["/bin/sh", "-c", script, helper].map(str::to_owned));
        }
        match plan.without.is_empty() {
            true => words.push(runcap.to_owned()),
            false => {
                words.extend([helper, "runcap-without"].map(str::to_owned));
                words.push(plan.without.join(","));
            }
        }
        words.push("json".to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().expect("runcap starts");
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, lines) = channel();
        thread::spawn(move || read_lines(BufReader::new(stdout), &sender));
        let marked = proc::is_marked(std::process::id());
        let mut session = Session {
            child,
            stdin,
            lines,
            own_children: Vec::new(),
            base: Holdings { threads: 0, descriptors: 0, children: 0 },
            left: false,
            alone: !plan.child_before,
            marks: !marked && !plan.without.contains(&"mark"),
            broken: false,
            told_after_ms: None,
            noise: Noise::start(),
        };
        // What is opened once and kept is open after a command that passes its cap.
        let warm = json!({"command": ["/bin/echo", "warm"], "max_output_size": 1});
        session.send(&warm);
        session.broken = session.answer().is_none();
        let children = proc::all().into_iter().filter(|one| one.parent == session.child.id());
        session.own_children = children.map(|process| process.pid).collect();
        if let Some(base) = holdings(session.child.id()) {
            session.base = base;
        }
        session
    }

    fn send(&mut self, request: &Value) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        // A runcap that is gone is noticed by the missing answer.
        let _ = writeln!(stdin, "{request}");
    }

    fn answer(&mut self) -> Option<Answer> {
        let line = self.lines.recv_timeout(ANSWER_MAX).ok()?;
        let value = serde_json::from_str(&line.text).ok()?;
        Some(Answer { value, began: line.began, began_at: line.began_at })
    }

    fn tree(
        &mut self,
        plan: &Plan,
        tree: &Tree,
        bounds: &Bounds,
        place: &Place<'_>,
        bystander: u32,
        verbose: bool,
    ) -> Vec<String> {
        let runcap = self.child.id();
        let request = bounds.request(tree, place);
        self.noise.reset();
        let pressure = proc::cpu_pressure();
        let (waited, sent, start) = (proc::run_delay(runcap), now(), Instant::now());
        self.send(&request);
        let told = self.told_after_ms.map(|ms| thread::spawn(move || tell_to_end(runcap, ms)));
        let answer = self.answer();
        // The state of the world at the answer, before anything else is done.
        let everything = proc::all();
        let waited = proc::run_delay(runcap).saturating_sub(waited);
        // The processes that runcap waits for need a CPU too, to begin and to die.
        let pressure = match (pressure, proc::cpu_pressure()) {
            (Some(before), Some(after)) => {
                (after - before).as_secs_f64() / start.elapsed().as_secs_f64()
            }
            _ => 1.0,
        };
        let noise = waited + self.noise.worst() * 4 + PRESSURE_ALLOWANCE.mul_f64(pressure.min(1.0));
        let Some(Answer { value: answer, began, began_at: received }) = answer else {
            self.broken = true;
            // Told to end before it had read the whole request, it starts nothing and says nothing.
            let began =
                fs::read_dir(place.directory).is_ok_and(|mut entries| entries.next().is_some());
            return match told {
                Some(_) if !began => Vec::new(),
                _ => vec![format!("no answer within {ANSWER_MAX:?}")],
            };
        };
        let elapsed = began - start;
        if verbose {
            eprintln!("answer after {elapsed:?} (noise {noise:?}): {}", shortened(&answer));
        }
        let mut known = vec![runcap, bystander];
        known.extend(&self.own_children);
        let survivors: Vec<Process> = proc::descend(&everything, std::process::id())
            .into_iter()
            .filter(|process| process.live && !known.contains(&process.pid))
            .collect();
        let marked = survivors.iter().map(|one| (one.pid, proc::is_marked(one.pid)));
        let marked: BTreeMap<u32, bool> = marked.collect();
        let observed = Observed {
            tree,
            bounds,
            answer: &answer,
            directory: place.directory,
            records: check::read_records(place.directory),
            survivors: &survivors,
            marked: &marked,
            orphans_are_ours: self.alone,
            marks: self.marks,
            sent,
            received,
            elapsed,
            noise,
            told_after: self.told_after_ms.map(Duration::from_millis),
        };
        let mut problems = check::check(&observed);
        if let Some(told) = told {
            told.join().expect("a thread that sleeps and signals");
        }
        for own in &self.own_children {
            if proc::process(*own).is_none_or(|process| !process.live) {
                problems.push(format!("runcap's child from before, {own}, is dead"));
            }
        }
        if answer["left_running"] == true {
            self.left = true;
            self.alone = false;
        }
        kill_descendants(&known);
        problems.extend(self.check_holdings(noise, verbose));
        if !problems.is_empty() {
            let without = &plan.without;
            problems.push(format!("  (without {without:?}, answer {})", shortened(&answer)));
        }
        problems
    }

    /// No thread, descriptor or zombie is left, apart from those of the thread that looks after
    /// what was left running.
    fn check_holdings(&self, noise: Duration, verbose: bool) -> Option<String> {
        let mut most = self.base;
        if self.left {
            most.threads += 1;
            most.descriptors += 1;
        }
        let start = Instant::now();
        loop {
            let now = holdings(self.child.id());
            // Told to end, it ends once it has answered.
            let fits = now.map_or(self.told_after_ms.is_some(), |now| {
                now.threads <= most.threads
                    && now.descriptors <= most.descriptors
                    && now.children <= most.children
            });
            if fits {
                if verbose && start.elapsed() > Duration::from_millis(5) {
                    eprintln!("all that it held was given back after {:?}", start.elapsed());
                }
                return None;
            }
            if start.elapsed() > AFTER_ANSWER + noise {
                return Some(format!("runcap holds {now:?}, expected at most {most:?}"));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes its stdin and waits for its end.
    fn end(&mut self) -> Vec<String> {
        self.stdin = None;
        let mut problems = Vec::new();
        let (told, give_up) = (self.told_after_ms.is_some(), Instant::now() + ANSWER_MAX);
        let status: Option<ExitStatus> = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                _ if Instant::now() > give_up => break None,
                _ => thread::sleep(Duration::from_millis(1)),
            }
        };
        match status {
            Some(status) if status.code() == Some(if told { TOLD_EXIT } else { 0 }) => {}
            Some(status) => problems.push(format!("runcap itself ended with {status}")),
            None => {
                problems.push("runcap did not end after its stdin".to_owned());
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
        for own in &self.own_children {
            if proc::process(*own).is_none_or(|process| !process.live) {
                problems.push(format!("runcap's child from before, {own}, is dead at its end"));
            }
        }
        problems
    }
}

/// The exit code of a runcap that was told to end by TERM.
const TOLD_EXIT: i32 = 128 + 15;

/// Tells the observer's own child `runcap` to end, a while from now. It is not reaped before this
/// is done, so the number stays its own.
fn tell_to_end(runcap: u32, after_ms: u64) {
    thread::sleep(Duration::from_millis(after_ms));
    let _ = kill_process(pid(runcap), Signal::TERM);
}

fn shortened(answer: &Value) -> String {
    let mut answer = answer.clone();
    for stream in ["stdout", "stderr"] {
        if let Some(text) = answer[stream].as_str() {
            let short: String = text.chars().take(60).collect();
            answer[stream] = format!("{short} ({} in all)", text.len()).into();
        }
    }
    answer.to_string()
}

/// How late a sleeper wakes here: what the machine's other work costs every single wait.
struct Noise {
    worst_ns: AtomicU64,
    ends: AtomicBool,
}

impl Noise {
    fn start() -> &'static Noise {
        let noise: &'static Noise = Box::leak(Box::new(Noise {
            worst_ns: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        }));
        thread::spawn(move || {
            while !noise.ends.load(Ordering::Relaxed) {
                let (wanted, start) = (Duration::from_millis(2), Instant::now());
                thread::sleep(wanted);
                let late = start.elapsed().saturating_sub(wanted).as_nanos() as u64;
                noise.worst_ns.fetch_max(late, Ordering::Relaxed);
            }
        });
        noise
    }

    fn reset(&self) {
        self.worst_ns.store(0, Ordering::Relaxed);
    }

    fn worst(&self) -> Duration {
        Duration::from_nanos(self.worst_ns.load(Ordering::Relaxed))
    }
}
