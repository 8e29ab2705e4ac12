//! No path and no link leads out of the workspace: every attack with openat2(2) and without it, and
//! the same answers.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::http::{Answer, Client, Server};
use crate::serve_files::{Place, request};
use crate::serve_sandbox_files::{ask, chain};
use crate::serve_uploads::json_upload;
use crate::support::helper;

const SECRET: &str = "outside";

/// Fills a place: secrets beside the workspace, and links to them in every position.
fn lay_out(place: &Place) {
    let home = place.home.path();
    for name in ["secret", "workspace-leak/f", "outside/f"] {
        let path = home.join(name);
        fs::create_dir_all(path.parent().expect("one")).expect("room");
        fs::write(path, SECRET).expect("room");
    }
    fs::create_dir_all(place.at("in/deep")).expect("room");
    fs::write(place.at("in/f"), "inside").expect("room");
    fs::write(place.at("a+b"), "plus").expect("room");
    let absolute = |name: &str| home.join(name).into_os_string().into_string().expect("text");
    for (name, target) in [
        ("absolute", &*absolute("secret")),
        ("absolute-directory", &absolute("outside")),
        ("absolute-inside", &absolute("workspace/in/f")),
        ("dangling", &absolute("fa4.new")),
        ("dangling-relative", "../fa4.new"),
        ("up", "../secret"),
        ("up-directory", "../outside"),
        ("far-up", "../../../../../../../../../../etc/passwd"),
        ("in/deep/up", "../../../secret"),
        ("in-and-out", "in/../../secret"),
        ("parent", ".."),
        ("here", "."),
        ("sibling", "../workspace-leak"),
        ("two", "up-directory"),
        ("good", "in/f"),
        ("good-directory", "in"),
        ("in/deep/good", "../f"),
        ("in/deep/top", "../.."),
        ("nowhere", "in/none"),
        ("loop", "loop"),
        ("slash", "in/f/"),
        ("passwd", "/etc/passwd"),
        ("proc", "/proc/self/root"),
    ] {
        symlink(target, place.at(name)).expect("it is new");
    }
}

/// Paths as they are sent, and the status of a download.
const ATTACKS: [(&str, u16); 60] = [
    ("in/f", 200),
    ("good", 200),
    ("good/", 200),
    ("good-directory/f", 200),
    ("in/deep/good", 200),
    ("in/deep/top/in/f", 200),
    ("here/here/in/f", 200),
    ("./././in/f", 200),
    ("//in//f", 200),
    ("in/f/", 200),
    ("in/f/.", 200),
    ("in/nothing/../f", 200),
    ("in/%2e%2e/in/f", 200),
    ("in%2Ff", 200),
    ("a+b", 200),
    ("a%2Bb", 200),
    ("a%20b", 404),
    ("in%252Ff", 404),
    ("%252e%252e/secret", 404),
    ("nowhere", 404),
    ("slash", 404),
    ("in/f/x", 404),
    ("/etc/passwd", 404),
    ("in", 400),
    ("here", 400),
    ("", 400),
    (".", 400),
    ("in/..", 400),
    ("absolute", 400),
    ("absolute-directory/f", 400),
    ("absolute-inside", 400),
    ("dangling", 400),
    ("dangling-relative", 400),
    ("up", 400),
    ("up-directory/f", 400),
    ("far-up", 400),
    ("in/deep/up", 400),
    ("in-and-out", 400),
    ("parent", 400),
    ("parent/secret", 400),
    ("parent/workspace/in/f", 400),
    ("sibling/f", 400),
    ("two/f", 400),
    ("loop", 400),
    ("passwd", 400),
    ("proc/etc/passwd", 400),
    ("../secret", 400),
    ("../workspace/in/f", 400),
    ("..", 400),
    ("../workspace-leak/f", 400),
    ("..%2fworkspace-leak/f", 400),
    ("%2e%2e/workspace-leak/f", 400),
    ("%2E%2E%2Fsecret", 400),
    ("in/../../secret", 400),
    ("in/../../../../../../../etc/passwd", 400),
    ("/../secret", 400),
    ("in%00/f", 400),
    ("a%00b", 400),
    ("%zz", 400),
    ("%2", 400),
];

