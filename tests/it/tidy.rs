//! House rules that can be checked are tests. Each rule is a function from files to complaints,
//! and is shown to complain about a planted fault.

use std::path::Path;

/// Path from the top level, and text, of one file.
type File = (String, String);
type Rule = fn(&[File]) -> Vec<String>;

const RULES: [(&str, Rule); 12] = [
    ("unsafe only in sys", unsafe_only_in_sys),
    ("one home for each crate", one_home_for_each_crate),
    ("exact dependencies", exact_dependencies),
    ("layers point down", layers_point_down),
    ("capture has no door but write", capture_has_no_door_but_write),
    ("at most 100 columns", at_most_100_columns),
    ("at most 600 lines", at_most_600_lines),
    ("functions of at most 70 lines", functions_of_at_most_70_lines),
    ("one place spawns", one_place_spawns),
    ("one file signals", one_file_signals),
    ("nothing left to do", nothing_left_to_do),
    ("known top level", known_top_level),
];

#[test]
fn the_tree_keeps_every_rule() {
    let files = tree();
    assert!(files.iter().any(|(path, _)| path == "src/lib.rs"), "the tree was read");
    let complaints: Vec<_> = RULES
        .iter()
        .flat_map(|(name, rule)| {
            rule(&files).into_iter().map(move |what| format!("{name}: {what}"))
        })
        .collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn every_rule_complains_about_a_planted_fault() {
    // Rule, file and text that break it, and the complaint. Parts are joined so that this file
    // keeps the rules itself.
    let long_function = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(69));
    let long_method = format!(
        "impl F {{\n    fn f(\n        a: u8,\n    ) -> T {{\n{}    }}\n}}\n",
        "\n".repeat(67)
    );
    let (unsafe_, todo, ignore) =
        (concat!("un", "safe"), concat!("to", "do!()"), concat!("#[ig", "nore]"));
    let planted = [
        (
            "unsafe only in sys",
            "src/json.rs",
            format!("let x = {unsafe_} {{ f() }};"),
            "src/json.rs:1",
        ),
        ("one home for each crate", "src/cli/mod.rs", "let x = libc::getpid();".into(), "libc"),
        ("one home for each crate", "src/json.rs", "use clap::Parser;".into(), "clap"),
        (
            "one home for each crate",
            "src/run/mod.rs",
            "use serde_json::Value;".into(),
            "serde_json",
        ),
        (
            "one home for each crate",
            "src/cli/mod.rs",
            "use serde_core::Serialize;".into(),
            "serde_core",
        ),
        (
            "one home for each crate",
            "src/wire/http.rs",
            "use tiny_http::Method;".into(),
            "tiny_http",
        ),
        (
            "exact dependencies",
            "Cargo.toml",
            "[dependencies]\nclap = \"4\"\nrand = \"1\"\n".into(),
            "rand",
        ),
        ("exact dependencies", "Cargo.toml", "[target.x.dependencies]\n".into(), "another table"),
        ("layers point down", "src/run/copy.rs", "use crate::wire::text;".into(), "crate::wire"),
        (
            "layers point down",
            "src/spec.rs",
            "fn f(x: crate::json::Options) {}".into(),
            "crate::json",
        ),
        ("layers point down", "src/wire/size.rs", "use crate::{quote, sys};".into(), "crate::sys"),
        ("layers point down", "src/wire/native/a.rs", "use crate::run::Sink;".into(), "crate::run"),
        ("capture has no door but write", "src/capture.rs", "fn f(r: impl Read) {}".into(), "Read"),
        (
            "capture has no door but write",
            "src/capture.rs",
            "use std::os::fd::AsFd;".into(),
            "AsFd",
        ),
        ("at most 100 columns", "tests/it/a.rs", format!("// {}", "é".repeat(98)), "101"),
        ("at most 600 lines", "src/a.rs", "\n".repeat(601), "601"),
        ("functions of at most 70 lines", "src/a.rs", long_function, "src/a.rs:1: 71"),
        ("functions of at most 70 lines", "src/a.rs", long_method, "src/a.rs:2: 71"),
        (
            "one place spawns",
            "src/run/spawn.rs",
            "command.spawn();\ncommand.spawn();".into(),
            "3 calls",
        ),
        ("one place spawns", "src/client.rs", "x.spawn()?;".into(), "src/client.rs:1"),
        (
            "one place spawns",
            "src/serve/a.rs",
            "let c = Command::new(a);".into(),
            "src/serve/a.rs:1",
        ),
        (
            "one file signals",
            "src/run/supervise.rs",
            "process::kill(pid, KILL);".into(),
            "supervise.rs:1",
        ),
        ("one file signals", "src/json.rs", "kill_group(pid, KILL);".into(), "src/json.rs:1"),
        ("one file signals", "src/sys/proc.rs", "libc::kill(pid, 9)".into(), "src/sys/proc.rs:1"),
        ("one file signals", "src/sys/signal.rs", "libc::kill(pid, 9)".into(), "signal.rs:1"),
        ("nothing left to do", "src/a.rs", format!("fn f() {{ {todo} }}"), "src/a.rs:1"),
        (
            "nothing left to do",
            "tests/it/a.rs",
            format!("{ignore}\nfn f() {{}}"),
            "tests/it/a.rs:1",
        ),
        ("known top level", "docs/notes.md", String::new(), "docs"),
        ("known top level", "build.rs", String::new(), "build.rs"),
    ];
    for (name, rule) in RULES {
        assert!(planted.iter().any(|(planted, ..)| *planted == name), "{name} has no fault");
        for (_, path, text, complaint) in planted.iter().filter(|(planted, ..)| *planted == name) {
            let mut files = tree();
            files.retain(|(other, _)| other != path || *path == "src/run/spawn.rs");
            files.push(((*path).to_owned(), text.clone()));
            let complaints = rule(&files).join("\n");
            assert!(complaints.contains(complaint), "{name}, {path}: {complaints:?}");
        }
    }
}

