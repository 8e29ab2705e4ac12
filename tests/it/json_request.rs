//! json_request
