//! `runcap client run` and `ls`: what whoever typed it sees of a real server.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::http::Server;
use crate::serve_files::Place;
use crate::support::{
    Mark, Signal, Value, assert_has, helper, json, keys, measured, number, runcap, send,
    status_kib, wait_until,
};

const MIB: u64 = 1 << 20;

/// Where clients find a server.
pub fn url(server: &Server) -> String {
    format!("http://{}", server.address)
}

/// `runcap client --url URL ARGS`, which knows no token.
pub fn client<S: AsRef<OsStr>>(url: &str, args: &[S]) -> Command {
    let mut command = runcap();
    command.args(["client", "--url", url]).args(args).env_remove("RUNCAP_TOKEN");
    command.stdin(Stdio::null());
    command
}

/// What a client left behind.
#[derive(Debug)]
pub struct Done {
    /// None where it died of a signal.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Done {
    /// What a client did that is waited for now.
    #[track_caller]
    pub fn of(child: Child) -> Done {
        let output = child.wait_with_output().expect("the program ends");
        let stderr = String::from_utf8(output.stderr).expect("stderr is text");
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert_eq!(output.status.signal(), None, "{stderr}");
        Done { code: output.status.code(), stdout: output.stdout, stderr }
    }

    /// Asserts that it did what it was asked for and had nothing to say.
    #[track_caller]
    pub fn assert_silent(&self, what: &str) {
        assert_eq!((self.code, &*self.stderr), (Some(0), ""), "{what}");
    }

    /// Asserts that it failed, and said why on one line.
    #[track_caller]
    pub fn assert_failed(&self, what: &str, expected: &str) {
        let line = one_line(what, &self.stderr);
        assert!(line.contains(expected), "{what}: {line:?} has {expected:?}");
        assert_eq!(self.code, Some(125), "{what}: {line}");
    }
}

/// The one line that the program said, of which a terminal acts on nothing.
#[track_caller]
pub fn one_line<'a>(what: &str, stderr: &'a str) -> &'a str {
    let line = stderr.strip_suffix('\n').unwrap_or_else(|| panic!("{what}: no line: {stderr:?}"));
    assert!(line.starts_with("runcap: "), "{what}: {line:?}");
    assert!(!line.contains(char::is_control), "{what}: {line:?}");
    line
}

/// Starts a client whose output is piped.
pub fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Runs a client to its end.
#[track_caller]
pub fn done(command: Command) -> Done {
    Done::of(start(command))
}

/// Runs a client that is given `input`.
#[track_caller]
pub fn fed(mut command: Command, input: &[u8]) -> Done {
    let mut child = start({
        command.stdin(Stdio::piped());
        command
    });
    let mut stdin = child.stdin.take().expect("it is piped");
    std::thread::scope(|scope| {
        // One that fails early leaves input unread.
        scope.spawn(move || drop(stdin.write_all(input)));
        Done::of(child)
    })
}

/// Runs `run ARGS` to its end.
#[track_caller]
fn run(server: &Server, args: &[&str]) -> Done {
    done(client(&url(server), &[&["run"], args].concat()))
}

#[test]
fn a_client_ends_as_the_command_does() {
    let place = Place::new();
    fs::write(place.at("no-program"), "x").expect("room");
    let rows: [(&str, &[&str], i32, &str); 11] = [
        ("success", &["--", "true"], 0, ""),
        ("failure", &["--", "sh", "-c", "exit 3"], 3, ""),
        ("largest", &["--shell", "exit 255"], 255, ""),
        ("signal", &["--shell", "kill -TERM $$"], 143, ""),
        ("killed", &["--shell", "kill -KILL $$"], 137, ""),
        ("timeout", &["-t", "100ms", "--", "sleep", "100"], 124, ""),
        ("timeout of a shell", &["--timeout=0.1", "--shell", "sleep 100; :"], 124, ""),
        ("not found", &["--", "no-such-program"], 127, "'no-such-program'"),
        ("no such path", &["--", "./no/such/path"], 127, "./no/such/path"),
        ("not executable", &["--", "./no-program"], 126, "./no-program"),
        ("no directory", &["-C", "/nowhere", "--", "true"], 125, "/nowhere"),
    ];
    for (name, args, code, said) in rows {
        let done = run(&place.server, args);
        assert_eq!((done.code, &*done.stdout), (Some(code), &b""[..]), "{name}: {}", done.stderr);
        assert!(done.stderr.contains(said), "{name}: {}", done.stderr);
        // What a command did itself, it says itself.
        assert_eq!(done.stderr.is_empty(), ![124, 125, 126, 127].contains(&code), "{name}");
        if code >= 124 && !done.stderr.is_empty() {
            one_line(name, &done.stderr);
        }
    }
    let quiet = run_quiet(&place.server, &["-t", "100ms", "--", "sleep", "100"]);
    assert_eq!((quiet.code, &*quiet.stderr), (Some(124), ""));
}

