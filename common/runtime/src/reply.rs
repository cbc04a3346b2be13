//! Reads replies with content that tenants wrote.

use futures::AsyncReadExt as _;
use http::{HeaderMap, Request, header};
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use std::pin::pin;

use crate::api_error::FOREIGN;
use crate::watch::Read;
use crate::watch::wire::{self, Format};

/// Sends a request and reads its reply. The API accepts invalid UTF-8 in `managedFields`. It is
/// read as U+FFFD, so that an object's owner cannot make our writes to it fail.
pub async fn read<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
) -> Result<T, Error> {
    let mut body = pin!(client.request_stream(request).await?);
    let mut bytes = Vec::new();
    body.read_to_end(&mut bytes).await.map_err(Error::ReadEvents)?;
    json(&bytes)
}

/// The same; `None` if the reply is larger than this. It is read no further then.
pub async fn read_up_to<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
    bytes_max: u64,
) -> Result<Option<T>, Error> {
    let body = pin!(client.request_stream(request).await?);
    let (mut body, mut bytes) = (body.take(bytes_max.saturating_add(1)), Vec::new());
    body.read_to_end(&mut bytes).await.map_err(Error::ReadEvents)?;
    if bytes.len() as u64 > bytes_max { Ok(None) } else { json(&bytes).map(Some) }
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_str(&String::from_utf8_lossy(bytes)).map_err(Error::SerdeError)
}

/// Sends a request and reads its reply, in whichever format the server sends it. The caller names
/// the accepted ones, by [`Read::accept`].
pub async fn read_as<T>(
    client: &Client,
    request: Request<Vec<u8>>,
    read: &Read<T>,
) -> Result<T, Error> {
    let response = client.send(request.map(Body::from)).await?;
    let (code, format) = (response.status(), Format::of(response.headers()));
    let retry_after = retry_after(response.headers());
    let body = response.into_body().collect_bytes().await?;
    if code.is_client_error() || code.is_server_error() {
        let code = code.as_u16();
        let mut status = wire::status(format, &body, code).unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&body);
            Status::failure(text.trim(), FOREIGN).with_code(code)
        });
        // Priority and fairness, and proxies, say it in the header alone.
        if let Some(seconds) = retry_after {
            let details = status.details.take();
            let details = details.unwrap_or_else(|| StatusDetails {
                name: String::new(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
                causes: Vec::new(),
                retry_after_seconds: seconds,
            });
            status.details = Some(StatusDetails { retry_after_seconds: seconds, ..details });
        }
        return Err(Error::Api(status.boxed()));
    }
    wire::reply(format, &body, read).map_err(Error::SerdeError)
}

fn retry_after(headers: &HeaderMap) -> Option<u32> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_error::classify;
    use crate::watch::protobuf::samples;
    use epilogue_common::names::media_type::{JSON, PROTOBUF};
    use epilogue_common::outcome::FailureKind;
    use epilogue_common::watch_event::Rejected;
    use http::{Response, header};
    use serde_json::{Value, json};

    /// Gives the name; a nameless object is rejected.
    const NAME: Read<String> = Read {
        json: |text| {
            let object: Value = serde_json::from_str(text)?;
            object["metadata"]["name"].as_str().map(ToOwned::to_owned).ok_or_else(nameless)
        },
        protobuf: Some(|message| {
            let all = String::from_utf8_lossy(message);
            let why = "metadata.name: missing".to_owned();
            if all.contains("pod-a") {
                Ok("pod-a".into())
            } else {
                Err(Rejected { why, ..Rejected::default() })
            }
        }),
    };

    fn nameless() -> serde_json::Error {
        serde::de::Error::custom("metadata.name: missing")
    }

    async fn answered(code: u16, content: &'static str, body: Vec<u8>) -> Result<String, Error> {
        let service = tower::service_fn(move |_: Request<Body>| {
            let reply = Response::builder().status(code).header(header::CONTENT_TYPE, content);
            std::future::ready(reply.body(Body::from(body.clone())))
        });
        let request = Request::get("/api").body(Vec::new()).expect("must be a request");
        read_as(&Client::new(service, "default"), request, &NAME).await
    }

    #[tokio::test]
    async fn replies_and_refusals_mean_the_same_in_both_formats() {
        let object = json!({"metadata": {"name": "pod-a"}}).to_string().into_bytes();
        assert_eq!(answered(201, JSON, object).await.expect("must be read"), "pod-a");
        let object = samples::wrapped(&samples::object("pod-a", 5, &[]));
        assert_eq!(answered(201, PROTOBUF, object).await.expect("must be read"), "pod-a");
        for (code, reason, cause, seconds) in [
            (409, "AlreadyExists", "", 0),
            (403, "Forbidden", "NamespaceTerminating", 0),
            (429, "TooManyRequests", "", 7),
            (500, "", "", 0),
        ] {
            let json = json!({"message": reason, "reason": reason, "code": code, "details": {
                "causes": [{"reason": cause}], "retryAfterSeconds": seconds}});
            let json = answered(code, JSON, json.to_string().into_bytes()).await;
            let status = samples::detailed(code.into(), reason, cause, seconds);
            let protobuf = answered(code, PROTOBUF, samples::wrapped(&status)).await;
            let classified = |it: Result<String, Error>| classify(it.expect_err("is refused"));
            assert_eq!(classified(protobuf), classified(json), "{code} {reason}");
        }
    }

    #[tokio::test]
    async fn replies_that_no_api_server_wrote_are_failures() {
        let page = b"<html>Bad Gateway</html>";
        for content in ["text/html", PROTOBUF] {
            let failure = classify(answered(502, content, page.to_vec()).await.expect_err("fails"));
            assert_eq!(failure.kind, FailureKind::ServerError);
            assert_eq!(failure.message, "HTTP 502: <html>Bad Gateway</html>");
            let failure = classify(answered(200, content, page.to_vec()).await.expect_err("fails"));
            assert_eq!(failure.kind, FailureKind::Unknown, "{failure:?}");
        }
        let nameless = samples::wrapped(&samples::object("", 5, &[]));
        let failure = classify(answered(200, PROTOBUF, nameless).await.expect_err("fails"));
        assert!(failure.message.contains("metadata.name: missing"), "{failure:?}");
    }
}
