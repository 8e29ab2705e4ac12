//! What a client of the sandbox dialect sends and reads.
//!
//! The other end may be hostile: a server runs commands that nobody trusts, and one that was taken
//! over answers what it likes. Everything read is bounded, a name goes nowhere before it was
//! checked, and no message carries a control character. Fields that nobody knows are ignored, so
//! that a newer server can say more; a field that is given twice is refused.

pub mod answers;
pub mod entries;
pub mod events;
pub mod listing;
pub mod request;
