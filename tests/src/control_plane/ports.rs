//! Reserves free TCP ports on loopback.

use std::net::{Ipv4Addr, TcpListener};

use crate::error::LabError;

/// Below the kernel's range for outgoing connections. The apiserver's own connection to etcd could
/// take a port of that range between our choice and the server's bind.
const RANGE: std::ops::Range<u16> = 20_000..32_000;
const TRIES_MAX: usize = 200;

/// A port that stays reserved until the listener is dropped, just before its server starts.
#[derive(Debug)]
pub(crate) struct Reserved(TcpListener);

impl Reserved {
    /// Any free port.
    pub(crate) fn any() -> Result<Self, LabError> {
        (0..TRIES_MAX)
            .find_map(|_| {
                let port = rand::random_range(RANGE);
                TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(Self)
            })
            .ok_or(LabError::NoFreePort)
    }

    /// Its number.
    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().expect("a bound listener must have an address").port()
    }
}
