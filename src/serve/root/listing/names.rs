//! The smallest names of many, in memory that is set beforehand.

use std::ffi::CStr;

/// Bytes that a name takes beside its own: its place in the order, and the NUL behind it.
const NAME_EXTRA_BYTES: usize = size_of::<Slot>() + 1;

/// Names one behind the other in one block, each with a NUL, so that the kernel takes them as they
/// are. A `Vec` of strings takes 48 bytes more for each.
#[derive(Debug, Default)]
pub(super) struct Names {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
}

/// Where a name stands in the block.
#[derive(Debug, Clone, Copy)]
struct Slot {
    start: u32,
    length: u16,
    /// See [`crate::sys::files::Entries`].
    kind: u8,
}

impl Slot {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..][..usize::from(self.length)]
    }
}

impl Names {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Memory that they take, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.slots)
    }

    /// The name at `index` of the order, and its kind; `None` past the last one.
    pub(super) fn get(&self, index: usize) -> Option<(&CStr, u8)> {
        let slot = self.slots.get(index)?;
        let name = &self.bytes[slot.start as usize..][..usize::from(slot.length) + 1];
        Some((CStr::from_bytes_with_nul(name).ok()?, slot.kind))
    }

    /// Names that the kernel gives have neither a NUL nor 64 KiB, and the block is far from 4 GiB.
    fn push(&mut self, name: &[u8], kind: u8) {
        let place = (u32::try_from(self.bytes.len()), u16::try_from(name.len()));
        let (Ok(start), Ok(length)) = place else { return };
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
        self.slots.push(Slot { start, length, kind });
    }

    /// Keeps the first `count` slots and closes the gaps between their names.
    fn compact(&mut self, count: usize) {
        self.slots.truncate(count);
        self.slots.sort_unstable_by_key(|slot| slot.start);
        let mut end = 0;
        for slot in &mut self.slots {
            let start = slot.start as usize;
            let length = usize::from(slot.length) + 1;
            self.bytes.copy_within(start..start + length, end);
            // It moves to the front only, so it fits as it did.
            slot.start = end as u32;
            end += length;
        }
        self.bytes.truncate(end);
    }
}

/// What a selection may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Memory, bytes; at least that of two names.
    pub(super) bytes: usize,
    /// Names that are of any use.
    pub(super) names: usize,
}

/// The names that come first after a cursor, out of all that are offered: always every one up to
/// some name, and as many as there is room for.
///
/// When the room is full, the last quarter of what there is goes, and with it whatever is offered
/// later and comes behind the rest. A heap of the smallest is the loser: each name of a directory
/// that is read backwards would move through all its levels.
#[derive(Debug)]
pub(super) struct Selection<'a> {
    names: Names,
    room: Room,
    after: &'a [u8],
    /// The largest name that is of use.
    last: Option<Vec<u8>>,
    following: usize,
}

