//! runcap's own signal dispositions and inherited descriptors, put in order once at start.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::feature::{Feature, allowed};
use super::poll::Event;

pub(crate) use libc::{
    SIGCONT as CONT, SIGKILL as KILL, SIGPIPE as PIPE, SIGTERM as TERM, SIGTSTP as TSTP,
    SIGTTIN as TTIN, SIGTTOU as TTOU,
};

/// Signals that end a program, and that a caller may have runcap ignore (nohup, a shell's
/// background job).
const ENDING: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Sees to it that no signal which runcap inherited as ignored is ignored in its children, and
/// empties the signal mask.
///
/// An ignored signal stays ignored across exec, so a command would be deaf to it; a handler does
/// not. So runcap goes on ignoring HUP, INT, QUIT and TERM through a handler that does nothing, and
/// takes the default back for the others: an ignored SIGCHLD would lose every exit status
/// (wait(2)). SIGPIPE stays ignored here, so that a broken pipe is an error and no death; std
/// gives the child the default back.
///
/// With `pass_on` HUP, INT and QUIT stay ignored in children too, as under nohup(1).
pub(crate) fn restore_defaults(pass_on: bool) {
    let passed_on = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];
    for signal in 1..=libc::SIGRTMAX() {
        let stays = signal == libc::SIGPIPE || pass_on && passed_on.contains(&signal);
        if !stays && is_ignored(signal) {
            let handler = if ENDING.contains(&signal) { nothing() } else { libc::SIG_DFL };
            // SAFETY: SIG_DFL runs no code of ours, and `nothing` touches nothing.
            unsafe { libc::signal(signal, handler) };
        }
    }
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset writes the whole set it is given.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: the set was initialised above; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut()) };
}

fn action(signal: libc::c_int) -> Option<libc::sighandler_t> {
    // SAFETY: an all-zero sigaction is a valid value of that plain C struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action asks only; `action` is ours and outlives the call.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    (asked == 0).then_some(action.sa_sigaction)
}

fn is_ignored(signal: libc::c_int) -> bool {
    action(signal) == Some(libc::SIG_IGN)
}

/// A handler that does nothing: exec resets it to the default, which SIG_IGN is not.
fn nothing() -> libc::sighandler_t {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    handler as libc::sighandler_t
}

/// What the handlers notify: descriptors of events that live as long as the process, or -1.
static STOP: AtomicI32 = AtomicI32::new(-1);
static KILL_NOW: AtomicI32 = AtomicI32::new(-1);
static CHILDREN: AtomicI32 = AtomicI32::new(-1);

/// The first signal that told runcap to end, or 0.
static TOLD: AtomicI32 = AtomicI32::new(0);

