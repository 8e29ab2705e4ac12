//! The poll loop of one command: why and when it ends, and how it is made to.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::outcome::{Cancel, End, Stream};
use crate::spec::Spec;
use crate::sys::poll::{Interest, PollFd, poll};
use crate::sys::signal::{CONT, KILL, TERM};

use super::copy::{Shared, State};
use super::leader::{Leader, Member};
use super::{Control, DRAIN, KILL_WAIT, TICK};

/// How often a process is looked at that there is no descriptor for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

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
    /// Nothing more.
    Done,
}

/// Watches the command until its streams have ended or are given up, and says why it ended.
/// The leader is not reaped here.
pub(super) fn supervise(
    spec: &Spec,
    leader: &mut Leader,
    shared: &Shared,
    mut control: Control<'_>,
    start: Instant,
) -> End {
    // A deadline past the end of the clock is no deadline.
    let deadline = spec.timeout.and_then(|timeout| start.checked_add(timeout));
    let mut end = End::Finished;
    let mut phase = Phase::Running;
    let mut next_tick = start + TICK;
    loop {
        let signs = wait(leader, shared, &control, &phase, [deadline, Some(next_tick)]);
        let now = Instant::now();
        if now >= next_tick {
            next_tick = now + TICK;
            if let Some(observer) = &mut control.observer {
                observer.tick();
            }
        }
        let gone = leader.has_ended();
        phase = match phase {
            // The leader's end is looked at first: once it is known, the deadline decides nothing.
            Phase::Running if gone => drain(now),
            Phase::Running => {
                let timed_out = deadline.is_some_and(|deadline| now >= deadline);
                let reason = if timed_out { Some(End::TimedOut) } else { signs.reason(shared) };
                match reason {
                    None => Phase::Running,
                    Some(reason) => {
                        end = reason;
                        begin_end(leader, reason, spec.grace, now)
                    }
                }
            }
            Phase::Terminating { kill_at, .. } => {
                let member = if gone { leader.live_member() } else { None };
                if now >= kill_at || (gone && member.is_none()) {
                    kill(leader, now)
                } else {
                    Phase::Terminating { kill_at, member }
                }
            }
            Phase::Killed { .. } if gone => drain(now),
            Phase::Killed { give_up } if now >= give_up => Phase::Done,
            Phase::Draining { until } if now >= until => Phase::Done,
            phase => phase,
        };
        if let Phase::Draining { .. } = phase {
            if let (End::Finished, Some(stream)) = (end, overflowed(shared)) {
                end = End::OutputLimit(stream);
                leader.signal_group(KILL);
            }
            if !copying(shared) {
                phase = Phase::Done;
            }
        }
        if let Phase::Done = phase {
            return end;
        }
    }
}

/// What a wait saw, beyond the leader and the copies.
struct Signs {
    stop: bool,
    reader_gone: bool,
}

impl Signs {
    /// Why the command must end now, apart from its deadline.
    fn reason(&self, shared: &Shared) -> Option<End> {
        let sink_failed = STREAMS.iter().any(|stream| shared.state(*stream) == State::SinkFailed);
        if let Some(stream) = overflowed(shared) {
            Some(End::OutputLimit(stream))
        } else if self.stop {
            Some(End::Canceled(Cancel::Requested))
        } else if self.reader_gone || sink_failed {
            Some(End::Canceled(Cancel::ReaderGone))
        } else {
            None
        }
    }
}

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

fn overflowed(shared: &Shared) -> Option<Stream> {
    STREAMS.into_iter().find(|stream| shared.state(*stream) == State::Overflowed)
}

fn copying(shared: &Shared) -> bool {
    STREAMS.into_iter().any(|stream| shared.state(stream) == State::Copying)
}

fn drain(now: Instant) -> Phase {
    Phase::Draining { until: now + DRAIN }
}

fn kill(leader: &Leader, now: Instant) -> Phase {
    leader.signal_group(KILL);
    Phase::Killed { give_up: now + KILL_WAIT }
}

fn begin_end(leader: &Leader, reason: End, grace: Duration, now: Instant) -> Phase {
    if matches!(reason, End::OutputLimit(_)) || grace.is_zero() {
        return kill(leader, now);
    }
    leader.signal_group(TERM);
    // A stopped process takes TERM only once it continues.
    leader.signal_group(CONT);
    // A grace past the end of the clock is as long as the clock.
    let kill_at = now.checked_add(grace).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
    Phase::Terminating { kill_at, member: None }
}

/// Waits for the next thing that can change `phase`.
fn wait(
    leader: &Leader,
    shared: &Shared,
    control: &Control<'_>,
    phase: &Phase,
    [deadline, tick]: [Option<Instant>; 2],
) -> Signs {
    let tick = tick.filter(|_| control.observer.is_some());
    let (until, process) = match phase {
        Phase::Running => (deadline, Some(leader.fd())),
        Phase::Terminating { kill_at, member: Some(member) } => (Some(*kill_at), Some(member.fd())),
        Phase::Terminating { kill_at, member: None } => (Some(*kill_at), Some(leader.fd())),
        Phase::Killed { give_up } => (Some(*give_up), Some(leader.fd())),
        Phase::Draining { until } => (Some(*until), None),
        Phase::Done => (Some(Instant::now()), None),
    };
    // Stop requests and a vanished reader matter only while nothing ends the command yet; their
    // descriptors stay ready, so polling them later would spin.
    let running = matches!(phase, Phase::Running);
    let (stop, reader) = if running { (control.stop, control.reader) } else { (None, None) };
    let now = Instant::now();
    let look_again = (matches!(process, Some(None))).then(|| now + LOOK_AGAIN);
    let until = [until, tick, look_again].into_iter().flatten().min();
    let mut fds = [
        PollFd::new(process.flatten(), Interest::Read),
        PollFd::new(Some(shared.ended.as_fd()), Interest::Read),
        PollFd::new(stop, Interest::Read),
        PollFd::new(reader, Interest::Gone),
    ];
    // A poll that fails (out of kernel memory) sees nothing: the loop goes on by its clock.
    let _ = poll(&mut fds, until.map(|until| until.saturating_duration_since(now)));
    shared.ended.clear();
    Signs { stop: fds[2].ready(), reader_gone: fds[3].ready() }
}