/// Every text file that a commit may hold: hidden ones and what is built are left out.
fn tree() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory can be listed") {
            let entry = entry.expect("an entry can be read");
            let name = entry.file_name().into_string().expect("names are text");
            let path = entry.path();
            let inner = path.strip_prefix(root).expect("below the root").to_str().expect("text");
            let is_built =
                ["target", "fuzz/target", "fuzz/corpus", "fuzz/artifacts", "fuzz/coverage"];
            if name.starts_with('.') || name == "__pycache__" || is_built.contains(&inner) {
                continue;
            }
            if entry.file_type().expect("it has a type").is_dir() {
                waiting.push(path);
            } else {
                let text = String::from_utf8_lossy(&std::fs::read(&path).expect("it can be read"))
                    .into_owned();
                files.push((inner.to_owned(), text));
            }
        }
    }
    files
}

fn below<'a>(files: &'a [File], prefix: &'a str) -> impl Iterator<Item = &'a File> {
    files.iter().filter(move |(path, _)| path.starts_with(prefix) && path.ends_with(".rs"))
}

/// Lines that are code, with their numbers; comments are left out.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.split(" // ").next().unwrap_or(line)))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|character: char| !character.is_alphanumeric() && character != '_')
}

/// Places in `src` where a line of code is `wrong`.
fn places(files: &[File], prefix: &str, wrong: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let in_file = |(path, text): &File| -> Vec<String> {
        let lines = code(text).filter(|(_, line)| wrong(path, line));
        lines.map(|(number, line)| format!("{path}:{number}: {}", line.trim())).collect()
    };
    below(files, prefix).flat_map(in_file).collect()
}

fn unsafe_only_in_sys(files: &[File]) -> Vec<String> {
    places(files, "src/", |path, line| {
        !path.starts_with("src/sys/") && words(line).any(|word| word == concat!("un", "safe"))
    })
}

