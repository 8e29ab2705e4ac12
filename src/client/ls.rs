//! What is in a directory of the server.

use super::transfer::again;
use super::{Error, Server, one_line};
use crate::wire::http::target::{Component, Plus, decode, encode};
use crate::wire::sandbox::client::entries::RemoteEntry;
use crate::wire::sandbox::client::listing::{PageError, read_page};

/// Gives each entry of the directory at `path` to `each`, in the order of the names, page by page.
/// Where a connection broke, as one does that was idle for long, another one goes on behind the
/// last entry.
///
/// # Errors
/// `Refused` for what is no directory; what `each` returned; `Invalid` for pages that do not go on.
pub fn ls(
    server: &Server,
    path: &[u8],
    each: &mut dyn FnMut(RemoteEntry) -> Result<(), Error>,
) -> Result<(), Error> {
    let path = encode(path, Component::Query);
    let mut connection = None;
    // The name after which the next page begins.
    let mut after: Option<String> = None;
    loop {
        let next = again(server, &mut connection, |connection| {
            let mut target = format!("/v1/files/list?path={path}");
            if let Some(after) = &after {
                let name = encode(after.as_bytes(), Component::Query);
                target.push_str(&format!("&after={name}"));
            }
            let asked = after.clone();
            let answer = connection.ask(server, "GET", &target, None)?;
            let next = read_page(answer, &mut |entry| {
                // A page that breaks off goes on behind what was given.
                after.get_or_insert_default().clone_from(&entry.name);
                each(entry)
            });
            match next.map_err(error_of)? {
                Some(next) if asked.is_some_and(|asked| !goes_on(&asked, &next)) => {
                    let next = one_line(&next);
                    Err(Error::Invalid(format!("its pages do not go on after '{next}'")))
                }
                next => Ok(next),
            }
        })?;
        match next {
            None => return Ok(()),
            next => after = next,
        }
    }
}

fn error_of(error: PageError<Error>) -> Error {
    match error {
        PageError::Invalid(message) => Error::Invalid(message),
        PageError::Read(error) => Error::Connection(error),
        PageError::Each(error) => error,
    }
}

/// Whether a page that ends at `next` comes after one that ended at `after`: in the order of their
/// bytes, where bytes that are no UTF-8 are shown as `%XX`. Pages that go round would never end.
fn goes_on(after: &str, next: &str) -> bool {
    let bytes = |name: &str| decode(name, Plus::Stays).unwrap_or_else(|_| name.as_bytes().to_vec());
    let (shown_after, shown_next) = (after.as_bytes().to_vec(), next.as_bytes().to_vec());
    // Nobody can tell from a name alone which of both it is.
    [bytes(next), shown_next].into_iter().any(|next| next > bytes(after) || next > shown_after)
        && after != next
}

#[cfg(test)]
mod tests {
    use super::goes_on;

    #[test]
    fn pages_go_on_or_they_do_not() {
        let rows = [
            ("a", "b", true),
            ("b", "a", false),
            ("a", "a", false),
            ("z", "%FF", true),
            ("%FF", "a", true),
            ("z", "%41", false),
        ];
        for (after, next, expected) in rows {
            assert_eq!(goes_on(after, next), expected, "{after} {next}");
        }
    }
}
