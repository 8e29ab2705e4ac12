//! The poll loop of one command: why and when it ends, and how it is made to.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::outcome::{Cancel, End, Stream};
use crate::spec::{Leftovers, Spec};
use crate::sys::poll::{Interest, PollFd, poll};
use crate::sys::proc::{self, Process};
use crate::sys::signal::{CONT, KILL, TERM};

use super::copy::{Shared, State};
use super::leader::{Leader, Member};
use super::sweep::{Toll, alive, sweep};
use super::terminal::Terminal;
use super::{CLIENT_GONE_GRACE, Control, DRAIN, EndSignals, KILL_WAIT, TICK, told_to_end};

/// How often a process is looked at that there is no descriptor for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How long the ends of the streams are waited for once everything that could hold them is dead.
const LAST_DRAIN: Duration = Duration::from_millis(50);

/// How a command ended, and what of it lives on.
pub(super) struct Ended {
    pub(super) end: End,
    /// Its processes that are alive.
    pub(super) living: Vec<Process>,
    /// How many besides the leader were killed.
    pub(super) killed: u64,
}

/// What the loop waits for.
enum Phase {
    /// The leader's end, or a reason to end it.
    Running,
    /// TERM was sent: the group's end, at most until KILL.
    Terminating { kill_at: Instant, member: Option<Member> },
    /// KILL was sent: the leader's end, at most until it is given up.
    Killed { give_up: Instant },
    /// The leader has ended: the ends of its streams, at most until then.
    Draining { until: Instant },
    /// The same, after everything that the command left was killed.
    Swept { until: Instant },
    /// Nothing more.
    Done,
}

/// One command under supervision.
struct Supervisor<'a> {
    spec: &'a Spec,
    leader: &'a mut Leader,
    shared: &'a Shared,
    end: End,
    living: Vec<Process>,
    toll: Toll,
    deadline: Option<Instant>,
    forward_grace: Option<Duration>,
    end_grace_max: Option<Duration>,
    /// At most, when the command is canceled because its reader is gone.
    gone_grace: Duration,
}

/// Watches the command until its streams have ended or are given up, and ends it and what it left
/// as the spec says. The leader is not reaped here.
pub(super) fn supervise(
    spec: &Spec,
    leader: &mut Leader,
    shared: &Shared,
    control: Control<'_>,
    deadline: Option<Instant>,
) -> Ended {
    let mut next_tick = Instant::now() + TICK;
    let (end, living, toll) = (End::Finished, Vec::new(), Toll::default());
    let (forward_grace, end_grace_max) = (control.forward_grace, control.end_grace_max);
    let gone_grace = control.client.map_or(spec.grace, |_| spec.grace.min(CLIENT_GONE_GRACE));
    let mut command = Supervisor {
        spec,
        leader,
        shared,
        end,
        living,
        toll,
        deadline,
        forward_grace,
        end_grace_max,
        gone_grace,
    };
    control.stop.inspect(|stop| stop.attach(Some(&shared.ended)));
    let mut phase = Phase::Running;
    while !matches!(phase, Phase::Done) {
        let signs = command.wait(&control, &phase, deadline, next_tick);
        if let (Some(terminal), Phase::Running) = (control.terminal, &phase) {
            terminal.follow(command.leader);
        }
        let now = Instant::now();
        if now >= next_tick {
            next_tick = now + TICK;
            if let Some(observer) = control.observer {
                observer.tick();
            }
        }
        let timed_out = deadline.is_some_and(|deadline| now >= deadline);
        phase = command.step(phase, &signs, timed_out, now);
    }
    control.stop.inspect(|stop| stop.attach(None));
    let killed = command.toll.killed(&command.living);
    Ended { end: command.end, living: command.living, killed }
}

/// Waits until both streams of a command that has ended were passed on; false when the deadline or
/// a signal that tells this process to end comes first.
pub(super) fn wait_for_sinks(
    shared: &Shared,
    end: Option<EndSignals>,
    deadline: Option<Instant>,
) -> bool {
    while copying(shared) {
        let mut fds = [
            PollFd::new(Some(shared.ended.as_fd()), Interest::Read),
            PollFd::new(end.map(|end| end.stop()), Interest::Read),
        ];
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A poll that fails (out of kernel memory) sees nothing: the wait goes on by its clock.
        let _ = poll(&mut fds, left);
        shared.ended.clear();
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if copying(shared) && (is_over || fds[1].ready()) {
            return false;
        }
    }
    true
}

