//! The engine under `json`, and by itself as a library.
