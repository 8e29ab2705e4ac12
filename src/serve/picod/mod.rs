//! PicoD's dialect: what stands below `/api/`.

pub(super) mod execute;
pub(super) mod files;
