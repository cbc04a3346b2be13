//! Reads a Job and its pods from a cluster or a dump.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use controller_core::job::JobGroups;
use controller_core::view::{Interner, Job, Pod, PodGroup, WireJob, WirePod, Workload};
use epilogue_common::gang_scheduling::GangScheduling;
use epilogue_common::outcome::{Failure, FailureKind};
use epilogue_runtime::api_error::{Foreign, classify, foreign};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize as _;
use serde_json::Value;
use thiserror::Error;

use crate::ask::ask;
use crate::document::{self, Malformed};
use crate::failed_read::{self, remedy};
use crate::kind::{Kind, title};
use crate::lease::{Controller, LeaseName};
use crate::list::list;
use crate::read::kinds;

/// A message names at most this many contexts.
const NAMED_MAX: usize = 20;

/// A Job, and the pods that it owns or could adopt.
#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) job: Arc<Job>,
    pub(crate) pods: Vec<Arc<Pod>>,
    /// The same, as the API gives them.
    pub(crate) job_object: Value,
    pub(crate) pod_objects: Vec<Value>,
    /// Events, among them those about the Job; `None` if they could not be read.
    pub(crate) events: Option<Vec<Value>>,
    /// What its lease says of the controller.
    pub(crate) controller: Controller,
    /// Its scheduling objects, where the controller makes them.
    pub(crate) groups: Option<JobGroups>,
}

/// What to read: a Job, or the Job of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Job(String),
    Pod(String),
}

impl Wanted {
    /// The pod, if it is one.
    pub(crate) fn pod(&self) -> Option<&str> {
        match self {
            Self::Job(_) => None,
            Self::Pod(name) => Some(name),
        }
    }
}

/// Why a Job and its pods could not be read.
#[derive(Debug, Error)]
pub(crate) enum SourceError {
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] std::io::Error),
    #[error("{0} is a directory; name a file in it")]
    Directory(PathBuf),
    #[error("{}:{}", shown(.0), .1)]
    Malformed(PathBuf, Malformed),
    #[error("the dump holds no Job {0}; it holds {1}")]
    NoSuchJob(String, String),
    #[error(
        "there is not one Job of batch/v1 in it; expected a dump by `kubectl epilogue dump` or \
         `kubectl get job,pod -o yaml`"
    )]
    NoJobs,
    #[error("the dump holds several Jobs; name one of {0}")]
    Ambiguous(String),
    #[error("a {0} of the dump is not as the API would give it")]
    Object(&'static str, #[source] serde_json::Error),
    #[error("cannot use the kubeconfig; check --kubeconfig, --context or KUBECONFIG: {0}")]
    Kubeconfig(String),
    #[error("the kubeconfig has no context {wanted}; it has {known}")]
    NoContext { wanted: String, known: String },
    #[error("the kubeconfig names no current context; choose one by --context: {0}")]
    NoCurrentContext(String),
    #[error("cannot make a client of the kubeconfig")]
    Client(#[source] kube::Error),
    #[error(
        "proxy-url of the kubeconfig, HTTPS_PROXY or ALL_PROXY names a proxy, and this program \
         uses none; set NO_PROXY to the server's name, or reach it by `kubectl proxy` and a \
         kubeconfig with server: http://127.0.0.1:8001"
    )]
    Proxy,
    #[error(
        "Job {namespace}/{name} does not exist; list the Jobs by `kubectl get jobs -n \
         {namespace}`, or choose another --namespace or --context"
    )]
    NoJob { namespace: String, name: String },
    #[error("pod {0} does not exist, or is gone; name its Job, which may have its end")]
    NoPod(String),
    #[error("pod {0} belongs to no Job; this explains Jobs and their pods")]
    NotOfJob(String),
    #[error("cannot get {path}: {failure}; {}", remedy(.failure))]
    Api { path: String, failure: Failure },
    #[error("cannot get {path}: {}", failed_read::foreign(.reply))]
    Foreign { path: String, reply: Foreign },
    #[error(
        "cannot get {0}: the answer is not JSON, so another program than an API server gave it, \
         such as the sign-in page of a gateway; check the server of the kubeconfig"
    )]
    NotJson(String),
}

impl SourceError {
    /// A kubeconfig that cannot be used. Of what its parser says, further lines quote the file,
    /// which holds credentials.
    fn kubeconfig(error: &kube::config::KubeconfigError) -> Self {
        Self::Kubeconfig(error.to_string().lines().next().unwrap_or_default().to_owned())
    }