fn both() -> [(&'static str, Place); 2] {
    let places = [("openat2", Place::new()), ("steps", Place::stepping())];
    places.iter().for_each(|(_, place)| lay_out(place));
    places
}

fn shown(answer: &Answer) -> (u16, String) {
    (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
}

#[test]
fn fa4_fa6_no_path_leads_out_when_read() {
    let places = both();
    for (path, status) in ATTACKS {
        let answers = places.each_ref().map(|(name, place)| {
            let answer = shown(&place.get(path));
            assert_eq!(answer.0, status, "{path} with {name}: {}", answer.1);
            assert!(
                !answer.1.contains(SECRET) && !answer.1.contains("root:"),
                "{path}: {}",
                answer.1
            );
            answer
        });
        assert_eq!(answers[0], answers[1], "{path}");
        // As a directory.
        let path = path.replace('+', "%2B");
        let lists = places.each_ref().map(|(_, place)| place.list(&format!("path={path}")).status);
        assert_eq!(lists[0], lists[1], "{path}");
        let is_directory = ["in", "here", ".", "in/..", "in/deep/top"].contains(&&*path);
        assert_eq!(lists[0] == 200, is_directory, "{path}: {lists:?}");
    }
}

#[test]
fn fa4_no_path_leads_out_when_written() {
    // Each path as the target of an upload: what is outside stays as it is.
    let places = both();
    let decoded = |path: &str| {
        use runcap::wire::http::target::{Plus, decode};
        decode(path, Plus::Stays).ok().and_then(|path| String::from_utf8(path).ok())
    };
    let more = ["absolute-directory/new", "sibling/new", "two/new/er", "dangling/x", "loop/x"];
    for (path, read) in ATTACKS.into_iter().chain(more.map(|path| (path, 400))) {
        let Some(path) = decoded(path) else { continue };
        let answers = places.each_ref().map(|(name, place)| {
            let answer = place.server.ask(&json_upload(&path, b"new", None));
            let home = place.home.path();
            for name in ["secret", "workspace-leak/f", "outside/f"] {
                assert_eq!(fs::read_to_string(home.join(name)).expect("there"), SECRET, "{path}");
            }
            let mut names: Vec<_> = fs::read_dir(home).expect("a directory").collect();
            names.extend(fs::read_dir(home.join("outside")).expect("a directory"));
            names.extend(fs::read_dir(home.join("workspace-leak")).expect("a directory"));
            assert_eq!(names.len(), 6, "{path} with {name}: {names:?}");
            // What can be read can be replaced, and what leads out is refused.
            match read {
                200 => assert_eq!(answer.status, 200, "{path} with {name}: {}", answer.text()),
                400 => assert_eq!(answer.status, 400, "{path} with {name}: {}", answer.text()),
                _ => {}
            }
            let mut body = crate::serve_files::body(&answer);
            body.as_object_mut().expect("an object").remove("modified");
            (answer.status, body)
        });
        assert_eq!(answers[0], answers[1], "{path}");
    }
    let link = places[0].1.at("good");
    assert_eq!(fs::read_link(link).expect("still one"), Path::new("in/f"));
}

#[test]
fn fa4_fa6_no_path_of_a_sandbox_client_leads_out() {
    // Each path in each call, with openat2(2) and without: the same answer, and nothing of what is
    // outside is read, changed, removed or added to.
    let places = both();
    let outside = |place: &Place| {
        let home = place.home.path();
        for name in ["secret", "workspace-leak/f", "outside/f"] {
            assert_eq!(fs::read_to_string(home.join(name)).expect("there"), SECRET, "{name}");
        }
        let count = |at: &Path| fs::read_dir(at).expect("a directory").count();
        [home, &home.join("outside"), &home.join("workspace-leak")].map(count)
    };
    let more = ["absolute-directory/new", "sibling/new", "two/new/er", "dangling/x", "loop/x"];
    for (path, read) in ATTACKS.into_iter().chain(more.map(|path| (path, 400))) {
        let path = path.replace('+', "%2B");
        for (call, more, content) in [
            ("read", "", &b""[..]),
            ("stat", "", b""),
            ("write", "", b"new"),
            ("write", "&offset=2", b"new"),
            ("write", "&offset=0&truncate_to=1&mkdir=0", b"new"),
            ("mkdir", "", b""),
        ] {
            let query = format!("path={path}{more}");
            let answers = places.each_ref().map(|(name, place)| {
                let answer = place.server.ask(&ask(call, &query, content));
                assert_eq!(outside(place), [4, 1, 1], "{call} {query} with {name}");
                let text = answer.text().to_owned();
                assert!(!text.contains(SECRET), "{call} {query} with {name}: {text}");
                // Their times differ.
                let text = text.split("mtime_ms").next().expect("one").to_owned();
                if call == "read" || call == "write" {
                    let is_read = answer.status == 200;
                    assert!(!is_read || read != 400, "{call} {query} with {name}: {text}");
                }
                (answer.status, text)
            });
            assert_eq!(answers[0], answers[1], "{call} {query}");
        }
    }
    for (path, _) in ATTACKS {
        let path = path.replace('+', "%2B");
        for more in ["", "&recursive=1"] {
            let query = format!("path={path}{more}");
            let answers = places.each_ref().map(|(name, place)| {
                let answer = place.v1("delete", &query);
                assert_eq!(outside(place), [4, 1, 1], "delete {query} with {name}");
                (answer.status, answer.text().to_owned())
            });
            assert_eq!(answers[0], answers[1], "delete {query}");
        }
    }
    assert_eq!(places[0].1.names(""), places[1].1.names(""));
}

#[test]
fn a_tree_that_changes_all_the_time_is_removed_without_leaving_it() {
    // Links to a chain of the same names outside take the place of the tree and of directories in
    // it, near and far down, and what was removed is made anew, while it is removed over and over.
    for (name, place) in both() {
        let outside = place.home.path().join("outside");
        chain(&outside, 90);
        let is_over = AtomicBool::new(false);
        let mut counts = [0; 2];
        std::thread::scope(|scope| {
            scope.spawn(|| disturb(&place, &is_over));
            let mut client = place.server.connect();
            let start = Instant::now();
            while counts[0] < 400 && start.elapsed() < Duration::from_secs(10) {
                client.send(&ask("delete", "path=tree&recursive=1", b""));
                let answer = client.answer();
                match answer.status {
                    200 => counts[0] += 1,
                    400 | 404 | 409 => counts[1] += 1,
                    status => panic!("{name}: {status}: {}", answer.text()),
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        println!("{name}: {counts:?}");
        assert!(counts[0] > 0, "{name}: it is removed at times: {counts:?}");
        let mut at = outside;
        assert_eq!(fs::read_to_string(at.join("f")).expect("there"), SECRET, "{name}");
        for depth in 0..90 {
            let is_kept = at.is_dir() && at.join("kept").exists() == (depth % 10 == 0);
            assert!(is_kept, "{name}: level {depth} outside");
            at.push("x");
        }
    }
}

/// Makes a deep tree and exchanges parts of it with links to the same names outside, and back,
/// until it is told to stop. Everything may fail: the tree is being removed meanwhile. A second
/// thread of this kind would itself reach outside, through the links of the first.
fn disturb(place: &Place, is_over: &AtomicBool) {
    let (tree, outside) = (place.at("tree"), place.home.path().join("outside"));
    let link = place.at("link");
    let mut turn = 0;
    while !is_over.load(Ordering::Relaxed) {
        turn += 1;
        let below = "x/".repeat([0, 1, 2, 40, 60][turn % 5]);
        let at = tree.join(below.trim_end_matches('/'));
        let at = if below.is_empty() { &tree } else { &at };
        let _ = fs::create_dir_all(tree.join("x/".repeat(70)));
        let _ = fs::write(at.join("g"), "");
        let _ = symlink(outside.join(&below), &link);
        for _ in 0..100 {
            let _ = renameat_with(CWD, at, CWD, &link, RenameFlags::EXCHANGE);
        }
        // The link is there again, or the directory.
        let _ = fs::remove_file(&link).or_else(|_| fs::remove_dir_all(&link));
    }
}

#[test]
fn other_spellings_of_a_route_are_no_route_and_get_around_no_token() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), "s3cret").expect("room");
    let token = file.path().to_str().expect("text");
    let place =
        Place::of(|workspace| Server::start(&["--workspace", workspace, "--token-file", token]));
    fs::write(place.at("f"), "inside").expect("room");
    assert_eq!(place.get("f").status, 401);
    for target in [
        "/api/files",
        "/api/files?path=/",
        "/api/files/",
        "/api/files/../files/f",
        "/api//files/f",
        "http://localhost/api/files/f",
        "/api/%66iles/f",
        "/%61pi/files/f",
        "//api/files/f",
        "/./api/files/f",
        "/v1/../api/files/f",
        "/API/files/f",
        "/health/../api/files/f",
        "/api%2Ffiles/f",
        "/api/files%2Ff",
        "/api\\files/f",
    ] {
        let answer = place.server.ask(&request(&format!("GET {target}"), &[], b""));
        assert!([401, 403, 404].contains(&answer.status), "{target}: {}", answer.status);
    }
    let bearer = "Authorization: Bearer s3cret";
    let known = |target: &str| place.server.ask(&request(&format!("GET {target}"), &[bearer], b""));
    assert_eq!(known("/api/files/f").text(), "inside");
    for target in ["/api//files/f", "/api/%66iles/f", "/api/filesf", "/api/files%2Ff"] {
        assert_eq!(known(target).status, 404, "{target}");
    }
}

#[test]
fn a_root_that_is_the_whole_machine_follows_absolute_links() {
    // --workspace /: absolute links lead where they say, `..` too many are refused as text, and
    // links of /proc to descriptors and roots are not followed.
    let place = Place::new();
    lay_out(&place);
    let home = place.home.path().to_str().expect("text");
    let mut steps = Command::new(helper());
    steps.args(["runcap-without", "openat2", "serve", "--listen", "127.0.0.1:0"]);
    steps.args(["--workspace", "/"]);
    let servers = [Server::start(&["--workspace", "/"]), Server::of(steps)];
    let rows = [
        (format!("{home}/workspace/absolute"), 200),
        (format!("{home}/workspace/up"), 200),
        (format!("{home}/workspace/far-up"), 200),
        (format!("{home}/workspace/parent/secret"), 200),
        (format!("/{home}/secret"), 200),
        (format!("{home}/workspace/proc/etc/passwd"), 400),
        ("/proc/self/root/etc/passwd".to_owned(), 400),
        ("/proc/self/cwd/Cargo.toml".to_owned(), 400),
        ("/proc/self/exe".to_owned(), 400),
        ("/proc/self/fd/0".to_owned(), 400),
        ("/proc/self/status".to_owned(), 200),
        ("/proc/mounts".to_owned(), 200),
        ("/../etc/passwd".to_owned(), 400),
        ("/etc/../../etc/passwd".to_owned(), 400),
        ("/etc/passwd".to_owned(), 200),
    ];
    for (path, status) in rows {
        for server in &servers {
            let answer = server.ask(&request(&format!("GET /api/files{path}"), &[], b""));
            assert_eq!(answer.status, status, "{path}: {}", String::from_utf8_lossy(&answer.body));
        }
    }
    for (number, server) in servers.iter().enumerate() {
        let content = number.to_string();
        let path = format!("{home}/workspace/dangling");
        let answer = server.ask(&json_upload(&path, content.as_bytes(), None));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let made = place.home.path().join("fa4.new");
        assert_eq!(fs::read_to_string(made).expect("made through the link"), content);
    }
}

#[test]
fn a_name_that_changes_all_the_time_never_leads_out() {
    // A directory and a link to one outside change places without end, while 20,000 requests read
    // and write below that name. Some fail; none reaches outside.
    for (name, place) in both() {
        let (directory, link) = (place.at("swap"), place.at("other"));
        fs::create_dir(&directory).expect("it is new");
        fs::write(directory.join("f"), "inside").expect("room");
        symlink("../outside", &link).expect("it is new");
        let counts = while_exchanged(&directory, &link, || attack(&place));
        eprintln!("{name}: {counts:?}");
        assert!(counts[0] > 100 && counts[1] > 100, "{name}: both happen: {counts:?}");
        let outside = place.home.path().join("outside");
        assert_eq!(fs::read_to_string(outside.join("f")).expect("there"), SECRET, "{name}");
        assert_eq!(fs::read_dir(outside).expect("a directory").count(), 1, "{name}");
        for directory in ["swap", "other"] {
            if !place.at(directory).is_symlink() {
                let names = place.names(directory);
                assert!(names.iter().all(|name| !name.starts_with('.')), "{name}: {names:?}");
            }
        }
    }
}

#[test]
fn a_file_that_is_a_pipe_at_times_is_read_as_a_file_only() {
    // The same with a file and a FIFO, 4,000 times: its content or a refusal, never a wait.
    let place = Place::new();
    let (file, pipe) = (place.at("f"), place.at("p"));
    fs::write(&file, "inside").expect("room");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("it starts");
    assert!(made.success());
    while_exchanged(&file, &pipe, || {
        let mut client = place.server.connect();
        for _ in 0..4000 {
            client.send(&request("GET /api/files/f", &[], b""));
            let answer = client.answer();
            match answer.status {
                200 => assert_eq!(answer.text(), "inside"),
                status => assert_eq!(status, 400, "{}", answer.text()),
            }
        }
    });
}

/// Does `action` while two names are exchanged without end.
fn while_exchanged<T>(one: &Path, other: &Path, action: impl FnOnce() -> T) -> T {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let exchanged = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
                exchanged.expect("both are there");
            }
        });
        // Also when it panics: nobody waits for it then.
        let _over = Over(&is_over);
        action()
    })
}

/// Reads, lists and writes below `swap`; how many succeeded, and how many did not.
fn attack(place: &Place) -> [u32; 2] {
    let mut counts = [0; 2];
    let mut client: Client = place.server.connect();
    for turn in 0..20_000 {
        client.send(&match turn % 4 {
            0 | 1 => request("GET /api/files/swap/f", &[], b""),
            2 => request("GET /api/files?path=swap", &[], b""),
            _ => json_upload(&format!("swap/w{}", turn % 8), b"inside", None),
        });
        let answer = client.answer();
        let text = String::from_utf8_lossy(&answer.body);
        match answer.status {
            200 => counts[0] += 1,
            400 | 404 => counts[1] += 1,
            status => panic!("{status}: {text}"),
        }
        assert!(!text.contains(SECRET), "it leads out: {text}");
    }
    counts
}
