//! The sandbox dialect's files: ranges of them, what a write leaves, and removals of odd trees.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use runcap::wire::http::target::{Component, encode};

use crate::http::{Answer, Client, Server};
use crate::serve_files::{Place, body, request};
use crate::support::{installed, json, keys, not_here, runcap, through, wait_until};

/// A request for `call` with a query, as it stands in a target.
pub fn ask(call: &str, query: &str, content: &[u8]) -> Vec<u8> {
    let method = match call {
        "read" | "stat" | "list" => "GET",
        "write" => "PUT",
        "delete" => "DELETE",
        _ => "POST",
    };
    request(&format!("{method} /v1/files/{call}?{query}"), &[], content)
}

impl Place {
    pub fn v1(&self, call: &str, query: &str) -> Answer {
        self.server.ask(&ask(call, query, b""))
    }

    fn write(&self, query: &str, content: &[u8]) -> Answer {
        self.server.ask(&ask("write", query, content))
    }

    fn content(&self, name: &str) -> Vec<u8> {
        fs::read(self.at(name)).expect("it is there")
    }
}

fn both() -> [(&'static str, Place); 2] {
    [("openat2", Place::new()), ("steps", Place::stepping())]
}

/// Asserts status and text of a refusal.
#[track_caller]
fn assert_refused(answer: &Answer, status: u16, text: &str) {
    let body = body(answer);
    assert_eq!((answer.status, keys(&body)), (status, vec!["error"]), "{body}");
    let error = body["error"].as_str().expect("text");
    assert!(error.contains(text), "{error:?} has {text:?}");
}

/// Bytes of which no two places look alike.
pub fn data(bytes: usize) -> Vec<u8> {
    let mut state = 0x5eed_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut data: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| next()).collect();
    data.truncate(bytes);
    data
}

#[test]
fn a_range_is_what_there_is_of_it() {
    // Around every edge of files that are read before they are sent, and of those that are not.
    for (way, place) in both() {
        let mut client = place.server.connect();
        for size in [0_usize, 1, 10, 65_535, 65_536, 65_537, 200_003] {
            let data = data(size);
            fs::write(place.at("f"), &data).expect("room");
            let (size, most) = (size as u64, u64::MAX);
            let edges = [0, 1, size / 2, size.saturating_sub(1), size, size + 1, most - 1, most];
            let mut rows: Vec<(String, u64, u64)> = vec![
                ("".into(), 0, most),
                ("&offset=&length=".into(), 0, most),
                ("&offset=-1&length=x".into(), 0, most),
                ("&offset=18446744073709551616".into(), 0, most),
                ("&length=18446744073709551616".into(), 0, most),
                ("&offset=1.5&length=0x10".into(), 0, most),
            ];
            for offset in edges {
                rows.push((format!("&offset={offset}"), offset, most));
                for length in edges {
                    rows.push((format!("&offset={offset}&length={length}"), offset, length));
                }
            }
            for (query, offset, length) in rows {
                let (first, end) = (offset.min(size), offset.saturating_add(length).min(size));
                let expected = &data[first as usize..end as usize];
                client.send(&ask("read", &format!("path=/f{query}"), b""));
                let answer = client.answer();
                let name = format!("{way}, {size} bytes, {query}");
                assert_eq!((answer.status, answer.body.len()), (200, expected.len()), "{name}");
                assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
                assert!(answer.body == expected, "{name}: other bytes");
                client.send(&request(&format!("HEAD /v1/files/read?path=f{query}"), &[], b""));
                let head = client.head();
                let told = head.header("content-length").map(str::to_owned);
                assert_eq!((head.status, told), (200, Some(expected.len().to_string())), "{name}");
            }
        }
    }
}

/// Does `each` with every number below `count`, in an odd order, on 16 connections at once.
fn on_16_connections(server: &Server, count: usize, each: impl Fn(&mut Client, usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = server.connect();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    // 7919 is a prime, and no count here has it.
                    each(&mut client, number * 7919 % count);
                }
            });
        }
    });
}

#[test]
fn ranges_in_any_order_make_the_file() {
    // 20 MB in ranges of odd sizes from 16 connections, into a new file and over a longer one;
    // then out again in ranges of another size.
    let data = data(20_000_003);
    let total = data.len();
    for (way, place) in both() {
        for (old, piece) in [(None, 65_537), (Some(total + 12_345), 999_983), (Some(5), 262_147)] {
            match old {
                None => assert!(!place.at("d").exists()),
                Some(bytes) => fs::write(place.at("d/f"), vec![b'o'; bytes]).expect("room"),
            }
            let ranges = |piece: usize| total.div_ceil(piece);
            on_16_connections(&place.server, ranges(piece), |client, number| {
                let offset = number * piece;
                let content = &data[offset..total.min(offset + piece)];
                let mut query = format!("path=d/f&offset={offset}&mode=640");
                if offset + content.len() == total {
                    query += &format!("&truncate_to={total}");
                }
                client.send(&ask("write", &query, content));
                let answer = client.answer();
                assert_eq!(answer.status, 200, "{}", answer.text());
            });
            let name = format!("{way}, over {old:?}");
            let found = place.content("d/f");
            assert!(found == data, "{name}: {} bytes, {total} expected", found.len());
            assert_eq!(mode(&place, "d/f"), 0o640, "{name}");
            on_16_connections(&place.server, ranges(piece + 11), |client, number| {
                let (offset, piece) = (number * (piece + 11), piece + 11);
                client.send(&ask("read", &format!("path=d/f&offset={offset}&length={piece}"), b""));
                let expected = &data[offset..total.min(offset + piece)];
                assert!(client.answer().body == expected, "{name}: {piece} bytes at {offset}");
            });
        }
    }
}

