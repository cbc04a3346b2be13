//! Builds the command lines of the control plane's programs. Pure: from a [`Layout`] to flags.

use std::path::{Path, PathBuf};

use crate::audit;

/// The default set of kube-controller-manager. Its Job controller leaves every Job alone whose
/// `spec.managedBy` names another one.
pub const ALL_CONTROLLERS: &str = "*";

/// Only controllers that any test relies on, and none that acts on pods by itself: for namespace
/// deletion, garbage collection and service accounts.
pub const QUIET_CONTROLLERS: &str =
    "namespace-controller,garbage-collector-controller,serviceaccount-controller";

/// The feature gates of each component for gang scheduling of Jobs.
pub const GANG_GATES: &str = "--feature-gates=GenericWorkload=true,WorkloadWithJob=true";
/// The APIs of these gates. Jobs contain types of the second one.
pub const GANG_APIS: &str =
    "--runtime-config=scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true";

/// Files and ports of one control plane.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The lab's state directory.
    pub dir: PathBuf,
    /// etcd's port for clients.
    pub etcd_client_port: u16,
    /// etcd's port for peers; it has no peers.
    pub etcd_peer_port: u16,
    /// The API server's port.
    pub api_port: u16,
    /// The resource that has an etcd of its own, and the ports of that etcd.
    pub apart: Option<Apart>,
}

/// An etcd for one resource.
#[derive(Clone, Debug)]
pub struct Apart {
    /// For example `/pods` or `batch/jobs`.
    pub resource: String,
    /// Its port for clients.
    pub client_port: u16,
    /// Its port for peers; it has no peers.
    pub peer_port: u16,
}

impl Layout {
    /// A file of the lab's keys and certificates.
    pub fn pki(&self, name: &str) -> PathBuf {
        self.dir.join("pki").join(name)
    }

    /// The log of a program.
    pub fn log(&self, program: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{program}.log"))
    }

    /// The kubeconfig of `user`.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.join(format!("{user}.kubeconfig"))
    }

    /// kube-apiserver's audit policy.
    pub fn audit_policy(&self) -> PathBuf {
        self.dir.join("audit-policy.json")
    }

    /// etcd's data.
    pub fn etcd_data(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    /// The API's URL.
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.api_port)
    }

    /// The layout by which the etcd of one resource starts.
    pub fn etcd_apart(&self) -> Option<Self> {
        let Apart { client_port, peer_port, .. } = *self.apart.as_ref()?;
        let dir = self.dir.join("etcd-apart");
        let (etcd_client_port, etcd_peer_port) = (client_port, peer_port);
        Some(Self { dir, etcd_client_port, etcd_peer_port, apart: None, ..*self })
    }

    fn etcd(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd_client_port)
    }
}

fn flag(name: &str, value: &Path) -> String {
    format!("--{name}={}", value.display())
}

/// etcd.
pub fn etcd(layout: &Layout) -> Vec<String> {
    vec![
        "etcd".into(),
        flag("data-dir", &layout.etcd_data()),
        format!("--listen-client-url={}", layout.etcd()),
        format!("--listen-peer-url=http://127.0.0.1:{}", layout.etcd_peer_port),
    ]
}

/// kube-apiserver. `extra` comes last and so wins.
pub fn api_server(layout: &Layout, extra: &[String]) -> Vec<String> {
    let mut flags = vec![
        "kube-apiserver".into(),
        format!("--etcd-servers={}", layout.etcd()),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={}", layout.api_port),
        flag("tls-cert-file", &layout.pki("apiserver.crt")),
        flag("tls-private-key-file", &layout.pki("apiserver.key")),
        flag("client-ca-file", &layout.pki("ca.crt")),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--allow-privileged=true".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        flag("service-account-key-file", &layout.pki("sa.pub")),
        flag("service-account-signing-key-file", &layout.pki("sa.key")),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        // A loopback address is not a valid endpoint, and nothing here dials the service.
        "--endpoint-reconciler-type=none".into(),
        // Priority and fairness divides these seats. They are many, so that the machine limits a
        // load of one lab and not the default of 600. They are divided fairly as on a real cluster.
        "--max-requests-inflight=1600".into(),
        "--max-mutating-requests-inflight=800".into(),
    ];
    if let Some(Apart { resource, client_port, .. }) = &layout.apart {
        let server = format!("http://127.0.0.1:{client_port}");
        flags.push(format!("--etcd-servers-overrides={resource}#{server}"));
    }
    flags.extend_from_slice(extra);
    flags
}

/// kube-apiserver's audit of our programs.
pub fn audit(layout: &Layout) -> [String; 3] {
    [
        flag("audit-policy-file", &layout.audit_policy()),
        flag("audit-log-path", &layout.dir.join(audit::LOG)),
        // In MB: one file, whatever a lab's tests do.
        "--audit-log-maxsize=100000".into(),
    ]
}

/// kube-controller-manager. `extra` comes last and so wins.
pub fn controller_manager(layout: &Layout, controllers: &str, extra: &[String]) -> Vec<String> {
    let mut flags = vec![
        "kube-controller-manager".into(),
        flag("kubeconfig", &layout.kubeconfig("kube-controller-manager")),
        format!("--controllers={controllers}"),
        "--use-service-account-credentials".into(),
        flag("service-account-private-key-file", &layout.pki("sa.key")),
        flag("root-ca-file", &layout.pki("ca.crt")),
        "--leader-elect=false".into(),
        "--bind-address=127.0.0.1".into(),
        "--secure-port=0".into(),
        "--allocate-node-cidrs=false".into(),
        // The default of 20 requests a second would slow down every clean-up.
        "--kube-api-qps=1000".into(),
        "--kube-api-burst=2000".into(),
    ];
    flags.extend_from_slice(extra);
    flags
}

/// kube-scheduler.
pub fn scheduler(layout: &Layout, extra: &[String]) -> Vec<String> {
    let mut flags = vec![
        "kube-scheduler".into(),
        flag("kubeconfig", &layout.kubeconfig("kube-scheduler")),
        "--leader-elect=false".into(),
        "--bind-address=127.0.0.1".into(),
        "--secure-port=0".into(),
        "--kube-api-qps=1000".into(),
        "--kube-api-burst=2000".into(),
    ];
    flags.extend_from_slice(extra);
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout {
            dir: "/lab".into(),
            etcd_client_port: 1,
            etcd_peer_port: 2,
            api_port: 3,
            apart: None,
        }
    }

    #[test]
    fn every_server_listens_on_loopback_only() {
        let all = [
            etcd(&layout()),
            api_server(&layout(), &[]),
            controller_manager(&layout(), ALL_CONTROLLERS, &[]),
            scheduler(&layout(), &[]),
        ];
        for flags in all {
            let loopback = |flag: &String| {
                flag == "--bind-address=127.0.0.1" || flag.contains("=http://127.0.0.1:")
            };
            assert!(flags.iter().any(loopback), "{flags:?}");
        }
    }

    #[test]
    fn extra_flags_come_last() {
        let flags = api_server(&layout(), &["--max-requests-inflight=1".into()]);
        assert_eq!(flags.last().map(String::as_str), Some("--max-requests-inflight=1"));
    }
}
