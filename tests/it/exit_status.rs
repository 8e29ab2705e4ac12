//! exit_status