fn mode(place: &Place, name: &str) -> u32 {
    fs::symlink_metadata(place.at(name)).expect("it is there").mode() & 0o7777
}

#[test]
fn fa14_ranges_land_at_their_offset() {
    for (way, place) in both() {
        let ranges: [(u64, &[u8], u64); 3] = [(4, b"B", 5), (0, b"AAAA", 5), (7, b"", 5)];
        for (offset, content, size) in ranges {
            let answer = place.write(&format!("path=a/f&offset={offset}"), content);
            let expected = json!({ "path": "/a/f", "size": size });
            assert_eq!((answer.status, body(&answer)), (200, expected), "{way}");
        }
        assert_eq!(place.content("a/f"), b"AAAAB", "{way}");
    }
}

#[test]
fn fa15_no_offset_makes_a_monster() {
    // Refused before anything is opened or made; the largest that is allowed has a hole.
    let place =
        Place::of(|workspace| Server::start(&["--workspace", workspace, "--max-file-size", "1M"]));
    fs::write(place.at("f"), "old").expect("room");
    let most = 1_u64 << 20;
    for (query, status, text) in [
        ("offset=9223372036854775807", 413, "over 1048576 bytes (--max-file-size)"),
        ("offset=9223372036854775806", 413, "over 1048576 bytes"),
        ("offset=18446744073709551615", 413, "over 1048576 bytes"),
        ("offset=18446744073709551614", 413, "over 1048576 bytes"),
        ("offset=1099511627776", 413, "over 1048576 bytes"),
        ("offset=1048575", 413, "over 1048576 bytes"),
        ("offset=0&truncate_to=1048577", 413, "over 1048576 bytes"),
        ("offset=0&truncate_to=18446744073709551615", 413, "over 1048576 bytes"),
        ("offset=-1", 400, "invalid offset '-1'"),
        ("offset=18446744073709551616", 400, "invalid offset '18446744073709551616'"),
        ("offset=x", 400, "invalid offset 'x'"),
        ("offset=0&truncate_to=-1", 400, "invalid truncate_to '-1'"),
    ] {
        for path in ["f", "new/f"] {
            assert_refused(&place.write(&format!("path={path}&{query}"), b"xx"), status, text);
        }
    }
    assert_eq!((place.names(""), place.content("f")), (vec!["f".to_owned()], b"old".to_vec()));
    let last = format!("path=f&offset={}", most - 2);
    assert_eq!(body(&place.write(&last, b"xx")), json!({ "path": "/f", "size": most }));
    let cut = format!("path=f&offset=1&truncate_to={most}");
    assert_eq!(body(&place.write(&cut, b"L")), json!({ "path": "/f", "size": most }));
    assert_eq!(place.content("f")[..4], *b"oLd\0");
    // The body itself, over and at the limit.
    let mut client = place.server.connect();
    client.send_until_refused(&ask("write", "path=g", &vec![b'x'; (1 << 20) + 1]), 1);
    assert_refused(&client.answer(), 413, "1048576");
    assert_eq!(place.write("path=g", &vec![b'x'; 1 << 20]).status, 200);
    // Whatever the limit is, no file is longer than the kernel can say.
    let place = Place::of(|workspace| {
        Server::start(&["--workspace", workspace, "--max-file-size", "18446744073709551615"])
    });
    for offset in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, (1 << 63) - 2] {
        let answer = place.write(&format!("path=f&offset={offset}"), b"xx");
        assert_eq!(answer.status, 413, "{offset}: {}", answer.text());
    }
    place.server.assert_alive();
}

#[test]
fn fa7_a_shorter_file_leaves_no_tail_and_a_range_keeps_it() {
    for (way, place) in both() {
        let old = [b'x'; 1000];
        for (query, content, expected) in [
            ("", "short", b"short".to_vec()),
            ("&truncate_to=3", "short", b"short".to_vec()),
            ("&offset=0", "short", [&b"short"[..], &old[5..]].concat()),
            ("&offset=998", "short", [&old[..998], b"short"].concat()),
            ("&offset=0&truncate_to=5", "short", b"short".to_vec()),
            ("&offset=0&truncate_to=3", "short", b"sho".to_vec()),
            ("&offset=2&truncate_to=9", "", old[..9].to_vec()),
            ("&offset=0&truncate_to=1002", "", [&old[..], b"\0\0"].concat()),
            ("&offset=&truncate_to=", "", vec![]),
        ] {
            fs::write(place.at("f"), old).expect("room");
            let answer = place.write(&format!("path=f{query}"), content.as_bytes());
            let told = json!({ "path": "/f", "size": expected.len() });
            assert_eq!((answer.status, body(&answer)), (200, told), "{way}: {query}");
            assert_eq!(place.content("f"), expected, "{way}: {query}");
        }
    }
}

