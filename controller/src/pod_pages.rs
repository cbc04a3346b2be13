//! Lists the pods of a Job from the API itself, page by page, and reads of each its version alone.

use controller_core::view::{Job, Version};
use kube::api::ListParams;
use kube::core::request::Error;
use serde::Deserialize;

/// Pods of one page: metadata of some kilobytes each, as a rule.
const PAGE: u32 = 500;
/// The most bytes of a page. A tenant may give each pod a megabyte of labels: a page with fewer
/// pods is asked for instead.
const PAGE_BYTES_MAX: u64 = 32 << 20;
/// The longest label selector to ask with, in bytes. A longer one makes an address that servers
/// refuse; then all pods of the namespace are listed.
const SELECTOR_MAX: usize = 4 << 10;

/// A list under way.
pub(crate) struct PodPages<'a> {
    job: &'a Job,
    params: ListParams,
    size: u32,
}

/// One page, as far as it is read.
#[derive(Deserialize)]
pub(crate) struct Page {
    #[serde(default)]
    metadata: PageMeta,
    /// The API writes `null` if there is none.
    items: Option<Vec<Item>>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    token: String,
}

#[derive(Deserialize)]
struct Item {
    metadata: Meta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    resource_version: String,
    #[serde(default)]
    owner_references: Vec<Owner>,
}

#[derive(Deserialize)]
struct Owner {
    uid: String,
    #[serde(default)]
    controller: bool,
}

impl<'a> PodPages<'a> {
    /// A list of the Job's pods.
    pub(crate) fn of(job: &'a Job) -> Self {
        let selector = job.spec.selector.query().filter(|text| text.len() <= SELECTOR_MAX);
        let params = ListParams { label_selector: selector, ..ListParams::default() };
        Self { job, params: params.limit(PAGE), size: PAGE }
    }

    /// The request for the next page, of metadata alone.
    pub(crate) fn request(&self) -> Result<http::Request<Vec<u8>>, Error> {
        let path = format!("/api/v1/namespaces/{}/pods", self.job.key.namespace);
        kube::core::Request::new(path).list_metadata(&self.params)
    }

    /// The most bytes of the next page that are read.
    pub(crate) fn bytes_max(&self) -> u64 {
        if self.size > 1 { PAGE_BYTES_MAX } else { u64::MAX }
    }

    /// The page was larger: it and all later ones have fewer pods.
    pub(crate) fn shrink(&mut self) {
        self.size = (self.size / 10).max(1);
        self.params.limit = Some(self.size);
    }

    /// Takes a page: the newest version among the Job's pods, and whether it was the last page.
    pub(crate) fn take(&mut self, page: &Page) -> (Version, bool) {
        let owned = |item: &&Item| {
            let mut owners = item.metadata.owner_references.iter();
            owners.any(|owner| owner.controller && owner.uid == self.job.uid.as_str())
        };
        let versions = page.items.iter().flatten().filter(owned);
        let newest = versions.map(|item| Version::parse(&item.metadata.resource_version)).max();
        let token = &page.metadata.token;
        self.params.continue_token = (!token.is_empty()).then(|| token.clone());
        (newest.unwrap_or_default(), token.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller_core::view::WireJob;
    use serde_json::json;

    fn job(selector: &serde_json::Value) -> Job {
        let job = json!({
            "metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "1"},
            "spec": {"selector": selector, "template": {}},
        });
        WireJob::read(&job.to_string()).and_then(WireJob::view).expect("must be a Job")
    }

    #[test]
    fn the_newest_version_of_the_job_s_own_pods_is_found_over_all_pages() {
        let job = job(&json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}));
        let mut pages = PodPages::of(&job);
        let request = pages.request().expect("a request");
        let asked = "/api/v1/namespaces/n/pods?&labelSelector=\
                     batch.kubernetes.io%2Fcontroller-uid+in+%28u%29&limit=500";
        assert_eq!(request.uri().to_string(), asked);
        let owned = |uid: &str, controller: bool, version: u64| {
            json!({"metadata": {"resourceVersion": version.to_string(), "managedFields": [{}],
                "ownerReferences": [{"uid": uid, "controller": controller}]}})
        };
        let page = |token: &str, items: serde_json::Value| -> Page {
            let page = json!({"metadata": {"resourceVersion": "99", "continue": token},
                "items": items});
            serde_json::from_value(page).expect("a page")
        };
        let first = page("more", json!([owned("u", true, 7), owned("u", true, 5)]));
        assert_eq!(pages.take(&first), (Version(7), false));
        let uri = pages.request().expect("a request").uri().to_string();
        assert!(uri.ends_with("&continue=more"), "{uri}");
        let orphan = json!({"metadata": {"resourceVersion": "50"}});
        let foreign =
            [owned("other", true, 40), owned("u", false, 30), orphan, owned("u", true, 6)];
        assert_eq!(pages.take(&page("", json!(foreign))), (Version(6), true));
    }

    /// The text is the API's own.
    #[test]
    fn a_list_without_pods_has_no_version() {
        let job = job(&json!({}));
        let text = r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",
            "metadata":{"resourceVersion":"1065"},"items":null}"#;
        let page: Page = serde_json::from_str(text).expect("a page");
        assert_eq!(PodPages::of(&job).take(&page), (Version::default(), true));
    }

    #[test]
    fn pages_that_are_too_large_have_fewer_pods_from_then_on() {
        let job = job(&json!({}));
        let mut pages = PodPages::of(&job);
        let page = json!({"metadata": {"continue": "more"}});
        pages.take(&serde_json::from_value(page).expect("a page"));
        for size in ["50", "5", "1", "1"] {
            assert!(pages.bytes_max() == PAGE_BYTES_MAX || size == "1");
            pages.shrink();
            let uri = pages.request().expect("a request").uri().to_string();
            assert!(uri.ends_with(&format!("&limit={size}&continue=more")), "{uri}");
        }
        assert_eq!(pages.bytes_max(), u64::MAX, "one pod is read, whatever its size");
    }

    #[test]
    fn a_selector_too_long_for_an_address_is_left_out() {
        let values: Vec<String> = (0..1_000).map(|number| format!("value-{number}")).collect();
        let expressions = json!([{"key": "a", "operator": "In", "values": values}]);
        let job = job(&json!({"matchExpressions": expressions}));
        let request = PodPages::of(&job).request().expect("a request");
        assert_eq!(request.uri().to_string(), "/api/v1/namespaces/n/pods?&limit=500");
    }
}
