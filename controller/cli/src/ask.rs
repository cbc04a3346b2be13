//! Sends a request, and repeats it for a few seconds while a server is busy.

use std::time::Duration;

use http::Request;
use serde_json::Value;

/// The waits between attempts. The client's own would be silent for minutes.
const WAITS: [Duration; 5] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// Sends a request that may be repeated.
pub(crate) async fn ask(
    client: &kube::Client,
    request: Request<Vec<u8>>,
) -> Result<Value, kube::Error> {
    for wait in WAITS {
        match client.request::<Value>(request.clone()).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 429 | 503 | 504) => {
                tokio::time::sleep(wait).await;
            }
            answer => return answer,
        }
    }
    client.request::<Value>(request).await
}