#[test]
fn a_mode_is_kept_or_applied() {
    // An old file of 0751 or none; replaced whole and in ranges; whatever the umask is.
    let place = Place::of(|workspace| {
        let mut serve = runcap();
        serve.args(["serve", "--listen", "127.0.0.1:0", "--workspace", workspace]);
        Server::of(crate::support::after("umask 077", &serve))
    });
    for (query, old, new) in [
        ("", 0o751, 0o644),
        ("&mode=", 0o751, 0o644),
        ("&mode=600", 0o600, 0o600),
        ("&mode=0755", 0o755, 0o755),
        ("&mode=4755", 0o4755, 0o4755),
        ("&mode=0", 0, 0),
        ("&mode=888", 0o751, 0o644),
        ("&mode=-1", 0o751, 0o644),
        ("&mode=10000", 0o751, 0o644),
        ("&mode=rwx", 0o751, 0o644),
    ] {
        for range in ["", "&offset=0", "&offset=3"] {
            fs::write(place.at("old"), "x").expect("room");
            let set = fs::Permissions::from_mode(0o751);
            fs::set_permissions(place.at("old"), set).expect("it is ours");
            for (name, expected) in [("old", old), ("new", new)] {
                let answer = place.write(&format!("path={name}{query}{range}"), b"content");
                assert_eq!(answer.status, 200, "{}", answer.text());
                assert_eq!(mode(&place, name), expected, "{name}{query}{range}");
            }
            fs::remove_file(place.at("new")).expect("it is there");
        }
    }
    // Links are written through, a range keeps the file and with it its other names.
    fs::write(place.at("s"), "aaaa").expect("room");
    fs::hard_link(place.at("s"), place.at("h")).expect("it is new");
    symlink("s", place.at("l")).expect("it is new");
    assert_eq!(place.write("path=l&offset=1", b"b").status, 200);
    assert_eq!((place.content("s"), place.content("h")), (b"abaa".to_vec(), b"abaa".to_vec()));
    assert_eq!(place.write("path=l", b"c").status, 200);
    assert_eq!((place.content("s"), place.content("h")), (b"c".to_vec(), b"abaa".to_vec()));
    assert!(place.at("l").is_symlink());
}

#[test]
fn fa8_a_full_disk_is_507_and_old_bytes_stay() {
    // A workspace of 64 KiB. A whole file leaves the old one; a range that does not fit leaves
    // what it does not reach.
    if !rustix::process::geteuid().is_root() || !installed("unshare") {
        return not_here("no mount namespace");
    }
    let place = Place::of(|workspace| {
        let mut serve = runcap();
        serve.args(["serve", "--listen", "127.0.0.1:0", "--workspace", workspace]);
        let mount = format!("mount -t tmpfs -o size=64k t {workspace} && exec \"$@\"");
        Server::of(through(&["unshare", "-m", "sh", "-c", &mount, "sh"], &serve))
    });
    let fill = |query: &str| {
        let mut client = place.server.connect();
        client.send_until_refused(&ask("write", query, &vec![b'x'; 1 << 20]), 1);
        assert_refused(&client.answer(), 507, "no space left on device");
    };
    assert_eq!(place.write("path=f", b"ORIGINAL").status, 200);
    fill("path=f");
    fill("path=g/f");
    assert_eq!(place.v1("read", "path=f").text(), "ORIGINAL");
    assert_eq!(place.v1("delete", "path=g").status, 200, "it is empty");
    let names = body(&place.server.ask(&request("GET /api/files?path=/", &[], b"")));
    assert_eq!(names["files"].as_array().map(Vec::len), Some(1), "{names}");
    fill("path=f&offset=8&truncate_to=9");
    let start = place.v1("read", "path=f&length=9");
    assert_eq!(start.text(), "ORIGINALx");
    let size = body(&place.v1("stat", "path=f"))["size"].as_u64().expect("a number");
    assert!(size > 9, "a range that failed cuts nothing off: {size}");
}

#[test]
fn fa9_a_client_that_leaves_cuts_nothing() {
    // 200,000 bytes announced, fewer sent, then an end or a reset. A whole file is as before, and
    // a range has written what came and not set the length.
    let place = Place::new();
    let before = place.server.resources();
    let old = vec![b'o'; 500_000];
    for (query, is_range) in [("path=f", false), ("path=f&offset=100&truncate_to=200100", true)] {
        for is_reset in [false, true] {
            fs::write(place.at("f"), &old).expect("room");
            let request = ask("write", query, &[b'x'; 200_000]);
            let mut client = place.server.connect();
            client.send(&request[..request.len() - 60_000]);
            wait_until("it is being written", || match is_range {
                true => place.content("f")[100] == b'x',
                false => place.names("").len() == 2,
            });
            if is_reset {
                client.reset()
            } else {
                client.end_writing();
                client.assert_closed();
            }
            wait_until("it is let go", || place.server.resources() == before);
            assert_eq!(place.names(""), ["f"], "{query}, reset: {is_reset}");
            let found = place.content("f");
            let is_kept = found.len() == old.len() && found[200_100..] == old[200_100..];
            assert!(is_kept, "{query}, reset: {is_reset}: {} bytes", found.len());
            assert_eq!(found == old, !is_range, "{query}, reset: {is_reset}");
        }
    }
}

