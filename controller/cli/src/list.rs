//! Lists objects of a cluster. It leaves out a kind that RBAC forbids.

use epilogue_runtime::api_error::{Foreign, NOT_SERVED, foreign};
use serde_json::Value;

use crate::ask::ask;
use crate::source::SourceError;

/// Objects per page: one reply with all pods of a large cluster is too large.
const PAGE: usize = 500;

/// Lists the objects at a path, page by page, and sets their kind; `None` if RBAC forbids it.
pub(crate) async fn list(
    client: &kube::Client,
    kind: &str,
    path: &str,
    selector: &str,
) -> Result<Option<Vec<Value>>, SourceError> {
    queried(client, kind, path, &query("fieldSelector", selector)).await
}

/// The same, of objects with a label.
pub(crate) async fn labelled(
    client: &kube::Client,
    kind: &str,
    path: &str,
    label: &str,
) -> Result<Option<Vec<Value>>, SourceError> {
    queried(client, kind, path, &query("labelSelector", label)).await
}

fn query(parameter: &str, selector: &str) -> String {
    if selector.is_empty() {
        return String::new();
    }
    let selector = selector.replace('=', "%3D").replace(',', "%2C").replace('/', "%2F");
    format!("&{parameter}={selector}")
}

/// Lists objects with a query.
async fn queried(
    client: &kube::Client,
    kind: &str,
    path: &str,
    query: &str,
) -> Result<Option<Vec<Value>>, SourceError> {
    let mut objects = Vec::new();
    let is_allowed = read_pages(client, path, query, |page| objects.extend(page)).await?;
    for object in &mut objects {
        object["kind"] = kind.into();
    }
    Ok(is_allowed.then_some(objects))
}

/// Hands out the objects at a path, page by page; returns false if RBAC forbids it.
pub(crate) async fn each_page(
    client: &kube::Client,
    path: &str,
    selector: &str,
    take: impl FnMut(Vec<Value>),
) -> Result<bool, SourceError> {
    read_pages(client, path, &query("fieldSelector", selector), take).await
}

async fn read_pages(
    client: &kube::Client,
    path: &str,
    query: &str,
    mut take: impl FnMut(Vec<Value>),
) -> Result<bool, SourceError> {
    let mut next = String::new();
    loop {
        let more = if next.is_empty() { String::new() } else { format!("&continue={next}") };
        let uri = format!("{path}?limit={PAGE}{query}{more}");
        let request = http::Request::get(&uri).body(Vec::new());
        let request =
            request.map_err(|error| SourceError::api(path, kube::Error::HttpError(error)))?;
        let mut page = match ask(client, request).await {
            Ok(page) => page,
            Err(error) => return is_absent(path, error),
        };
        match page["items"].take() {
            Value::Array(items) => take(items),
            // The reply is a single object and not a list.
            _ => take(vec![page.clone()]),
        }
        match page["metadata"]["continue"].take() {
            Value::String(token) if !token.is_empty() => next = token,
            _ => return Ok(true),
        }
    }
}

/// An object that does not exist is an empty answer; a forbidden read is an unknown one. What a
/// proxy in between says is neither.
fn is_absent(path: &str, error: kube::Error) -> Result<bool, SourceError> {
    let code = match &error {
        kube::Error::Api(status) if status.message == NOT_SERVED && is_always_served(path) => {
            let reply = Foreign { code: status.code, text: status.message.clone() };
            return Err(SourceError::Foreign { path: path.to_owned(), reply });
        }
        kube::Error::Api(status) if foreign(&error).is_none() => status.code,
        _ => 0,
    };
    match code {
        404 => Ok(true),
        403 => Ok(false),
        _ => Err(SourceError::api(path, error)),
    }
}

/// Whether every API server serves this path. Who says otherwise is another program.
fn is_always_served(path: &str) -> bool {
    path.starts_with("/api/v1/") || path.starts_with("/apis/batch/v1/")
}
