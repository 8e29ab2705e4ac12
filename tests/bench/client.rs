//! `runcap client`: what it takes, and how fast it moves files beside curl.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::report::{Figure, Goal};
use crate::serve::Server;
use crate::tools::{alternate, helper, ms, runcap};

/// A file that is moved.
const MOVED_BYTES: u64 = 4 << 30;

/// One that is moved over a path with delay.
const DELAYED_BYTES: u64 = 256 << 20;

/// From one end of that path to the other, milliseconds: half of 100 ms there and back.
const DELAY_MS: u64 = 50;

const ROUNDS: usize = 7;

const MIB: f64 = (1 << 20) as f64;

/// Which way a file goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Get,
    Put,
}

/// Runs a client to its end; the largest resident set that was seen, bytes.
fn peak_of(command: &mut Command) -> f64 {
    let mut child = command.spawn().expect("the client starts");
    let mut peak = 0.0;
    while child.try_wait().expect("a child").is_none() {
        peak = peak_rss_bytes(&child).max(peak);
        thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().expect("a child").success(), "the client does what it is asked for");
    peak
}

fn peak_rss_bytes(child: &Child) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.map_or(0.0, |number| number.parse::<f64>().expect("a number") * 1024.0)
}

fn client(address: &str) -> Command {
    let mut command = Command::new(runcap());
    command.args(["client", "--quiet", "--url", &format!("http://{address}")]);
    command
}

/// A directory in memory, so that no disk is measured, and a server of it.
fn place() -> (tempfile::TempDir, Server) {
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let home = home.expect("a directory");
    let mut serve = Command::new(runcap());
    serve.args(["serve", "--max-file-size", "8G", "--workspace"]).arg(home.path()).arg("--listen");
    let server = Server::start(&mut serve);
    (home, server)
}

/// Moves a file of `bytes`, which is a hole where it comes from.
fn files(home: &Path, bytes: u64) -> [String; 2] {
    let names = ["from", "to"].map(|name| home.join(name).to_str().expect("text").to_owned());
    let file = fs::File::create(&names[0]).expect("room for it");
    file.set_len(bytes).expect("room for it");
    names
}

fn ours(way: Way, address: &str, [from, to]: &[String; 2]) -> Command {
    let mut command = client(address);
    match way {
        Way::Get => command.args(["get", "from", to]),
        Way::Put => command.args(["put", from, "to"]),
    };
    command
}

fn curl(way: Way, address: &str, [from, to]: &[String; 2]) -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--fail", "--show-error"]);
    match way {
        Way::Get => {
            command.args(["--output", to, &format!("http://{address}/v1/files/read?path=from")])
        }
        Way::Put => command
            .args(["--upload-file", from, "--output", "/dev/null"])
            .arg(format!("http://{address}/v1/files/write?path=to")),
    };
    command
}

fn moved_ms(command: &mut Command, [_, to]: &[String; 2], bytes: u64) -> f64 {
    // Each finds nothing there.
    let _ = fs::remove_file(to);
    let took = ms(|| {
        let status = command.stderr(Stdio::inherit()).status().expect("it starts");
        assert!(status.success(), "{command:?}");
    });
    assert_eq!(fs::metadata(to).expect("it is there").len(), bytes);
    took
}

/// 4 GiB on this machine, against one stream of curl's from the same server.
pub(crate) fn move_file(way: Way) -> Vec<Figure> {
    let (home, server) = place();
    let address = server.address().to_string();
    let names = files(home.path(), MOVED_BYTES);
    let times = alternate(
        ROUNDS,
        || moved_ms(&mut ours(way, &address, &names), &names, MOVED_BYTES),
        || moved_ms(&mut curl(way, &address, &names), &names, MOVED_BYTES),
    );
    let peak = peak_of(&mut ours(way, &address, &names));
    vec![
        Figure::pairs("4 GiB, ms", "curl, one stream", Goal::Ratio(1.3), times),
        Figure::alone("VmHWM, bytes", peak, Goal::Value(32.0 * MIB)),
    ]
}

/// 256 MiB over a path with 100 ms of delay.
pub(crate) fn move_delayed(way: Way) -> Vec<Figure> {
    let (home, server) = place();
    let mut proxy = Command::new(helper());
    proxy.args(["delay-proxy", &DELAY_MS.to_string(), &server.address().to_string()]);
    let proxy = Server::start(&mut proxy);
    let address = proxy.address().to_string();
    let names = files(home.path(), DELAYED_BYTES);
    let times = alternate(
        ROUNDS,
        || moved_ms(&mut ours(way, &address, &names), &names, DELAYED_BYTES),
        || moved_ms(&mut curl(way, &address, &names), &names, DELAYED_BYTES),
    );
    vec![Figure::pairs("256 MiB, ms", "curl, one stream", Goal::Ratio(1.0), times)]
}

/// What a client holds of 10 GB that a command prints, and of a million names.
pub(crate) fn memory() -> Vec<Figure> {
    let (home, server) = place();
    let address = server.address().to_string();
    let produce = ["run", "--", helper(), "produce", "1000000", "10000"];
    let run = peak_of(client(&address).args(produce).stdout(Stdio::null()));
    for number in 0..1_000_000 {
        fs::File::create(home.path().join(format!("file-{number:07}"))).expect("room");
    }
    let ls = peak_of(client(&address).args(["ls", "-l"]).stdout(Stdio::null()));
    vec![
        Figure::alone("run, 10 GB: VmHWM, bytes", run, Goal::Value(8.0 * MIB)),
        Figure::alone("ls, 1,000,000 names: VmHWM, bytes", ls, Goal::Value(32.0 * MIB)),
    ]
}