#[track_caller]
fn run_quiet(server: &Server, args: &[&str]) -> Done {
    done(client(&url(server), &[&["--quiet", "run"], args].concat()))
}

#[test]
fn a_command_finds_what_it_was_given() {
    let place = Place::new();
    fs::create_dir(place.at("sub")).expect("it is new");
    fs::write(place.home.path().join("in"), "from a file\n").expect("room");
    let input = place.home.path().join("in");
    let input = input.to_str().expect("text");
    let rows: [(&str, &[&str], &str); 10] = [
        ("argv", &["--", "printf", "%s|", "a b", "$HOME", "-x", ""], "a b|$HOME|-x||"),
        ("options of its own", &["printf", "%s", "-C"], "-C"),
        ("shell", &["--shell", "printf %s \"$((40 + 2))\" | cat"], "42"),
        ("env", &["-e", "A=x y", "--env", "B=1=2", "--shell", "echo \"$A $B\""], "x y 1=2\n"),
        ("empty value", &["-e", "A=", "--shell", "echo \"<${A-unset}>\""], "<>\n"),
        ("directory", &["-C", "sub", "--shell", "basename \"$PWD\""], "sub\n"),
        ("absolute", &["--cwd", "/sub", "--shell", "basename \"$PWD\""], "sub\n"),
        ("no stdin", &["--", "cat"], ""),
        ("a file", &["--stdin", input, "--", "cat"], "from a file\n"),
        (
            "odd text",
            &["--", "echo", "\u{1b}[1m\"\\\u{2028}\u{85}é😀\n"],
            "\u{1b}[1m\"\\\u{2028}\u{85}é😀\n\n",
        ),
    ];
    for (name, args, expected) in rows {
        let done = run(&place.server, args);
        done.assert_silent(name);
        assert_eq!(String::from_utf8_lossy(&done.stdout), expected, "{name}");
    }
    // More than pipes hold, both ways at once.
    let text = "0123456789abcdé\n".repeat(100_000);
    let own = client(&url(&place.server), &["run", "--stdin", "-", "--", "cat"]);
    let done = fed(own, text.as_bytes());
    done.assert_silent("its own stdin");
    assert!(done.stdout == text.as_bytes(), "{} bytes came back", done.stdout.len());
}

#[test]
fn what_cannot_be_asked_for_is_refused_with_a_way_out() {
    let server = Server::start(&[]);
    let not_text = OsStr::from_bytes(b"a\xff");
    let refused = |args: &[&OsStr]| {
        let args: Vec<_> = [OsStr::new("run")].iter().chain(args).copied().collect();
        done(client(&url(&server), &args))
    };
    let [shell, dashes, echo] = ["--shell", "--", "echo"].map(OsStr::new);
    let rows: [(&str, &[&OsStr], &str); 5] = [
        ("two scripts", &[shell, echo, echo], "--shell takes one argument: quote the whole script"),
        ("bytes in a script", &[shell, not_text], "the script is no UTF-8 text"),
        ("bytes in an argument", &[dashes, echo, not_text], "argument 1 'a\u{fffd}' is not UTF-8"),
        ("bytes for a program", &[dashes, not_text], "the command 'a\u{fffd}' is not UTF-8"),
        ("no such stdin", &["--stdin", "/no/such", "cat"].map(OsStr::new), "'/no/such': No such"),
    ];
    for (name, args, expected) in rows {
        refused(args).assert_failed(name, expected);
    }
    let own = || client(&url(&server), &["run", "--stdin", "-", "--", "cat"]);
    fed(own(), b"a\xff").assert_failed("bytes on stdin", "stdin is no UTF-8 text: put it there");
    let large = vec![b'x'; (16 << 20) + 1];
    fed(own(), &large).assert_failed("much stdin", "more than 16777216 bytes: put it there");
}

