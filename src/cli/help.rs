//! What runcap says about itself: help of two lengths, and tables of what it returns.

use std::io::{self, Write};

use clap::{Arg, ArgAction, Args, Command, CommandFactory, ValueEnum};

use super::Cli;

#[derive(Debug, Args)]
pub(super) struct Help {
    /// What to print, without it the modes.
    #[arg(value_enum)]
    topic: Option<Topic>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Topic {
    ExitCodes,
    Json,
}

/// The whole command line. Its help shows what every day needs, and `whole` help everything.
///
/// clap gives an option three lines in its own long help, and then no mode's fits a screen. So
/// there is one layout here, of one line an option, and what `-h` leaves out is hidden in it.
pub(super) fn command(whole: bool) -> Command {
    in_one_layout(Cli::command(), whole)
}

fn in_one_layout(command: Command, whole: bool) -> Command {
    let help = Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::HelpShort)
        .help("Print help; --help prints all of it");
    let command = command.disable_help_flag(true).arg(help);
    let command = command.mut_subcommands(|mode| in_one_layout(mode, whole));
    if !whole {
        return command;
    }
    let after = command.get_after_long_help().cloned();
    let command = command.mut_args(|option| option.hide_short_help(false));
    command.after_help(after.unwrap_or_default())
}

/// Prints one topic.
///
/// # Errors
/// As the writer.
pub(super) fn print(help: &Help, out: &mut dyn Write) -> io::Result<()> {
    match help.topic {
        None => write!(out, "{}", command(true).render_help())?,
        Some(Topic::ExitCodes) => {
            print_rows(out, "Exit codes of runcap run:", &EXIT_CODES)?;
            writeln!(out)?;
            print_rows(out, "Exit codes of runcap json:", &JSON_EXIT_CODES)?;
            writeln!(out)?;
            print_rows(out, "Exit codes of runcap serve:", &SERVE_EXIT_CODES)?;
        }
        Some(Topic::Json) => {
            print_rows(out, "Request of runcap json (no other field is taken):", &REQUEST)?;
            writeln!(out)?;
            print_rows(out, "Response of runcap json and runcap run --json:", &RESPONSE)?;
        }
    }
    out.flush()
}

/// A name and what it means.
type Row = (&'static str, &'static str);

fn print_rows(out: &mut dyn Write, title: &str, rows: &[Row]) -> io::Result<()> {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    writeln!(out, "{title}")?;
    rows.iter().try_for_each(|(name, meaning)| writeln!(out, "  {name:<width$}  {meaning}"))
}

const EXIT_CODES: [Row; 7] = [
    ("0 to 255", "the command's own"),
    ("128+n", "it died of signal n, or signal n told runcap to end; 141: nobody reads stdout"),
    ("123", "stopped at its output limit (--overflow stop)"),
    ("124", "timed out, also where KILL was needed"),
    ("125", "runcap failed or was called wrongly, or the working directory cannot be entered"),
    ("126", "the command could not be executed"),
    ("127", "the command was not found"),
];

const JSON_EXIT_CODES: [Row; 4] = [
    ("0", "every request was carried out, whatever the commands did"),
    ("1", "a request was refused, or there was none"),
    ("125", "stdin or stdout failed, or runcap was called wrongly"),
    ("128+n", "signal n told runcap to end"),
];

const SERVE_EXIT_CODES: [Row; 3] = [
    ("0", "told to end, or idle for --idle-exit, and every request that had come was answered"),
    ("125", "it could not begin, or was called wrongly"),
    ("128+n", "signal n told it to end, and some requests could not be answered in time"),
];

const REQUEST: [Row; 21] = [
    ("command", "required: an array is executed as it is, a string is given to /bin/sh -c"),
    ("cwd", "directory of the command [default: runcap's own]"),
    ("working_dir", "the same"),
    ("env", "object of strings, set over the inherited variables"),
    ("clear_env", "true: env is all there is [default: false]"),
    ("stdin", "text for the command's stdin [default: nothing]"),
    ("stdin_base64", "the same, for bytes that are no text"),
    ("timeout", "seconds, or \"1m30s\" [default: --default-timeout]"),
    ("grace", "from TERM to KILL; 0 is KILL at once [default: 0.5]"),
    ("max_output_size", "bytes of each stream, or \"4M\"; 1 to 256M [default: 10M]"),
    ("keep", "head, tail, head+tail [default: stdout head, stderr head+tail]"),
    ("overflow", "discard: drop and count the rest; stop: KILL [default: discard]"),
    ("stdout_limit", "object of max_output_size, keep, overflow for stdout alone"),
    ("stderr_limit", "the same for stderr"),
    ("merge_stderr", "true: both streams are stdout, in true order [default: false]"),
    ("capture", "false: keep nothing, count everything [default: true]"),
    ("encoding", "utf-8 (what is no text is replaced), base64 (exact) [default: utf-8]"),
    ("leftovers", "kill, leave: processes that outlive the command [default: kill]"),
    ("limits", "object of memory, processes, open_files, file_size, cpu_seconds, core"),
    ("stream", "true: output as events while the command runs [default: false]"),
    ("tag", "text that comes back in the response"),
];

const RESPONSE: [Row; 20] = [
    ("status", "how it ended: exited, signaled, timed_out, output_limit, canceled,"),
    ("", "failed_to_start or bad_request"),
    ("exit_code", "a number when exited, else null"),
    ("signal, signal_name", "what the command died of"),
    ("reason", "what ended the command, with the value that decided"),
    ("stdout, stderr", "what was kept; with base64: stdout_base64, stderr_base64"),
    ("stdout_bytes, stderr_bytes", "bytes received"),
    ("stdout_truncated, …", "true: bytes were dropped"),
    ("stdout_dropped_bytes, …", "how many"),
    ("stdout_gap_at, …", "how many kept bytes stand before the dropped ones"),
    ("stdout_incomplete, …", "true: the stream's end was not seen"),
    ("stdout_replaced, …", "true: U+FFFD stands for what was no text"),
    ("left_running", "true: processes of the command live on"),
    ("killed_processes", "how many besides the first were killed"),
    ("cap_lowered_to", "bytes of each stream that the memory limit allowed"),
    ("start_time, end_time", "RFC 3339, UTC"),
    ("duration, cpu_seconds", "seconds"),
    ("max_rss_bytes", "largest resident set of the command"),
    ("error", "code, message, and field or offset, when nothing was started"),
    ("tag", "the request's"),
];
