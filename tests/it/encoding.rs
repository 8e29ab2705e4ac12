//! Output bytes as text in an answer, and exactly.

use crate::support::*;

/// A thousand bytes that are no text, cap 1000: the cap counts bytes, base64 is exact.
#[test]
fn en2_the_cap_is_on_raw_bytes_and_base64_is_exact() {
    let command = "head -c 1000 /dev/zero | tr '\\000' '\\377'";
    let text = answer(json!({"command": command, "keep": "tail", "max_output_size": 1000}));
    assert_has(
        &text,
        &json!({"stdout": "\u{fffd}".repeat(1000), "stdout_bytes": 1000, "stdout_truncated": null,
            "stdout_replaced": true}),
    );
    let exact = answer(json!({"command": command, "keep": "tail", "max_output_size": 1000,
        "encoding": "base64"}));
    assert_eq!(base64(&exact, "stdout_base64"), vec![0xff; 1000]);
    assert_has(&exact, &json!({"stdout": null, "stdout_bytes": 1000, "stdout_replaced": null}));
}

/// A tail of 1000 bytes that begins inside a euro sign: the rest of it is dropped and counted.
#[test]
fn en2_a_tail_never_begins_inside_a_character() {
    let command = format!("{} repeat € 1000", helper());
    let text = answer(json!({"command": command, "keep": "tail", "max_output_size": 1000}));
    assert_has(
        &text,
        &json!({"stdout": "€".repeat(333), "stdout_bytes": 3000, "stdout_dropped_bytes": 2001,
            "stdout_gap_at": 0, "stdout_replaced": null}),
    );
    let exact = answer(json!({"command": command, "keep": "tail", "max_output_size": 1000,
        "encoding": "base64"}));
    assert_eq!(base64(&exact, "stdout_base64"), &"€".repeat(334).as_bytes()[2..]);
    assert_has(&exact, &json!({"stdout_dropped_bytes": 2000}));
    // Head+tail of 100 bytes: 80 and 20, each cut inside a euro sign, the marker between them.
    let both = answer(json!({"command": command, "keep": "head+tail", "max_output_size": 100}));
    let kept = format!("{}\n[runcap: 2904 bytes dropped]\n{}", "€".repeat(26), "€".repeat(6));
    assert_has(
        &both,
        &json!({"stdout": kept, "stdout_dropped_bytes": 2904, "stdout_gap_at": 78,
            "stdout_replaced": null}),
    );
}

/// The three bytes of a euro sign, each written by itself.
#[test]
fn en3_a_character_that_comes_in_three_writes_is_one_character() {
    let split = r"printf '\342'; sleep 0.1; printf '\202'; sleep 0.1; printf '\254'";
    let whole = answer(json!({"command": split}));
    let expected = json!({"stdout": "€", "stdout_bytes": 3, "stdout_replaced": null});
    assert_has(&whole, &expected);
    let split = r"printf '\342' >&2; sleep 0.1; printf '\202\254' >&2";
    assert_has(&answer(json!({"command": split})), &json!({"stderr": "€", "stderr_bytes": 3}));
    // Nothing comes after it: then it is one replacement, and not lost.
    let cut = answer(json!({"command": r"printf 'a\342\202'"}));
    let expected = json!({"stdout": "a\u{fffd}", "stdout_bytes": 3, "stdout_replaced": true,
        "stdout_truncated": null});
    assert_has(&cut, &expected);
}

/// Two bytes that are never UTF-8: replaced one by one and said so, exact in base64.
#[test]
fn en4_invalid_utf8_costs_nothing_else() {
    let command = r"printf '\377\376abc'; exit 3";
    let text = answer(json!({"command": command}));
    assert_has(
        &text,
        &json!({"status": "exited", "exit_code": 3, "stdout": "\u{fffd}\u{fffd}abc",
            "stdout_bytes": 5, "stdout_replaced": true, "error": null}),
    );
    let exact = answer(json!({"command": command, "encoding": "base64"}));
    assert_has(&exact, &json!({"exit_code": 3, "stdout_bytes": 5}));
    assert_eq!(base64(&exact, "stdout_base64"), b"\xff\xfeabc");
    let own = answer(json!({"command": r"printf '\357\277\275'"}));
    assert_has(&own, &json!({"stdout": "\u{fffd}", "stdout_replaced": null}));
}

/// NUL, escape, CR, LF, U+0085 and U+2028: 17 bytes, one line of JSON, the same characters.
#[test]
fn en5_control_characters_stay_inside_one_line_of_json() {
    let command = r"printf 'a\000b\001\033[31m\r\n\302\205\342\200\250z'";
    let same = "a\0b\u{1}\u{1b}[31m\r\n\u{85}\u{2028}z";
    for live in [false, true] {
        let request = json!({"command": command, "stream": live});
        let run = feed(&[], request.to_string().as_bytes());
        let key = if live { "data" } else { "stdout" };
        let text: String = run.answers.iter().filter_map(|line| line[key].as_str()).collect();
        assert_eq!(text, same);
        assert_eq!(number(run.answers.last().unwrap(), "stdout_bytes"), 17);
        // No byte in it that any line reader takes for the end of a line.
        let raw = String::from_utf8(run.stdout).unwrap();
        assert!(raw.is_ascii(), "{raw:?}");
        let controls = raw.chars().filter(|character| character.is_control()).count();
        assert_eq!(controls, run.answers.len(), "one newline a line: {raw:?}");
    }
}
