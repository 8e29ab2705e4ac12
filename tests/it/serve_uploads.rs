//! PicoD's uploads: a file is there whole or as it was before, whatever happens on the way.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use runcap::wire::base64::Encoder;

use crate::http::Server;
use crate::serve_files::{Place, assert_refused, body, request};
use crate::support::{installed, json, keys, not_here, runcap, through, wait_until};

/// A whole request.
pub fn json_upload(path: &str, content: &[u8], mode: Option<&str>) -> Vec<u8> {
    let (mut encoder, mut text) = (Encoder::new(), Vec::new());
    encoder.feed(content, &mut text).expect("room");
    encoder.finish(&mut text).expect("room");
    let content = String::from_utf8(text).expect("ASCII");
    let mut body = json!({ "path": path, "content": content });
    if let Some(mode) = mode {
        body["mode"] = mode.into();
    }
    request("POST /api/files", &["Content-Type: application/json"], body.to_string().as_bytes())
}

const TYPE: &str = "Content-Type: multipart/form-data; boundary=XyZ";

/// The body of a form; a part called `file` has a file's name.
fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, content) in parts {
        let file = if *name == "file" { "; filename=\"local.bin\"" } else { "" };
        let head =
            format!("--XyZ\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        body.extend_from_slice(&[head.as_bytes(), content, b"\r\n"].concat());
    }
    body.extend_from_slice(b"--XyZ--\r\n");
    body
}

fn form_upload(parts: &[(&str, &[u8])]) -> Vec<u8> {
    request("POST /api/files", &[TYPE], &form(parts))
}

