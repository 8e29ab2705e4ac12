//! output_cap
