//! Splits the body of a reply into the frames of a watch.

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};

use super::signs::Signs;
use super::wire::Format;
use super::{IDLE_MAX, WatchError};
use crate::api_error::chain;

/// Maximum size of a frame: far more than the API stores in an object.
const BYTES_MAX: usize = 1 << 30;
/// Maximum size of a page. Its objects are their owners' and may have some megabytes each: a page
/// with fewer is asked for instead.
pub(super) const PAGE_BYTES_MAX: usize = 32 << 20;
/// A larger buffer is not kept for the next frame.
const BUFFER_KEPT_MAX: usize = 1 << 20;
/// The length before each frame of protobuf, big-endian.
const LENGTH_BYTES: usize = 4;

/// A body that arrives.
pub(super) struct Frames<B> {
    body: B,
    format: Format,
    signs: Signs,
}

/// How far to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// The next line feed, which is left out.
    LineEnd,
    /// So many bytes.
    Length(usize),
    /// The end of the body.
    End,
}

/// The result of reading from a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// Not all yet.
    Part,
    /// The last bytes up to the limit.
    All,
    /// The body has ended before the limit.
    End,
}

impl<B: AsyncBufRead + Unpin> Frames<B> {
    /// The body of a reply that has just begun.
    pub(super) fn new(body: B, format: Format, signs: Signs) -> Self {
        signs.alive();
        Self { body, format, signs }
    }

    /// The format of the frames.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Reads the next frame; `false` at the end. An incomplete one at the end is dropped, because
    /// a server that stops leaves one and its event comes again.
    pub(super) async fn next_frame(&mut self, frame: &mut Vec<u8>) -> Result<bool, WatchError> {
        frame.clear();
        frame.shrink_to(BUFFER_KEPT_MAX);
        match self.format {
            Format::Json => self.fill(frame, Until::LineEnd).await,
            Format::Protobuf => {
                let mut length = Vec::new();
                if !self.fill(&mut length, Until::Length(LENGTH_BYTES)).await? {
                    return Ok(false);
                }
                let length = length.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte));
                self.fill(frame, Until::Length(length)).await
            }
        }
    }

    /// Reads the whole body, if it is no larger than this.
    pub(super) async fn all(&mut self, bytes_max: usize) -> Result<Vec<u8>, WatchError> {
        let mut bytes = Vec::new();
        loop {
            match self.next_bytes(&mut bytes, Until::End).await? {
                Came::All | Came::End => return Ok(bytes),
                Came::Part if bytes.len() > bytes_max => return Err(WatchError::LargePage),
                Came::Part => {}
            }
        }
    }

    /// Reads bytes up to the limit; `false` if the body ends before.
    async fn fill(&mut self, bytes: &mut Vec<u8>, until: Until) -> Result<bool, WatchError> {
        loop {
            match self.next_bytes(bytes, until).await? {
                Came::All => return Ok(true),
                Came::Part => {}
                Came::End => return Ok(false),
            }
        }
    }

    /// Appends the next bytes, up to the limit.
    async fn next_bytes(&mut self, bytes: &mut Vec<u8>, until: Until) -> Result<Came, WatchError> {
        if until == Until::Length(bytes.len()) {
            return Ok(Came::All);
        }
        let came = tokio::time::timeout(IDLE_MAX, self.body.fill_buf()).await;
        let came = came.map_err(|_| WatchError::Idle)?;
        let came = came.map_err(|error| WatchError::Broken(chain(&error)))?;
        if came.is_empty() {
            return Ok(Came::End);
        }
        let (taken, consumed, is_all) = match until {
            Until::LineEnd => match came.iter().position(|byte| *byte == b'\n') {
                Some(end) => (end, end + 1, true),
                None => (came.len(), came.len(), false),
            },
            Until::Length(length) => {
                let missing = length - bytes.len();
                let taken = missing.min(came.len());
                (taken, taken, taken == missing)
            }
            Until::End => (came.len(), came.len(), false),
        };
        bytes.extend_from_slice(&came[..taken]);
        self.body.consume_unpin(consumed);
        self.signs.alive();
        if bytes.len() > BYTES_MAX {
            return Err(WatchError::Garbled(format!("more than {BYTES_MAX} bytes at once")));
        }
        Ok(if is_all { Came::All } else { Came::Part })
    }
}
