//! Reads replies with content that tenants wrote.

use futures::AsyncReadExt as _;
use http::Request;
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use std::pin::pin;

/// Sends a request and reads its reply. The API accepts invalid UTF-8 in `managedFields`. It is
/// read as U+FFFD, so that an object's owner cannot make our writes to it fail.
pub async fn read<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
) -> Result<T, Error> {
    let mut body = pin!(client.request_stream(request).await?);
    let mut bytes = Vec::new();
    body.read_to_end(&mut bytes).await.map_err(Error::ReadEvents)?;
    let text = String::from_utf8_lossy(&bytes);
    serde_json::from_str(&text).map_err(Error::SerdeError)
}