    /// A read that the API server refused or did not answer.
    pub(crate) fn api(path: &str, error: kube::Error) -> Self {
        let path = path.to_owned();
        if let Some(reply) = foreign(&error) {
            return Self::Foreign { path, reply };
        }
        match error {
            kube::Error::SerdeError(error) if error.is_syntax() => Self::NotJson(path),
            error => Self::Api { path, failure: classify(error) },
        }
    }
}

/// Builds a client as kubectl does, and returns the context's namespace with it.
pub(crate) async fn client(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<(kube::Client, String), SourceError> {
    let read = kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
    let kubeconfig = read.map_err(|error| SourceError::kubeconfig(&error))?;
    check_context(&kubeconfig, context.as_deref())?;
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.map_err(|error| SourceError::kubeconfig(&error))?;
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = kube::Client::try_from(config).map_err(|error| match error {
        kube::Error::ProxyProtocolUnsupported { .. }
        | kube::Error::ProxyProtocolDisabled { .. } => SourceError::Proxy,
        error => SourceError::Client(error),
    })?;
    Ok((client, namespace))
}

/// Names the contexts that there are, if the one that is asked for is missing.
fn check_context(kubeconfig: &Kubeconfig, context: Option<&str>) -> Result<(), SourceError> {
    let contexts = || kubeconfig.contexts.iter().map(|it| it.name.as_str());
    let wanted = context.or(kubeconfig.current_context.as_deref()).unwrap_or_default();
    if contexts().any(|name| name == wanted) {
        return Ok(());
    }
    let known = contexts().take(NAMED_MAX).collect::<Vec<_>>().join(", ");
    let known = match contexts().count() {
        0 => "none; check --kubeconfig or KUBECONFIG".to_owned(),
        count if count > NAMED_MAX => format!("{known} and {} more", count - NAMED_MAX),
        _ => known,
    };
    Err(if wanted.is_empty() {
        SourceError::NoCurrentContext(known)
    } else {
        SourceError::NoContext { wanted: wanted.to_owned(), known }
    })
}

/// Reads a Job and the pods of its namespace from a cluster.
pub(crate) async fn cluster(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    namespace: Option<&str>,
    wanted: &Wanted,
    lease: Option<&LeaseName>,
) -> Result<Picture, SourceError> {
    let (client, default_namespace) = client(kubeconfig, context).await?;
    let namespace = namespace.unwrap_or(&default_namespace);
    let name = &match wanted {
        Wanted::Job(name) => name.clone(),
        Wanted::Pod(name) => {
            // Whoever may explain a Job may list pods.
            let query = format!("fieldSelector=metadata.name%3D{name}");
            let found =
                get(&client, &format!("/api/v1/namespaces/{namespace}/pods?{query}")).await?;
            let pod = found["items"].as_array().and_then(|items| items.first());
            let missing = || SourceError::NoPod(format!("{namespace}/{name}"));
            let pod = pod.ok_or_else(missing)?;
            job_of(pod)?.to_owned()
        }
    };
    let job = get(&client, &format!("/apis/batch/v1/namespaces/{namespace}/jobs/{name}")).await;
    let job = job.map_err(|error| match error {
        SourceError::Api { failure, .. } if failure.kind == FailureKind::NotFound => {
            SourceError::NoJob { namespace: namespace.to_owned(), name: name.to_owned() }
        }
        error => error,
    })?;
    let pods = get(&client, &format!("/api/v1/namespaces/{namespace}/pods")).await?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let about = format!("involvedObject.kind=Job,involvedObject.name={name}");
    let mut events = list(&client, Kind::Event.name(), &path, &about).await?;
    // Only events say which volume a pod waits for.
    let starts =
        |pod: &Value| pod["status"]["phase"] == "Pending" && pod["spec"]["nodeName"].is_string();
    if let Some(events) = events.as_mut().filter(|_| pods.iter().any(starts)) {
        for reason in ["FailedMount", "FailedAttachVolume"] {
            let of_pods = format!("involvedObject.kind=Pod,reason={reason}");
            let found = list(&client, Kind::Event.name(), &path, &of_pods).await?;
            events.extend(found.into_iter().flatten());
        }
    }
    let controller = controller(&client, lease).await?;
    let picture = picture(job, pods, events, controller)?;
    let makes = picture.controller.setup().and_then(|setup| setup.gang_scheduling.as_ref());
    let groups = match makes {
        Some(GangScheduling::On) => groups(&client, &picture.job).await?,
        _ => None,
    };
    Ok(Picture { groups, ..picture })
}

/// The name of the Job that controls a pod.
fn job_of(pod: &Value) -> Result<&str, SourceError> {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    let job = owners
        .into_iter()
        .flatten()
        .find(|owner| owner["controller"] == true && owner["kind"] == Kind::Job.name());
    job.and_then(|owner| owner["name"].as_str()).ok_or_else(|| SourceError::NotOfJob(title(pod)))
}

/// Reads the scheduling objects of a Job; `None` if RBAC forbids it.
async fn groups(client: &kube::Client, job: &Job) -> Result<Option<JobGroups>, SourceError> {
    let namespace = &job.key.namespace;
    let path = |plural| format!("/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/{plural}");
    let workloads = list(client, "Workload", &path("workloads"), "").await?;
    let pod_groups = list(client, "PodGroup", &path("podgroups"), "").await?;
    let Some((workloads, pod_groups)) = workloads.zip(pod_groups) else { return Ok(None) };
    let workloads = workloads.iter().map(|it| Workload::read(&it.to_string()));
    let workloads: Result<Vec<_>, _> = workloads.collect();
    let workloads = workloads.map_err(|error| SourceError::Object("Workload", error))?;
    let pod_groups = pod_groups.iter().map(|it| PodGroup::read(&it.to_string()));
    let pod_groups: Result<Vec<_>, _> = pod_groups.collect();
    let pod_groups = pod_groups.map_err(|error| SourceError::Object("PodGroup", error))?;
    let (workloads, pod_groups) = (workloads.into_iter(), pod_groups.into_iter());
    Ok(Some(JobGroups::of(job, workloads.map(Arc::new), pod_groups.map(Arc::new))))
}

/// Reads the controller's lease.
pub(crate) async fn controller(
    client: &kube::Client,
    name: Option<&LeaseName>,
) -> Result<Controller, SourceError> {
    let leases = match name {
        Some(name) => list(client, Kind::Lease.name(), &name.path(), "").await?,
        None => None,
    };
    Controller::of(name, leases.as_deref()).map_err(|error| SourceError::Object("Lease", error))
}

async fn get(client: &kube::Client, path: &str) -> Result<Value, SourceError> {
    let request = http::Request::get(path).body(Vec::new()).expect("a path must make a request");
    ask(client, request).await.map_err(|error| SourceError::api(path, error))
}

/// Reads a Job and its pods from a dump.
pub(crate) fn dump(
    path: &Path,
    namespace: Option<&str>,
    wanted: Option<&Wanted>,
    lease: Option<&LeaseName>,
) -> Result<Picture, SourceError> {
    let objects = objects(path)?;
    match wanted {
        None => choose(&objects, namespace, None, lease),
        Some(Wanted::Job(name)) => choose(&objects, namespace, Some(name), lease),
        Some(Wanted::Pod(name)) => {
            let pod = objects.iter().find(|object| {
                let home = &object["metadata"]["namespace"];
                object["kind"] == Kind::Pod.name()
                    && object["metadata"]["name"] == name.as_str()
                    && namespace.is_none_or(|namespace| home == namespace)
            });
            let pod = pod.ok_or_else(|| SourceError::NoPod(name.clone()))?;
            let home = pod["metadata"]["namespace"].as_str();
            choose(&objects, home, Some(job_of(pod)?), lease)
        }
    }
}

/// Returns the objects of a dump: single ones and lists, in one or several documents.
pub(crate) fn objects(path: &Path) -> Result<Vec<Value>, SourceError> {
    let all = documents(path)?.into_iter().map(|(_, object)| object);
    Ok(all.filter(|object| !is_foreign_job(object)).collect())
}

/// A path as messages name it.
pub(crate) fn shown(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// Whether this is another project's kind of the same name.
fn is_foreign_job(object: &Value) -> bool {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    object["kind"] == Kind::Job.name() && !version.is_empty() && !version.starts_with("batch/")
}

/// The same, each with the line on which its document begins.
pub(crate) fn documents(path: &Path) -> Result<Vec<(Option<usize>, Value)>, SourceError> {
    if path.is_dir() {
        return Err(SourceError::Directory(path.to_owned()));
    }
    let failed = |error| SourceError::Read(path.to_owned(), error);
    let malformed = |malformed| SourceError::Malformed(path.to_owned(), malformed);
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes).map_err(failed)?;
    } else {
        bytes = std::fs::read(path).map_err(failed)?;
    }
    document::objects(&document::text(bytes).map_err(malformed)?).map_err(malformed)
}

