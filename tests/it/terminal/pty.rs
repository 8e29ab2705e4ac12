//! A terminal with a program on it: what a person would type and see.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize};

use crate::support::{helper, wait_until};

/// What Ctrl-C sends.
pub const CTRL_C: &str = "\x03";
/// What Ctrl-Z sends.
pub const CTRL_Z: &str = "\x1a";
/// What Ctrl-\ sends.
pub const CTRL_BACKSLASH: &str = "\x1c";

/// A terminal, and the leader of its session, which is killed when this is dropped.
pub struct Pty {
    /// The person's end.
    keyboard: File,
    /// All that was shown so far.
    screen: Arc<Mutex<Vec<u8>>>,
    /// Collects it, as long as anybody has the terminal open.
    display: JoinHandle<()>,
    leader: Child,
}

impl Pty {
    /// Starts a program as the leader of a session on a new terminal.
    pub fn start(program: &str, args: &[&str]) -> Pty {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keyboard = openpt(flags).expect("a terminal");
        grantpt(&keyboard).expect("it can be used");
        unlockpt(&keyboard).expect("it can be unlocked");
        let path = ptsname(&keyboard, vec![]).expect("it has a name");
        let path = path.to_str().expect("the name is text");
        let mut command = Command::new(helper());
        command.args(["on-terminal", path, program]).args(args);
        command.env("RUNCAP", env!("CARGO_BIN_EXE_runcap")).env("PS1", "ready> ");
        // What readline would add to the screen.
        command.env("TERM", "dumb");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let leader = command.spawn().expect("the helper starts");
        let screen = Arc::new(Mutex::new(vec![]));
        let keyboard = File::from(keyboard);
        let display = keyboard.try_clone().expect("a descriptor");
        let shown = Arc::clone(&screen);
        let display = std::thread::spawn(move || show(display, &shown));
        Pty { keyboard, screen, display, leader }
    }

    /// Starts a shell on the script; `$RUNCAP` is the program. It has no job control.
    pub fn sh(script: &str) -> Pty {
        Pty::start("/bin/sh", &["-c", script])
    }

    /// Starts a shell that waits to be typed to, and controls jobs.
    pub fn interactive() -> Pty {
        let shell = Pty::start("bash", &["--norc", "--noprofile", "-i"]);
        shell.wait_for("ready> ");
        shell
    }

    /// Presses keys.
    pub fn press(&self, keys: &str) {
        (&self.keyboard).write_all(keys.as_bytes()).expect("a terminal takes a few bytes");
    }

    /// Types a line.
    pub fn enter(&self, line: &str) {
        self.press(&format!("{line}\n"));
    }

    /// All that was shown so far, what was typed included.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("nobody panics with it")).into_owned()
    }

    /// Waits until `text` is shown. What is typed is shown too, so `text` must differ from it.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        wait_until(&format!("{text:?} is shown; {}", self.state()), || self.shown().contains(text));
    }

    /// The foreground group.
    pub fn foreground(&self) -> u32 {
        let group = tcgetpgrp(&self.keyboard).expect("the session lives");
        u32::try_from(group.as_raw_nonzero().get()).expect("a group")
    }

    /// The leader of the session.
    pub fn leader(&self) -> u32 {
        self.leader.id()
    }

    /// The settings of the terminal.
    pub fn settings(&self) -> Termios {
        tcgetattr(&self.keyboard).expect("it is a terminal")
    }

    /// Makes the window so many columns wide.
    pub fn resize(&self, columns: u16) {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).expect("it is a terminal");
    }

    /// Whether what the leader has for its stdin, which it shares with what it starts, does not
    /// block.
    pub fn is_nonblocking(&self) -> bool {
        let path = format!("/proc/{}/fdinfo/0", self.leader());
        let text = std::fs::read_to_string(path).expect("the leader lives");
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags");
        u32::from_str_radix(flags.trim(), 8).expect("an octal number") & 0o4000 != 0
    }

    /// Waits for the end of the leader and of all that has the terminal open; returns the leader's
    /// exit code, 128+n for signal n. All that was shown can then be looked at.
    pub fn end(&mut self) -> i32 {
        let mut status = None;
        wait_until("the program ends", || {
            status = self.leader.try_wait().expect("it is a child");
            status.is_some()
        });
        wait_until("nobody has the terminal any more", || self.display.is_finished());
        let status = status.expect("it has ended");
        status.code().or(status.signal().map(|signal| 128 + signal)).expect("it has ended")
    }

    fn state(&self) -> String {
        format!("so far {:?}", self.shown())
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the terminal shows:\n{}", self.shown());
        }
        // The kernel hangs up the session with its leader.
        let _ = self.leader.kill();
        let _ = self.leader.wait();
    }
}

/// Collects what is shown until nobody is left who could write.
fn show(mut display: File, screen: &Mutex<Vec<u8>>) {
    let mut block = [0; 4096];
    // EIO: every other end is closed.
    while let Ok(count) = display.read(&mut block) {
        screen.lock().expect("nobody panics with it").extend_from_slice(&block[..count]);
    }
}
