//! `runcap client`: files that are none, servers that are full, the library.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::sync::Arc;

use runcap::client::get::{chunks, read};
use runcap::client::run::run;
use runcap::client::{Error, Server};
use runcap::wire::sandbox::client::request::{Cmd, ExecRequest};

use crate::client_run::{client, done, url};
use crate::serve_files::Place;
use crate::serve_sandbox_files::data;

const MIB: usize = 1 << 20;

fn place(args: &[&str]) -> Place {
    Place::of(|workspace| {
        let all: Vec<&str> = args.iter().copied().chain(["--workspace", workspace]).collect();
        crate::http::Server::start(&all)
    })
}

fn library(place: &Place) -> Server {
    Server::new(url(&place.server).parse().expect("an address"), None)
}

#[test]
fn a_full_server_has_fewer_ranges_moved_at_once() {
    // Six connections for 32 jobs, both ways, and two clients at once.
    let place = place(&["--max-connections", "6"]);
    let content = data(24 * MIB + 5);
    fs::write(place.at("f"), &content).expect("room");
    let here = tempfile::tempdir().expect("a directory");
    std::thread::scope(|scope| {
        for name in ["one", "other"] {
            let (place, here, content) = (&place, here.path().join(name), &content);
            scope.spawn(move || {
                let local = here.to_str().expect("text");
                let url = url(&place.server);
                let args = ["get", "--jobs", "32", "f", local];
                done(client(&url, &args)).assert_silent(name);
                assert!(fs::read(local).expect("it is there") == *content, "{name}");
                let args = ["put", "--jobs", "32", local, name];
                done(client(&url, &args)).assert_silent(name);
                assert!(fs::read(place.at(name)).expect("it is there") == *content, "{name}");
            });
        }
    });
}

#[test]
fn what_tells_no_size_is_moved_whole() {
    let place = place(&[]);
    let content = data(3 * MIB);
    fs::write(place.at("big"), &content).expect("room");
    symlink("big", place.at("link")).expect("it is new");
    let here = tempfile::tempdir().expect("a directory");
    let at = |name: &str| here.path().join(name).to_str().expect("text").to_owned();
    let url = url(&place.server);
    done(client(&url, &["get", "link", &at("l")])).assert_silent("a link");
    assert!(fs::read(at("l")).expect("it is there") == content);
    done(client(&url, &["put", "/proc/self/status", "status"])).assert_silent("a file of /proc");
    let status = fs::read_to_string(place.at("status")).expect("it is there");
    assert!(status.starts_with("Name:"), "{status}");
    let server = Arc::new(library(&place));
    for name in ["big", "link"] {
        let mut whole = vec![0; content.len()];
        let mut moved = 0;
        for piece in chunks(&server, name.as_bytes(), 4).expect("it is there") {
            let (offset, bytes) = piece.expect("it comes whole");
            let offset = usize::try_from(offset).expect("it fits");
            whole[offset..offset + bytes.len()].copy_from_slice(&bytes);
            moved += bytes.len();
        }
        assert!(whole == content && moved == content.len(), "{name}: {moved} bytes");
        assert!(read(&server, name.as_bytes()).expect("it is there") == content, "{name}");
    }
    // Whoever takes no more pieces is left alone.
    let mut pieces = chunks(&server, b"big", 4).expect("it is there");
    assert!(pieces.next().is_some());
    drop(pieces);
    let none = chunks(&server, b"none", 4).err();
    assert!(matches!(none, Some(Error::Refused(404, _))), "{none:?}");
}

#[test]
fn what_is_no_file_here_stays_what_it_is() {
    let place = place(&[]);
    fs::write(place.at("f"), "content").expect("room");
    let here = tempfile::tempdir().expect("a directory");
    let fifo = here.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).expect("it is new");
    symlink(&fifo, here.path().join("to-fifo")).expect("it is new");
    for name in ["fifo", "to-fifo"] {
        let local = here.path().join(name);
        let args = ["get", "f", local.to_str().expect("text")];
        let refused = done(client(&url(&place.server), &args));
        refused.assert_failed(name, "it is no file: give - and redirect stdout to it");
    }
    assert!(fs::metadata(&fifo).expect("it is there").file_type().is_fifo());
    assert_eq!(fs::read_dir(here.path()).expect("a directory").count(), 2, "nothing is left");
    // What may not grow is told as such, and not a death by SIGXFSZ.
    fs::write(place.at("big"), data(3 * MIB)).expect("room");
    let mut command = std::process::Command::new("sh");
    let target = here.path().join("big");
    command.args(["-c", "ulimit -f 1000; exec \"$0\" client --url \"$1\" get big \"$2\""]);
    command.args([env!("CARGO_BIN_EXE_runcap"), &url(&place.server)]).arg(&target);
    done(command).assert_failed("ulimit -f", "File too large");
    assert_eq!(fs::read_dir(here.path()).expect("a directory").count(), 2, "nothing is left");
}

#[test]
fn the_last_value_of_a_variable_wins() {
    let place = place(&[]);
    let args = ["run", "-e", "A=1", "-e", "A=2", "--", "printenv", "A"];
    let ran = done(client(&url(&place.server), &args));
    ran.assert_silent("twice");
    assert_eq!(ran.stdout, b"2\n");
}

#[test]
fn output_that_is_not_captured_is_seen_and_not_kept() {
    let place = place(&[]);
    let server = library(&place);
    let request = ExecRequest {
        cmd: Cmd::Shell("echo out; echo err >&2; exit 3"),
        cwd: None,
        env: &[],
        stdin: None,
        timeout: None,
        tag: None,
    };
    for capture_output in [true, false] {
        let mut seen = [String::new(), String::new()];
        let ran = run(&server, &request, capture_output, &mut |stream, text| {
            seen[stream as usize].push_str(text);
            Ok(())
        });
        let ran = ran.expect("it runs");
        assert_eq!((ran.ended.exit_code, ran.ended.timed_out), (Some(3), false));
        assert_eq!(seen, ["out\n", "err\n"]);
        let kept = if capture_output { ["out\n", "err\n"] } else { ["", ""] };
        assert_eq!([&*ran.stdout, &*ran.stderr], kept);
    }
}
