//! `runcap client get` and `put`: files that arrive whole or not at all, whatever happens on
//! the way.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::client_run::{Done, client, done, fed, start, url};
use crate::serve_files::Place;
use crate::serve_sandbox_files::data;
use crate::support::{Signal, installed, measured, not_here, number, send, through, wait_until};

const MIB: usize = 1 << 20;

/// What happens to one connection through a [`Proxy`].
#[derive(Clone)]
enum Fate {
    Pass,
    /// It ends after so many bytes from the server; with a reset or not.
    CutDown(u64, bool),
    /// It ends after so many bytes from the client.
    CutUp(u64, bool),
    /// After so many bytes from the server nothing more comes until the gate is open.
    Hold(u64, Arc<Gate>),
}

#[derive(Default)]
struct Gate {
    reached: AtomicBool,
    open: AtomicBool,
}

impl Gate {
    fn wait_until_reached(&self) {
        wait_until("the transfer is half done", || self.reached.load(Ordering::SeqCst));
    }

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

/// A path to a server on which connections break.
struct Proxy {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Proxy {
    /// `fate` is told how many connections there were before.
    fn new(target: SocketAddr, fate: impl Fn(usize) -> Fate + Send + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has one");
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.expect("a connection");
                let fate = fate(count.fetch_add(1, Ordering::SeqCst));
                // A server that is gone is a connection that breaks.
                let Ok(far) = TcpStream::connect(target) else { continue };
                let (up, down) = (fate.clone(), fate);
                let again = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                let (near_again, far_again) = (again(&near), again(&far));
                thread::spawn(move || up.pass(true, near_again, far_again));
                thread::spawn(move || down.pass(false, far, near));
            }
        });
        Proxy { address, connections }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Fate {
    /// Passes bytes on, from the client where it is up.
    fn pass(self, is_up: bool, mut from: TcpStream, mut to: TcpStream) {
        let (mut left, is_reset, gate) = match self {
            Fate::CutDown(most, is_reset) if !is_up => (most, is_reset, None),
            Fate::CutUp(most, is_reset) if is_up => (most, is_reset, None),
            Fate::Hold(most, gate) if !is_up => (most, false, Some(gate)),
            _ => (u64::MAX, false, None),
        };
        let mut piece = vec![0; 64 << 10];
        loop {
            if left == 0 {
                let Some(gate) = &gate else { break };
                gate.reached.store(true, Ordering::SeqCst);
                while !gate.open.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(2));
                }
                left = u64::MAX;
            }
            let most = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
            let count = from.read(&mut piece[..most]).unwrap_or(0);
            if count == 0 || to.write_all(&piece[..count]).is_err() {
                break;
            }
            left -= count as u64;
        }
        let near = if is_up { &from } else { &to };
        if is_reset && left == 0 {
            let linger = Some(Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(near, linger).expect("a socket");
        }
        for stream in [&from, &to] {
            // The other direction may have ended it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// A directory for the files of this side.
struct Here(tempfile::TempDir);

impl Here {
    fn new() -> Here {
        Here(tempfile::tempdir().expect("a directory"))
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.at(name), content).expect("room");
        self.at(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("it can be read");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }
}

/// Runs `ACTION ARGS` to its end.
#[track_caller]
fn ask(url: &str, action: &str, args: &[&OsStr]) -> Done {
    let args: Vec<&OsStr> = [OsStr::new(action)].iter().chain(args).copied().collect();
    done(client(url, &args))
}

#[track_caller]
fn get(url: &str, jobs: &str, remote: &str, local: &Path) -> Done {
    ask(url, "get", &["--jobs".as_ref(), jobs.as_ref(), remote.as_ref(), local.as_os_str()])
}

#[track_caller]
fn put(url: &str, jobs: &str, local: &Path, remote: &str) -> Done {
    ask(url, "put", &["--jobs".as_ref(), jobs.as_ref(), local.as_os_str(), remote.as_ref()])
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

#[test]
fn every_size_arrives_both_ways() {
    let (place, here) = (Place::new(), Here::new());
    let url = url(&place.server);
    for size in [0, 1, MIB, 2 * MIB, 2 * MIB + 1, 37 * MIB + 13] {
        let content = data(size);
        let local = here.write("local", &content);
        for jobs in ["1", "3", "16"] {
            let what = format!("{size} bytes, {jobs} jobs");
            // What stood there was longer.
            fs::write(place.at("f"), vec![b'o'; size + 4097]).expect("room");
            put(&url, jobs, &local, "f").assert_silent(&what);
            assert!(fs::read(place.at("f")).expect("it is there") == content, "put {what}");
            let back = here.write("back", &vec![b'o'; size + 4097]);
            get(&url, jobs, "f", &back).assert_silent(&what);
            assert!(fs::read(&back).expect("it is there") == content, "get {what}");
        }
        let what = format!("{size} bytes, stdin and stdout");
        fs::write(place.at("f"), vec![b'o'; size + 4097]).expect("room");
        fed(client(&url, &["put", "-", "f"]), &content).assert_silent(&what);
        assert!(fs::read(place.at("f")).expect("it is there") == content, "put {what}");
        let printed = done(client(&url, &["get", "f", "-"]));
        printed.assert_silent(&what);
        assert!(printed.stdout == content, "get {what}");
    }
    assert_eq!(place.names(""), ["f"]);
    assert_eq!(here.names(), ["back", "local"]);
}

#[test]
fn modes_are_kept_unless_others_are_given() {
    let (place, here) = (Place::new(), Here::new());
    let url = url(&place.server);
    for size in [10, 3 * MIB] {
        let local = here.write("local", &data(size));
        let local = local.as_os_str();
        let (there, back) = (place.at("f"), here.at("back"));
        let rows = [("a new one", "640", 0o640), ("over it", "4711", 0o4711)];
        for (name, given, expected) in rows {
            let args = ["--mode".as_ref(), given.as_ref(), local, "f".as_ref()];
            ask(&url, "put", &args).assert_silent(name);
            assert_eq!(mode(&there), expected, "put, {name}, {size} bytes");
            let args = ["--mode".as_ref(), given.as_ref(), "f".as_ref(), back.as_os_str()];
            ask(&url, "get", &args).assert_silent(name);
            assert_eq!(mode(&back), expected, "get, {name}, {size} bytes");
        }
        for path in [&there, &back] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o751)).expect("ours");
        }
        put(&url, "2", Path::new(local), "f").assert_silent("kept");
        get(&url, "2", "f", &back).assert_silent("kept");
        assert_eq!((mode(&there), mode(&back)), (0o751, 0o751), "{size} bytes");
        // A new one gets what new files get.
        fs::remove_file(&back).expect("it is there");
        get(&url, "2", "f", &back).assert_silent("new");
        assert_eq!(mode(&back), mode(&here.write("other", b"")), "{size} bytes");
        fs::remove_file(&back).expect("it is there");
        fs::remove_file(&there).expect("it is there");
    }
    for given in ["8", "10000", "-1", "", "u+x"] {
        let refused = ask(&url, "get", &["--mode", given, "f", "x"].map(OsStr::new));
        assert_eq!(refused.code, Some(125), "{given:?}");
    }
}

#[test]
fn odd_names_are_names() {
    let (place, here) = (Place::new(), Here::new());
    let url = url(&place.server);
    let names: [&[u8]; 12] = [
        b"a b",
        b" ",
        b"50%",
        b"%FF",
        b"%2e%2e",
        b"a+b",
        b"a?b#c&path=d;e",
        b"\xff\xfe",
        b"\xc3\xa9",
        b"new\nline\x1b[1m",
        b"\"'\\",
        b"sub/\xff",
    ];
    for name in names {
        let name = OsStr::from_bytes(name);
        let file_name = Path::new(name).file_name().expect("a name");
        fs::write(here.at(file_name), name.as_bytes()).expect("room");
        ask(&url, "put", &[here.at(file_name).as_os_str(), name]).assert_silent("put");
        let stored = fs::read(place.at("").join(name)).expect("it is called like that");
        assert_eq!(stored, name.as_bytes());
        fs::remove_file(here.at(file_name)).expect("it is there");
        ask(&url, "get", &[name, here.at(file_name).as_os_str()]).assert_silent("get");
        assert_eq!(fs::read(here.at(file_name)).expect("it is there"), name.as_bytes());
        assert_eq!(here.names().len(), 1, "{name:?}");
        fs::remove_file(here.at(file_name)).expect("it is there");
        fs::remove_file(place.at("").join(name)).expect("it is there");
    }
    // What begins with a dash stands behind two of them.
    let dashed = here.write("-rf", b"x");
    ask(&url, "put", &["--".as_ref(), dashed.as_os_str(), "-rf".as_ref()]).assert_silent("-rf");
    assert_eq!(place.names(""), ["-rf", "sub"]);
}

#[test]
fn what_stands_at_the_target_is_replaced_in_one_step_or_kept() {
    let (place, here) = (Place::new(), Here::new());
    let url = url(&place.server);
    fs::write(place.at("f"), data(3 * MIB)).expect("room");
    symlink("f", place.at("link")).expect("it is new");
    fs::create_dir(place.at("dir")).expect("it is new");
    // A directory is refused, a link is replaced and what it leads to is as it was.
    fs::create_dir(here.at("dir")).expect("it is new");
    let refused = get(&url, "4", "f", &here.at("dir"));
    refused.assert_failed("directory", "it is a directory, give the name of a file");
    here.write("victim", b"precious");
    symlink("victim", here.at("link")).expect("it is new");
    get(&url, "4", "f", &here.at("link")).assert_silent("link");
    assert!(fs::symlink_metadata(here.at("link")).expect("it is there").is_file());
    assert_eq!(fs::read(here.at("victim")).expect("it is there"), b"precious");
    // On the server a link is followed, within the workspace.
    for (name, size) in [("f", 3 * MIB), ("link", 3 * MIB)] {
        get(&url, "4", name, &here.at("victim")).assert_silent(name);
        assert!(fs::read(here.at("victim")).expect("it is there") == data(size), "{name}");
    }
    let names = here.names();
    let rows = [
        ("nothing", "none", "no such file or directory: 'none' (status 404)"),
        ("directory", "dir", "is a directory: 'dir' (status 409)"),
        ("outside", "../x", "(status 400)"),
    ];
    for (name, remote, expected) in rows {
        get(&url, "4", remote, &here.at("victim")).assert_failed(name, expected);
    }
    assert!(fs::read(here.at("victim")).expect("it is there") == data(3 * MIB));
    get(&url, "4", "f", &here.at("no/dir")).assert_failed("no directory", "No such file");
    put(&url, "4", &here.at("none"), "f").assert_failed("no file", "No such file");
    put(&url, "4", &here.at("dir"), "f").assert_failed("directory", "s a directory");
    put(&url, "4", &here.at("link"), "dir").assert_failed("directory there", "(status 409)");
    assert_eq!(here.names(), names, "nothing is left");
}

#[test]
fn a_reader_of_the_old_name_never_sees_half_a_file() {
    let (place, here) = (Place::new(), Here::new());
    let contents = [vec![b'a'; 3 * MIB + 1], vec![b'b'; 2 * MIB + 7]];
    for (name, content) in ["a", "b"].iter().zip(&contents) {
        fs::write(place.at(name), content).expect("room");
    }
    let target = here.write("f", &contents[0]);
    let is_over = AtomicBool::new(false);
    let url = url(&place.server);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rounds = 0;
            while !is_over.load(Ordering::SeqCst) || rounds == 0 {
                let seen = fs::read(&target).expect("it is always there");
                assert!(contents.contains(&seen), "{} bytes were seen", seen.len());
                rounds += 1;
            }
        });
        for name in ["b", "a"].repeat(8) {
            get(&url, "3", name, &target).assert_silent(name);
        }
        is_over.store(true, Ordering::SeqCst);
        reader.join().expect("it saw whole files alone");
    });
}

