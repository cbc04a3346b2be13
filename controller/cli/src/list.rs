//! Lists objects of a cluster. It leaves out a kind that RBAC forbids.

use serde_json::Value;

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
    let mut objects = Vec::new();
    let is_allowed = each_page(client, path, selector, |page| objects.extend(page)).await?;
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
    mut take: impl FnMut(Vec<Value>),
) -> Result<bool, SourceError> {
    let mut next = String::new();
    loop {
        let more = if next.is_empty() { String::new() } else { format!("&continue={next}") };
        let selector = if selector.is_empty() {
            String::new()
        } else {
            format!("&fieldSelector={}", selector.replace('=', "%3D").replace(',', "%2C"))
        };
        let uri = format!("{path}?limit={PAGE}{selector}{more}");
        let request = http::Request::get(&uri).body(Vec::new());
        let request =
            request.map_err(|error| SourceError::api(path, kube::Error::HttpError(error)))?;
        let mut page = match client.request::<Value>(request).await {
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

/// An object that does not exist is an empty answer; a forbidden read is an unknown one.
fn is_absent(path: &str, error: kube::Error) -> Result<bool, SourceError> {
    let code = match &error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    };
    match code {
        404 => Ok(true),
        403 => Ok(false),
        _ => Err(SourceError::api(path, error)),
    }
}
