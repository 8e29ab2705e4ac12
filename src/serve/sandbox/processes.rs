//! `/v1/processes`: commands that nobody waits for. Each outlives the connection that it came by,
//! and ends by itself, when it is told to, at its timeout if it has one, or with the server.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tiny_http::ResponseBox;

use crate::outcome::{Cancel, End};
use crate::run::{self, Control, Observer, Sinks, Stop};
use crate::serve::State;
use crate::serve::body::read_whole;
use crate::serve::budget::Share;
use crate::serve::command::{Commands, Directory, log_note};
use crate::serve::reply::{self, Dialect};
use crate::serve::transport::{Head, Live, Reply};
use crate::spec::{Outputs, Spec};
use crate::wire::sandbox::exec::{Exec, decode_exec};
use crate::wire::sandbox::process::{Process, Shown, write_ended, write_process, write_started};

use super::Refusal;
use super::exec::{Job, exit_code, no_memory, not_started};

/// Ended processes that are remembered; the oldest is forgotten first.
pub const FINISHED_MAX: usize = 256;

/// How long a process that is told to end is waited for: the published client waits for an answer
/// for 60 s. One whose grace is longer still runs then, and that is the answer.
pub const END_WAIT_MAX: Duration = Duration::from_secs(30);

/// Stack of the thread that runs one, bytes.
const THREAD_STACK_BYTES: usize = 128 << 10;

/// All processes that were started in the background, as far as they are remembered.
#[derive(Debug, Default)]
pub(in crate::serve) struct Processes {
    table: Mutex<Table>,
    /// One has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    last_id: u64,
    /// In the order of their starts.
    records: Vec<Record>,
    /// Those that have ended, in the order of their ends.
    ended: VecDeque<u64>,
}

/// What is known of one.
#[derive(Debug, Clone)]
struct Record {
    id: u64,
    pid: u32,
    cmd: Arc<Shown>,
    tag: Option<Arc<str>>,
    started_at_ms: u64,
    stop: Arc<Stop>,
    /// Somebody has told it to end and waits for that.
    is_told: bool,
    /// Whoever waits for it learns it even when the record is forgotten.
    ended: Arc<OnceLock<Ended>>,
}

/// How one ended.
#[derive(Debug, Clone, Copy)]
struct Ended {
    exit_code: Option<i32>,
    /// Because it was told to, and not by itself.
    was_stopped: bool,
}

/// The id that clients know a process by.
fn name_of(id: u64) -> String {
    format!("p-{id}")
}

impl Processes {
    fn table(&self) -> MutexGuard<'_, Table> {
        // What a thread that died was doing is one record, there or not.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_over` or the time is over.
    fn wait(&self, most: Duration, is_over: impl Fn(&Table) -> bool) {
        let until = Instant::now() + most;
        let mut table = self.table();
        while !is_over(&table) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.ended.wait_timeout(table, left);
            table = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes a record up, and says the id that it got.
    fn add(&self, record: Record) -> u64 {
        let mut table = self.table();
        table.last_id += 1;
        let id = table.last_id;
        table.records.push(Record { id, ..record });
        id
    }

    fn has_ended(&self, id: u64, ended: Ended) {
        let mut table = self.table();
        if let Some(record) = table.records.iter().find(|record| record.id == id) {
            // It ends once.
            let _ = record.ended.set(ended);
            table.ended.push_back(id);
        }
        if table.ended.len() > FINISHED_MAX {
            let oldest = table.ended.pop_front();
            table.records.retain(|record| Some(record.id) != oldest);
        }
        self.ended.notify_all();
    }

    /// Tells one to end and waits for it; whether this call is what ended it.
    fn end(&self, name: &str) -> bool {
        let mut table = self.table();
        let pid = name.parse().ok();
        let is_it = |record: &&mut Record| {
            let is_running = record.ended.get().is_none();
            name_of(record.id) == name || (is_running && Some(record.pid) == pid)
        };
        let Some(record) = table.records.iter_mut().find(is_it) else { return false };
        let is_first = !std::mem::replace(&mut record.is_told, true);
        record.stop.tell();
        let (id, ended) = (record.id, Arc::clone(&record.ended));
        drop(table);
        self.wait(END_WAIT_MAX, |_| ended.get().is_some());
        match ended.get() {
            Some(ended) => is_first && ended.was_stopped,
            None => {
                // Whoever waits for it next may say that it did it.
                let mut table = self.table();
                let record = table.records.iter_mut().find(|record| record.id == id);
                record.into_iter().for_each(|record| record.is_told = false);
                false
            }
        }
    }

    /// Waits until all of them have ended, at most `most`; the server was told to end.
    pub(in crate::serve) fn wait_for_all(&self, most: Duration) {
        self.wait(most, |table| table.ended.len() == table.records.len());
    }
}

/// POST /v1/processes: starts a command in the background.
pub(in crate::serve) fn start<'a>(
    state: &'a State,
    head: &Head<'_>,
    body: &mut dyn Read,
) -> Reply<'a> {
    let Some(held) = read_whole(state, head, body) else { return no_memory() };
    match decode_exec(&held.bytes) {
        Ok(request) => start_decoded(state, head, request, held.into_shares()),
        Err(message) => Refusal::new(400, message).answer().into(),
    }
}