#[test]
fn fa2_what_is_no_file_is_refused_at_once() {
    for (way, place) in both() {
        let made = Command::new("mkfifo").arg(place.at("fifo")).status().expect("it starts");
        assert!(made.success());
        let _socket = std::os::unix::net::UnixListener::bind(place.at("socket")).expect("a socket");
        let mut names = vec!["fifo", "socket"];
        let zero = place.at("zero");
        let made = Command::new("mknod").arg(&zero).args(["c", "1", "5"]).status();
        match made.is_ok_and(|status| status.success()) {
            true => names.push("zero"),
            false => not_here("devices cannot be made"),
        }
        fs::create_dir(place.at("d")).expect("it is new");
        symlink("/dev/zero", place.at("z")).expect("it is new");
        for name in names {
            let link = format!("to-{name}");
            symlink(name, place.at(&link)).expect("it is new");
            for path in [name, &link] {
                for (call, query) in [("read", ""), ("write", ""), ("write", "&offset=0")] {
                    let start = Instant::now();
                    let answer = place.server.ask(&ask(call, &format!("path={path}{query}"), b""));
                    assert_refused(&answer, 400, "not a regular file: ");
                    assert!(start.elapsed() < Duration::from_secs(2), "{way}: {call} {path}");
                }
            }
            assert_eq!(body(&place.v1("stat", &format!("path={name}")))["type"], "file");
        }
        for query in ["", "&offset=0"] {
            assert_refused(
                &place.v1("read", &format!("path=d{query}")),
                409,
                "is a directory: 'd'",
            );
            assert_refused(
                &place.write(&format!("path=d{query}"), b""),
                409,
                "is a directory: 'd'",
            );
            assert_refused(
                &place.write(&format!("path=/{query}"), b""),
                409,
                "is a directory: '/'",
            );
            assert_refused(&place.v1("read", &format!("path=z{query}")), 400, "out of the work");
            assert_refused(&place.write(&format!("path=z{query}"), b""), 400, "out of the work");
        }
    }
}

#[test]
fn fa3_files_without_a_size_are_read() {
    // /proc tells 0: without a length everything comes, with one its first bytes; and 0 as asked.
    let whole = Server::start(&["--workspace", "/"]);
    let read = |query: &str| whole.ask(&ask("read", query, b""));
    let path = "/proc/sys/kernel/random/boot_id";
    let expected = fs::read(path).expect("Linux has it");
    for (query, part) in [
        ("", 0..37),
        ("&length=5", 0..5),
        ("&offset=3&length=5", 3..8),
        ("&offset=30&length=50", 30..37),
        ("&length=0", 0..0),
        ("&offset=37", 37..37),
        ("&offset=18446744073709551615", 37..37),
        ("&length=18446744073709551615", 0..37),
    ] {
        let answer = read(&format!("path={path}{query}"));
        assert_eq!((answer.status, &*answer.body), (200, &expected[part]), "{query}");
    }
    let sys = "/sys/kernel/uevent_seqnum";
    match fs::read(sys) {
        Ok(expected) => assert_eq!(read(&format!("path={sys}")).body.len(), expected.len()),
        Err(_) => not_here("no /sys"),
    }
    // Of one that is longer than is read without knowing how long it is, a part can be had.
    if fs::read("/proc/kpagecount").is_ok_and(|bytes| bytes.len() > 16 << 20) {
        assert_refused(&read("path=/proc/kpagecount"), 413, "over 16777216 bytes");
        assert_refused(&read("path=/proc/kpagecount&length=17000000"), 413, "over 16777216");
        assert_eq!(read("path=/proc/kpagecount&length=800").body.len(), 800);
    } else {
        not_here("no long file in /proc");
    }
    assert!(whole.peak_rss_bytes() < 64 << 20);
}

#[test]
fn fa11_a_file_that_shrinks_is_cut() {
    let place = Place::new();
    fs::write(place.at("big"), vec![0; 50_000_000]).expect("room");
    for (query, announced) in [("", 50_000_000), ("&offset=1000&length=49000000", 49_000_000)] {
        let file = fs::File::options().append(true).open(place.at("big")).expect("it is there");
        file.set_len(50_000_000).expect("room");
        let mut client = place.server.connect();
        client.send(&ask("read", &format!("path=big{query}"), b""));
        let length = client.head().header("content-length").map(str::to_owned);
        assert_eq!(length, Some(announced.to_string()));
        client.exactly(1000);
        file.set_len(0).expect("it is ours");
        let (rest, _) = client.rest();
        assert!(rest.len() < announced - 1000, "{} bytes", rest.len());
    }
    place.server.assert_alive();
}

#[test]
fn fa12_writers_at_once_do_not_mix() {
    // 16 clients with 1 MiB of their letter, 20 rounds: every file that is seen has one letter.
    let place = Place::new();
    std::thread::scope(|scope| {
        for letter in b'a'..b'a' + 16 {
            let server = &place.server;
            scope.spawn(move || {
                let mut client = server.connect();
                for _ in 0..20 {
                    client.send(&ask("write", "path=f", &vec![letter; 1 << 20]));
                    assert_eq!(client.answer().status, 200);
                    client.send(&ask("read", "path=f", b""));
                    let found = client.answer().body;
                    assert_eq!(found.len(), 1 << 20);
                    assert!(found.iter().all(|byte| *byte == found[0]), "letters mix");
                }
            });
        }
    });
    assert_eq!(place.names(""), ["f"]);
}