#[test]
fn output_comes_while_the_command_runs_and_apart() {
    // Each step of the command waits for a file that is made when the one before it was seen.
    let place = Place::new();
    let script = "wait_for() { until [ -e $1 ]; do sleep 0.01; done; }; \
                  printf one; wait_for a; printf two >&2; wait_for b; printf three; exit 7";
    let mut child = start(client(&url(&place.server), &["run", "--shell", script]));
    let mut stdout = child.stdout.take().expect("it is piped");
    let mut stderr = child.stderr.take().expect("it is piped");
    let mut piece = [0; 3];
    stdout.read_exact(&mut piece).expect("it comes");
    assert_eq!(&piece, b"one");
    fs::write(place.at("a"), "").expect("room");
    stderr.read_exact(&mut piece).expect("it comes");
    assert_eq!(&piece, b"two");
    fs::write(place.at("b"), "").expect("room");
    let (mut out, mut err) = (String::new(), String::new());
    stdout.read_to_string(&mut out).expect("text");
    stderr.read_to_string(&mut err).expect("text");
    assert_eq!((&*out, &*err), ("three", ""));
    assert_eq!(child.wait().expect("it ends").code(), Some(7));
}

#[test]
fn bytes_that_are_no_text_are_replaced() {
    // JSON carries text alone; where the bytes matter, the way is a file.
    let server = Server::start(&[]);
    let done = run(&server, &["--", "printf", "a\\377b\\303\\251\\000c"]);
    done.assert_silent("bytes");
    assert_eq!(done.stdout, "a\u{fffd}b\u{e9}\0c".as_bytes());
}

#[test]
fn output_costs_the_client_no_memory() {
    // 300 MB, of which the last bytes come when the client's peak was looked at.
    const BYTES: u64 = 300_000_000;
    let place = Place::new();
    let script = format!("{} produce 65536 4578; until [ -e go ]; do sleep 0.01; done", helper());
    let mut child = start(client(&url(&place.server), &["run", "--shell", &script]));
    let mut stdout = child.stdout.take().expect("it is piped");
    let expected = 65_536 * 4578;
    assert!(expected > BYTES);
    let mut most = (&mut stdout).take(expected);
    let count = std::io::copy(&mut most, &mut std::io::sink()).expect("it comes");
    assert_eq!(count, expected);
    let peak = status_kib(child.id(), "VmHWM") * 1024;
    fs::write(place.at("go"), "").expect("room");
    assert_eq!(std::io::copy(&mut stdout, &mut std::io::sink()).expect("it ends"), 0);
    Done::of(child).assert_silent("300 MB");
    println!("VmHWM {} KiB", peak >> 10);
    assert!(peak <= 8 * MIB, "{peak} bytes were resident");
}

