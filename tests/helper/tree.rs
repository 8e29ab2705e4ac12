//! Random small process trees, each a function of its seed.
//!
//! [`Tree::new`] plans a tree; [`become_node`] makes this process one node of it. Every process
//! works the same plan out from the seed, so nothing but the seed and the node's number is handed
//! down, and the observer knows what each node was meant to do. What it really did stands in a
//! file of its own in the record directory, one line a write(2).

use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, getpid, kill_process, setpgid, setsid};

/// Nodes of one tree.
const NODES_MAX: u64 = 8;

/// Levels of one tree, the leader's included.
const DEPTH_MAX: usize = 4;

/// When a node that hangs gives up: no tree outlives a broken test by more.
const HANG: Duration = Duration::from_secs(8);

/// The exit code of a node that hung until it gave up.
const EXIT_HUNG: i32 = 77;

/// Reproducible numbers (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number of `from ..= to`.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// How a node comes into being.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Birth {
    /// In its parent's group.
    Plain,
    /// In a group of its own.
    Group,
    /// It makes itself leader of a session.
    Session,
    /// Through setsid(1).
    SetsidProgram,
    /// Through setsid(1) as leader of a group, which then forks.
    SetsidForks,
    /// Its parent is an intermediate process that ends at once.
    DoubleFork,
    /// The same, and it makes itself leader of a session.
    Daemon,
    /// Through su(1), where that works: a new session, and no mark.
    Su,
    /// Through runuser(1), where that works: no mark.
    Runuser,
}

impl Birth {
    /// Whether the parent's chain is cut: the real parent ends at once.
    fn orphans(self) -> bool {
        matches!(self, Birth::SetsidForks | Birth::DoubleFork | Birth::Daemon)
    }

    /// Processes that stand between parent and node, for a while or for good.
    fn between(self) -> usize {
        usize::from(!matches!(self, Birth::Plain | Birth::Group | Birth::Session))
    }
}

/// One thing that a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Spawn(usize),
    /// Writes `bytes` to stream 0 (stdout) or 1 (stderr), in pieces with pauses.
    Write {
        stream: usize,
        bytes: usize,
        piece: usize,
        pause_ms: u64,
    },
    Sleep(u64),
    /// SIGSTOP to itself.
    Stop,
    /// Closes its end of a stream's pipe.
    Drop(usize),
    /// Moves into the group of the child it started last, if that leads one.
    JoinChild,
}

/// How a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Signal(i32),
    Hang,
    /// It becomes a `runcap json` that runs its only child.
    Runcap {
        child: usize,
        timeout_ms: u64,
        grace_ms: u64,
        leave: bool,
    },
}

/// One process of a tree.
#[derive(Debug, Clone)]
pub struct Node {
    pub parent: usize,
    pub depth: usize,
    pub birth: Birth,
    pub clear_env: bool,
    /// Signals that it and what it starts ignore.
    pub ignored: &'static str,
    /// A stream that is closed when it begins.
    pub closed: Option<usize>,
    /// A stream whose pipe it is given as its stdin.
    pub holds: Option<usize>,
    pub steps: Vec<Step>,
    /// It waits for the children that it started before it ends.
    pub waits: bool,
    pub end: End,
    /// It or what it descends from runs under a nested runcap: what it writes goes there.
    pub nested: bool,
}

#[derive(Debug)]
pub struct Tree {
    pub seed: u64,
    pub nodes: Vec<Node>,
}

impl Tree {
    pub fn new(seed: u64) -> Tree {
        let random = &mut Random::new(seed);
        let mut tree = Tree { seed, nodes: Vec::new() };
        let count = random.range(1, NODES_MAX) as usize;
        // Trees in which much is written, and trees in which nothing is.
        let (writes_max, large) = (random.pick(&[0, 1, 3, 3]), random.chance(30));
        let stops = random.chance(25);
        while tree.nodes.len() < count {
            tree.grow(random, count);
        }
        for node in 0..count {
            let steps = tree.steps(random, node, writes_max, large, stops);
            tree.nodes[node].steps = steps;
        }
        tree.settle_streams(0, [true, true]);
        tree
    }