#[test]
fn fa19_files_of_every_size_arrive() {
    let place = Place::new();
    for size in [0, 1, 4095, 4096, 8191, 8192, 18_431, 18_432, 65_535, 65_536, 65_537, 1 << 20] {
        let data = data(size);
        for query in ["path=f", "path=g&offset=0"] {
            let answer = place.write(query, &data);
            assert_eq!((answer.status, body(&answer)["size"].as_u64()), (200, Some(size as u64)));
            let read = place.v1("read", query);
            assert!(read.body == data, "{query}: {size} bytes");
        }
    }
    // A byte at a time.
    let (data, mut client) = (data(2000), place.server.connect());
    for query in ["path=f", "path=f&offset=7"] {
        ask("write", query, &data).chunks(1).for_each(|byte| client.send(byte));
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(place.content("f"), [&data[..7], &data].concat());
}

#[test]
fn fa16_odd_names_can_be_had_written_and_removed() {
    for (way, place) in both() {
        let directory = place.at("");
        let long = [b'l'; 255];
        let names: [(&[u8], &str); 9] = [
            (b"\xff\xfe", "%FF%FE"),
            (b"50%\xff", "50%25%FF"),
            (b"50%25", "50%25"),
            (b"new\nline", "new\nline"),
            (b"quote\"\\", "quote\"\\"),
            (b"\x1b[31m", "\u{1b}[31m"),
            (b" ", " "),
            (b"a+b", "a+b"),
            (&long, str::from_utf8(&long).expect("ASCII")),
        ];
        for (name, shown) in names {
            fs::write(directory.join(std::ffi::OsStr::from_bytes(name)), name).expect("room");
            for spelling in [name, shown.as_bytes()] {
                let query = format!("path={}", encode(spelling, Component::Query));
                let read = place.v1("read", &query);
                assert_eq!((read.status, &*read.body), (200, name), "{way}: {shown}");
                let entry = body(&place.v1("stat", &query));
                assert_eq!(entry["name"], shown, "{way}");
                assert_eq!(entry["path"], format!("/{shown}"), "{way}");
            }
            let query = format!("path={}", encode(shown.as_bytes(), Component::Query));
            let deleted = body(&place.v1("delete", &query));
            assert_eq!(deleted, json!({ "deleted": format!("/{shown}") }), "{way}");
            let again = place.v1("delete", &query);
            assert_eq!(again.status, 404, "{way}: {}", again.text());
            let query = format!("path={}", encode(name, Component::Query));
            let written = body(&place.write(&query, b"x"));
            assert_eq!(written, json!({ "path": format!("/{shown}"), "size": 1 }), "{way}");
            assert_eq!(fs::read_dir(&directory).expect("it is there").count(), 1);
            assert_eq!(place.v1("delete", &query).status, 200, "{way}");
        }
        assert_eq!(place.names(""), [""; 0], "{way}");
    }
}

#[test]
fn fa16_what_a_list_shows_is_written_in_place_and_into() {
    for (way, place) in both() {
        let directory = place.at("").join(std::ffi::OsStr::from_bytes(b"d\xff"));
        fs::create_dir(&directory).expect("it is new");
        fs::write(directory.join("old"), "old").expect("room");
        for (query, path) in [
            ("path=d%25FF/old", "/d%FF/old"),
            ("path=d%25FF/new", "/d%FF/new"),
            ("path=d%25FF/old%26offset=0", "/d%FF/old&offset=0"),
        ] {
            let written = body(&place.write(query, b"new"));
            assert_eq!(written, json!({ "path": path, "size": 3 }), "{way}");
            let ranged = body(&place.write(&format!("{query}&offset=3"), b"er"));
            assert_eq!(ranged, json!({ "path": path, "size": 5 }), "{way}");
            assert_eq!(place.v1("read", query).body, b"newer", "{way}");
        }
        let made = body(&place.v1("mkdir", "path=d%25FF/sub"));
        assert_eq!(made, json!({ "created": "/d%FF/sub" }), "{way}");
        assert_eq!(fs::read_dir(&directory).expect("it is there").count(), 4, "{way}");
        assert_eq!(place.names("").len(), 1, "{way}: nothing stands beside it");
        // Where neither is there, a name is what it says.
        assert_eq!(body(&place.write("path=e%25FF", b"")), json!({ "path": "/e%FF", "size": 0 }));
        assert_eq!(place.content("e%FF"), b"", "{way}");
    }
}

#[test]
fn ranges_of_a_read_only_file_are_written_by_its_owner() {
    // As the published client uploads with mode 444, for a server that is not root: the mode is
    // said with each range, and they come at once.
    if !rustix::process::geteuid().is_root() || !installed("setpriv") {
        return not_here("only root makes a server of another user");
    }
    let place = Place::of(|workspace| {
        let home = std::path::Path::new(workspace).parent().expect("one");
        fs::set_permissions(home, fs::Permissions::from_mode(0o755)).expect("ours");
        std::os::unix::fs::chown(workspace, Some(65534), Some(65534)).expect("root may");
        let mut command = runcap();
        command.args(["serve", "--listen", "127.0.0.1:0", "--workspace", workspace]);
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        Server::of(through(&user, &command))
    });
    let data = data(64_000);
    for (round, more) in ["&mode=444", "", "&mode=444"].iter().enumerate() {
        std::thread::scope(|scope| {
            for (index, range) in data.chunks(4000).enumerate() {
                let place = &place;
                scope.spawn(move || {
                    let query = format!("path=f&offset={}{more}", index * 4000);
                    let answer = place.write(&query, range);
                    assert_eq!(answer.status, 200, "{round}: {}", answer.text());
                });
            }
        });
        assert!(place.content("f") == data, "round {round}");
        let mode = fs::metadata(place.at("f")).expect("it is there").mode();
        assert_eq!(mode & 0o7777, 0o444, "round {round}");
    }
    fs::write(place.at("roots"), "x").expect("room");
    fs::set_permissions(place.at("roots"), fs::Permissions::from_mode(0o444)).expect("ours");
    assert_refused(&place.write("path=roots&offset=0", b"y"), 403, "permission denied");
}

#[test]
fn few_descriptors_are_told_as_such_and_a_removal_does_with_what_there_is() {
    // 140 open files, all but a few taken by idle connections.
    let place = Place::of(|workspace| {
        let mut command = Command::new("sh");
        let script = "ulimit -n 140; exec \"$0\" \"$@\"";
        command.args(["-c", script]).arg(runcap().get_program());
        command.args(["serve", "--listen", "127.0.0.1:0", "--workspace", workspace]);
        command.args(["--max-connections", "108", "--max-commands", "2"]);
        Server::of(command)
    });
    let deep = format!("deep/{}", "d/".repeat(600));
    let made = place.v1("mkdir", &format!("path={deep}"));
    assert_eq!(made.status, 200, "{}", made.text());
    fs::write(place.at("f"), "x").expect("room");
    let mut client = place.server.connect();
    client.send(&ask("stat", "path=f", b""));
    assert_eq!(client.answer().status, 200);
    let limit = Some(140);
    rustix::process::prlimit(
        Some(rustix::process::Pid::from_raw(place.server.pid().cast_signed()).expect("a pid")),
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit {
            current: Some(crate::support::descriptors(place.server.pid()) as u64 + 4),
            maximum: limit,
        },
    )
    .expect("a child of ours");
    client.send(&ask("delete", "path=deep&recursive=1", b""));
    let removed = client.answer();
    assert_eq!(removed.status, 200, "{}", removed.text());
    assert!(!place.at("deep").exists());
    // None at all.
    rustix::process::prlimit(
        Some(rustix::process::Pid::from_raw(place.server.pid().cast_signed()).expect("a pid")),
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: Some(3), maximum: limit },
    )
    .expect("a child of ours");
    for call in ["read", "stat", "list", "write"] {
        client.send(&ask(call, "path=f", if call == "write" { b"y" } else { b"" }));
        let answer = client.answer();
        assert_refused(&answer, 503, "Too many open files");
        assert_eq!(answer.header("retry-after"), Some("1"), "{call}");
    }
    assert_eq!(place.content("f"), b"x");
}

