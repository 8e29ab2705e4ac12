//! What a command is started with: its arguments and its variables, read one value at a time.

use std::collections::BTreeSet;
use std::ffi::OsString;

use super::value::{Scalar, string};

/// Bytes that arguments and environment of one request may take, each string with its terminator
/// and its pointer: the kernel takes no more than three quarters of its default 8 MiB stack
/// (execve(2), "Limits on size of arguments and environment").
pub const ARGUMENTS_MAX_BYTES: usize = 6 << 20;

const TWICE: &str = "a variable is given twice";

/// What was read so far.
#[derive(Default)]
pub(super) struct Arguments {
    /// Program and arguments, none with a NUL byte.
    pub(super) argv: Vec<OsString>,
    /// Each name once, not empty and without `=`; no NUL byte.
    pub(super) env: Vec<(OsString, OsString)>,
    names: BTreeSet<String>,
    bytes: usize,
}

impl Arguments {
    /// Takes one more argument.
    pub(super) fn push(&mut self, value: &Scalar) -> Result<(), String> {
        let argument = string(value)?;
        self.count(argument.len())?;
        self.argv.push(argument.into());
        Ok(())
    }

    /// Takes one more variable. A refusal shows neither name nor value: both may be secrets.
    pub(super) fn set(&mut self, name: String, value: Scalar) -> Result<(), String> {
        let problem = if name.is_empty() {
            "a variable's name is empty"
        } else if name.contains('=') {
            "a variable's name holds '='"
        } else if name.contains('\0') {
            "a variable's name holds a NUL byte"
        } else if self.names.contains(&name) {
            TWICE
        } else {
            match value {
                Scalar::Text(value) if value.contains('\0') => "a value holds a NUL byte",
                Scalar::Text(value) => {
                    self.count(name.len() + 1 + value.len())?;
                    self.env.push((OsString::from(&name), value.into()));
                    self.names.insert(name);
                    return Ok(());
                }
                _ => "a value is no string",
            }
        };
        Err(problem.to_owned())
    }

    /// Takes note of a variable whose value is none, so that it is not given another time.
    pub(super) fn leave_out(&mut self, name: String) -> Result<(), String> {
        self.count(name.len())?;
        if self.names.insert(name) { Ok(()) } else { Err(TWICE.to_owned()) }
    }

    /// Counts a string towards [`ARGUMENTS_MAX_BYTES`].
    fn count(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes = self.bytes.saturating_add(bytes + 1 + size_of::<usize>());
        if self.bytes > ARGUMENTS_MAX_BYTES {
            return Err(format!(
                "command and env take more than {ARGUMENTS_MAX_BYTES} bytes, which the kernel \
                 refuses (E2BIG): pass data through a file, or stdin where there is one"
            ));
        }
        Ok(())
    }
}
