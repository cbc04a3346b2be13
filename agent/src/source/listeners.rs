//! Finds who listens on a TCP port of this machine, from the kernel's table. (proc(5),
//! `/proc/net/tcp`) The crate procfs gives up the whole table for one socket in a state that it
//! does not know.

use std::fs;

use crate::host::Host;

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The kernel's number for a listening socket.
const LISTENS: &str = "0A";

/// Whether a process listens on the port, and all listeners are root's.
pub(crate) fn is_roots(host: &Host, port: u16) -> bool {
    let owners = all_owners(host, port);
    !owners.is_empty() && owners.iter().all(|uid| *uid == 0)
}

/// Whether a listener on the port is not root's.
pub(crate) fn is_others(host: &Host, port: u16) -> bool {
    all_owners(host, port).iter().any(|uid| *uid != 0)
}

/// The users of listeners on IPv4 and IPv6. A container without the host's `/proc` reads its own,
/// which shows the host's ports if it shares the host's network.
fn all_owners(host: &Host, port: u16) -> Vec<u32> {
    let read = |table: &str| {
        fs::read_to_string(host.path(table)).or_else(|_| fs::read_to_string(table)).ok()
    };
    let tables: Vec<_> = TABLES.into_iter().filter_map(read).collect();
    tables.iter().flat_map(|table| owners(table, port)).collect()
}

/// The users of the sockets that listen on the port.
fn owners(table: &str, port: u16) -> Vec<u32> {
    let owner = |line: &str| {
        // Number, local address, remote address, state, queues, timer, retransmits, user.
        let fields: Vec<_> = line.split_ascii_whitespace().take(8).collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let listens = *fields.get(3)? == LISTENS;
        let here = u16::from_str_radix(local, 16).is_ok_and(|local| local == port);
        fields.get(7)?.parse().ok().filter(|_| listens && here)
    };
    table.lines().skip(1).filter_map(owner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when ...\n";

    fn line(port: u16, state: &str, uid: u32) -> String {
        format!(
            "   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 \
             00000000  {uid}        0 12345 1 0000000000000000 100 0 0 10 0\n"
        )
    }

    fn root_of(port: u16, tables: &[(&str, &str)]) -> bool {
        let root = tempfile::tempdir().expect("must be creatable");
        fs::create_dir_all(root.path().join("proc/net")).expect("must be creatable");
        for (name, lines) in tables {
            let text = HEADER.to_owned() + lines;
            fs::write(root.path().join("proc/net").join(name), text).expect("must be writable");
        }
        is_roots(&Host::new(root.path().to_owned()), port)
    }

    #[test]
    fn a_port_is_roots_if_no_other_user_listens_there() {
        let roots = line(10250, LISTENS, 0);
        let users = line(10250, LISTENS, 1000);
        let connected = line(10250, "01", 1000);
        let of = |tcp: &str, tcp6: &str| root_of(10250, &[("tcp", tcp), ("tcp6", tcp6)]);
        assert!(of(&roots, ""));
        assert!(of("", &roots));
        assert!(of(&(roots.clone() + &connected), &line(10251, LISTENS, 7)));
        assert!(!of(&users, &roots));
        assert!(!of(&connected, ""));
        assert!(!of("", ""));
        assert!(!of("   0: garbage\n\n:::: 0A\n", ""));
    }
}