/// What a wait saw, beyond the leader and the copies.
struct Signs {
    stop: bool,
    kill: bool,
    reader_gone: bool,
}

impl Supervisor<'_> {
    /// What follows from what is known now.
    fn step(&mut self, phase: Phase, signs: &Signs, timed_out: bool, now: Instant) -> Phase {
        let gone = self.leader.has_ended();
        match phase {
            // The leader's end is looked at first: once it is known, the deadline decides nothing.
            Phase::Running if gone => self.drain(now),
            Phase::Running => {
                let reason = if timed_out { Some(End::TimedOut) } else { self.reason(signs) };
                match reason {
                    None => Phase::Running,
                    Some(reason) => self.begin_end(reason, now),
                }
            }
            Phase::Terminating { kill_at, .. } => {
                let member = if gone { self.group_member() } else { None };
                // The first byte past the cap ends the grace too: nobody reads that stream any
                // more, so a command that is still writing would only block until KILL.
                let overflowed = overflowed(self.shared).is_some();
                let most = self.end_grace_max.filter(|_| told_to_end().is_some());
                let kill_at = most.map_or(kill_at, |most| kill_at.min(now + most));
                if now >= kill_at || signs.kill || overflowed || (gone && member.is_none()) {
                    self.kill(now)
                } else {
                    Phase::Terminating { kill_at, member }
                }
            }
            Phase::Killed { give_up } if gone || now >= give_up => {
                self.living = sweep(self.leader, &mut self.toll);
                if gone {
                    self.swept(Instant::now() + DRAIN)
                } else {
                    // Stuck in the kernel, or another user's: nothing to wait for.
                    self.living.extend(proc::process(self.leader.pid()));
                    Phase::Done
                }
            }
            Phase::Draining { .. } if overflowed(self.shared).is_some() => {
                // The leader has ended, but what it wrote decides: the cap was passed.
                self.begin_end(End::OutputLimit(Stream::Stdout), now)
            }
            Phase::Draining { until } if now >= until || !copying(self.shared) => {
                self.after_finish(now)
            }
            Phase::Swept { until } if now >= until || !copying(self.shared) => Phase::Done,
            phase => phase,
        }
    }

    /// Why the command must end now, apart from its deadline.
    fn reason(&self, signs: &Signs) -> Option<End> {
        let failed = |stream| self.shared.state(stream) == State::SinkFailed;
        if let Some(stream) = overflowed(self.shared) {
            Some(End::OutputLimit(stream))
        } else if signs.stop || signs.kill {
            Some(End::Canceled(Cancel::Requested))
        } else if signs.reader_gone || STREAMS.into_iter().any(failed) {
            Some(End::Canceled(Cancel::ReaderGone))
        } else {
            None
        }
    }

    /// Starts to end the command for `reason`.
    fn begin_end(&mut self, reason: End, now: Instant) -> Phase {
        self.end = match (reason, overflowed(self.shared)) {
            (End::OutputLimit(_), Some(stream)) => End::OutputLimit(stream),
            (reason, _) => reason,
        };
        let told = self.forward_grace.zip(told_to_end());
        let told = told.filter(|_| reason == End::Canceled(Cancel::Requested));
        let is_gone = reason == End::Canceled(Cancel::ReaderGone);
        let most = self.end_grace_max.filter(|_| told_to_end().is_some());
        let grace = if is_gone { self.gone_grace } else { self.spec.grace };
        let grace = most.map_or(grace, |most| grace.min(most));
        let (grace, signal) = told.unwrap_or((grace, TERM));
        if matches!(reason, End::OutputLimit(_)) || grace.is_zero() {
            return self.kill(now);
        }
        self.toll.record(self.leader);
        self.leader.signal_group(signal);
        // A stopped process takes TERM only once it continues.
        self.leader.signal_group(CONT);
        // A grace past the end of the clock is as long as the clock.
        let forever = Duration::from_secs(u32::MAX.into());
        let kill_at = now.checked_add(grace).unwrap_or(now + forever);
        // A signal that was passed on does not put off what the deadline promises.
        let last = self.deadline.and_then(|deadline| deadline.checked_add(self.spec.grace));
        let kill_at = last.map_or(kill_at, |last| kill_at.min(last));
        Phase::Terminating { kill_at, member: None }
    }

    /// Kills the group. What the leader started is written down before: its death cuts the chain
    /// by which processes outside the group are told to be the command's.
    fn kill(&mut self, now: Instant) -> Phase {
        self.toll.record(self.leader);
        self.leader.signal_group(KILL);
        Phase::Killed { give_up: now + KILL_WAIT }
    }

    /// A live process of the leader's group.
    fn group_member(&mut self) -> Option<Member> {
        let group = self.leader.pid();
        let living = alive(self.leader);
        living.iter().find(|process| process.group == group).map(Member::new)
    }

    fn drain(&mut self, now: Instant) -> Phase {
        if copying(self.shared) {
            Phase::Draining { until: now + DRAIN }
        } else {
            self.after_finish(now)
        }
    }

    /// The command ended by itself and its streams were waited for: its leftovers.
    fn after_finish(&mut self, now: Instant) -> Phase {
        if overflowed(self.shared).is_some() {
            return self.begin_end(End::OutputLimit(Stream::Stdout), now);
        }
        if self.leader.members.surely_none() {
            return Phase::Done;
        }
        match self.spec.leftovers {
            Leftovers::Leave => {
                self.living = alive(self.leader);
                Phase::Done
            }
            Leftovers::Kill => {
                self.living = sweep(self.leader, &mut self.toll);
                self.swept(Instant::now() + LAST_DRAIN)
            }
        }
    }

    fn swept(&self, until: Instant) -> Phase {
        if copying(self.shared) { Phase::Swept { until } } else { Phase::Done }
    }

    /// Waits for the next thing that can change `phase`.
    fn wait(
        &self,
        control: &Control<'_>,
        phase: &Phase,
        deadline: Option<Instant>,
        next_tick: Instant,
    ) -> Signs {
        let leader = Some(self.leader.fd());
        let (until, process) = match phase {
            Phase::Running => (deadline, leader),
            Phase::Terminating { kill_at, member: Some(one) } => (Some(*kill_at), Some(one.fd())),
            Phase::Terminating { kill_at, member: None } => (Some(*kill_at), leader),
            Phase::Killed { give_up } => (Some(*give_up), leader),
            Phase::Draining { until } | Phase::Swept { until } => (Some(*until), None),
            Phase::Done => (Some(next_tick), None),
        };
        // These descriptors stay ready once they are, so each is polled only where it decides.
        let running = matches!(phase, Phase::Running);
        let ending = matches!(phase, Phase::Terminating { .. });
        let cuts_grace = ending && self.end_grace_max.is_some() && told_to_end().is_none();
        let stop = control.end.map(|end| end.stop()).filter(|_| running || cuts_grace);
        let kill = control.end.map(|end| end.kill()).filter(|_| running || ending);
        let reader = control.reader.filter(|_| running);
        let terminal = control.terminal.filter(|_| running).map(Terminal::fds);
        let [children, stop_key] = terminal.map_or([None; 2], |fds| fds.map(Some));
        let now = Instant::now();
        let tick = control.observer.is_some().then_some(next_tick);
        let look_again = matches!(process, Some(None)).then(|| now + LOOK_AGAIN);
        let until = [until, tick, look_again].into_iter().flatten().min();
        let mut fds = [
            PollFd::new(process.flatten(), Interest::Read),
            PollFd::new(Some(self.shared.ended.as_fd()), Interest::Read),
            PollFd::new(stop, Interest::Read),
            PollFd::new(kill, Interest::Read),
            PollFd::new(reader, Interest::Gone),
            PollFd::new(control.client.filter(|_| running), Interest::PeerGone),
            PollFd::new(children, Interest::Read),
            PollFd::new(stop_key, Interest::Read),
        ];
        // A poll that fails (out of kernel memory) sees nothing: the loop goes on by its clock.
        let _ = poll(&mut fds, until.map(|until| until.saturating_duration_since(now)));
        self.shared.ended.clear();
        let [_, _, stop, kill, reader, client, ..] = fds.each_ref().map(PollFd::ready);
        // After the descriptor that wakes for it was cleared.
        let is_told = control.stop.is_some_and(|stop| stop.is_told());
        Signs { stop: stop || is_told, kill, reader_gone: reader || client }
    }
}

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

/// The stream that passed its cap under `overflow: stop`.
pub(super) fn overflowed(shared: &Shared) -> Option<Stream> {
    STREAMS.into_iter().find(|stream| shared.state(*stream) == State::Overflowed)
}

fn copying(shared: &Shared) -> bool {
    STREAMS.into_iter().any(|stream| shared.state(stream) == State::Copying)
}
