//! Every seed of every fuzz target, on the stable compiler, as part of `cargo test`.

use std::path::{Path, PathBuf};

#[path = "../../fuzz/src/lib.rs"]
mod targets;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 12] = [
    ("text", targets::text),
    ("quantities", targets::quantities),
    ("capture", targets::capture),
    ("native", targets::native),
    ("head", targets::head),
    ("target", targets::target),
    ("response", targets::response),
    ("chunks", targets::chunks),
    ("multipart", targets::multipart),
    ("serve", targets::serve),
    ("picod", targets::picod),
    ("sandbox", targets::sandbox),
];

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The names of the `[[bin]]` tables of a manifest.
fn bins(manifest: &str) -> Vec<&str> {
    let tables = manifest.split("[[bin]]").skip(1);
    tables
        .map(|table| {
            let line = table.lines().find_map(|line| line.strip_prefix("name = "));
            line.expect("a bin has a name").trim_matches('"')
        })
        .collect()
}

#[test]
fn every_fuzz_target_is_replayed_here_and_has_its_file() {
    let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let mut bins = bins(&manifest);
    let mut names = TARGETS.map(|(name, _)| name).to_vec();
    bins.sort_unstable();
    names.sort_unstable();
    assert_eq!(bins, names, "targets of fuzz/Cargo.toml, and of this file");
    for name in names {
        let text = std::fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(text.contains(&format!("runcap_fuzz::{name}(data)")), "{name}: {text}");
    }
}

#[test]
fn every_seed_holds() {
    for (name, target) in TARGETS {
        let directory = fuzz().join("seeds").join(name);
        let seeds = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let mut count = 0;
        for seed in seeds {
            let path = seed.unwrap().path();
            let data = std::fs::read(&path).unwrap();
            let replay = std::panic::catch_unwind(|| target(&data));
            assert!(replay.is_ok(), "{} does not hold", path.display());
            count += 1;
        }
        assert!(count > 0, "{} holds no seed", directory.display());
    }
}