fn choose(
    objects: &[Value],
    namespace: Option<&str>,
    name: Option<&str>,
    lease: Option<&LeaseName>,
) -> Result<Picture, SourceError> {
    let read = kinds(objects);
    let has_events = read.contains(&Kind::Event);
    let leases = read.contains(&Kind::Lease).then_some(objects);
    let controller =
        Controller::of(lease, leases).map_err(|error| SourceError::Object("Lease", error))?;
    let of = |kind: Kind| objects.iter().filter(move |object| object["kind"] == kind.name());
    let jobs: Vec<&Value> = of(Kind::Job).collect();
    let known = jobs.iter().map(|job| title(job)).collect::<Vec<_>>().join(", ");
    let matches = |job: &&&Value| {
        let is = |field: &str, wanted: Option<&str>| {
            wanted.is_none_or(|wanted| job["metadata"][field] == wanted)
        };
        is("namespace", namespace) && is("name", name)
    };
    let mut found = jobs.iter().filter(matches);
    match (found.next(), found.next()) {
        (Some(job), None) => {
            let home = job["metadata"]["namespace"].clone();
            let at_home = |object: &&Value| object["metadata"]["namespace"] == home;
            let events = has_events.then(|| of(Kind::Event).filter(at_home).cloned().collect());
            let pods = of(Kind::Pod).filter(at_home).cloned().collect();
            picture((*job).clone(), pods, events, controller)
        }
        (Some(_), Some(_)) => Err(SourceError::Ambiguous(known)),
        (None, _) if known.is_empty() && name.is_none() => Err(SourceError::NoJobs),
        (None, _) => {
            let known = if known.is_empty() { "none".to_owned() } else { known };
            Err(SourceError::NoSuchJob(name.unwrap_or_default().to_owned(), known))
        }
    }
}

