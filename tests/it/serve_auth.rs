//! Whom `runcap serve` lets in, and where its token can be seen: nowhere.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::http::{Answer, Server};
use crate::serve_front::{UnixServer, over_unix, refusal, request, request_to, serve, serve_at};
use crate::support::{Value, after, installed, json, not_here, through, wait_until};

const TOKEN: &str = "s3cret-canary";

#[test]
fn a_token_file_that_holds_no_token_is_refused() {
    // What is in the file, and what the message says; it never shows what is in the file.
    let rows: [(&str, &[u8], &str); 9] = [
        ("empty", b"", "holds no token: put at least one character in it"),
        ("white space", b" \t\r\n", "holds no token: put at least one character in it"),
        ("too long", &[b'q'; 4097], "holds more than 4096 bytes"),
        ("far too long", &[b'q'; 1 << 20], "holds more than 4096 bytes"),
        ("two words", b"canary canary", "holds a character that no header can carry"),
        ("two lines", b"canary\ncanary\n", "holds a character that no header can carry"),
        ("a control byte", b"can\x07ary", "holds a character that no header can carry"),
        ("NUL", b"canary\0", "holds a character that no header can carry"),
        ("not ASCII", "canäry".as_bytes(), "holds a character that no header can carry"),
    ];
    for (name, bytes, expected) in rows {
        let file = token_file(bytes);
        let path = file.to_str().expect("text");
        let message = refusal(serve(&["--listen=127.0.0.1:0", "--token-file", path]));
        assert!(message.contains(expected), "{name}: {message}");
        assert!(message.contains(path), "{name}: {message}");
        assert!(!message.contains("canary") && !message.contains("qq"), "{name}: {message}");
    }
}