/// The connections of one `get` over one job: the question for `/health`, that for the size, and
/// then the one that the ranges come over.
const RANGES_OF_GET: usize = 2;

/// The same of `put`, which asks for no size.
const RANGES_OF_PUT: usize = 1;

/// What a broken transfer must leave: the old file and nothing beside it.
fn assert_old(here: &Here) {
    assert_eq!(here.names(), ["f"]);
    assert_eq!(fs::read(here.at("f")).expect("it is there"), b"old");
}

#[test]
fn what_ends_a_fetch_in_the_middle_leaves_the_old_file() {
    const SIZE: usize = 3 * MIB;
    let kill_server = |place: &mut Place, _: u32| place.server.child.kill().expect("it runs");
    let grow = |place: &mut Place, _: u32| {
        let mut file = File::options().append(true).open(place.at("f")).expect("it is there");
        file.write_all(b"x").expect("room");
    };
    let shrink_to = |place: &mut Place, size| {
        let file = File::options().write(true).open(place.at("f")).expect("it is there");
        file.set_len(size).expect("it shrinks");
    };
    let changed = "'f' changed while it was moved: try again";
    type Event<'a> = &'a dyn Fn(&mut Place, u32);
    let rows: [(&str, Event, i32, &str); 7] = [
        ("the server dies", &kill_server, 125, "the connection broke"),
        ("it grows", &grow, 125, changed),
        ("it shrinks a little", &|place, _| shrink_to(place, SIZE as u64 - 1), 125, changed),
        ("it shrinks to one range", &|place, _| shrink_to(place, MIB as u64), 125, changed),
        ("it is gone", &|place, _| fs::remove_file(place.at("f")).expect("there"), 125, "404"),
        ("INT", &|_, pid| send(pid, Signal::INT), 130, ""),
        ("TERM", &|_, pid| send(pid, Signal::TERM), 143, ""),
    ];
    for (name, event, code, expected) in rows {
        let (mut place, here) = (Place::new(), Here::new());
        fs::write(place.at("f"), data(SIZE)).expect("room");
        let target = here.write("f", b"old");
        let gate = Arc::new(Gate::default());
        let fate = {
            let gate = Arc::clone(&gate);
            move |index| match index {
                RANGES_OF_GET => Fate::Hold(1000, Arc::clone(&gate)),
                _ => Fate::Pass,
            }
        };
        let proxy = Proxy::new(place.server.address, fate);
        let target = target.to_str().expect("text");
        let child = start(client(&proxy.url(), &["get", "--jobs", "1", "f", target]));
        gate.wait_until_reached();
        let names = here.names();
        assert!(names.len() == 2 && names[0].starts_with(".runcap-"), "{name}: {names:?}");
        assert_eq!(mode(&here.at(&names[0])), 0o600, "{name}");
        event(&mut place, child.id());
        if code == 125 {
            gate.open();
            Done::of(child).assert_failed(name, expected);
        } else {
            let done = Done::of(child);
            assert_eq!((done.code, &*done.stderr), (Some(code), ""), "{name}");
        }
        assert_old(&here);
    }
}

