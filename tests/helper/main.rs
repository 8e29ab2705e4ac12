//! A program for tests to run: what it does is its first argument.
#![allow(unreachable_pub, reason = "a program has no outside that could reach anything")]

mod check;
mod http;
mod kinds;
mod proc;
mod proxy;
mod raw;
mod session;
mod stock;
mod tree;

use std::fs::File;
use std::io::{BufWriter, Write, pipe, stdout};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let sub_command = args.next();
    let rest: Vec<String> = args.collect();
    match (sub_command.as_deref(), rest.as_slice()) {
        (Some("burn-cpu"), [ticks]) => burn_cpu(number(ticks)),
        (Some("touch-memory"), [mebibytes]) => touch_memory(number(mebibytes)),
        (Some("produce"), [block, blocks]) => produce(number(block), number(blocks)),
        (Some("produce-lines"), [text, bytes]) => produce_lines(text, number(bytes)),
        (Some("both-streams"), [word, lines]) => both_streams(word, number(lines)),
        (Some("now"), []) => {
            let since = std::time::UNIX_EPOCH.elapsed().expect("it is past");
            println!("{}", since.as_nanos());
        }
        (Some("repeat"), [text, count]) => repeat(text, count.parse().expect("a number")),
        // What follows tells it apart from others.
        (Some("detached-sleep"), [seconds, ..]) => detached_sleep(number(seconds)),
        (Some("sleep-in-group-of-parent"), [seconds]) => {
            let parent = rustix::process::getppid();
            let group = rustix::process::getpgid(parent).expect("the parent lives");
            rustix::process::setpgid(None, Some(group)).expect("a group of this session");
            std::thread::sleep(Duration::from_secs(number(seconds)));
        }
        (Some("small-pipes"), [program, args @ ..]) => return small_pipes(program, args),
        (Some("relay"), [deadline_ms, _mark]) => kinds::relay(deadline_ms, false),
        (Some("relay-away"), [deadline_ms, _mark]) => kinds::relay(deadline_ms, true),
        (Some("leave-group"), [sleep]) => kinds::leave_group(sleep),
        (Some("at-once"), [count, script]) => {
            kinds::at_once(count.parse().expect("a number"), script);
        }
        (Some("on-terminal"), [terminal, program, args @ ..]) => {
            kinds::on_terminal(terminal, program, args);
        }
        (Some("runcap-without"), [list, args @ ..]) => kinds::runcap_without(list, args),
        (Some("delay-proxy"), [delay_ms, target, address]) => {
            proxy::delay(number(delay_ms), target, address);
        }
        (Some("raw-pipe"), [program, args @ .., address]) => {
            raw::serve_pipe(program, args, address);
        }
        (Some("raw-http"), [bytes, piece, address]) => {
            let number = |text: &String| text.parse().expect("a number");
            raw::serve(number(bytes), number(piece), address);
        }
        (Some("raw-ranges"), [path, address]) => raw::serve_ranges(path, address),
        (Some("http-routes"), arguments) => http::routes(arguments),
        (Some("stock-server"), []) => stock::serve(),
        (Some(part), rest) if part.starts_with("tree-") || part == "hop" => {
            tree_part(part, rest);
        }
        other => panic!("no such helper: {other:?}"),
    }
    ExitCode::SUCCESS
}

/// A part of a random tree, or the observer of one.
fn tree_part(part: &str, rest: &[String]) {
    let helper = std::env::args().next().expect("a path");
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let index = |id| usize::try_from(number(id)).expect("a small number");
    match (part, &rest[..]) {
        // One process of a random tree.
        ("tree-node", [seed, directory, runcap, id]) => {
            let place = tree::Place { helper: &helper, directory, runcap };
            tree::become_node(number(seed), &place, index(id));
        }
        // A parent of such a process that ends at once.
        ("tree-between", [seed, directory, runcap, id]) => {
            let place = tree::Place { helper: &helper, directory, runcap };
            tree::become_intermediate(number(seed), &place, index(id));
        }
        // A process that no command started.
        ("tree-bystander", []) => std::thread::sleep(Duration::from_secs(60)),
        // A process on the run: it starts the next in a session of its own and ends, `hops` times.
        ("hop", [hops, pause_ms]) => {
            // The first one may lead a session already.
            let _ = rustix::process::setsid();
            let (left, pause) = (number(hops) - 1, Duration::from_millis(number(pause_ms)));
            if left > 0 {
                let next = ["hop", &left.to_string(), pause_ms].map(str::to_owned);
                drop(Command::new(&helper).args(next).spawn().expect("the helper starts"));
            }
            std::thread::sleep(pause);
        }
        // An observer: runs the session of a seed, prints a line a problem, then the count.
        ("tree-session", [seed, runcap, rest @ ..]) => {
            let report = session::run(number(seed), runcap, &helper, *rest == ["verbose"]);
            report.problems.iter().for_each(|problem| println!("{problem}"));
            println!("trees {}", report.trees);
        }
        other => panic!("no such helper: {other:?}"),
    }
}

