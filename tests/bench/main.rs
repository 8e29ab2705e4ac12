//! Measures what runcap promises: `cargo bench` runs every row, `cargo bench -- NAME` those whose
//! name contains NAME; `--json FILE` also writes all figures, raw ones too, to FILE.
//!
//! Nothing here asserts a time: a row that does not meet its goal says so and the run goes on. A
//! row that cannot be measured (no musl target, a wrong answer) ends the run with a panic.
//! Alternatives are measured in turn with runcap, block by block, because the machine's speed
//! changes while the benchmark runs; compare inside a row only.

mod client;
mod ending;
mod exec;
mod files;
mod memory;
mod report;
mod run;
mod serve;
mod spawn;
mod tools;

use files::Way;
use report::{Figure, Report};
use run::{HEAD, Pins, Producer, TAIL};

/// One thing that is measured.
struct Row {
    name: &'static str,
    measure: fn() -> Vec<Figure>,
}

const ONE_CORE: Pins = Pins::Cores { reader: "0", command: "0" };
const TWO_CORES: Pins = Pins::Cores { reader: "1", command: "0" };
const BLOCKS_1M: Producer = Producer::Blocks { bytes: 1 << 20, count: 1 << 10 };
const BLOCKS_64K: Producer = Producer::Blocks { bytes: 1 << 16, count: 1 << 14 };
/// Half of what the others write: it takes as long.
const BLOCKS_4K: Producer = Producer::Blocks { bytes: 1 << 12, count: 1 << 17 };

