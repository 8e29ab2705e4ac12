//! What was typed after `runcap run`, turned into a `Spec` or a refusal.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::spec::{
    DEFAULT_CAP_BYTES, DEFAULT_GRACE, Env, Keep, Leftovers, Limit, Outputs, Overflow, Part,
    Rlimits, Spec, Stdin,
};

use super::values;

/// What was typed after `runcap run`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// End the command after this time [default: never].
    #[arg(short, long, value_name = "DUR", value_parser = values::timeout)]
    timeout: Option<Duration>,
    /// From TERM to KILL, 0 is KILL at once [default: 500ms; 10s after a signal].
    #[arg(short = 'k', long, value_name = "DUR", value_parser = values::duration)]
    pub(super) grace: Option<Duration>,
    /// Processes that outlive the command: kill or leave
    /// [default: leave; kill where runcap reads the output]
    #[arg(long, value_name = "WHAT", value_parser = values::leftovers)]
    #[arg(hide_short_help = true, verbatim_doc_comment)]
    leftovers: Option<Leftovers>,
    /// Kill the command when runcap dies, however that happens.
    #[arg(long, hide_short_help = true)]
    die_with_parent: bool,
    /// No lines of runcap's own on stderr.
    #[arg(short, long)]
    pub(super) quiet: bool,

    /// Pass on so many bytes of each stream, drop the rest [default: all].
    #[arg(long, value_name = "SIZE", value_parser = values::cap, help_heading = "Output")]
    max_output_size: Option<usize>,
    /// head, tail or head+tail [default: head; head+tail of stderr].
    #[arg(long, value_name = "PART", value_parser = values::keep, help_heading = "Output")]
    #[arg(hide_short_help = true)]
    keep: Option<Keep>,
    /// At the first byte past it: discard or stop (KILL) [default: discard].
    #[arg(long, value_name = "WHAT", value_parser = values::overflow, help_heading = "Output")]
    #[arg(hide_short_help = true)]
    overflow: Option<Overflow>,
    /// Limit of stdout alone, such as 4M,stop or 80K,head+tail.
    #[arg(long, value_name = "SPEC", value_parser = values::part, help_heading = "Output")]
    #[arg(hide_short_help = true)]
    stdout_limit: Option<Part>,
    /// Limit of stderr alone.
    #[arg(long, value_name = "SPEC", value_parser = values::part, help_heading = "Output")]
    #[arg(hide_short_help = true)]
    stderr_limit: Option<Part>,
    /// Send stderr where stdout goes, in true order.
    #[arg(long, help_heading = "Output", hide_short_help = true)]
    merge_stderr: bool,
    /// Print the answer of `runcap json` instead; up to 10M of each stream.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,

    /// Run in this directory [default: the current one].
    #[arg(short = 'C', long, value_name = "DIR", help_heading = "Command")]
    cwd: Option<PathBuf>,
    /// Set a variable; may be given again.
    #[arg(short, long, value_name = "K=V", help_heading = "Command")]
    #[arg(value_parser = values::variable())]
    env: Vec<(OsString, OsString)>,
    /// Start from an empty environment.
    #[arg(short = 'i', long, help_heading = "Command", hide_short_help = true)]
    clear_env: bool,
    /// Read stdin from this file [default: runcap's own stdin].
    #[arg(long, value_name = "FILE", help_heading = "Command", hide_short_help = true)]
    #[arg(conflicts_with = "no_stdin")]
    stdin: Option<PathBuf>,
    /// Nothing on stdin.
    #[arg(long, help_heading = "Command", hide_short_help = true)]
    no_stdin: bool,

    /// Address space of each process.
    #[arg(long, value_name = "SIZE", value_parser = values::limit_size)]
    #[arg(help_heading = "Limits [default: runcap's own]", hide_short_help = true)]
    limit_memory: Option<u64>,
    /// Processes of the user; does not hold root.
    #[arg(long, value_name = "N", value_parser = values::limit_count)]
    #[arg(help_heading = "Limits [default: runcap's own]", hide_short_help = true)]
    limit_processes: Option<u64>,
    /// Open descriptors of each process.
    #[arg(long, value_name = "N", value_parser = values::limit_count)]
    #[arg(help_heading = "Limits [default: runcap's own]", hide_short_help = true)]
    limit_open_files: Option<u64>,
    /// Size of a file that is written.
    #[arg(long, value_name = "SIZE", value_parser = values::limit_size)]
    #[arg(help_heading = "Limits [default: runcap's own]", hide_short_help = true)]
    limit_file_size: Option<u64>,
    /// CPU seconds of each process.
    #[arg(long, value_name = "N", value_parser = values::limit_count)]
    #[arg(help_heading = "Limits [default: runcap's own]", hide_short_help = true)]
    limit_cpu: Option<u64>,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl Options {
    /// Whether runcap stands between the command and its output.
    pub(super) fn reads_output(&self) -> bool {
        self.max_output_size.is_some()
            || self.stdout_limit.is_some()
            || self.stderr_limit.is_some()
            || self.merge_stderr
            || self.json
    }

    /// What to run. A cap of `usize::MAX` is none.
    ///
    /// # Errors
    /// Options that exclude each other, or a stdin that cannot be had, in words.
    pub(super) fn spec(&self) -> Result<Spec, String> {
        self.check()?;
        let reads = self.reads_output();
        let leftovers = if reads { Leftovers::Kill } else { Leftovers::Leave };
        Ok(Spec {
            argv: self.command.clone(),
            cwd: self.cwd.clone(),
            env: Env { clear: self.clear_env, set: self.env.clone() },
            stdin: self.stdin()?,
            timeout: self.timeout,
            grace: self.grace.unwrap_or(DEFAULT_GRACE),
            outputs: if reads { Outputs::Read } else { Outputs::Inherit },
            stdout: self.limit(self.stdout_limit, Keep::Head)?,
            stderr: self.limit(self.stderr_limit, Keep::HeadTail)?,
            merge_stderr: self.merge_stderr,
            leftovers: self.leftovers.unwrap_or(leftovers),
            rlimits: Rlimits {
                memory: self.limit_memory,
                processes: self.limit_processes,
                open_files: self.limit_open_files,
                file_size: self.limit_file_size,
                cpu_seconds: self.limit_cpu,
                core: None,
            },
            new_session: false,
            die_with_parent: self.die_with_parent,
        })
    }

    /// Refuses what would be without effect.
    fn check(&self) -> Result<(), String> {
        let parts = [self.stdout_limit, self.stderr_limit];
        let has_cap = |part: &Part| part.cap.is_some();
        let any_cap = self.max_output_size.is_some()
            || self.json
            || parts.into_iter().flatten().any(|part| has_cap(&part));
        if !any_cap && (self.keep.is_some() || self.overflow.is_some()) {
            let message = "--keep and --overflow say what happens at a limit: ";
            return Err(message.to_owned() + "add --max-output-size");
        }
        let no_general_cap = self.max_output_size.is_none() && !self.json;
        for (part, name) in parts.iter().zip(["--stdout-limit", "--stderr-limit"]) {
            if no_general_cap && part.is_some_and(|part| !has_cap(&part)) {
                return Err(format!("{name} names no size: add one, such as 4M"));
            }
        }
        if self.merge_stderr && self.stderr_limit.is_some() {
            let message = "--merge-stderr sends everything to stdout: leave --stderr-limit out";
            return Err(message.to_owned());
        }
        Ok(())
    }

    fn limit(&self, part: Option<Part>, keep: Keep) -> Result<Limit, String> {
        let both = Part { cap: self.max_output_size, keep: self.keep, overflow: self.overflow };
        let part = part.unwrap_or_default().or(both);
        if part.keeps_what_stop_cannot() {
            return Err("a stream that is stopped keeps its head: leave keep or stop out".into());
        }
        // What is passed on costs no memory, so without a word about it there is no limit.
        let cap = if self.json { DEFAULT_CAP_BYTES } else { usize::MAX };
        Ok(part.limit(cap, keep))
    }

    fn stdin(&self) -> Result<Stdin, String> {
        match &self.stdin {
            _ if self.no_stdin => Ok(Stdin::Null),
            None => Ok(Stdin::Inherit),
            Some(path) => File::open(path)
                .map(Stdin::File)
                .map_err(|error| format!("cannot read --stdin {}: {error}", path.display())),
        }
    }
}
