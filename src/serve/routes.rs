//! The API: which method and path does what.

use std::fmt;
use std::io::Read;

use tiny_http::{Method, ResponseBox};

use super::State;
use super::execute::execute;
use super::files;
use super::reply::{self, Dialect};
use super::transport::{BodyRule, Entry, Head, Reply, Service};
use crate::wire::time::HumanDuration;

impl Service for State {
    fn admit(&self, head: &Head<'_>) -> Result<BodyRule, ResponseBox> {
        self.guard.check(head)?;
        Ok(BodyRule {
            max_bytes: self.settings.body_max_bytes,
            chunked: dialect(head) == Dialect::Picod,
        })
    }

    fn answer<'a>(&'a self, head: &'a Head<'a>, body: &mut dyn Read) -> Reply<'a> {
        // As it was sent: no other spelling of a path gets around its token.
        let path = head.target.path.as_str();
        let file = path.strip_prefix(files::FILES).and_then(|path| path.strip_prefix('/'));
        match (&head.method, path) {
            (Method::Get | Method::Head, "/health") => health(self).into(),
            (Method::Post, "/api/execute") => execute(self, head, body),
            (Method::Get | Method::Head, files::FILES) => files::list(self, head),
            (Method::Post, files::FILES) => files::upload(self, head, body).into(),
            (Method::Options, "*") => allowed_methods().into(),
            (Method::Get | Method::Head, _) if file.is_some() => {
                files::download(self, head, file.unwrap_or_default()).into()
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

fn dialect(head: &Head<'_>) -> Dialect {
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

fn no_route(head: &Head<'_>) -> ResponseBox {
    match dialect(head) {
        Dialect::Picod => reply::text(404, "404 page not found"),
        Dialect::Sandbox => {
            let text = format!("no route: {} {}", head.method, head.target.path);
            reply::error(Dialect::Sandbox, 404, &text)
        }
    }
}
