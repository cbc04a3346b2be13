//! Finds the container runtime's socket: the flag's, or the one well-known socket that is the
//! node's.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// The flag that names the socket. Every remedy names it.
pub const FLAG: &str = "--runtime-endpoint";

/// Where runtimes listen by default.
pub const WELL_KNOWN: [&str; 6] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    // Also RKE2's.
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/cri-dockerd.sock",
];

/// The value of the flag: `unix:///path`, or the path alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

/// The flag's value is not a socket.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("must be unix:///path/of/the.sock, as the kubelet's containerRuntimeEndpoint is")]
pub struct EndpointError;

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let path = match text.split_once(':') {
            None => text,
            Some(("unix", path)) => path.strip_prefix("//").unwrap_or(path),
            Some(_) => return Err(EndpointError),
        };
        if !path.starts_with('/') || path.len() < 2 {
            return Err(EndpointError);
        }
        Ok(Self(PathBuf::from(path)))
    }
}

/// The sockets that may be the runtime's.
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    candidates: Vec<PathBuf>,
    /// The host's files; `None` if the flag names the socket.
    root: Option<PathBuf>,
}

impl Sockets {
    /// The socket that the flag names, as it is; without it the well-known ones below `root`.
    pub fn new(endpoint: Option<Endpoint>, root: &Path) -> Self {
        if let Some(Endpoint(path)) = endpoint {
            return Self { candidates: vec![path], root: None };
        }
        let candidates = WELL_KNOWN.iter().map(|path| below(root, Path::new(path))).collect();
        Self { candidates, root: Some(root.to_owned()) }
    }

    /// All candidates, whether they exist or not.
    pub(super) fn all(&self) -> &[PathBuf] {
        &self.candidates
    }

    /// The sockets that exist.
    pub(super) fn present(&self) -> Vec<PathBuf> {
        self.candidates.iter().filter(|path| is_socket(path)).cloned().collect()
    }

    /// The socket that the kubelet names; `None` if the flag names one, which wins, or if the
    /// kubelet's text is no address of a socket.
    pub(super) fn kubelets(&self, endpoint: &str) -> Option<PathBuf> {
        let (root, Endpoint(path)) = (self.root.as_ref()?, endpoint.parse().ok()?);
        // The usual link, which a pod with mounts below /run lacks.
        let path =
            path.strip_prefix("/var/run").map_or(path.clone(), |it| Path::new("/run").join(it));
        Some(below(root, &path))
    }
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Whether the path is a socket now.
pub(super) fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_takes_what_the_kubelet_takes() {
        let table = [
            ("unix:///run/a.sock", Some("/run/a.sock")),
            ("unix:/run/a.sock", Some("/run/a.sock")),
            ("/run/a.sock", Some("/run/a.sock")),
            ("unix://run/a.sock", None),
            ("tcp://127.0.0.1:9", None),
            ("run/a.sock", None),
            ("unix:///", None),
            ("", None),
        ];
        for (text, expected) in table {
            let expected = expected.map(|path| Endpoint(path.into())).ok_or(EndpointError);
            assert_eq!(text.parse(), expected, "{text}");
        }
    }

    #[test]
    fn the_well_known_sockets_lie_below_the_root_and_the_flags_does_not() {
        let root = tempfile::tempdir().expect("must be creatable");
        let sockets = Sockets::new(None, root.path());
        assert_eq!(sockets.all().len(), WELL_KNOWN.len());
        assert!(sockets.all().iter().all(|path| path.starts_with(root.path())));
        assert_eq!(sockets.present(), Vec::<PathBuf>::new());

        let path = root.path().join("run/crio/crio.sock");
        fs::create_dir_all(path.parent().expect("must have one")).expect("must be creatable");
        let _listener = std::os::unix::net::UnixListener::bind(&path).expect("must be bindable");
        let file = root.path().join("run/containerd/containerd.sock");
        fs::create_dir_all(file.parent().expect("must have one")).expect("must be creatable");
        fs::write(file, "no socket").expect("must be writable");
        assert_eq!(sockets.present(), [path]);

        let flag = "unix:///run/a.sock".parse().expect("must be an endpoint");
        assert_eq!(Sockets::new(Some(flag), root.path()).all(), [PathBuf::from("/run/a.sock")]);
    }

    #[test]
    fn the_kubelets_socket_lies_below_the_root_and_gives_way_to_the_flags() {
        let root = Path::new("/host");
        let named = |text: &str| Sockets::new(None, root).kubelets(text);
        let table = [
            ("unix:///run/a.sock", Some("/host/run/a.sock")),
            ("unix:///var/run/a.sock", Some("/host/run/a.sock")),
            ("/var/lib/a.sock", Some("/host/var/lib/a.sock")),
            ("npipe:////./pipe/a", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(named(text), expected.map(PathBuf::from), "{text}");
        }
        let flag = "unix:///run/b.sock".parse().expect("must be an endpoint");
        assert_eq!(Sockets::new(Some(flag), root).kubelets("unix:///run/a.sock"), None);
    }
}