/// As [`start`], for a request that was decoded already, and the memory that it has.
pub(super) fn start_decoded<'a>(
    state: &'a State,
    head: &Head<'_>,
    request: Exec,
    shares: Vec<Share>,
) -> Reply<'a> {
    let cmd = Arc::new(request.cmd.clone());
    // Without a timeout it runs until somebody ends it.
    let mut command = match Job::new(state, request, None) {
        Ok(command) => command,
        Err(refusal) => return refusal.answer().into(),
    };
    // Nobody reads what it prints.
    command.spec.outputs = Outputs::Null;
    let tag: Option<Arc<str>> = command.tag.as_deref().map(Arc::from);
    let begun = Arc::new(Begun::default());
    let runner = Runner {
        commands: Arc::clone(&state.commands),
        begun: Arc::clone(&begun),
        stop: Arc::default(),
        cmd: Arc::clone(&cmd),
        tag: tag.clone(),
        directory: Cell::new(Some(command.directory)),
        id: Cell::new(None),
    };
    let run = move || {
        let _shares = shares;
        runner.run(&command.spec, &command.program, &command.cwd);
    };
    if let Err(error) = thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(run) {
        return unavailable(&error).answer().into();
    }
    match begun.wait() {
        Start::Started(id, pid) => {
            let mut text = Vec::new();
            write_started(&mut text, &name_of(id), pid, &cmd, tag.as_deref())
                .expect("a vector takes everything");
            reply::json_bytes(200, text).into()
        }
        Start::Busy => state.commands.busy(Dialect::Sandbox).into(),
        Start::Failed(refusal, note) => {
            head.note(note);
            refusal.answer().into()
        }
    }
}

fn unavailable(error: &io::Error) -> Refusal {
    Refusal::new(503, format!("cannot run another process now: {error}"))
}

/// What became of a start.
#[derive(Debug)]
enum Start {
    /// With its id and its pid.
    Started(u64, u32),
    Busy,
    /// With the note for the log.
    Failed(Refusal, String),
}

/// Where a thread says what became of its start.
#[derive(Debug, Default)]
struct Begun {
    start: Mutex<Option<Start>>,
    known: Condvar,
}

