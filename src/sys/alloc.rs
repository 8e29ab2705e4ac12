//! The program's allocator: libc's, except that a thread may use its own small blocks again.
//!
//! musl's malloc has one lock. With a connection a thread, a thread that loses its processor while
//! it holds the lock makes all others wait for it in the kernel, and from then on nearly every
//! allocation is a futex call: at 64 connections 15 of them an answer, 18 us an answer where this
//! takes 10. The losers are fewer allocations (tiny_http makes most of the 24), blocks that stay
//! (they keep pages from being unmapped between answers, and do nothing about the lock) and another
//! allocator (a crate more).
//!
//! It also gives back large blocks as soon as they are freed. What moves a file in ranges of 1 MiB
//! takes a buffer for each, whose pages are then mapped, zeroed and unmapped every time: a tenth of
//! the time that a range takes. So a few of that one size are kept for all connections.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Blocks of at most this are kept, bytes.
const BLOCK_MAX_BYTES: usize = 16 * CLASSES - HEADER_BYTES;

/// Sizes of blocks: 12, 28, 44 bytes and so on. These are what musl's malloc has room for anyway,
/// so that rounding up to them costs nothing.
const CLASSES: usize = 64;

/// What musl's malloc adds to a block.
const HEADER_BYTES: usize = 4;

/// Bytes that a thread keeps: enough for one small request and its answer.
const KEPT_MAX_BYTES: usize = 4 << 10;

/// Size of the buffers that connections move bodies and answers through.
pub(crate) const BUFFER_BYTES: usize = 80 << 10;

/// Buffers of that size that are kept while nobody uses them.
const SPARES_MAX: usize = 12;

static SPARES: [AtomicPtr<u8>; SPARES_MAX] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SPARES_MAX];

/// Whether a block of this layout may be one of [`SPARES`]: in the threads of connections only,
/// since elsewhere such a buffer costs nothing until it is used.
fn may_be_spare(layout: Layout) -> bool {
    layout.size() == BUFFER_BYTES
        && layout.align() <= 8
        && KEPT.with(|kept| kept.is_connection.get())
}

fn take_spare() -> Option<*mut u8> {
    let taken = SPARES.iter().map(|spare| spare.swap(ptr::null_mut(), Ordering::AcqRel));
    taken.into_iter().find(|block| !block.is_null())
}

/// Keeps a block; false where as many are kept.
fn put_spare(block: *mut u8) -> bool {
    let (free, both) = (ptr::null_mut(), Ordering::AcqRel);
    SPARES.iter().any(|spare| spare.compare_exchange(free, block, both, Ordering::Relaxed).is_ok())
}

/// libc's allocator with blocks that threads keep.
#[derive(Debug)]
pub struct Allocator;

/// Blocks that this thread freed and may have again.
struct Kept {
    /// Bytes that may be added; none in a thread that does not keep blocks.
    room: Cell<usize>,
    /// It is the thread of a connection.
    is_connection: Cell<bool>,
    /// The first block of each size; each block holds the address of the next.
    first: [Cell<*mut u8>; CLASSES],
}

thread_local! {
    static KEPT: Kept = const {
        Kept {
            room: Cell::new(0),
            is_connection: Cell::new(false),
            first: [const { Cell::new(ptr::null_mut()) }; CLASSES],
        }
    };
}

/// Lets the calling thread, which it never leaves, keep small blocks until this is dropped.
#[derive(Debug)]
pub(crate) struct KeepsBlocks(PhantomData<*const ()>);

impl KeepsBlocks {
    pub(crate) fn new() -> KeepsBlocks {
        KEPT.with(|kept| {
            debug_assert_eq!(kept.room.get(), 0, "once a thread");
            kept.room.set(KEPT_MAX_BYTES);
            kept.is_connection.set(true);
        });
        KeepsBlocks(PhantomData)
    }
}

impl Drop for KeepsBlocks {
    fn drop(&mut self) {
        KEPT.with(|kept| {
            for class in 0..CLASSES {
                while let Some(block) = kept.take(class) {
                    // SAFETY: the block came from `System` with this layout, and it is on no list
                    // any more.
                    unsafe { System.dealloc(block, layout_of(class)) };
                }
            }
            kept.room.set(0);
            kept.is_connection.set(false);
        });
    }
}

