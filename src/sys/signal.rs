//! runcap's own signal dispositions and inherited descriptors, put in order once at start.

use std::io;

pub(crate) use libc::{SIGCONT as CONT, SIGKILL as KILL, SIGTERM as TERM};

/// Gives every signal that runcap inherited as ignored its default action back, except SIGPIPE,
/// and empties the signal mask.
///
/// An ignored signal stays ignored across exec, so a command would be deaf to it; an ignored
/// SIGCHLD would also lose every exit status (wait(2)). SIGPIPE stays ignored here, so that a
/// broken pipe is an error and no death; std gives the child the default back.
pub(crate) fn restore_defaults() {
    for signal in 1..=libc::SIGRTMAX() {
        if signal == libc::SIGPIPE {
            continue;
        }
        // SAFETY: an all-zero sigaction is a valid value of that plain C struct.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a null new action asks only; `action` is ours and outlives the call.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
        if asked == 0 && action.sa_sigaction == libc::SIG_IGN {
            // SAFETY: SIG_DFL runs no code of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset writes the whole set it is given.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: the set was initialised above; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut()) };
}

/// Makes a write past RLIMIT_FSIZE an error (EFBIG) instead of runcap's death.
///
/// A handler that does nothing, and not SIG_IGN: handlers are reset by exec, so the command still
/// dies of SIGXFSZ as it would under a shell (setrlimit(2), execve(2)).
pub(crate) fn survive_file_size_limit() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler touches nothing, so it is safe at any moment in any thread.
    unsafe { libc::signal(libc::SIGXFSZ, handler as libc::sighandler_t) };
}

/// Marks every descriptor from 3 up close-on-exec: what runcap inherited is not the command's.
///
/// # Errors
/// When neither close_range(2) nor /proc/self/fd can do it.
pub(crate) fn keep_descriptors_from_children() -> io::Result<()> {
    let (first, last): (libc::c_uint, libc::c_uint) = (3, libc::c_uint::MAX);
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: close_range with CLOEXEC closes nothing; it takes three plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 {
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