#[test]
fn a_full_disk_leaves_the_old_file() {
    if !rustix::process::geteuid().is_root() || !installed("unshare") {
        return not_here("no mount namespace");
    }
    let (place, here) = (Place::new(), Here::new());
    fs::write(place.at("f"), data(3 * MIB)).expect("room");
    let (mount, target) = (here.0.path().display(), here.at("f"));
    let script = format!(
        "mount -t tmpfs -o size=1m t {mount} && echo old >{mount}/f && \"$@\"; \
         code=$?; ls -A {mount}; cat {mount}/f; exit $code"
    );
    let get = client(&url(&place.server), &["get", "f", target.to_str().expect("text")]);
    let full = done(through(&["unshare", "-m", "sh", "-c", &script, "sh"], &get));
    full.assert_failed("full", "No space left on device");
    assert_eq!(String::from_utf8_lossy(&full.stdout), "f\nold\n");
}

#[test]
fn a_file_that_changes_while_it_is_stored_is_an_error() {
    for (name, size) in [("it shrinks", 2 * MIB as u64), ("it grows", 4 * MIB as u64)] {
        let (place, here) = (Place::new(), Here::new());
        let local = here.write("local", &data(3 * MIB));
        let gate = Arc::new(Gate::default());
        let held = Arc::clone(&gate);
        let fate = move |index| match index {
            RANGES_OF_PUT => Fate::Hold(0, Arc::clone(&held)),
            _ => Fate::Pass,
        };
        let proxy = Proxy::new(place.server.address, fate);
        let path = local.to_str().expect("text");
        let child = start(client(&proxy.url(), &["put", "--jobs", "1", path, "f"]));
        gate.wait_until_reached();
        let file = File::options().write(true).open(&local).expect("it is there");
        file.set_len(size).expect("room");
        gate.open();
        Done::of(child).assert_failed(name, "local' changed while it was moved");
    }
}