#[test]
fn what_is_captured_is_one_object() {
    let server = Server::start(&[]);
    let captured = |args: &[&str]| {
        let done = run(&server, &[&["--capture", "--json"], args].concat());
        let line = done.stdout.strip_suffix(b"\n").expect("a line");
        let object: Value = serde_json::from_slice(line).expect("JSON");
        (object, done)
    };
    let (object, done) = captured(&["--shell", "printf 'a\\033\\n'; echo b >&2; exit 4"]);
    let expected =
        ["duration_ms", "exit_code", "signal", "status", "stderr", "stdout", "timed_out"];
    assert_eq!(keys(&object), expected, "{object}");
    assert_has(
        &object,
        &json!({
            "exit_code": 4, "signal": null, "timed_out": false, "status": "exited",
            "stdout": "a\u{1b}\n", "stderr": "b\n",
        }),
    );
    assert_eq!((done.code, &*done.stderr), (Some(4), ""));
    let (object, done) = captured(&["-t", "100ms", "--", "sleep", "100"]);
    assert_has(&object, &json!({ "timed_out": true, "status": "timed_out", "stdout": "" }));
    assert_eq!(done.code, Some(124));
    assert!(number(&object, "duration_ms") >= 100, "{object}");
    let (object, done) = captured(&["--shell", "kill -TERM $$"]);
    assert_has(&object, &json!({ "exit_code": null, "signal": 15, "status": "signaled" }));
    assert_eq!(done.code, Some(143));
    // Without --json it is printed as it is.
    let plain = run(&server, &["--capture", "--shell", "echo a; echo b >&2; exit 4"]);
    assert_eq!((plain.code, &*plain.stdout, &*plain.stderr), (Some(4), &b"a\n"[..], "b\n"));
}

#[test]
fn more_than_may_be_captured_ends_the_command() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    let args = ["run", "--capture", "--", "yes", &mark.to_string()];
    let done = done(client(&url(&server), &args));
    done.assert_failed("endless", "more than 67108864 bytes: ");
    for way_out in ["leave --capture off", "redirect it to a file", "get that"] {
        assert!(done.stderr.contains(way_out), "{}", done.stderr);
    }
    assert!(done.stdout.is_empty());
    wait_until("the command is gone", || mark.living().is_empty());
    // The most that may be: both streams together.
    let half = 32 << 20;
    let script = format!("head -c {half} /dev/zero | tr '\\0' a; head -c {half} /dev/zero >&2");
    let full = run(&server, &["--capture", "--shell", &script]);
    assert_eq!((full.code, full.stdout.len(), full.stderr.len()), (Some(0), half, half));
    let one_more = run(&server, &["--capture", "--shell", &format!("{script}; echo")]);
    one_more.assert_failed("one more", "more than 67108864 bytes: ");
}

#[test]
fn a_client_that_is_told_to_end_takes_the_command_with_it() {
    let server = Server::start(&[]);
    let mark = Mark::new();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let sleep = mark.to_string();
        let (sleep, seconds) = sleep.split_once(' ').expect("two words");
        let child = start(client(&url(&server), &["run", "--", sleep, seconds]));
        mark.sleeper();
        send(child.id(), signal);
        let done = Done::of(child);
        assert_eq!((done.code, &*done.stderr), (Some(code), ""), "{signal:?}");
        wait_until("the command is gone", || mark.living().is_empty());
    }
}

#[test]
fn a_reader_that_leaves_takes_the_command_with_it() {
    let server = Server::start(&[]);
    for (stream, script) in [("stdout", "exec yes '{}'"), ("stderr", "exec yes '{}' >&2")] {
        let mark = Mark::new();
        let script = script.replace("{}", &mark.to_string());
        let mut child = start(client(&url(&server), &["run", "--shell", &script]));
        let mut some = [0; 1000];
        match stream {
            "stdout" => {
                let mut stdout = child.stdout.take().expect("it is piped");
                stdout.read_exact(&mut some).expect("it comes");
            }
            _ => {
                let mut stderr = child.stderr.take().expect("it is piped");
                stderr.read_exact(&mut some).expect("it comes");
            }
        }
        let done = Done::of(child);
        assert_eq!((done.code, &*done.stderr), (Some(141), ""), "{stream}");
        wait_until("the command is gone", || mark.living().is_empty());
    }
}