impl Kept {
    /// Takes a block of that class off its list.
    fn take(&self, class: usize) -> Option<*mut u8> {
        let block = self.first[class].get();
        if block.is_null() {
            return None;
        }
        // SAFETY: a block on a list is free, at least 12 bytes long, aligned to 8, and begins with
        // what `put` wrote there.
        self.first[class].set(unsafe { block.cast::<*mut u8>().read() });
        self.room.set(self.room.get() + layout_of(class).size());
        Some(block)
    }

    /// Puts a free block of that class on its list; false where there is no room.
    fn put(&self, class: usize, block: *mut u8) -> bool {
        let Some(room) = self.room.get().checked_sub(layout_of(class).size()) else { return false };
        // SAFETY: the block is free, at least 12 bytes long and aligned to 8.
        unsafe { block.cast::<*mut u8>().write(self.first[class].get()) };
        self.first[class].set(block);
        self.room.set(room);
        true
    }
}

/// Has every block of 128 KiB and more given back to the kernel when it is freed, which musl's
/// malloc does anyway. glibc's begins like this, but the first large block that is freed has the
/// next ones come from the heap of their thread, and there each thread keeps what it once had.
///
/// Call it while this process has one thread.
pub(crate) fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes two numbers; with one thread nobody allocates meanwhile. Where it fails,
        // memory is given back later.
        let _ = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10) };
    }
}

/// The class of a small block.
fn class_of(layout: Layout) -> Option<usize> {
    let is_small = layout.size() <= BLOCK_MAX_BYTES && layout.align() <= 8;
    is_small.then(|| (layout.size() + HEADER_BYTES - 1) / 16)
}

/// What a block of that class is allocated and freed with.
const fn layout_of(class: usize) -> Layout {
    match Layout::from_size_align(16 * (class + 1) - HEADER_BYTES, 8) {
        Ok(layout) => layout,
        Err(_) => panic!("a small size and a power of two"),
    }
}

