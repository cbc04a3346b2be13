//! Talks to a machine's monitor: QEMU's JSON protocol on a unix socket, one connection per command.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use super::error::VmError;

/// Writing a snapshot of a gigabyte takes seconds; every other command answers at once.
const ANSWER_WITHIN: Duration = Duration::from_mins(2);

/// The name of the socket in a machine's directory.
pub(super) const SOCKET: &str = "monitor.sock";

/// Runs one command of the protocol on the machine whose files are in `dir`.
pub async fn execute(dir: &Path, command: &str, arguments: Value) -> Result<Value, VmError> {
    let failed = |answer: String| VmError::Monitor { command: command.to_owned(), answer };
    let talk = async {
        // A socket's path may have 108 bytes, which that of a checkout may exceed.
        let open_dir = File::open(dir)?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", open_dir.as_raw_fd());
        let mut stream = BufReader::new(UnixStream::connect(path).await?);
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        ask(&mut stream, &json!({"execute": "qmp_capabilities"})).await?;
        ask(&mut stream, &json!({"execute": command, "arguments": arguments})).await
    };
    let answer: std::io::Result<Value> = tokio::time::timeout(ANSWER_WITHIN, talk)
        .await
        .map_err(|_| failed(format!("no answer within {ANSWER_WITHIN:?}")))?;
    let answer = answer.map_err(|source| failed(source.to_string()))?;
    match answer.get("return") {
        Some(result) => Ok(result.clone()),
        None => Err(failed(answer.to_string())),
    }
}

/// Runs a command of the human monitor, which reports errors as text.
pub(super) async fn human(dir: &Path, line: &str) -> Result<String, VmError> {
    let answer = execute(dir, "human-monitor-command", json!({"command-line": line})).await?;
    Ok(answer.as_str().unwrap_or_default().to_owned())
}

async fn ask(stream: &mut BufReader<UnixStream>, request: &Value) -> std::io::Result<Value> {
    stream.get_mut().write_all(format!("{request}\n").as_bytes()).await?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let message: Value = serde_json::from_str(&line)?;
        // Events arrive in between.
        if message.get("return").is_some() || message.get("error").is_some() {
            return Ok(message);
        }
    }
}

/// The port of 127.0.0.1 that leads to `guest_port`, from the text of `info usernet`.
pub(super) fn forwarded_port(usernet: &str, guest_port: u16) -> Option<u16> {
    usernet.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [kind, _fd, _address, port, _guest, to, ..] = fields[..] else { return None };
        let ours = kind == "TCP[HOST_FORWARD]" && to.parse() == Ok(guest_port);
        if ours { port.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_port_is_found() {
        let text = "Hub -1 (n0):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  \
                    Port RecvQ SendQ\r\n  TCP[HOST_FORWARD]  13       127.0.0.1 33491       \
                    10.0.2.15    22     0     0\r\n";
        assert_eq!(forwarded_port(text, 22), Some(33491));
        assert_eq!(forwarded_port(text, 10250), None);
    }
}
