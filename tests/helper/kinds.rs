//! Sub-commands that tests of process handling run: odd kinds of commands, and runcap in odd
//! circumstances.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use runcap::capture::Capture;
use runcap::feature::{Feature, take_away};
use runcap::run::{Concurrency, Control, Inheritance, Sinks, prepare_process};
use runcap::spec::{Env, Keep, Limit, Overflow, Spec};

/// Runs `runcap ARGS` in this process, which does without the interfaces of LIST (separated by
/// commas).
pub(crate) fn runcap_without(list: &str, args: &[String]) -> ! {
    for name in list.split(',') {
        take_away(match name {
            "pidfd" => Feature::Pidfd,
            "close_range" => Feature::CloseRange,
            "splice" => Feature::Splice,
            "children" => Feature::ChildrenLists,
            "mark" => Feature::Mark,
            "openat2" => Feature::Openat2,
            other => panic!("no such interface: {other}"),
        });
    }
    let args = ["runcap"].into_iter().chain(args.iter().map(String::as_str)).map(OsString::from);
    std::process::exit(i32::from(runcap::cli::main(args)))
}

/// Starts itself anew and exits, again and again until `deadline_ms` (since 1970): at any moment
/// one process, never the same one. With `away` each leads a group of its own.
#[expect(clippy::zombie_processes, reason = "each is left alone, that is the point")]
pub(crate) fn relay(deadline_ms: &str, away: bool) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    if now < Duration::from_millis(deadline_ms.parse().expect("a number")) {
        let mut next = Command::new(std::env::current_exe().expect("a path"));
        next.args(std::env::args().skip(1));
        if away {
            next.process_group(0);
        }
        next.spawn().expect("a process");
    }
}

/// Moves into the group of a child of its own, and sleeps.
pub(crate) fn leave_group(sleep: &str) {
    let mut sleeper = Command::new("/bin/sh");
    let sleeper = sleeper.args(["-c", &format!("exec {sleep}")]).process_group(0);
    let mut sleeper = sleeper.spawn().expect("a process");
    let group = rustix::process::Pid::from_child(&sleeper);
    rustix::process::setpgid(None, Some(group)).expect("a group of this session");
    sleeper.wait().expect("it is a child");
    thread::sleep(Duration::from_secs(1000));
}

/// Becomes PROGRAM as the leader of a session whose controlling terminal is the one at the path
/// TERMINAL.
pub(crate) fn on_terminal(terminal: &str, program: &str, args: &[String]) -> ! {
    rustix::process::setsid().expect("not the leader of a group");
    // The first terminal that a leader without one opens becomes the session's (tty_ioctl(4)).
    let terminal = File::options().read(true).write(true).open(terminal).expect("a terminal");
    rustix::stdio::dup2_stdin(&terminal).expect("0 can be replaced");
    rustix::stdio::dup2_stdout(&terminal).expect("1 can be replaced");
    rustix::stdio::dup2_stderr(&terminal).expect("2 can be replaced");
    drop(terminal);
    panic!("{program}: {}", Command::new(program).args(args).exec());
}

/// Runs SCRIPT `count` times at once through the library, each with its number in `$I`, and
/// prints `NUMBER CODE MILLISECONDS TEXT` a line as each ends; TEXT is its output on one line.
pub(crate) fn at_once(count: usize, script: &str) {
    prepare_process(Concurrency::Many, Inheritance::Withheld)
        .expect("this process can run commands");
    thread::scope(|scope| {
        for number in 0..count {
            scope.spawn(move || {
                let spec = spec_of(number, script);
                let mut stdout = Capture::new(spec.stdout.cap, Keep::Head).expect("memory");
                let mut stderr = Capture::new(spec.stderr.cap, Keep::Head).expect("memory");
                let sinks = Sinks { stdout: &mut stdout, stderr: &mut stderr };
                let control = Control::none();
                let outcome = runcap::run::run(&spec, sinks, control).expect("it starts");
                let text = String::from_utf8_lossy(stdout.head()).replace('\n', " ");
                let millis = outcome.duration.as_millis();
                println!("{number} {:?} {millis} {text}", outcome.leader);
            });
        }
    });
}

fn spec_of(number: usize, script: &str) -> Spec {
    let limit = Limit { cap: 1 << 16, keep: Keep::Head, overflow: Overflow::Discard };
    let argv = ["/bin/sh", "-c", script].map(OsString::from).to_vec();
    Spec {
        env: Env { clear: false, set: vec![("I".into(), number.to_string().into())] },
        ..Spec::new(argv, Some(Duration::from_secs(30)), limit)
    }
}
