//! Keeping a secret of this process from the commands it runs.

use std::ffi::CStr;
use std::os::unix::ffi::OsStringExt;

unsafe extern "C" {
    /// The variables of this process (environ(7)), ended by a null pointer.
    static mut environ: *mut *mut libc::c_char;
}

/// Takes the variable `name` out of the environment and returns its value. The place where exec
/// put it, which /proc/PID/environ shows for as long as the process lives (proc(5)), is zeroed; the
/// name stays there.
///
/// Call it while this process has one thread.
pub(crate) fn take_variable(name: &str) -> Option<Vec<u8>> {
    let value = std::env::var_os(name)?.into_vec();
    for (place, length) in places_of(name) {
        // SAFETY: exactly the bytes of a value that the variables still hold, so it is not given
        // back yet; with one thread nobody reads it meanwhile.
        unsafe { std::ptr::write_bytes(place, 0, length) };
    }
    // SAFETY: with one thread nobody reads the variables meanwhile.
    unsafe { std::env::remove_var(name) };
    Some(value)
}

/// Where the values of `name` stand, and how long they are.
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
        let value = bytes.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        if let Some(value) = value {
            // SAFETY: the value is the end of the string.
            let start = unsafe { text.add(bytes.len() - value.len()) };
            places.push((start.cast(), value.len()));
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