    fn grow(&mut self, random: &mut Random, count: usize) {
        let id = self.nodes.len();
        let waiting = self.nodes.iter().position(|node| match node.end {
            End::Runcap { child, .. } => child == id,
            _ => false,
        });
        let parent = waiting.unwrap_or_else(|| {
            loop {
                let parent = random.below(id.max(1) as u64) as usize;
                match self.nodes.get(parent) {
                    Some(node) if node.depth + 1 >= DEPTH_MAX => {}
                    Some(Node { end: End::Runcap { .. }, .. }) => {}
                    _ => break parent,
                }
            }
        });
        let depth = if id == 0 { 0 } else { self.nodes[parent].depth + 1 };
        let births = [
            Birth::Plain,
            Birth::Plain,
            Birth::Group,
            Birth::Session,
            Birth::SetsidProgram,
            Birth::SetsidForks,
            Birth::DoubleFork,
            Birth::Daemon,
            Birth::Daemon,
            if random.chance(60) { Birth::Su } else { Birth::Runuser },
        ];
        let leads_or_nested = id == 0 || waiting.is_some();
        let end = match random.below(100) {
            0..10 if id + 1 < count && depth + 2 < DEPTH_MAX => End::Runcap {
                child: id + 1,
                timeout_ms: random.range(10, 400),
                grace_ms: random.range(0, 60),
                leave: random.chance(30),
            },
            0..45 => End::Exit(random.below(256) as i32),
            45..60 => End::Signal(random.pick(&SIGNALS)),
            _ => End::Hang,
        };
        let nested = waiting.is_some() || (id > 0 && self.nodes[parent].nested);
        self.nodes.push(Node {
            parent,
            depth,
            birth: if leads_or_nested { Birth::Plain } else { random.pick(&births) },
            clear_env: random.chance(20),
            ignored: random.pick(&["", "", "", "TERM", "HUP INT", "TERM HUP INT"]),
            closed: random.chance(8).then(|| random.below(2) as usize),
            holds: (!leads_or_nested && random.chance(10)).then(|| random.below(2) as usize),
            steps: Vec::new(),
            waits: random.chance(30),
            end,
            nested,
        });
    }

    fn steps(
        &self,
        random: &mut Random,
        id: usize,
        writes_max: u64,
        large: bool,
        stops: bool,
    ) -> Vec<Step> {
        if matches!(self.nodes[id].end, End::Runcap { .. }) {
            return Vec::new();
        }
        let children = (id + 1..self.nodes.len()).filter(|child| self.nodes[*child].parent == id);
        let mut steps: Vec<Step> = children.map(Step::Spawn).collect();
        for _ in 0..random.range(0, writes_max) {
            let most = match random.below(10) {
                0..5 => 200,
                5..8 => 20_000,
                8 if large => 3_000_000,
                _ => 200_000,
            };
            let bytes = random.range(1, most) as usize;
            let piece = bytes.div_ceil(random.range(1, 12) as usize);
            let pause_ms = random.pick(&[0, 0, 1, 5]);
            steps.push(Step::Write { stream: random.below(2) as usize, bytes, piece, pause_ms });
        }
        for _ in 0..random.range(0, 2) {
            steps.push(Step::Sleep(random.pick(&[1, 5, 20, 60, 120])));
        }
        if random.chance(15) {
            steps.push(Step::Drop(random.below(2) as usize));
        }
        if random.chance(10) {
            steps.push(Step::JoinChild);
        }
        if stops && random.chance(25) {
            steps.push(Step::Stop);
        }
        for last in (1..steps.len()).rev() {
            steps.swap(last, random.below(last as u64 + 1) as usize);
        }
        steps
    }