fn picture(
    job: Value,
    pods: Vec<Value>,
    events: Option<Vec<Value>>,
    controller: Controller,
) -> Result<Picture, SourceError> {
    let bad_job = |error| SourceError::Object("Job", error);
    let job_object = job.clone();
    let job = WireJob::parse(job).and_then(WireJob::view).map_err(bad_job)?;
    let mut interner = Interner::default();
    let pod_objects = pods;
    let pods = pod_objects
        .iter()
        .map(|pod| WirePod::deserialize(pod).map(|wire| wire.view(&mut interner)))
        .filter(|pod| {
            let may_be_ours = |pod: &Pod| pod.owner.is_none() || pod.is_owned_by(&job.uid);
            pod.as_ref().map_or(true, may_be_ours)
        })
        .map(|pod| pod.map(Arc::new))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| SourceError::Object("Pod", error))?;
    let (job, groups) = (Arc::new(job), None);
    Ok(Picture { job, pods, job_object, pod_objects, events, controller, groups })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(name: &str) -> Value {
        json!({"kind": "Job", "metadata": {"namespace": "a", "name": name, "uid": name},
               "spec": {"selector": {"matchLabels": {"job": name}}, "template": {}}})
    }

    fn pod(name: &str, owner: &str) -> Value {
        json!({"kind": "Pod", "metadata": {"namespace": "a", "name": name, "uid": name,
               "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": owner,
                                    "uid": owner, "controller": true}]}})
    }

    #[test]
    fn the_only_job_needs_no_name_and_gets_its_own_pods() {
        let objects = [job("x"), pod("p", "x"), pod("q", "y")];
        let picture = choose(&objects, None, None, None).expect("a picture");
        assert_eq!(picture.job.key.to_string(), "a/x");
        assert_eq!(picture.pods.iter().map(|pod| &*pod.name).collect::<Vec<_>>(), ["p"]);
    }

    #[test]
    fn a_dump_with_events_gives_those_of_the_job_s_namespace() {
        let event = |namespace| json!({"kind": "Event", "metadata": {"namespace": namespace}});
        let of = |objects: &[Value]| choose(objects, None, None, None).expect("a picture").events;
        assert_eq!(of(&[job("x")]), None, "nothing says that events were read");
        let all = [job("x"), event("a"), event("b")];
        assert_eq!(of(&all), Some(vec![event("a")]));
        assert_eq!(of(&[job("x"), json!({"kind": "EventList"})]), Some(Vec::new()));
    }

    #[test]
    fn a_wrong_or_missing_name_tells_which_jobs_there_are() {
        let several = choose(&[job("x"), job("y")], None, None, None).expect_err("two Jobs");
        assert_eq!(several.to_string(), "the dump holds several Jobs; name one of a/x, a/y");
        let wrong = choose(&[job("x")], None, Some("z"), None).expect_err("no such Job");
        assert_eq!(wrong.to_string(), "the dump holds no Job z; it holds a/x");
    }
}
