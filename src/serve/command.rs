//! What all commands of a server share, whichever dialect asked for them.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tiny_http::ResponseBox;

use super::log::Log;
use super::reply::{self, Dialect};
use super::sandbox::processes::Processes;
use super::transport::places::{Place, Places};
use crate::outcome::{Exit, Outcome, Stage, StartError, signal_name};
use crate::quote::quoted;
use crate::run::{Control, EndSignals};
use crate::spec::DEFAULT_GRACE;

/// Longest grace of a command once the server was told to end.
pub(super) const END_GRACE_MAX: Duration = DEFAULT_GRACE;

/// Commands that run, and those that ran in the background.
#[derive(Debug)]
pub(super) struct Commands {
    places: Places,
    max: usize,
    /// What ends commands when the server ends.
    end: Option<EndSignals>,
    pub(super) log: Arc<Log>,
    pub(super) processes: Processes,
}

impl Commands {
    /// At most `max` at once.
    pub(super) fn new(max: usize, end: Option<EndSignals>, log: Arc<Log>) -> Commands {
        let (places, processes) = (Places::default(), Processes::default());
        Commands { places, max, end, log, processes }
    }

    /// The place of one more command, if there is one.
    pub(super) fn take(&self) -> Option<Place<'_>> {
        self.places.take(self.max)
    }

    /// What is answered when there is none.
    pub(super) fn busy(&self, dialect: Dialect) -> ResponseBox {
        let message = format!("{} commands are running already", self.max);
        reply::error(dialect, 429, &message).with_header(reply::header("Retry-After", "1"))
    }

    /// What ends every command.
    pub(super) fn control(&self) -> Control<'static> {
        Control { end: self.end, end_grace_max: Some(END_GRACE_MAX), ..Control::none() }
    }
}

/// A directory that is held open, so that what stands at its path may change before the command is
/// in it.
#[derive(Debug)]
pub(super) struct Directory(pub(super) OwnedFd);

impl Directory {
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Why a command could not be started, its directory called as the client did: runcap calls it by
/// its own descriptor.
pub(super) fn start_error(error: &StartError, cwd: &str) -> String {
    match error.stage {
        Stage::Cwd => cannot_enter(cwd, &error.source),
        _ => error.to_string(),
    }
}

/// That a command's directory, called as the client did, cannot be had.
pub(super) fn cannot_enter(cwd: &str, error: &dyn fmt::Display) -> String {
    format!("cannot enter the working directory {}: {error}", quoted(cwd))
}

/// What the log says of a command: how it ended, for each stream how many bytes were passed on of
/// how many there were, how many processes were ended beside the first, the program, the tag.
/// Without an outcome it did not start; without streams nobody has read them.
pub(super) fn log_note(
    outcome: Option<&Outcome>,
    streams: Option<[(u64, u64); 2]>,
    program: &str,
    tag: Option<&str>,
) -> String {
    let end = match outcome {
        None => "failed_to_start".to_owned(),
        Some(outcome) => match outcome.leader {
            Some(Exit::Code(code)) => format!("{} {code}", outcome.status_name()),
            Some(Exit::Signal(signal)) => {
                format!("{} {}", outcome.status_name(), signal_name(signal))
            }
            None => outcome.status_name().to_owned(),
        },
    };
    let streams = streams.map(|streams| {
        let [out, err] = streams.map(|(passed_on, received)| format!("{passed_on}/{received}"));
        format!(", stdout {out}, stderr {err}")
    });
    let streams = streams.unwrap_or_default();
    let killed = outcome.map_or(0, |outcome| outcome.killed_processes);
    let tag = tag.map(|tag| format!(", tag {}", quoted(tag))).unwrap_or_default();
    format!("{end}{streams}, killed {killed}, {}{tag}", quoted(program))
}