    /// Removes the writes of node `id` and all below it whose stream is not open there.
    fn settle_streams(&mut self, id: usize, mut open: [bool; 2]) {
        let node = &self.nodes[id];
        if matches!(node.birth, Birth::Su | Birth::Runuser) {
            open[1] = false;
        }
        if let Some(stream) = node.closed {
            open[stream] = false;
        }
        if let End::Runcap { child, .. } = node.end {
            return self.settle_streams(child, [true, true]);
        }
        let mut kept = Vec::new();
        for step in node.steps.clone() {
            match step {
                Step::Write { stream, .. } if !open[stream] => continue,
                Step::Drop(stream) => open[stream] = false,
                Step::Spawn(child) => self.settle_streams(child, open),
                _ => {}
            }
            kept.push(step);
        }
        self.nodes[id].steps = kept;
    }

    /// Everything that node `id` writes into the pipe of `stream`, in order; with `merged` both
    /// streams are one pipe.
    pub fn content(&self, id: usize, stream: usize, merged: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut offsets = [0, 0];
        for step in &self.nodes[id].steps {
            let Step::Write { stream: to, bytes: count, .. } = *step else { continue };
            if merged || to == stream {
                bytes.extend((offsets[to]..offsets[to] + count).map(|at| letter(id, to, at)));
            }
            offsets[to] += count;
        }
        bytes
    }

    /// The most processes that node `id` alone can bring about.
    pub fn processes(&self, id: usize) -> usize {
        1 + self.nodes[id].birth.between()
    }

    /// Whether the chain of parents from node `id` up to the leader has a link that is sure to be
    /// or may be cut; `ended` says which nodes have ended by themselves.
    pub fn may_be_orphan(&self, id: usize, ended: impl Fn(usize) -> bool) -> bool {
        let mut at = id;
        while at != 0 {
            let node = &self.nodes[at];
            let parent = &self.nodes[node.parent];
            let runcap = matches!(parent.end, End::Runcap { .. });
            if node.birth.orphans() || runcap || ended(node.parent) {
                return true;
            }
            at = node.parent;
        }
        ended(0)
    }

    /// Whether any node stops itself: then the kernel may send HUP to an orphaned group.
    pub fn stops(&self) -> bool {
        self.nodes.iter().any(|node| node.steps.contains(&Step::Stop))
    }

    /// The command that becomes node `id`.
    pub fn argv(&self, id: usize, place: &Place<'_>) -> Vec<String> {
        let node = &self.nodes[id];
        let seed = self.seed.to_string();
        let own = [place.helper, "tree-node", &seed, place.directory, place.runcap];
        let mut argv: Vec<String> = own.map(str::to_owned).to_vec();
        argv.push(id.to_string());
        if !node.ignored.is_empty() || node.closed.is_some() {
            let close = match node.closed {
                Some(0) => " >&-",
                Some(_) => " 2>&-",
                None => "",
            };
            let trap = match node.ignored {
                "" => String::new(),
                signals => format!("trap '' {signals}; "),
            };
            let script = format!("{trap}exec \"$@\"{close}");
            argv.splice(0..0, ["/bin/sh".into(), "-c".into(), script, "sh".into()]);
        }
        argv
    }
}

/// Byte `at` of what node `id` writes to `stream`: the letter says who wrote it, its case where.
fn letter(id: usize, stream: usize, at: usize) -> u8 {
    let hash = (at as u64 * 2 + stream as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let even = (hash ^ (hash >> 32)).count_ones().is_multiple_of(2);
    let first = if even { b'a' } else { b'A' };
    first + id as u8
}

/// The node that wrote `byte`.
pub fn writer_of(byte: u8) -> usize {
    usize::from(byte.to_ascii_lowercase().wrapping_sub(b'a'))
}

/// Signals that no node ignores.
const SIGNALS: [i32; 4] = [9, 10, 12, 14];

fn signal(number: i32) -> Signal {
    match number {
        10 => Signal::USR1,
        12 => Signal::USR2,
        14 => Signal::ALARM,
        _ => Signal::KILL,
    }
}

/// Where a tree grows: the helper, the program under test, and the record directory.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub helper: &'a str,
    pub directory: &'a str,
    pub runcap: &'a str,
}

/// What a process writes down of itself.
struct Record(File);

impl Record {
    fn new(place: &Place<'_>, name: &str) -> Record {
        let path = format!("{}/{name}.{}", place.directory, std::process::id());
        let file = File::options().append(true).create(true).open(path);
        let mut record = Record(file.expect("the record directory is there"));
        let (pid, start) = (std::process::id(), start_of(std::process::id()).unwrap_or(0));
        record.line(&format!("began {pid} {start} {}", now()));
        record
    }

