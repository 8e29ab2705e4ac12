//! PicoD's files: downloads and lists of odd files, odd names and many of them.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use runcap::wire::http::target::{Component, encode};

use crate::http::{Answer, Server};
use crate::support::{Value, helper, json, not_here, wait_until};

/// A server, its workspace, and what lies beside that.
pub struct Place {
    pub home: tempfile::TempDir,
    pub server: Server,
}

impl Place {
    pub fn new() -> Place {
        Place::of(|workspace| Server::start(&["--workspace", workspace]))
    }

    /// Without openat2(2).
    pub fn stepping() -> Place {
        Place::of(|workspace| {
            let mut command = Command::new(helper());
            command.args(["runcap-without", "openat2", "serve", "--listen", "127.0.0.1:0"]);
            command.args(["--workspace", workspace]);
            Server::of(command)
        })
    }

    pub fn of(start: impl FnOnce(&str) -> Server) -> Place {
        Place::below(tempfile::tempdir().expect("a directory"), start)
    }

    pub fn below(home: tempfile::TempDir, start: impl FnOnce(&str) -> Server) -> Place {
        let workspace = home.path().join("workspace");
        fs::create_dir(&workspace).expect("it is new");
        let server = start(workspace.to_str().expect("text"));
        Place { home, server }
    }

    /// A path in the workspace.
    pub fn at(&self, name: &str) -> PathBuf {
        self.home.path().join("workspace").join(name)
    }

    /// What is in a directory of the workspace, sorted.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(directory)).expect("it can be read");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("an entry").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort_unstable();
        names
    }

    pub fn get(&self, path: &str) -> Answer {
        self.server.ask(&request(&format!("GET /api/files/{path}"), &[], b""))
    }

    pub fn range(&self, path: &str, range: &str) -> Answer {
        let range = format!("Range: {range}");
        self.server.ask(&request(&format!("GET /api/files/{path}"), &[&range], b""))
    }

    pub fn list(&self, query: &str) -> Answer {
        self.server.ask(&request(&format!("GET /api/files?{query}"), &[], b""))
    }
}

pub fn request(line: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{line} HTTP/1.1\r\nHost: localhost\r\n");
    for header in headers {
        text += &format!("{header}\r\n");
    }
    text += &format!("Content-Length: {}\r\n\r\n", body.len());
    [text.as_bytes(), body].concat()
}

/// The body of an answer, as JSON.
#[track_caller]
pub fn body(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&answer.body)))
}

/// Asserts status and text of a refusal.
#[track_caller]
pub fn assert_refused(answer: &Answer, status: u16, text: &str) {
    let body = body(answer);
    assert_eq!((answer.status, body["code"].as_u64()), (status, Some(status.into())), "{body}");
    let error = body["error"].as_str().expect("text");
    assert!(error.contains(text), "{error:?} has {text:?}");
}

