//! What is kept from one page of a list for the next: where it goes on, and names read ahead.

use std::collections::VecDeque;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::names::Names;

/// Places where lists go on that are remembered; further ones push out the oldest. A list that
/// goes on at a forgotten one reads its directory again.
const CURSORS_MAX: usize = 32;

/// Batches of names that may take [`super::BATCH_MAX_BYTES`], those that are in use and those that
/// are kept. A list that gets none does with [`super::SMALL_BATCH_MAX_BYTES`], and reads a large
/// directory more often.
pub(super) const LARGE_BATCHES_MAX: usize = 2;

/// How long a directory must have been left alone before a scan of it. Any change from then on has
/// another time: the clock that the kernel stamps by ticks every 10 ms at the slowest, and ext4
/// with its smallest inodes keeps whole seconds.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// Which directory.
pub(super) type Id = (u64, u64);

pub(super) fn id_of(directory: &Metadata) -> Id {
    (directory.dev(), directory.ino())
}

/// When a directory was changed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Stamp {
    pub(super) fn of(directory: &Metadata) -> Stamp {
        Stamp {
            mtime: (directory.mtime(), directory.mtime_nsec()),
            ctime: (directory.ctime(), directory.ctime_nsec()),
        }
    }

    /// Whether what changes from now on cannot have this stamp. A time to come is no proof: the
    /// clock was set.
    pub(super) fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let settled = i64::try_from(now.saturating_sub(SETTLED_AFTER).as_secs()).unwrap_or(0);
        self.ctime.0 < settled && self.mtime.0 < settled
    }
}

/// The right to a large batch, as long as it lives.
#[derive(Debug)]
pub(super) struct Large(#[expect(dead_code, reason = "it is counted")] Arc<()>);

/// Names read ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) names: Names,
    /// The next of them.
    pub(super) at: usize,
    /// Names from that one on that the directory has.
    pub(super) following: usize,
    /// What the directory had when this was read.
    pub(super) stamp: Stamp,
    pub(super) large: Large,
}

/// Where a list goes on.
#[derive(Debug)]
pub(super) struct Cursor {
    pub(super) directory: Id,
    /// The name that was the last.
    pub(super) last: Vec<u8>,
    pub(super) ahead: Option<Ahead>,
}

/// What is kept of all lists.
#[derive(Debug, Default)]
pub(in crate::serve::root) struct Kept {
    /// The oldest first.
    cursors: Mutex<VecDeque<Cursor>>,
    /// Has another owner for each large batch.
    large: Arc<()>,
}

impl Kept {
    /// Takes out the latest cursor of a directory that is at one of these names.
    pub(super) fn take(&self, directory: Id, names: [Option<&[u8]>; 2]) -> Option<Cursor> {
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it =
            |cursor: &Cursor| cursor.directory == directory && names.contains(&Some(&cursor.last));
        let index = cursors.iter().rposition(is_it)?;
        cursors.remove(index)
    }

    /// Keeps a cursor.
    pub(super) fn put(&self, cursor: Cursor) {
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        if cursors.len() >= CURSORS_MAX {
            cursors.pop_front();
        }
        cursors.push_back(cursor);
    }

    /// The right to a large batch, for which the oldest one that is kept has to go; `None` when all
    /// are in use.
    pub(super) fn large(&self) -> Option<Large> {
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        // Only here they become more, and nobody else is here.
        if Arc::strong_count(&self.large) > LARGE_BATCHES_MAX {
            cursors.iter_mut().find_map(|cursor| cursor.ahead.take())?;
        }
        Some(Large(Arc::clone(&self.large)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(name: &[u8], large: Option<Large>) -> Cursor {
        let stamp = Stamp { mtime: (0, 0), ctime: (0, 0) };
        let ahead = |large| Ahead { names: Names::default(), at: 0, following: 0, stamp, large };
        Cursor { directory: (1, 1), last: name.to_vec(), ahead: large.map(ahead) }
    }

    #[test]
    fn large_batches_are_few_and_the_oldest_kept_one_goes_first() {
        let kept = Kept::default();
        let [one, other] = [(), ()].map(|()| kept.large().expect("there are two"));
        assert!(kept.large().is_none(), "both are in use");
        kept.put(cursor(b"one", Some(one)));
        kept.put(cursor(b"other", Some(other)));
        let third = kept.large();
        assert!(third.is_some(), "a kept one goes");
        let has_names = |name: &[u8]| {
            kept.take((1, 1), [Some(name), None]).expect("it is remembered").ahead.is_some()
        };
        assert_eq!([has_names(b"one"), has_names(b"other")], [false, true]);
        drop(third);
        assert!(kept.large().is_some() && kept.large().is_some());
    }

    #[test]
    fn cursors_are_few_and_the_latest_is_meant() {
        let kept = Kept::default();
        for number in 0..=CURSORS_MAX {
            kept.put(cursor(number.to_string().as_bytes(), None));
        }
        let takes = |directory, names| kept.take(directory, names).map(|cursor| cursor.last);
        assert_eq!(takes((1, 1), [Some(b"0"), None]), None, "the oldest is forgotten");
        assert_eq!(takes((1, 2), [Some(b"1"), None]), None, "another directory's");
        assert_eq!(takes((1, 1), [Some(b"1"), Some(b"2")]), Some(b"2".to_vec()), "the latest");
        assert_eq!(takes((1, 1), [Some(b"2"), None]), None, "it was taken out");
    }
}