#[test]
fn every_call_refuses_what_it_cannot_do() {
    let long = "n".repeat(256);
    let longer = "d/".repeat(2100);
    for (way, place) in both() {
        fs::write(place.at("file"), "old").expect("room");
        symlink("none/at/all", place.at("nowhere")).expect("it is new");
        fs::create_dir_all(place.at("dir/sub")).expect("room");
        for call in ["read", "write", "stat", "delete", "mkdir"] {
            for query in ["", "path=", "offset=1", "Path=file"] {
                assert_refused(&place.v1(call, query), 400, "missing 'path' query parameter");
            }
            assert_refused(&place.v1(call, "path=%zz"), 400, "percent-encoding '%zz'");
            assert_refused(&place.v1(call, "path=..%2fx"), 400, "out of the workspace: '../x'");
            assert_refused(&place.v1(call, "path=a%00b"), 400, "NUL");
            assert_refused(&place.v1(call, &format!("path={long}")), 400, "path is too long");
            assert_refused(&place.v1(call, &format!("path={longer}")), 400, "4095 bytes");
            let below = place.v1(call, "path=file/x");
            match call {
                "write" | "mkdir" => assert_refused(&below, 409, "not a directory: 'file/x'"),
                _ => assert_refused(&below, 404, "no such file or directory: 'file/x'"),
            }
        }
        for (call, query, status, text) in [
            ("read", "path=none", 404, "no such file or directory: 'none'"),
            ("read", "path=nowhere", 404, "no such file"),
            ("read", "path=dir", 409, "is a directory: 'dir'"),
            ("read", "path=/", 409, "is a directory: '/'"),
            ("stat", "path=none/x", 404, "no such file or directory: 'none/x'"),
            ("delete", "path=none", 404, "no such file or directory: 'none'"),
            ("delete", "path=none&recursive=1", 404, "no such file"),
            ("delete", "path=/", 400, "workspace itself"),
            ("delete", "path=dir/..&recursive=true", 400, "workspace itself"),
            ("delete", "path=dir", 400, "recursive=1"),
            ("delete", "path=dir&recursive=0", 400, "recursive=1"),
            ("delete", "path=dir&recursive=yes", 400, "recursive=1"),
            ("mkdir", "path=file", 409, "not a directory: 'file'"),
            ("mkdir", "path=nowhere", 409, "not a directory: 'nowhere'"),
            ("write", "path=a/b&mkdir=0", 404, "no such file or directory: 'a/b'"),
            ("write", "path=a/b&mkdir=false&offset=0", 404, "no such file or directory: 'a/b'"),
        ] {
            assert_refused(&place.v1(call, query), status, text);
        }
        assert_eq!(place.names(""), ["dir", "file", "nowhere"], "{way}");
        assert_eq!(place.content("file"), b"old");
        let chunked = "PUT /v1/files/write?path=c HTTP/1.1\r\nHost: localhost\r\n\
                       Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
        let refused = place.server.ask(chunked.as_bytes());
        let text = "chunked request bodies not supported; send Content-Length";
        assert_refused(&refused, 411, text);
        // And what it can.
        for query in ["path=file&mkdir=0", "path=dir/new&mkdir=0&offset=0", "path=a/b&mkdir=no"] {
            assert_eq!(place.write(query, b"x").status, 200, "{way}: {query}");
        }
        assert_eq!(place.write("path=nowhere&mkdir=0", b"x").status, 404, "{way}");
    }
}

