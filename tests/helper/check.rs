//! Holds what was answered about a tree against what the tree wrote down and what /proc shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::proc::{self, Process};
use crate::session::Bounds;
use crate::tree::{Birth, End, Tree, writer_of};

/// What the answer may take beyond timeout and grace: the drain and 100 ms (invariant 3).
const ANSWER_AFTER: Duration = Duration::from_millis(250 + 100);

/// What a process may take between the line that says that it ends and its end.
const LAST_STEP: Duration = Duration::from_millis(20);

/// How a node said that it would end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exit(i64),
    Signal(i64),
}

/// What one node wrote down.
#[derive(Debug, Default, Clone)]
pub struct NodeRecord {
    pub pid: u32,
    pub start: u64,
    /// When it had begun, in nanoseconds since 1970.
    pub began: u128,
    /// Bytes that it was about to have written to each stream, and those that it had.
    pub tried: [u64; 2],
    pub did: [u64; 2],
    pub ended: Option<(Ended, u128)>,
    pub failures: Vec<String>,
}

/// Everything that the tree wrote down.
#[derive(Debug, Default)]
pub struct Records {
    pub nodes: BTreeMap<usize, NodeRecord>,
    /// Number and start of all processes that were written down.
    pub processes: BTreeSet<(u32, u64)>,
}

/// Reads the record directory.
pub fn read_records(directory: &str) -> Records {
    let mut records = Records::default();
    let Ok(entries) = fs::read_dir(directory) else { return records };
    for entry in entries.flatten() {
        let name = entry.file_name().into_string().expect("names are text");
        let Some((name, _)) = name.split_once('.') else { continue };
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let mut node = NodeRecord::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |index: usize| words[index].parse::<u64>().unwrap_or(0);
            let time = || words[2].parse().unwrap_or(0);
            match words[0] {
                "began" => {
                    records.processes.insert((number(1) as u32, number(2)));
                    (node.pid, node.start) = (number(1) as u32, number(2));
                    node.began = words[3].parse().unwrap_or(0);
                }
                "process" => {
                    records.processes.insert((number(1) as u32, number(2)));
                }
                "try" => node.tried[number(1) as usize] = number(2),
                "did" => node.did[number(1) as usize] = number(2),
                "exit" => node.ended = Some((Ended::Exit(number(1) as i64), time())),
                "signal" => node.ended = Some((Ended::Signal(number(1) as i64), time())),
                "failed" => node.failures.push(line.to_owned()),
                _ => {}
            }
        }
        // One without a number has made its file and not written to it yet.
        let id = name.strip_prefix("node").and_then(|id| id.parse().ok());
        if let Some(id) = id.filter(|_| node.pid > 0) {
            records.nodes.insert(id, node);
        }
    }
    records
}

/// One tree's run, seen from outside.
pub struct Observed<'a> {
    pub tree: &'a Tree,
    pub directory: &'a str,
    pub bounds: &'a Bounds,
    pub answer: &'a Value,
    pub records: Records,
    /// Processes of the tree that were alive when the answer came.
    pub survivors: &'a [Process],
    pub marked: &'a BTreeMap<u32, bool>,
    /// runcap marks what it starts.
    pub marks: bool,
    /// It takes every orphan for the command's.
    pub orphans_are_ours: bool,
    /// When the request was sent and the answer came, in nanoseconds since 1970.
    pub sent: u128,
    pub received: u128,
    pub elapsed: Duration,
    /// What the machine's other work may have cost.
    pub noise: Duration,
    /// How long after the request runcap was told to end.
    pub told_after: Option<Duration>,
}

/// Every promise that was not kept.
pub fn check(observed: &Observed<'_>) -> Vec<String> {
    let mut problems = Vec::new();
    for record in observed.records.nodes.values() {
        problems.extend(record.failures.iter().cloned());
    }
    observed.check_status(&mut problems);
    observed.check_time(&mut problems);
    observed.check_survivors(&mut problems);
    observed.check_killed(&mut problems);
    for stream in 0..2 {
        observed.check_output(stream, &mut problems);
    }
    problems
}

