//! Connections that say many things in many pieces: every answer is the right one, and none is
//! missing or too many.

use std::time::Duration;

use super::sequence::{Conversation, conversation};
use crate::http::{Client, Server};

#[test]
fn every_conversation_has_the_answers_its_bytes_ask_for() {
    let server = Server::routes(&[]);
    let workers = 8;
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let server = &server;
            scope.spawn(move || {
                for seed in (worker..300).step_by(workers) {
                    let _shown = Shown(seed);
                    converse(server, conversation(&bytes_of(seed), seed % 2 == 1));
                }
            });
        }
    });
    server.assert_alive();
    assert!(!server.log().contains("smuggled"), "a body became a request");
}

#[test]
fn conversations_are_of_every_kind() {
    let all: Vec<_> = (0..300).map(|seed| conversation(&bytes_of(seed), seed % 2 == 1)).collect();
    let statuses = [200, 204, 304, 400, 403, 404, 411, 417, 505];
    for status in statuses {
        let count = all.iter().flat_map(|one| &one.due).filter(|due| due.status == status).count();
        assert!(count >= 5, "{status}: {count}");
    }
    assert!(all.iter().filter(|one| one.cuts.len() > 3).count() > 100);
    assert!(all.iter().filter(|one| !one.is_ended && one.due.len() > 5).count() > 50);
    // Whatever bytes a fuzzer finds, there is one.
    assert_eq!(conversation(b"", false).due.len(), 1);
}

/// Bytes that a seed stands for (splitmix64).
fn bytes_of(seed: usize) -> Vec<u8> {
    let mut state = seed as u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..256).flat_map(|_| next().to_le_bytes()).collect()
}

/// Names the seed of a conversation that went wrong.
struct Shown(usize);

impl Drop for Shown {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

fn converse(server: &Server, what: Conversation) {
    let mut client = server.connect();
    let mut writer = Client::new(client.stream.try_clone().expect("a descriptor"));
    let Conversation { sent, cuts, due, is_ended } = what;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut from = 0;
            for cut in cuts.into_iter().chain([sent.len()]) {
                writer.send(&sent[from..cut]);
                from = cut;
                // Pieces that leave at once arrive as one.
                std::thread::sleep(Duration::from_micros(300));
            }
            if !is_ended {
                writer.end_writing();
            }
        });
        let count = due.len();
        for (index, due) in due.into_iter().enumerate() {
            let answer = match due.body {
                None => client.head(),
                Some(_) => client.answer(),
            };
            assert_eq!(answer.status, due.status, "answer {index}");
            let is_last = is_ended && index + 1 == count;
            assert_eq!(answer.closes(), is_last, "answer {index}");
            if let Some(body) = due.body.filter(|_| !is_last) {
                assert!(answer.body == body, "answer {index}: {:?}", answer.body.escape_ascii());
            }
        }
        client.assert_closed();
    });
}
