//! The engine under `json`, and by itself as a library.

mod capture;
mod child;
mod ending;
mod live;
mod session;
