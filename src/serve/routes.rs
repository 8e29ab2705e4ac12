//! The API: which method and path does what.

use std::fmt;
use std::io::Read;

use tiny_http::Method::{self, Delete, Get, Head, Options, Post, Put};
use tiny_http::ResponseBox;

use super::State;
use super::reply::{self, Dialect};
use super::transport::{self, BodyRule, Entry, Reply, Service};
use super::{picod, sandbox};
use crate::wire::time::HumanDuration;

impl Service for State {
    fn admit(&self, head: &transport::Head<'_>) -> Result<BodyRule, ResponseBox> {
        self.guard.check(head)?;
        let max_bytes = match (&head.method, head.target.path.as_str()) {
            (Method::Put, "/v1/files/write") => self.settings.file_max_bytes,
            _ => self.settings.body_max_bytes,
        };
        Ok(BodyRule { max_bytes, chunked: dialect(head) == Dialect::Picod })
    }

    fn answer<'a>(&'a self, head: &'a transport::Head<'a>, body: &mut dyn Read) -> Reply<'a> {
        // As it was sent: no other spelling of a path gets around its token.
        // The first slash is before the first segment, and the last segment has all others.
        let segments: Vec<&str> = head.target.path.splitn(4, '/').collect();
        match (&head.method, segments.as_slice()) {
            (Get | Head, ["", "health"]) => health(self).into(),
            (Options, ["*"]) => allowed_methods().into(),

            (Post, ["", "api", "execute"]) => picod::execute::execute(self, head, body),
            (Post, ["", "api", "files"]) => picod::files::upload(self, head, body).into(),
            (Get | Head, ["", "api", "files"]) => picod::files::list(self, head),
            (Get | Head, ["", "api", "files", path]) => {
                picod::files::download(self, head, path).into()
            }

            (Post, ["", "v1", "exec"]) => sandbox::exec::exec(self, head, body),
            (Post, ["", "v1", "processes"]) => sandbox::processes::start(self, head, body),
            (Get | Head, ["", "v1", "processes"]) => sandbox::processes::list(self),
            (Delete, ["", "v1", "processes", id]) if is_name(id) => {
                sandbox::processes::end(self, id).into()
            }
            (Get | Head, ["", "v1", "files", "read"]) => sandbox::files::read(self, head).into(),
            (Put, ["", "v1", "files", "write"]) => sandbox::files::write(self, head, body).into(),
            (Get | Head, ["", "v1", "files", "list"]) => sandbox::listing::list(self, head),
            (Get | Head, ["", "v1", "files", "stat"]) => sandbox::files::stat(self, head).into(),
            (Delete, ["", "v1", "files", "delete"]) => sandbox::files::delete(self, head).into(),
            (Post, ["", "v1", "files", "mkdir"]) => {
                sandbox::files::make_directory(self, head).into()
            }
            _ => no_route(head).into(),
        }
    }

    fn refuse(&self, path: Option<&str>, status: u16, reason: &str) -> ResponseBox {
        let dialect = path.map_or(Dialect::Picod, Dialect::of);
        match (dialect, status) {
            (Dialect::Picod, 413) => reply::too_large(self.settings.body_max_bytes),
            (_, 503) => {
                let answer = reply::error(dialect, status, reason);
                answer.with_header(reply::header("Retry-After", "1"))
            }
            _ => reply::error(dialect, status, reason),
        }
    }

    fn log(&self, entry: &Entry<'_>) {
        self.log.entry(entry);
    }

    fn complain(&self, what: fmt::Arguments<'_>) {
        self.log.line(what);
    }
}

/// Whether a segment is one that has something in it.
fn is_name(segment: &str) -> bool {
    !segment.is_empty() && !segment.contains('/')
}

fn dialect(head: &transport::Head<'_>) -> Dialect {
    Dialect::of(&head.target.path)
}

/// What probes and both dialects' clients ask before anything else.
fn health(state: &State) -> ResponseBox {
    let up = state.start.elapsed();
    let text = format!(
        "{{\"status\":\"ok\",\"service\":\"PicoD\",\"version\":\"{}\",\"uptime\":\"{}\",\
         \"protocol\":{PROTOCOL},\"uptime_ms\":{}}}",
        env!("CARGO_PKG_VERSION"),
        HumanDuration(up),
        up.as_millis(),
    );
    reply::json(200, text)
}

/// The sandbox dialect's version.
const PROTOCOL: u32 = 3;

/// `OPTIONS *` asks what the server knows at all (RFC 9110, section 9.3.7).
fn allowed_methods() -> ResponseBox {
    reply::text(200, "")
        .with_header(reply::header("Allow", "GET, HEAD, POST, PUT, DELETE, OPTIONS"))
}

fn no_route(head: &transport::Head<'_>) -> ResponseBox {
    match dialect(head) {
        Dialect::Picod => reply::text(404, "404 page not found"),
        Dialect::Sandbox => {
            let text = format!("no route: {} {}", head.method, head.target.path);
            reply::error(Dialect::Sandbox, 404, &text)
        }
    }
}