/// Takes the signals that end a program: at the first one `stop` becomes readable, at the second
/// `kill`, and a third ends this process. One that runcap's caller had it ignore stays ignored.
pub(crate) fn watch_ending(stop: &'static Event, kill: &'static Event) {
    extern "C" fn told(signal: libc::c_int) {
        if !tell_to_end(signal) {
            notify(&KILL_NOW);
            // An answer that nobody reads may hold runcap up; the next signal ends it all the same.
            for signal in ENDING {
                // SAFETY: signal(2) may be called in a handler, and SIG_DFL runs no code of ours.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
        }
    }
    STOP.store(stop.as_fd().as_raw_fd(), Ordering::Release);
    KILL_NOW.store(kill.as_fd().as_raw_fd(), Ordering::Release);
    let handler: extern "C" fn(libc::c_int) = told;
    for signal in ENDING {
        if action(signal) == Some(libc::SIG_DFL) {
            handle(signal, handler as libc::sighandler_t);
        }
    }
}

/// Does what the first ending signal does, as if `signal` had come; false if one had.
pub(crate) fn tell_to_end(signal: i32) -> bool {
    let first = TOLD.compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if first {
        notify(&STOP);
    }
    first
}

/// The signal that told runcap to end, if one did.
pub(crate) fn told_to_end() -> Option<i32> {
    Some(TOLD.load(Ordering::Acquire)).filter(|signal| *signal != 0)
}

/// What the handlers of the terminal's signals notify, or -1.
static STOP_KEY: AtomicI32 = AtomicI32::new(-1);

/// Whether this process was continued since it last stopped itself.
static CONTINUED: AtomicBool = AtomicBool::new(false);

/// Takes TSTP, which a terminal sends for Ctrl-Z: it makes `event` readable.
pub(crate) fn watch_stop_key(event: &'static Event) {
    extern "C" fn continued(_: libc::c_int) {
        CONTINUED.store(true, Ordering::Release);
    }
    STOP_KEY.store(event.as_fd().as_raw_fd(), Ordering::Release);
    let handler: extern "C" fn(libc::c_int) = continued;
    handle(libc::SIGCONT, handler as libc::sighandler_t);
    handle_stop_key();
}

fn handle_stop_key() {
    extern "C" fn stop_key(_: libc::c_int) {
        notify(&STOP_KEY);
    }
    let handler: extern "C" fn(libc::c_int) = stop_key;
    handle(libc::SIGTSTP, handler as libc::sighandler_t);
}

/// Stops this process's group, as the terminal would for Ctrl-Z, and returns once this process is
/// continued. False when nobody would continue it, so that the kernel did not stop it: the group
/// is orphaned (setpgid(2)).
pub(crate) fn stop_own_group() -> bool {
    CONTINUED.store(false, Ordering::Release);
    // SAFETY: SIG_DFL runs no code of ours.
    unsafe { libc::signal(libc::SIGTSTP, libc::SIG_DFL) };
    super::process::signal_own_group(libc::SIGTSTP);
    handle_stop_key();
    CONTINUED.load(Ordering::Acquire)
}

/// Makes `event` readable whenever a child ends or stops.
pub(crate) fn watch_children(event: &'static Event) {
    extern "C" fn child_ended(_: libc::c_int) {
        notify(&CHILDREN);
    }
    CHILDREN.store(event.as_fd().as_raw_fd(), Ordering::Release);
    let handler: extern "C" fn(libc::c_int) = child_ended;
    handle(libc::SIGCHLD, handler as libc::sighandler_t);
}

/// Installs a handler that lets interrupted calls go on.
fn handle(signal: libc::c_int, handler: libc::sighandler_t) {
    // SAFETY: an all-zero sigaction is a valid value of that plain C struct: no flag, empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handlers of this file make one write(2) and touch atomics only, which
    // signal-safety(7) allows at any moment; the old action is not asked for.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

/// Makes an event readable from within a handler, leaving errno as it was.
fn notify(event: &AtomicI32) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: __errno_location takes nothing and returns this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is valid as long as the thread lives.
    let saved = unsafe { *errno };
    // SAFETY: eight bytes of ours, to a descriptor of ours or to -1, which is EBADF.
    unsafe { libc::write(event.load(Ordering::Acquire), one.as_ptr().cast(), one.len()) };
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// Makes a write past RLIMIT_FSIZE an error (EFBIG) instead of runcap's death.
///
/// A handler that does nothing, and not SIG_IGN: handlers are reset by exec, so the command still
/// dies of SIGXFSZ as it would under a shell (setrlimit(2), execve(2)).
pub(crate) fn survive_file_size_limit() {
    // SAFETY: the handler touches nothing, so it is safe at any moment in any thread.
    unsafe { libc::signal(libc::SIGXFSZ, nothing()) };
}

/// Marks every descriptor from 3 up close-on-exec: what runcap inherited is not the command's.
///
/// # Errors
/// When neither close_range(2) nor /proc/self/fd can do it.
pub(crate) fn keep_descriptors_from_children() -> io::Result<()> {
    if close_on_exec_from(3) {
        return Ok(());
    }
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(fd) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if fd > 2 {
            // SAFETY: setting a descriptor flag closes nothing; a number closed meanwhile (the
            // directory's own) is EBADF, which needs no action.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Marks every descriptor from `first` up close-on-exec through close_range(2); false where the
/// kernel cannot.
pub(crate) fn close_on_exec_from(first: libc::c_uint) -> bool {
    let (last, flags) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: close_range with CLOEXEC closes nothing; it takes three plain numbers.
    let set = || unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } == 0;
    allowed(Feature::CloseRange) && set()
}

/// The name of `signal` as `kill -l` lists it (`SIGKILL`); real-time ones as `SIGRTMIN+n`.
pub(crate) fn name(signal: i32) -> String {
    const NAMES: [(i32, &str); 31] = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGSTKFLT, "SIGSTKFLT"),
        (libc::SIGCHLD, "SIGCHLD"),
        (libc::SIGCONT, "SIGCONT"),
        (libc::SIGSTOP, "SIGSTOP"),
        (libc::SIGTSTP, "SIGTSTP"),
        (libc::SIGTTIN, "SIGTTIN"),
        (libc::SIGTTOU, "SIGTTOU"),
        (libc::SIGURG, "SIGURG"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
        (libc::SIGVTALRM, "SIGVTALRM"),
        (libc::SIGPROF, "SIGPROF"),
        (libc::SIGWINCH, "SIGWINCH"),
        (libc::SIGIO, "SIGIO"),
        (libc::SIGPWR, "SIGPWR"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    match NAMES.iter().find(|(number, _)| *number == signal) {
        Some((_, name)) => (*name).to_owned(),
        // The kernel's first real-time signal is 32; libc keeps the first two or three for itself,
        // so a death by one of those is named by number.
        None if signal >= libc::SIGRTMIN() => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()),
        None => format!("signal {signal}"),
    }
}