impl<'a> Selection<'a> {
    /// One of names that come after `after`.
    pub(super) fn new(after: &'a [u8], room: Room) -> Selection<'a> {
        Selection { names: Names::default(), room, after, last: None, following: 0 }
    }

    /// Takes a name into account.
    pub(super) fn offer(&mut self, name: &[u8], kind: u8) {
        if name <= self.after {
            return;
        }
        self.following += 1;
        if self.is_past(name) {
            return;
        }
        // Several times where those that go are short.
        while self.is_full(name) && self.prune() {
            if self.is_past(name) {
                return;
            }
        }
        self.names.push(name, kind);
    }

    fn is_past(&self, name: &[u8]) -> bool {
        self.last.as_deref().is_some_and(|last| name > last)
    }

    fn is_full(&self, name: &[u8]) -> bool {
        let bytes = self.names.bytes() + name.len() + NAME_EXTRA_BYTES;
        // So that names are left out once for many, and not for each.
        let slack = (self.room.names / 4).max(64);
        bytes > self.room.bytes || self.names.len() >= self.room.names.saturating_add(slack)
    }

    /// Leaves out a quarter, or what is of no use; false where there is nothing to leave out.
    fn prune(&mut self) -> bool {
        let Names { bytes, slots } = &mut self.names;
        let count = (slots.len() / 4 * 3).min(self.room.names).max(1);
        if count >= slots.len() {
            return false;
        }
        let (_, last, _) = slots
            .select_nth_unstable_by(count - 1, |one, other| one.of(bytes).cmp(other.of(bytes)));
        self.last = Some(last.of(bytes).to_vec());
        self.names.compact(count);
        true
    }

    /// The selection in order, each name once, and how many names were offered that come after the
    /// cursor.
    pub(super) fn end(mut self) -> (Names, usize) {
        let Names { bytes, slots } = &mut self.names;
        slots.sort_unstable_by(|one, other| one.of(bytes).cmp(other.of(bytes)));
        let count = slots.len();
        // A file that is removed and made again during a scan may be met twice.
        slots.dedup_by(|one, other| one.of(bytes) == other.of(bytes));
        let twice = count - slots.len();
        (self.names, self.following - twice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look like chance (xorshift), the same in each run.
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }
    }

    #[test]
    fn a_selection_is_the_beginning_of_all_names_in_order() {
        // Names of any bytes and lengths, in no order, ascending and descending; cursors that are
        // names and that are none; room for few bytes, for few names, for all.
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
        for round in 0..300 {
            let count = chance.below(2000) as usize + 1;
            let longest = [3, 20, 255][round % 3];
            let alphabet = [2, 256][round % 2];
            let mut names: Vec<Vec<u8>> = (0..count)
                .map(|_| {
                    let length = chance.below(longest) + 1;
                    (0..length).map(|_| chance.below(alphabet - 1) as u8 + 1).collect()
                })
                .collect();
            let mut sorted = names.clone();
            sorted.sort_unstable();
            sorted.dedup();
            names.clone_from(&sorted);
            match round % 5 {
                0 => {}
                1 => names.reverse(),
                _ => names.sort_by_cached_key(|_| chance.below(1 << 32)),
            }
            let after = match round % 4 {
                0 => Vec::new(),
                1 => vec![1, 2, 1],
                _ => sorted[chance.below(sorted.len() as u64) as usize].clone(),
            };
            let room = Room {
                bytes: [600, 5000, 1 << 20][chance.below(3) as usize],
                names: [1, 100, usize::MAX][chance.below(3) as usize],
            };
            let mut selection = Selection::new(&after, room);
            for name in &names {
                selection.offer(name, name[0]);
                assert!(selection.names.bytes() <= room.bytes, "{room:?}");
            }
            let expected: Vec<_> = sorted.into_iter().filter(|name| *name > after).collect();
            let (found, following) = selection.end();
            assert_eq!(following, expected.len(), "round {round}");
            let least = room.names.min(expected.len()).min(1 + room.bytes / 4 / (255 + 9));
            assert!(found.len() >= least, "round {round}: {} of {room:?}", found.len());
            for (index, name) in expected.iter().take(found.len()).enumerate() {
                let (found, kind) = found.get(index).expect("so many");
                assert_eq!((found.to_bytes(), kind), (&**name, name[0]), "round {round}");
            }
            assert!(found.get(found.len()).is_none());
        }
    }

    #[test]
    fn a_name_that_is_met_twice_counts_once() {
        let mut selection = Selection::new(b"a", Room { bytes: 1 << 10, names: 100 });
        for name in [b"c", b"b", b"a", b"c", b"b"] {
            selection.offer(name, 0);
        }
        let (found, following) = selection.end();
        assert_eq!((found.len(), following), (2, 2));
        let names = [0, 1].map(|index| found.get(index).expect("two").0);
        assert_eq!(names, [c"b", c"c"]);
    }
}