/// Bytes after which a connection is cut: in heads, at their ends, in the first range, around each
/// of the ends of ranges, and in the last one.
fn cuts() -> Vec<u64> {
    let mib = MIB as u64;
    let mut cuts = vec![0, 1, 2, 20, 90, 150, 200, 400, 4096, 65_537, mib / 2];
    for range in 1..=3 {
        cuts.extend([range * mib - 3, range * mib, range * mib + 100, range * mib + 777]);
    }
    cuts
}

#[test]
fn a_connection_that_is_cut_anywhere_is_made_again() {
    let (place, here) = (Place::new(), Here::new());
    let content = data(3 * MIB + 5);
    let local = here.write("local", &content);
    let rows = cuts().into_iter().flat_map(|at| [(at, false), (at, true)]);
    let way_down = |at, is_reset| {
        // The one for the size, then the one for the ranges.
        for cut in [1, RANGES_OF_GET] {
            fs::write(place.at("f"), &content).expect("room");
            let fate = move |index| {
                if index == cut { Fate::CutDown(at, is_reset) } else { Fate::Pass }
            };
            let proxy = Proxy::new(place.server.address, fate);
            let what = format!("get, connection {cut}, {at} bytes, reset: {is_reset}");
            get(&proxy.url(), "1", "f", &here.at("back")).assert_silent(&what);
            assert!(fs::read(here.at("back")).expect("it is there") == content, "{what}");
            fs::remove_file(here.at("back")).expect("it is there");
        }
    };
    let way_up = |at, is_reset| {
        for fate in [Fate::CutUp(at, is_reset), Fate::CutDown(at, is_reset)] {
            fs::write(place.at("f"), vec![b'o'; content.len() + 99]).expect("room");
            let is_up = matches!(fate, Fate::CutUp(..));
            let fate = move |index| if index == RANGES_OF_PUT { fate.clone() } else { Fate::Pass };
            let proxy = Proxy::new(place.server.address, fate);
            let what = format!("put, {at} bytes, up: {is_up}, reset: {is_reset}");
            put(&proxy.url(), "1", &local, "f").assert_silent(&what);
            assert!(fs::read(place.at("f")).expect("it is there") == content, "{what}");
        }
    };
    for (at, is_reset) in rows {
        way_down(at, is_reset);
        way_up(at, is_reset);
    }
    assert_eq!(here.names(), ["local"]);
    // Each third connection breaks, over several at once.
    let proxy = Proxy::new(place.server.address, |index| match index % 3 {
        2 => Fate::CutDown(MIB as u64 / 3, true),
        _ => Fate::Pass,
    });
    get(&proxy.url(), "16", "f", &here.at("back")).assert_silent("several");
    assert!(fs::read(here.at("back")).expect("it is there") == content);
}

