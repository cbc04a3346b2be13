//! agent/core