impl Begun {
    fn start(&self) -> MutexGuard<'_, Option<Start>> {
        self.start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, start: Start) {
        *self.start() = Some(start);
        self.known.notify_all();
    }

    fn wait(&self) -> Start {
        let mut start = self.start();
        loop {
            match start.take() {
                Some(start) => return start,
                None => start = self.known.wait(start).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// One process, on the thread that runs it.
struct Runner {
    commands: Arc<Commands>,
    begun: Arc<Begun>,
    stop: Arc<Stop>,
    cmd: Arc<Shown>,
    tag: Option<Arc<str>>,
    /// Until the process is in it: open files are scarce.
    directory: Cell<Option<Directory>>,
    /// Once it was started, until it has ended.
    id: Cell<Option<u64>>,
}

impl Runner {
    fn run(self, spec: &Spec, program: &str, cwd: &str) {
        let Some(place) = self.commands.take() else { return self.begun.tell(Start::Busy) };
        let (mut stdout, mut stderr) = (io::sink(), io::sink());
        let sinks = Sinks { stdout: &mut stdout, stderr: &mut stderr };
        let control =
            Control { stop: Some(&self.stop), observer: Some(&self), ..self.commands.control() };
        let start = Instant::now();
        let result = run::run(spec, sinks, control);
        // Before anybody is told, since the next command may come for it.
        drop(place);
        let note = log_note(result.as_ref().ok(), None, program, self.tag.as_deref());
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(error) => return self.fail(not_started(program, cwd, &error), note),
        };
        let was_stopped = outcome.end == End::Canceled(Cancel::Requested);
        let ended = Ended {
            exit_code: exit_code(&outcome),
            // One that KILL did not end is not ended.
            was_stopped: was_stopped && outcome.leader.is_some(),
        };
        if let Some(id) = self.id.take() {
            self.commands.log.process(&name_of(id), start.elapsed(), &note);
            self.commands.processes.has_ended(id, ended);
        }
    }

    fn fail(&self, refusal: Refusal, note: String) {
        self.begun.tell(Start::Failed(refusal, note));
    }
}

impl Observer for Runner {
    fn started(&self, pid: u32) {
        drop(self.directory.take());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = self.commands.processes.add(Record {
            id: 0,
            pid,
            cmd: Arc::clone(&self.cmd),
            tag: self.tag.clone(),
            started_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            stop: Arc::clone(&self.stop),
            is_told: false,
            ended: Arc::default(),
        });
        self.id.set(Some(id));
        self.begun.tell(Start::Started(id, pid));
    }

    fn tick(&self) {}
}

impl Drop for Runner {
    fn drop(&mut self) {
        // Left behind only by a panic; what was told before is told once more to nobody.
        if let Some(id) = self.id.take() {
            let ended = Ended { exit_code: None, was_stopped: false };
            self.commands.processes.has_ended(id, ended);
        }
        if self.begun.start().is_none() {
            self.fail(Refusal::new(500, "the process could not be watched"), String::new());
        }
    }
}

/// GET /v1/processes: those that run, and the last that have ended.
pub(in crate::serve) fn list(state: &State) -> Reply<'_> {
    // Not locked while it is written: a client may read slowly.
    let records = state.commands.processes.table().records.clone();
    let write = move |out: &mut (dyn Write + Send)| {
        out.write_all(b"[")?;
        for (index, record) in records.iter().enumerate() {
            if index > 0 {
                out.write_all(b",")?;
            }
            let process = Process {
                id: &name_of(record.id),
                pid: record.pid,
                cmd: &record.cmd,
                tag: record.tag.as_deref(),
                started_at_ms: record.started_at_ms,
                running: record.ended.get().is_none(),
                exit_code: record.ended.get().and_then(|ended| ended.exit_code),
            };
            write_process(&mut &mut *out, &process)?;
        }
        Ok(out.write_all(b"]")?)
    };
    let headers = vec![reply::header("Content-Type", "application/json")];
    Reply::Live(Live { status: 200, headers, write: Box::new(write) })
}

/// DELETE /v1/processes/{id}: ends one, which may be named by its pid too, and says whether this is
/// what ended it. It is waited for, so that it is gone when the answer comes.
pub(in crate::serve) fn end(state: &State, name: &str) -> ResponseBox {
    let killed = state.commands.processes.end(name);
    let mut text = Vec::new();
    write_ended(&mut text, name, killed).expect("a vector takes everything");
    reply::json_bytes(200, text)
}