#[test]
fn a_connection_that_is_always_cut_is_given_up() {
    let (place, here) = (Place::new(), Here::new());
    fs::write(place.at("f"), data(3 * MIB)).expect("room");
    let (local, target) = (here.at("f"), here.write("f", b"old"));
    for at in [0, 100, 300_000] {
        let cut = move |from| {
            move |index| if index >= from { Fate::CutDown(at, at == 100) } else { Fate::Pass }
        };
        let proxy = Proxy::new(place.server.address, cut(RANGES_OF_GET));
        let what = format!("after {at} bytes");
        get(&proxy.url(), "1", "f", &target).assert_failed(&what, "the connection broke: ");
        assert_eq!(proxy.connections(), RANGES_OF_GET + 4, "{what}: a range is tried four times");
        assert_old(&here);
        let proxy = Proxy::new(place.server.address, cut(RANGES_OF_GET));
        let many = get(&proxy.url(), "16", "f", &target);
        many.assert_failed(&what, "the connection broke: ");
        assert_old(&here);
    }
    let proxy = Proxy::new(place.server.address, |index| match index {
        0 => Fate::Pass,
        _ => Fate::CutUp(20, false),
    });
    put(&proxy.url(), "1", &local, "g").assert_failed("put", "the connection broke: ");
    assert_eq!(proxy.connections(), RANGES_OF_PUT + 4);
    assert_eq!(place.names(""), ["f"]);
}

#[test]
fn a_transfer_costs_the_client_a_bound() {
    // 200 MiB of holes: far more than the client may have resident.
    let (place, here) = (Place::new(), Here::new());
    for path in [place.at("f"), here.at("up")] {
        File::create(path).and_then(|file| file.set_len(200 << 20)).expect("room");
    }
    let url = url(&place.server);
    let here = here.0.path().display();
    let rows = [
        ("get", format!("get f {here}/down")),
        ("get, stdout", "get f - >/dev/null".to_owned()),
        ("put", format!("put {here}/up g")),
        ("put, stdin", format!("put - h <{here}/up")),
    ];
    for (name, action) in rows {
        let answer = measured(&format!("\"$RUNCAP\" client --url {url} {action}"));
        assert_eq!(answer["exit_code"], 0, "{name}: {answer}");
        let peak = number(&answer, "max_rss_bytes");
        println!("{name}: {} KiB", peak >> 10);
        assert!(peak <= 32 << 20, "{name}: {peak} bytes were resident");
    }
    let sizes = ["g", "h"].map(|name| fs::metadata(place.at(name)).expect("it is there").len());
    assert_eq!(sizes, [200 << 20; 2]);
}
