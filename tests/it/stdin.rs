//! stdin