/// The names of a list.
#[track_caller]
fn listed(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = body(answer);
    let files = body["files"].as_array().expect("a list");
    files.iter().map(|file| file["name"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn a_download_is_told_as_an_attachment() {
    // The headers of WIRE.md, and HEAD the same without the body.
    let place = Place::new();
    fs::write(place.at("a.json"), "{}\n").expect("room");
    let (get, head) = (place.get("a.json"), {
        let mut client = place.server.connect();
        client.send(&request("HEAD /api/files/a.json", &[], b""));
        client.head()
    });
    assert_eq!((get.status, &*get.body), (200, &b"{}\n"[..]));
    for answer in [&get, &head] {
        for (name, value) in [
            ("content-type", "application/json"),
            ("content-length", "3"),
            ("content-description", "File Transfer"),
            ("content-transfer-encoding", "binary"),
            ("content-disposition", "attachment; filename=\"a.json\""),
            ("accept-ranges", "bytes"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{name}");
        }
        let modified = answer.header("last-modified").expect("a moment");
        assert!(modified.ends_with(" GMT") && modified.len() == 29, "{modified}");
    }
    assert_refused(&place.get("nowhere"), 404, "File not found");
    assert_refused(&place.get("a.json/x"), 404, "File not found");
    assert_refused(&place.get(""), 400, "Path is a directory, not a file");
    for line in ["PUT /api/files/a.json", "DELETE /api/files/a.json", "PUT /api/files"] {
        assert_eq!(place.server.ask(&request(line, &[], b"")).status, 404, "{line}");
    }
}

#[test]
fn fa2_devices_pipes_and_sockets_are_refused() {
    // Each kind, and a link to it: refused within a second, and nothing is read or written.
    let place = Place::new();
    let mknod = |name: &str, kind: &[&str]| {
        Command::new("mknod").arg(place.at(name)).args(kind).status().is_ok_and(|s| s.success())
    };
    assert!(mknod("fifo", &["p"]), "anybody may make one");
    let _socket = std::os::unix::net::UnixListener::bind(place.at("socket")).expect("a socket");
    let mut names = vec!["fifo", "socket"];
    match mknod("zero", &["c", "1", "5"]) {
        true => names.push("zero"),
        false => not_here("devices cannot be made"),
    }
    for name in names {
        let link = format!("to-{name}");
        symlink(name, place.at(&link)).expect("it is new");
        for path in [name, &link] {
            let start = Instant::now();
            assert_refused(&place.get(path), 400, "Path is not a regular file");
            let upload = crate::serve_uploads::json_upload(path, b"x", None);
            assert_refused(&place.server.ask(&upload), 400, "Path is not a regular file");
            assert!(start.elapsed() < Duration::from_secs(2), "{path}");
        }
    }
    for (name, target) in [("z", "/dev/zero"), ("t", "/dev/tty")] {
        symlink(target, place.at(name)).expect("it is new");
        assert_refused(&place.get(name), 400, "leads out of the workspace");
    }
    let whole = Server::start(&["--workspace", "/"]);
    let zero = whole.ask(&request("GET /api/files/dev/zero", &[], b""));
    assert_refused(&zero, 400, "Path is not a regular file");
}

#[test]
fn fa3_files_without_a_size_come_whole() {
    // /proc tells 0 for all its files, /sys 4096: what can be read comes, and ranges of it.
    let whole = Server::start(&["--workspace", "/"]);
    let get = |path: &str, headers: &[&str]| {
        whole.ask(&request(&format!("GET /api/files/{path}"), headers, b""))
    };
    let status = get("proc/self/status", &[]);
    assert_eq!(status.status, 200);
    assert!(status.text().starts_with("Name:\truncap\n"), "{}", status.text());
    let path = "/proc/sys/kernel/random/boot_id";
    let expected = fs::read(path).expect("Linux has it");
    assert_eq!(get(path.trim_start_matches('/'), &[]).body, expected);
    let part = get(path, &["Range: bytes=9-12"]);
    assert_eq!((part.status, &*part.body), (206, &expected[9..13]));
    assert_eq!(part.header("content-range"), Some("bytes 9-12/37"));
    let sys = "/sys/kernel/uevent_seqnum";
    match fs::read(sys) {
        Ok(expected) => assert_eq!(get(sys, &[]).body.len(), expected.len()),
        Err(_) => not_here("no /sys"),
    }
    // More than is read without knowing how much it is.
    if Path::new("/proc/kpagecount").exists() {
        let answer = get("proc/kpagecount", &[]);
        assert!([413, 403].contains(&answer.status), "{}", answer.text());
    }
    assert!(whole.peak_rss_bytes() < 64 << 20);
}

#[test]
fn fa10_ranges_of_a_download() {
    let place = Place::new();
    fs::write(place.at("f"), "0123456789").expect("room");
    fs::write(place.at("empty"), "").expect("room");
    let large: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
    fs::write(place.at("large"), &large).expect("room");
    for (range, expected, shown) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=9-9", "9", "bytes 9-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=-100", "0123456789", "bytes 0-9/10"),
        ("bytes=0-18446744073709551615", "0123456789", "bytes 0-9/10"),
    ] {
        let answer = place.range("f", range);
        let told = answer.header("content-range");
        assert_eq!((answer.status, answer.text(), told), (206, expected, Some(shown)), "{range}");
    }
    for range in ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=18446744073709551616-"] {
        let answer = place.range("f", range);
        assert_eq!(answer.header("content-range"), Some("bytes */10"), "{range}");
        assert_refused(&answer, 416, "10 bytes");
    }
    for range in ["bytes=5-2", "bytes=0-4,6-8", "bytes=abc", "bits=0-1"] {
        let answer = place.range("f", range);
        let told = answer.header("content-range");
        assert_eq!((answer.status, answer.text(), told), (200, "0123456789", None), "{range}");
    }
    assert_eq!(place.range("empty", "bytes=0-").status, 416);
    assert_eq!((place.range("empty", "bytes=-1").status, place.get("empty").body.len()), (200, 0));
    let part = place.range("large", "bytes=100000-299998");
    assert_eq!((part.status, &*part.body), (206, &large[100_000..299_999]));
    // A part of another version is no use.
    let get = |header: &str| {
        place.server.ask(&request("GET /api/files/f", &["Range: bytes=1-2", header], b""))
    };
    let version = place.get("f").header("last-modified").expect("a moment").to_owned();
    assert_eq!(get(&format!("If-Range: {version}")).status, 206);
    assert_eq!(get("If-Range: Sun, 06 Nov 1994 08:49:37 GMT").status, 200);
}

#[test]
fn fa11_a_file_that_changes_comes_as_announced_or_is_cut() {
    // 50 MB, of which the client takes the head and a bit; then it is emptied, or it grows.
    let place = Place::new();
    const BYTES: usize = 50_000_000;
    for is_cut in [true, false] {
        fs::write(place.at("big"), vec![0; BYTES]).expect("room");
        let mut client = place.server.connect();
        client.send(&request("GET /api/files/big", &[], b""));
        assert_eq!(client.head().header("content-length"), Some("50000000"));
        client.exactly(1000);
        let file = fs::File::options().append(true).open(place.at("big")).expect("it is there");
        file.set_len(if is_cut { 0 } else { BYTES as u64 + 1000 }).expect("room");
        if is_cut {
            let (rest, _) = client.rest();
            assert!(rest.len() < BYTES - 1000, "{} bytes", rest.len());
            continue;
        }
        client.exactly(BYTES - 1000);
        client.send(&request("GET /health", &[], b""));
        assert_eq!(client.answer().status, 200, "the next answer is where it belongs");
    }
    place.server.assert_alive();
}

#[test]
fn fa16_every_name_is_listed_and_can_be_had() {
    // Names that are no text, with control bytes, quotes and percents, the longest, and a space.
    let place = Place::new();
    let long = [b'l'; 255];
    let names: [&[u8]; 12] = [
        b"\xff\xfe",
        b"50%\xff",
        b"50%25",
        b"new\nline",
        b"quote\"",
        b"back\\slash",
        b"\x1b[31m",
        b"-rf",
        b" ",
        b"a+b",
        "h\u{e9}\u{2028}".as_bytes(),
        &long,
    ];
    let directory = place.at("");
    for name in names {
        fs::write(directory.join(std::ffi::OsStr::from_bytes(name)), name).expect("room");
    }
    let found = listed(&place.list("path=/"));
    // In the order of the names themselves.
    let mut sorted = names;
    sorted.sort_unstable();
    assert_eq!(found.len(), sorted.len());
    let is_shown = |(shown, raw): (&String, &[u8])| match str::from_utf8(raw) {
        Ok(text) => shown == text,
        Err(_) => shown.contains("%FF"),
    };
    assert!(found.iter().zip(sorted).all(is_shown), "{found:?}");
    let mut contents = Vec::new();
    for name in &found {
        // As a client would: the name as it was told, encoded for a path.
        let answer = place.get(&encode(name.as_bytes(), Component::Path));
        assert_eq!(answer.status, 200, "{name:?}");
        contents.push(answer.body);
    }
    contents.sort_unstable();
    let mut expected = names.map(<[u8]>::to_vec);
    expected.sort_unstable();
    assert_eq!(contents, expected);
    assert_eq!(place.get("%FF%FE").body, b"\xff\xfe", "its bytes name it too");
}

#[test]
fn fa17_a_huge_directory_comes_in_pages() {
    // 60,000 entries: without pages 413; in pages each name once and in order, also while files
    // come and go between them, and in bounded memory. On a disk, making them takes ten seconds.
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let place = Place::below(home.expect("a directory"), |workspace| {
        Server::start(&["--workspace", workspace])
    });
    fs::create_dir(place.at("many")).expect("it is new");
    for number in 0..60_000 {
        fs::write(place.at(&format!("many/{number:05}")), "").expect("room");
    }
    assert_refused(&place.list("path=many"), 413, "limit");
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let answer = place.list(&format!("path=many&limit=7000&after={after}"));
        let page = listed(&answer);
        assert!(page.len() <= 7000);
        seen.extend(page);
        let body = body(&answer);
        let Some(next) = body["next"].as_str() else {
            assert_eq!((&body["truncated"], &body["next"]), (&json!(false), &Value::Null));
            break;
        };
        assert_eq!((&body["truncated"], next), (&json!(true), &**seen.last().expect("one")));
        next.clone_into(&mut after);
        // Before the cursor: must not come. After it: must come.
        fs::write(place.at(&format!("many/{after}-b")), "").expect("room");
        fs::remove_file(place.at(&format!("many/{}", seen[0]))).ok();
    }
    let kept = seen.iter().filter(|name| name.len() == 5).count();
    assert_eq!(kept, 60_000);
    assert!(seen.is_sorted_by(|one, next| one < next), "no name twice");
    let peak = place.server.peak_rss_bytes();
    assert!(peak < 40 << 20, "{peak} bytes");
}

#[test]
fn lists_say_what_an_entry_is() {
    let place = Place::new();
    fs::create_dir(place.at("d")).expect("it is new");
    fs::write(place.at("d/file"), "12345").expect("room");
    fs::set_permissions(place.at("d/file"), fs::Permissions::from_mode(0o640)).expect("it is ours");
    fs::create_dir(place.at("d/sub")).expect("it is new");
    fs::set_permissions(place.at("d/sub"), fs::Permissions::from_mode(0o1777)).expect("ours");
    symlink("nowhere", place.at("d/link")).expect("it is new");
    let list = body(&place.list("path=d"));
    assert_eq!(crate::support::keys(&list), ["files"]);
    let files = list["files"].as_array().expect("a list");
    let shown: Vec<_> =
        files.iter().map(|f| (f["name"].clone(), f["mode"].clone(), f["is_dir"].clone())).collect();
    let expected = [
        ("file", "-rw-r-----", false),
        ("link", "Lrwxrwxrwx", false),
        ("sub", "dtrwxrwxrwx", true),
    ];
    assert_eq!(shown, expected.map(|(n, m, d)| (json!(n), json!(m), json!(d))));
    assert_eq!(files[0]["size"], 5);
    let keys = ["is_dir", "mode", "modified", "name", "size"];
    assert_eq!(crate::support::keys(&files[0]), keys);
    assert_eq!(body(&place.list("path=d/sub")), json!({ "files": [] }));
    let page = json!({ "files": [], "truncated": false, "next": null });
    assert_eq!(body(&place.list("path=d/sub&limit=1")), page);
    for (query, status, text) in [
        ("", 400, "Missing 'path' query parameter"),
        ("path=", 400, "Missing 'path' query parameter"),
        ("path=nowhere", 404, "Directory not found"),
        ("path=d/file", 400, "Path is a file, not a directory"),
        ("path=d/link", 404, "Directory not found"),
        ("path=..", 400, "leads out of the workspace"),
        ("path=%zz", 400, "percent-encoding"),
        ("path=d&limit=0", 400, "Invalid limit"),
        ("path=d&limit=x", 400, "Invalid limit"),
        ("path=d&limit=50001", 400, "Invalid limit"),
    ] {
        assert_refused(&place.list(query), status, text);
    }
}

#[test]
fn fa18_a_name_cannot_leave_its_header() {
    let place = Place::new();
    for (name, expected) in [
        ("a\r\nX-Evil: 1", "attachment; filename=\"a__X-Evil: 1\"; filename*=UTF-8''a%0D%0A"),
        ("\u{540d}", "attachment; filename=\"_\"; filename*=UTF-8''%E5%90%8D"),
    ] {
        fs::write(place.at(name), "x").expect("room");
        let answer = place.get(&encode(name.as_bytes(), Component::Path));
        assert_eq!((answer.status, answer.text()), (200, "x"));
        let told = answer.header("content-disposition").expect("a name");
        assert!(told.starts_with(expected), "{told}");
        assert_eq!(answer.header("x-evil"), None);
    }
}

#[test]
fn a_path_that_may_not_be_read_is_403() {
    // A server that is not root, and a file and a directory that are nobody's.
    if !rustix::process::geteuid().is_root() || !crate::support::installed("setpriv") {
        return not_here("only root makes a server that may not read");
    }
    let place = Place::of(|workspace| {
        let mut command = crate::support::runcap();
        command.args(["serve", "--listen", "127.0.0.1:0", "--workspace", workspace]);
        fs::set_permissions(Path::new(workspace).parent().expect("one"), open_mode())
            .expect("ours");
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        Server::of(crate::support::through(&user, &command))
    });
    fs::write(place.at("f"), "x").expect("room");
    fs::set_permissions(place.at("f"), fs::Permissions::from_mode(0o0)).expect("ours");
    fs::create_dir(place.at("d")).expect("it is new");
    fs::set_permissions(place.at("d"), fs::Permissions::from_mode(0o0)).expect("ours");
    assert_refused(&place.get("f"), 403, "permission denied");
    assert_refused(&place.get("d/f"), 403, "permission denied");
    assert_refused(&place.list("path=d"), 403, "permission denied");
    let upload = crate::serve_uploads::json_upload("new", b"x", None);
    assert_refused(&place.server.ask(&upload), 403, "permission denied");
    assert_eq!(place.names(""), ["d", "f"]);
}

fn open_mode() -> fs::Permissions {
    fs::Permissions::from_mode(0o755)
}

#[test]
fn a_workspace_that_cannot_be_used_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    fs::write(home.path().join("file"), "").expect("room");
    for (name, expected) in [("nowhere", "No such file"), ("file", "Not a directory")] {
        let path = home.path().join(name);
        let mut command = crate::support::runcap();
        command.args(["serve", "--listen", "127.0.0.1:0", "--workspace"]).arg(&path);
        let ended = Server::try_of(command).map(|_| ()).expect_err("it does not begin");
        assert_eq!(ended.0.code(), Some(125));
        let message = format!("runcap: cannot use the workspace {}: {expected}", path.display());
        assert!(ended.1.starts_with(&message), "{}", ended.1);
    }
}

#[test]
fn fa11_an_abandoned_download_holds_nothing() {
    // A client that leaves in the middle: descriptors and threads are as before.
    let place = Place::new();
    fs::write(place.at("big"), vec![0; 20_000_000]).expect("room");
    let before = place.server.resources();
    for _ in 0..20 {
        let mut client = place.server.connect();
        client.send(&request("GET /api/files/big", &[], b""));
        client.head();
        client.reset();
    }
    wait_until("all is let go", || place.server.resources() == before);
}
