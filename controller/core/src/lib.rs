//! controller/core