#[test]
fn stat_and_mkdir_say_what_there_is() {
    for (way, place) in both() {
        fs::create_dir(place.at("d")).expect("it is new");
        let file = fs::File::create(place.at("d/f")).expect("room");
        file.set_len(12_345).expect("room");
        let early = std::time::UNIX_EPOCH - Duration::from_micros(1_500_001);
        file.set_modified(early).expect("it is ours");
        file.set_permissions(fs::Permissions::from_mode(0o4750)).expect("it is ours");
        symlink("f", place.at("d/l")).expect("it is new");
        let stat = |query: &str| {
            let answer = place.v1("stat", query);
            assert_eq!(answer.status, 200, "{way}: {query}: {}", answer.text());
            body(&answer)
        };
        let expected = json!({
            "name": "f", "path": "/d/f", "type": "file", "size": 12_345, "mtime_ms": -1501,
            "mode": "4750",
        });
        assert_eq!(stat("path=d/./f"), expected, "{way}");
        assert_eq!(
            (stat("path=d/l")["type"].clone(), stat("path=/d")["type"].clone()),
            (json!("symlink"), json!("dir"))
        );
        let root = stat("path=/");
        assert_eq!(
            (&root["name"], &root["path"], &root["type"]),
            (&json!("/"), &json!("/"), &json!("dir"))
        );
        assert_eq!(stat("path=."), root);
        let now = std::time::UNIX_EPOCH.elapsed().expect("it is later").as_millis() as i64;
        let told = root["mtime_ms"].as_i64().expect("a number");
        assert!((now - told).abs() < 60_000, "{told} at {now}");

        for (query, created) in [
            ("path=new/x/y", "/new/x/y"),
            ("path=/new//x/", "/new/x"),
            ("path=d", "/d"),
            ("path=/", "/"),
        ] {
            let answer = place.v1("mkdir", query);
            let expected = (200, json!({ "created": created }));
            assert_eq!((answer.status, body(&answer)), expected, "{way}");
        }
        assert_eq!(mode(&place, "new/x/y"), 0o755, "{way}");
    }
}

#[test]
fn a_removal_takes_the_link_and_never_its_target() {
    for (way, place) in both() {
        fs::create_dir_all(place.at("kept/sub")).expect("room");
        fs::write(place.at("kept/sub/f"), "x").expect("room");
        fs::create_dir_all(place.at("tree/a/b")).expect("room");
        fs::create_dir(place.at("empty")).expect("it is new");
        fs::write(place.home.path().join("outside"), "x").expect("room");
        for (name, target) in [
            ("l", "kept"),
            ("dangling", "none"),
            ("loop", "loop"),
            ("out", "../outside"),
            ("tree/a/l", "../../kept"),
            ("tree/out", "../.."),
        ] {
            symlink(target, place.at(name)).expect("it is new");
        }
        for number in 0..40 {
            fs::write(place.at(&format!("tree/a/b/{number}")), "x").expect("room");
        }
        for (query, deleted) in [
            ("path=l/&recursive=1", "/l"),
            ("path=dangling", "/dangling"),
            ("path=loop", "/loop"),
            ("path=out", "/out"),
            ("path=empty", "/empty"),
            ("path=kept/sub/f&recursive=1", "/kept/sub/f"),
            ("path=tree&recursive=true", "/tree"),
        ] {
            let answer = place.v1("delete", query);
            let expected = (200, json!({ "deleted": deleted }));
            assert_eq!((answer.status, body(&answer)), expected, "{way}: {query}");
        }
        assert_eq!(
            (place.names(""), place.names("kept")),
            (vec!["kept".to_owned()], vec!["sub".to_owned()])
        );
        assert!(place.home.path().join("outside").exists());
    }
}