// SAFETY: a block is either `System`'s own, with the layout it was asked for, or of a class, which
// its layout alone decides. One of a class has that class's size, is allocated and freed with its
// layout, and is on at most one list of one thread while it is free. A spare one is `System`'s, all
// are of one size and aligned for any layout that asks for at most 8 (malloc(3)), and it is in at
// most one place while it is free.
unsafe impl GlobalAlloc for Allocator {
    // Inlined at every use it would add 100 KB to the program.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            let spare = if may_be_spare(layout) { take_spare() } else { None };
            // SAFETY: the caller's promises are `System`'s.
            return spare.unwrap_or_else(|| unsafe { System.alloc(layout) });
        };
        KEPT.with(|kept| kept.take(class)).unwrap_or_else(|| {
            // SAFETY: no layout of a class is empty.
            unsafe { System.alloc(layout_of(class)) }
        })
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            if may_be_spare(layout) && put_spare(block) {
                return;
            }
            // SAFETY: the caller's promises are `System`'s, and the block is its own.
            return unsafe { System.dealloc(block, layout) };
        };
        if !KEPT.with(|kept| kept.put(class, block)) {
            // SAFETY: the block came from `System` with the layout of its class.
            unsafe { System.dealloc(block, layout_of(class)) };
        }
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class_of(layout).is_none() && !may_be_spare(layout) {
            // SAFETY: the caller's promises are `System`'s. Large blocks come as fresh pages, which
            // are zero and cost nothing until they are used.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promises are those of `alloc`.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: the block has at least as many bytes.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline(never)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size is no more than a layout can have.
        let new_layout = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (class_of(layout), class_of(new_layout)) {
            // SAFETY: the caller's promises are `System`'s, and the block is its own.
            (None, None) => return unsafe { System.realloc(block, layout, size) },
            (old, new) if old == new => return block,
            _ => {}
        }
        // SAFETY: the caller promises that the new size is not zero.
        let new = unsafe { self.alloc(new_layout) };
        if !new.is_null() {
            let count = layout.size().min(size);
            // SAFETY: both blocks have so many bytes, and they are two blocks.
            unsafe { ptr::copy_nonoverlapping(block, new, count) };
            // SAFETY: the caller gives the old block up.
            unsafe { self.dealloc(block, layout) };
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    /// A block of the allocator, of that many bytes.
    struct Block {
        start: *mut u8,
        size: usize,
    }

    impl Block {
        fn zeroed(size: usize) -> Block {
            // SAFETY: no test asks for zero bytes.
            Block { start: unsafe { Allocator.alloc_zeroed(layout(size)) }, size }
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: the block has so many bytes, and `zeroed` or `resize` has written each.
            unsafe { std::slice::from_raw_parts_mut(self.start, self.size) }
        }

        fn resize(&mut self, size: usize) {
            // SAFETY: the block came from this allocator with this layout.
            self.start = unsafe { Allocator.realloc(self.start, layout(self.size), size) };
            for index in self.size..size {
                // SAFETY: the block has `size` bytes now.
                let added = unsafe { self.start.add(index) };
                // SAFETY: as above.
                unsafe { added.write(0) };
            }
            self.size = size;
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            // SAFETY: as above, and nobody has it any more.
            unsafe { Allocator.dealloc(self.start, layout(self.size)) };
        }
    }

    #[test]
    fn a_class_has_room_for_every_size_in_it() {
        for size in 1..=BLOCK_MAX_BYTES {
            let class = class_of(layout(size)).unwrap();
            assert!(class < CLASSES && layout_of(class).size() >= size, "{size}");
            assert!(layout_of(class).size() < size + 16, "{size}");
        }
        assert_eq!(class_of(layout(BLOCK_MAX_BYTES + 1)), None);
        assert_eq!(class_of(Layout::from_size_align(16, 16).unwrap()), None);
    }

    /// Grows and shrinks blocks through every pair of sizes around the classes' ends, with and
    /// without keeping, and looks at every byte.
    #[test]
    fn blocks_keep_their_bytes_whatever_becomes_of_them() {
        let sizes = [1, 11, 12, 13, 28, 29, 600, 1019, 1020, 1021, 5000];
        let keeps = KeepsBlocks::new();
        for keep in [true, false] {
            if !keep {
                KEPT.with(|kept| kept.room.set(0));
            }
            for (old, new) in sizes.iter().flat_map(|old| sizes.map(|new| (*old, new))) {
                let mut block = Block::zeroed(old);
                assert!(block.bytes().iter().all(|byte| *byte == 0), "{old}");
                block.bytes().fill(7);
                block.resize(new);
                assert!(block.bytes()[..old.min(new)].iter().all(|byte| *byte == 7), "{old} {new}");
                block.bytes().fill(0xff);
            }
        }
        drop(keeps);
    }

    #[test]
    fn a_few_large_buffers_are_kept_for_all_connections() {
        let keeps = KeepsBlocks::new();
        let blocks = [(); SPARES_MAX + 3].map(|()| Block::zeroed(BUFFER_BYTES));
        let places = blocks.each_ref().map(|block| block.start);
        drop(blocks);
        let kept = SPARES.each_ref().map(|spare| spare.load(Ordering::Relaxed));
        assert!(kept.iter().all(|block| places.contains(block)));
        let mut again = Block::zeroed(BUFFER_BYTES);
        assert!(kept.contains(&again.start));
        assert!(again.bytes().iter().all(|byte| *byte == 0));
        again.bytes().fill(7);
        again.resize(BUFFER_BYTES + 1);
        assert!(again.bytes()[..BUFFER_BYTES].iter().all(|byte| *byte == 7));
        again.resize(BUFFER_BYTES);
        drop(again);
        drop(keeps);
        // Another thread's buffers are its own.
        let other = Block::zeroed(BUFFER_BYTES);
        assert!(!kept.contains(&other.start));
        while let Some(spare) = take_spare() {
            // SAFETY: it came from `System` with this layout, and nobody has it any more.
            unsafe { System.dealloc(spare, layout(BUFFER_BYTES)) };
        }
    }

    #[test]
    fn a_thread_keeps_so_many_bytes_and_gives_them_back() {
        let keeps = KeepsBlocks::new();
        let blocks = [(); 20].map(|()| Block::zeroed(500));
        let places = blocks.each_ref().map(|block| block.start);
        drop(blocks);
        let kept = KEPT.with(|kept| KEPT_MAX_BYTES - kept.room.get());
        assert_eq!(kept, 8 * layout_of(class_of(layout(500)).unwrap()).size());
        let again = Block::zeroed(499);
        assert!(places.contains(&again.start));
        drop(again);
        drop(keeps);
        assert!(KEPT.with(|kept| kept.first.iter().all(|first| first.get().is_null())));
    }
}
