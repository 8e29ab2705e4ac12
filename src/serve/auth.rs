//! Who is let in: by a token, or, without one, whoever is on this machine and no web page.

use std::net::IpAddr;

use tiny_http::ResponseBox;

use super::reply::{self, Dialect};
use super::transport::Head;
use crate::token::Token;

/// Decides who is let in.
#[derive(Debug)]
pub struct Guard {
    /// What clients must know.
    pub token: Option<Token>,
    /// Whether `Host` may name anything.
    pub foreign_hosts: bool,
}

impl Guard {
    /// Lets a request in, or not.
    ///
    /// Without a token a browser is what is kept out: a page of somebody else's can send requests
    /// to this machine, but it cannot keep its browser from saying where it came from (`Origin`, or
    /// where that is left out, as for an image, `Sec-Fetch-Site`), or under which name it found the
    /// server (`Host`, DNS rebinding).
    ///
    /// # Errors
    /// The answer to one that is not let in.
    pub fn check(&self, head: &Head<'_>) -> Result<(), ResponseBox> {
        let dialect = Dialect::of(&head.target.path);
        let Some(token) = &self.token else {
            let site = head.header("Sec-Fetch-Site");
            let is_from_page = site.is_some_and(|site| !["none", "same-origin"].contains(&site));
            if head.header("Origin").is_some() || is_from_page {
                let reason = "requests of web pages are refused by a server without a token";
                return Err(reply::error(dialect, 403, reason));
            }
            if !self.foreign_hosts && !head.host.as_deref().is_none_or(is_own_host) {
                let reason = "the Host header names another machine; use localhost or 127.0.0.1";
                return Err(reply::error(dialect, 403, reason));
            }
            return Ok(());
        };
        match dialect {
            Dialect::Sandbox => {
                let given = head.header("X-Sandbox-Token");
                if given.is_some_and(|given| token.is(given.as_bytes())) {
                    return Ok(());
                }
                Err(reply::error(dialect, 403, "invalid or missing X-Sandbox-Token"))
            }
            // Everything that is not known to be open is not: another spelling of a path too.
            Dialect::Picod if ["/health", "*"].contains(&head.target.path.as_str()) => Ok(()),
            Dialect::Picod => bearer(token, head),
        }
    }
}

/// PicoD's three refusals.
fn bearer(token: &Token, head: &Head<'_>) -> Result<(), ResponseBox> {
    let refusal = |message, detail| Err(reply::unauthorized(message, detail));
    let Some(given) = head.header("Authorization") else {
        return refusal("Missing Authorization header", "send Authorization: Bearer TOKEN");
    };
    // The scheme is a word of any case (RFC 9110, section 11.1).
    let Some(("bearer", given)) = given
        .split_once(' ')
        .map(|(scheme, given)| (scheme.to_ascii_lowercase(), given))
        .as_ref()
        .map(|(scheme, given)| (scheme.as_str(), *given))
    else {
        return refusal(
            "Invalid Authorization header format",
            "expected Authorization: Bearer TOKEN",
        );
    };
    match token.is(given.trim().as_bytes()) {
        true => Ok(()),
        false => refusal("Invalid token", "the token is not the one this server was started with"),
    }
}

/// Whether an authority names this machine: `localhost`, 127.0.0.0/8 or `[::1]`, with any port.
fn is_own_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(inner) => inner.parse().map(IpAddr::V6),
        None => name.parse().map(IpAddr::V4),
    };
    address.is_ok_and(super::transport::is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_hosts_are_told_from_foreign_ones() {
        let rows = [
            ("localhost", true),
            ("LocalHost:8080", true),
            ("127.0.0.1", true),
            ("127.9.8.7:1", true),
            ("[::1]", true),
            ("[::1]:8080", true),
            ("", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example:80", false),
            ("::1", false),
            ("[::2]:80", false),
            ("10.0.0.1", false),
            ("0.0.0.0:8080", false),
            ("localhost:x", false),
            ("2130706433", false),
        ];
        for (host, expected) in rows {
            assert_eq!(is_own_host(host), expected, "{host:?}");
        }
    }
}
