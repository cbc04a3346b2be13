//! Attributes requests by the API server's own count: separates the controller's writes from those
//! of the nodes and of the bench. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Sub;

use serde::Serialize;

use super::exposition::samples;

const METRIC: &str = "apiserver_request_total";

/// The purpose of a request. All other requests (leases, nodes, tokens) do not belong to the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    PodCreate,
    PodPatch,
    PodDelete,
    JobStatus,
    /// To a Job itself, not its status; no controller needs such a request.
    Job,
    Event,
    /// GET of one pod or Job. Only a controller makes it.
    Read,
    Bind,
    PodStatus,
    JobCreate,
}

/// Requests since the API server started, or, subtracted, between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Requests {
    counts: BTreeMap<Kind, u64>,
    /// Requests of the load that did not succeed.
    failed: u64,
}

/// The bench's own count of the requests that are not the controller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Others {
    pub(super) jobs_created: u64,
    pub(super) pods_bound: u64,
    pub(super) statuses_written: u64,
    pub(super) pods_deleted: u64,
    /// Requests of the nodes that may not have counted as one of those above.
    pub(super) uncertain: u64,
}

/// Writes of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Writes {
    pub pod_creates: u64,
    pub pod_patches: u64,
    pub pod_deletes: u64,
    pub job_statuses: u64,
    pub jobs: u64,
    pub events: u64,
}

/// The API server's count and the bench's own count differ.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server counts {counted} {what}, the bench knows of {known}")]
pub(super) struct Mismatch {
    what: &'static str,
    counted: u64,
    known: u64,
}

impl Requests {
    /// Parses the text of `/metrics`.
    pub(super) fn parse(text: &str) -> Self {
        let mut requests = Self::default();
        for sample in samples(text, METRIC) {
            let labels = ["verb", "resource", "subresource"].map(|name| sample.label(name));
            let Some(kind) = Kind::of(labels) else { continue };
            *requests.counts.entry(kind).or_default() += sample.value as u64;
            if !sample.label("code").starts_with('2') {
                requests.failed += sample.value as u64;
            }
        }
        requests
    }

    /// The controller's part, after checking the others' part against their own count.
    pub(super) fn writes(&self, others: &Others) -> Result<Writes, Mismatch> {
        let checks = [
            ("Jobs created", Kind::JobCreate, others.jobs_created),
            ("bindings", Kind::Bind, others.pods_bound),
            ("writes to pods/status", Kind::PodStatus, others.statuses_written),
        ];
        for (what, kind, known) in checks {
            let counted = self.count(kind);
            if counted.abs_diff(known) > others.uncertain {
                return Err(Mismatch { what, counted, known });
            }
        }
        Ok(Writes {
            pod_creates: self.count(Kind::PodCreate),
            pod_patches: self.count(Kind::PodPatch),
            pod_deletes: self.count(Kind::PodDelete).saturating_sub(others.pods_deleted),
            job_statuses: self.count(Kind::JobStatus),
            jobs: self.count(Kind::Job),
            events: self.count(Kind::Event),
        })
    }

    pub(super) fn reads(&self) -> u64 {
        self.count(Kind::Read)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed
    }

    fn count(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }
}

impl Sub for &Requests {
    type Output = Requests;

    fn sub(self, earlier: Self) -> Requests {
        let since = |(kind, count): (&Kind, &u64)| (*kind, count - earlier.count(*kind));
        Requests {
            counts: self.counts.iter().map(since).collect(),
            failed: self.failed - earlier.failed,
        }
    }
}

impl Kind {
    fn of([verb, resource, subresource]: [&str; 3]) -> Option<Self> {
        let updates = matches!(verb, "PUT" | "PATCH" | "APPLY");
        match (resource, subresource) {
            ("pods", "") if verb == "POST" => Some(Self::PodCreate),
            ("pods", "") if updates => Some(Self::PodPatch),
            ("pods", "") if verb == "DELETE" || verb == "DELETECOLLECTION" => Some(Self::PodDelete),
            ("pods", "binding") if verb == "POST" => Some(Self::Bind),
            ("pods", "status") if updates => Some(Self::PodStatus),
            ("jobs", "") if verb == "POST" => Some(Self::JobCreate),
            ("jobs", "") if updates => Some(Self::Job),
            ("jobs", "status") if updates => Some(Self::JobStatus),
            ("events", "") if updates || verb == "POST" => Some(Self::Event),
            ("pods" | "jobs", _) if verb == "GET" => Some(Self::Read),
            _ => None,
        }
    }
}

impl Writes {
    pub fn total(&self) -> u64 {
        let Self { pod_creates, pod_patches, pod_deletes, job_statuses, jobs, events } = self;
        pod_creates + pod_patches + pod_deletes + job_statuses + jobs + events
    }
}

impl fmt::Display for Writes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod_creates, pod_patches, pod_deletes, job_statuses, jobs, events } = self;
        write!(
            formatter,
            "{pod_creates} pods created, {pod_patches} patched, {pod_deletes} deleted; \
             {job_statuses} statuses, {jobs} Jobs, {events} events"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verb: &str, resource: &str, subresource: &str, code: u32, value: u64) -> String {
        format!(
            "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",\
             resource=\"{resource}\",subresource=\"{subresource}\",verb=\"{verb}\"}} {value}\n"
        )
    }

    fn text() -> String {
        [
            line("POST", "pods", "", 201, 20),
            line("POST", "pods", "binding", 201, 20),
            line("PATCH", "pods", "status", 200, 21),
            line("PATCH", "pods", "", 200, 20),
            line("DELETE", "pods", "", 200, 3),
            line("POST", "jobs", "", 201, 2),
            line("PUT", "jobs", "status", 200, 6),
            line("PUT", "jobs", "status", 409, 1),
            line("POST", "events", "", 201, 4),
            line("PATCH", "events", "", 200, 5),
            line("GET", "jobs", "", 200, 9),
            line("WATCH", "pods", "", 200, 8),
            line("LIST", "jobs", "", 200, 8),
            line("PUT", "leases", "", 409, 8),
        ]
        .concat()
    }

    fn others() -> Others {
        Others {
            jobs_created: 2,
            pods_bound: 20,
            statuses_written: 21,
            pods_deleted: 1,
            uncertain: 0,
        }
    }

    #[test]
    fn the_controllers_writes_are_counted_apart_from_the_nodes_and_the_benchs() {
        let requests = Requests::parse(&text());
        let expected = Writes {
            pod_creates: 20,
            pod_patches: 20,
            pod_deletes: 2,
            job_statuses: 7,
            jobs: 0,
            events: 9,
        };
        assert_eq!(requests.writes(&others()), Ok(expected));
        assert_eq!(expected.total(), 58);
        assert_eq!((requests.reads(), requests.failed()), (9, 1));
    }

    #[test]
    fn what_was_before_is_not_counted() {
        let before = Requests::parse(&line("POST", "pods", "", 201, 5));
        let delta = &Requests::parse(&text()) - &before;
        assert_eq!(delta.writes(&others()).map(|writes| writes.pod_creates), Ok(15));
    }

    #[test]
    fn a_count_that_the_nodes_do_not_know_is_an_error() {
        let requests = Requests::parse(&text());
        let fewer = Others { statuses_written: 20, ..others() };
        let found = requests.writes(&fewer).expect_err("one write has no known client");
        assert_eq!((found.counted, found.known), (21, 20));
        assert!(requests.writes(&Others { uncertain: 1, ..fewer }).is_ok());
    }
}