#[test]
fn the_token_is_known_and_never_shown() {
    let home = tempfile::tempdir().expect("a directory");
    let at = |name: &str, token: &str| {
        let path = home.path().join(name);
        fs::write(&path, token).expect("room");
        path.into_os_string().into_string().expect("text")
    };
    let (right, wrong) = (at("right", "s3cret-one\n"), at("wrong", "s3cret-two"));
    let empty = at("empty", " \n");
    let mut serve = runcap();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--token-file", &right]);
    let server = Server::of(serve);
    let run = ["run", "--", "echo", "in"];
    let with_file = |file: &str| {
        let url = url(&server);
        done(client(&url, &[&["--token-file", file], &run[..]].concat()))
    };
    let with_variable = |token: &str| {
        let mut command = client(&url(&server), &run);
        command.env("RUNCAP_TOKEN", token);
        done(command)
    };
    for (name, done) in [("file", with_file(&right)), ("variable", with_variable("s3cret-one"))] {
        done.assert_silent(name);
        assert_eq!(done.stdout, b"in\n", "{name}");
    }
    let refused = "invalid or missing X-Sandbox-Token (status 403)";
    let rows = [
        ("none", done(client(&url(&server), &run)), refused),
        ("wrong file", with_file(&wrong), refused),
        ("wrong variable", with_variable("s3cret-two"), refused),
        ("empty file", with_file(&empty), "holds no token: put at least one character in it"),
        ("no file", with_file("/no/such"), "cannot read the token file /no/such"),
        ("no header", with_variable("s3cret\u{e9}"), "RUNCAP_TOKEN holds a character that no"),
    ];
    for (name, done, expected) in rows {
        done.assert_failed(name, expected);
        assert!(!done.stderr.contains("s3cret"), "{name}: {}", done.stderr);
    }
    // While it runs: neither on its command line nor, once it was read, in its environment.
    let mark = Mark::new();
    let sleep = mark.to_string();
    let (sleep, seconds) = sleep.split_once(' ').expect("two words");
    let mut command = client(&url(&server), &["run", "--", sleep, seconds]);
    command.env("RUNCAP_TOKEN", "s3cret-one");
    let child = start(command);
    mark.sleeper();
    for file in ["cmdline", "environ"] {
        let bytes = fs::read(format!("/proc/{}/{file}", child.id())).expect("it lives");
        assert!(!String::from_utf8_lossy(&bytes).contains("s3cret"), "{file}");
    }
    send(child.id(), Signal::TERM);
    assert_eq!(Done::of(child).code, Some(143));
    assert!(!server.log().contains("s3cret"));
}

#[test]
fn nobody_there_is_said_with_what_was_tried() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("it has one");
    drop(free);
    let run = ["run", "--", "true"];
    let refused = done(client(&format!("http://{address}"), &run));
    refused.assert_failed("port", &format!("cannot connect to {address}: Connection refused"));
    let by_name = done(client(&format!("http://localhost:{}", address.port()), &run));
    by_name.assert_failed("name", &format!("127.0.0.1:{}", address.port()));
    let path = done(client("unix:/no/such", &run));
    path.assert_failed("path", "cannot connect to unix:/no/such: No such file");
    for url in ["127.0.0.1:80", "https://localhost:1", "http://localhost", "unix:"] {
        let done = done(client(url, &run));
        assert_eq!(done.code, Some(125), "{url}: {}", done.stderr);
        assert!(done.stderr.contains(url), "{url}: {}", done.stderr);
    }
}

#[test]
fn everything_goes_over_a_unix_socket_too() {
    let home = tempfile::tempdir().expect("a directory");
    let (socket, workspace) = (home.path().join("socket"), home.path().join("workspace"));
    fs::create_dir(&workspace).expect("it is new");
    let at = format!("unix:{}", socket.display());
    let mut serve = runcap();
    serve.args(["serve", "--listen", &at, "--log", "off", "--workspace"]).arg(&workspace);
    let child = serve.stderr(Stdio::null()).spawn().expect("the program starts");
    let _server = Server::at(child, std::net::SocketAddr::from(([0; 4], 0)));
    wait_until("it listens", || UnixStream::connect(&socket).is_ok());
    let content = crate::serve_sandbox_files::data(3 << 20);
    let (up, down) = (home.path().join("up"), home.path().join("down"));
    fs::write(&up, &content).expect("room");
    let (up, back) = (up.to_str().expect("text"), down.to_str().expect("text"));
    done(client(&at, &["put", up, "f"])).assert_silent("put");
    done(client(&at, &["get", "f", back])).assert_silent("get");
    assert!(fs::read(&down).expect("it is there") == content);
    let listed = done(client(&at, &["ls"]));
    listed.assert_silent("ls");
    assert_eq!(listed.stdout, b"f\n");
    let ran = done(client(&at, &["run", "--shell", "wc -c <f; exit 9"]));
    assert_eq!((ran.code, &*ran.stdout), (Some(9), &b"3145728\n"[..]), "{}", ran.stderr);
}

