//! Ends what a command leaves behind, outside its group too.
//!
//! Each round kills every process of the command that is found alive and waits until those are
//! dead; new ones found in the next round were started meanwhile. A process that leaves the group,
//! forks and exits faster than it is found can outrun every round, so rounds and time are bounded,
//! and what is left is reported. Success is judged by looking for live processes, never by ESRCH:
//! zombies whose parent does not reap them take signals too.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::sys::poll::{Interest, PollFd, poll};
use crate::sys::proc::{self, Life, Process};
use crate::sys::signal::KILL;

use super::leader::{Leader, Member};
use super::{KILL_WAIT, registry};

/// Rounds of one sweep.
const ROUNDS_MAX: usize = 200;

/// Rounds that are made however long they take: on a busy machine a look alone may be slow.
const ROUNDS_MIN: usize = 3;

/// Descriptors held for processes that were killed in one step.
const STEP_PROCESSES: usize = 64;

/// Pause before a process is looked at again that there is no descriptor for.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Counts what a command's end cost.
#[derive(Default)]
pub(super) struct Toll {
    /// Number and start of every process besides the leader that was alive when it was signalled.
    struck: BTreeSet<(u32, u64)>,
}

impl Toll {
    /// Takes note of the command's live processes, which are about to be signalled.
    pub(super) fn record(&mut self, leader: &mut Leader) {
        self.add(&alive(leader));
        if !leader.members.are_marked() {
            // What is not seen now cannot be told later, when the signal has cut its descent.
            self.add(&alive(leader));
        }
    }

    fn add(&mut self, processes: &[Process]) {
        self.struck.extend(processes.iter().map(|process| (process.pid, process.start)));
    }

    /// How many of them are not among those that live on.
    pub(super) fn killed(&self, living: &[Process]) -> u64 {
        let lives = |id: &&(u32, u64)| living.iter().any(|one| (one.pid, one.start) == **id);
        (self.struck.len() - self.struck.iter().filter(lives).count()) as u64
    }
}

/// Live processes of the command besides its leader.
///
/// One that ends while it is looked at may have just started the next, which came here after the
/// list was read. So only two looks in a row that find nothing new and nothing alive prove that
/// there is nothing.
pub(super) fn alive(leader: &mut Leader) -> Vec<Process> {
    let mut calm = 0;
    for _ in 0..ROUNDS_MAX {
        let known = leader.members.seen().len();
        let mut found = leader.members.find();
        found.retain(|process| process.life == Life::Running);
        calm = if leader.members.seen().len() == known { calm + 1 } else { 0 };
        if !found.is_empty() || calm == 2 {
            return found;
        }
    }
    Vec::new()
}

/// Kills every live process of a command whose leader has ended (or cannot be killed), and returns
/// those that live on.
pub(super) fn sweep(leader: &mut Leader, toll: &mut Toll) -> Vec<Process> {
    let give_up = Instant::now() + KILL_WAIT;
    for round in 0..ROUNDS_MAX {
        let living = alive(leader);
        if living.is_empty() {
            return living;
        }
        toll.add(&living);
        // One call reaches all of the group at once, also one that is being started now.
        leader.signal_group(KILL);
        for step in living.chunks(STEP_PROCESSES) {
            let killed: Vec<Member> =
                step.iter().map(|process| leader.kill_member(process)).collect();
            killed.iter().for_each(|member| wait_for(member, give_up));
        }
        registry::reap_orphans(&[]);
        if round + 1 >= ROUNDS_MIN && Instant::now() >= give_up {
            break;
        }
    }
    alive(leader)
}

fn wait_for(member: &Member, give_up: Instant) {
    let left = give_up.saturating_duration_since(Instant::now());
    let left = if member.fd().is_some() { left } else { left.min(LOOK_AGAIN) };
    // A wait that fails or ends early costs a round.
    let _ = poll(&mut [PollFd::new(member.fd(), Interest::Read)], Some(left));
}

/// Reaps what of the command has ended and came to this process, and waits for what the kernel is
/// taking down now. False when something of that is still to come.
pub(super) fn reap(leader: &Leader) -> bool {
    if !leader.members.searched() {
        return true;
    }
    let give_up = Instant::now() + KILL_WAIT;
    let seen: Vec<(u32, u64)> = leader.members.seen().iter().copied().collect();
    let processes = || {
        seen.iter().filter_map(|(pid, start)| {
            proc::process(*pid).filter(|process| process.start == *start)
        })
    };
    let pids: Vec<u32> = seen.iter().map(|(pid, _)| *pid).collect();
    let own = std::process::id();
    // Again and again: a wait without a descriptor is short, and a process may end just after the
    // look at it.
    let is_to_come = |process: &Process| match process.life {
        Life::Running => false,
        Life::Exiting => true,
        Life::Ended => process.parent == own,
    };
    loop {
        if let Some(exiting) = processes().find(|process| process.life == Life::Exiting) {
            wait_for(&Member::new(&exiting), give_up);
        }
        registry::reap_orphans(&pids);
        if !processes().any(|process| is_to_come(&process)) {
            return true;
        }
        if Instant::now() >= give_up {
            return false;
        }
    }
}
