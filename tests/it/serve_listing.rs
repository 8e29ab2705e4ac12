//! The sandbox dialect's lists: order, pages, odd entries, and memory.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use runcap::wire::http::target::{Component, encode};

use crate::http::{Answer, Client, Server};
use crate::serve_files::{Place, body, request};
use crate::support::{Value, installed, json, keys, not_here, runcap, through, wait_until};

/// A server and its workspace in memory: on a disk, making many files takes long.
fn in_memory() -> Place {
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let home = home.expect("a directory");
    let workspace = home.path().join("workspace");
    fs::create_dir(&workspace).expect("it is new");
    let server = Server::start(&["--workspace", workspace.to_str().expect("text")]);
    Place { home, server }
}

fn make(place: &Place, directory: &str, name: &[u8]) {
    let directory = place.at(directory);
    fs::write(directory.join(OsStr::from_bytes(name)), "").expect("room");
}

fn ask(client: &mut Client, query: &str) -> Answer {
    client.send(&request(&format!("GET /v1/files/list?{query}"), &[], b""));
    client.answer()
}

/// A page, the names that it tells, and where the next one goes on.
#[track_caller]
fn page(client: &mut Client, path: &str, limit: usize, after: &str) -> (Vec<String>, Value) {
    let after = encode(after.as_bytes(), Component::Query);
    let answer = ask(client, &format!("path={path}&limit={limit}&after={after}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let page = body(&answer);
    assert_eq!(keys(&page), ["entries", "next", "truncated"]);
    assert_eq!(page["truncated"], json!(!page["next"].is_null()));
    let entries = page["entries"].as_array().expect("a list");
    let name = |entry: &Value| entry["name"].as_str().expect("text").to_owned();
    (entries.iter().map(name).collect(), page["next"].clone())
}

/// All pages as the published client asks for them; `between` happens after each but the last one.
#[track_caller]
fn all_pages(
    place: &Place,
    path: &str,
    limit: usize,
    mut between: impl FnMut(&str),
) -> Vec<Vec<String>> {
    let mut client = place.server.connect();
    let (mut pages, mut after) = (Vec::new(), String::new());
    loop {
        let (names, next) = page(&mut client, path, limit, &after);
        assert!(names.len() <= limit);
        pages.push(names);
        assert!(pages.len() < 1000, "the list goes round");
        match next.as_str() {
            Some(next) => next.clone_into(&mut after),
            None => return pages,
        }
        between(&after);
    }
}

/// What the server waits for before it takes a directory for unchanged, and more.
const SETTLED: Duration = Duration::from_millis(4500);

fn wait_until_settled(directory: &Path) {
    let changed = fs::metadata(directory).and_then(|found| found.modified()).expect("it is there");
    wait_until("it is long since the directory was changed", || {
        changed.elapsed().is_ok_and(|age| age > SETTLED)
    });
}

/// Raw names in order, and as they are shown.
const ODD: [(&[u8], &str); 14] = [
    (b"\x01", "\u{1}"),
    (b" ", " "),
    (b"%FF", "%FF"),
    (b"%FF%25", "%FF%25"),
    (b"-rf", "-rf"),
    (b"50%25", "50%25"),
    (b"50%\xff", "50%25%FF"),
    (b"A", "A"),
    (b"a\"\\", "a\"\\"),
    (b"new\nline", "new\nline"),
    (b"\xc3\xa9", "\u{e9}"),
    (b"\xe2\x80\xa8", "\u{2028}"),
    (b"\xff", "%FF"),
    (b"\xff\xfe", "%FF%FE"),
];

#[test]
fn fa16_every_name_comes_once_in_the_order_of_its_bytes() {
    // Odd names and the longest, in pages of every size: `next` leads through all of them, also
    // where a name that is no UTF-8 is shown as another one is spelt.
    let place = in_memory();
    let long = "l".repeat(255);
    let mut expected: Vec<_> = ODD.iter().map(|(raw, shown)| (raw.to_vec(), *shown)).collect();
    expected.push((long.clone().into_bytes(), &long));
    expected.sort_unstable();
    // Not in the order of what is shown.
    let shown: Vec<_> = expected.iter().map(|(_, shown)| *shown).collect();
    assert!(!shown.is_sorted());
    fs::create_dir(place.at("d")).expect("it is new");
    for (raw, _) in &expected {
        make(&place, "d", raw);
    }
    for settled in [false, true] {
        if settled {
            wait_until_settled(&place.at("d"));
        }
        for limit in 1..=shown.len() + 1 {
            let pages = all_pages(&place, "d", limit, |_| ());
            assert!(pages.iter().rev().skip(1).all(|page| page.len() == limit), "{limit}");
            assert_eq!(pages.concat(), shown, "{limit}");
        }
    }
    let picod = body(&place.list("path=d"));
    let names = picod["files"].as_array().expect("a list").iter().map(|file| &file["name"]);
    assert!(names.eq(&shown), "{picod}");
}

#[test]
fn fa16_a_cursor_means_the_name_that_was_told() {
    // A page ends at one of two names that are shown alike. What happens to either of them before
    // the next page neither skips nor repeats any other.
    let place = in_memory();
    let (spelt, raw): (&[u8], &[u8]) = (b"%FF", b"\xff");
    type Change = fn(&Path);
    type Row<'a> = (&'a str, &'a [&'a [u8]], usize, &'a [u8], Change, &'a [&'a str]);
    let removed: Change = |at| fs::remove_file(at).expect("it is there");
    let made: Change = |at| fs::write(at, "").expect("room");
    let rows: [Row<'_>; 4] = [
        ("spelt so, removed", &[spelt, b"a", b"b", raw], 1, spelt, removed, &["a", "b", "%FF"]),
        ("spelt so, other made", &[spelt, b"a", b"b"], 1, raw, made, &["a", "b", "%FF"]),
        ("raw, removed", &[spelt, b"a", raw, b"\xff1"], 3, raw, removed, &["%FF1"]),
        ("raw, other made", &[b"a", raw, b"\xff1"], 2, spelt, made, &["%FF1"]),
    ];
    for (index, (name, names, limit, changed, change, expected)) in rows.into_iter().enumerate() {
        let directory = format!("d{index}");
        fs::create_dir(place.at(&directory)).expect("it is new");
        names.iter().for_each(|name| make(&place, &directory, name));
        let mut client = place.server.connect();
        let (_, next) = page(&mut client, &directory, limit, "");
        assert_eq!(next, "%FF", "{name}");
        change(&place.at(&directory).join(OsStr::from_bytes(changed)));
        assert_eq!(page(&mut client, &directory, 100, "%FF").0, expected, "{name}");
    }
}

#[test]
fn cursors_are_names_that_need_not_be_there() {
    let place = in_memory();
    for name in [&b"%FE"[..], b"a", b"c", b"\xc3\xa9", b"\xfe", b"\xff"] {
        make(&place, "", name);
    }
    let rows: [(&str, &str, &[&str]); 9] = [
        ("absent", "", &["%FE", "a", "c", "\u{e9}", "%FE", "%FF"]),
        ("before all", "&after=!", &["%FE", "a", "c", "\u{e9}", "%FE", "%FF"]),
        ("a name", "&after=a", &["c", "\u{e9}", "%FE", "%FF"]),
        ("no name", "&after=b", &["c", "\u{e9}", "%FE", "%FF"]),
        ("a name that is spelt so", "&after=%25FE", &["a", "c", "\u{e9}", "%FE", "%FF"]),
        ("shown only", "&after=%25FF", &[]),
        ("shown, and gone", "&after=%25F0", &["%FE", "%FF"]),
        ("raw bytes", "&after=%FE", &["%FF"]),
        ("what no name can hold", "&after=a%00%2F%FF", &["c", "\u{e9}", "%FE", "%FF"]),
    ];
    let mut client = place.server.connect();
    for (name, after, expected) in rows {
        let found = body(&ask(&mut client, &format!("path=.{after}")));
        let names = found["entries"].as_array().expect("a list").iter().map(|entry| &entry["name"]);
        assert!(names.eq(expected), "{name}: {found}");
    }
}

#[test]
fn fa17_what_stays_comes_once_while_other_files_come_and_go() {
    // 30,000 names in pages of 1,700, of a directory that was left alone before and of one that
    // changes between all pages.
    let place = in_memory();
    fs::create_dir(place.at("d")).expect("it is new");
    let stays: Vec<_> = (0..30_000).map(|number| format!("{number:05}")).collect();
    for name in &stays {
        make(&place, "d", name.as_bytes());
        make(&place, "d", format!("{name}-goes").as_bytes());
    }
    wait_until_settled(&place.at("d"));
    let mut round = 0;
    let pages = all_pages(&place, "d", 1700, |after| {
        round += 1;
        let at = |name: &str, end: &str| place.at(&format!("d/{}{end}", &name[..5]));
        // Behind the cursor and before it; some of them in what was read ahead.
        for name in stays.iter().skip(round * 97).step_by(1013) {
            fs::remove_file(at(name, "-goes")).ok();
            fs::write(at(name, "-new"), "").expect("room");
        }
        fs::remove_file(at(after, "-goes")).ok();
    });
    let names = pages.concat();
    assert!(names.is_sorted_by(|one, next| one < next), "each once, in order");
    let kept = names.iter().filter(|name| name.len() == 5);
    assert!(kept.eq(&stays), "all that stay");
    assert!(pages.len() > 30 && names.iter().any(|name| name.ends_with("-new")));
}

#[test]
fn fa17_what_is_made_between_two_pages_comes() {
    // The directory was left alone, so that names were read ahead; one that is made right after a
    // page is on the next all the same, and one that is removed is not.
    let place = in_memory();
    fs::create_dir(place.at("d")).expect("it is new");
    (0..100).for_each(|number| make(&place, "d", format!("{number:02}").as_bytes()));
    wait_until_settled(&place.at("d"));
    let mut client = place.server.connect();
    assert_eq!(page(&mut client, "d", 10, "").1, "09");
    assert_eq!(page(&mut client, "d", 10, "09").1, "19");
    make(&place, "d", b"195");
    fs::remove_file(place.at("d/20")).expect("it is there");
    let (names, next) = page(&mut client, "d", 3, "19");
    assert_eq!((names, next), (vec!["195".into(), "21".into(), "22".into()], json!("22")));
    // Once more, with what was read just now.
    make(&place, "d", b"225");
    assert_eq!(page(&mut client, "d", 2, "22").0, ["225", "23"]);
    // And where all that follows has gone.
    (23..100).for_each(|number| {
        fs::remove_file(place.at(&format!("d/{number}"))).expect("it is there");
    });
    assert_eq!(page(&mut client, "d", 2, "23"), (vec![], Value::Null));
}

#[test]
fn entries_are_told_as_lstat_tells_them() {
    let place = in_memory();
    let mode = |name: &str, mode: u32| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(place.at(name), mode).expect("it is ours");
    };
    fs::create_dir_all(place.at("d/sub")).expect("it is new");
    mode("d/sub", 0o1777);
    fs::write(place.at("d/file"), "12345").expect("room");
    mode("d/file", 0o4755);
    symlink("nowhere", place.at("d/link")).expect("it is new");
    symlink("sub", place.at("d/link-to-sub")).expect("it is new");
    fs::write(place.at("d/old"), "").expect("room");
    mode("d/old", 0o7);
    let old = fs::File::options().write(true).open(place.at("d/old")).expect("it is there");
    let before = SystemTime::UNIX_EPOCH - Duration::from_micros(1500);
    old.set_modified(before).expect("it is ours");
    let made = Command::new("mkfifo").args(["-m", "644"]).arg(place.at("d/fifo")).status();
    assert!(made.expect("mkfifo starts").success());
    let list = body(&ask(&mut place.server.connect(), "path=/d/../d/"));
    let entries = list["entries"].as_array().expect("a list");
    let rows = [
        ("fifo", "file", Some(0), "644"),
        ("file", "file", Some(5), "4755"),
        ("link", "symlink", Some(7), "777"),
        ("link-to-sub", "symlink", Some(3), "777"),
        ("old", "file", Some(0), "7"),
        ("sub", "dir", None, "1777"),
    ];
    assert_eq!(entries.len(), rows.len(), "{list}");
    for (entry, (name, kind, size, mode)) in entries.iter().zip(rows) {
        assert_eq!(keys(entry), ["mode", "mtime_ms", "name", "path", "size", "type"]);
        let path = format!("/d/{name}");
        for (key, expected) in [("name", name), ("path", &path), ("type", kind), ("mode", mode)] {
            assert_eq!(entry[key], expected, "{name}");
        }
        let found = fs::symlink_metadata(place.at(&format!("d/{name}"))).expect("it is there");
        assert_eq!(entry["size"], size.unwrap_or(found.len()), "{name}");
        let expected =
            match found.modified().expect("a time").duration_since(SystemTime::UNIX_EPOCH) {
                Ok(since) => i64::try_from(since.as_millis()).expect("it fits"),
                Err(_) => -2,
            };
        assert_eq!((entry["mtime_ms"].as_i64(), name == "old"), (Some(expected), expected < 0));
    }
    assert_eq!((&list["truncated"], &list["next"]), (&json!(false), &Value::Null));
    // In the root, and below a directory that is no text.
    let root = body(&ask(&mut place.server.connect(), "path=/"));
    assert_eq!(root["entries"][0]["path"], "/d");
    fs::create_dir(place.at("").join(OsStr::from_bytes(b"\xfe"))).expect("it is new");
    make(&place, "", b"\xfe/\xff");
    for path in ["%FE", "%25FE"] {
        let list = body(&ask(&mut place.server.connect(), &format!("path={path}")));
        assert_eq!(list["entries"][0]["path"], "/%FE/%FF", "{path}");
    }
}

#[test]
fn what_cannot_be_listed_is_refused_with_its_reason() {
    let place = in_memory();
    fs::create_dir(place.at("d")).expect("it is new");
    fs::write(place.at("file"), "").expect("room");
    symlink("nowhere", place.at("link")).expect("it is new");
    symlink("/etc", place.at("out")).expect("it is new");
    let mut client = place.server.connect();
    for (query, status, text) in [
        ("", 400, "missing 'path' query parameter"),
        ("path=", 400, "missing 'path' query parameter"),
        ("path=nowhere", 404, "no such file or directory: 'nowhere'"),
        ("path=link", 404, "no such file or directory: 'link'"),
        ("path=file", 409, "not a directory: 'file'"),
        ("path=file/x", 409, "not a directory: 'file/x'"),
        ("path=d/../..", 400, "leads out of the workspace"),
        ("path=out", 400, "leads out of the workspace"),
        ("path=d%00", 400, "it holds a NUL"),
        ("path=%zz", 400, "percent-encoding"),
        ("path=d&after=%f", 400, "percent-encoding"),
        ("path=d&limit=%", 400, "percent-encoding"),
    ] {
        let answer = ask(&mut client, query);
        let body = body(&answer);
        assert_eq!((answer.status, keys(&body)), (status, vec!["error"]), "{query}: {body}");
        let error = body["error"].as_str().expect("text");
        assert!(error.contains(text), "{query}: {error:?} has {text:?}");
    }
    let empty = json!({"entries": [], "truncated": false, "next": null});
    for query in ["path=d", "path=d&limit=1", "path=d&after=x", "path=d&limit=0&after="] {
        assert_eq!(body(&ask(&mut client, query)), empty, "{query}");
    }
}

#[test]
fn limits_have_a_default_and_a_ceiling() {
    // 50,001 names: no number, 0 and too many digits count as absent.
    let place = in_memory();
    (0..50_001).for_each(|number| make(&place, "", format!("{number:05}").as_bytes()));
    let mut client = place.server.connect();
    for (limit, expected) in [
        ("", 10_000),
        ("&limit=", 10_000),
        ("&limit=x", 10_000),
        ("&limit=-1", 10_000),
        ("&limit=0", 10_000),
        ("&limit=18446744073709551616", 10_000),
        ("&limit=1", 1),
        ("&limit=50000", 50_000),
        ("&limit=50001", 50_000),
        ("&limit=18446744073709551615", 50_000),
    ] {
        let list = body(&ask(&mut client, &format!("path=/{limit}")));
        let count = list["entries"].as_array().expect("a list").len();
        let next = format!("{:05}", expected - 1);
        assert_eq!((count, &list["next"]), (expected, &json!(next)), "{limit:?}");
    }
}

#[test]
fn what_cannot_be_looked_at_is_told_with_its_type() {
    // A directory that may be read and not entered, for a server that is not root.
    if !rustix::process::geteuid().is_root() || !installed("setpriv") {
        return not_here("only root makes a server that may not read");
    }
    let place = Place::of(|workspace| {
        let home = Path::new(workspace).parent().expect("one");
        fs::set_permissions(home, fs::Permissions::from_mode(0o755)).expect("ours");
        let mut command = runcap();
        command.args(["serve", "--listen", "127.0.0.1:0", "--workspace", workspace]);
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        Server::of(through(&user, &command))
    });
    fs::create_dir_all(place.at("d/sub")).expect("it is new");
    fs::write(place.at("d/file"), "12345").expect("room");
    symlink("file", place.at("d/link")).expect("it is new");
    let open = |mode: u32| {
        fs::set_permissions(place.at("d"), fs::Permissions::from_mode(mode)).expect("ours");
    };
    open(0o744);
    let mut client = place.server.connect();
    let list = body(&ask(&mut client, "path=d"));
    let told = |name: &str, kind: &str| {
        json!({
            "name": name, "path": format!("/d/{name}"), "type": kind,
            "size": 0, "mtime_ms": null, "mode": "0",
        })
    };
    let expected = [told("file", "file"), told("link", "symlink"), told("sub", "dir")];
    assert_eq!(list["entries"], json!(expected));
    open(0o700);
    let refused = ask(&mut client, "path=d");
    let error = body(&refused)["error"].clone();
    assert_eq!((refused.status, error), (403, json!("permission denied: 'd'")));
}

/// The most that a page may add to the server's memory.
const PAGE_RSS_MAX_BYTES: u64 = 16 << 20;

#[test]
fn fa17_memory_does_not_grow_with_the_directory() {
    // A page of 50,000 names of 255 bytes; 200,000 short ones in pages of the default size, read
    // ahead and not; and six lists at once whose clients do not read.
    let place = in_memory();
    for directory in ["long", "short"] {
        fs::create_dir(place.at(directory)).expect("it is new");
    }
    for number in 0..50_010 {
        make(&place, "long", format!("{number:0255}").as_bytes());
    }
    (0..200_000).for_each(|number| make(&place, "short", format!("{number:x}").as_bytes()));
    let names = |pages: Vec<Vec<String>>| {
        let names = pages.concat();
        assert!(names.is_sorted_by(|one, next| one < next));
        names.len()
    };
    place.server.assert_alive();
    let before = place.server.peak_rss_bytes();
    let grown = || place.server.peak_rss_bytes() - before;
    let mut sizes = Vec::new();
    for settled in [false, true] {
        if settled {
            wait_until_settled(&place.at("short"));
        }
        assert_eq!(names(all_pages(&place, "long", 50_000, |_| ())), 50_010);
        sizes.push(grown());
        assert_eq!(names(all_pages(&place, "short", 10_000, |_| ())), 200_000);
        sizes.push(grown());
    }
    let waiting: Vec<_> = (0..6)
        .map(|_| {
            let mut client = place.server.connect();
            client.send(&request("GET /v1/files/list?path=long&limit=50000", &[], b""));
            client.head();
            client
        })
        .collect();
    sizes.push(grown());
    println!("grown by {sizes:?} bytes");
    assert!(sizes.iter().all(|size| *size <= PAGE_RSS_MAX_BYTES), "{sizes:?}");
    // Whoever has no large batch gets the same.
    for mut client in waiting {
        assert!(client.count_chunked() > 50_000 * (2 * 255 + 60));
    }
    assert!(grown() <= PAGE_RSS_MAX_BYTES, "{}", grown());
}