#[test]
fn captured_output_is_held_once() {
    // 64 MiB of output: the peak is what was asked for, and a little.
    let server = Server::start(&[]);
    let script = format!(
        r#""$RUNCAP" client --url {} run --capture -- "$HELPER" produce 65536 1000 >/dev/null"#,
        url(&server)
    );
    let answer = measured(&script);
    assert_eq!(answer["exit_code"], 0, "{answer}");
    let peak = number(&answer, "max_rss_bytes");
    println!("VmHWM {} KiB", peak >> 10);
    assert!(peak <= 96 * MIB, "{peak} bytes were resident");
}

#[test]
fn a_directory_of_many_is_listed_in_order() {
    let place = Place::new();
    fs::create_dir(place.at("d")).expect("it is new");
    let expected: Vec<String> = (0..25_000).map(|at| format!("{at:05}\n")).collect();
    for name in &expected {
        File::create(place.at("d").join(name.trim_end())).expect("room");
    }
    let url = url(&place.server);
    let listed = done(client(&url, &["ls", "/d"]));
    listed.assert_silent("25,000");
    assert!(listed.stdout == expected.concat().into_bytes(), "{} bytes", listed.stdout.len());
    // A reader that takes a few of them.
    let mut child = start(client(&url, &["ls", "d"]));
    let mut some = [0; 6];
    let mut stdout = child.stdout.take().expect("it is piped");
    stdout.read_exact(&mut some).expect("it comes");
    drop(stdout);
    let left = Done::of(child);
    assert_eq!((&some, left.code, &*left.stderr), (b"00000\n", Some(141), ""));
}

#[test]
fn entries_are_lines_whatever_their_names_are() {
    let place = Place::new();
    let url = url(&place.server);
    let names: [&[u8]; 6] =
        [b"a b", b"new\nline", b"tab\t\x1b[31m", b"\xc2\x9b2J", b"\xe2\x80\xae", b"\xff"];
    for name in names {
        fs::write(place.at("").join(OsStr::from_bytes(name)), "12345").expect("room");
    }
    fs::create_dir(place.at("dir")).expect("it is new");
    symlink("a b", place.at("link")).expect("it is new");
    fs::set_permissions(place.at("a b"), fs::Permissions::from_mode(0o640)).expect("ours");
    let listed = done(client(&url, &["ls"]));
    listed.assert_silent("names");
    let text = String::from_utf8(listed.stdout).expect("text");
    let expected =
        ["a b", "dir", "link", r"new\nline", r"tab\t\u{1b}[31m", r"\u{9b}2J", r"\u{202e}", "%FF"];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    let long = done(client(&url, &["ls", "-l", "/"]));
    long.assert_silent("long");
    let text = String::from_utf8(long.stdout).expect("text");
    assert_eq!(text.lines().count(), expected.len(), "{text}");
    let line = text.lines().next().expect("a line");
    let fields: Vec<_> = line.split_whitespace().collect();
    assert_eq!((fields[0], fields[1], &fields[3..]), ("-rw-r-----", "5", &["a", "b"][..]));
    assert!(fields[2].starts_with("20") && fields[2].contains('T'), "{line}");
    let kinds: Vec<_> = text.lines().map(|line| &line[..1]).collect();
    assert_eq!(kinds, ["-", "d", "L", "-", "-", "-", "-", "-"], "{text}");
    done(client(&url, &["ls", "none"]))
        .assert_failed("nothing", "no such file or directory: 'none' (status 404)");
    done(client(&url, &["ls", "a b"])).assert_failed("a file", "'a b' (status 4");
}
