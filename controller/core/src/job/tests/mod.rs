//! Acceptance vectors of spec §26 and §31 and boundary values of our own, as one sync each.
//! Every vector also passes the three checks of [`super::checks`].

mod builders;
mod scaling;
