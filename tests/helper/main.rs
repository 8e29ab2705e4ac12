//! A program for tests to run: what it does is its first argument.
#![allow(unreachable_pub, reason = "a program has no outside that could reach anything")]

mod check;
mod kinds;
mod proc;
mod session;
mod tree;

use std::ffi::OsString;
use std::process::ExitCode;

use runcap::feature::{Feature, take_away};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = args[1..].iter().map(String::as_str).collect();
    match words[..] {
        // runcap without some of the kernel's newer interfaces.
        ["runcap-without", features, ..] => {
            features.split(',').for_each(|name| take_away(feature(name)));
            let rest = words[2..].iter().map(OsString::from);
            return ExitCode::from(runcap::cli::main(
                [OsString::from("runcap")].into_iter().chain(rest),
            ));
        }
        ["relay", deadline_ms, _mark] => kinds::relay(deadline_ms, false),
        ["relay-away", deadline_ms, _mark] => kinds::relay(deadline_ms, true),
        ["leave-group", sleep] => kinds::leave_group(sleep),
        ["at-once", count, script] => kinds::at_once(count.parse().expect("a number"), script),
        // One process of a random tree.
        ["tree-node", seed, directory, runcap, id] => {
            let place = tree::Place { helper: &args[0], directory, runcap };
            tree::become_node(number(seed), &place, number(id) as usize);
        }
        // A parent of such a process that ends at once.
        ["tree-between", seed, directory, runcap, id] => {
            let place = tree::Place { helper: &args[0], directory, runcap };
            tree::become_intermediate(number(seed), &place, number(id) as usize);
        }
        // A process that no command started.
        ["tree-bystander"] => std::thread::sleep(std::time::Duration::from_secs(60)),
        // A process on the run: it starts the next in a session of its own and ends, `hops` times.
        ["hop", hops, pause_ms] => {
            let _ = rustix::process::setsid();
            let (left, pause) =
                (number(hops) - 1, std::time::Duration::from_millis(number(pause_ms)));
            if left > 0 {
                let next = [String::from("hop"), left.to_string(), pause_ms.to_owned()];
                let next = std::process::Command::new(&args[0]).args(next).spawn();
                drop(next.expect("the helper starts"));
            }
            std::thread::sleep(pause);
        }
        // An observer: runs the session of a seed, prints a line a problem, then the count.
        ["tree-session", seed, runcap, ref rest @ ..] => {
            let report = session::run(number(seed), runcap, &args[0], rest == ["verbose"]);
            report.problems.iter().for_each(|problem| println!("{problem}"));
            println!("trees {}", report.trees);
        }
        _ => panic!("no such helper: {words:?}"),
    }
    ExitCode::SUCCESS
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn feature(name: &str) -> Feature {
    match name {
        "pidfd" => Feature::Pidfd,
        "splice" => Feature::Splice,
        "children" => Feature::ChildrenLists,
        "close_range" => Feature::CloseRange,
        "mark" => Feature::Mark,
        other => panic!("no such feature: {other}"),
    }
}