    /// One line, one write: whole or not there.
    fn line(&mut self, line: &str) {
        self.0.write_all(format!("{line}\n").as_bytes()).expect("the record can be written");
    }

    fn started(&mut self, child: &Child) {
        let start = start_of(child.id()).unwrap_or(0);
        self.line(&format!("process {} {start}", child.id()));
    }
}

/// When process `pid` started, in clock ticks since boot.
pub fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Nanoseconds since 1970.
pub fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos())
}

/// Whether su(1) and runuser(1) work without asking.
fn may_change_user(program: &str) -> bool {
    let there = ["/bin", "/usr/bin", "/sbin", "/usr/sbin"];
    let there = there.iter().any(|directory| Path::new(directory).join(program).exists());
    there && rustix::process::geteuid().is_root()
}

/// Makes this process node `id` of the tree of `seed`.
pub fn become_node(seed: u64, place: &Place<'_>, id: usize) {
    let started = Instant::now();
    let mut record = Record::new(place, &format!("node{id}"));
    let tree = Tree::new(seed);
    let node = &tree.nodes[id];
    match node.birth {
        Birth::Group => drop(setpgid(None, None)),
        Birth::Session | Birth::Daemon => drop(setsid()),
        _ => {}
    }
    if let End::Runcap { child, timeout_ms, grace_ms, leave } = node.end {
        let bounds = NestedBounds { timeout_ms, grace_ms, leave };
        become_runcap(&tree, place, child, &bounds);
    }
    let mut process = Process { tree: &tree, place, id, record, children: Vec::new() };
    let (mut offsets, mut broken) = ([0, 0], [false, false]);
    for step in &node.steps {
        match *step {
            Step::Spawn(child) => process.spawn(child),
            Step::Write { stream, bytes, piece, pause_ms } => {
                for from in (0..bytes).step_by(piece) {
                    let count = piece.min(bytes - from);
                    broken[stream] =
                        broken[stream] || !process.write(stream, &mut offsets[stream], count);
                    sleep(Duration::from_millis(pause_ms));
                }
            }
            Step::Sleep(ms) => sleep(Duration::from_millis(ms)),
            Step::Stop => {
                process.record.line("stopped");
                let _ = kill_process(getpid(), Signal::STOP);
            }
            Step::Drop(stream) => drop_stream(stream),
            Step::JoinChild => process.join_child(),
        }
    }
    if node.waits {
        process.children.iter_mut().for_each(|child| drop(child.wait()));
    }
    record = process.record;
    match node.end {
        End::Exit(code) => {
            record.line(&format!("exit {code} {}", now()));
            std::process::exit(code);
        }
        End::Signal(number) => {
            record.line(&format!("signal {number} {}", now()));
            let _ = kill_process(getpid(), signal(number));
        }
        End::Hang | End::Runcap { .. } => {
            sleep(HANG.saturating_sub(started.elapsed()));
            record.line(&format!("exit {EXIT_HUNG} {}", now()));
        }
    }
    std::process::exit(EXIT_HUNG);
}

/// Starts node `id` and ends at once.
pub fn become_intermediate(seed: u64, place: &Place<'_>, id: usize) {
    let mut record = Record::new(place, &format!("between{id}"));
    let argv = Tree::new(seed).argv(id, place);
    if let Ok(child) = Command::new(&argv[0]).args(&argv[1..]).stdin(Stdio::inherit()).spawn() {
        record.started(&child);
    }
    std::process::exit(0);
}

struct NestedBounds {
    timeout_ms: u64,
    grace_ms: u64,
    leave: bool,
}

