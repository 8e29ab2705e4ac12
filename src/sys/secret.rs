//! Keeping a secret of this process from the commands it runs.

use std::ffi::CStr;
use std::os::unix::ffi::OsStringExt;

unsafe extern "C" {
    /// The variables of this process (environ(7)), ended by a null pointer.
    static mut environ: *mut *mut libc::c_char;
}

/// Takes the variable `name` out of the environment and returns its value. The place where exec
/// put it, which /proc/PID/environ shows for as long as the process lives (proc(5)), is zeroed.
///
/// Call it while this process has one thread.
pub(crate) fn take_variable(name: &str) -> Option<Vec<u8>> {
    let value = std::env::var_os(name)?.into_vec();
    let places = places_of(name);
    // SAFETY: with one thread nobody reads the variables meanwhile.
    unsafe { std::env::remove_var(name) };
    for (place, length) in places {
        // SAFETY: exactly the bytes of a string that exec put there, which is never given back
        // and which no entry leads to any more.
        unsafe { std::ptr::write_bytes(place, 0, length) };
    }
    Some(value)
}

/// Where the entries of `name` stand, and how long they are. The variables must not have been
/// changed since exec.
fn places_of(name: &str) -> Vec<(*mut u8, usize)> {
    let mut places = Vec::new();
    // SAFETY: with one thread nobody changes the variables meanwhile.
    let mut entry = unsafe { environ };
    while !entry.is_null() {
        // SAFETY: `entry` points into the array, whose end has not been passed.
        let text = unsafe { *entry };
        if text.is_null() {
            break;
        }
        // SAFETY: every entry is a NUL-terminated string.
        let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
        if bytes.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"=")) {
            places.push((text.cast(), bytes.len()));
        }
        // SAFETY: the entry was not null, so the array goes on.
        entry = unsafe { entry.add(1) };
    }
    places
}

/// Forbids other processes of the same user to read this one's memory, environment and descriptors
/// (PR_SET_DUMPABLE(2const)); root's CAP_SYS_PTRACE overrules it.
pub(crate) fn hide_memory() {
    let off: libc::c_ulong = 0;
    // SAFETY: PR_SET_DUMPABLE takes one number, and 0 is one it knows.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, off) };
}
