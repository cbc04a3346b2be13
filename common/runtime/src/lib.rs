//! common/runtime