fn one_home_for_each_crate(files: &[File]) -> Vec<String> {
    const HOMES: [(&str, &str); 5] = [
        ("clap", "src/cli/"),
        ("libc", "src/sys/"),
        ("serde_core", "src/wire/"),
        ("serde_json", "src/wire/"),
        ("tiny_http", "src/serve/"),
    ];
    let away = |path: &str, line: &str| {
        HOMES
            .iter()
            .any(|(name, home)| !path.starts_with(home) && words(line).any(|word| word == *name))
    };
    places(files, "src/", away)
}

fn exact_dependencies(files: &[File]) -> Vec<String> {
    let Some((_, manifest)) = files.iter().rfind(|(path, _)| path == "Cargo.toml") else {
        return vec!["no Cargo.toml".to_owned()];
    };
    let tables = manifest.lines().filter(|line| line.starts_with('['));
    let others = tables.filter(|line| {
        line.contains("dependencies") && !matches!(*line, "[dependencies]" | "[dev-dependencies]")
    });
    let mut complaints: Vec<_> = others.map(|line| format!("another table: {line}")).collect();
    let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let names: Vec<_> = lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name))
        .collect();
    if names != ["clap", "libc", "serde_core", "serde_json", "tiny_http"] {
        complaints.push(format!("the crates are {}", names.join(", ")));
    }
    complaints
}

fn layers_point_down(files: &[File]) -> Vec<String> {
    const CORE: [&str; 6] =
        ["src/spec.rs", "src/capture.rs", "src/outcome.rs", "src/quote.rs", "src/run/", "src/sys/"];
    const ABOVE_CORE: [&str; 6] = ["wire", "json", "cli", "live", "serve", "client"];
    const ABOVE_WIRE: [&str; 7] = ["run", "json", "cli", "live", "sys", "serve", "client"];
    let mut complaints = Vec::new();
    for (path, text) in below(files, "src/") {
        let forbidden: &[&str] = match path {
            path if CORE.iter().any(|core| path.starts_with(core)) => &ABOVE_CORE,
            path if path.starts_with("src/wire/") => &ABOVE_WIRE,
            _ => &[],
        };
        for module in named_modules(text) {
            if forbidden.contains(&module.as_str()) {
                complaints.push(format!("{path} names crate::{module}"));
            }
        }
    }
    complaints
}

/// Modules that stand directly after `crate::`, also in braces.
fn named_modules(text: &str) -> Vec<String> {
    let code: String = code(text).map(|(_, line)| line.to_owned() + "\n").collect();
    let mut modules = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            modules.extend(words(rest).next().map(str::to_owned));
            continue;
        };
        let mut depth = 0;
        let ends = |character: char| {
            depth += i32::from(character == '{') - i32::from(character == '}');
            depth < 0
        };
        let list = list.split(ends).next().unwrap_or(list);
        // Items of inner lists are taken for modules too: one that is named like a module is worth
        // a look.
        modules.extend(list.split([',', '{', '}']).filter_map(|item| {
            words(item.trim()).next().filter(|word| !word.is_empty()).map(str::to_owned)
        }));
    }
    modules
}

fn capture_has_no_door_but_write(files: &[File]) -> Vec<String> {
    const DOORS: [&str; 10] = [
        "Read",
        "BufRead",
        "PipeReader",
        "File",
        "AsFd",
        "OwnedFd",
        "BorrowedFd",
        "RawFd",
        "AsRawFd",
        "as_fd",
    ];
    places(files, "src/capture.rs", |_, line| words(line).any(|word| DOORS.contains(&word)))
}

fn at_most_100_columns(files: &[File]) -> Vec<String> {
    let of_file = |(path, text): &File| -> Vec<String> {
        let lines = text.lines().map(|line| line.chars().count()).enumerate();
        let long = lines.filter(|(_, columns)| *columns > 100);
        long.map(|(index, columns)| format!("{path}:{}: {columns} columns", index + 1)).collect()
    };
    ["src/", "tests/", "fuzz/"].iter().flat_map(|top| below(files, top)).flat_map(of_file).collect()
}