/// Every way to upload the same.
fn uploads(path: &str, content: &[u8]) -> [(&'static str, Vec<u8>); 3] {
    [
        ("JSON", json_upload(path, content, None)),
        ("form", form_upload(&[("path", path.as_bytes()), ("file", content)])),
        ("form, path last", form_upload(&[("file", content), ("path", path.as_bytes())])),
    ]
}

#[test]
fn the_answer_says_what_was_stored() {
    let place = Place::new();
    let parts: [(&str, &[u8]); 3] = [("mode", b"0751"), ("file", b"abc"), ("path", b"/a/./b//c")];
    let rows = [
        ("JSON", json_upload("a/../a/b/c", b"abc", Some("0751"))),
        ("form", form_upload(&[parts[2], parts[1], parts[0]])),
        ("form, path last", form_upload(&parts)),
    ];
    for (name, request) in rows {
        let answer = place.server.ask(&request);
        let body = body(&answer);
        assert_eq!(keys(&body), ["mode", "modified", "path", "size"], "{name}");
        let shown = (&body["path"], &body["size"], &body["mode"]);
        assert_eq!(shown, (&json!("a/b/c"), &json!(3), &json!("-rwxr-x--x")), "{name}");
        assert_eq!(fs::read(place.at("a/b/c")).expect("it is there"), b"abc", "{name}");
        let parent = fs::metadata(place.at("a/b")).expect("it is there").mode();
        assert_eq!(parent & 0o7777, 0o755, "{name}");
        fs::remove_dir_all(place.at("a")).expect("it is there");
    }
    assert_eq!(place.names(""), [""; 0]);
}

#[test]
fn what_cannot_be_stored_is_refused_and_leaves_nothing() {
    let place = Place::new();
    fs::write(place.at("file"), "old").expect("room");
    fs::create_dir(place.at("dir")).expect("it is new");
    let missing = "Missing 'path' field";
    let long = "x".repeat(9000);
    let twice: [(&str, &[u8]); 4] = [("path", b"a"), ("file", b""), ("file", b""), ("mode", b"")];
    let rows = [
        ("no path", form_upload(&[("file", b"x")]), 400, missing),
        ("empty path", form_upload(&[("path", b""), ("file", b"x")]), 400, missing),
        ("no file", form_upload(&[("path", b"a")]), 400, "Failed to get file: "),
        ("two files", form_upload(&twice), 400, "'file' is given twice"),
        ("long", form_upload(&[("file", b"x"), ("path", long.as_bytes())]), 400, "8192 bytes"),
        ("NUL", form_upload(&[("path", b"a\0b"), ("file", b"x")]), 400, "NUL"),
        (
            "boundary",
            request("POST /api/files", &["Content-Type: multipart/form-data"], b"x"),
            400,
            "boundary is missing",
        ),
        ("cut form", request("POST /api/files", &[TYPE], &form(&twice[..2])[..90]), 400, "ends"),
        ("no JSON", request("POST /api/files", &[], b"x"), 400, "JSON"),
        (
            "base64",
            request("POST /api/files", &[], br#"{"path":"a","content":"*"}"#),
            400,
            "Invalid base64 content: ",
        ),
    ];
    for (name, request, status, text) in rows {
        eprintln!("{name}");
        assert_refused(&place.server.ask(&request), status, text);
    }
    for (path, text) in [
        ("dir", "Path is a directory, not a file"),
        ("/", "Path is a directory, not a file"),
        ("file/x", "a part of it is not a directory"),
        ("../x", "leads out of the workspace"),
        ("a/../../x", "leads out of the workspace"),
        (&*"n".repeat(256), "the path is too long"),
        (&*"d/".repeat(2100), "4095 bytes"),
    ] {
        for (name, request) in uploads(path, b"x") {
            eprintln!("{name} {path:.20}");
            assert_refused(&place.server.ask(&request), 400, text);
        }
    }
    let large = request("POST /api/files", &[TYPE], &vec![b'x'; (32 << 20) + 1]);
    let mut client = place.server.connect();
    client.send_until_refused(&large, 1);
    assert_eq!(client.answer().status, 413);
    assert_eq!(place.names(""), ["dir", "file"]);
    assert_eq!(fs::read(place.at("file")).expect("it is there"), b"old");
}

#[test]
fn fa7_nothing_of_a_longer_old_file_stays() {
    let place = Place::new();
    for (name, request) in uploads("f", b"short") {
        fs::write(place.at("f"), "x".repeat(1000)).expect("room");
        assert_eq!(place.server.ask(&request).status, 200, "{name}");
        assert_eq!(place.get("f").text(), "short", "{name}");
    }
}

#[test]
fn fa8_a_full_disk_leaves_the_old_file() {
    // A workspace of 64 KiB in a mount namespace of the server's own, and 1 MiB for it: 507, the
    // old content, nothing beside it, and room as before.
    if !rustix::process::geteuid().is_root() || !installed("unshare") {
        return not_here("no mount namespace");
    }
    let place = Place::of(|workspace| {
        let mut serve = runcap();
        serve.args(["serve", "--listen", "127.0.0.1:0", "--workspace", workspace]);
        let mount = format!("mount -t tmpfs -o size=64k t {workspace} && exec \"$@\"");
        Server::of(through(&["unshare", "-m", "sh", "-c", &mount, "sh"], &serve))
    });
    let upload = |content: &[u8]| uploads("f", content);
    assert_eq!(place.server.ask(&upload(b"ORIGINAL")[0].1).status, 200);
    for (name, request) in upload(&vec![b'x'; 1 << 20]) {
        let mut client = place.server.connect();
        client.send_until_refused(&request, 1);
        assert_refused(&client.answer(), 507, "no space left on device");
        assert_eq!(place.get("f").text(), "ORIGINAL", "{name}");
        let list = body(&place.list("path=/"));
        assert_eq!(list["files"].as_array().map(Vec::len), Some(1), "{name}: {list}");
    }
    for (name, request) in upload(&vec![b'y'; 40_000]) {
        // While the old file of the same length is there too, there is no room for both.
        let status = place.server.ask(&request).status;
        assert_eq!(status, if name == "JSON" { 200 } else { 507 }, "{name}");
        assert_eq!(place.get("f").body, vec![b'y'; 40_000], "{name}");
    }
}

#[test]
fn fa9_a_client_that_leaves_has_stored_nothing() {
    // 100 bytes announced and fewer sent, then an end or a reset, with an old file and without: it
    // is as before, nothing lies beside it, and no thread or descriptor is held.
    let place = Place::new();
    fs::write(place.at("old"), "old").expect("room");
    let before = place.server.resources();
    for path in ["old", "new", "sub/new"] {
        for (name, request) in uploads(path, &[b'x'; 200_000]) {
            for is_reset in [false, true] {
                let mut client = place.server.connect();
                client.send(&request[..request.len() - 60_000]);
                if !name.starts_with("JSON") {
                    wait_until("it is being written", || {
                        let names = [place.names(""), place.names_or_none("sub")].concat();
                        names.iter().any(|name| name.starts_with(".runcap-"))
                    });
                }
                if is_reset {
                    client.reset()
                } else {
                    client.end_writing()
                }
                wait_until("it is let go", || place.server.resources() == before);
                let names = place.names("");
                let names: Vec<_> = names.iter().filter(|name| *name != "sub").collect();
                assert_eq!(names, ["old"], "{name}, reset: {is_reset}");
                assert_eq!(place.names_or_none("sub"), [""; 0], "{name}, reset: {is_reset}");
                assert_eq!(fs::read(place.at("old")).expect("it is there"), b"old");
            }
        }
    }
}

#[test]
fn a_server_that_ends_under_an_upload_leaves_nothing_of_it() {
    // TERM while a client does not send the rest: the old file, and nothing beside it.
    let mut place = Place::new();
    fs::write(place.at("f"), "old").expect("room");
    let request = &uploads("f", &[b'x'; 200_000])[1].1;
    let mut client = place.server.connect();
    client.send(&request[..request.len() - 60_000]);
    wait_until("it is being written", || place.names("").len() == 2);
    assert_eq!(place.server.stop().code(), Some(128 + 15));
    assert_eq!(place.names(""), ["f"]);
    assert_eq!(fs::read(place.at("f")).expect("it is there"), b"old");
}

impl Place {
    fn names_or_none(&self, directory: &str) -> Vec<String> {
        if self.at(directory).exists() { self.names(directory) } else { Vec::new() }
    }
}

#[test]
fn fa12_writers_at_once_do_not_mix() {
    // 16 clients, each with 1 MiB of its letter, 20 rounds: all succeed, and a reader sees one
    // letter every time.
    let place = Place::new();
    std::thread::scope(|scope| {
        for letter in b'a'..=b'p' {
            let place = &place;
            scope.spawn(move || {
                let content = vec![letter; 1 << 20];
                let request = form_upload(&[("path", b"f"), ("file", &content)]);
                let mut client = place.server.connect();
                for _ in 0..20 {
                    client.send(&request);
                    assert_eq!(client.answer().status, 200);
                    let seen = place.get("f").body;
                    assert_eq!(seen.len(), 1 << 20);
                    assert!(seen.iter().all(|byte| *byte == seen[0]), "mixed");
                }
            });
        }
    });
    assert_eq!(place.names(""), ["f"]);
}

#[test]
fn fa13_mode_and_links_are_kept_and_hard_links_split() {
    let place = Place::new();
    for (name, upload) in [("s", "s"), ("l", "l")].map(|(name, path)| (name, uploads(path, b"new")))
    {
        for (way, request) in upload {
            for old in place.names("") {
                fs::remove_file(place.at(&old)).expect("it is there");
            }
            fs::write(place.at("s"), "a\n").expect("room");
            fs::set_permissions(place.at("s"), fs::Permissions::from_mode(0o755)).expect("ours");
            fs::hard_link(place.at("s"), place.at("h")).expect("room");
            symlink("s", place.at("l")).expect("it is new");
            assert_eq!(place.server.ask(&request).status, 200, "{name} {way}");
            let read = |name: &str| fs::read_to_string(place.at(name)).expect("it is there");
            assert_eq!(
                (read("s"), read("l"), read("h")),
                ("new".into(), "new".into(), "a\n".into())
            );
            assert_eq!(fs::read_link(place.at("l")).expect("still one"), Path::new("s"));
            assert_eq!(fs::metadata(place.at("s")).expect("a file").mode() & 0o7777, 0o755);
        }
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(place.at("s"), Some(12), Some(34)).expect("root may");
        assert_eq!(place.server.ask(&json_upload("s", b"x", None)).status, 200);
        let found = fs::metadata(place.at("s")).expect("a file");
        assert_eq!((found.uid(), found.gid()), (12, 34), "the owner is kept");
    }
}

#[test]
fn fa19_every_size_arrives() {
    let place = Place::new();
    let sizes =
        [0, 1, 4095, 4096, 8191, 8192, 18_431, 18_432, 65_535, 65_536, 65_537, 1 << 20, 20_000_000];
    for size in sizes {
        let content: Vec<u8> = (0..size).map(|at: usize| (at * 7 % 253) as u8).collect();
        for (name, request) in uploads("f", &content) {
            let answer = place.server.ask(&request);
            assert_eq!(body(&answer)["size"], size, "{name}");
            assert!(place.get("f").body == content, "{name}, {size} bytes");
        }
    }
    // A byte at a time.
    for (name, request) in uploads("f", b"\r\n--XyZa\r\n--Xy\r\n--XyZ-x\r--XyZ--") {
        let mut client = place.server.connect();
        request.chunks(1).for_each(|byte| client.send(byte));
        assert_eq!(client.answer().status, 200, "{name}");
    }
    // In chunks, of which nobody says the length before.
    let head = format!("POST /api/files HTTP/1.1\r\nHost: localhost\r\n{TYPE}\r\n");
    let form = form(&[("path", b"f"), ("file", b"in chunks")]);
    let chunk = format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", form.len());
    let request = [head.as_bytes(), chunk.as_bytes(), &form, b"\r\n0\r\n\r\n"].concat();
    assert_eq!(place.server.ask(&request).status, 200);
    assert_eq!(place.get("f").text(), "in chunks");
}

#[test]
fn a_form_is_not_held_in_memory() {
    // 30 MB as a form, twice at once.
    let place = Place::new();
    let content = vec![b'x'; 30_000_000];
    let request = form_upload(&[("path", b"f"), ("file", &content)]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(place.server.ask(&request).status, 200));
        }
    });
    let peak = place.server.peak_rss_bytes();
    assert!(peak < 12 << 20, "{peak} bytes");
}