/// A chain of `depth` directories called `x` in `at`, with a file in every tenth. Made from
/// the inside out, since no path reaches so far.
pub fn chain(at: &std::path::Path, depth: usize) {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let mode = Mode::from_raw_mode(0o755);
    let open = |here: &std::os::fd::OwnedFd| {
        openat(here, "x", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("it is there")
    };
    let mut here =
        openat(CWD, at, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a directory");
    for number in 0..depth {
        mkdirat(&here, "x", mode).expect("room");
        if number % 10 == 0 {
            openat(&here, "kept", OFlags::CREATE | OFlags::WRONLY, mode).expect("room");
        }
        here = open(&here);
    }
}

fn in_memory() -> Place {
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    Place::below(home.expect("a directory"), |workspace| Server::start(&["--workspace", workspace]))
}

#[test]
fn deep_and_wide_trees_go_with_few_descriptors_and_little_memory() {
    // 5,000 levels, far beyond what one path can say; 100,000 files; and 2,000 directories with a
    // file each 40 levels down. With 100 open files in all.
    let place = Place::below(
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory"),
        |workspace| {
            let mut serve = runcap();
            serve.args(["serve", "--listen", "127.0.0.1:0", "--workspace", workspace]);
            Server::of(crate::support::after("ulimit -n 100", &serve))
        },
    );
    fs::create_dir_all(place.at("deep/er")).expect("room");
    chain(&place.at("deep/er"), 5000);
    fs::create_dir(place.at("wide")).expect("room");
    for number in 0..100_000 {
        fs::write(place.at(&format!("wide/{number}")), "").expect("room");
    }
    let below = "b/".repeat(40);
    for number in 0..2000 {
        fs::create_dir_all(place.at(&format!("many/{below}{number}"))).expect("room");
        fs::write(place.at(&format!("many/{below}{number}/f")), "").expect("room");
    }
    let before = place.server.peak_rss_bytes();
    for name in ["deep", "wide", "many"] {
        let start = Instant::now();
        let answer = place.v1("delete", &format!("path={name}&recursive=1"));
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        println!("{name}: {:?}", start.elapsed());
    }
    assert_eq!(place.names(""), [""; 0]);
    let grown = place.server.peak_rss_bytes() - before;
    assert!(grown < 4 << 20, "{grown} bytes");
}

#[test]
fn a_directory_that_is_filled_all_the_time_is_told_or_removed() {
    // Two threads make a few names in it anew without end: it goes in a pause of theirs, or the
    // answer says why not, and never takes for ever.
    let place = in_memory();
    let is_over = AtomicBool::new(false);
    fs::create_dir(place.at("d")).expect("it is new");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (place, is_over) = (&place, &is_over);
            scope.spawn(move || {
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    number += 1;
                    let name = place.at(&format!("d/{thread}-{}", number % 64));
                    // It may have been removed: then it is made anew, and filled again.
                    let made = match number % 8 {
                        0 => fs::create_dir(name),
                        _ => fs::write(name, ""),
                    };
                    if made.is_err() {
                        let _ = fs::create_dir(place.at("d"));
                    }
                }
            });
        }
        for _ in 0..3 {
            let start = Instant::now();
            let answer = place.v1("delete", "path=d&recursive=1");
            println!("{} after {:?}", answer.status, start.elapsed());
            match answer.status {
                200 | 404 => {}
                _ => assert_refused(&answer, 409, "directory not empty: 'd'"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!([200, 404].contains(&place.v1("delete", "path=d&recursive=1").status));
}

#[test]
fn what_cannot_be_removed_is_named() {
    // A mount point deep in a tree, with the same file system and with another one; and, for a
    // server that is not root, a directory that is somebody else's.
    if !rustix::process::geteuid().is_root() || !installed("unshare") {
        return not_here("no mount namespace");
    }
    for mount in ["mount -t tmpfs t", "mount --bind ../outside"] {
        let home = tempfile::tempdir().expect("a directory");
        fs::create_dir(home.path().join("outside")).expect("it is new");
        fs::write(home.path().join("outside/f"), "kept").expect("room");
        let place = Place::below(home, |workspace| {
            let mut serve = runcap();
            serve.args(["serve", "--listen", "127.0.0.1:0", "--workspace", workspace]);
            let script = format!(
                "cd {workspace} && mkdir -p tree/a/m && {mount} tree/a/m && touch tree/a/m/g && \
                 exec \"$@\""
            );
            Server::of(through(&["unshare", "-m", "sh", "-c", &script, "sh"], &serve))
        });
        let answer = place.v1("delete", "path=tree&recursive=1");
        assert_refused(&answer, 409, "mount point: 'tree/a/m'");
        let answer = place.v1("delete", "path=tree/a/m&recursive=1");
        assert_refused(&answer, 409, "mount point: 'tree/a/m'");
        assert_eq!(place.v1("stat", "path=tree/a/m/g").status, 200, "{mount}");
        assert_eq!(fs::read(place.home.path().join("outside/f")).expect("there"), b"kept");
    }
    if !installed("setpriv") {
        return;
    }
    let place = Place::of(|workspace| {
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(workspace, open.clone()).expect("it is ours");
        let above = std::path::Path::new(workspace).parent().expect("one");
        fs::set_permissions(above, open).expect("it is ours");
        let mut serve = runcap();
        serve.args(["serve", "--listen", "127.0.0.1:0", "--workspace", workspace]);
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        Server::of(through(&user, &serve))
    });
    assert_eq!(place.write("path=tree/a/f", b"x").status, 200);
    fs::create_dir_all(place.at("tree/a/locked/sub")).expect("room");
    let answer = place.v1("delete", "path=tree&recursive=1");
    assert_refused(&answer, 403, "permission denied: 'tree/a/locked/sub'");
    fs::set_permissions(place.at("tree/a/locked"), fs::Permissions::from_mode(0o0)).expect("ours");
    let answer = place.v1("delete", "path=tree&recursive=1");
    assert_refused(&answer, 403, "permission denied: 'tree/a/locked'");
    fs::write(place.at("f"), "x").expect("room");
    fs::set_permissions(place.at("f"), fs::Permissions::from_mode(0o0)).expect("ours");
    for (call, query) in [("read", "path=f"), ("write", "path=f&offset=0")] {
        assert_refused(&place.v1(call, query), 403, "permission denied: 'f'");
    }
}