fn at_most_600_lines(files: &[File]) -> Vec<String> {
    let lines = below(files, "src/").map(|(path, text)| (path, text.lines().count()));
    lines
        .filter(|(_, lines)| *lines > 600)
        .map(|(path, lines)| format!("{path}: {lines}"))
        .collect()
}

/// Counts from the line of `fn` to the first closing brace at its indentation, as rustfmt sets it.
fn functions_of_at_most_70_lines(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in below(files, "src/") {
        let lines: Vec<_> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let trimmed = line.trim_start();
            let is_head = !trimmed.starts_with("//") && words(trimmed).any(|word| word == "fn");
            if !is_head || trimmed.ends_with([';', '}', ',']) || !opens(&lines[start..]) {
                continue;
            }
            let end = format!("{}}}", &line[..line.len() - trimmed.len()]);
            let length = lines[start..].iter().position(|line| *line == end).map(|last| last + 1);
            match length {
                Some(length) if length <= 70 => {}
                Some(length) => complaints.push(format!("{path}:{}: {length} lines", start + 1)),
                None => {}
            }
        }
    }
    complaints
}

/// Whether these lines begin with the head of a function that has a body.
fn opens(lines: &[&str]) -> bool {
    let ends = lines.iter().find(|line| line.ends_with([';', '{']));
    ends.is_some_and(|line| line.ends_with('{'))
}

fn one_place_spawns(files: &[File]) -> Vec<String> {
    let starts = |line: &str| line.contains(".spawn()");
    let mut complaints = places(files, "src/", |path, line| {
        path != "src/run/spawn.rs"
            && (starts(line) || (line.contains("Command::new(") && !path.starts_with("src/cli/")))
    });
    let calls = places(files, "src/run/spawn.rs", |_, line| starts(line)).len();
    if calls != 1 {
        complaints.push(format!("src/run/spawn.rs has {calls} calls of spawn"));
    }
    complaints
}

fn one_file_signals(files: &[File]) -> Vec<String> {
    const CALLS: [&str; 4] = ["process::kill(", "kill_group(", "pidfd_send_signal(", "killpg("];
    places(files, "src/", |path, line| {
        let calls = CALLS.iter().any(|call| line.contains(call)) && !line.contains("fn ");
        let raw = line.contains("libc::kill(") || line.contains("SYS_pidfd_send_signal");
        // kill(0) stops runcap's own group for Ctrl-Z, and no process of a command.
        let raw = raw && !(path == "src/sys/signal.rs" && line.contains("libc::kill(0, "));
        (calls && path != "src/run/leader.rs") || (raw && path != "src/sys/process.rs")
    })
}

fn nothing_left_to_do(files: &[File]) -> Vec<String> {
    const SIGNS: [&str; 4] = [
        concat!("to", "do!"),
        concat!("unimple", "mented!"),
        concat!("#[ig", "nore"),
        concat!("db", "g!("),
    ];
    let is_sign = |_: &str, line: &str| SIGNS.iter().any(|sign| line.contains(sign));
    ["src/", "tests/", "fuzz/"].iter().flat_map(|top| places(files, top, is_sign)).collect()
}

fn known_top_level(files: &[File]) -> Vec<String> {
    const KNOWN: [&str; 7] =
        ["Cargo.toml", "Cargo.lock", "src", "tests", "fuzz", "README.md", "LICENSE"];
    let top = |path: &str| path.split('/').next().unwrap_or(path).to_owned();
    let mut unknown: Vec<_> = files.iter().map(|(path, _)| top(path)).collect();
    unknown.retain(|name| !KNOWN.contains(&name.as_str()));
    unknown.sort_unstable();
    unknown.dedup();
    unknown
}