#[test]
fn a_token_file_that_cannot_be_read_is_refused() {
    for (path, why) in [("/nonexistent/token", "No such file"), ("/proc", "Is a directory")] {
        let message = refusal(serve(&["--listen=127.0.0.1:0", "--token-file", path]));
        let expected = format!("cannot read the token file {path}: {why}");
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn a_token_in_the_variable_is_held_to_the_same() {
    for (name, token) in [("empty", ""), ("two words", "canary canary"), ("bell", "canary\x07")] {
        let mut command = serve(&["--listen=127.0.0.1:0"]);
        let message = refusal_of(command.env("RUNCAP_TOKEN", token));
        assert!(message.starts_with("runcap: RUNCAP_TOKEN holds "), "{name}: {message}");
        assert!(!message.contains("canary"), "{name}: {message}");
    }
}

#[test]
fn no_auth_and_a_token_contradict_each_other() {
    let file = token_file(TOKEN.as_bytes());
    let path = file.to_str().expect("text");
    let message = refusal(serve(&["--listen=127.0.0.1:0", "--no-auth", "--token-file", path]));
    assert!(message.contains("'--no-auth' cannot be used with '--token-file"), "{message}");
    for token in [TOKEN, ""] {
        let mut command = serve(&["--listen=127.0.0.1:0", "--no-auth"]);
        let message = refusal_of(command.env("RUNCAP_TOKEN", token));
        let expected = "--no-auth and RUNCAP_TOKEN contradict each other: leave one out";
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_token_comes_from_a_file_a_descriptor_or_the_variable() {
    // With the line end that editors put there, of the longest length, through a pipe; where both
    // are given, the file's counts.
    let longest = "t".repeat(4096);
    for (bytes, token) in [(&*format!(" {TOKEN}\r\n"), TOKEN), (&longest, &longest)] {
        let file = token_file(bytes.as_bytes());
        let args = ["--listen=127.0.0.1:0", "--token-file", file.to_str().expect("text")];
        let mut command = serve(&args);
        command.env("RUNCAP_TOKEN", "of-the-variable");
        let server = Server::of(command);
        assert_eq!(api(&server, &[&bearer(token)]).status, 404, "{} bytes", token.len());
        assert_eq!(api(&server, &[&bearer("of-the-variable")]).status, 401);
        let environ = fs::read(format!("/proc/{}/environ", server.pid())).expect("root reads it");
        assert!(!String::from_utf8_lossy(&environ).contains("of-the-variable"), "it is gone too");
    }
    // A shell that has the token on descriptor 9 becomes the server.
    let command = serve(&["--listen=127.0.0.1:0", "--token-file", "/dev/fd/9"]);
    let server = Server::of(after(&format!("exec 9<<END\n{TOKEN}\nEND\n:"), &command));
    assert_eq!(api(&server, &[&bearer(TOKEN)]).status, 404);
    assert_eq!(api(&server, &[&bearer("x")]).status, 401);
    let server = guarded(&[]);
    assert_eq!(api(&server, &[&bearer(TOKEN)]).status, 404);
}

#[test]
fn ls3_no_option_takes_the_token_itself() {
    // The help knows one option with "token" in its name, which takes a file; others that one
    // might try are refused, and the message does not repeat what they were given.
    let help = runcap_help();
    let options: Vec<_> = help.split_whitespace().filter(|word| word.starts_with("--")).collect();
    let named: Vec<_> = options.iter().filter(|word| word.contains("token")).collect();
    assert!(named.iter().all(|word| **word == "--token-file"), "{named:?}");
    assert!(!named.is_empty(), "{help}");
    for option in ["--token", "--auth-token", "--auth", "--bearer", "--api-key", "--password"] {
        for args in [vec![format!("{option}={TOKEN}")], vec![option.into(), TOKEN.into()]] {
            let mut command = serve(&["--listen=127.0.0.1:0"]);
            let message = refusal_of(command.args(&args));
            assert!(message.contains("unexpected argument"), "{args:?}: {message}");
            assert!(!message.contains(TOKEN), "{args:?}: {message}");
        }
    }
}

#[test]
fn ls2_the_environment_of_the_server_does_not_hold_the_token() {
    // Given as RUNCAP_TOKEN between two other variables: those are still there, and root, who may
    // read everything, finds neither the token nor its name; no thread shows it either.
    let server = guarded(&[("A", "before"), ("Z", "behind")]);
    let mut client = server.connect();
    client.send(&request("GET /health", &[]));
    assert_eq!(client.answer().status, 200);
    let mut places = vec![format!("/proc/{}", server.pid())];
    for task in fs::read_dir(format!("{}/task", places[0])).expect("it lives") {
        places.push(task.expect("an entry").path().display().to_string());
    }
    assert!(places.len() >= 3, "a thread for the connection: {places:?}");
    for place in places {
        let read = |name| fs::read(format!("{place}/{name}")).expect("root reads it");
        let environ = String::from_utf8_lossy(&read("environ")).into_owned();
        for kept in ["A=before", "Z=behind"] {
            assert!(environ.split('\0').any(|entry| entry == kept), "{kept} in {environ:?}");
        }
        let value = environ.split_once("RUNCAP_TOKEN=").map_or("", |(_, rest)| rest);
        assert!(value.starts_with('\0'), "its value is gone: {environ:?}");
        for name in ["environ", "cmdline", "comm"] {
            assert!(!String::from_utf8_lossy(&read(name)).contains("canary"), "{place}/{name}");
        }
    }
}

#[test]
fn ls2_no_process_of_the_same_user_can_look_into_the_server() {
    // A server of an ordinary user, and a sleep of the same user to show that this user can look
    // at its own processes: not at this one. Nor can another user, at one of root's.
    if !installed("setpriv") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return not_here("only root becomes another user");
    }
    let (own, other) = (54_321, 54_322);
    let directory = tempfile::tempdir().expect("a directory");
    let program = public_runcap(&directory);
    let mut command = as_user(own, Command::new(program).args(["serve", "--listen=127.0.0.1:0"]));
    command.env("RUNCAP_TOKEN", TOKEN);
    let server = Server::of(command);
    let mut sleep = as_user(own, Command::new("sleep").arg("60"));
    let sleep = UnixServer(sleep.stdin(Stdio::null()).spawn().expect("it starts"));
    let of_root = guarded(&[]);
    wait_until("the other process is the user's", || can_look(own, sleep.0.id(), "environ"));
    for what in ["environ", "maps", "mem", "auxv", "fd", "cwd", "root"] {
        assert!(can_look(own, sleep.0.id(), what), "{what}: the look itself works");
        assert!(!can_look(own, server.pid(), what), "{what}: by the same user");
        assert!(!can_look(other, server.pid(), what), "{what}: by another user");
        assert!(!can_look(other, of_root.pid(), what), "{what} of root's server");
    }
    assert_eq!(api(&server, &[&bearer(TOKEN)]).status, 404, "and it serves");
}

#[test]
fn picods_three_refusals_are_its_own() {
    // What /api/x is asked with, and what it answers: the message, or that it was let in.
    let missing = Some("Missing Authorization header");
    let format = Some("Invalid Authorization header format");
    let wrong = Some("Invalid token");
    let rows: [(&str, &[&str], Option<&str>); 20] = [
        ("nothing", &[], missing),
        ("the other dialect's", &["X-Sandbox-Token: s3cret-canary"], missing),
        ("empty", &["Authorization:"], format),
        ("no scheme", &["Authorization: s3cret-canary"], format),
        ("another scheme", &["Authorization: Basic s3cret-canary"], format),
        ("scheme alone", &["Authorization: Bearer"], format),
        ("scheme and space", &["Authorization: Bearer "], format),
        ("in one word", &["Authorization: Bearers3cret-canary"], format),
        ("another token", &["Authorization: Bearer x"], wrong),
        ("of equal length", &["Authorization: Bearer s3cret-canarx"], wrong),
        ("a prefix", &["Authorization: Bearer s3cret"], wrong),
        ("longer", &["Authorization: Bearer s3cret-canaryy"], wrong),
        ("twice", &["Authorization: Bearer s3cret-canarys3cret-canary"], wrong),
        ("another case", &["Authorization: Bearer S3CRET-CANARY"], wrong),
        ("two words", &["Authorization: Bearer s3cret-canary x"], wrong),
        ("quoted", &["Authorization: Bearer \"s3cret-canary\""], wrong),
        (
            "wrong one first",
            &["Authorization: Bearer x", "Authorization: Bearer s3cret-canary"],
            wrong,
        ),
        ("right", &["Authorization: Bearer s3cret-canary"], None),
        ("any case", &["AUTHORIZATION: bEARER s3cret-canary"], None),
        ("more space", &["Authorization:  Bearer   s3cret-canary\t"], None),
    ];
    let server = guarded(&[]);
    for (name, headers, expected) in rows {
        let answer = api(&server, headers);
        let Some(message) = expected else {
            assert_eq!((answer.status, answer.text()), (404, "404 page not found"), "{name}");
            continue;
        };
        assert_eq!(answer.status, 401, "{name}");
        let body = body(&answer);
        assert_eq!((&body["error"], &body["code"]), (&json!(message), &json!(401)), "{name}");
        assert!(body["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{name}: {body}");
        assert!(!answer.text().contains("canary"), "{name}: {body}");
    }
}

#[test]
fn the_sandbox_dialect_has_one_refusal_before_any_route() {
    // Headers, and whether /v1 lets one in; the Authorization header beside it says nothing.
    let rows: [(&str, &[&str], bool); 10] = [
        ("nothing", &[], false),
        ("the other dialect's", &["Authorization: Bearer s3cret-canary"], false),
        ("empty", &["X-Sandbox-Token:"], false),
        ("wrong", &["X-Sandbox-Token: s3cret-canarx"], false),
        ("a prefix", &["X-Sandbox-Token: s3cret"], false),
        ("longer", &["X-Sandbox-Token: s3cret-canary1"], false),
        ("with a scheme", &["X-Sandbox-Token: Bearer s3cret-canary"], false),
        (
            "wrong beside right",
            &["Authorization: Bearer s3cret-canary", "X-Sandbox-Token: x"],
            false,
        ),
        ("right", &["x-sandbox-token: s3cret-canary"], true),
        (
            "right beside wrong",
            &["Authorization: Bearer x", "X-Sandbox-Token: s3cret-canary"],
            true,
        ),
    ];
    let server = guarded(&[]);
    for (name, headers, is_let_in) in rows {
        for path in ["/v1/x", "/v1/exec", "/v1/processes/p-1", "/v1/", "/v1"] {
            let answer = server.ask(&request(&format!("GET {path}"), headers));
            let (status, error) = match is_let_in {
                true if path == "/v1/exec" || path == "/v1/processes/p-1" => continue,
                true => (404, format!("no route: GET {path}")),
                false => (403, "invalid or missing X-Sandbox-Token".to_owned()),
            };
            assert_eq!(answer.status, status, "{name}, {path}");
            assert_eq!(body(&answer), json!({ "error": error }), "{name}, {path}");
        }
    }
}

#[test]
fn another_spelling_of_a_path_is_no_way_around_the_token() {
    // Nobody asks these for a token, so none may be anything but refused or unknown.
    let server = guarded(&[]);
    let paths = [
        "/%61pi/execute",
        "/api%2Fexecute",
        "//api/execute",
        "/./api/execute",
        "/API/execute",
        "/health/../api/execute",
        "/health/%2e%2e/api/execute",
        "/api\\execute",
        "/;/api/execute",
        "/%761/exec",
        "/v%31/exec",
        "//v1/exec",
        "/V1/exec",
        "/health/../v1/exec",
        "/v1%2Fexec",
        "http://localhost/api/execute",
        "http://localhost/v1/exec",
        "http://localhost//v1/exec",
    ];
    for path in paths {
        for method in ["GET", "POST"] {
            let answer = server.ask(&request(&format!("{method} {path}"), &[]));
            let is_refused = matches!(answer.status, 401 | 403);
            let is_unknown = answer.status == 404 && answer.text() == "404 page not found";
            assert!(is_refused || is_unknown, "{method} {path}: {answer:?}");
        }
    }
}

#[test]
fn health_needs_no_token_and_takes_any() {
    let server = guarded(&[]);
    for headers in [&[][..], &["Authorization: Bearer x"], &["X-Sandbox-Token: s3cret-canary"]] {
        for line in ["GET /health", "GET /health?x=1"] {
            assert_eq!(server.ask(&request(line, headers)).status, 200, "{line} {headers:?}");
        }
    }
}

#[test]
fn a_refusal_does_not_wait_for_the_body() {
    // The body never comes: the answer does, no 100 before it, and then the connection ends.
    let server = guarded(&[]);
    let rows: [(&str, &[&str]); 4] = [
        ("huge", &["Content-Length: 99999999999"]),
        ("chunked", &["Transfer-Encoding: chunked"]),
        ("waits to be asked", &["Content-Length: 5", "Expect: 100-continue"]),
        ("too large and waits", &["Content-Length: 99999999999", "Expect: 100-continue"]),
    ];
    for (name, headers) in rows {
        for (path, status) in [("/api/x", 401), ("/v1/x", 403)] {
            let mut client = server.connect();
            client.send(&request(&format!("POST {path}"), headers));
            let answer = client.answer();
            assert_eq!((answer.status, answer.closes()), (status, true), "{name}, {path}");
            client.assert_closed();
        }
    }
}

#[test]
fn hs12_without_a_token_only_hosts_of_this_machine_are_served() {
    // Target, Host, status: DNS rebinding makes a page's requests name the page's host.
    let rows = [
        ("/health", "localhost", 200),
        ("/health", "LOCALHOST:80", 200),
        ("/health", "127.0.0.1", 200),
        ("/health", "127.0.0.2:1", 200),
        ("/health", "[::1]", 200),
        ("/health", "[::1]:8080", 200),
        ("/health", "evil.example", 403),
        ("/health", "evil.example:8080", 403),
        ("/health", "127.0.0.1.evil.example", 403),
        ("/health", "localhost.evil.example", 403),
        ("/health", "localhost.", 403),
        ("/health", "evil-localhost", 403),
        ("/health", "10.0.0.1", 403),
        ("/health", "0.0.0.0", 403),
        ("/health", "2130706433", 403),
        ("/health", "", 403),
        ("/v1/exec", "evil.example", 403),
        ("/nowhere", "evil.example", 403),
        // The authority of an absolute target counts, and the header does not (RFC 9112, 3.2.2).
        ("http://localhost/health", "evil.example", 200),
        ("http://evil.example/health", "localhost", 403),
    ];
    let server = Server::of(serve(&["--listen", "127.0.0.1:0"]));
    for (target, host, status) in rows {
        let answer = server.ask(&request_to(host, &format!("GET {target}")));
        assert_eq!(answer.status, status, "{target} of {host:?}");
        assert_no_cors(&answer);
    }
    // Before Host was mandatory there were no browsers to mind.
    assert_eq!(server.ask(b"GET /health HTTP/1.0\r\n\r\n").status, 200);
}

#[test]
fn hs12_without_a_token_no_web_page_is_served() {
    // Any Origin, on loopback, and beyond it with --no-auth, where no Host is foreign: 403, also
    // to the question whether one may ask, and never a header that lets a page read an answer.
    let servers = [
        Server::of(serve(&["--listen", "127.0.0.1:0"])),
        Server::of(serve(&["--listen", "0.0.0.0:0", "--no-auth"])),
    ];
    let origins = ["http://evil.example", "null", "http://localhost", "", "http://127.0.0.1:8080"];
    for server in &servers {
        for origin in origins {
            let origin = format!("Origin: {origin}");
            let asks = "Access-Control-Request-Method: POST";
            let rows: [(&str, &[&str]); 5] = [
                ("GET /health", &[&origin]),
                ("POST /api/execute", &[&origin, "Content-Type: text/plain", "Content-Length: 0"]),
                ("OPTIONS /api/execute", &[&origin, asks]),
                ("OPTIONS /v1/exec", &[&origin, asks, "Access-Control-Request-Headers: x"]),
                ("OPTIONS *", &[&origin, asks]),
            ];
            for (line, headers) in rows {
                let answer = server.ask(&request(line, headers));
                assert_eq!(answer.status, 403, "{line} {headers:?}");
                assert_no_cors(&answer);
            }
        }
    }
    let answer = servers[1].ask(&request_to("evil.example", "GET /health"));
    assert_eq!(answer.status, 200, "beyond loopback no Host is foreign");
}

#[test]
fn hs12_with_a_token_neither_host_nor_origin_is_looked_at() {
    let server = guarded(&[]);
    let request = format!(
        "GET /api/x HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n{}\r\n\r\n",
        bearer(TOKEN)
    );
    let answer = server.ask(request.as_bytes());
    assert_eq!((answer.status, answer.text()), (404, "404 page not found"));
    assert_no_cors(&answer);
    let answer = server.ask(&request_to("evil.example", "GET /health"));
    assert_eq!(answer.status, 200);
}

#[test]
fn hs12_on_a_unix_socket_host_is_not_looked_at_and_origin_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let _server = UnixServer::of(serve_at(&path), &path);
    for host in ["evil.example", "", "localhost"] {
        let answer = over_unix(&path, &request_to(host, "GET /health"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    let answer = over_unix(&path, &request("GET /health", &["Origin: null"]));
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

/// A server that knows [`TOKEN`] from its environment.
fn guarded(environment: &[(&str, &str)]) -> Server {
    let mut command = serve(&["--listen", "127.0.0.1:0"]);
    command.env("RUNCAP_TOKEN", TOKEN).envs(environment.iter().copied());
    Server::of(command)
}

fn api(server: &Server, headers: &[&str]) -> Answer {
    server.ask(&request("GET /api/x", headers))
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

#[track_caller]
fn body(answer: &Answer) -> Value {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    serde_json::from_str(answer.text()).expect("JSON")
}

#[track_caller]
fn assert_no_cors(answer: &Answer) {
    let found = answer.headers.iter().find(|(name, _)| name.starts_with("access-control-"));
    assert_eq!(found, None);
}

fn token_file(bytes: &[u8]) -> tempfile::TempPath {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("room");
    file.into_temp_path()
}

/// As [`refusal`], for a command that was put together in place.
#[track_caller]
fn refusal_of(command: &mut Command) -> String {
    refusal(std::mem::replace(command, Command::new("false")))
}

fn runcap_help() -> String {
    let output = serve(&["--help"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(0));
    String::from_utf8(output.stdout).expect("text")
}

/// A copy of the program that any user can execute.
fn public_runcap(directory: &tempfile::TempDir) -> PathBuf {
    let copy = r#"chmod 755 "$1" && cp "$2" "$1/runcap""#;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", copy, "sh"]).arg(directory.path()).arg(env!("CARGO_BIN_EXE_runcap"));
    assert!(shell.status().expect("a shell").success());
    directory.path().join("runcap")
}

fn as_user(uid: u32, command: &Command) -> Command {
    let (user, group) = (format!("--reuid={uid}"), format!("--regid={uid}"));
    through(&["setpriv", &user, &group, "--clear-groups"], command)
}

/// Whether a process of that user may look at /proc/PID/WHAT.
fn can_look(uid: u32, pid: u32, what: &str) -> bool {
    let script = r#"case $0 in
        */fd) ls "$0/" ;;
        */cwd | */root) readlink "$0" ;;
        *) : <"$0" ;;
    esac"#;
    let mut look = Command::new("/bin/sh");
    look.args(["-c", script, &format!("/proc/{pid}/{what}")]);
    let mut look = as_user(uid, &look);
    let status = look.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.expect("it starts").success()
}
