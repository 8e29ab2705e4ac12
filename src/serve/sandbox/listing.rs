//! The sandbox dialect's lists: a page of a directory.

use std::io::{self, Write};

use super::{Refusal, number_of, path_of, write_entry_of};
use crate::serve::State;
use crate::serve::reply;
use crate::serve::root::{LISTED_MAX, Page, shown_path};
use crate::serve::transport::{Head, Live, Reply};
use crate::wire::json_string::write_string;

/// Names of a page where the request does not say.
pub const LIMIT_DEFAULT: usize = 10_000;

/// GET /v1/files/list: tells what is in a directory, a page at a time.
pub(in crate::serve) fn list<'a>(state: &'a State, head: &Head<'_>) -> Reply<'a> {
    match page(state, head) {
        Ok((path, page)) => Reply::Live(Live {
            status: 200,
            headers: vec![reply::header("Content-Type", "application/json")],
            write: Box::new(move |mut out| Ok(write_page(&mut out, path, page)?)),
        }),
        Err(refusal) => refusal.answer().into(),
    }
}

/// The path of the directory as it is shown, and the page that is asked for.
fn page<'a>(state: &'a State, head: &Head<'_>) -> Result<(String, Page<'a>), Refusal> {
    let path = path_of(head)?;
    // A page of nothing would lead nowhere, so 0 counts as absent too.
    let limit = number_of(head, "limit")?.filter(|limit| *limit > 0);
    let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(LISTED_MAX).min(LISTED_MAX));
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    let after = head.target.query_value("after")?.unwrap_or_default();
    let page = state.root.with_shown(&path, |inside| {
        Ok((shown_path(inside), state.root.list(inside, &after, limit)?))
    });
    page.map_err(|error| Refusal::of(&error, &path))
}

/// Writes a page of the directory at `path`.
fn write_page(out: &mut dyn Write, mut path: String, mut page: Page<'_>) -> io::Result<()> {
    out.write_all(b"{\"entries\":[")?;
    if !path.ends_with('/') {
        path.push('/');
    }
    let directory = path.len();
    let mut is_first = true;
    while let Some((name, found)) = page.next_entry()? {
        if !std::mem::take(&mut is_first) {
            out.write_all(b",")?;
        }
        path.truncate(directory);
        path.push_str(&name.shown);
        write_entry_of(out, &name.shown, &path, &found)?;
    }
    // Before the client can ask for more: it finds there what was read ahead.
    let next = page.end();
    write!(out, "],\"truncated\":{},\"next\":", next.is_some())?;
    match next {
        Some(next) => write_string(out, &next)?,
        None => out.write_all(b"null")?,
    }
    out.write_all(b"}")
}