/// Writes so many blocks of the same bytes, each in one write(2).
fn produce(block_bytes: u64, blocks: u64) {
    produce_block(&vec![b'x'; usize::try_from(block_bytes).expect("it fits")], blocks);
}

fn produce_block(block: &[u8], blocks: u64) {
    let mut out = File::from(stdout().as_fd().try_clone_to_owned().expect("a descriptor"));
    for _ in 0..blocks {
        out.write_all(block).expect("stdout can be written");
    }
}

/// Writes `text` over and over, in blocks of about 64 KiB, until it is so many bytes or a few more.
fn produce_lines(text: &str, bytes: u64) {
    let block = text.repeat((64 << 10) / text.len());
    produce_block(block.as_bytes(), bytes.div_ceil(block.len() as u64));
}

/// Writes numbered lines to both streams in turn, each line cut in two.
fn both_streams(word: &str, lines: u64) {
    let mut streams =
        [stdout().as_fd().try_clone_to_owned(), std::io::stderr().as_fd().try_clone_to_owned()]
            .map(|stream| File::from(stream.expect("a descriptor")));
    for line in 0..lines {
        for (index, stream) in streams.iter_mut().enumerate() {
            let text = format!("{index} {word} {line}\n");
            let (start, end) = text.as_bytes().split_at(text.len() / 2);
            for half in [start, end] {
                stream.write_all(half).expect("it can be written");
            }
        }
    }
}

/// Prints `text` so many times.
fn repeat(text: &str, count: usize) {
    let mut out = BufWriter::new(stdout().lock());
    for _ in 0..count {
        out.write_all(text.as_bytes()).expect("stdout can be written");
    }
    out.flush().expect("stdout can be written");
}

/// Leaves the process group and the session, then holds its descriptors for a while.
fn detached_sleep(seconds: u64) {
    rustix::process::setsid().expect("not the leader of a group");
    std::thread::sleep(Duration::from_secs(seconds));
}

/// Runs a program while this user has so many pipes that a new one is small.
fn small_pipes(program: &str, args: &[String]) -> ExitCode {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Nofile).maximum;
    let most = Rlimit { current: hard, maximum: hard };
    setrlimit(Resource::Nofile, most).expect("up to the hard limit");
    let mut held = Vec::new();
    let pages = std::fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft").expect("a number");
    let pages: usize = pages.trim().parse().expect("a number");
    // A pipe has 16 pages, as long as there are any.
    let size = |pipe: &std::io::PipeReader| rustix::pipe::fcntl_getpipe_size(pipe).expect("a pipe");
    while held.last().is_none_or(|(last, _)| size(last) > 8192) {
        assert!(held.len() <= pages / 16 + 1, "pipes do not get smaller");
        held.push(pipe().expect("another pipe"));
    }
    let status = Command::new(program).args(args).status().expect("the program starts");
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(u8::try_from(code.expect("it ended")).expect("a small number"))
}

fn number(argument: &str) -> u64 {
    argument.parse().expect("a number")
}

/// Uses this many hundredths of a second of CPU time.
fn burn_cpu(ticks: u64) {
    let used = || {
        let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc is mounted");
        let after_name = stat.rsplit(')').next().expect("the name ends");
        // proc_pid_stat(5): utime and stime are the 12th and 13th field after the name.
        let times = after_name.split_whitespace().skip(11).take(2);
        times.map(|time| time.parse::<u64>().expect("a number")).sum::<u64>()
    };
    while used() < ticks {}
}

/// Holds this many MiB of memory for a moment.
fn touch_memory(mebibytes: u64) {
    let bytes = usize::try_from(mebibytes << 20).expect("it fits");
    std::hint::black_box(vec![1_u8; bytes]);
}