fn become_runcap(tree: &Tree, place: &Place<'_>, child: usize, bounds: &NestedBounds) {
    let request = serde_json::json!({
        "command": tree.argv(child, place),
        "timeout": bounds.timeout_ms as f64 / 1000.0,
        "grace": bounds.grace_ms as f64 / 1000.0,
        "leftovers": if bounds.leave { "leave" } else { "kill" },
        "max_output_size": 1000,
    });
    let path = format!("{}/request{child}", place.directory);
    std::fs::write(&path, request.to_string()).expect("the record directory is there");
    let stdin = File::open(path).expect("the request was written");
    let mut runcap = Command::new(place.runcap);
    runcap.arg("json").stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null());
    let error = runcap.exec();
    panic!("cannot become {}: {error}", place.runcap);
}

fn stream_fd(stream: usize) -> BorrowedFd<'static> {
    if stream == 0 { rustix::stdio::stdout() } else { rustix::stdio::stderr() }
}

/// Lets go of a stream's pipe.
fn drop_stream(stream: usize) {
    let null = File::options().write(true).open("/dev/null").expect("/dev/null is there");
    let _ = match stream {
        0 => rustix::stdio::dup2_stdout(&null),
        _ => rustix::stdio::dup2_stderr(&null),
    };
}

/// A node at work.
struct Process<'a> {
    tree: &'a Tree,
    place: &'a Place<'a>,
    id: usize,
    record: Record,
    children: Vec<Child>,
}

impl Process<'_> {
    fn spawn(&mut self, id: usize) {
        let node = &self.tree.nodes[id];
        let argv = self.tree.argv(id, self.place);
        let mut full = Vec::new();
        let mut words = |words: &[&str]| full.extend(words.iter().map(|word| word.to_string()));
        match node.birth {
            Birth::SetsidProgram | Birth::SetsidForks => words(&["setsid"]),
            Birth::Su if may_change_user("su") => {
                // The command is one word for a shell; nothing in it holds a quote but the trap.
                let line: Vec<String> =
                    argv.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
                words(&["su", "-s", "/bin/sh", "root", "-c", &format!("exec {}", line.join(" "))]);
            }
            Birth::Runuser if may_change_user("runuser") => {
                words(&["runuser", "-u", "root", "--"]);
            }
            Birth::DoubleFork | Birth::Daemon => {
                let seed = self.tree.seed.to_string();
                let Place { helper, directory, runcap } = *self.place;
                let id = id.to_string();
                words(&[helper, "tree-between", &seed, directory, runcap, &id]);
            }
            _ => {}
        }
        if !matches!(node.birth, Birth::Su | Birth::DoubleFork | Birth::Daemon) || full.is_empty() {
            full.extend(argv);
        }
        let mut command = Command::new(&full[0]);
        command.args(&full[1..]).stdin(Stdio::null());
        if node.birth == Birth::SetsidForks {
            command.process_group(0);
        }
        if matches!(node.birth, Birth::Su | Birth::Runuser) {
            command.stderr(Stdio::null());
        }
        if node.clear_env {
            // What a program without a slash is looked up in stays.
            command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        }
        if let Some(stream) = node.holds
            && let Ok(pipe) = stream_fd(stream).try_clone_to_owned()
        {
            command.stdin(pipe);
        }
        match command.spawn() {
            Ok(child) => {
                self.record.started(&child);
                self.children.push(child);
            }
            Err(error) => self.record.line(&format!("failed to start {full:?}: {error}")),
        }
    }

    /// Writes the next `count` bytes; false once nobody reads any more.
    fn write(&mut self, stream: usize, offset: &mut usize, count: usize) -> bool {
        let bytes: Vec<u8> =
            (*offset..*offset + count).map(|at| letter(self.id, stream, at)).collect();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            self.record.line(&format!("try {stream} {}", *offset + rest.len()));
            match rustix::io::write(stream_fd(stream), rest) {
                Ok(written) => {
                    rest = &rest[written..];
                    *offset += written;
                    self.record.line(&format!("did {stream} {offset}"));
                }
                Err(error) => {
                    self.record.line(&format!("broken {stream} {error}"));
                    return false;
                }
            }
        }
        true
    }

    fn join_child(&mut self) {
        let Some(child) = self.children.last() else { return };
        // It fails for most: the child leads no group, or is in another session.
        let _ = setpgid(None, Pid::from_raw(child.id() as i32));
    }
}