const ROWS: &[Row] = &[
    Row { name: "memory/ascii-300MB", measure: || memory::capture(memory::ASCII, 300_000_000, 7) },
    Row { name: "memory/zeros-300MB", measure: || memory::capture(memory::ZEROS, 300_000_000, 7) },
    Row {
        name: "memory/random-300MB",
        measure: || memory::capture(memory::RANDOM, 300_000_000, 7),
    },
    Row {
        name: "memory/ascii-10GB",
        measure: || memory::capture(memory::ASCII, 10_000_000_000, 2),
    },
    Row { name: "memory/small-output", measure: memory::small_output },
    Row { name: "binary/size", measure: spawn::binary_size },
    Row { name: "binary/version", measure: spawn::version },
    Row { name: "run/true-pinned", measure: || run::start(true) },
    Row { name: "run/true-unpinned", measure: || run::start(false) },
    Row { name: "run/head-64K-two-cores", measure: || HEAD.with(BLOCKS_64K, TWO_CORES, 0.50) },
    Row { name: "run/head-64K-one-core", measure: || HEAD.with(BLOCKS_64K, ONE_CORE, 0.95) },
    Row { name: "run/head-1M-two-cores", measure: || HEAD.with(BLOCKS_1M, TWO_CORES, 0.60) },
    Row { name: "run/head-1M-one-core", measure: || HEAD.with(BLOCKS_1M, ONE_CORE, 0.90) },
    Row { name: "run/head-4K-two-cores", measure: || HEAD.with(BLOCKS_4K, TWO_CORES, 1.10) },
    Row { name: "run/head-4K-one-core", measure: || HEAD.with(BLOCKS_4K, ONE_CORE, 1.10) },
    Row {
        name: "run/head-zeros-unpinned",
        measure: || HEAD.with(Producer::Zeros, Pins::None, 1.10),
    },
    Row { name: "run/tail-64K-two-cores", measure: || TAIL.with(BLOCKS_64K, TWO_CORES, 0.85) },
    Row { name: "run/tail-64K-one-core", measure: || TAIL.with(BLOCKS_64K, ONE_CORE, 0.75) },
    Row { name: "run/tail-4K-two-cores", measure: || TAIL.with(BLOCKS_4K, TWO_CORES, 1.30) },
    Row { name: "run/tail-4K-one-core", measure: || TAIL.with(BLOCKS_4K, ONE_CORE, 1.30) },
    Row { name: "spawn/pinned", measure: || spawn::engine(true, 0) },
    Row { name: "spawn/unpinned", measure: || spawn::engine(false, 0) },
    Row { name: "spawn/pinned-1GB-touched", measure: || spawn::engine(true, 1 << 30) },
    Row { name: "overflow-stop/yes", measure: || ending::overflow_stop(&["yes"]) },
    Row { name: "overflow-stop/zeros", measure: || ending::overflow_stop(&["cat", "/dev/zero"]) },
    Row { name: "timeout/grace-0", measure: || ending::timeout(Some(0)) },
    Row { name: "timeout/grace-default", measure: || ending::timeout(None) },
    Row { name: "timeout/group-of-50-grace-0", measure: || ending::group_of_50(Some(0)) },
    Row { name: "timeout/group-of-50-grace-default", measure: || ending::group_of_50(None) },
    Row { name: "timeout/escaped-50-grace-0", measure: || ending::escaped_50(Some(0)) },
    Row { name: "serve/tiny-1", measure: || serve::tiny(1) },
    Row { name: "serve/tiny-8", measure: || serve::tiny(8) },
    Row { name: "serve/tiny-64", measure: || serve::tiny(64) },
    Row { name: "serve/answer-10MiB-64K-writes", measure: || serve::big(64 << 10) },
    Row { name: "serve/answer-10MiB-one-write", measure: || serve::big(serve::BIG_BYTES + 4096) },
    Row { name: "serve/ranges-down-1", measure: || files::ranges(Way::Down, 1) },
    Row { name: "serve/ranges-down-16", measure: || files::ranges(Way::Down, 16) },
    Row { name: "serve/ranges-up-1", measure: || files::ranges(Way::Up, 1) },
    Row { name: "serve/ranges-up-16", measure: || files::ranges(Way::Up, 16) },
    Row { name: "serve/execute-1", measure: || serve::execute(1, 1.6) },
    // As a goal 0.7 of the requests a second is 1 / 0.7 of the time.
    Row { name: "serve/execute-8", measure: || serve::execute(8, 1.0 / 0.7) },
    Row { name: "serve/exec-1GB", measure: exec::flood },
    Row { name: "serve/exec-18-at-once", measure: exec::at_once },
    Row { name: "serve/exec-first-event", measure: exec::first_event },
    Row { name: "serve/list-1M-pages-of-50000", measure: || files::list(Some(50_000), 1.5) },
    Row { name: "serve/list-1M-default-pages", measure: || files::list(None, 6.0) },
    Row { name: "client/get-4GiB", measure: || client::move_file(client::Way::Get) },
    Row { name: "client/put-4GiB", measure: || client::move_file(client::Way::Put) },
    Row { name: "client/get-100ms-delay", measure: || client::move_delayed(client::Way::Get) },
    Row { name: "client/put-100ms-delay", measure: || client::move_delayed(client::Way::Put) },
    Row { name: "client/memory", measure: client::memory },
    Row { name: "leftovers/check", measure: ending::leftovers_check },
    Row { name: "leftovers/10000-commands", measure: ending::ten_thousand },
];

fn main() {
    let (mut filter, mut file) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // cargo says so to every benchmark.
            "--bench" => {}
            "--json" => file = Some(arguments.next().expect("--json takes a file")),
            _ if argument.starts_with('-') => panic!("unknown option {argument}"),
            _ => filter = Some(argument),
        }
    }
    let wanted = |row: &&Row| filter.as_deref().is_none_or(|filter| row.name.contains(filter));
    let rows: Vec<_> = ROWS.iter().filter(wanted).collect();
    assert!(!rows.is_empty(), "no row's name contains {filter:?}");
    let mut report = Report::begin();
    for row in rows {
        report.add(row.name, (row.measure)());
    }
    report.end();
    if let Some(file) = file {
        std::fs::write(&file, report.to_json()).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}