impl Observed<'_> {
    fn status(&self) -> &str {
        self.answer["status"].as_str().unwrap_or("")
    }

    /// The leader ended by itself, before anything else decided.
    fn finished(&self) -> bool {
        matches!(self.status(), "exited" | "signaled")
    }

    fn ended(&self, id: usize) -> Option<(Ended, u128)> {
        self.records.nodes.get(&id)?.ended
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.bounds.timeout_ms)
    }

    fn check_status(&self, problems: &mut Vec<String>) {
        let mut say = |what: String| problems.push(what);
        let leader = self.ended(0);
        let slack = (LAST_STEP + self.noise).as_nanos();
        let code = self.answer["exit_code"].as_i64();
        let duration = self.answer["duration"].as_f64().unwrap_or(0.0);
        let duration = Duration::from_secs_f64(duration).as_nanos();
        match self.status() {
            "exited" | "signaled" => {
                let told = match self.status() {
                    "exited" => code.map(Ended::Exit),
                    _ => self.answer["signal"].as_i64().map(Ended::Signal),
                };
                let nested = matches!(self.tree.nodes[0].end, End::Runcap { .. });
                match leader {
                    None if nested && told == Some(Ended::Exit(0)) => {}
                    None => say(format!("ended with {told:?}, the leader did not")),
                    Some((ended, at)) => {
                        if told != Some(ended) {
                            say(format!("ended with {told:?}, the leader wrote {ended:?}"));
                        }
                        let deadline = self.received - duration + self.timeout().as_nanos();
                        if at > deadline + slack {
                            let late = Duration::from_nanos((at - deadline) as u64);
                            say(format!("not timed out, and it ended {late:?} past its deadline"));
                        }
                    }
                }
            }
            "timed_out" => {
                let deadline = self.sent + self.timeout().as_nanos();
                if let Some((_, at)) = leader.filter(|(_, at)| at + slack < deadline) {
                    let early = Duration::from_nanos((deadline - at) as u64);
                    say(format!("timed out, and the leader ended {early:?} before its deadline"));
                }
            }
            "output_limit" => {
                let over = |stream: usize| {
                    let most = self.bounds.cap[stream] as u64 + 1;
                    !(stream == 1 && self.bounds.merged) && self.received_bytes(stream) == most
                };
                if !self.bounds.stop_at_cap || !(over(0) || over(1)) {
                    say("stopped at an output limit that was not passed".to_owned());
                }
            }
            "canceled" => {
                let told = self.told_after.map_or(u128::MAX, |after| after.as_nanos());
                if self.received < self.sent.saturating_add(told) {
                    say("canceled, and nobody had told it to".to_owned());
                }
            }
            other => say(format!("status {other:?}")),
        }
    }

    fn check_time(&self, problems: &mut Vec<String>) {
        let grace = Duration::from_millis(self.bounds.grace_ms);
        let ends = self.told_after.filter(|_| self.status() == "canceled");
        let ends = ends.unwrap_or(self.timeout());
        let most = ends + grace + ANSWER_AFTER + self.noise;
        if self.elapsed > most {
            problems.push(format!("the answer took {:?}, at most {most:?}", self.elapsed));
        }
        if let (true, Some((_, at))) = (self.finished(), self.ended(0)) {
            let most = ANSWER_AFTER + LAST_STEP + self.noise;
            let took = Duration::from_nanos(self.received.saturating_sub(at) as u64);
            if took > most {
                problems.push(format!(
                    "{took:?} from the leader's end to the answer, at most {most:?}"
                ));
            }
        }
    }

    /// Whether nothing is left to tell `process` by: no mark, another group and session, and no
    /// parents up to the leader.
    fn may_be_lost(&self, process: &Process) -> bool {
        let marked = self.marks && self.marked.get(&process.pid) == Some(&true);
        let told = marked || self.orphans_are_ours;
        let leader = self.records.nodes.get(&0).map_or(0, |leader| leader.pid);
        if told || process.group == leader || process.session == leader {
            return false;
        }
        let mut nodes = self.records.nodes.iter();
        let node = nodes.find(|(_, node)| (node.pid, node.start) == (process.pid, process.start));
        // One that is no node stands between two, and is gone soon unless it is su's.
        node.is_none_or(|(id, _)| self.tree.may_be_orphan(*id, |id| self.ended(id).is_some()))
    }

    fn check_survivors(&self, problems: &mut Vec<String>) {
        let left = self.answer["left_running"] == true;
        let told: Vec<&Process> =
            self.survivors.iter().filter(|process| !self.may_be_lost(process)).collect();
        if !(self.finished() && self.bounds.leave) {
            for process in &told {
                problems.push(format!("survived: {}", self.name(process)));
            }
            if left && self.survivors.is_empty() {
                problems.push("left_running, and nothing is".to_owned());
            }
            return;
        }
        if !left && !told.is_empty() {
            problems.push(format!("{} is running, left_running is not set", self.name(told[0])));
        }
        if left && self.survivors.is_empty() {
            let just = self.received - (LAST_STEP + self.noise).as_nanos();
            let ended = |node: &NodeRecord| node.ended.is_some_and(|(_, at)| at > just);
            let runcap = self.tree.nodes.iter().any(|node| matches!(node.end, End::Runcap { .. }));
            if !runcap && !self.records.nodes.values().any(ended) {
                problems.push("left_running, and nothing is or just was".to_owned());
            }
        }
        self.check_nobody_hurt(problems);
    }

    fn name(&self, process: &Process) -> String {
        let id = (process.pid, process.start);
        let node = self.records.nodes.iter().find(|(_, node)| (node.pid, node.start) == id);
        let node = node.map_or("no node".to_owned(), |(id, _)| format!("node {id}"));
        let marked = self.marked.get(&process.pid);
        let known = if self.records.processes.contains(&id) { "" } else { ", not recorded" };
        format!("{node}{known} {process:?} marked {marked:?}")
    }

    /// With `leave`, whoever has not ended by itself must be alive.
    fn check_nobody_hurt(&self, problems: &mut Vec<String>) {
        if !self.answer["killed_processes"].is_null() {
            problems.push("killed_processes with leftovers leave".to_owned());
        }
        for id in self.plain_nodes() {
            let alive = |node: &NodeRecord| {
                proc::process(node.pid).is_some_and(|one| one.live && one.start == node.start)
            };
            let ended = || read_records(self.directory).nodes[&id].ended.is_some();
            if self.ended(id).is_none() && !alive(&self.records.nodes[&id]) && !ended() {
                problems.push(format!("node {id} was to be left running, and is dead"));
            }
        }
    }

    /// Nodes besides the leader whose death, unless they wrote it down, is runcap's doing.
    fn plain_nodes(&self) -> Vec<usize> {
        // The kernel itself sends HUP to an orphaned group that has a stopped member.
        let recorded = if self.tree.stops() { None } else { Some(&self.records.nodes) };
        let others = recorded.into_iter().flat_map(BTreeMap::keys).copied().filter(|id| *id > 0);
        others
            .filter(|id| {
                let node = &self.tree.nodes[*id];
                !node.nested && !matches!(node.end, End::Runcap { .. })
            })
            .collect()
    }

    fn check_killed(&self, problems: &mut Vec<String>) {
        let killed = self.answer["killed_processes"].as_u64().unwrap_or(0);
        let all = (0..self.tree.nodes.len()).map(|id| self.tree.processes(id)).sum::<usize>() - 1;
        if killed > all as u64 {
            problems.push(format!("{killed} killed, of at most {all} processes"));
        }
        if self.finished() && self.bounds.leave || !(self.marks || self.orphans_are_ours) {
            return;
        }
        // One that was started while the others were counted may die with them, uncounted.
        let counted_from = match self.status() {
            "timed_out" => self.sent + self.timeout().as_nanos(),
            "canceled" => self.sent + self.told_after.unwrap_or_default().as_nanos(),
            _ => self.received,
        };
        let counted_from = counted_from - (LAST_STEP + self.noise).as_nanos();
        let lived = |id: &usize| {
            let record = &self.records.nodes[id];
            if record.began > counted_from {
                return false;
            }
            let alive = |one: &Process| (one.pid, one.start) == (record.pid, record.start);
            let lost = !self.orphans_are_ours && self.below_su(*id);
            record.ended.is_none() && !self.survivors.iter().any(alive) && !lost
        };
        let died: Vec<usize> = self.plain_nodes().into_iter().filter(lived).collect();
        if killed < died.len() as u64 {
            problems.push(format!("{killed} killed, and nodes {died:?} died without a word"));
        }
    }

    fn below_su(&self, id: usize) -> bool {
        let node = &self.tree.nodes[id];
        let changed = matches!(node.birth, Birth::Su | Birth::Runuser);
        changed || (id > 0 && self.below_su(node.parent))
    }

    fn received_bytes(&self, stream: usize) -> u64 {
        let key = if stream == 0 { "stdout_bytes" } else { "stderr_bytes" };
        self.answer[key].as_u64().unwrap_or(u64::MAX)
    }

    fn check_output(&self, stream: usize, problems: &mut Vec<String>) {
        let merged = self.bounds.merged;
        let name = ["stdout", "stderr"][stream];
        let field = |what: &str| &self.answer[format!("{name}_{what}")];
        let mut say = |what: String| problems.push(format!("{name}: {what}"));
        // What each node has written into this pipe: at least, at most.
        let counts = |id: &usize, node: &NodeRecord| {
            let both = |counts: [u64; 2]| match (merged, stream) {
                (true, 0) => counts[0] + counts[1],
                (true, _) => 0,
                (false, stream) => counts[stream],
            };
            match self.tree.nodes[*id].nested {
                true => (0, 0),
                false => (both(node.did), both(node.tried)),
            }
        };
        let written: BTreeMap<usize, (u64, u64)> =
            self.records.nodes.iter().map(|(id, node)| (*id, counts(id, node))).collect();
        let did: u64 = written.values().map(|(did, _)| did).sum();
        let tried: u64 = written.values().map(|(_, tried)| tried).sum();
        let (received, cap) = (self.received_bytes(stream), self.bounds.cap[stream] as u64);
        let incomplete = *field("incomplete") == true;
        if received > tried {
            say(format!("{received} bytes received, at most {tried} were written"));
        }
        if !incomplete && received < did {
            say(format!("{received} bytes received to the end, {did} were written"));
        }
        if self.bounds.stop_at_cap && received > cap + 1 {
            say(format!("{received} bytes were asked for, with stop at {cap}"));
        }
        // At its deadline a command may still pass a cap, and ends the sooner for it.
        if self.bounds.stop_at_cap && received > cap && self.finished() {
            say(format!("{received} bytes received and not stopped at {cap}"));
        }
        let ended_for_good = !self.bounds.leave && self.survivors.is_empty();
        let stopped = self.bounds.stop_at_cap && received > cap;
        if incomplete
            && ended_for_good
            && !stopped
            && self.status() != "output_limit"
            && self.noise < Duration::from_millis(30)
        {
            say("incomplete, though all who could write are dead".to_owned());
        }
        self.check_kept(name, stream, received, &written, problems);
    }

    fn check_kept(
        &self,
        name: &str,
        stream: usize,
        received: u64,
        written: &BTreeMap<usize, (u64, u64)>,
        problems: &mut Vec<String>,
    ) {
        let mut say = |what: String| problems.push(format!("{name}: {what}"));
        let field = |what: &str| &self.answer[format!("{name}_{what}")];
        let text = self.answer[name].as_str().unwrap_or("").as_bytes();
        let dropped = field("dropped_bytes").as_u64().unwrap_or(0);
        let cap = if self.bounds.capture { self.bounds.cap[stream] } else { 0 };
        let keep = self.bounds.keep[stream];
        if dropped != received.saturating_sub(cap as u64) {
            say(format!("{dropped} dropped of {received}, with a cap of {cap}"));
        }
        if (*field("truncated") == true) != (dropped > 0) {
            say("truncated without dropped bytes, or the other way round".to_owned());
        }
        let (head, tail): (&[u8], &[u8]) = match dropped {
            0 => (text, b""),
            _ => {
                let gap = field("gap_at").as_u64().unwrap_or(0) as usize;
                let (head, rest) = text.split_at(gap.min(text.len()));
                let marker = match (keep, self.bounds.capture) {
                    ("head+tail", true) => format!("\n[runcap: {dropped} bytes dropped]\n"),
                    _ => String::new(),
                };
                match rest.strip_prefix(marker.as_bytes()) {
                    Some(tail) => (head, tail),
                    None => return say("no marker where bytes were dropped".to_owned()),
                }
            }
        };
        if head.len() + tail.len() != cap.min(received as usize) {
            say(format!("{} + {} bytes kept of {received}", head.len(), tail.len()));
        }
        let expected_tail = match keep {
            _ if dropped == 0 => 0,
            "tail" => cap,
            "head+tail" => cap / 5,
            _ => 0,
        };
        if tail.len() != expected_tail {
            say(format!("a tail of {} bytes, expected {expected_tail}", tail.len()));
        }
        let total: u64 = written.values().map(|(did, tried)| u64::from(*tried > *did)).sum();
        for (id, (did, tried)) in written {
            let content = self.tree.content(*id, stream, self.bounds.merged);
            let content = &content[..(*tried as usize).min(content.len())];
            let of = |text: &[u8]| -> Vec<u8> {
                text.iter().copied().filter(|byte| writer_of(*byte) == *id).collect()
            };
            let (head, tail) = (of(head), of(tail));
            if !content.starts_with(&head) {
                say(format!("what was kept first of node {id} is not what it wrote first"));
            }
            let complete = *field("incomplete") != true && did == tried && total == 0;
            let fits = match complete {
                true => content.ends_with(&tail),
                false => tail.is_empty() || content.windows(tail.len()).any(|part| part == tail),
            };
            if !fits {
                say(format!("what was kept last of node {id} is not what it wrote last"));
            }
        }
        let foreign = |byte: &&u8| !written.contains_key(&writer_of(**byte));
        if let Some(byte) = head.iter().chain(tail).find(foreign) {
            say(format!("byte {byte} is nobody's"));
        }
    }
}
